"""The node's end of a WebSocket without a socket, against wsproto's end of a client."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from orthia.broker.connections.upgrade import MAX_HEAD_BYTES
from orthia.broker.connections.websocket import SLICE_FRAMES, Code, End, WebSocket
from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.stomp.options import SUBPROTOCOLS
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.settings import AcceptorSettings
from tests.websocket.test_upgrade import head

LIMIT = 1_024
MASK = b"\x01\x02\x03\x04"


@dataclass
class Ends:
    """Both ends, and what the node's took so far."""

    limit: int = LIMIT
    encoder_type: str | None = None
    node: WebSocket = field(init=False)
    client: Connection = field(init=False)
    stomp: bytes = b""
    answers: bytes = b""
    end: End | None = None

    def __post_init__(self) -> None:
        settings = AcceptorWebSocket(self.limit, self.encoder_type)
        acceptor = AcceptorSettings("stomp", "127.0.0.1", 1, web_socket=settings)
        self.node = WebSocket(acceptor, "127.0.0.1", tuple(SUBPROTOCOLS))
        self.client = Connection(ConnectionType.CLIENT)

    def open(self) -> "Ends":
        """Ask for the upgrade and get it."""
        self.give(head())
        assert self.answers.startswith(b"HTTP/1.1 101 ")
        self.answers = b""
        return self

    def give(self, data: bytes) -> None:
        """Have the node take ``data``."""
        self.node.put(data)
        while (taken := self.node.take()) is not None:
            self.stomp += taken.data
            self.answers += taken.answer
            if taken.end is not None:
                assert self.end is None
                self.end = taken.end

    def send(self, *events: Event) -> None:
        """Have the client send ``events``."""
        for event in events:
            self.give(self.client.send(event))

    def read(self, data: bytes) -> list[Event]:
        """Return what the client makes of ``data``."""
        self.client.receive_data(data)
        return list(self.client.events())


def frame(first: int, payload: bytes, *, length: int | None = None, mask: bool = True) -> bytes:
    """Return a frame as it is on the wire, whether it is right or not."""
    size = len(payload) if length is None else length
    bit = 0x80 if mask else 0
    if size < 126:
        header = struct.pack("!BB", first, bit | size)
    elif size < 65_536:
        header = struct.pack("!BBH", first, bit | 126, size)
    else:
        header = struct.pack("!BBQ", first, bit | 127, size)
    if not mask:
        return header + payload
    masked = bytes(one ^ MASK[at % 4] for at, one in enumerate(payload))
    return header + MASK + masked


def cut(data: bytes, at: list[int]) -> Iterator[bytes]:
    """Yield ``data`` in pieces."""
    places = sorted({one % (len(data) + 1) for one in at})
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        yield data[start:end]


_CUTS = st.lists(st.integers(0, 10_000), max_size=8)
_MESSAGES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(max_size=300).map(lambda one: one.encode())),
        st.tuples(st.just("bytes"), st.binary(max_size=300)),
        st.tuples(st.just("ping"), st.binary(max_size=125)),
        st.tuples(st.just("pong"), st.binary(max_size=125)),
    ),
    max_size=12,
)


@given(_MESSAGES, st.lists(st.integers(0, 300), max_size=4), _CUTS)
def test_whatever_messages_carry_arrives_in_order(
    messages: list[tuple[str, bytes]], fragments: list[int], cuts: list[int]
) -> None:
    """Cut into fragments with pings between them, and into whatever the network makes of it."""
    ends = Ends().open()
    wire = b""
    pings = []
    for kind, data in messages:
        if kind == "ping":
            pings.append(data)
            wire += ends.client.send(Ping(data))
        elif kind == "pong":
            wire += ends.client.send(Pong(data))
        else:
            first = 0x01 if kind == "text" else 0x02
            pieces = list(cut(data, fragments))
            for number, piece in enumerate(pieces):
                opcode = 0 if number else first
                fin = 0x80 if number == len(pieces) - 1 else 0
                wire += frame(fin | opcode, piece) + frame(0x89, b"amid")
                pings.append(b"amid")
    for piece in cut(wire, cuts):
        ends.give(piece)
    assert ends.end is None
    assert ends.stomp == b"".join(data for kind, data in messages if kind in ("text", "bytes"))
    assert ends.read(ends.answers) == [Pong(one) for one in pings]
    assert ends.node.held == 0


@given(
    st.booleans(),
    st.lists(st.one_of(st.binary(max_size=5_000), st.text(max_size=2_000).map(str.encode))),
)
def test_each_frame_of_stomp_is_a_message(in_text: bool, frames: list[bytes]) -> None:
    """Text to who sends text, where it is text; no frame of it is longer than the limit."""
    ends = Ends().open()
    ends.send(TextMessage("\n") if in_text else BytesMessage(b"\n"))
    for data in frames:
        wire = ends.node.frame(data)
        events = ends.read(wire)
        assert [one.message_finished for one in events] == (  # type: ignore[attr-defined]
            [False] * (len(events) - 1) + [True]
        )
        parts = [one.data for one in events if isinstance(one, TextMessage | BytesMessage)]
        raw = [one.encode() if isinstance(one, str) else bytes(one) for one in parts]
        assert all(len(one) <= LIMIT for one in raw)
        assert b"".join(raw) == data
        try:
            data.decode()
            is_text = in_text
        except UnicodeDecodeError:
            is_text = False
        assert {type(one) for one in events} == {TextMessage if is_text else BytesMessage}


@given(st.binary(max_size=400), _CUTS)
def test_any_bytes_are_taken_or_refused(data: bytes, cuts: list[int]) -> None:
    """With a code of RFC 6455, once; nothing is held then, and nothing more is taken."""
    ends = Ends().open()
    for piece in cut(data, cuts):
        ends.give(piece)
    assert ends.node.held == 0
    if ends.end is None:
        return
    if ends.end.kind is not None:
        assert ends.end.code in (1002, 1007, 1009)
    taken = ends.stomp
    ends.give(frame(0x82, b"more"))
    assert ends.stomp == taken


@given(st.binary(max_size=400), _CUTS)
def test_any_bytes_are_a_request_or_refused(data: bytes, cuts: list[int]) -> None:
    """Nothing is raised, and nothing is given to STOMP."""
    ends = Ends()
    for piece in cut(b"GET " + data + b"\r\n\r\n", cuts):
        ends.give(piece)
    assert not ends.stomp
    assert ends.end is not None
    assert ends.answers.startswith(b"HTTP/1.1 4")
    assert ends.node.close(Code.GOING_AWAY) == b"", "it was told already"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_may_come_byte_by_byte(at_once: bool) -> None:
    """And with frames behind it, though a client should have waited."""
    ends = Ends()
    data = head(Sec_WebSocket_Protocol="v11.stomp") + frame(0x82, b"CONNECT")
    chosen = None
    for piece in [data] if at_once else [data[at : at + 1] for at in range(len(data))]:
        ends.node.put(piece)
        while (taken := ends.node.take()) is not None:
            chosen = taken.subprotocol or chosen
            ends.stomp += taken.data
    assert ends.stomp == b"CONNECT"
    assert chosen == "v11.stomp"


def test_a_request_without_end_is_refused() -> None:
    """Once it is too long, and no byte of it is held then."""
    ends = Ends()
    ends.give(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(MAX_HEAD_BYTES):
        ends.give(b"x")
        assert ends.node.held <= MAX_HEAD_BYTES
    assert ends.end == End(Refusal.LIMIT, "the request is longer than 16384 bytes", None)
    assert ends.answers.startswith(b"HTTP/1.1 431 ")
    assert ends.node.held == 0


@pytest.mark.parametrize(
    ("wire", "code", "reason"),
    [
        (frame(0x82, b"x", mask=False), 1002, "unmasked"),
        (frame(0xC2, b"x"), 1002, "Reserved bit"),
        (frame(0x83, b"x"), 1002, "Invalid opcode 0x3"),
        (frame(0x80, b"x"), 1002, "unexpected CONTINUATION"),
        (frame(0x02, b"x") + frame(0x82, b"x"), 1002, "expected CONTINUATION"),
        (frame(0x09, b"x"), 1002, "fragment control frame"),
        (frame(0x89, b"x" * 126), 1002, "payload len > 125"),
        (frame(0x88, b"x"), 1002, "CLOSE with 1 byte"),
        (frame(0x88, b"\x00\x01"), 1002, "CLOSE with invalid code"),
        (frame(0x88, b"\x03\xee"), 1002, "local-only"),
        (frame(0x81, b"\xff"), 1007, "invalid start byte"),
        (frame(0x82, b"", length=LIMIT + 1), 1009, f"webSocketMaxFramePayloadLength {LIMIT}"),
        (frame(0x82, b"", length=2**62), 1009, f"webSocketMaxFramePayloadLength {LIMIT}"),
    ],
)
def test_what_is_no_websocket_ends_with_a_code(wire: bytes, code: int, reason: str) -> None:
    """At the header of the frame, whatever was to follow; what was sent before it counts."""
    ends = Ends().open()
    ends.give(frame(0x82, b"before") + wire + frame(0x82, b"behind"))
    assert ends.stomp.startswith(b"before")
    assert b"behind" not in ends.stomp
    assert ends.end is not None
    assert ends.end.code == code
    assert reason in ends.end.reason
    kind = Refusal.LIMIT if code == Code.TOO_BIG else Refusal.PROTOCOL
    assert ends.end.kind is kind
    ends.client = Connection(ConnectionType.CLIENT)
    (last, closed) = ends.read(ends.node.frame(b"ERROR") + ends.node.close(code, "why"))
    assert isinstance(last, BytesMessage)
    assert closed == CloseConnection(code, "why")
    assert ends.node.frame(b"more") == b""


def test_a_message_of_any_length_is_passed_on_as_it_comes() -> None:
    """Its fragments are not collected: what bounds it is STOMP's limits."""
    ends = Ends().open()
    ends.give(frame(0x02, b"x" * LIMIT))
    for _ in range(1_000):
        ends.give(frame(0x00, b"x" * LIMIT))
        ends.give(frame(0x00, b""))
        assert ends.node.held == 0
    assert ends.end is None
    assert len(ends.stomp) == 1_001 * LIMIT


def test_many_frames_are_decoded_a_slice_at_a_time() -> None:
    """Others have a turn between two of them."""
    node = Ends().open().node
    node.put(frame(0x82, b"x") * (SLICE_FRAMES * 5))
    slices = []
    while (taken := node.take()) is not None:
        slices.append(len(taken.data))
    assert slices == [SLICE_FRAMES] * 5 + [0]


def test_a_frame_in_parts_is_one_message_and_binary() -> None:
    """It cannot be known of the first part whether all is text; a pong may stand between two."""
    ends = Ends().open()
    ends.send(TextMessage("\n"))
    wire = ends.node.frame(b"head", is_last=False)
    ends.send(Ping(b"amid"))
    wire += ends.answers + ends.node.frame(b"body" * LIMIT, is_last=False)
    wire += ends.node.frame(b"\0")
    events = ends.read(wire + ends.node.frame(b"next"))
    assert events[1] == Pong(b"amid")
    assert events[-1] == TextMessage("next")
    parts = [one for one in events[:-1] if isinstance(one, BytesMessage)]
    assert b"".join(one.data for one in parts) == b"head" + b"body" * LIMIT + b"\0"
    assert [one.message_finished for one in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("before", range(4))
def test_no_character_is_cut_in_two(before: int) -> None:
    """Each fragment of a text is text, wherever the limit falls."""
    ends = Ends().open()
    ends.send(TextMessage("\n"))
    text = "x" * before + "\N{GRINNING FACE}" * LIMIT
    events = ends.read(ends.node.frame(text.encode()))
    assert "".join(str(one.data) for one in events if isinstance(one, TextMessage)) == text


@pytest.mark.parametrize(
    ("encoder_type", "sent", "kind"),
    [
        ("text", BytesMessage(b"\n"), TextMessage),
        ("binary", TextMessage("\n"), BytesMessage),
        (None, TextMessage("\n"), TextMessage),
        (None, BytesMessage(b"\n"), BytesMessage),
    ],
)
def test_an_encoder_type_goes_over_what_a_client_sends(
    encoder_type: str | None, sent: Event, kind: type[Event]
) -> None:
    """Without one a client is answered as it began."""
    ends = Ends(encoder_type=encoder_type).open()
    ends.send(sent)
    ends.send(BytesMessage(b"\n") if isinstance(sent, TextMessage) else TextMessage("\n"))
    (event,) = ends.read(ends.node.frame(b"CONNECTED\n\n\0"))
    assert isinstance(event, kind)


def test_a_close_is_answered_and_ends_it() -> None:
    """With its own code; what came behind it is not taken."""
    ends = Ends().open()
    ends.give(ends.client.send(CloseConnection(CloseReason.GOING_AWAY)) + frame(0x82, b"x"))
    assert ends.end == End(None, "", None)
    assert ends.read(ends.answers) == [CloseConnection(CloseReason.GOING_AWAY, "")]
    assert ends.stomp == b""
    assert ends.node.close(Code.NORMAL) == b""


@pytest.mark.parametrize(
    ("code", "status"),
    [(Code.GOING_AWAY, b"503 Service Unavailable"), (Code.POLICY, b"408 Request Timeout")],
)
def test_a_request_that_is_not_whole_is_answered_in_http(code: Code, status: bytes) -> None:
    """When its time is up, or the node stops."""
    ends = Ends()
    ends.give(b"GET / HTTP/1.1\r\n")
    assert ends.node.frame(b"ERROR\n\n\0") == b""
    answer = ends.node.close(code, "no CONNECT")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"\r\n\r\nno CONNECT\n")
