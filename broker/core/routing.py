"""Who gets a message where that depends on the message, on who sent it, or on other addresses.

An address has a router only if something of it asks: a queue with a filter, one that is not enabled
or takes nothing without a consumer, a durable subscription without its owner's own messages, a
subscription by wildcards that hears it, a divert, a policy BLOCK or DROP. Every other
message goes to the queues and the topic of its address as they are.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from orthia.broker.core.api import FanOut
from orthia.broker.core.diverts import Divert
from orthia.broker.core.identity import Principal
from orthia.broker.core.memory import size_in_store
from orthia.broker.core.queue import Queue
from orthia.broker.core.selectors import parse
from orthia.broker.core.topic import Topic
from orthia.config.address_settings import RoutingType
from orthia.journal.codec import DurableSubscription, QueueBinding
from orthia.journal.message import Message

Gate = Callable[[Message, Principal], bool]
"""Whether a queue takes a message of a sender."""


class Routed(NamedTuple):
    """One message, and who gets it."""

    record: Message
    queues: Sequence[Queue]
    topics: Sequence[Topic]


class _Listeners(Protocol):
    """Those who hear an address by wildcards."""

    @property
    def gates(self) -> dict[Queue, Gate]:
        """What their queues ask of messages, of those that do."""

    @property
    def multicast_queues(self) -> list[Queue]:
        """Their queues."""

    @property
    def topic(self) -> Topic | None:
        """Those without a queue."""


class Forward(Protocol):
    """Routes what a divert takes."""

    def __call__(
        self,
        divert: Divert,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert],
    ) -> list[Routed]:
        """Return who gets a message at the divert's address, which may have diverts itself.

        It was of a ``kind``, and has been ``through`` other diverts, which it does not take twice.
        """


class Router:
    """What the messages of one address are asked before they go to its queues."""

    __slots__ = ("_diverts", "_forward", "_gates", "_patterns")

    def __init__(
        self,
        gates: dict[Queue, Gate],
        patterns: Collection[_Listeners],
        diverts: Sequence[Divert],
        forward: Forward,
    ) -> None:
        """``gates`` are of those queues of the address that do not take every message."""
        self._gates = gates
        self._patterns = patterns
        self._diverts = diverts
        self._forward = forward

    def route(
        self,
        record: Message,
        principal: Principal,
        queues: Sequence[Queue],
        topics: Sequence[Topic],
        through: Collection[Divert] = (),
    ) -> list[Routed]:
        """Return who gets a message that is for ``queues`` and ``topics``, in one unit.

        Of ANYCAST queues that is the first that takes it. An exclusive divert takes it from all of
        them, and from the other diverts, as in Artemis.
        """
        kind = queues[0].routing_type if queues else RoutingType.MULTICAST
        found, is_taken = self.diverted(record, principal, kind, through)
        if is_taken:
            return found
        takes = _taking(queues, self._gates, record, principal, is_copy=bool(through))
        if kind is RoutingType.ANYCAST:
            return [*found, Routed(record, takes[:1], ())]
        heard = list(topics)
        for pattern in self._patterns:
            takes += _taking(pattern.multicast_queues, pattern.gates, record, principal)
            if pattern.topic is not None and pattern.topic.subscribers:
                heard.append(pattern.topic)
        return [*found, Routed(record, takes, heard)]

    def diverted(
        self,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert] = (),
    ) -> tuple[list[Routed], bool]:
        """Return who gets a message by diverts, and whether one of them is exclusive."""
        diverts = [one for one in self._diverts if one not in through and one.takes(record)]
        exclusive = [one for one in diverts if one.is_exclusive]
        found = [
            routed
            for divert in exclusive or diverts
            for routed in self._forward(divert, record, principal, kind, through)
        ]
        return found, bool(exclusive)


def _taking(
    queues: Iterable[Queue],
    gates: dict[Queue, Gate],
    record: Message,
    principal: Principal,
    *,
    is_copy: bool = False,
) -> list[Queue]:
    size, large = size_in_store(record), record.large
    # Counted as an upload where it was sent to; what a divert makes of it was sent to nowhere.
    uploaded = 0 if large is None or is_copy else large.size
    return [
        one
        for one in queues
        if (one not in gates or gates[one](record, principal))
        and not one.use.drops(size - (uploaded if one.use.name == record.address else 0))
    ]


def gate_of(binding: QueueBinding, queue: Queue) -> Gate | None:
    """Return what a queue asks of its messages; None if it takes all of them.

    Raises SelectorRefused for a filter that this version does not understand.
    """
    gates: list[Gate] = []
    if binding.subscription is not None and binding.subscription.no_local:
        gates.append(_not_of(binding.subscription))
    if not binding.options.enabled:
        gates.append(lambda *_: False)
    if binding.options.purge_on_no_consumers:
        gates.append(lambda *_: queue.consumers > 0)
    if binding.options.filter is not None:
        gates.append(_matching(binding.options.filter))
    if binding.options.last_value_key is not None:
        gates.append(lambda *_: True)  # what is routed is stored by a unit, which can delete, too
    if len(gates) > 1:
        return lambda record, principal: all(one(record, principal) for one in gates)
    return gates[0] if gates else None


def _not_of(subscription: DurableSubscription) -> Gate:
    return lambda _, principal: principal.client_id != subscription.client_id


def _matching(text: str) -> Gate:
    selector = parse(text)
    return lambda record, _: selector.matches(record)


def routed_by(
    router: Router | None,
    record: Message,
    principal: Principal,
    queues: Sequence[Queue],
    topic: Topic | None,
) -> list[Routed]:
    """Return who gets a message for ``queues`` and ``topic``, unless a router says otherwise."""
    topics = () if topic is None else (topic,)
    if router is None:
        return [Routed(record, queues, topics)]
    return router.route(record, principal, queues, topics)


def first_full(routed: Iterable[Routed]) -> FanOut | None:
    """Return the first address without room that has BLOCK; None if there is none."""
    full = (queue.use.behind() for one in routed for queue in one.queues)
    return next((one for one in full if one is not None), None)
