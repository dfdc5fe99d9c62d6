# mypyc compiles this module.
"""Queues whose consumers take nothing out: Artemis' ``non-destructive``.

Each consumer sees every message, from the head of the queue on, and what comes later as it comes.
An acknowledgement gives credit, and that is all. Messages go when they expire, when a newer value
replaces them or a ring is full, by ``purge-on-no-consumers``, and with the queue. Nothing is
delivered in vain, since nothing is taken: a rejection is no attempt, and nothing is a dead letter.

All of such a queue is in the store, also what need not be: consumers read it there, each from its
own place. A new message goes from memory to those that have seen all before it.
"""

from collections.abc import Sequence

from typing_extensions import override

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.showing import AT_ONCE, Showing, ShowingMeans
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.queue.window import QueueSubscription
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Steps
from orthia.config.queues import QueueOptions
from orthia.journal.model.message import DEFAULT_PRIORITY


class ShownQueue(Queue):
    """A queue that may be non-destructive; all calls on the loop's thread."""

    __slots__ = (
        "_has_come",
        "_is_for_one",
        "_is_waking",
        "_onlookers",
        "_showing",
        "at_end",
        "is_non_destructive",
    )

    def begin_showing(self, options: QueueOptions) -> None:
        """Called once, first."""
        self.is_non_destructive = options.non_destructive
        self._is_for_one = options.exclusive
        self._onlookers: dict[QueueSubscription, Onlooker] = {}
        """In the order in which they came; none of them is among the queue's other consumers."""
        self.at_end: dict[Onlooker, None] = {}
        """Those for whom nothing is in the store that they have not seen: of the many messages of
        one unit most find nobody here, so that they cost the same for very many consumers."""
        self._has_come = False
        self._is_waking = False

    def show_by(self, means: ShowingMeans) -> None:
        """Have messages shown by what browsers are shown theirs by, too."""
        self._showing = means

    # --- what others see

    @property
    @override
    def consumers(self) -> int:
        return len(self._onlookers) + len(self._subscriptions)

    @property
    @override
    def subscriptions(self) -> list[QueueSubscription]:
        return [*self._onlookers, *self._subscriptions]

    # --- coming in

    @override
    def _has_room(self, size: int) -> bool:
        return not self.is_non_destructive and super()._has_room(size)

    @override
    def add(self, reference: MessageReference) -> None:
        super().add(reference)
        if self._onlookers:
            self.dispatch()

    @override
    def place(self, reference: MessageReference) -> None:
        super().place(reference)
        if self.at_end:
            queue_id = self.known_id_for(reference.record.priority)
            rank = next(rank for rank, found, _ in self.ranked() if found == queue_id)
            for onlooker in list(self.at_end):
                onlooker.came(rank, queue_id, reference)

    # --- being shown

    @override
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        *,
        selector: Selector | None = None,
    ) -> QueueSubscription:
        if not self.is_non_destructive:
            return super().attach(consumer, prefetch, max_bytes, selector=selector)
        self.refuse_if_too_many()
        onlooker = Onlooker(self, consumer, selector, self._showing)
        subscription = onlooker.attach(prefetch, max_bytes)
        self._onlookers[subscription] = onlooker
        return subscription

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        if self._onlookers.pop(subscription, None) is None:
            super().detach(subscription)
        else:
            self._wake()  # with `exclusive` it is the next one's turn

    @property
    def delivers(self) -> bool:
        """Whether messages go out at this moment, if there is somebody who wants them."""
        return True

    def shows_to(self, onlooker: "Onlooker") -> bool:
        """Return whether a consumer is shown anything at this moment."""
        if not self.delivers:
            return False
        return not self._is_for_one or onlooker is next(iter(self._onlookers.values()), None)

    def ranked(self) -> Sequence[tuple[int, int, Cursor]]:
        """Return what its messages are stored under, and where each begins and ends.

        By a rank, the first of them is what is shown first.
        """
        levels = self._levels
        if levels is None:
            return ((-DEFAULT_PRIORITY, self.id, self._cursor),)
        return [(-one.priority, one.id, one.cursor) for one in levels.highest_first]

    def is_there(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message was neither removed nor replaced since it was read."""
        cursors = self.cursors()
        return any(one.read_seq < reference.seq for found, one in cursors if found == queue_id)

    @override
    def dispatch(self) -> bool:
        if self._onlookers:
            self._wake()
        return super().dispatch()

    def _wake(self) -> None:
        self._has_come = True
        if not self._is_waking:
            self._is_waking = True
            self._slices.run(self._waking())

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
        queue: ShownQueue,
        consumer: Consumer,
        selector: Selector | None,
        means: ShowingMeans,
    ) -> None:
        """Begin before the oldest message."""
        super().__init__(queue, consumer, selector, means)
        self._watched = queue
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
