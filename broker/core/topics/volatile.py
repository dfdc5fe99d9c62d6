# mypyc compiles this module.
"""A topic's subscription: a queue in memory that ends with its one consumer.

It has what was published while the consumer was there, delivers as every queue does, and keeps
nothing of what was acknowledged, rejected or left behind. A client that falls behind is
disconnected with an error once more than ``max-behind-bytes`` wait for its subscriptions together:
it then knows that it missed messages, which silent dropping would not tell it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from typing_extensions import override

from orthia.broker.core.api import Answer, Consumer, Done, MessageReference, Settlement
from orthia.broker.core.queue.pace import AT_ONCE, Pace
from orthia.broker.core.queue.settlement import Gone
from orthia.broker.core.queue.subscriptions import Source, Subscription
from orthia.broker.core.queue.turns import Alone
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import Slices
from orthia.broker.core.topics.publication import Publication, PublishedReference
from orthia.broker.core.topics.sorted_waiting import SortedWaiting
from orthia.broker.core.topics.topic_memory import TopicMemory
from orthia.config.address_settings import RoutingType
from orthia.journal.model.unit import Sender

DELIVERED_COST = 320
"""Bytes a message costs for each subscriber that has it and did not acknowledge it; the message
itself counts once for all."""
_GONE: Final = Gone()


class TopicSubscription(Subscription[PublishedReference]):
    """The consumer of a volatile queue: with it, all of its connection have credit together."""

    __slots__ = ()

    @override
    def _count(self, messages: int, size: int) -> None:
        self._delivered_bytes += size
        self._consumer.holds(DELIVERED_COST * messages)
        pool = self._pool
        before = pool.claimed
        claimed = pool.claimed = before + size
        if claimed < pool.limit <= before:
            pool.relieve()


class VolatileQueue(Source[PublishedReference]):
    """What one subscriber of a topic has; all calls on the loop's thread."""

    __slots__ = (
        "_account", "_is_closed", "_max_behind_bytes", "_may_deliver", "_memory", "_pace", "_ready",
        "_selector", "_subscribers", "_turns", "_without", "selects", "subscription",
    )  # fmt: skip

    def __init__(
        self,
        *,
        memory: TopicMemory,
        connection: object,
        max_behind_bytes: int,
        may_deliver: Callable[[Source[Any]], bool],
        slices: Slices,
        subscribers: dict["VolatileQueue", int],
        without: Sender | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Begin empty; with its consumer it is gone from the topic's ``subscribers``.

        The subscriber gets all that the ``selector`` matches but what ``without`` sends, its own
        connection.
        """
        self._turns = Alone()
        self._may_deliver = may_deliver
        self._pace = Pace(slices)
        self._ready: deque[Publication] = deque()
        """What waits, in order."""
        self._without = without
        self._selector = selector
        self.selects = without is not None or selector is not None
        """Whether each message is looked at before it is taken."""
        self._memory = memory
        self._max_behind_bytes = max_behind_bytes
        self._subscribers = subscribers
        self._is_closed = False
        self._account = memory.account_of(connection)
        self.subscription: TopicSubscription | None = None
        """Its consumer's, as long as that is attached."""

    @override
    def type_of_queue(self) -> RoutingType:
        return RoutingType.MULTICAST

    def attach(self, consumer: Consumer, prefetch: int, max_bytes: int) -> TopicSubscription:
        """Add the consumer; deliveries begin with its ``resume``."""
        subscription = TopicSubscription(
            self, self._account, consumer, prefetch, max_bytes, DELIVERED_COST
        )
        self.subscription = subscription
        self._account.subscriptions[subscription] = None
        self._turns.join(subscription)
        return subscription

    @property
    def selector_text(self) -> str | None:
        """Its consumer's selector; None without one."""
        return None if self._selector is None else self._selector.text

    def sort(self) -> None:
        """Deliver by priority from here on."""
        self._ready = SortedWaiting(self._ready)

    def add(self, publication: Publication) -> None:
        """Take a message, which the topic holds as long as it gives it to subscribers."""
        if self.selects and not self._is_wanted(publication):
            return
        if self._is_closed:
            return  # by what an earlier subscriber of the same message caused
        publication.holders += 1
        account = self._account
        account.waiting += publication.size
        self._ready.append(publication)
        if self._turns.candidate is not None:
            self.dispatch()
        # A single message may be larger than that, and its connection busy for a moment.
        if account.waiting > self._max_behind_bytes and len(self._ready) > 1:
            account.end(
                "the topic subscriptions of this connection are more than max-behind-bytes"
                f" {self._max_behind_bytes} behind: read faster, or use a queue"
            )

    def _is_wanted(self, publication: Publication) -> bool:
        if self._without is not None and publication.sender is self._without:
            return False
        return self._selector is None or self._selector.accepts(publication.properties())

    @override
    def join(self, subscription: Subscription[PublishedReference]) -> None:
        self._turns.join(subscription)

    @override
    def resume(self) -> None:
        self.dispatch()

    def dispatch(self) -> None:
        """Deliver while there is a message, the consumer takes it, and the lease is valid."""
        pace = self._pace
        if pace.is_delivering or (pace.is_going_on and pace.is_put_off()):
            return
        pace.is_delivering = True
        most = AT_ONCE
        try:
            while self._ready and self._may_deliver(self):
                if not most:
                    pace.go_on_later(self.dispatch)
                    return
                most -= 1
                subscription = self._turns.next()
                if subscription is None:
                    break
                subscription.deliver(self._pop())
        finally:
            pace.is_delivering = False

    @override
    def detach(self, subscription: Subscription[PublishedReference]) -> None:
        self._is_closed = True
        self.subscription = None
        self._turns.leave(subscription)
        self._account.waiting -= sum([one.size for one in self._ready])
        for publication in self._ready:
            self._memory.release(publication)
        self._ready.clear()
        self._memory.closed(subscription.connection, subscription)
        self._subscribers.pop(self, None)

    def _pop(self) -> PublishedReference:
        publication = self._ready.popleft()
        size = publication.size
        self._account.waiting -= size
        reference = PublishedReference(
            publication.seq, publication.record, None, size, redelivered=False
        )
        reference.publication = publication
        reference.shared = publication.shared
        return reference

    def _release(self, references: Sequence[PublishedReference]) -> None:
        for reference in references:
            self._memory.release(reference.publication)

    @override
    def keeps_nothing(self) -> bool:
        return True

    @override
    def is_looking_for(self, subscription: Subscription[PublishedReference]) -> bool:
        return self._pace.is_going_on

    @override
    def acknowledge(self, taken: Sequence[PublishedReference], done: Done | None) -> None:
        for reference in taken:
            publication = reference.publication
            if publication.holders > 1:  # as ``release``, which for each would be a call
                publication.holders -= 1
            else:
                self._memory.release(publication)
        if done is not None:
            done()
        if self._ready:
            self.dispatch()

    @override
    def give_back(
        self,
        references: Sequence[PublishedReference],
        *,
        attempted: Sequence[MessageReference] = (),
        is_last: bool = False,
        done: Done | None = None,
    ) -> None:
        self._release(references)
        if done is not None:
            done()
        self.dispatch()

    @override
    def settle(self, taken: Sequence[PublishedReference], answer: Answer) -> Settlement:
        self._release(taken)
        self.dispatch()
        return _GONE

    @override
    def refuse_returned(self) -> None:
        """Refuse nothing: what a closed subscription had is gone, as if it was acknowledged."""
