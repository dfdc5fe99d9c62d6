"""Who gets a message where that depends on the message, on who sent it, or on other addresses.

An address has a router only if something of it asks: a queue with a filter, one that is not enabled
or takes nothing without a consumer, a durable subscription without its owner's own messages, a
subscription by wildcards that hears it, a divert, a policy BLOCK or DROP. Every other
message goes to the queues and the topic of its address as they are.

To ask many takes long, so it is done in steps. A message goes to those that were there at the first
of them and are there at the last: whoever comes amid it came after the message. All that follows is
one step, so that it is in the journal before anything that is sent to the same queues later.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.selectors import Said, Selector, SelectorRefused, parsing
from orthia.broker.core.slices import GO_ON, Finding, found
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.journal.model.codec import DurableSubscription, QueueBinding
from orthia.journal.model.message import Message

_ORIGIN: Final = "_AMQ_ORIG_ADDRESS"
_FROM: Final = f"{_ORIGIN} = '"
_AT_ONCE: Final = 64
"""How many queues without a filter are asked before others have a turn."""
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


Hearing = Callable[[], Finding[Iterable[_Listeners]]]
"""Finds out who hears an address by wildcards."""


class Forward(Protocol):
    """Routes what a divert takes."""

    def __call__(
        self,
        divert: Divert,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert],
    ) -> Finding[list[Routed]]:
        """Find out who gets a message at the divert's address, which may have diverts itself.

        It was of a ``kind``, and has been ``through`` other diverts, which it does not take twice.
        """


class Router:
    """What the messages of one address are asked before they go to its queues."""

    __slots__ = ("_diverts", "_forward", "_gates", "_hearing")

    def __init__(
        self,
        gates: dict[Queue, Gate],
        hearing: Hearing | None,
        diverts: Sequence[Divert],
        forward: Forward | None,
    ) -> None:
        """``gates`` are of those queues of the address that do not take every message.

        ``hearing`` finds out who hears it by wildcards; without it nobody does. Without ``forward``
        there are no ``diverts``.
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
        """Find out who gets a message that is for ``queues`` and ``topics``, in one unit.

        Of ANYCAST queues that is the first that takes it. An exclusive divert takes it from all of
        them, and from the other diverts, as in Artemis.
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
        """Find out who gets a message by diverts, and whether one of them is exclusive."""
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
    """Add those of some queues that take a message; a step for each filter."""
    size, large = size_in_store(record), record.large
    # Counted as an upload where it was sent to; what a divert makes of it was sent to nowhere.
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
    """Return what a queue asks of its messages; None if it takes all of them.

    Which raises SelectorRefused for a filter that this version does not understand. That is read
    when a message comes: a node opens any number of queues with filters as fast as others.
    """
    asks: list[Gate] = []
    if binding.subscription is not None and binding.subscription.no_local:
        asks.append(_not_of(binding.subscription))
    if not binding.options.enabled:
        asks.append(lambda *_: False)
    if binding.options.purge_on_no_consumers:
        asks.append(lambda *_: queue.consumers > 0)
    if binding.options.last_value_key is not None:
        asks.append(lambda *_: True)  # what is routed is stored by a unit, which can delete, too
    text, origin = binding.options.filter, origin_of(binding)
    if origin is not None:
        asks.append(lambda record, _: origin_address(record) == origin)
        text = None
    return QueueGate(binding.name, asks, text) if asks or text is not None else None


class QueueGate:
    """What one queue asks of its messages."""

    __slots__ = ("_asks", "_filter", "_queue", "_selector")

    def __init__(self, queue: str, asks: Sequence[Gate], text: str | None) -> None:
        """``text`` is the selector of a ``queue``; None without one."""
        self._queue = queue
        self._asks = asks
        self._filter = text
        self._selector: Selector | None = None
        """Parsed when the first message is asked, or before, and kept as long as the queue is."""

    @property
    def is_read(self) -> bool:
        """Whether it can be asked without a selector to be parsed first."""
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
    """Return the address of a queue that takes what was undeliverable there alone; else None."""
    text = binding.options.filter
    if text is None or not (text.startswith(_FROM) and text.endswith("'")):
        return None
    quoted_address = text[len(_FROM) : -1]
    address = quoted_address.replace("''", "'")
    return address if filter_of(address) == text else None


def filter_of(address: str) -> str:
    """Return the filter of the queue for what is undeliverable of an address."""
    quoted_address = address.replace("'", "''")
    return f"{_FROM}{quoted_address}'"


def origin_address(record: Message) -> str:
    """Return the address at which a message was undeliverable; empty if it was at none."""
    address = Said(record).get(_ORIGIN)
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
    """Find out who gets a message for ``queues`` and ``topic``, unless a router says otherwise."""
    topics = () if topic is None else (topic,)
    if router is None:
        return [Routed(record, queues, topics)]
    routed = yield from router.route(record, principal, queues, topics)
    return still_there(routed)


def still_there(routed: list[Routed]) -> list[Routed]:
    """Return who gets a message of those that were found, of which some may be gone since.

    Raises DestinationRefused if the one queue that was to have it is.
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
