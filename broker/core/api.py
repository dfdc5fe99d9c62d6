"""The interface between a client's session and the broker's core; one thread, nothing blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from orthia.broker.core.identity import Identities, Principal
from orthia.broker.core.slices import Slices, Steps, Wait
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import LargeMessages, Upload
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

    def holds(self, change: int) -> None:
        """Change the number of bytes that the core holds until the client acknowledges."""

    def fail(self, reason: str) -> None:
        """End the connection: the client cannot keep up."""


class Browser(Consumer, Protocol):
    """A consumer that only reads messages, which stay in their queue."""

    def browsed(self) -> None:
        """Report that all messages were delivered."""


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
        self, references: Sequence[MessageReference], *, rejected: bool = False
    ) -> "Settlement":
        """Settle the messages set aside for a transaction, acknowledged or ``rejected``."""

    def resume(self) -> None:
        """Resume delivery: the consumer is writable again, or has credit."""

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """End the subscription; unacknowledged messages return to their place in the queue.

        For the ``attempted`` this counts as a failed delivery.
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
    def refused(self, *, in_vain: bool) -> None:
        """Undo it after ``suspend``, and redeliver the messages.

        With ``in_vain`` it counts as a failed delivery.
        """


@dataclass
class TransactionWork:
    """The operations of a client's transaction until its commit; its messages are set aside."""

    sends: list[tuple[str, OutgoingMessage]] = field(default_factory=list)
    acknowledgements: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    rejections: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
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


class FanOut(Protocol):
    """The progress of earlier sends to a topic, for a sender that waits."""

    @property
    def is_behind(self) -> bool:
        """Whether subscribers still lack some of the messages, or the address has no room."""

    @property
    def rest(self) -> bool | Wait:
        """The value that waiting steps yield."""


class Inspection(ABC):
    """Read-only queries of queues; each method raises BrokerError."""

    @abstractmethod
    def count_messages(self, principal: Principal, name: str) -> int:
        """Return the number of messages of queue ``name`` that are counted so far."""

    @abstractmethod
    def queue_names(self, principal: Principal, kind: RoutingType | None) -> Iterator[str]:
        """Return the names of all present queues, or of one ``kind``, in no order.

        Raises a refusal at once, before the first name is read.
        """


class BrokerCore(Protocol):
    """The core as a session uses it; each method raises BrokerError when it refuses."""

    @property
    def inspection(self) -> Inspection:
        """Queries of queues."""

    @property
    def security(self) -> Identities:
        """The identities of clients."""

    @property
    def slices(self) -> Slices:
        """The scheduler of work that takes more than a turn of the loop."""

    @property
    def large(self) -> LargeMessages | None:
        """The bodies of large messages; None if they are not supported."""

    @property
    def time_ms(self) -> Callable[[], int]:
        """Milliseconds since 1970 UTC, by the clock for due and expired messages."""

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused = unheard,
    ) -> FanOut | Steps | None:
        """Route a message; ``on_stored`` follows the commit of a persistent one.

        ``on_refused`` follows instead if the store refuses this message. Unless it raises, the
        core unpins the body of a large message when it no longer needs it. Returns None, a wait
        before the sender may send more, or steps that send the message, raise as this method
        does, and must be done before the sender sends more.
        """

    def check_send(self, principal: Principal, destination: str) -> None:
        """Raise the refusal that a message to ``destination`` would meet now.

        Creates an address or queue that the message would create.
        """

    def upload(
        self,
        principal: Principal,
        destination: str,
        room: Done,
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> Upload:
        """Begin to store the body of a message for ``destination``.

        Raises the refusal that the message would meet now; see ``LargeMessages.upload``.
        """

    def check_upload(self, destination: str, size: int, missing: int) -> None:
        """Refuse a body of ``size`` bytes during its upload if the store has no room for it.

        ``missing`` bytes have not arrived; those that have are counted already.
        """

    def subscribe(
        self,
        principal: Principal,
        destination: str,
        consumer: Consumer,
        *,
        prefetch: int,
        window: int | None = None,
        durable: str | None = None,
        no_local: bool = False,
        selector: str | None = None,
    ) -> SubscriptionHandle:
        """Attach a consumer; ``prefetch`` 0 does not bound the number of unacknowledged messages.

        ``window`` bounds their bytes, if it is below the broker's own bound. ``durable`` is the
        name of a durable subscription, which is created if it does not exist; ``no_local`` skips
        messages from the same connection, or for a durable one from the same client id. With a
        ``selector`` it gets only matching messages; raises SelectorRefused for an invalid one.
        """

    def when_bound(self, done: Done) -> None:
        """Call ``done`` once all created queues are stored and survive a crash; maybe at once."""

    def wildcard_of(self, destination: str) -> str | None:
        """Return the wildcard of a destination; None if it names one address."""

    def create_temporary(self, principal: Principal, kind: RoutingType, name: str) -> str:
        """Create a temporary destination that the principal calls ``name``; return its real name.

        Anybody who knows it may send to it; only the principal consumes.
        """

    def end_temporaries(self, principal: Principal) -> None:
        """Delete the temporary destinations of a connection that has ended."""

    def browse(
        self,
        principal: Principal,
        destination: str,
        browser: Browser,
        *,
        prefetch: int,
        window: int | None = None,
        selector: str | None = None,
    ) -> SubscriptionHandle:
        """Deliver a queue's messages to a browser, as ``subscribe`` does; they stay in the queue.

        It gets the messages present at this moment; ``Browser.browsed`` follows the last one.
        """

    def end_durable(self, principal: Principal, name: str, done: Done) -> None:
        """Delete a durable subscription of the principal's client id, with its messages.

        ``done`` follows once it is deleted. Raises BrokerError if it cannot be.
        """

    def delete_queue(
        self, principal: Principal, name: str, done: Callable[[int], None], *, force: bool
    ) -> None:
        """Delete a queue, with ``force`` also one with messages or consumers.

        ``done`` gets the number of deleted messages.
        """

    def cancel_scheduled(
        self, principal: Principal, name: str, seq: int, done: Callable[[int], None]
    ) -> None:
        """Delete the scheduled message ``seq`` of queue ``name``.

        ``done`` gets 1, or 0 if the message no longer exists.
        """

    def commit(
        self,
        principal: Principal,
        work: TransactionWork,
        done: Done,
        on_refused: OnRefused = unheard,
    ) -> Steps:
        """Apply ``work`` atomically; ``done`` follows the commit, or ``on_refused`` instead.

        Only the last step changes anything, and it makes all changes.

        After a refusal its messages do not exist, and acknowledged ones are back in their queue.
        Unless it raises, the core unpins the bodies of large messages, as in ``send``.
        """
