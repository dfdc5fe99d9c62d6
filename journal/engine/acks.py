"""A thread that finds what applications acknowledged in their own transactions, and tells the loop.

Committed acknowledgements are looked for often while there are any, and more and more seldom while
there are none. The loop settles their messages; what it could not settle it is told again a while
later. An acknowledgement ends when its message is gone: then it is pruned here.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple

from orthia.config.clock import monotonic_seconds
from orthia.database import Locked
from orthia.journal.engine.abc import ApplicationAck, ApplicationAcks, BatchStore, Windows
from orthia.journal.engine.batch import batch_of
from orthia.journal.engine.lasting import LastingFailure
from orthia.journal.engine.retry import failure_of, pause_seconds
from orthia.journal.engine.worker import Worker
from orthia.journal.model.unit import Unit

LOGGER = logging.getLogger("orthia.journal")
READ_AT_ONCE: Final = 1_000
MOST_WAITING: Final = 100_000
"""How many are known at a time; the others wait in the table."""
SHORTEST_PAUSE_SECONDS: Final = 0.004
LONGEST_PAUSE_SECONDS: Final = 0.1
_GROWTH: Final = 1.25
"""How much longer each pause is in which there was nothing. A consumer with credit for one message
waits for a look after each: no longer than a quarter of the time since the one before."""
_SHARE: Final = 4
"""The part of the time, one in so many, that looking for them may take."""
_AGAIN_SECONDS: Final = 0.25
"""After how long the loop is told again; twice as long each time."""
_LATEST_AGAIN_SECONDS: Final = 32.0
_MOST_LEFT: Final = 10 * MOST_WAITING
_LEFT_SECONDS: Final = 600.0
"""How often those are looked at that were left in the table."""

Listener = Callable[[Sequence[ApplicationAck], Sequence[ApplicationAck]], None]
"""Gets what was found, and then what it was told before and is still there."""


class AckStatus(NamedTuple):
    """What there is of acknowledgements by applications."""

    waiting: int
    """How many are committed, and known here, of which the messages are not gone yet."""
    oldest_seconds: float
    """For how long the first of them has been known; 0 without any."""
    settled: int
    """How many ended since this node is live."""
    failure: str | None
    """Why they cannot be read at present."""


class _Waiting:
    __slots__ = ("ack", "again_seconds", "since", "told")

    def __init__(self, ack: ApplicationAck, now: float) -> None:
        self.ack = ack
        self.since = now
        self.told = now
        self.again_seconds = _AGAIN_SECONDS


def pause_after(pause: float, took: float, *, is_busy: bool) -> float:
    """Return the seconds to the next look, given those before one that ``took`` so long."""
    longer = 0.0 if is_busy else min(_GROWTH * pause, LONGEST_PAUSE_SECONDS)
    return max(SHORTEST_PAUSE_SECONDS, longer, _SHARE * took)


class AckReader:
    """Reads and prunes on a thread of its own; the listener is called on the loop."""

    def __init__(
        self,
        acks: ApplicationAcks,
        *,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``post`` runs a callable on the loop, later, in order, from any thread."""
        self._acks = acks
        self._post = post
        self._clock = clock
        self._listener: Listener | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._left: SimpleQueue[Collection[int]] = SimpleQueue()
        self._staying: set[int] = set()
        """What was left, which some DBMS are read of again and again."""
        self._look_at_left_seconds: float | None = None
        self._settled = 0
        self.status = AckStatus(0, 0.0, 0, None)
        """Any thread."""
        self._worker: Worker[None] = Worker("journal-acks", self._run, ended=acks.close)
        self._stopping = self._worker.stopping
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with what was acknowledged, from now on; what waits comes again."""
        self._listener = listener

    def leave(self, seqs: Collection[int]) -> None:
        """Leave acknowledgements in the table, of messages that stay; any thread.

        So that those of other messages find room, however many there are.
        """
        self._left.put(seqs)

    # --- before the journal is open

    def settle_left(self, store: BatchStore, windows: Windows, kept: Collection[int]) -> None:
        """Delete messages that were acknowledged while no node was live; raises StoreError.

        But for those of the queues ``kept``, which nothing leaves. What cannot be deleted now is
        left to the loop. May be called again after an error.
        """
        self._acks.start_over()
        while len(self._waiting) < MOST_WAITING:
            found = self._acks.read(READ_AT_ONCE)
            self._note(found)
            if len(found) < READ_AT_ONCE:
                break
        waiting = [one.ack for one in self._waiting.values()]
        for first in range(0, len(waiting), READ_AT_ONCE):
            some = waiting[first : first + READ_AT_ONCE]
            stored = windows.stored([one.seq for one in some if one.queue_id is not None])
            unit = Unit()
            unit.add_deletes(one.message.location for one in stored if one.queue_id not in kept)
            if unit.deletes:
                try:
                    store.store(batch_of([unit]))
                except Locked as error:
                    LOGGER.warning("deleting acknowledged messages failed: %s; retrying", error)
        self._prune()

    # --- the thread

    def _run(self) -> None:
        pause, failures = 0.0, 0
        lasting = LastingFailure("reading acknowledgements has failed", self._clock)
        while not self._stopping.wait(pause):
            began = self._clock()
            try:
                is_busy = self._look(began)
            except Exception as error:  # noqa: BLE001 - nobody else would read them
                failures += 1
                self._acks.start_over()
                failure = failure_of("acknowledgements", error)
                self._say(failure)
                lasting.failed(failure)
                pause = pause_seconds(failures)
                continue
            failures = 0
            lasting.succeeded()
            self._say(None)
            pause = pause_after(pause, self._clock() - began, is_busy=is_busy)

    def _look(self, now: float) -> bool:
        """Look once; return whether there was anything."""
        self._forget_left(now)
        has_pruned = self._prune()
        found: Sequence[ApplicationAck] = ()
        if len(self._waiting) < MOST_WAITING:
            found = self._acks.read(READ_AT_ONCE)
        fresh, again = self._note(found), self._to_tell_again(now)
        listener = self._listener
        if (fresh or again) and listener is not None:
            self._worker.tell(self._post, partial(listener, fresh, again))
        return has_pruned or bool(fresh or again)

    def _note(self, found: Sequence[ApplicationAck]) -> list[ApplicationAck]:
        """Remember what was found; return those that were not known, and have a queue."""
        now, fresh = self._clock(), []
        for ack in found:
            if ack.seq not in self._waiting and ack.seq not in self._staying:
                self._waiting[ack.seq] = _Waiting(ack, now)
                if ack.queue_id is not None:
                    fresh.append(ack)
        return fresh

    def _to_tell_again(self, now: float) -> list[ApplicationAck]:
        again: list[ApplicationAck] = []
        for one in self._waiting.values():
            if now - one.told >= one.again_seconds and one.ack.queue_id is not None:
                one.told = now
                one.again_seconds = min(2 * one.again_seconds, _LATEST_AGAIN_SECONDS)
                again.append(one.ack)
                if len(again) == READ_AT_ONCE:
                    break  # the others with the next looks: the loop reads their messages
        return again

    def _forget_left(self, now: float) -> None:
        """Forget what was left in the table; now and then read all, to prune what is gone."""
        while not self._left.empty():
            for seq in self._left.get():
                if len(self._staying) < _MOST_LEFT and self._waiting.pop(seq, None) is not None:
                    self._staying.add(seq)
            if self._look_at_left_seconds is None:
                self._look_at_left_seconds = now + _LEFT_SECONDS
        if self._look_at_left_seconds is not None and now >= self._look_at_left_seconds:
            self._look_at_left_seconds = None
            self._staying.clear()
            self._acks.start_over()

    def _prune(self) -> bool:
        """Prune those whose messages are gone; return whether there were any."""
        gone: set[int] = set()
        seqs = list(self._waiting)
        for first in range(0, len(seqs), READ_AT_ONCE):
            gone |= self._acks.prune(seqs[first : first + READ_AT_ONCE])
        for seq in gone:
            del self._waiting[seq]
        self._settled += len(gone)
        return bool(gone)

    def _say(self, failure: str | None) -> None:
        oldest = next(iter(self._waiting.values()), None)
        age = 0.0 if oldest is None else self._clock() - oldest.since
        self.status = AckStatus(len(self._waiting), age, self._settled, failure)
