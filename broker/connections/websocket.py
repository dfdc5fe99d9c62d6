"""The node's end of one WebSocket, without its socket: bytes to bytes of a protocol, and back.

A protocol is a stream here as it is over TCP: one of its frames may come in many frames of
WebSocket, and one of those may have many of its own. So nothing of a message is collected, however
many fragments it has; what is held is a request that is not whole, and what one read brought. To
the client goes each frame of the protocol as one message, since there are clients that expect that,
in frames that are no longer than what is taken from it.

A client that sends text gets text where possible: a frame that is not UTF-8 is sent as binary, and
so is a large message, whose head is sent before its body is read. No extension is accepted, so
nothing is compressed.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from typing_extensions import override
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

from orthia.broker.connections.upgrade import MAX_HEAD_BYTES, UpgradeRefused, answer_to
from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.foreign import http_answer
from orthia.broker.quoting import quoted
from orthia.config.settings import AcceptorSettings

SLICE_FRAMES: Final = 200
"""How many frames, or parts of them, are decoded in one piece, which takes some milliseconds."""
_HEAD_END: Final = b"\r\n\r\n"
_TOO_LONG: Final = UpgradeRefused(
    f"the request is longer than {MAX_HEAD_BYTES} bytes",
    "431 Request Header Fields Too Large",
    Refusal.LIMIT,
)
_LONGEST_CHARACTER: Final = 4
"""Bytes of UTF-8."""


class Code(IntEnum):
    """The code of a close frame."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    POLICY = 1008
    TOO_BIG = 1009


class End(NamedTuple):
    """The client's end of a WebSocket is closed, or must be."""

    kind: Refusal | None
    """None if the client closed it."""
    reason: str
    code: int | None
    """The code to close it with; None if ``Decoded.answer`` closes it."""


class Decoded(NamedTuple):
    """What a slice of the bytes that came contained."""

    data: bytes = b""
    """For the protocol."""
    answer: bytes = b""
    """Written to the socket as it is."""
    subprotocol: str | None = None
    """The sub-protocol, if the client asked for one: the WebSocket has been opened for it."""
    end: End | None = None
    """Set once nothing more is decoded."""


class WebSocket:
    """One WebSocket, from the first byte of its request on."""

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
        """Whether frames are sent as text where possible; None until the client has sent one."""
        self._came = bytearray()
        """Bytes that were not handed to wsproto yet."""
        self._searched = 0
        """How many of them cannot begin the end of a request."""
        self._frames: Connection | None = None
        """wsproto's connection; None until the request is granted."""
        self._decoding = 0
        """How many bytes wsproto has of which not all are decoded."""
        self._takes = True
        self._writes = True
        self._is_within = False
        """Whether a message to the client was begun and not ended."""

    @property
    def held(self) -> int:
        """Bytes that came and are not handled."""
        return len(self._came) + self._decoding

    def put(self, data: bytes) -> None:
        """Keep what came."""
        if self._takes:
            self._came += data

    def take(self) -> Decoded | None:
        """Handle a slice of what came; return None if more has to come first."""
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
        """Return the close frame, or the refusal of a request that is not answered yet."""
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
        """Drop what came, and what comes."""
        self._takes = False
        self._came.clear()
        self._decoding = 0

    def _upgrade(self) -> Decoded | None:
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
        except UpgradeRefused as refused:
            self.abandon()
            self._writes = False
            return Decoded(answer=refused.answer, end=End(refused.kind, refused.reason, None))
        del self._came[:size]
        self._frames = Connection(ConnectionType.SERVER, [_LongestFrame(self._limit)])
        return Decoded(answer=accepted.answer, subprotocol=accepted.subprotocol)

    def _decode(self, frames: Connection) -> Decoded:
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
                if frames.state is ConnectionState.OPEN:  # wsproto found an error
                    end = self._error(event)
                else:
                    self._writes = False
                    answer += frames.send(event.response())
                    end = End(None, "", None)
                return Decoded(bytes(data), bytes(answer), end=end)
            if not left:
                break
        else:
            self._decoding = 0
        return Decoded(bytes(data), bytes(answer))

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
    """Checks the header of each frame before its payload is read; never offered to clients."""

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
    """Return the end of a piece that cuts no character in two, if ``data`` is text."""
    for one in range(end, end - _LONGEST_CHARACTER, -1):
        if data[one] & 0xC0 != 0x80:  # otherwise the byte continues a character
            return one
    return end


def _sent(frames: Connection, data: bytes, *, is_text: bool, is_last: bool) -> bytes:
    if is_text:
        return frames.send(TextMessage(data.decode(), message_finished=is_last))
    return frames.send(BytesMessage(data, message_finished=is_last))
