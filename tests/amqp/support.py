"""An AMQP client without a socket, on a real core."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from orthia.broker.protocols.amqp.connection import AmqpConnection
from orthia.broker.protocols.amqp.frames import (
    AMQP_ID,
    SASL_FRAME,
    SASL_ID,
    Frame,
    FrameReader,
    ProtocolHeader,
    encode_frame,
)
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
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
    Error,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    decode_sasl,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import (
    VALUE,
    Header,
    Properties,
    application_properties_of,
    decode_body,
    encode_application_properties,
    encode_header,
    encode_properties,
    header_of,
    message_annotations_of,
    properties_of,
    sections_of,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode_described
from orthia.broker.protocols.amqp.values import Symbol, Value
from orthia.config.settings import ClientLimits
from tests.core.support import CoreUnderTest
from tests.stomp.support import SocketDouble

WINDOW = 2**31 - 1
LARGE_FRAME = 1_048_576
_Said = TypeVar("_Said")


class Received:
    """A message that the client got."""

    def __init__(self, transfer: Transfer, payload: bytes) -> None:
        self.transfer = transfer
        self.payload = payload

    @property
    def id(self) -> int:
        """Its delivery id."""
        assert self.transfer.delivery_id is not None
        return self.transfer.delivery_id

    @property
    def _head(self) -> bytes:
        return self.payload[: sections_of(self.payload).head]

    @property
    def text(self) -> Value:
        """Its body; of a binary the text that it is."""
        sections = sections_of(self.payload)
        value = decode_body(sections, self.payload[sections.head :]).value
        return value.decode() if isinstance(value, bytes) else value

    @property
    def header(self) -> Header:
        """Its header."""
        return header_of(self._head, sections_of(self._head))

    @property
    def annotations(self) -> dict[object, Value]:
        """What brokers say of it, and clients to them."""
        return message_annotations_of(self._head, sections_of(self._head))

    @property
    def properties(self) -> Properties:
        """What it says of itself."""
        return properties_of(self._head, sections_of(self._head))

    @property
    def application_properties(self) -> dict[object, Value]:
        """What its application says of it."""
        return application_properties_of(self._head, sections_of(self._head))


def encoded(
    text: str,
    *,
    header: Header | None = None,
    properties: Properties | None = None,
    application: dict[str, Value] | None = None,
    annotations: bytes = b"",
) -> bytes:
    """Return a message whose body is a text; durable unless its header says otherwise."""
    body = text.encode()
    return b"".join(
        (
            encode_header(header or Header(durable=True)),
            annotations,
            encode_properties(properties or Properties()),
            encode_application_properties(application or {}),
            text_prefix(len(body)),
            body,
        )
    )


class Client:
    """A client that says performatives and reads those that come."""

    def __init__(
        self,
        core: CoreUnderTest,
        *,
        limits: ClientLimits | None = None,
        options: AmqpOptions | None = None,
        opens: bool = True,
        has_certificate: bool = False,
        **said: Any,
    ) -> None:
        """Open a connection and begin a session on channel 0; ``said`` is of its open."""
        self.core = core
        self.written = b""
        self.total = 0
        self.left: int | None = None
        """How many bytes the socket took, if not all."""
        self.closed = False
        self.has_room = True
        self.now = 0.0
        self.waits_ended = 0
        self.socket = SocketDouble(
            core.broker,
            self._write,
            self._close,
            waited=self._waited,
            has_room=lambda: self.has_room,
            taken=lambda: self.total if self.left is None else self.left,
            has_certificate=has_certificate,
        )
        self.connection = AmqpConnection(
            core.broker,
            options or AmqpOptions(limits or ClientLimits()),
            self.socket,
            lambda: self.now,
        )
        self._frames = FrameReader(2**24)
        self._deliveries = 0
        self._handles = 20
        self.opened: Open | None = None
        self.began: Begin | None = None
        if opens:
            self.open(**said)

    def open(self, **said: Any) -> None:
        """Open the connection and begin a session on channel 0; ``said`` is of its open."""
        self.header(AMQP_ID)
        self.say(Open(**{"container_id": "client", "max_frame_size": LARGE_FRAME, **said}))
        self.opened = self.take(Open)
        self.say(Begin(None, 0, WINDOW, WINDOW))
        self.began = self.take(Begin)

    def _write(self, data: bytes) -> int:
        assert not self.closed, "written after it was closed"
        self.written += data
        self.total += len(data)
        return self.total

    def _close(self) -> None:
        self.closed = True

    def _waited(self) -> None:
        self.waits_ended += 1

    # --- bytes

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.connection.receive(data)
        self.core.settle()

    def header(self, protocol_id: int) -> None:
        """Send a protocol header, and expect the same."""
        self.send_bytes(ProtocolHeader(protocol_id).encode())
        self._frames.expect_header()
        assert self.next() == ProtocolHeader(protocol_id)

    def next(self) -> ProtocolHeader | Frame | None:
        """Return the next thing that came."""
        data, self.written = self.written, b""
        if data:
            self._frames.receive(data)
        return self._frames.next_frame()

    def say(self, said: object, payload: bytes = b"", *, channel: int = 0) -> None:
        """Say a performative."""
        self.send_bytes(encode_frame(encode_performative(said) + payload, channel))

    def say_sasl(self, said: object) -> None:
        """Say a performative of SASL."""
        self.send_bytes(encode_frame(encode_performative(said), 0, SASL_FRAME))

    def came(self) -> Iterator[tuple[object, bytes]]:
        """Yield what came since the last time: performatives, and what they carry."""
        while (frame := self.next()) is not None:
            assert isinstance(frame, Frame)
            if frame.type == SASL_FRAME:
                yield decode_sasl(frame.body), b""
            elif frame.body:
                said, end = decode_performative(frame.body)
                yield said, frame.body[end:]

    def all(self) -> list[object]:
        """Return the performatives that came."""
        return [said for said, _ in self.came()]

    def take(self, kind: type[_Said]) -> _Said:
        """Return the one performative that came, which is of a kind."""
        (said,) = self.all()
        assert isinstance(said, kind), said
        return said

    def error(self) -> Error:
        """Return why the connection was closed, which ends with it."""
        said = self.all()
        assert isinstance(said[-1], Close), said
        assert said[-1].error is not None
        assert self.closed
        assert self.connection.is_closed
        return said[-1].error

    # --- the login

    def log_in(self, mechanism: str, response: bytes | None = None) -> SaslOutcome:
        """Log in by SASL; return the outcome."""
        self.header(SASL_ID)
        self.all()
        self.say_sasl(SaslInit(Symbol(mechanism), response))
        return self.take(SaslOutcome)

    # --- links

    def attach(self, said: Attach) -> Attach:
        """Attach a link; return the answer, of a link that gives credit without that."""
        self.say(said)
        answers = [one for one in self.all() if isinstance(one, Attach)]
        assert len(answers) == 1
        return answers[0]

    def refused(self, said: Attach) -> Error:
        """Attach a link that is refused; return why."""
        self.say(said)
        attach, detach = self.all()
        assert isinstance(attach, Attach)
        assert isinstance(detach, Detach)
        assert detach.closed
        assert detach.error is not None
        self.say(Detach(said.handle, closed=True))
        return detach.error

    def sender(self, address: str | None, *, handle: int | None = None, **said: Any) -> int:
        """Attach a link by which the client sends; return its handle."""
        at = self.new_handle() if handle is None else handle
        target = said.pop("target", Target(address))
        self.attach(Attach(f"s{at}", at, SENDER, source=Source(), target=target, **said))
        return at

    def receiver(
        self, address: str, credit: int = 0, *, handle: int | None = None, **said: Any
    ) -> int:
        """Attach a link by which the client receives, and give it credit; return its handle."""
        at = self.new_handle() if handle is None else handle
        source = said.pop("source", Source(address))
        name = said.pop("name", f"r{at}")
        self.attach(Attach(name, at, RECEIVER, source=source, target=Target(), **said))
        if credit:
            self.flow(at, credit)
        return at

    def new_handle(self) -> int:
        """Return a handle that was not used."""
        self._handles += 1
        return self._handles

    def flow(self, handle: int, credit: int, *, count: int = 0, **said: Any) -> None:
        """Give a link credit, as of a delivery count."""
        self.say(Flow(0, WINDOW, 0, WINDOW, handle, count, credit, **said))

    # --- messages

    def send(
        self,
        handle: int,
        *texts: str,
        settled: bool = False,
        state: DeliveryState | None = None,
        **said: Any,
    ) -> list[int]:
        """Send messages by a link; return their delivery ids."""
        return [
            self.transfer(handle, encoded(text, **said), settled=settled, state=state)
            for text in texts
        ]

    def transfer(self, handle: int, payload: bytes, **said: Any) -> int:
        """Send a message as bytes; return its delivery id."""
        delivery_id = self._deliveries
        self._deliveries += 1
        tag = delivery_id.to_bytes(4, "big")
        self.say(Transfer(handle, delivery_id, tag, 0, **said), payload)
        return delivery_id

    def messages(self) -> list[Received]:
        """Return the messages that came, each put together of its transfers."""
        found: list[Received] = []
        is_partial = False
        for said, payload in self.came():
            if not isinstance(said, Transfer):
                continue
            if is_partial:
                found[-1].payload += payload
            else:
                found.append(Received(said, payload))
            is_partial = said.more
        assert not is_partial
        return found

    def texts(self) -> list[Value]:
        """Return the bodies of the messages that came."""
        return [one.text for one in self.messages()]

    def settle(
        self,
        *deliveries: Received,
        state: DeliveryState = ACCEPTED,
        settled: bool = True,
    ) -> None:
        """Say an outcome of messages, each by itself."""
        for one in deliveries:
            self.say(Disposition(RECEIVER, one.id, settled=settled, state=state))

    def outcomes(self) -> list[Disposition]:
        """Return the dispositions that came."""
        return [one for one in self.all() if isinstance(one, Disposition)]

    def states(self) -> list[DeliveryState | None]:
        """Return what they say of each delivery, in order."""
        found: list[DeliveryState | None] = []
        for one in self.outcomes():
            last = one.first if one.last is None else one.last
            found += [one.state] * (last - one.first + 1)
        return found

    # --- transactions

    def coordinator(self) -> int:
        """Attach a link to the coordinator; return its handle."""
        return self.sender(None, target=Coordinator())

    def declare(self, handle: int) -> bytes:
        """Begin a transaction; return its id."""
        self.transfer(handle, encode_described(VALUE, encode_performative(Declare())))
        (state,) = self.states()
        assert isinstance(state, Declared)
        return state.txn_id

    def discharge(self, handle: int, txn_id: bytes, *, fail: bool = False) -> None:
        """End a transaction."""
        said = encode_performative(Discharge(txn_id, fail))
        self.transfer(handle, encode_described(VALUE, said))


def accepted(states: Sequence[DeliveryState | None]) -> int:
    """Return how many of these are accepted; all are."""
    assert set(states) <= {ACCEPTED}
    return len(states)
