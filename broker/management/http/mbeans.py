"""The management objects of Artemis and Classic that this node has, as far as it has them.

Each kind has a name, a table of attributes, and one of operations. What is not in them is refused
by name.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from typing_extensions import override

from orthia.broker.core.errors import NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.management.attributes import (
    OF_ADDRESS,
    OF_BROKER,
    OF_QUEUE,
    Attribute,
    NodeSeen,
    as_flag,
    as_long,
    as_text,
    percent,
    sources_of_broker,
    uptime,
    version,
)
from orthia.broker.management.errors import NotFound
from orthia.broker.management.facade import Management
from orthia.broker.management.http.object_names import ObjectName, quote
from orthia.broker.management.java_types import INT, VOID
from orthia.broker.management.operations import (
    ADDRESS_OPERATIONS,
    BROKER_OPERATIONS,
    CLASSIC_QUEUE_OPERATIONS,
    QUEUE_OPERATIONS,
    Operation,
    Target,
)
from orthia.broker.management.views import AddressView, QueueView
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType

ARTEMIS: Final = "org.apache.activemq.artemis"
CLASSIC: Final = "org.apache.activemq"
_NOT_PLAIN: Final = re.compile('[,=:"*?\\n]')


class Kind(NamedTuple):
    """A kind of objects."""

    domain: str
    keys: tuple[str, ...]
    """In the order in which names are written."""
    fixed: Mapping[str, str]
    """Keys that say what kind it is."""
    broker_key: str
    attributes: Mapping[str, Attribute]
    operations: tuple[Operation, ...]

    @property
    def is_quoted(self) -> bool:
        """Whether values that are not fixed are written in quotes."""
        return self.domain == ARTEMIS

    def may_match(self, name: ObjectName) -> bool:
        """Return whether an object of this kind may have a name."""
        if not name.domain.matches(self.domain):
            return False
        named, own = name.keys.keys(), set(self.keys)
        if not (named <= own if name.open else named == own):
            return False
        return all(name.keys[key].matches(one) for key, one in self.fixed.items() if key in named)


class Subject(NamedTuple):
    """One object."""

    kind: Kind
    values: Mapping[str, str]
    """By key, those that are fixed left out."""

    @property
    def target(self) -> Target:
        """What operations of it are of."""
        get = self.values.get
        return Target(get("queue") or get("destinationName", ""), get("address", ""))

    @property
    def named(self) -> str:
        """The name of the queue, else the address."""
        last = self.kind.keys[-1]
        return self.values.get(last, self.values.get("address", ""))

    def is_named(self, name: ObjectName) -> bool:
        """Return whether a name is of this object, whatever it says the broker is called."""
        keys = {**self.kind.fixed, **self.values}
        return name.matches(self.kind.domain, keys, self.kind.broker_key)

    def properties(self, *, canonical: bool) -> str:
        """Return its keys and values, sorted if ``canonical``."""
        keys = sorted(self.kind.keys) if canonical else self.kind.keys
        return ",".join(f"{key}={self._value(key)}" for key in keys)

    def _value(self, key: str) -> str:
        if key in self.kind.fixed:
            return self.kind.fixed[key]
        value = self.values[key]
        # Classic has no quotes; what could not be read without them has some nevertheless.
        return quote(value) if self.kind.is_quoted or _NOT_PLAIN.search(value) else value

    def name(self, *, canonical: bool) -> str:
        """Return its name."""
        return f"{self.kind.domain}:{self.properties(canonical=canonical)}"


_OF_CLASSIC_BROKER: Final = {
    "BrokerName": as_text(lambda one: one.name, "overview"),
    "BrokerVersion": as_text(lambda _: version(), "overview"),
    "Uptime": as_text(lambda one: uptime(one.uptime_ms), "overview"),
    "UptimeMillis": as_long(lambda one: one.uptime_ms, "overview"),
    "TotalMessageCount": as_long(lambda one: one.messages, "overview"),
    "TotalConsumerCount": as_long(lambda one: one.consumers, "overview"),
    "TotalEnqueueCount": as_long(lambda one: one.added, "overview"),
    "TotalDequeueCount": as_long(lambda one: one.acknowledged, "overview"),
    "CurrentConnectionsCount": Attribute(INT, lambda one: one.connections, "overview"),
    "MemoryPercentUsage": Attribute(
        INT, lambda one: percent(one.messages_bytes, one.messages_limit), "memory"
    ),
    "Queues": Attribute(
        "[Ljavax.management.ObjectName;",
        lambda found: [{"objectName": one} for one in _classic_names(*found)],
        "named-queues",
    ),
    "Topics": Attribute(
        "[Ljavax.management.ObjectName;",
        lambda found: [{"objectName": one} for one in _classic_topic_names(*found)],
        "named-addresses",
    ),
}
_OF_CLASSIC_HEALTH: Final = {
    "CurrentStatus": as_text(
        lambda one: "The store is behind" if one.journal_full else "Good", "overview"
    ),
}
_OF_CLASSIC_QUEUE: Final = {
    "Name": as_text(lambda one: one.name),
    "QueueSize": as_long(lambda one: one.messages),
    "ConsumerCount": as_long(lambda one: one.consumers),
    "InFlightCount": as_long(lambda one: one.delivering),
    "EnqueueCount": as_long(lambda one: one.added),
    "DequeueCount": as_long(lambda one: one.acknowledged),
    "ExpiredCount": as_long(lambda one: one.expired),
    "Paused": as_flag(lambda one: one.paused),
}


_OF_CLASSIC_TOPIC: Final = {
    "Name": as_text(lambda one: one.name),
    "ConsumerCount": as_long(lambda one: one.subscribers + one.durable_consumers),
    "EnqueueCount": as_long(lambda one: one.published),
    "Paused": as_flag(lambda one: one.paused),
}


# --- kinds

BROKER: Final = Kind(ARTEMIS, ("broker",), {}, "broker", OF_BROKER, BROKER_OPERATIONS)
ADDRESS: Final = Kind(
    ARTEMIS,
    ("broker", "component", "address"),
    {"component": "addresses"},
    "broker",
    OF_ADDRESS,
    ADDRESS_OPERATIONS,
)
QUEUE: Final = Kind(
    ARTEMIS,
    ("broker", "component", "address", "subcomponent", "routing-type", "queue"),
    {"component": "addresses", "subcomponent": "queues"},
    "broker",
    OF_QUEUE,
    QUEUE_OPERATIONS,
)
CLASSIC_BROKER: Final = Kind(
    CLASSIC,
    ("type", "brokerName"),
    {"type": "Broker"},
    "brokerName",
    _OF_CLASSIC_BROKER,
    (),
)
CLASSIC_QUEUE: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "destinationType", "destinationName"),
    {"type": "Broker", "destinationType": "Queue"},
    "brokerName",
    _OF_CLASSIC_QUEUE,
    CLASSIC_QUEUE_OPERATIONS,
)
CLASSIC_TOPIC: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "destinationType", "destinationName"),
    {"type": "Broker", "destinationType": "Topic"},
    "brokerName",
    _OF_CLASSIC_TOPIC,
    (),
)
PASSIVE_BROKER: Final = BROKER._replace(
    attributes={name: one for name, one in OF_BROKER.items() if one.source == "node"}
)
CLASSIC_HEALTH: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "service"),
    {"type": "Broker", "service": "Health"},
    "brokerName",
    _OF_CLASSIC_HEALTH,
    (),
)
KINDS: Final = (
    BROKER,
    ADDRESS,
    QUEUE,
    CLASSIC_BROKER,
    CLASSIC_HEALTH,
    CLASSIC_QUEUE,
    CLASSIC_TOPIC,
)
_OF_ADDRESSES: Final = (ADDRESS, CLASSIC_TOPIC)
_OF_WHOLE_NODE: Final = (BROKER, CLASSIC_BROKER, CLASSIC_HEALTH)


class Found(NamedTuple):
    """An object, and what its attributes are read from."""

    subject: Subject
    sources: Mapping[str, Any]


class Objects(ABC):
    """The objects of a node."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the node is called."""

    @abstractmethod
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        """Return the object that a name is of, which is no pattern; raises BrokerError."""

    @abstractmethod
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        """Return what yields the objects that a pattern matches, on any thread."""

    @abstractmethod
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        """Do what is asked of an object; raises BrokerError."""


class LiveObjects(Objects):
    """Those of a live node, for one user; on the broker's loop."""

    def __init__(self, node: Management, who: Principal) -> None:
        self._node = node
        self._who = who
        self._seen: dict[str, Any] = {}
        """What was read of the node as a whole, which all requests of a bulk share."""

    @property
    @override
    def name(self) -> str:
        return self._node.name

    @override
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        return await _one(self._node, self._who, name, sources, self._seen)

    @override
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        return await _matching(self._node, self._who, name, sources, self._seen)

    @override
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        self._seen.clear()
        result = await operation.perform(self._node, self._who, subject.target, **arguments)
        return None if operation.result == VOID else result


class PassiveObjects(Objects):
    """The broker of a node that is not live, as Artemis' backup has it: no address, no queue."""

    def __init__(self, seen: NodeSeen) -> None:
        self._seen = seen
        subject = Subject(PASSIVE_BROKER, {"broker": seen.name})
        self._found = Found(subject, {"node": seen})

    @property
    @override
    def name(self) -> str:
        return self._seen.name

    @override
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        if self._found.subject.is_named(name):
            return self._found
        raise NotFound("object", _shown(name), ": this node is not live, and has its broker alone")

    @override
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        found = [self._found] if self._found.subject.is_named(name) else []
        return lambda: iter(found)

    @override
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        raise NotLive(f"{operation.name} is for the live node: this one is not live")


async def _one(
    node: Management,
    who: Principal,
    name: ObjectName,
    sources: Collection[str],
    seen: dict[str, Any],
) -> Found:
    """Return the object that a name is of, which is no pattern; raises BrokerError."""
    for kind in KINDS:
        if not kind.may_match(name):
            continue
        subject = Subject(
            kind, {key: one.text for key, one in name.keys.items() if key not in kind.fixed}
        )
        if kind in _OF_WHOLE_NODE:
            return Found(subject, await sources_of_broker(node, who, sources, seen))
        if kind in _OF_ADDRESSES:
            address = await node.address(who, subject.named)
            if kind is CLASSIC_TOPIC and not _is_topic(address):
                raise NotFound("topic", subject.named, ": that address has queues alone")
            return Found(subject, {"view": address})
        queue = await node.queue(who, subject.named)
        if not _queue_subject(kind, queue, node.name).is_named(name):
            raise NotFound("queue", subject.named, f" of that address and type; it is {_is(queue)}")
        return Found(subject, {"view": queue})
    raise NotFound("object", _shown(name), "; search *:* lists all")


def _is(queue: QueueView) -> str:
    return f"{queue.routing_type.value.lower()}, of address {quoted(queue.address)}"


def _shown(name: ObjectName) -> str:
    keys = ",".join(f"{key}={one.text}" for key, one in name.keys.items())
    return f"{name.domain.text}:{keys}"


async def _matching(
    node: Management,
    who: Principal,
    name: ObjectName,
    sources: Collection[str],
    seen: dict[str, Any],
) -> Callable[[], Iterator[Found]]:
    """Return what yields the objects that a pattern matches, on any thread."""
    kinds = [one for one in KINDS if one.may_match(name)]
    broker: Mapping[str, Any] = {}
    addresses: Iterable[AddressView] = ()
    queues: Iterable[QueueView] = ()
    if any(one in kinds for one in _OF_WHOLE_NODE):
        broker = await sources_of_broker(node, who, sources, seen)
    if any(one in kinds for one in _OF_ADDRESSES):
        addresses = await node.addresses(who)
    if QUEUE in kinds or CLASSIC_QUEUE in kinds:
        queues = await node.all_queues(who)
    called = node.name

    def candidates() -> Iterator[Found]:
        for kind in kinds:
            if kind in _OF_WHOLE_NODE:
                yield Found(Subject(kind, {kind.broker_key: called}), broker)
            elif kind in _OF_ADDRESSES:
                for address in addresses:
                    if kind is ADDRESS or _is_topic(address):
                        values = {kind.broker_key: called, kind.keys[-1]: address.name}
                        yield Found(Subject(kind, values), {"view": address})
            else:
                for queue in queues:
                    if kind is QUEUE or queue.routing_type is RoutingType.ANYCAST:
                        yield Found(_queue_subject(kind, queue, called), {"view": queue})

    return lambda: (one for one in candidates() if one.subject.is_named(name))


def _classic_names(broker: str, queues: Iterable[QueueView]) -> Iterator[str]:
    """Yield the names of the queues that Classic has as queues."""
    for one in queues:
        if one.routing_type is RoutingType.ANYCAST:
            yield _queue_subject(CLASSIC_QUEUE, one, broker).name(canonical=False)


def _is_topic(address: AddressView) -> bool:
    """Return whether Classic has an address as a topic, with a queue or without."""
    return RoutingType.MULTICAST in address.routing_types or address.subscribers > 0


def _classic_topic_names(broker: str, addresses: Iterable[AddressView]) -> Iterator[str]:
    """Yield the names of the addresses that Classic has as topics."""
    for one in addresses:
        if _is_topic(one):
            values = {"brokerName": broker, "destinationName": one.name}
            yield Subject(CLASSIC_TOPIC, values).name(canonical=False)


def _queue_subject(kind: Kind, queue: QueueView, broker: str) -> Subject:
    if kind is CLASSIC_QUEUE:
        is_queue = queue.routing_type is RoutingType.ANYCAST
        return Subject(
            kind, {"brokerName": broker, "destinationName": queue.name if is_queue else ""}
        )
    return Subject(
        kind,
        {
            "broker": broker,
            "address": queue.address,
            "routing-type": queue.routing_type.value.lower(),
            "queue": queue.name,
        },
    )
