"""What a client's session and the broker's core ask of each other; one thread, nothing blocks."""

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
    """Calls back when it was called so often: some of it is done at once, and some is stored."""

    __slots__ = ("_left", "_then")

    def __init__(self, times: int, then: Done) -> None:
        self._left = times
        self._then = then

    def __call__(self) -> None:
        """Note that one thing more is done."""
        self._left -= 1
        if not self._left:
            self._then()


OnRefused = Callable[[OrthiaError, Done | None], None]
"""Gets the reason why what was asked for is not done, and nothing of it; and the callback that
would have been called if it had been, which is called no more."""


def unheard(reason: OrthiaError, done: Done | None) -> None:
    """Tell nobody: the journal's log has the ``reason``, and what was refused."""
    del reason, done


class OutgoingMessage(NamedTuple):
    """A message as the core takes it."""

    head: bytes
    """What the sender's protocol says of it, as it came, of the ``encoding`` below."""
    body: bytes
    persistent: bool
    expires_ms: int
    priority: int
    large: LargeBody | None = None
    """The body of a large message, pinned; ``body`` is empty then."""
    encoding: int = FIRST_ENCODING
    """A tag of ``orthia.journal.model.encodings``."""
    stated: bytes = b""
    """Fields that the head does not say; see ``Message.stated``."""
    duplicate_id: str | None = None
    """By which the message is known if it is sent a second time."""


class MessageReference:
    """A message in a queue: what is delivered, acknowledged or given back."""

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
        """Its place in the order of the queue; also its message id."""
        self.record = record
        self.location = location
        """Where the journal keeps it; None for a message that is in memory only."""
        self.size = size
        """Bytes it counts for in memory."""
        self.redelivered = redelivered
        """True if it may have been delivered before."""
        self.attempts = 0
        """How often its delivery failed, as far as this node knows."""
        self.shared: dict[object, bytes] | None = None
        """What is written alike to all who get a topic's message, by the protocol that does."""
        self.written_at = 0
        """How many bytes were written to the connection that has it before this message."""


class Consumer(Protocol):
    """A subscription's end in the session."""

    @property
    def connection(self) -> object:
        """Whose it is: the same for all consumers of one client."""

    @property
    def principal(self) -> Principal:
        """Whom its client acts for."""

    @property
    def is_writable(self) -> bool:
        """False while its client is behind; ``Subscription.resume`` follows when it is not."""

    def deliver(self, reference: MessageReference) -> None:
        """Hand a message to the client."""

    def holds(self, change: int) -> None:
        """Note that the core keeps so many bytes more, or fewer, until the client acknowledges."""

    def fail(self, reason: str) -> None:
        """End the connection: the client cannot keep up."""


class Browser(Consumer, Protocol):
    """A consumer that is shown messages, which stay where they are."""

    def browsed(self) -> None:
        """Note that there is nothing more to show."""


class SubscriptionHandle(Protocol):
    """A subscription's end in the core."""

    @property
    def routing_type(self) -> RoutingType:
        """What messages have been sent as that do not say so themselves."""

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Delete delivered messages; ``done`` follows the commit."""

    def reject(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Give delivered messages back after a failed attempt; ``done`` once that is stored."""

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Free the credit of delivered messages: a transaction holds them, until its end."""

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``: the transaction was aborted."""

    def deletes(self, references: Sequence[MessageReference]) -> list[MessageLocation]:
        """Return what the journal is to delete of messages that a transaction acknowledges.

        Raises AcknowledgementRefused if they went back to their queue meanwhile.
        """

    def settle(
        self, references: Sequence[MessageReference], *, rejected: bool = False
    ) -> "Settlement":
        """Have what is set aside leave with its transaction, acknowledged or ``rejected``."""

    def resume(self) -> None:
        """Go on delivering: the consumer is writable again, or has credit."""

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """End the subscription; what was delivered and not acknowledged goes back in its place.

        Of the ``attempted`` that counts as a delivery in vain.
        """


class Settlement(ABC):
    """What a transaction did with delivered messages; one of the two is called, once."""

    __slots__ = ()

    @abstractmethod
    def committed(self, done: Done) -> None:
        """Have it stand; ``done`` follows once all that comes of it is stored."""

    @abstractmethod
    def suspend(self) -> None:
        """Have nothing delivered of what the messages came from, until ``refused`` was called."""

    @abstractmethod
    def refused(self, *, in_vain: bool) -> None:
        """Undo it, and deliver the messages again; ``in_vain`` if that was a failed attempt.

        After ``suspend``.
        """


@dataclass
class TransactionWork:
    """What a client's transaction holds until its commit; messages it has are set aside."""

    sends: list[tuple[str, OutgoingMessage]] = field(default_factory=list)
    acknowledgements: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    rejections: dict[SubscriptionHandle, list[MessageReference]] = field(default_factory=dict)
    entries: int = 0
    """How many messages it sends, acknowledges and rejects."""
    size: int = 0
    """Bytes it counts for in memory."""
    aside: int = 0
    """How much of ``size`` are messages it acknowledges."""
    checked: set[str] = field(default_factory=set)
    """Destinations that were not refused when the client sent to them."""
    is_refused: bool = False
    """Whether its commit was refused."""


class FanOut(Protocol):
    """What was sent to a topic up to a moment, to whoever sends more."""

    @property
    def is_behind(self) -> bool:
        """Whether the topic's subscribers do not have all of it, or its address has no room."""

    @property
    def rest(self) -> bool | Wait:
        """What steps yield that wait for it."""


class Inspection(ABC):
    """What is asked about queues and changes nothing; each method raises BrokerError."""

    @abstractmethod
    def count_messages(self, principal: Principal, name: str) -> int:
        """Return how many messages queue ``name`` has, as far as they are counted yet."""

    @abstractmethod
    def queue_names(self, principal: Principal, kind: RoutingType | None) -> Iterator[str]:
        """Return the names of the queues there are now, or of those of one ``kind``, in no order.

        What refuses it does so before the first of them is asked for.
        """


class BrokerCore(Protocol):
    """What a session needs; each method raises BrokerError when it refuses."""

    @property
    def inspection(self) -> Inspection:
        """What is known of queues."""

    @property
    def security(self) -> Identities:
        """Who clients are."""

    @property
    def slices(self) -> Slices:
        """Where work goes on that takes more than a turn of the loop."""

    @property
    def large(self) -> LargeMessages | None:
        """The bodies of large messages; None where there are none."""

    @property
    def time_ms(self) -> Callable[[], int]:
        """Milliseconds since 1970 UTC, by the clock that messages are due and expire by."""

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused = unheard,
    ) -> FanOut | Steps | None:
        """Route a message; ``on_stored`` follows the commit of a persistent one.

        Or ``on_refused``, if the store takes other messages and not this. Unless it raises, the
        core unpins the body of a large one when it needs it no more. Returns what the sender is
        to wait for before it sends more, if there is anything; or steps, which are to be done
        before it sends more, send it, and raise what this does.
        """

    def check_send(self, principal: Principal, destination: str) -> None:
        """Refuse now what would refuse a message to ``destination`` as things are.

        An address or queue that the message would create is created.
        """

    def upload(
        self,
        principal: Principal,
        destination: str,
        room: Done,
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> Upload:
        """Begin to store the body of a message that is to be sent to ``destination``.

        What would refuse the message as it is now refuses it here; see ``LargeMessages.upload``.
        """

    def check_upload(self, destination: str, size: int, missing: int) -> None:
        """Refuse a body on its way, of ``size`` bytes, if the store has no room for it.

        Of them ``missing`` have not come; those that have are counted.
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
        """Attach a consumer; ``prefetch`` 0 leaves the number of unacknowledged unbounded.

        ``window`` bounds their bytes, where that is less than the broker's own bound. ``durable``
        is the name of a durable subscription, which is made if it is not there; ``no_local`` leaves
        out what the connection itself sends, or for a durable one the client id. With a
        ``selector`` it gets the messages that match; SelectorRefused says what is wrong with it.
        """

    def when_bound(self, done: Done) -> None:
        """Call ``done`` once all queues that were created are stored: a crash leaves them there.

        At once if that is so already.
        """

    def wildcard_of(self, destination: str) -> str | None:
        """Return the wildcard that a destination names; None if it names one address."""

    def create_temporary(self, principal: Principal, kind: RoutingType, name: str) -> str:
        """Return the destination of a new one of the principal's own, which it calls ``name``.

        Anybody may send there who is told of it; it alone consumes.
        """

    def end_temporaries(self, principal: Principal) -> None:
        """End what ``create_temporary`` gave: the connection is over."""

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
        """Show a queue's messages to a browser, as ``subscribe`` says; they stay where they are.

        Those that are there at this moment: ``Browser.browsed`` follows the last.
        """

    def end_durable(self, principal: Principal, name: str, done: Done) -> None:
        """Delete a durable subscription of the principal's client id, with its messages.

        ``done`` follows, once it is gone. Raises BrokerError if it stays.
        """

    def delete_queue(
        self, principal: Principal, name: str, done: Callable[[int], None], *, force: bool
    ) -> None:
        """Delete a queue, ``force`` also with messages and consumers; ``done`` gets how many."""

    def cancel_scheduled(
        self, principal: Principal, name: str, seq: int, done: Callable[[int], None]
    ) -> None:
        """Delete a message of queue ``name`` that is to be delivered later; ``done`` gets 1.

        Or 0 if there is none with this ``seq`` any more.
        """

    def commit(
        self,
        principal: Principal,
        work: TransactionWork,
        done: Done,
        on_refused: OnRefused = unheard,
    ) -> Steps:
        """Do all of ``work`` or nothing; ``done`` follows the commit, or ``on_refused`` instead.

        Nothing is done before the last step, which does all of it.

        When refused, its messages are nowhere, and what it acknowledged is back in its queue.
        Unless it raises, the core unpins the bodies of large messages, as in ``send``.
        """
