"""What operators see of a running node: immutable values, made on the loop and read on any thread.

``as_json`` is the one form in which the API and ``--json`` show them: a JSON object whose names are
written with hyphens, as in ``broker.xml``. Times are milliseconds since 1970 UTC, sizes are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from orthia.config.address_settings import RoutingType
from orthia.journal.model.fields import Property


class QueueView(NamedTuple):
    """One queue; a tuple, as there may be 50,000 of them in one list."""

    name: str
    address: str
    routing_type: RoutingType
    durable: bool
    temporary: bool
    """Whether it ends with the connection that created it."""
    configured: bool
    """Whether ``broker.xml`` declares it."""
    auto_created: bool
    user: str | None
    """Who had it created; None if that was no client, or nobody known."""
    filter: str | None
    exclusive: bool
    last_value_key: str | None
    non_destructive: bool
    ring_size: int | None
    max_consumers: int | None
    """None for any number."""
    paused: bool
    """Whether nothing is delivered until it is resumed, itself or its address."""
    messages: int
    """As far as they are counted, those that consumers have included."""
    counted: bool
    """Whether all is counted that earlier nodes left."""
    bytes: int
    """What its messages count for in the store, as far as they are counted."""
    oldest_ms: int | None
    """When its oldest message was accepted, of those in memory; None if none of them is."""
    consumers: int
    delivering: int
    """How many messages consumers have and did not acknowledge yet."""
    waiting_for_redelivery: int
    scheduled: int
    """How many messages for it are not due yet."""
    added: int
    """This and the next since this node became live."""
    acknowledged: int
    expired: int
    killed: int
    """How many became dead letters."""
    redelivered: int
    removed: int
    """How many an operator deleted, or moved away."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream that reads a queue in place of consumers."""

    queue: str
    id: str
    user: str
    """Who attached it."""
    since_ms: int


@dataclass(frozen=True, slots=True)
class AddressView:
    """One address."""

    name: str
    routing_types: tuple[RoutingType, ...]
    configured: bool
    """Whether ``broker.xml`` declares it."""
    created: bool
    """Whether an operator created it."""
    temporary: bool
    paused: bool
    queues: tuple[str, ...]
    messages: int
    """In all of its queues, as far as they are counted."""
    bytes: int
    """What counts against its limits: messages, and bodies that are still arriving."""
    max_size_bytes: int
    """-1 for any number, here and below."""
    max_size_messages: int
    page_limit_bytes: int
    page_limit_messages: int
    address_full_policy: str
    page_full_policy: str
    subscribers: int
    """Consumers of its topic, who have no stored queue."""
    durable_consumers: int
    """Those of its queues that are subscriptions."""
    published: int
    """How many messages went to its subscribers, or to the subscription that got most."""
    added: int
    """How many messages entered its queues since this node became live."""
    diverts: tuple[str, ...]
    """The addresses that its diverts send to."""


@dataclass(frozen=True, slots=True)
class BindingView:
    """What of an address goes to a queue."""

    address: str
    queue: str
    routing_type: RoutingType
    filter: str | None
    enabled: bool


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer of a queue or of a topic."""

    id: str
    """CONNECTION.NUMBER, which no other consumer of this node gets."""
    connection: str
    user: str
    client_id: str | None
    queue: str | None
    """None of a topic, whose subscribers have no stored queue."""
    address: str
    selector: str | None
    prefetch: int | None
    """Messages it has at a time at most; None for any number."""
    delivering: int
    """Messages it has and did not acknowledge yet, those of its open transactions included."""
    delivering_bytes: int
    settled: int
    """Messages it acknowledged or gave back."""
    writable: bool
    """Whether its connection takes more at this moment."""


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """One connection of a client that has logged in."""

    id: str
    """What the client was told as ``session``, and what the logs say."""
    address: str
    port: int | None
    user: str
    client_id: str | None
    verified: bool
    """Whether the user was verified: not with ``security-enabled`` false."""
    acceptor: str
    protocol: str
    tls: bool
    since_ms: int
    held_bytes: int
    """What the broker holds in memory for it."""
    received_bytes: int
    sent_bytes: int
    consumers: int


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message of a queue."""

    id: int
    """Its place in the journal: ``message-id`` of STOMP, and what operations name it by."""
    queue: str
    address: str
    priority: int
    timestamp_ms: int
    expires_ms: int
    """0 never."""
    durable: bool
    """Whether it is stored."""
    large: bool
    size: int
    """Bytes of headers and body."""
    body_size: int
    attempts: int
    """How many deliveries failed, as far as the store says."""
    delivering: bool
    """Whether a consumer has it at this moment."""
    due_ms: int | None
    """When it is delivered, of one that is scheduled."""
    origin_queue: str | None
    """Where it was before it became a dead letter, expired or was moved."""
    origin_address: str | None
    returns: int
    """How often it was retried from there."""
    properties: Mapping[str, Property]
    """What its sender and the broker say of it."""
    body: bytes | None
    """None if it was not asked for, or is longer than was asked for."""
    body_kind: str
    """What the body is: ``text``, ``bytes``, ``map``, ``stream``, ``object``, ``value``, ``none``.

    Empty if it was not asked for, or its sender did not say. A map, a stream and a value are JSON.
    """


@dataclass(frozen=True, slots=True)
class ScheduledView:
    """One message that is to be delivered later."""

    id: int
    """What it is cancelled by; once it is delivered the message has another."""
    queue: str
    """The queue that it waits in, which is browsed as others are and not consumed from."""
    destination: str
    """Where it goes: ``/queue/NAME`` or ``/topic/NAME``."""
    address: str
    due_ms: int
    recurring: bool
    """Whether it is delivered more than once."""
    priority: int
    timestamp_ms: int
    expires_ms: int
    """0 never."""
    size: int
    """Bytes of headers and body."""
    body_size: int
    properties: Mapping[str, Property]


@dataclass(frozen=True, slots=True)
class ScheduledPage:
    """Some messages that are to be delivered later, the earliest first."""

    messages: tuple[ScheduledView, ...]
    next: str | None
    """What takes the next page as ``after``; None behind the last."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a queue, in the order in which they are delivered."""

    messages: tuple[MessageView, ...]
    next: str | None
    """What ``browse`` takes as ``after`` for the next page; None behind the last."""


class JobKind(StrEnum):
    """What a job does with each of its messages."""

    PURGE = "purge"
    """Delete all of a queue, or of all queues of an address."""
    DELETE = "delete"
    MOVE = "move"
    COPY = "copy"
    RETRY = "retry"
    """Send back to where a dead letter, or an expired or moved message, came from."""
    EXPIRE = "expire"
    CANCEL = "cancel"
    """Delete what is to be delivered to a queue later, or to an address."""
    PRIORITY = "priority"
    """Give another priority."""
    ACKNOWLEDGE = "acknowledge"
    """Acknowledge what the stream that reads the queue has done with."""


class JobState(StrEnum):
    """How far a job is."""

    RUNNING = "running"
    STOPPED = "stopped"
    """An operator stopped it."""
    DONE = "done"
    FAILED = "failed"
    """Its ``reason`` says why the rest is as it was."""
    INTERRUPTED = "interrupted"
    """Its node ended; what it had done is done, and it can be started again."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job: an operation on many messages."""

    id: int
    kind: JobKind
    queue: str
    """The queue that it works on; of a purge of an address, the address."""
    of_address: bool
    target: str | None
    """Where messages go, of a move or a copy."""
    selector: str | None
    ids: int | None
    """How many messages were named; None if all, or all that the selector matches."""
    priority: int | None
    user: str
    state: JobState
    reason: str | None
    """Why it is as it is, where that is no success."""
    since_ms: int
    until_ms: int | None
    """When it ended; None while it runs."""
    total: int | None
    """How many messages there were to look at when it began; None if that is not known."""
    looked_at: int
    done: int
    """How many messages it is done with, which is stored."""
    left: int
    """How many were left as they are: consumers have them, or there is nowhere to go."""


class TransactionState(StrEnum):
    """How far a transaction is."""

    OPEN = "open"
    """Its client did not commit or abort it yet."""
    PREPARED = "prepared"
    """It is stored, and in doubt until it is committed or rolled back."""


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction that is not resolved."""

    id: str
    """Of a prepared one its XID, by which it is resolved; else what its client calls it."""
    state: TransactionState
    connection: str | None
    """Of whom an open one is; a prepared one is of nobody any more."""
    user: str | None
    client_id: str | None
    since_ms: int
    """When it began, or was prepared."""
    sends: int
    acknowledges: int
    """Messages it acknowledges or rejects."""
    bytes: int
    """What it counts for in memory, or, of a prepared one, its messages."""


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What the node holds, against its limits."""

    messages_bytes: int
    """Of messages of queues in memory."""
    messages_limit: int
    store_bytes: int
    """What all addresses hold in the store together."""
    store_limit: int | None
    store_closed_by: tuple[str, ...]
    """``disk`` or ``database``, while that is full."""
    delivering_bytes: int
    """Of messages that consumers have."""
    clients_bytes: int
    """What clients make the broker hold."""
    clients_limit: int


@dataclass(frozen=True, slots=True)
class OverviewView:
    """The node in a few numbers."""

    name: str
    node_id: str | None
    """What all nodes of a store have in common."""
    uptime_ms: int
    """For how long the node has been live."""
    queues: int
    addresses: int
    consumers: int
    connections: int
    messages: int
    delivering: int
    added: int
    acknowledged: int
    expired: int
    killed: int
    redelivered: int
    jobs: int
    """Those that run."""
    journal_full: bool
    """Whether more waits for the store than is allowed: no client is read from."""
    last_seq: int
    """The newest place in the journal that is stored."""


@dataclass(frozen=True, slots=True)
class HandoverView:
    """How a hand-over to the backup went."""

    successor: str | None
    """Who serves now; None if nobody took over in time."""
    unserved_seconds: float | None
    """How long nobody served at most: from the request on; None if nobody took over in time."""


View = (
    QueueView
    | AddressView
    | BindingView
    | ConsumerView
    | ConnectionView
    | MessageView
    | MessagePage
    | ScheduledView
    | ScheduledPage
    | JobView
    | TransactionView
    | MemoryView
    | OverviewView
    | HandoverView
)


def as_json(view: View) -> dict[str, Any]:
    """Return a view as a JSON object."""
    if isinstance(view, QueueView):
        return {name.replace("_", "-"): _value(value) for name, value in view._asdict().items()}
    return {one.name.replace("_", "-"): _value(getattr(view, one.name)) for one in fields(view)}


def _value(value: object) -> Any:
    """Return a value as JSON has it; bytes that are no text are shown as hexadecimal digits."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, QueueView) or (is_dataclass(value) and not isinstance(value, type)):
        return as_json(value)  # type: ignore[arg-type]  # of those above, whichever it is
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, Mapping):
        return {str(name): _value(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(one) for one in value]
    return value
