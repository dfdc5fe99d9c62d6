# mypyc compiles this module.
"""Counting the messages that earlier epochs left, after a takeover and beside the work of clients.

The journal counts a bounded number of messages at a time, through all queues: the cost depends on
the number of messages, not of queues. The loop takes each answer in slices and serves clients in
between. A queue that read a window meanwhile is counted again alone, and reads no other window
until that is done.

Messages of other priorities than most are counted first, a few of each queue: a queue delivers
nothing until it is known whether it has any.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.timers import Timers
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.windows import BEGINNING, QueueCounts, QueuePlace

LOGGER = logging.getLogger("orthia.broker")
COUNT_STEP = 5_000
"""Messages the journal counts for one answer, which takes milliseconds. MariaDB reads each message
to know its size, so more of them could keep a window waiting for too long."""
SLICE = 1_000
"""Queues that take their counts in one turn of the loop."""
_FIRST_STEP: Final = 500
_WINDOW_MS = 50
"""How long to wait before counting a queue again of which a window is being read."""


class _Part(NamedTuple):
    """The messages of a queue that are stored under one id: most, or those of one priority."""

    queue: Queue
    id: int
    cursor: Cursor

    @property
    def uncounted_after(self) -> int | None:
        """The seq after which messages of earlier epochs are not counted; None if all are."""
        return None if self.queue.is_leaving else self.cursor.uncounted_after

    def counted(self, after: int, up_to: int, messages: int, payload_bytes: int) -> None:
        """Add how many messages the store has with ``after < seq <= up_to``."""
        self.queue.counted(after, up_to, messages, payload_bytes, self.cursor)

    def give_up_counting(self) -> None:
        """Note that counting ends here; the rest is counted when it is read."""
        self.cursor.give_up_counting()
        if self.queue.selecting is not None:
            self.queue.resume()


class BacklogCount:
    """One count of all queues; calls and callbacks on the loop's thread."""

    def __init__(self, journal: MessageJournal, timers: Timers) -> None:
        self._first: deque[_Part] = deque()
        self._parts: dict[int, _Part] = {}
        self._journal = journal
        self._timers = timers
        self._horizon = journal.recovery_horizon
        self._again: deque[_Part] = deque()

    def add(self, queue: Queue) -> None:
        """Add a queue to count, before the start.

        Last value queues count while they read their values, but for other priorities.
        """
        for queue_id, cursor in queue.log.cursors():
            part = _Part(queue, queue_id, cursor)
            is_own = queue_id == queue.id
            if part.uncounted_after is None or (is_own and queue.last_values is not None):
                continue
            if not is_own:
                self._first.append(part)
            self._parts[queue_id] = part

    def start(self) -> None:
        """Begin to count; it ends by itself, or with the journal."""
        if self._first:
            self._count_first()
        elif self._parts:
            self._walk(BEGINNING)

    def _count_first(self) -> None:
        after = QueuePlace(self._first.popleft().id, 0)

        def answered(counts: QueueCounts | OrthiaError) -> None:
            if not isinstance(counts, OrthiaError):  # the walk logs errors
                self._note(after, counts)
            self.start()

        self._ask(after, answered, _FIRST_STEP)

    # --- all queues, one after the other

    def _walk(self, after: QueuePlace) -> None:
        def answered(counts: QueueCounts | OrthiaError) -> None:
            if isinstance(counts, OrthiaError):
                _warn(counts)
                for part in self._parts.values():
                    part.give_up_counting()
            else:
                self._take(self._walked(after, counts))

        self._ask(after, answered)

    def _take(self, slices: Iterator[None]) -> None:
        if sum(1 for _ in islice(slices, SLICE)) == SLICE:
            self._timers.call_later(0, lambda: self._take(slices))

    def _walked(self, after: QueuePlace, counts: QueueCounts) -> Iterator[None]:
        """Let each queue take its count of one answer, then ask for the next."""
        if after.queue_id not in counts.messages:
            self._note(after, counts)
        for queue_id in counts.messages:
            begin = after if queue_id == after.queue_id else QueuePlace(queue_id, 0)
            self._note(begin, counts)
            yield
        if counts.next_after is not None:
            self._walk(counts.next_after)
            return
        for part in self._parts.values():
            part.counted(0, self._horizon, 0, 0)  # the store has nothing for the others
            if part.uncounted_after is not None:
                self._again.append(part)
            yield
        self._count_again()

    def _note(self, after: QueuePlace, counts: QueueCounts) -> None:
        part = self._parts.get(after.queue_id)
        if part is not None:
            last = counts.next_after
            is_last = last is not None and last.queue_id == part.id
            up_to = last.seq if last is not None and is_last else self._horizon
            messages = counts.messages.get(part.id, 0)
            payload_bytes = counts.payload_bytes.get(part.id, 0)
            part.counted(after.seq, up_to, messages, payload_bytes)

    # --- one queue after the other: those that read a window meanwhile

    def _count_again(self) -> None:
        again = self._again
        while again and again[0].uncounted_after is None:
            again.popleft()
        if not again:
            return
        part, queue = again[0], again[0].queue
        is_own = part.id == queue.id
        if is_own and not queue.refill.hold():
            self._timers.call_later(_WINDOW_MS, self._count_again)
            return
        after = QueuePlace(part.id, part.uncounted_after or 0)

        def answered(counts: QueueCounts | OrthiaError) -> None:
            if isinstance(counts, OrthiaError):
                _warn(counts)
                again.popleft()
                part.give_up_counting()
            else:
                self._note(after, counts)
            if is_own:
                queue.refill.release()
            else:
                queue.resume()  # what is not counted is not read
            self._count_again()

        self._ask(after, answered)

    def _ask(
        self,
        after: QueuePlace,
        answered: Callable[[QueueCounts | OrthiaError], None],
        step: int | None = None,
    ) -> None:
        try:
            self._journal.count(after, self._horizon, step or COUNT_STEP, answered)
        except JournalClosed:
            return  # this node is ending: the next one counts


def _warn(error: OrthiaError) -> None:
    LOGGER.warning(
        "counting the messages that earlier nodes left failed: %s; the depths of queues are too low"
        " until the rest is read",
        error,
    )
