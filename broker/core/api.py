"""What a client's session and the broker's core tell each other; one thread, nothing blocks.

``orthia.broker.core.broker`` is what a session calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from orthia.broker.core.errors import BrokerError, Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Steps, Wait
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import OutboxRow
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.encodings import FIRST_ENCODING
from orthia.journal.model.message import LargeBody, Message

Done = Callable[[], None]


class AfterAll:
    """Calls back after a number of calls, once every part of an operation is done or stored."""

    __slots__ = ("_left", "_then")

    def __init__(self, times: int, then: Done) -> None:
        self._left = times
        self._then = then

    def __call__(self) -> None:
        """Count one completed part."""
        self._left -= 1
        if not self._left:
            self._then()


OnRefused = Callable[[OrthiaError, Done | None], None]
"""Takes the reason why an operation was refused as a whole, and the callback of its success, which
is never called."""


def unheard(reason: OrthiaError, done: Done | None) -> None:
    """Ignore a refusal: the journal has logged the ``reason``, and what was refused."""
    del reason, done


class OutgoingMessage(NamedTuple):
    """A message that a session passes to the core."""

    head: bytes
    """Headers and properties as the sender's protocol wrote them, in the ``encoding`` below."""
    body: bytes
    persistent: bool
    expires_ms: int
    priority: int
    large: LargeBody | None = None
    """The body of a large message, pinned; ``body`` is empty then."""
    encoding: int = FIRST_ENCODING
    """A tag of ``orthia.journal.model.encodings``."""
    stated: bytes = b""
    """Fields that the head does not contain; see ``Message.stated``."""
    duplicate_id: str | None = None
    """The duplicate id, which identifies the message if it is sent a second time."""
    outbox_row: int = 0
    """The row of the outbox that it is, which is deleted when it is stored; 0 for none."""


class MessageReference:
    """A message in a queue, the unit of delivery, acknowledgement and return."""

    __slots__ = (
        "attempts",
        "location",
        "record",
        "redelivered",
        "seq",
        "shared",
        "size",
        "written_at",
    )

    def __init__(
        self,
        seq: int,
        record: Message,
        location: MessageLocation | None,
        size: int,
        *,
        redelivered: bool,
    ) -> None:
        self.seq = seq
        """Its position in the queue; also its message id."""
        self.record = record
        self.location = location
        """Its location in the journal; None for a message in memory only."""
        self.size = size
        """Bytes it counts as in memory."""
        self.redelivered = redelivered
        """True if it may have been delivered before."""
        self.attempts = 0
        """The number of failed deliveries that this node knows of."""
        self.shared: dict[object, bytes] | None = None
        """Encoded copies that all subscribers of a topic share, by protocol."""
        self.written_at = 0
        """The number of bytes written to its consumer's connection before this message."""


class Consumer(Protocol):
    """The session's side of a subscription."""

    @property
    def connection(self) -> object:
        """The connection; the same for all consumers of one client."""

    @property
    def principal(self) -> Principal:
        """The client's principal."""

    @property
    def is_writable(self) -> bool:
        """False while its client is slow; ``SubscriptionHandle.resume`` follows."""

    def deliver(self, reference: MessageReference) -> None:
        """Hand a message to the client."""

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Forget delivered messages that an application acknowledged in the database.

        The client may acknowledge or reject them all the same: nothing more happens.
        """

    def holds(self, change: int) -> None:
        """Change the number of bytes that the core holds until the client acknowledges."""

    def fail(self, reason: str, kind: Refusal) -> None:
        """End the connection with an error that gives the reason; ``kind`` is for the metric."""


class Browser(Consumer, Protocol):
    """A consumer that only reads messages, which stay in their queue."""

    def browsed(self) -> None:
        """Report that all messages were delivered."""


class Answer(Enum):
    """What a transaction does with a delivered message."""

    ACKNOWLEDGED = "acknowledged"
    """It is deleted."""
    FAILED = "failed"
    """It returns to its queue; the delivery counts as an attempt."""
    RELEASED = "released"
    """It returns to its queue as if it had not been delivered."""
    DEAD = "dead"
    """It moves to the dead-letter address."""


class SubscriptionHandle(Protocol):
    """The core's side of a subscription."""

    @property
    def routing_type(self) -> RoutingType:
        """The routing type of messages that do not state their own."""

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Delete delivered messages; ``done`` follows the commit."""

    def reject(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Return messages after a failed delivery; ``done`` follows once that is stored."""

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Free the credit of delivered messages, which a transaction holds until its end."""

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``: the transaction was aborted."""

    def deletes(self, references: Sequence[MessageReference]) -> list[MessageLocation]:
        """Return the journal's deletes for messages that a transaction acknowledges.

        Raises AcknowledgementRefused if they returned to their queue meanwhile.
        """

    def settle(
        self, references: Sequence[MessageReference], answer: Answer = Answer.ACKNOWLEDGED
    ) -> "Settlement":
        """Settle the messages set aside for a transaction as it answers them."""

    def resume(self) -> None:
        """Resume delivery: the consumer is writable again, or has credit."""

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """End the subscription; unacknowledged messages return to their place in the queue.

        For the ``attempted`` this counts as a failed delivery.
        """


class SingleSubscription(SubscriptionHandle, Protocol):
    """The core's side of a subscription to one destination, which can be asked more."""

    @property
    def is_looking(self) -> bool:
        """Whether messages that are there may still follow without a ``resume``.

        False if the consumer has all that it gets for now, whatever its credit.
        """

    @property
    def keeps_nothing(self) -> bool:
        """Whether what is returned is gone, as a topic stores nothing."""

    def release(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Return messages that were not processed, which is no failed delivery.

        ``done`` follows once the queue has them.
        """

    def dead_letter(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Move messages to the dead-letter address, as nobody is to get them again.

        ``done`` follows once that is stored.
        """


class Settlement(ABC):
    """A transaction's settlement of delivered messages; it ends once, committed or refused."""

    __slots__ = ()

    @abstractmethod
    def committed(self, done: Done) -> None:
        """Apply the settlement; ``done`` follows once all its consequences are stored."""

    @abstractmethod
    def suspend(self) -> None:
        """Pause delivery from the messages' queues until ``refused`` is called."""

    @abstractmethod
    def refused(self, *, failed_delivery: bool) -> None:
        """Undo it after ``suspend``, and redeliver the messages.

        With ``failed_delivery`` it counts as a failed delivery.
        """


@dataclass
class TransactionWork:
    """The operations of a client's transaction until its commit; its messages are set aside."""

    sends: list[tuple[str, OutgoingMessage]] = field(default_factory=list)
    acknowledgements: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    rejections: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    """Messages whose delivery failed."""
    releases: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    dead_letters: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    entries: int = 0
    """The number of messages it sends, acknowledges and rejects."""
    size: int = 0
    """Bytes it counts for in memory."""
    aside: int = 0
    """The part of ``size`` for messages it acknowledges."""
    checked: set[str] = field(default_factory=set)
    """Destinations that were checked and accepted when the client sent to them."""
    is_refused: bool = False
    """Whether its commit was refused."""
    since_ms: int = 0
    """When it began, in milliseconds since 1970 UTC."""
    waits_for_room: bool = True
    """Whether its commit waits while an address is full that blocks senders."""

    def answered(self, answer: Answer) -> dict[SubscriptionHandle, list[MessageReference]]:
        """Return the messages that it answers so; more may be added."""
        if answer is Answer.ACKNOWLEDGED:
            return self.acknowledgements
        if answer is Answer.FAILED:
            return self.rejections
        return self.releases if answer is Answer.RELEASED else self.dead_letters


class OpenTransaction(NamedTuple):
    """A client's transaction before its commit, as operators see it."""

    name: str
    """What its client calls it."""
    since_ms: int
    sends: int
    acknowledges: int
    """Messages it acknowledges or rejects."""
    size: int
    """Bytes it counts for in memory."""


class SubscriptionName(NamedTuple):
    """Which subscription of a topic several consumers, or one after the other, have."""

    name: str
    is_durable: bool = True
    """Whether it keeps messages while nobody consumes; else it ends with its last consumer."""
    is_shared: bool = False
    """Whether it may have several consumers at a time."""
    is_global: bool = False
    """Whether it is of every client, and not of those with the same client id."""


class StoredSubscription(NamedTuple):
    """What a durable subscription was asked for when it was created."""

    address: str
    selector: str | None
    no_local: bool


class FanOut(Protocol):
    """What a sender waits for: earlier sends to a topic, or room in an address."""

    @property
    def is_behind(self) -> bool:
        """Whether subscribers still lack some of the messages, or the address has no room."""

    @property
    def admits_more(self) -> bool:
        """Whether what is sent meanwhile is taken all the same: its sender is to send less."""

    @property
    def rest(self) -> bool | Wait:
        """The value that waiting steps yield."""


def waiting(behind: FanOut) -> Steps:
    """Wait until a sender may go on."""
    while behind.is_behind:
        yield behind.rest


class RowReader(ABC):
    """What a row says; every protocol's words are its own."""

    @abstractmethod
    def sends(self, row: OutboxRow, principal: Principal) -> list[tuple[str, OutgoingMessage]]:
        """Return the message of a row for each destination it names; raises OrthiaError."""

    @abstractmethod
    def dead_letter(self, row: OutboxRow, reason: str) -> OutgoingMessage:
        """Return the message that tells of a row that cannot be sent."""


# --- management


class ManagementRequest(NamedTuple):
    """One operation, or one attribute, of one resource."""

    resource: str
    """``broker``, ``queue.NAME`` or ``address.NAME``."""
    operation: str
    """The operation's name, or the attribute's."""
    is_attribute: bool = False
    arguments: bytes = b""
    """A JSON array, or nothing."""


class ManagementAnswer(NamedTuple):
    """What came of a request."""

    body: bytes
    """A JSON array of the result, or of the reason why nothing was done."""
    error: BrokerError | None = None
    """Why nothing was done."""
    deleted: int | None = None
    """How many messages were deleted, by an operation that tells."""


ManagementAnswered = Callable[[ManagementAnswer | BrokerError], None]


class Manager(ABC):
    """Does what clients ask for; on the loop's thread."""

    @abstractmethod
    def check(self, principal: Principal, request: ManagementRequest) -> None:
        """Raise NotAuthorized unless a client may ask for anything at all."""

    @abstractmethod
    def begin(
        self, principal: Principal, request: ManagementRequest, answered: ManagementAnswered
    ) -> Callable[[], None]:
        """Begin what is asked for; ``answered`` follows later, unless what is returned is called.

        That abandons what can be. A refusal is an answer; an error says that the node stops.
        """
