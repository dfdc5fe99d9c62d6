# mypyc compiles this module.
"""AMQP's frames as bytes, in whatever pieces they come.

A connection begins with a protocol header, ``AMQP id major minor revision``; after a login by SASL
another one comes. All else is frames::

    size u32 | offset of the body u8, in words of 4 bytes | type u8 | channel u16 | body

The size counts all of it. A frame without a body says only that the peer is there.
"""

import struct
from typing import Final, NamedTuple

from orthia.broker.protocols.amqp.values import AmqpFramingError

AMQP_ID: Final = 0
TLS_ID: Final = 2
SASL_ID: Final = 3
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
HEADER_BYTES: Final = 8
"""How long a protocol header is, and a frame at least."""
MIN_MAX_FRAME_SIZE: Final = 512
"""What each peer takes, in bytes, and what a frame of SASL may have by the specification."""
_HEAD: Final = struct.Struct(">IBBH")
_BEGINNING: Final = b"AMQP"
EMPTY_FRAME: Final = b"\0\0\0\x08\x02\0\0\0"
"""Says only that this peer is there."""


class ProtocolHeader(NamedTuple):
    """What protocol, of which version, follows."""

    id: int
    """``AMQP_ID``, ``TLS_ID`` or ``SASL_ID``."""
    major: int = 1
    minor: int = 0
    revision: int = 0

    def encode(self) -> bytes:
        """Return it as bytes."""
        return _BEGINNING + bytes(self)


class Frame(NamedTuple):
    """A frame whose body is still bytes; of an unknown type, too."""

    type: int
    channel: int
    body: bytes


class FrameReader:
    """Finds protocol headers and frames; holds at most one incomplete frame beside what it got."""

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        """How long a frame may be; to be set once another length is agreed on."""
        self._expects_header = True
        self._data = b""
        self._at = 0
        # Not a list of pieces: a client that sends byte by byte would fill the memory with it.
        self._rest = bytearray()

    @property
    def held(self) -> int:
        """Bytes that were received, and of which no frame was returned yet."""
        return len(self._data) - self._at + len(self._rest)

    def expect_header(self) -> None:
        """Expect a protocol header next, as after a login."""
        self._expects_header = True

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer; then ask for ``next_frame`` until there is none."""
        self._keep_rest()
        rest = self._rest
        if not rest:
            self._data = data
        elif len(rest) < self._needed() <= len(rest) + len(data):
            self._data = b"".join((rest, data))
            rest.clear()
        else:
            rest += data

    def next_frame(self) -> ProtocolHeader | Frame | None:
        """Return the next frame, or the header that is expected; None before all of it is there.

        Raises AmqpFramingError for what is none, and for a frame longer than ``max_frame_size``.
        """
        if self._rest:
            if len(self._rest) < self._needed():
                return None
            self._data = bytes(self._rest)
            self._at = 0
            self._rest.clear()
        data, at = self._data, self._at
        left = len(data) - at
        if left < HEADER_BYTES:
            self._keep_rest()
            return None
        if self._expects_header:
            return self._header(data, at)
        size, offset, kind, channel = _HEAD.unpack_from(data, at)
        if size > self.max_frame_size or offset < 2 or offset * 4 > size:
            raise self._wrong(size, offset)
        if size > left:
            self._keep_rest()
            return None
        end = at + size
        self._at = end
        return Frame(kind, channel, data[at + offset * 4 : end])

    def _needed(self) -> int:
        """Return how many bytes of the rest are needed before anything can be said of it.

        Of what is no frame all is there that is needed.
        """
        if len(self._rest) < HEADER_BYTES or self._expects_header:
            return HEADER_BYTES
        size: int = _HEAD.unpack_from(self._rest)[0]
        return 0 if size > self.max_frame_size else size

    def _header(self, data: bytes, at: int) -> ProtocolHeader:
        found = data[at : at + HEADER_BYTES]
        if not found.startswith(_BEGINNING):
            raise AmqpFramingError(
                0, f"the protocol header, which begins with AMQP, found {found!r}"
            )
        self._expects_header = False
        self._at = at + HEADER_BYTES
        return ProtocolHeader(found[4], found[5], found[6], found[7])

    def _keep_rest(self) -> None:
        if self._at < len(self._data):
            self._rest += self._data[self._at :]
        self._data = b""
        self._at = 0

    def _wrong(self, size: int, offset: int) -> AmqpFramingError:
        if size > self.max_frame_size:
            return AmqpFramingError(
                0, f"a frame of at most {self.max_frame_size} bytes, found {size}"
            )
        return AmqpFramingError(
            4, f"the offset of a body within the {size} bytes of its frame, found {offset * 4}"
        )


def encode_frame(body: bytes, channel: int = 0, kind: int = AMQP_FRAME) -> bytes:
    """Return a frame with a body: a performative, and what it carries."""
    return _HEAD.pack(len(body) + HEADER_BYTES, 2, kind, channel) + body


# --- what a broker sends most

_TRANSFER: Final = struct.Struct(">IBBH4sBBBIBIBB")
_TRANSFER_END: Final = {
    (False, False): b"CB",
    (True, False): b"CA",
    (False, True): b"CBA",
    (True, True): b"CAA",
}
"""Message format 0, settled, and more if there is: boolean and zero have codes of one byte."""
_CONTINUED: Final = struct.Struct(">IBBH4sBBBI")
_CONTINUED_END: Final = {False: b"@@@@B", True: b"@@@@A"}
_OUTCOME: Final = struct.Struct(">IBBH4sBBBBIBI")
_UINT: Final = 0x70
_TRUE: Final = 0x41
_FALSE: Final = 0x42


def transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    *,
    settled: bool = False,
    more: bool = False,
) -> bytes:
    """Return the first frame of a delivery of message format 0.

    ``tag`` has at most 32 bytes; ``more`` is whether more frames of the delivery follow.
    """
    end = _TRANSFER_END[settled, more]
    listed = 1 + 5 + 5 + 2 + len(tag) + len(end)
    head = _TRANSFER.pack(
        *(14 + listed - 1 + len(payload), 2, AMQP_FRAME, channel, b"\0S\x14\xc0", listed),
        *(6 if more else 5, _UINT, handle, _UINT, delivery_id, 0xA0, len(tag)),
    )
    return b"".join((head, tag, end, payload))


_WHOLE: Final = struct.Struct(">IBBH4sBBBIBI2sI2s")
_TAG_OF_FOUR: Final = b"\xa0\x04"
_SETTLED: Final = b"CA"
_UNSETTLED: Final = b"CB"


def delivery_frame(
    channel: int, handle: int, delivery_id: int, head: bytes, body: bytes, *, settled: bool
) -> bytes:
    """Return a whole delivery in one frame: as ``transfer_frame``, with its id as the tag."""
    size = _WHOLE.size + len(head) + len(body)
    end = _SETTLED if settled else _UNSETTLED
    begin = _WHOLE.pack(
        *(size, 2, AMQP_FRAME, channel, b"\0S\x14\xc0", 19, 5, _UINT, handle),
        *(_UINT, delivery_id, _TAG_OF_FOUR, delivery_id, end),
    )
    return b"".join((begin, head, body))


def continued_frame(channel: int, handle: int, payload: bytes, *, more: bool) -> bytes:
    """Return a further frame of a delivery, which says no more than its link."""
    end = _CONTINUED_END[more]
    head = _CONTINUED.pack(
        *(14 + 5 + len(end) + len(payload), 2, AMQP_FRAME, channel, b"\0S\x14\xc0"),
        *(1 + 5 + len(end), 6, _UINT, handle),
    )
    return b"".join((head, end, payload))


def accepted_frame(channel: int, first: int, last: int, *, is_receiver: bool = True) -> bytes:
    """Return the disposition by which deliveries, first to last, are accepted and settled."""
    role = _TRUE if is_receiver else _FALSE
    head = _OUTCOME.pack(
        *(30, 2, AMQP_FRAME, channel, b"\0S\x15\xc0", 17, 5, role, _UINT, first, _UINT, last)
    )
    return head + b"A\0S\x24E"


def settled_frame(channel: int, first: int, last: int, state: bytes) -> bytes:
    """Return the disposition by which a sender settles deliveries, first to last.

    ``state`` is their outcome, encoded, of 240 bytes at most.
    """
    size = len(state)
    head = _OUTCOME.pack(
        *(26 + size, 2, AMQP_FRAME, channel, b"\0S\x15\xc0", 13 + size, 5),
        *(_FALSE, _UINT, first, _UINT, last),
    )
    return b"".join((head, b"A", state))
