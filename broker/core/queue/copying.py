# mypyc compiles this module.
"""Delivery to consumers that take nothing out of their queue: Artemis' ``non-destructive``.

Each consumer sees every message, from the head of the queue on, and what comes later as it comes.
An acknowledgement gives credit, and that is all. Messages go when they expire, when a newer value
replaces them or a ring is full, by ``purge-on-no-consumers``, and with the queue. No
delivery fails, since nothing is taken: a rejection is no attempt, and nothing is a dead letter.

All of such a queue is in the store, also what need not be: consumers read it there, each from its
own place. A new message goes from memory to those that have seen all before it.
"""

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.delivery import Delivery
from orthia.broker.core.queue.log import QueueLog
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.showing import AT_ONCE, Showing, Shown
from orthia.broker.core.queue.subscriptions import QueueSubscription, Subscription
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Steps
from orthia.journal.model.message import DEFAULT_PRIORITY


class _CopiedQueue(Shown, Protocol):
    """The queue."""

    @property
    def delivers(self) -> bool:
        """Whether messages go out at this moment, if there is somebody who wants them."""

    def is_current(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message was not replaced since it was read."""

    def consumer_left(self) -> None:
        """Note that one consumer is gone."""


class CopyingDelivery(Delivery):
    """Shows every message to each consumer; all calls on the loop's thread."""

    __slots__ = (
        "_has_come", "_is_for_one", "_is_waking", "_log", "_onlookers", "_queue", "_services",
        "at_end", "below",
    )  # fmt: skip

    def __init__(
        self,
        queue: _CopiedQueue,
        log: QueueLog,
        below: Delivery,
        services: QueueServices,
        *,
        is_for_one: bool,
    ) -> None:
        """With ``is_for_one`` the consumer that came first is shown all, and then the next.

        What is ``below`` has no consumer, and removes what expires or is replaced.
        """
        self._queue = queue
        self._log = log
        self._services = services
        self._is_for_one = is_for_one
        self.below = below
        self._onlookers: dict[QueueSubscription, Onlooker] = {}
        """In the order in which they came; none of them is among the queue's other consumers."""
        self.at_end: dict[Onlooker, None] = {}
        """Those for whom nothing is in the store that they have not seen: of the many messages of
        one unit most find nobody here, so that they cost the same for very many consumers."""
        self._has_come = False
        self._is_waking = False

    @property
    def subscriptions(self) -> list[QueueSubscription]:
        """The consumers, in the order in which they came."""
        return list(self._onlookers)

    @property
    def is_watched(self) -> bool:
        """Whether there is any consumer."""
        return bool(self._onlookers)

    def placed(self, reference: MessageReference) -> None:
        """Show a new message to those that have seen all before it."""
        if self.at_end:
            queue_id = self._log.known_id_for(reference.record.priority)
            rank = next(rank for rank, found, _ in self.ranked() if found == queue_id)
            for onlooker in list(self.at_end):
                onlooker.came(rank, queue_id, reference)

    @override
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        selector: Selector | None,
    ) -> QueueSubscription:
        onlooker = Onlooker(self, self._queue, consumer, selector, self._services)
        subscription = onlooker.attach(prefetch, max_bytes)
        self._onlookers[subscription] = onlooker
        return subscription

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        del self._onlookers[subscription]
        self._wake()  # with `exclusive` it is the next one's turn
        self._queue.consumer_left()

    @override
    def join(self, subscription: QueueSubscription) -> None:
        """Do nothing: each consumer is asked each time."""

    @override
    def resume(self) -> None:
        self.below.resume()

    def is_looking_for(self, subscription: QueueSubscription) -> bool:
        """Return whether something may still be shown to a consumer."""
        onlooker = self._onlookers.get(subscription)
        return onlooker is not None and onlooker.is_looking_for(subscription)

    def shows_to(self, onlooker: "Onlooker") -> bool:
        """Return whether a consumer is shown anything at this moment."""
        if not self._queue.delivers:
            return False
        return not self._is_for_one or onlooker is next(iter(self._onlookers.values()), None)

    def ranked(self) -> Sequence[tuple[int, int, Cursor]]:
        """Return what its messages are stored under, and where each begins and ends.

        By a rank, the first of them is what is shown first.
        """
        levels = self._log.levels
        if levels is None:
            return ((-DEFAULT_PRIORITY, self._log.id, self._log.cursor),)
        return [(-one.priority, one.id, one.cursor) for one in levels.highest_first]

    def is_there(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message was neither removed nor replaced since it was read."""
        cursors = self._log.cursors()
        return self._queue.is_current(queue_id, reference) and any(
            one.read_seq < reference.seq for found, one in cursors if found == queue_id
        )

    @override
    def dispatch(self) -> bool:
        if self._onlookers:
            self._wake()
        return self.below.dispatch()

    def _wake(self) -> None:
        self._has_come = True
        if not self._is_waking:
            self._is_waking = True
            self._services.slices.run(self._waking())

    def _waking(self) -> Steps:
        try:
            while self._has_come:
                self._has_come = False
                for onlooker in list(self._onlookers.values()):
                    onlooker.resume()
                    yield GO_ON
        finally:
            self._is_waking = False


class Onlooker(Showing):
    """What one consumer of a non-destructive queue is shown; all calls on the loop's thread."""

    def __init__(
        self,
        watched: CopyingDelivery,
        queue: Shown,
        consumer: Consumer,
        selector: Selector | None,
        services: QueueServices,
    ) -> None:
        """Begin before the oldest message."""
        super().__init__(queue, consumer, selector, services)
        self._watched = watched
        self._seen: dict[int, int] = {}
        """Up to where all is shown or in ``_ready``, by what it is stored under."""

    def came(self, rank: int, queue_id: int, reference: MessageReference) -> None:
        """Take a new message from memory, as one at the end; or read it once there is room."""
        if len(self._ready) < AT_ONCE and self._wants_more():
            self._seen[queue_id] = reference.seq
            self._keep(rank, queue_id, reference.seq, reference.record)
        else:
            del self._watched.at_end[self]

    @override
    def _wants_more(self) -> bool:
        return self._watched.shows_to(self) and super()._wants_more()

    @override
    def _is_there(self, queue_id: int, reference: MessageReference) -> bool:
        record = reference.record
        return (
            self._queue.shows(record, reference.seq)
            and self._watched.is_there(queue_id, reference)
            and (self._selector is None or self._selector.matches(record))
        )

    @override
    def _is_next_known(self) -> bool:
        if self in self._watched.at_end:
            return True
        first = self._ready[0][0]
        return all(
            rank >= first or self._seen_of(queue_id, cursor) >= cursor.tail_seq
            for rank, queue_id, cursor in self._watched.ranked()
        )

    @override
    def _go_on(self) -> None:
        if not self._watched.shows_to(self) or not self._wants_more():
            return
        for rank, queue_id, cursor in self._watched.ranked():
            seen = self._seen_of(queue_id, cursor)
            if seen < cursor.tail_seq:
                self._watched.at_end.pop(self, None)
                self._rank = rank
                self._queue_id = queue_id
                self._read_to = seen
                self._up_to = cursor.tail_seq
                self._read_on()
                return
        self._watched.at_end[self] = None

    def _seen_of(self, queue_id: int, cursor: Cursor) -> int:
        return max(self._seen.get(queue_id, 0), cursor.read_seq)

    @override
    def _has_read(self) -> None:
        self._seen[self._queue_id] = self._read_to

    @override
    def detach(self, subscription: Subscription[MessageReference]) -> None:
        super().detach(subscription)
        self._watched.at_end.pop(self, None)
        self._watched.detach(subscription)
