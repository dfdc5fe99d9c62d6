"""What durable subscribers of topics are to get, told as if each subscription were a queue. Pure.

A subscription begins at some moment between its SUBSCRIBE and the RECEIPT of that, and ends with
its UNSUBSCRIBE. A message that was first sent after that RECEIPT is for it, whether its subscriber
is connected or not: from then on every rule of a queue holds of it. One that was not confirmed when
the SUBSCRIBE was sent may come or not. One that was confirmed before is not for it, and would be an
invention; so is one of a subscription of the same name that was ended before.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.chaos.clients import lane_of
from tests.chaos.history import Kind, Operation

TOPIC = "/topic/"
_MARK = "#"


def subscription_name(topic: str, subscriber: str, number: int) -> str:
    """Return how the history calls a subscriber's durable subscription: one of its, counted."""
    return f"{topic}{_MARK}{subscriber}{_MARK}{number}"


def topic_of(queue: str) -> str:
    """Return the topic of a durable subscription; the queue itself if it is none."""
    return queue.partition(_MARK)[0]


class Subscriptions:
    """Hears the operations of a run in order; tells them on, those on topics by subscription."""

    def __init__(
        self,
        tell: Callable[[Operation], None],
        forget: Callable[[str], None],
        selects: Mapping[str, frozenset[int]],
    ) -> None:
        """``forget`` hears of subscriptions that ended: what they have is owed to nobody any more.

        ``selects`` says which lanes a subscriber wants, if not all.
        """
        self._tell = tell
        self._forget = forget
        self._selects = selects
        self.got = 0
        self._active: dict[str, dict[str, bool]] = {}
        """By topic: the subscriptions, and whether it is known that they have begun."""
        self._unconfirmed: dict[tuple[str, str], set[str]] = {}
        """By topic and body: the subscriptions that had begun when it was first sent."""

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        match operation.kind:
            case Kind.SUBSCRIBE:
                self._begin(operation)
            case Kind.SUBSCRIBED:
                self._of(operation.queue)[operation.queue] = True
            case Kind.UNSUBSCRIBE:
                if self._of(operation.queue).pop(operation.queue, None) is not None:
                    self._forget(operation.queue)
            case Kind.SEND if operation.queue.startswith(TOPIC):
                self._sent(operation)
            case Kind.RECEIPT if operation.queue.startswith(TOPIC):
                known = self._unconfirmed.pop((operation.queue, operation.body))
                for subscription in known & self._of(operation.queue).keys():
                    self._tell(replace(operation, queue=subscription))
            case _:
                self.got += operation.kind is Kind.RECEIVE and operation.queue.startswith(TOPIC)
                self._tell(operation)

    def _of(self, queue: str) -> dict[str, bool]:
        return self._active.setdefault(topic_of(queue), {})

    def _begin(self, operation: Operation) -> None:
        subscription = operation.queue
        active = self._of(subscription)
        if subscription in active:
            return  # its subscriber comes back
        active[subscription] = False
        for topic, body in self._unconfirmed:
            if topic == topic_of(subscription) and self._is_for(subscription, body):
                sent = replace(operation, kind=Kind.SEND, queue=subscription, body=body)
                self._tell(sent)

    def _sent(self, operation: Operation) -> None:
        active = self._of(operation.queue)
        wanting = [one for one in active if self._is_for(one, operation.body)]
        began = {one for one in wanting if active[one]}
        self._unconfirmed.setdefault((operation.queue, operation.body), began)
        for subscription in wanting:
            self._tell(replace(operation, queue=subscription))

    def _is_for(self, subscription: str, body: str) -> bool:
        lanes = self._selects.get(subscription.split(_MARK)[1])
        return lanes is None or lane_of(body) in lanes
