"""A small AMQP client on a socket, of the frames and performatives that the broker has.

One session with any number of links; one thread, and a socket that never blocks. It says what is to
be said when ``exchange`` is called, and returns the messages and outcomes that have come.
"""

import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from orthia.broker.protocols.amqp.frames import (
    AMQP_ID,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_ID,
    Frame,
    FrameReader,
    ProtocolHeader,
    encode_frame,
)
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    decode_sasl,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import VALUE, Header, encode_header, text_prefix
from orthia.broker.protocols.amqp.types import encode_described
from orthia.broker.protocols.amqp.values import AmqpError, Symbol
from orthia.config.errors import OrthiaError

_READ_BYTES: Final = 262_144
_WINDOW: Final = 2**31 - 1
_MAX_FRAME_BYTES: Final = 65_536
_TRANSFER_BYTES: Final = 128
"""What a transfer may need beside what it carries, with a transaction's id."""
_SILENT_TIMES: Final = 2.5
_MASK: Final = 0xFFFFFFFF
_PATIENCE_SECONDS: Final = 30.0
_Kind = TypeVar("_Kind")


class Lost(OrthiaError):  # noqa: N818 - named for the state
    """The connection is over, or the node refused what was asked for."""


class Refused(Lost):
    """The node ended the connection, the session or a link with an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(f"{error.condition}: {error.description}")
        self.condition = error.condition


@dataclass(frozen=True)
class Delivery:
    """A message that came, whole."""

    handle: int
    id: int
    payload: bytes


@dataclass(frozen=True)
class Outcome:
    """What the node says of one delivery, and settles."""

    of_ours: bool
    """Whether this client sent the message; else it acknowledged it."""
    id: int
    """The delivery's."""
    state: DeliveryState | None


Event = Delivery | Outcome


@dataclass
class _Link:
    said: Attach
    is_attached: bool = False
    credit: int = 0
    count: int = 0
    """Deliveries so far."""
    prefetch: int = 0
    ended: Detach | None = None
    partial_id: int = 0
    """The delivery of which some has come."""
    parts: list[bytes] = field(default_factory=list)


class AmqpConnection:
    """One connection with one session. Every method may raise Lost."""

    def __init__(self, channel: socket.socket, timeout_seconds: float) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._timeout_seconds = timeout_seconds
        self._frames = FrameReader(2**24)
        self._outgoing = bytearray()
        self._waiting: deque[bytes] = deque()
        """Transfers for which the session has no window."""
        self._window = 0
        self._next_outgoing_id = 0
        self._next_incoming_id = 0
        self._delivery_ids = itertools.count()
        self._handles = itertools.count()
        self._links: dict[int, _Link] = {}
        self._theirs: dict[int, _Link] = {}
        """By the node's handle."""
        self._came: list[object] = []
        self._events: list[Event] = []
        self._heard_at = self._spoke_at = time.monotonic()
        self._silence_allowed_seconds: float | None = None
        self._speak_seconds: float | None = None
        self._most = 512

    @classmethod
    def open(
        cls,
        port: int,
        container_id: str,
        *,
        timeout_seconds: float = _PATIENCE_SECONDS,
        idle_ms: int | None = None,
        login: tuple[str, str] | None = None,
    ) -> "AmqpConnection":
        """Connect, log in and begin a session; a node silent for ``idle_ms`` is lost.

        Each answer may take ``timeout_seconds`` until then. Afterwards it may take as long as a
        commit of a busy database. The login is a user and a password; None is ANONYMOUS.
        """
        try:
            channel = socket.create_connection(("127.0.0.1", port), timeout_seconds)
        except OSError as error:
            raise Lost(f"port {port}: {error}") from error
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cls(channel, timeout_seconds)
        try:
            connection._begin(container_id, idle_ms, login)
            connection._timeout_seconds = _PATIENCE_SECONDS
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, container_id: str, idle_ms: int | None, login: tuple[str, str] | None) -> None:
        self._outgoing += ProtocolHeader(SASL_ID).encode()
        self._await(SaslMechanisms)
        if login is None:
            said = SaslInit(Symbol("ANONYMOUS"))
        else:
            said = SaslInit(Symbol("PLAIN"), "\0".join(("", *login)).encode())
        self._outgoing += encode_frame(encode_performative(said), 0, SASL_FRAME)
        outcome = self._await(SaslOutcome)
        if outcome.code:
            raise Lost(f"the login failed with {outcome.code}")
        self._frames.expect_header()
        self._outgoing += ProtocolHeader(AMQP_ID).encode()
        self._say(Open(container_id, None, _MAX_FRAME_BYTES, 0, idle_ms))
        opened = self._await(Open)
        self._most = min(opened.max_frame_size, _MAX_FRAME_BYTES) - _TRANSFER_BYTES
        if opened.idle_time_out:
            self._speak_seconds = opened.idle_time_out / 2_000
        if idle_ms is not None:
            self._silence_allowed_seconds = _SILENT_TIMES * idle_ms / 1000
        self._say(Begin(None, 0, _WINDOW, _WINDOW))
        began = self._await(Begin)
        self._next_incoming_id = began.next_outgoing_id
        self._window = began.incoming_window

    # --- links

    def sender(self, target: str | Coordinator) -> int:
        """Attach a link to an address, or to the coordinator, to send by; return its handle."""
        where = Target(target) if isinstance(target, str) else target
        number = next(self._handles)
        said = Attach(
            *(f"sender-{number}", number, SENDER),
            source=Source(),
            target=where,
            initial_delivery_count=0,
        )
        return self._attach(said)

    def receiver(self, source: Source | str, prefetch: int, name: str | None = None) -> int:
        """Attach a link that has so many messages on their way at most; return its handle."""
        return self.wait_receiver(self.ask_for_receiver(source, name), prefetch)

    def ask_for_receiver(self, source: Source | str, name: str | None = None) -> int:
        """Ask for a link to receive by, and return its handle; ``wait_receiver`` follows."""
        where = Source(source) if isinstance(source, str) else source
        number = next(self._handles)
        said = Attach(name or f"receiver-{number}", number, RECEIVER, source=where, target=Target())
        return self._ask_to_attach(said)

    def is_attached(self, handle: int) -> bool:
        """Return whether the node has answered that a link is there."""
        return self._links[handle].is_attached

    def wait_receiver(self, handle: int, prefetch: int) -> int:
        """Wait until it is there, and have so many messages on their way; return its handle."""
        link = self._links[handle]
        self._wait(lambda: link.is_attached)
        link.prefetch = prefetch
        self._give_credit(handle, link)
        return handle

    def _attach(self, said: Attach) -> int:
        """Attach a link to send by, and wait for credit; return its handle."""
        link = self._links[self._ask_to_attach(said)]
        self._wait(lambda: link.is_attached and link.credit > 0)
        return said.handle

    def _ask_to_attach(self, said: Attach) -> int:
        self._links[said.handle] = _Link(said)
        self._say(said)
        return said.handle

    def detach(self, handle: int, *, closed: bool) -> None:
        """End a link, for good or until its subscription is attached to again."""
        self.ask_to_detach(handle, closed=closed)
        self.wait_detached(handle)

    def ask_to_detach(self, handle: int, *, closed: bool) -> None:
        """Ask for a link's end; ``wait_detached`` follows."""
        self._say(Detach(handle, closed))

    def is_detached(self, handle: int) -> bool:
        """Return whether the node has answered that it ended a link."""
        return self._links[handle].ended is not None

    def wait_detached(self, handle: int) -> None:
        """Wait until it has."""
        self._wait(lambda: self.is_detached(handle))
        del self._links[handle]

    def credit(self, handle: int) -> int:
        """Return how many messages may be sent by a link now."""
        return self._links[handle].credit

    def _give_credit(self, handle: int, link: _Link) -> None:
        link.credit = link.prefetch
        self._say(Flow(*self._windows(), handle, link.count, link.credit))

    def _windows(self) -> tuple[int, int, int, int]:
        return (self._next_incoming_id, _WINDOW, self._next_outgoing_id, _WINDOW)

    # --- messages

    def send(
        self,
        handle: int,
        payload: bytes,
        state: DeliveryState | None = None,
        *,
        settled: bool = False,
    ) -> int:
        """Send a message; return its delivery id. There must be credit."""
        delivery_id, transfers = self.transfers(handle, payload, state, settled=settled)
        self._waiting.extend(transfers)
        self._write_waiting()
        return delivery_id

    def transfers(
        self,
        handle: int,
        payload: bytes,
        state: DeliveryState | None = None,
        *,
        settled: bool = False,
    ) -> tuple[int, list[bytes]]:
        """Return the delivery id of a message to send, and its transfers, for ``send_on``."""
        link = self._links[handle]
        link.credit -= 1
        link.count += 1
        delivery_id = next(self._delivery_ids)
        pieces = [payload[at : at + self._most] for at in range(0, len(payload), self._most)]
        transfers = []
        for number, piece in enumerate(pieces):
            more = number < len(pieces) - 1
            said = Transfer(handle, more=more)
            if not number:
                tag = delivery_id.to_bytes(4, "big")
                said = Transfer(handle, delivery_id, tag, 0, settled, more, state=state)
            transfers.append(encode_frame(encode_performative(said) + piece))
        return delivery_id, transfers

    def send_on(self, transfer: bytes) -> None:
        """Send the next transfer of a message."""
        self._waiting.append(transfer)
        self._write_waiting()

    def settle(
        self,
        first: int,
        last: int | None = None,
        state: DeliveryState = ACCEPTED,
        *,
        settled: bool = False,
    ) -> None:
        """Say an outcome of deliveries; the node confirms it unless it is ``settled`` at once."""
        self._say(Disposition(RECEIVER, first, last, settled, state))

    def _write_waiting(self) -> None:
        while self._waiting and self._window > 0:
            self._outgoing += self._waiting.popleft()
            self._window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK

    # --- transactions

    def declare(self, coordinator: int) -> bytes:
        """Begin a transaction; return its id."""
        state = self._ask(coordinator, Declare())
        if not isinstance(state, Declared):
            raise Lost(f"declare: {state}")
        return state.txn_id

    def discharge(self, coordinator: int, txn_id: bytes, *, fail: bool = False) -> bool:
        """Commit a transaction, or roll it back if ``fail``; return whether that was done."""
        return isinstance(self._ask(coordinator, Discharge(txn_id, fail)), Accepted)

    def _ask(self, coordinator: int, said: Declare | Discharge) -> DeliveryState | None:
        asked = self.send(coordinator, encode_described(VALUE, encode_performative(said)))
        found: list[Outcome] = []

        def is_answered() -> bool:
            found.extend(
                one
                for one in self._events
                if isinstance(one, Outcome) and one.of_ours and one.id == asked
            )
            return bool(found)

        self._wait(is_answered)
        self._events.remove(found[0])
        return found[0].state

    # --- what comes

    def exchange(self, timeout_seconds: float) -> list[Event]:
        """Write what waits, wait for something to come, and return what came since last time.

        Whoever has got messages may have others: so no more of them wait than were asked for.
        """
        if not self._events:
            self._exchange(timeout_seconds)
        events, self._events = self._events, []
        for handle in {one.handle for one in events if isinstance(one, Delivery)}:
            link = self._links.get(handle)
            if link is not None and link.credit <= link.prefetch // 2:
                self._give_credit(handle, link)
        return events

    def _exchange(self, timeout_seconds: float) -> None:
        try:
            self._flush()
            writable = [self._channel] if self._outgoing else []
            ready, _, _ = select.select([self._channel], writable, [], max(0.0, timeout_seconds))
            self._flush()
            if ready:
                self._read()
        except OSError as error:
            raise Lost(str(error)) from error
        now = time.monotonic()
        allowed = self._silence_allowed_seconds
        if allowed is not None and now - self._heard_at > allowed:
            raise Lost(f"the node was silent for {now - self._heard_at:.1f} s")
        if self._speak_seconds is not None and now - self._spoke_at > self._speak_seconds:
            self._outgoing += EMPTY_FRAME

    def _flush(self) -> None:
        if self._outgoing:
            self._spoke_at = time.monotonic()
            try:
                del self._outgoing[: self._channel.send(self._outgoing)]
            except BlockingIOError:
                return  # the socket is full; select tells when it is not

    def _read(self) -> None:
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise Lost("closed by the node")
        self._heard_at = time.monotonic()
        try:
            self._frames.receive(data)
            while (frame := self._frames.next_frame()) is not None:
                self._take(frame)
        except AmqpError as error:
            raise AssertionError(f"the node sent what is no AMQP: {error}") from error

    def _take(self, frame: ProtocolHeader | Frame) -> None:
        if isinstance(frame, ProtocolHeader):
            return
        if frame.type == SASL_FRAME:
            self._came.append(decode_sasl(frame.body))
        elif frame.body:
            said, end = decode_performative(frame.body)
            self._hear(said, frame.body[end:])

    def _hear(self, said: object, payload: bytes) -> None:
        match said:
            case Attach():
                link = next(one for one in self._links.values() if one.said.name == said.name)
                self._theirs[said.handle] = link
                link.is_attached = True
            case Flow():
                self._take_flow(said)
            case Transfer():
                self._take_transfer(said, payload)
            case Disposition():
                last = said.first if said.last is None else said.last
                of_ours = said.role is RECEIVER
                self._events += [
                    Outcome(of_ours, one, said.state) for one in range(said.first, last + 1)
                ]
            case Detach():
                self._theirs[said.handle].ended = said
                if said.error is not None:
                    raise Refused(said.error)
            case End() | Close():
                raise Lost("ended by the node") if said.error is None else Refused(said.error)
            case _:
                self._came.append(said)

    def _take_flow(self, said: Flow) -> None:
        on_their_way = (self._next_outgoing_id - (said.next_incoming_id or 0)) & _MASK
        self._window = said.incoming_window - on_their_way
        self._write_waiting()
        if said.handle is None:
            return
        link = self._theirs[said.handle]
        if link.said.role is SENDER and said.link_credit is not None:
            on_their_way = (link.count - (said.delivery_count or 0)) & _MASK
            link.credit = said.link_credit - on_their_way

    def _take_transfer(self, said: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & _MASK
        link = self._theirs[said.handle]
        if not link.parts:
            assert said.delivery_id is not None
            link.partial_id = said.delivery_id
            link.count = (link.count + 1) & _MASK
            link.credit -= 1
        link.parts.append(payload)
        if not said.more:
            parts, link.parts = link.parts, []
            if not said.aborted:
                whole = Delivery(link.said.handle, link.partial_id, b"".join(parts))
                self._events.append(whole)

    # --- waiting

    def _say(self, said: object) -> None:
        self._outgoing += encode_frame(encode_performative(said))

    def _await(self, kind: type[_Kind]) -> _Kind:
        """Return the next performative, which is of a kind."""
        self._wait(lambda: bool(self._came))
        said: Any = self._came.pop(0)
        if not isinstance(said, kind):
            raise Lost(f"expected {kind.__name__}, found {said}")
        return said

    def _wait(self, is_done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + self._timeout_seconds
        while not is_done():
            left = give_up - time.monotonic()
            if left <= 0:
                raise Lost(f"no answer in {self._timeout_seconds:g} s")
            self._exchange(min(left, 0.2))

    def close(self) -> None:
        """Close the socket without a word."""
        self._channel.close()


def send_all(connection: AmqpConnection, address: str, texts: Sequence[str]) -> None:
    """Send durable messages of these texts; return once each is accepted."""
    link = connection.sender(address)
    waiting: set[int] = set()
    for text in texts:
        body = text.encode()
        head = encode_header(Header(durable=True)) + text_prefix(len(body))
        waiting.add(connection.send(link, head + body))
    while waiting:
        for event in connection.exchange(0.2):
            if isinstance(event, Outcome):
                assert isinstance(event.state, Accepted), event
                waiting.remove(event.id)
