"""Topics: every subscriber that is there gets its own copy; nothing is stored.

A client that falls behind is disconnected with an ERROR once more than ``max-behind-bytes`` wait
for its subscriptions together: it then knows that it missed messages, which silent dropping would
not tell it. All subscribers together hold ``global-max-size`` at most; beyond it the connection
that holds most is ended.

A message goes to many subscribers in slices, and whoever sent it sends on when all have it: so what
waits to be given to subscribers is bounded, and they get the messages of a topic in one order. A
sender waits for what was published before, its own included, and not for what comes after.
"""

from collections import deque
from collections.abc import Callable, Sequence

from orthia.broker.core.api import Consumer, Done, FanOut, MessageReference
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.topic_memory import Publication, TopicMemory
from orthia.config.settings import StompLimits

_DELIVERED_COST = 320
"""Bytes a message costs for each subscriber that has it and did not acknowledge it."""
_AT_ONCE = 32
"""How many subscribers are given a message before others have a turn."""


class Topic:
    """The subscribers of an address, and what is on its way to them."""

    __slots__ = (
        "_is_giving",
        "_memory",
        "_number",
        "_published",
        "_slices",
        "_underway",
        "given",
        "subscribers",
    )

    def __init__(self, memory: TopicMemory, slices: Slices) -> None:
        self._memory = memory
        self._slices = slices
        self._number = 0
        self._underway: deque[tuple[Publication, int]] = deque()
        self.subscribers: dict[TopicSubscription, int] = {}
        """By their number; later ones have higher numbers."""
        self._is_giving = False
        self._published = 0
        self.given = 0
        """How many messages are with all of their subscribers."""

    @property
    def is_used(self) -> bool:
        """Whether anybody hears it, or was to hear what is on its way."""
        return bool(self.subscribers) or self.given < self._published

    def behind(self) -> FanOut | None:
        """Return what is being given to subscribers at this moment; None if nothing is."""
        return _Behind(self, self._published) if self.given < self._published else None

    def attach(self, subscription: "TopicSubscription") -> None:
        """Give a subscription what is published from now on."""
        self._number += 1
        self.subscribers[subscription] = self._number

    def detach(self, subscription: "TopicSubscription") -> None:
        """Give a subscription nothing more."""
        self.subscribers.pop(subscription, None)

    def publish(self, publication: Publication) -> None:
        """Give a message to all who are there, after those that were published before it."""
        self._memory.hold(publication)
        self._underway.append((publication, self._number))
        self._published += 1
        if not self._is_giving:
            self._slices.run(self._fan_out())

    def _fan_out(self) -> Steps:
        if self._is_giving:
            return
        self._is_giving = True
        try:
            while self._underway:
                yield from self._give(*self._underway[0])
                if self._underway:
                    yield GO_ON
        except Exception:
            self._slices.later(self._fan_out())  # the next are not held for what failed
            raise
        finally:
            self._is_giving = False

    def _give(self, publication: Publication, latest: int) -> Steps:
        """Give one message to all subscribers up to the number ``latest``, once."""
        try:
            for index, (subscription, number) in enumerate(list(self.subscribers.items()), 1):
                if number <= latest:
                    subscription.add(publication)
                if not index % _AT_ONCE:
                    yield GO_ON
        finally:
            self._underway.popleft()
            self.given += 1
            publication.frames = None
            self._memory.release(publication)
        if self._memory.is_exceeded:
            self._memory.end_the_worst()


class _Behind:
    """The messages of a topic up to one, until all subscribers have them."""

    __slots__ = ("_last", "_topic")

    def __init__(self, topic: Topic, last: int) -> None:
        self._topic = topic
        self._last = last

    @property
    def is_behind(self) -> bool:
        return self._topic.given < self._last


class TopicSubscription:
    """One non-durable subscriber of a topic."""

    def __init__(
        self,
        consumer: Consumer,
        prefetch: int,
        *,
        limits: StompLimits,
        memory: TopicMemory,
        may_deliver: Callable[["TopicSubscription"], bool],
        closed: Callable[["TopicSubscription"], None],
    ) -> None:
        self._consumer = consumer
        self._prefetch = prefetch
        self._limits = limits
        self._memory = memory
        self._account = memory.opened(consumer.connection, self)
        self._may_deliver = may_deliver
        self._closed = closed
        self._waiting: deque[Publication] = deque()
        self._delivered: dict[int, Publication] = {}
        self._delivered_bytes = 0
        self._aside: dict[int, Publication] = {}
        """What the client's open transactions have."""
        self._is_delivering = False
        self._is_closed = False

    def add(self, publication: Publication) -> None:
        """Offer a message."""
        if self._is_closed:
            return  # by what an earlier subscriber of the same message caused
        self._memory.hold(publication)
        account = self._account
        account.waiting += publication.size
        self._waiting.append(publication)
        self.resume()
        # A single message may be larger than that, and its socket busy for a moment.
        if account.waiting > self._limits.max_behind_bytes and len(self._waiting) > 1:
            account.end(
                "the topic subscriptions of this connection are more than max-behind-bytes"
                f" {self._limits.max_behind_bytes} behind: read faster, or use a queue"
            )

    def fail(self, reason: str) -> None:
        """End the subscriber's connection."""
        self._consumer.fail(reason)

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Free credit; there is nothing to delete."""
        freed = 0
        for reference in references:
            publication = self._delivered.pop(reference.seq, None)
            if publication is not None:
                freed += publication.size
            else:
                publication = self._aside.pop(reference.seq, None)
            if publication is not None:
                self._consumer.holds(-_DELIVERED_COST)
                self._memory.release(publication)
        if done is not None:
            done()
        self._freed(freed)
        self.resume()

    def reject(self, references: Sequence[MessageReference]) -> None:
        """Forget the messages: a topic keeps none to deliver again."""
        self.acknowledge(references, None)

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Keep messages for a transaction; that is credit."""
        self._freed(self._moved(references, self._delivered, self._aside))

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``."""
        self._taken(self._moved(references, self._aside, self._delivered))

    def _taken(self, size: int) -> None:
        self._delivered_bytes += size
        self._account.delivered += size

    def _freed(self, size: int) -> None:
        self._delivered_bytes -= size
        self._account.acknowledged(size)

    @staticmethod
    def _moved(
        references: Sequence[MessageReference],
        source: dict[int, Publication],
        target: dict[int, Publication],
    ) -> int:
        size = 0
        for reference in references:
            publication = source.pop(reference.seq, None)
            if publication is not None:
                target[reference.seq] = publication
                size += publication.size
        return size

    def resume(self) -> None:
        """Deliver what waits while the consumer takes it."""
        if self._is_delivering:
            return
        self._is_delivering = True
        account, consumer = self._account, self._consumer
        try:
            while self._waiting and self._has_credit() and self._may_deliver(self):
                publication = self._waiting.popleft()
                size = publication.size
                account.waiting -= size
                self._taken(size)
                self._delivered[publication.seq] = publication
                reference = MessageReference(
                    publication.seq, publication.record, None, size, redelivered=False
                )
                reference.shared = publication.frames
                consumer.holds(_DELIVERED_COST)
                consumer.deliver(reference)
        finally:
            self._is_delivering = False

    def _has_credit(self) -> bool:
        account = self._account
        return (
            (not self._prefetch or len(self._delivered) < self._prefetch)
            and self._delivered_bytes < self._limits.max_unacknowledged_bytes
            and self._consumer.is_writable
            and (account.has_credit or account.refused.note(self))
        )

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:  # noqa: ARG002 - see Subscription
        """End the subscription."""
        if self._is_closed:
            return
        self._is_closed = True
        waiting, delivered = self._waiting, list(self._delivered.values())
        had = len(delivered) + len(self._aside)
        for publication in (*waiting, *delivered, *self._aside.values()):
            self._memory.release(publication)
        self._consumer.holds(-_DELIVERED_COST * had)
        self._account.waiting -= sum([one.size for one in waiting])
        self._waiting.clear()
        self._delivered.clear()
        self._aside.clear()
        self._memory.closed(self._consumer.connection, self)
        self._freed(self._delivered_bytes)
        self._closed(self)
