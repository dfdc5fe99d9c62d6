"""What a protocol and a connection ask of each other.

A *connection* owns a socket: it reads bytes, writes bytes, encrypts, keeps time, counts what its
client makes the broker hold, and admits or ends clients. A *protocol* gives those bytes a meaning:
it calls the core, and knows no socket. All calls are made on the thread of the event loop, and none
of them blocks.

A protocol raises nothing to its connection for what a client did: it tells the client in its own
way, calls ``Socket.refused`` and ``Socket.close``. Whatever else it raises ends the connection.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from orthia.broker.core.api import OpenTransaction
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import BrokerError, Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Usage

Answered = Callable[[Principal | BrokerError], None]
"""Receives the outcome of a login that is answered later."""
UNAUTHENTICATED_BYTES = 16_384
"""Bytes that a client may send in one piece before it has logged in."""


class Socket(ABC):
    """The socket side of a connection, as its protocol sees it."""

    __slots__ = ()

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """How much of the loop's time its client had lately: for the tasks of the protocol."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Write a whole frame; return how many bytes were given to the socket so far.

        Never raises, and writes nothing once the connection is over.
        """

    @abstractmethod
    def write_part(self, data: bytes) -> int:
        """Write a part of a frame that is not its last; return what ``write`` returns."""

    @abstractmethod
    def before_flush(self, write: Callable[[], None]) -> None:
        """Call ``write`` once when what was written goes out, in the next turn of the loop.

        It is for a frame that says something of all that happened until then.
        """

    @abstractmethod
    def close(self) -> None:
        """Send what was written, then end the connection; the protocol writes nothing more."""

    @abstractmethod
    def authenticate(
        self, login: str | None, passcode: str | None, answered: Answered
    ) -> Principal | None:
        """Return whose login this is; or None, and call ``answered`` once it is known.

        Raises BrokerError if the login is refused at once.
        """

    @property
    @abstractmethod
    def has_certificate(self) -> bool:
        """Whether the client has shown a certificate that was verified."""

    @abstractmethod
    def has_room(self) -> bool:
        """Return whether there is memory for another delivery.

        Where there is none, ``ProtocolConnection.set_writable`` is called once there is.
        """

    @abstractmethod
    def bytes_taken(self) -> int:
        """Return how many of the bytes written the operating system took, at least."""

    @abstractmethod
    def wait_ended(self) -> None:
        """Look again whether the client is to be read from: ``is_waiting`` may be over."""

    @abstractmethod
    def refused(self, kind: Refusal, reason: str) -> None:
        """Log and count what the client did wrong."""


class ProtocolConnection(ABC):
    """A protocol's side of one connection."""

    __slots__ = ()

    # --- bytes in

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Take bytes from the client, in whatever pieces they come."""

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether the client is not to be read from for now.

        When that ends by itself, the protocol calls ``Socket.wait_ended``.
        """

    @abstractmethod
    def choose_subprotocol(self, name: str) -> None:
        """Note, before any byte, the sub-protocol that a WebSocket was opened for."""

    # --- bytes out

    @abstractmethod
    def set_writable(self, *, writable: bool) -> None:
        """Stop deliveries while the socket takes no more, and resume them when it does."""

    # --- time

    @abstractmethod
    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        """Send a due heart-beat; end a client that was silent for too long.

        ``now`` is the monotonic clock in seconds. A client with ``is_read`` false is not read from
        and so not silent. ``paused`` is how many seconds before ``now`` this process stood still.
        """

    # --- what the client makes the broker hold

    @property
    @abstractmethod
    def held(self) -> int:
        """Bytes held for the client, unacknowledged deliveries included."""

    @property
    @abstractmethod
    def sent(self) -> int:
        """The part of ``held`` that the client sent, which grows by its own doing only."""

    @property
    @abstractmethod
    def released(self) -> int:
        """Bytes of deliveries that the client acknowledged or gave back so far."""

    @abstractmethod
    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Return the client's transactions that it did not commit or abort yet."""

    # --- the end

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the connection is over."""

    @property
    @abstractmethod
    def was_disconnected(self) -> bool:
        """Whether it is over in good order, because the client asked for it."""

    @abstractmethod
    def connection_lost(self) -> None:
        """End the connection: the socket is gone. What was not acknowledged goes back."""

    @abstractmethod
    def release(self) -> None:
        """Let go of what refers back to this, after ``connection_lost``: nobody asks it more.

        So that no client that is gone waits for the collector of garbage, with what it held.
        """

    @abstractmethod
    def shut_down(self, reason: str) -> None:
        """Tell the client ``reason`` as its error, and end; the caller logs it."""

    @abstractmethod
    def go_away(self) -> None:
        """Send what is written, and end without a word, as a node does that stops."""

    @abstractmethod
    def farewell(self, reason: str) -> bytes:
        """Return the bytes that tell a client why it is not served; they are the last it gets."""


class ServedProtocol(ABC):
    """A protocol as one acceptor serves it, with the options of that acceptor."""

    __slots__ = ()

    @property
    @abstractmethod
    def versions(self) -> str:
        """Its name and versions, for errors: "STOMP 1.0, 1.1 or 1.2"."""

    @property
    @abstractmethod
    def greeting(self) -> bytes:
        """The bytes with which each of its clients begins; empty if there are none such."""

    @property
    @abstractmethod
    def subprotocols(self) -> Sequence[str]:
        """Its registered names for a WebSocket, the most wanted last."""

    @abstractmethod
    def connect(self, core: Broker, socket: Socket) -> ProtocolConnection:
        """Begin a connection."""
