"""Settling messages that applications acknowledged in their own transactions.

The journal tells which were committed. What a consumer has of them is acknowledged as if its client
had done so: that is credit again. What nobody has, since it came back or an earlier node delivered
it, is taken out of its queue. What cannot be settled now is told again after a while: a message
that a client's open transaction has, or whose queue is being counted, trimmed, or deleted.
Non-destructive queues keep theirs: these acknowledgements stay in the table.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.queue.taking import is_known, may_take, take_acknowledged, taken
from orthia.broker.core.routing.addresses import AddressBook
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
        self, journal: MessageJournal, book: AddressBook, slices: Slices, look: ExpiryLook
    ) -> None:
        self._journal = journal
        self._book = book
        self._slices = slices
        self._under_way = look
        self._queues: dict[int, Queue] = {}
        """By what their messages are stored under; some may be deleted by now."""

    def start(self) -> None:
        """Settle from now on."""
        if self._journal.acks is not None:
            self._journal.acks.listen(self._found)

    def _found(self, acks: Sequence[ApplicationAck]) -> None:
        self._slices.run(self._settling(acks))

    def _settling(self, acks: Sequence[ApplicationAck]) -> Steps:
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
            if queue.options.non_destructive:
                kept += seqs
                continue
            for subscription in queue.subscriptions:
                if seqs and subscription.delivering:
                    subscription.settle_delivered(seqs)
                    yield GO_ON
            left += [seq for seq in seqs if self._may_wait_in(queue, seq)]
        if kept and self._journal.acks is not None:
            self._journal.acks.leave(kept)
        for first in range(0, len(left), _TAKEN_AT_ONCE):
            some = left[first : first + _TAKEN_AT_ONCE]  # with their bodies
            read = object()
            self._under_way.begin(read)
            self._journal.ask(
                partial(self._journal.windows.stored, some), partial(self._read, read)
            )

    def _may_wait_in(self, queue: Queue, seq: int) -> bool:
        """Return whether a message that no consumer has may be in its queue, and be taken out."""
        came_back = queue.counters.redelivered > 0 or queue.unsettled.took_back
        was_delivered = seq <= self._journal.recovery_horizon or came_back
        return was_delivered and queue.options.ring_size < 0

    def _queue(self, queue_id: int) -> Queue | None:
        """Return the queue whose messages are stored under ``queue_id``, if it is known."""
        queue = self._queues.get(queue_id)
        is_there = queue is not None and self._book.queues.get(queue.name) is queue
        return queue if is_there else None

    def _looking_for_queues(self) -> Steps:
        self._queues.clear()
        for number, queue in enumerate(self._book.consumable_queues(), 1):
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
