# mypyc compiles this module.
"""Topics: each subscriber gets a copy of what is published while it is there; nothing is stored.

Each subscriber has a queue of its own, in memory: ``volatile``. All of them together hold
``global-max-size`` at most; beyond it the connection that holds most is ended.

A message goes to many subscribers in slices, and its sender sends more only when all have it: so
the messages that are still being given out are bounded, and all subscribers get them in one order.
A sender waits for what was published before, its own message included, not for what comes after.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from orthia.broker.core.api import Consumer, FanOut
from orthia.broker.core.queue.subscriptions import Source, Subscription
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, REST, Slices, Steps, Wait
from orthia.broker.core.topics.publication import Publication
from orthia.broker.core.topics.topic_memory import TopicMemory
from orthia.broker.core.topics.volatile import VolatileQueue
from orthia.journal.model.message import DEFAULT_PRIORITY
from orthia.journal.model.unit import Sender

_AT_ONCE = 32
"""How many subscribers are given a message before others have a turn."""


class Topic:
    """The subscribers of an address, and the messages that are on their way to them."""

    __slots__ = (
        "_is_giving",
        "_is_sorted",
        "_max_behind_bytes",
        "_may_deliver",
        "_memory",
        "_number",
        "_published",
        "_slices",
        "_underway",
        "given",
        "published_seq",
        "sent_seq",
        "subscribers",
    )

    def __init__(
        self,
        memory: TopicMemory,
        slices: Slices,
        may_deliver: Callable[[Source[Any]], bool],
        max_behind_bytes: int,
    ) -> None:
        self._memory = memory
        self._may_deliver = may_deliver
        self._max_behind_bytes = max_behind_bytes
        self._slices = slices
        self._number = 0
        self._underway: deque[tuple[Publication, int]] = deque()
        self.subscribers: dict[VolatileQueue, int] = {}
        """Each with its number; later subscribers have higher numbers."""
        self._is_giving = False
        self._is_sorted = False
        """Whether any message had another priority than the default."""
        self._published = 0
        self.given = 0
        """How many messages all of their subscribers have."""
        self.sent_seq = self.published_seq = 0
        """The seq of the last message that was sent, and of the last that was published."""

    @property
    def has_published_all(self) -> bool:
        """Whether no message is on its way to the store that is published afterwards.

        Also False after a message was refused, until the next one.
        """
        return self.sent_seq == self.published_seq

    @property
    def is_used(self) -> bool:
        """Whether it has subscribers, or messages that are still being given out."""
        return bool(self.subscribers) or self.given < self._published

    @property
    def published(self) -> int:
        """How many messages were published since its first subscriber came."""
        return self._published

    def behind(self) -> FanOut | None:
        """Return what is still being given to subscribers; None if nothing is."""
        return _Behind(self, self._published) if self.given < self._published else None

    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        *,
        without: Sender | None = None,
        selector: Selector | None = None,
    ) -> Subscription[Any]:
        """Give a consumer what is published from now on, in a queue of its own.

        It gets what the ``selector`` matches, but not what the connection ``without`` sends.
        """
        queue = VolatileQueue(
            memory=self._memory,
            connection=consumer.connection,
            max_behind_bytes=self._max_behind_bytes,
            may_deliver=self._may_deliver,
            slices=self._slices,
            subscribers=self.subscribers,
            without=without,
            selector=selector,
        )
        if self._is_sorted:
            queue.sort()
        self._number += 1
        self.subscribers[queue] = self._number
        return queue.attach(consumer, prefetch, max_bytes)

    def publish(self, publication: Publication) -> None:
        """Give a message to all present subscribers, after those that were published before."""
        if publication.record.priority != DEFAULT_PRIORITY and not self._is_sorted:
            self._is_sorted = True
            for queue in self.subscribers:
                queue.sort()
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
            self._slices.later(self._fan_out())  # the other messages must not wait for ever
            raise
        finally:
            self._is_giving = False

    def _give(self, publication: Publication, latest: int) -> Steps:
        """Give one message to all subscribers with a number up to ``latest``."""
        try:
            for index, (queue, number) in enumerate(list(self.subscribers.items()), 1):
                if number <= latest:
                    queue.add(publication)
                if not index % _AT_ONCE or queue.selects:
                    yield GO_ON  # matching one selector may take as long as all those together
        finally:
            self._underway.popleft()
            self.given += 1
            publication.shared = None
            self._memory.given(publication)
        if self._memory.is_exceeded:
            self._memory.end_the_worst()


class _Behind:
    """Messages of a topic up to one of them, until all subscribers have them."""

    __slots__ = ("_last", "_topic")

    def __init__(self, topic: Topic, last: int) -> None:
        self._topic = topic
        self._last = last

    @property
    def is_behind(self) -> bool:
        return self._topic.given < self._last

    @property
    def admits_more(self) -> bool:
        return False

    @property
    def rest(self) -> bool | Wait:
        return REST


def first_behind(topics: Iterable[Topic]) -> FanOut | None:
    """Return the first topic that a sender waits for; None if none is behind."""
    return next((behind for topic in topics if (behind := topic.behind()) is not None), None)
