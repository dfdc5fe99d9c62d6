"""Which messages were taken out of the middle of a queue, so that no window shows them once more.

A window may show a message that a consumer has, gave back, or acknowledged: its row is there until
that is committed, and a window that was asked for before shows it even later. So what was
acknowledged is remembered until that was committed and every window is answered that was on its way
then. That is found out for many at a time. What has expired is looked for in all queues together:
such a look shows messages as they were when it was begun, too.
"""

from collections.abc import Callable, Iterable
from itertools import chain

from orthia.broker.core.failures import by_itself

_SWEEP_AT = 1_024
"""How many acknowledged messages are remembered before some are forgotten."""


class ExpiryLook:
    """Who reads messages beside the queues, and who waits until what was read was looked at.

    The scan for expired messages, and operations on many messages.
    """

    __slots__ = ("_under_way", "_waiting")

    def __init__(self) -> None:
        self._under_way: set[object] = set()
        self._waiting: list[tuple[set[object], Callable[[], None]]] = []

    @property
    def is_under_way(self) -> bool:
        """Whether anything is being read, or looked at."""
        return bool(self._under_way)

    def begin(self, who: object = None) -> None:
        """Note that somebody reads."""
        self._under_way.add(who)

    def after(self, then: Callable[[], None]) -> None:
        """Call ``then`` at the end of all reads that are under way."""
        self._waiting.append((set(self._under_way), then))

    def end(self, who: object = None) -> None:
        """Note that all was looked at that somebody had read."""
        self._under_way.discard(who)
        waiting, self._waiting = self._waiting, []
        for for_whom, then in waiting:
            for_whom.discard(who)
            if for_whom:
                self._waiting.append((for_whom, then))
                continue
            with by_itself("resuming a queue after a read of its messages failed"):
                then()


class TakenSeqs:
    """Messages that were delivered at least once, by seq; pure."""

    __slots__ = ("_acknowledged", "_held", "_knows_last", "_last", "_sweeping", "_waits_for")

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._acknowledged: set[int] = set()
        self._last: int | None = None
        self._knows_last = True
        """Whether ``_last`` is still the highest there is."""
        self._sweeping: set[int] | None = None
        self._waits_for: set[object] = set()

    def __contains__(self, seq: int) -> bool:
        return seq in self._held or seq in self._acknowledged

    def __bool__(self) -> bool:
        return bool(self._held or self._acknowledged)

    @property
    def holds(self) -> bool:
        """Whether any of them may come back."""
        return bool(self._held)

    @property
    def last_seq(self) -> int | None:
        """The highest there is; None if there is none."""
        if not self._knows_last:
            self._last = max(chain(self._held, self._acknowledged), default=None)
            self._knows_last = True
        return self._last

    def take(self, seq: int) -> None:
        """Note a message that is delivered."""
        self._held.add(seq)
        if self._knows_last and (self._last is None or seq > self._last):
            self._last = seq

    def acknowledged(self, seqs: Iterable[int]) -> None:
        """Note messages that are deleted; others than those that were taken are passed over."""
        gone = self._held.intersection(seqs)
        self._held -= gone
        self._acknowledged |= gone

    def restored(self, seqs: Iterable[int]) -> None:
        """Note that messages are not deleted after all."""
        back = self._acknowledged.intersection(seqs)
        self._acknowledged -= back
        self._held |= back
        if self._sweeping is not None:
            self._sweeping -= back

    # --- forgetting

    def may_sweep(self, *, soon: bool) -> bool:
        """Return whether some are to be forgotten; one that ``begin_sweep`` notes at a time."""
        return self._sweeping is None and len(self._acknowledged) >= (1 if soon else _SWEEP_AT)

    def begin_sweep(self) -> None:
        """Begin to forget what is acknowledged by now: wait until that is committed."""
        self._sweeping = set(self._acknowledged)
        self._waits_for = {"commit"}

    def committed(self, under_way: Iterable[object]) -> None:
        """Note that all that was acknowledged at the beginning is; these reads are under way."""
        self._waits_for |= set(under_way)
        self._waits_for.discard("commit")

    def answered(self, read: object) -> None:
        """Note that a window, or another read, was answered, and all of it looked at."""
        self._waits_for.discard(read)

    def swept(self) -> set[int]:
        """Return what nobody can meet any more, and forget it."""
        if self._sweeping is None or self._waits_for:
            return set()
        gone, self._sweeping = self._sweeping, None
        self._acknowledged -= gone
        if self._last in gone:
            self._knows_last = False
        return gone
