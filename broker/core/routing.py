"""Who gets a message where that depends on the message, or on who sent it.

An address has a router only if something of it asks: a durable subscription without its owner's own
messages. Every other SEND goes to the queues and the topic of its address as they are.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from orthia.broker.core.api import Principal
from orthia.broker.core.queue import Queue
from orthia.broker.core.topic import Topic
from orthia.config.settings import RoutingType
from orthia.journal.codec import DurableSubscription, QueueBinding
from orthia.journal.message import Message

Gate = Callable[[Message, Principal], bool]
"""Whether a queue takes a message of a sender."""


class Routed(NamedTuple):
    """One message, and who gets it."""

    record: Message
    queues: Sequence[Queue]
    topics: Sequence[Topic]


class Router:
    """What the messages of one address are asked before they go to its queues."""

    __slots__ = ("gates",)

    def __init__(self, gates: dict[Queue, Gate]) -> None:
        """``gates`` are of those queues of the address that do not take every message."""
        self.gates = gates

    def route(
        self,
        record: Message,
        principal: Principal,
        queues: Sequence[Queue],
        topics: Sequence[Topic],
    ) -> list[Routed]:
        """Return who gets a message that is for ``queues`` and ``topics``.

        Of ANYCAST queues that is the first that takes it.
        """
        takes = [one for one in queues if self._takes(one, record, principal)]
        if takes and takes[0].routing_type is RoutingType.ANYCAST:
            takes = takes[:1]
        return [Routed(record, takes, topics)]

    def _takes(self, queue: Queue, record: Message, principal: Principal) -> bool:
        gate = self.gates.get(queue)
        return gate is None or gate(record, principal)


def gate_of(binding: QueueBinding) -> Gate | None:
    """Return what a queue asks of its messages; None if it takes all of them."""
    subscription = binding.subscription
    if subscription is not None and subscription.no_local:
        return _not_of(subscription)
    return None


def _not_of(subscription: DurableSubscription) -> Gate:
    return lambda _, principal: principal.client_id != subscription.client_id
