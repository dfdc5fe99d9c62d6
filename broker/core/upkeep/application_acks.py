"""Settling messages that applications acknowledged in their own transactions.

The journal tells which were committed:

============================================  ====================================================
a message                                     what happens to it
============================================  ====================================================
that a consumer has                           acknowledged, as if its client had: credit again
that came back, or an earlier node delivered  taken out of its queue
that nobody had so far                        the same, when it is told for the second time
that is to be delivered later                 cancelled
that is on its way to another queue           stays; its move is refused, see ``SendPlan.take_out``
of a ring, and no consumer has it             stays until it is delivered, or the ring drops it
of a non-destructive queue                    stays, and its acknowledgement in the table
============================================  ====================================================

What cannot be settled now is told again after a while: a message that a client's open transaction
has, or whose queue is being counted, trimmed, or deleted. Most messages that nobody has are those
whose deletion is on its way, for the client acknowledged them, too: they are read only if they are
still there when they are told again.
"""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.queue.taking import is_known, may_take, take_acknowledged, taken
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.schedule import Schedule
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import ApplicationAck
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.windows import QueuedMessage

_TAKEN_AT_ONCE: Final = 64
_LOOKED_AT_ONCE: Final = 256
"""How many queues are looked at in one step."""


class ApplicationAckUpkeep:
    """Settles what the journal tells; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        book: AddressBook,
        schedule: Schedule,
        slices: Slices,
        look: ExpiryLook,
    ) -> None:
        self._journal = journal
        self._book = book
        self._schedule = schedule
        self._slices = slices
        self._under_way = look
        self._queues: dict[int, Queue] = {}
        """By what their messages are stored under; some may be deleted by now."""

    def start(self) -> None:
        """Settle from now on."""
        if self._journal.acks is not None:
            self._journal.acks.listen(self._found)

    def _found(self, new: Sequence[ApplicationAck], again: Sequence[ApplicationAck]) -> None:
        if new:
            self._slices.run(self._settling(new, are_new=True))
        if again:
            self._slices.run(self._settling(again, are_new=False))

    def _settling(self, acks: Sequence[ApplicationAck], *, are_new: bool) -> Steps:
        by_queue: dict[int, set[int]] = {}
        for seq, queue_id in acks:
            if queue_id is not None:
                by_queue.setdefault(queue_id, set()).add(seq)
        if any(self._queue(queue_id) is None for queue_id in by_queue):
            yield from self._looking_for_queues()
        left: list[int] = []
        kept: list[int] = []
        for queue_id, seqs in by_queue.items():
            queue = self._queue(queue_id)
            if queue is None:
                continue
            if is_schedule(queue.name):
                for seq in seqs:
                    self._cancel(queue, seq)
                    yield GO_ON
                continue
            if queue.options.non_destructive:
                kept += seqs
                continue
            for subscription in queue.subscriptions:
                if seqs and subscription.delivering:
                    subscription.settle_delivered(seqs)
                    yield GO_ON
            if queue.options.ring_size < 0:
                left += [seq for seq in seqs if not are_new or self._came_back(queue, seq)]
        if kept and self._journal.acks is not None:
            self._journal.acks.leave(kept)
        for first in range(0, len(left), _TAKEN_AT_ONCE):
            some = left[first : first + _TAKEN_AT_ONCE]  # with their bodies
            read = object()
            self._under_way.begin(read)
            self._journal.ask(
                partial(self._journal.windows.stored, some), partial(self._read, read)
            )

    def _came_back(self, queue: Queue, seq: int) -> bool:
        """Return whether a message may be in its queue though a consumer had it."""
        came_back = queue.counters.redelivered > 0 or queue.unsettled.took_back
        return seq <= self._journal.recovery_horizon or came_back

    def _cancel(self, schedule: Queue, seq: int) -> None:
        with contextlib.suppress(JournalClosed):  # the next live node deletes it
            self._schedule.cancel(schedule, seq, lambda _: None)

    def _queue(self, queue_id: int) -> Queue | None:
        """Return the queue whose messages are stored under ``queue_id``, if it is known."""
        queue = self._queues.get(queue_id)
        is_there = queue is not None and self._book.queues.get(queue.name) is queue
        return queue if is_there else None

    def _looking_for_queues(self) -> Steps:
        self._queues.clear()
        for number, queue in enumerate(list(self._book.queues.values()), 1):
            self._queues.update(dict.fromkeys(queue.log.ids, queue))
            if not number % _LOOKED_AT_ONCE:
                yield GO_ON

    def _read(self, read: object, found: list[QueuedMessage] | OrthiaError) -> None:
        if isinstance(found, OrthiaError):
            self._under_way.end(read)  # the journal tells them again
        else:
            self._slices.run(self._taking(read, found))

    def _taking(self, read: object, found: Sequence[QueuedMessage]) -> Steps:
        by_queue: dict[int, list[QueuedMessage]] = {}
        for one in found:
            by_queue.setdefault(one.queue_id, []).append(one)
        try:
            for queue_id, messages in by_queue.items():
                for first in range(0, len(messages), _TAKEN_AT_ONCE):
                    self._take(queue_id, messages[first : first + _TAKEN_AT_ONCE])
                    yield GO_ON
        finally:
            self._under_way.end(read)

    def _take(self, queue_id: int, messages: Sequence[QueuedMessage]) -> None:
        queue = self._queue(queue_id)
        if queue is None or queue.is_leaving or not (may_take(queue) and is_known(queue)):
            return
        gone = [
            message.location
            for _, message in messages
            if take_acknowledged(queue, queue_id, message)
        ]
        if gone:
            try:
                self._journal.delete(gone)
            except JournalClosed:
                return  # the next live node deletes them
        taken(queue)
