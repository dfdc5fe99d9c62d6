"""The node's end of one WebSocket, without its socket: bytes to bytes of a protocol, and back.

A protocol is a stream here as it is over TCP: one of its frames may come in many frames of
WebSocket, and one of those may have many of its own. So nothing of a message is collected, however
many fragments it has; what is held is a request that is not whole, and what one read brought. To
the client goes each frame of the protocol as one message, since there are clients that expect that,
in frames that are no longer than what is taken from it.

A client that sends text is answered in text, as far as that can be: a frame whose body is not UTF-8
is sent as binary, and so is a large message, whose head goes before its body is read. No extension
is agreed on, so that nothing is ever compressed.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from typing_extensions import override
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

from orthia.broker.connections.upgrade import MAX_HEAD_BYTES, Refused, answer_to
from orthia.broker.core.limits.refusals import Refusal
from orthia.broker.protocols.foreign import http_answer
from orthia.broker.quoting import quoted
from orthia.config.settings import AcceptorSettings

SLICE_FRAMES: Final = 200
"""How many frames, or parts of them, are decoded at once, which takes some milliseconds."""
_HEAD_END: Final = b"\r\n\r\n"
_TOO_LONG: Final = Refused(
    f"the request is longer than {MAX_HEAD_BYTES} bytes",
    "431 Request Header Fields Too Large",
    Refusal.LIMIT,
)
_LONGEST_CHARACTER: Final = 4
"""Bytes of UTF-8."""


class Code(IntEnum):
    """Why a WebSocket is closed."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    POLICY = 1008
    TOO_BIG = 1009


class End(NamedTuple):
    """The client's end of a WebSocket is over."""

    kind: Refusal | None
    """None where the client closed it."""
    reason: str
    code: int | None
    """With what it is to be closed; None where its last words are the answer."""


class Taken(NamedTuple):
    """What a slice of the bytes that came was."""

    data: bytes = b""
    """For the protocol."""
    answer: bytes = b""
    """To be written as it is."""
    subprotocol: str | None = None
    """The sub-protocol, if the client asked for one: the WebSocket has been opened for it."""
    end: End | None = None
    """Nothing more is taken."""


class WebSocket:
    """From the first byte of the request on."""

    def __init__(
        self, acceptor: AcceptorSettings, address: str, subprotocols: Sequence[str]
    ) -> None:
        """``address`` is the client's; of the ``subprotocols`` the last are wanted most."""
        self._acceptor = acceptor
        self._subprotocols = subprotocols
        self._address = address
        self._limit = acceptor.web_socket.max_frame_payload_length
        encoder = acceptor.web_socket.encoder_type
        self._in_text = None if encoder is None else encoder == "text"
        """Whether frames go as text where they can; None until the client has sent some."""
        self._came = bytearray()
        """What was not looked at yet."""
        self._searched = 0
        """How much of that cannot be where the end of a request begins."""
        self._frames: Connection | None = None
        """None until the request is granted."""
        self._decoding = 0
        """How many bytes it was given of which not all were decoded."""
        self._takes = True
        self._writes = True
        self._is_within = False
        """Whether a message to the client has begun and not ended."""

    @property
    def held(self) -> int:
        """Bytes that came and are not handled."""
        return len(self._came) + self._decoding

    def put(self, data: bytes) -> None:
        """Take what came."""
        if self._takes:
            self._came += data

    def take(self) -> Taken | None:
        """Handle a slice of what came; None if nothing can be done until more comes."""
        if self._frames is None:
            return self._upgrade() if self._takes else None
        if self._came:
            self._decoding += len(self._came)
            self._frames.receive_data(bytes(self._came))
            self._came.clear()
        return self._decode(self._frames) if self._decoding else None

    def frame(self, data: bytes, *, is_last: bool = True) -> bytes:
        """Return a protocol's frame, or a part of one, as it is sent; nothing before it is open."""
        frames = self._frames
        if frames is None or not self._writes:
            return b""
        is_text = bool(self._in_text) and is_last and not self._is_within and _is_text(data)
        self._is_within = not is_last
        sent = bytearray()
        start, size = 0, len(data)
        while start + self._limit < size:
            end = _end_of_piece(data, start + self._limit)
            sent += _sent(frames, data[start:end], is_text=is_text, is_last=False)
            start = end
        sent += _sent(frames, data[start:], is_text=is_text, is_last=is_last)
        return bytes(sent)

    def close(self, code: int, reason: str = "") -> bytes:
        """Return the last that the client is sent; a request that waits is refused."""
        self.abandon()
        if not self._writes:
            return b""
        self._writes = False
        if self._frames is None:
            away = code == Code.GOING_AWAY
            status = "503 Service Unavailable" if away else "408 Request Timeout"
            return http_answer(status, reason or "this node stops")
        return self._frames.send(CloseConnection(code, reason))

    def abandon(self) -> None:
        """Take nothing more."""
        self._takes = False
        self._came.clear()
        self._decoding = 0

    def _upgrade(self) -> Taken | None:
        end = self._came.find(_HEAD_END, self._searched)
        if end < 0 and len(self._came) < MAX_HEAD_BYTES:
            self._searched = max(0, len(self._came) - len(_HEAD_END) + 1)
            return None
        try:
            if not 0 <= end <= MAX_HEAD_BYTES:
                raise _TOO_LONG
            size = end + len(_HEAD_END)
            request = bytes(self._came[:size])
            accepted = answer_to(request, self._acceptor, self._address, self._subprotocols)
        except Refused as refused:
            self.abandon()
            self._writes = False
            return Taken(answer=refused.answer, end=End(refused.kind, refused.reason, None))
        del self._came[:size]
        self._frames = Connection(ConnectionType.SERVER, [_LongestFrame(self._limit)])
        return Taken(answer=accepted.answer, subprotocol=accepted.subprotocol)

    def _decode(self, frames: Connection) -> Taken:
        data, answer = bytearray(), bytearray()
        left = SLICE_FRAMES
        for event in frames.events():
            left -= 1
            if isinstance(event, TextMessage):
                data += event.data.encode()
                self._sends(in_text=True)
            elif isinstance(event, BytesMessage):
                data += event.data
                self._sends(in_text=False)
            elif isinstance(event, Ping):
                answer += frames.send(event.response())
            elif isinstance(event, CloseConnection):
                self.abandon()
                if frames.state is ConnectionState.OPEN:  # it is wsproto that ends it
                    end = self._error(event)
                else:
                    self._writes = False
                    answer += frames.send(event.response())
                    end = End(None, "", None)
                return Taken(bytes(data), bytes(answer), end=end)
            if not left:
                break
        else:
            self._decoding = 0
        return Taken(bytes(data), bytes(answer))

    def _sends(self, *, in_text: bool) -> None:
        if self._in_text is None:
            self._in_text = in_text

    def _error(self, event: CloseConnection) -> End:
        if event.code == CloseReason.MESSAGE_TOO_BIG:
            reason = (
                f"a frame of the WebSocket is longer than webSocketMaxFramePayloadLength"
                f" {self._limit}"
            )
            return End(Refusal.LIMIT, reason, Code.TOO_BIG)
        reason = f"what came is not WebSocket: {quoted(event.reason or '')}"
        return End(Refusal.PROTOCOL, reason, event.code)


class _LongestFrame(Extension):
    """Sees the header of each frame, before anything of it is taken; agreed on with nobody."""

    name = "x-orthia-longest-frame"

    def __init__(self, most: int) -> None:
        self._most = most

    @override
    def enabled(self) -> bool:
        return True

    @override
    def offer(self) -> bool:
        return False

    @override
    def frame_inbound_header(
        self,
        proto: FrameDecoder | FrameProtocol,
        opcode: Opcode,
        rsv: RsvBits,
        payload_length: int,
    ) -> CloseReason | RsvBits:
        if payload_length > self._most:
            return CloseReason.MESSAGE_TOO_BIG
        return RsvBits(rsv1=False, rsv2=False, rsv3=False)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _end_of_piece(data: bytes, end: int) -> int:
    """Return where a piece ends that has no part of a character, if ``data`` is text."""
    for one in range(end, end - _LONGEST_CHARACTER, -1):
        if data[one] & 0xC0 != 0x80:  # else the byte belongs to a character that began before
            return one
    return end


def _sent(frames: Connection, data: bytes, *, is_text: bool, is_last: bool) -> bytes:
    if is_text:
        return frames.send(TextMessage(data.decode(), message_finished=is_last))
    return frames.send(BytesMessage(data, message_finished=is_last))
