# mypyc compiles this module.
"""How many bytes of messages are in memory, over all queues, and who waits for room."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from orthia.journal.model.encodings import FIRST_ENCODING
from orthia.journal.model.message import LARGE_OVERHEAD, STATED_OVERHEAD, Message

SMALL_CLAIM = 65_536
"""Bytes a consumer may hold however much others have not acknowledged."""
_MOST_ASKED = 256
"""How many holders are asked to make room at a time: very many may have none to give."""
LENT_WINDOW_BYTES = 1024 * 1024
"""Bytes of one window of messages that few consumers want, however full memory is."""
_MOST_LENT = 2
"""How many such windows may be in memory beyond the limit."""
_UNLIMITED = 1 << 62
"""More bytes than there is memory."""
MOST_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes the names of the message groups of all queues may take."""
MESSAGE_OVERHEAD = 600
"""Bytes a message in memory costs beside its headers and body; measured on CPython 3.11."""


def at_most(number: int) -> int | None:
    """Return a limit of broker.xml or a binding, where -1 means none, as None."""
    return None if number < 0 else number


def size_in_memory(record: Message) -> int:
    """Return the bytes a message counts for while it is in memory.

    As the next live node counts it, which knows the lengths of encoded messages alone.
    """
    # Unpacked, as it is asked of every message: fields are looked up much slower by their names.
    _, head, body, _, _, _, large, encoding, stated = record
    size = len(head) + len(stated) + len(body) + MESSAGE_OVERHEAD
    if stated or encoding != FIRST_ENCODING:
        size += STATED_OVERHEAD
    if large is not None:
        size += LARGE_OVERHEAD
    return size


def size_in_store(record: Message) -> int:
    """Return the bytes a message counts for against the limits of the store."""
    size = size_in_memory(record)
    return size if record.large is None else size + record.large.size


_Waiter = TypeVar("_Waiter")


class Waiters(Generic[_Waiter]):
    """Those who wait for room, the longest waiting first.

    Who refuses a consumer notes it here at once, so that none waits for room that came back before
    it asked.
    """

    __slots__ = ("_has_more", "_is_relieving", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[_Waiter, None] = OrderedDict()
        self._is_relieving = False
        self._has_more = False
        """Whether room came back while others were being told."""

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, waiter: _Waiter) -> bool:
        """Let somebody wait for room; return False."""
        self._waiting[waiter] = None
        return False

    def forget(self, waiter: _Waiter) -> None:
        """Stop somebody from waiting."""
        self._waiting.pop(waiter, None)

    def pop(self) -> _Waiter:
        """Return who waits longest, and stop them from waiting."""
        return self._waiting.popitem(last=False)[0]

    def relieve(self, has_room: Callable[[], bool], go_on: Callable[[_Waiter], None]) -> None:
        """Call ``go_on`` once for each while there is room; the others keep waiting.

        One that goes on may give room back at once. The call that is under way then tells the next:
        there may be very many, and Python does not nest that many calls.
        """
        self._has_more = True
        if self._is_relieving:
            return
        self._is_relieving = True
        try:
            while self._has_more:
                self._has_more = False
                for _ in range(len(self._waiting)):
                    # One that goes on may remove others.
                    if not self._waiting or not has_room():
                        break
                    go_on(self._waiting.popitem(last=False)[0])
        finally:
            self._is_relieving = False


class _Claimant(Protocol):
    """A consumer whose budget may refuse it messages."""

    def resume(self) -> None:
        """Ask again."""


class Holder(Protocol):
    """An owner of messages that count against a budget."""

    def shed(self, size: int) -> bool:
        """Drop up to ``size`` bytes that the table has too and nobody wants soon.

        Return whether to ask again. If not, the holder registers when it holds something again.
        """


class _Grouping(Protocol):
    """The message groups of one queue."""

    size: int
    """Bytes its groups count for; ``GroupMemory`` sets it."""

    def forget_one(self) -> bool:
        """Forget the group that was idle longest; return False if all are in use."""


class GroupMemory:
    """Counts the bytes of all queues' group names; on the loop's thread.

    Clients choose how many there are. Beyond the limit the queue with most of them forgets one for
    each new one.
    """

    __slots__ = ("_largest", "limit", "used")

    def __init__(self, limit: int = MOST_GROUP_BYTES) -> None:
        self.limit = limit
        self.used = 0
        self._largest: _Grouping | None = None

    def add(self, owner: _Grouping, size: int) -> None:
        """Count a new group."""
        self.used += size
        owner.size += size
        if self._largest is None or owner.size > self._largest.size:
            self._largest = owner

    def remove(self, owner: _Grouping, size: int) -> None:
        """Stop counting groups of ``size`` bytes."""
        self.used -= size
        owner.size -= size

    def make_room(self, owner: _Grouping) -> None:
        """Forget a group if there is no room for one that ``owner`` has just added."""
        if self.used > self.limit and not (self._largest and self._largest.forget_one()):
            owner.forget_one()


class CreditPool:
    """Bytes that several consumers share: delivered and not acknowledged yet.

    Those bytes are *claimed*. At the limit the pool is *exhausted*: each consumer then has credit
    for ``small_claim`` only, and is asked again once others have acknowledged.
    """

    __slots__ = ("_waiters", "claimed", "limit", "small_claim")

    def __init__(self, limit: int, small_claim: int) -> None:
        self.limit = limit
        self.small_claim = small_claim
        """Bytes each consumer may claim even of an exhausted pool."""
        self.claimed = 0
        self._waiters: Waiters[_Claimant] = Waiters()

    @property
    def is_exhausted(self) -> bool:
        """Whether unacknowledged messages take the whole pool."""
        return self.claimed >= self.limit

    def refuse(self, claimant: _Claimant) -> bool:
        """Let a consumer wait for an exhausted pool; return False."""
        return self._waiters.note(claimant)

    def forget(self, claimant: _Claimant) -> None:
        """Stop a consumer from waiting."""
        self._waiters.forget(claimant)

    def relieve(self) -> None:
        """Resume consumers that wait, until the pool is exhausted again."""
        self._waiters.relieve(lambda: not self.is_exhausted, lambda claimant: claimant.resume())

    def claim(self, size: int) -> None:
        """Count a message that was delivered."""
        self.claimed += size

    def unclaim(self, size: int) -> None:
        """Stop counting ``size`` bytes that no consumer has any more."""
        before = self.claimed
        self.claimed = before - size
        if self.claimed < self.limit <= before and self._waiters:
            self._relieved()

    def _relieved(self) -> None:
        """Call ``relieve``: there is room, and somebody waits for it."""
        self.relieve()


class MemoryBudget(CreditPool):
    """Counts bytes in memory against ``global-max-size``.

    Messages that consumers have not acknowledged, or have given back, are claimed: they cannot be
    dropped from memory.
    """

    __slots__ = ("_holders", "_is_relief_due", "_later", "_lent", "groups", "used")

    def __init__(
        self, limit: int, later: Callable[[Callable[[], None]], object] = lambda _: None
    ) -> None:
        """Begin empty; ``later`` calls back when those who wait for room are to be resumed.

        That is once for many acknowledgements. A ``limit`` below 0 is none, as in broker.xml.
        """
        super().__init__(limit if limit >= 0 else _UNLIMITED, SMALL_CLAIM)
        self.used = 0
        self.groups = GroupMemory()
        """The names of message groups, which count beside it."""
        self._lent = 0
        self._later = later
        self._is_relief_due = False
        self._holders: deque[Holder] = deque()

    def _relieved(self) -> None:
        if not self._is_relief_due:
            self._is_relief_due = True
            self._later(self._relieve)

    def _relieve(self) -> None:
        self._is_relief_due = False
        self.relieve()

    @property
    def room(self) -> int:
        """How many more bytes fit; may be below zero."""
        return self.limit - self.used

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit."""
        return self.used + size <= self.limit

    def lend_window(self) -> bool:
        """Lend a window of which little is kept; return False if all are lent."""
        if self._lent >= _MOST_LENT:
            return False
        self._lent += 1
        return True

    def window_returned(self) -> None:
        """Take a lent window back: what was read for it is no longer in memory."""
        self._lent -= 1

    def register(self, holder: Holder) -> None:
        """Ask ``holder`` to shed when another needs room.

        It registers once while it holds something: of very many queues few hold anything.
        """
        self._holders.append(holder)

    def make_room(self, size: int) -> None:
        """Let holders shed in turn until ``size`` bytes fit, or until enough were asked."""
        for _ in range(min(len(self._holders), _MOST_ASKED)):
            missing = size - self.room
            if missing <= 0:
                return
            holder = self._holders.popleft()
            if holder.shed(missing):
                self._holders.append(holder)
