"""Who gets a message where that depends on the message, on its sender, or on other addresses.

An address has a router only if it needs one: for a queue with a filter, one that is disabled or
takes nothing without a consumer, a durable subscription without its owner's own messages, a
wildcard that matches the address, a divert, or a policy BLOCK or DROP. All other messages go to the
queues and the topic of their address.

Asking many queues takes long, so it is done in steps. A message goes to those that exist at the
first step and still exist at the last: a queue that comes in between comes after the message.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.selectors import MessageProperties, Selector, SelectorRefused, parsing
from orthia.broker.core.slices import GO_ON, Finding, found
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.journal.model.codec import DurableSubscription, QueueBinding
from orthia.journal.model.message import Message

_ORIGIN: Final = "_AMQ_ORIG_ADDRESS"
_FROM: Final = f"{_ORIGIN} = '"
_AT_ONCE: Final = 64
"""How many queues without a filter are asked in one step."""
Gate = Callable[[Message, Principal], bool]
"""Says whether a queue takes a message of a sender."""


class Routed(NamedTuple):
    """One message, and who gets it."""

    record: Message
    queues: Sequence[Queue]
    topics: Sequence[Topic]


class _Listeners(Protocol):
    """A wildcard address that matches another."""

    @property
    def gates(self) -> dict[Queue, Gate]:
        """The gates of those of its queues that have one."""

    @property
    def multicast_queues(self) -> list[Queue]:
        """Its queues."""

    @property
    def topic(self) -> Topic | None:
        """Its subscribers without a queue."""


Hearing = Callable[[], Finding[Iterable[_Listeners]]]
"""Finds the wildcard addresses that match an address."""


class Forward(Protocol):
    """Routes a message that a divert takes."""

    def __call__(
        self,
        divert: Divert,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert],
    ) -> Finding[list[Routed]]:
        """Find who gets a message at the address of a divert, which may have diverts itself.

        It was sent as a ``kind``, and went ``through`` other diverts: none takes it twice.
        """


class Router:
    """Decides who gets the messages of one address."""

    __slots__ = ("_diverts", "_forward", "_gates", "_hearing")

    def __init__(
        self,
        gates: dict[Queue, Gate],
        hearing: Hearing | None,
        diverts: Sequence[Divert],
        forward: Forward | None,
    ) -> None:
        """``gates`` has the queues of the address that do not take every message.

        ``hearing`` finds the wildcard addresses that match it; None if there are none. Without
        ``forward`` there are no ``diverts``.
        """
        self._gates = gates
        self._hearing = hearing
        self._diverts = diverts
        self._forward = forward

    def route(
        self,
        record: Message,
        principal: Principal,
        queues: Sequence[Queue],
        topics: Sequence[Topic],
        through: Collection[Divert] = (),
    ) -> Finding[list[Routed]]:
        """Find who gets a message that is for ``queues`` and ``topics``, in one unit.

        Of ANYCAST queues the first that takes it gets it. An exclusive divert takes it from all of
        them and from the other diverts, as in Artemis.
        """
        kind = queues[0].routing_type if queues else RoutingType.MULTICAST
        there = [(list(queues), self._gates)]
        heard = list(topics)
        if kind is RoutingType.MULTICAST and self._hearing is not None:
            hearing = yield from self._hearing()
            for pattern in hearing:
                if pattern.multicast_queues:
                    there.append((list(pattern.multicast_queues), pattern.gates))
                if pattern.topic is not None and pattern.topic.subscribers:
                    heard.append(pattern.topic)
        found, is_taken = yield from self.diverted(record, principal, kind, through)
        if is_taken:
            return found
        takes: list[Queue] = []
        for some, gates in there:
            yield from _take(takes, some, gates, record, principal, is_copy=bool(through))
        if kind is RoutingType.ANYCAST:
            takes = takes[:1]
        return [*found, Routed(record, takes, heard)]

    def diverted(
        self,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert] = (),
    ) -> Finding[tuple[list[Routed], bool]]:
        """Find who gets a message by diverts, and whether one of them is exclusive."""
        forward = self._forward
        if forward is None:
            return [], False
        diverts = [one for one in self._diverts if one not in through and one.takes(record)]
        exclusive = [one for one in diverts if one.is_exclusive]
        found: list[Routed] = []
        for divert in exclusive or diverts:
            found += yield from forward(divert, record, principal, kind, through)
        return found, bool(exclusive)


def _take(
    takes: list[Queue],
    queues: Iterable[Queue],
    gates: dict[Queue, Gate],
    record: Message,
    principal: Principal,
    *,
    is_copy: bool = False,
) -> Finding[None]:
    """Add those of some queues that take a message; one step for each filter."""
    size, large = size_in_store(record), record.large
    # Its address counts it as an upload already; the address of a divert does not.
    uploaded = 0 if large is None or is_copy else large.size
    for number, one in enumerate(queues, 1):
        gate = gates.get(one)
        if isinstance(gate, QueueGate) and not gate.is_read:
            yield from gate.reading()
        uncounted = uploaded if one.use.name == record.address else 0
        if (gate is None or gate(record, principal)) and not one.use.drops(size - uncounted):
            takes.append(one)
        if gate is not None or not number % _AT_ONCE:
            yield GO_ON


def gate_of(binding: QueueBinding, queue: Queue) -> Gate | None:
    """Return the gate of a queue; None if it takes every message.

    The gate raises SelectorRefused for a filter that this version cannot parse. It parses the
    filter with the first message, so that opening many queues with filters is not slower.
    """
    asks: list[Gate] = []
    if binding.subscription is not None and binding.subscription.no_local:
        asks.append(_not_of(binding.subscription))
    if not binding.options.enabled:
        asks.append(lambda *_: False)
    if binding.options.purge_on_no_consumers:
        asks.append(lambda *_: queue.consumers > 0)
    if binding.options.last_value_key is not None:
        asks.append(lambda *_: True)  # a routed message makes a plan, which can replace others
    text, origin = binding.options.filter, origin_of(binding)
    if origin is not None:
        asks.append(lambda record, _: origin_address(record) == origin)
        text = None
    return QueueGate(binding.name, asks, text) if asks or text is not None else None


class QueueGate:
    """Says which messages one queue takes."""

    __slots__ = ("_asks", "_filter", "_queue", "_selector")

    def __init__(self, queue: str, asks: Sequence[Gate], text: str | None) -> None:
        """``text`` is the selector of a ``queue``; None without one."""
        self._queue = queue
        self._asks = asks
        self._filter = text
        self._selector: Selector | None = None
        """Parsed with the first message or before, and kept as long as the queue is."""

    @property
    def is_read(self) -> bool:
        """Whether it can be asked without parsing a selector first."""
        return self._selector is not None or self._filter is None

    def reading(self) -> Finding[None]:
        """Parse its selector, in steps; raises SelectorRefused."""
        if self._filter is not None and self._selector is None:
            try:
                self._selector = yield from parsing(self._filter)
            except SelectorRefused as error:
                raise error.of(f"queue {quoted(self._queue)}") from None

    def __call__(self, record: Message, principal: Principal) -> bool:
        """Return whether the queue takes a message; raises SelectorRefused."""
        for ask in self._asks:
            if not ask(record, principal):
                return False
        if not self.is_read:
            found(self.reading())
        return self._selector is None or self._selector.matches(record)


def origin_of(binding: QueueBinding) -> str | None:
    """Return the address for whose undeliverable messages a queue is; None if it is for others."""
    text = binding.options.filter
    if text is None or not (text.startswith(_FROM) and text.endswith("'")):
        return None
    quoted_address = text[len(_FROM) : -1]
    address = quoted_address.replace("''", "'")
    return address if filter_of(address) == text else None


def filter_of(address: str) -> str:
    """Return the filter of a queue for the undeliverable messages of an address."""
    quoted_address = address.replace("'", "''")
    return f"{_FROM}{quoted_address}'"


def origin_address(record: Message) -> str:
    """Return the address at which a message was undeliverable; empty if there is none."""
    address = MessageProperties(record).get(_ORIGIN)
    return address if isinstance(address, str) else ""


def _not_of(subscription: DurableSubscription) -> Gate:
    return lambda _, principal: principal.client_id != subscription.client_id


def routed_by(
    router: Router | None,
    record: Message,
    principal: Principal,
    queues: Sequence[Queue],
    topic: Topic | None,
) -> Finding[list[Routed]]:
    """Find who gets a message for ``queues`` and ``topic``: all of them, or as a router says."""
    topics = () if topic is None else (topic,)
    if router is None:
        return [Routed(record, queues, topics)]
    routed = yield from router.route(record, principal, queues, topics)
    return still_there(routed)


def still_there(routed: list[Routed]) -> list[Routed]:
    """Leave out queues that are being deleted since they were found.

    Raises DestinationRefused if that is the one queue that was to get the message.
    """
    left: list[Routed] = []
    for one in routed:
        if not any(queue.is_leaving for queue in one.queues):
            left.append(one)
            continue
        if one.queues[0].routing_type is RoutingType.ANYCAST:
            name = quoted(one.queues[0].name)
            raise DestinationRefused(f"queue {name} is being deleted; try again")
        queues = [queue for queue in one.queues if not queue.is_leaving]
        left.append(one._replace(queues=queues))
    return left
