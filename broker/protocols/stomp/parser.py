# mypyc compiles this module.
"""Bytes to STOMP frames, in whatever pieces they come.

A frame is ``COMMAND EOL (key:value EOL)* EOL body NUL EOL*``. With a content-length the body may
have NULs; without, it ends at the first. Lines may end in CR LF, which STOMP 1.2 allows, and which
is accepted in the other versions too; elsewhere in a header a carriage return or a NUL is refused.
Between frames any number of line ends is skipped: heart-beats.

The body of a large SEND is not collected: the parser yields its head, then each piece of it.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, cast

from orthia.broker.protocols.stomp.client_frame import (
    BodyPiece,
    Frame,
    LargeFrame,
    Repeating,
    with_repeat,
)
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, unescape
from orthia.broker.quoting import quoted
from orthia.config.settings import ClientLimits

_LINE_ENDS = re.compile(rb"[\r\n]*")
_UNSENDABLE = re.compile(rb"[\0\r]")
# Searching for a byte as a number is several times faster than as bytes.
_NUL: Final = 0
_RETURN: Final = 13
_SPACE: Final = 32
_TRIMMED: Final = ":\ufeff"
"""Beside white space: the colon that escapes write, and what JavaScript trims."""
_BACKSLASH: Final = 92
_NEVER: Final = 2**62


Events = Iterator[Frame | BodyPiece]


class _Waiting(Enum):
    HEAD = auto()
    LENGTH = auto()
    NUL = auto()


class FrameParser:
    """Parses incrementally; holds at most one incomplete frame, bounded by the limits."""

    def __init__(self, limits: ClientLimits) -> None:
        self.version = Version.V1_2
        """The version whose escapes headers have; set once it is negotiated."""
        self._limits = limits
        self._when = ""
        # Not a list of pieces: a client that sends byte by byte would fill the memory with it.
        self._pending = bytearray()
        self.held = 0
        """Bytes held of an incomplete frame."""
        self._waiting = _Waiting.HEAD
        self._needed = 0
        """Waiting for LENGTH: the size of the frame; for NUL: the offset of its body."""
        self._large_from = _NEVER
        self._max_large = 0
        self._whole_at = 0
        """Waiting for NUL: the size from which the frame counts as large."""
        self._is_in_large = False
        """Whether a large body has begun and not ended."""
        self._left: int | None = None
        """Within a large body: how many bytes of it are to come; None if it ends at a NUL."""
        self._streamed = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether no part of a frame is held."""
        return not self._pending and not self._is_in_large

    def stream_from(self, size: int, limit: int) -> None:
        """Yield bodies of SEND from ``size`` bytes on in pieces, up to ``limit`` bytes each."""
        self._large_from = size
        self._max_large = limit

    def limit_to(self, limits: ClientLimits, when: str = "") -> None:
        """Apply ``limits`` to the frames that follow; ``when`` says in errors when they hold."""
        self._limits = limits
        self._when = when

    def clear(self) -> None:
        """Drop what is held: nothing more is wanted."""
        self._pending = bytearray()
        self.held = 0
        self._is_in_large = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes and yield each frame that is now complete; raises ProtocolError.

        To be exhausted before the next call. Only for a parser without ``stream_from``.
        """
        return cast("Iterator[Frame]", self.events(data))

    def events(self, data: bytes) -> Events:
        """Yield what ``feed`` does, and the pieces of large bodies as they come."""
        position = 0
        if self._pending:
            self._pending += data
            if not self._may_be_whole(data):
                self.held = len(self._pending)
                return
            data = bytes(self._pending)
            self._pending.clear()
            self.held = 0
        elif self._is_in_large:
            piece, position = self._piece(data, 0)
            yield piece
            if not piece.is_last:
                return
        size = len(data)
        while True:
            # Most frames follow at once, and the pattern costs several times as much.
            if position == size or data[position] <= _RETURN:
                position = _LINE_ENDS.match(data, position).end()  # type: ignore[union-attr]
                if position == size:
                    return
            end = self._head_end(data, position)
            if end is None:
                rest = data[position:]
                if b"\0" in rest:
                    raise _unsendable(rest.replace(b"\r\n", b"\n"))
                self._hold(rest, _Waiting.HEAD, 0)
                return
            head_end, body_start = end
            command, raw = self._head(data[position:head_end])
            large_from = self._large_from if command == "SEND" else _NEVER
            body_end = self._body_end(raw, data, position, body_start, large_from)
            if body_end is None:
                if not self._is_in_large:
                    return
                yield LargeFrame(command, raw, b"", self.version)
                piece, position = self._piece(data, body_start)
                yield piece
                if not piece.is_last:
                    return
                continue
            yield Frame(command, raw, data[body_start:body_end], self.version)
            position = body_end + 1

    def _hold(self, rest: bytes, waiting: _Waiting, needed: int) -> None:
        self._pending += rest
        self.held = len(self._pending)
        self._waiting = waiting
        self._needed = needed

    def _may_be_whole(self, newest: bytes) -> bool:
        if self._waiting is _Waiting.LENGTH:
            return len(self._pending) >= self._needed
        if self._waiting is _Waiting.NUL and _NUL not in newest:
            if len(self._pending) >= self._whole_at:
                return True
            self._check_body(len(self._pending) - self._needed)
            return False
        return True

    def _head_end(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Return where the head ends and the body begins; None if that has not come yet."""
        limit = position + self._limits.max_header_bytes
        plain = data.find(b"\n\n", position, limit)
        bound = limit if plain < 0 else plain + 1
        # Searching for one byte is much faster than for three, and carriage returns are rare.
        if data.find(b"\r", position, bound) >= 0:
            with_return = data.find(b"\n\r\n", position, bound)
            if with_return >= 0:
                return with_return, with_return + 3
        if plain >= 0:
            return plain, plain + 2
        if len(data) >= limit:
            raise ProtocolError(
                f"frame header is longer than max-header-bytes {self._limits.max_header_bytes}"
                f"{self._when}"
            )
        return None

    def _head(self, head: bytes) -> tuple[str, dict[bytes, bytes]]:
        is_plain = head.isascii()
        if not is_plain:
            try:
                head.decode()
            except UnicodeDecodeError as error:
                raise ProtocolError(f"frame header is not UTF-8: {error}") from None
        if _RETURN in head:
            head = head.replace(b"\r\n", b"\n").removesuffix(b"\r")
            if _RETURN in head:
                raise _unsendable(head)
        if _NUL in head:
            raise _unsendable(head)
        command, *lines = head.split(b"\n")
        if len(lines) > self._limits.max_headers:
            raise ProtocolError(
                f"frame has {len(lines)} headers, more than max-headers {self._limits.max_headers}"
            )
        raw: dict[bytes, bytes] = {}
        for line in lines:
            key, colon, value = line.partition(b":")
            if not (colon and key):
                shown = line[:80].decode("utf-8", "replace")
                raise ProtocolError(
                    f"header line {quoted(shown)} has no {'name' if colon else 'colon'}"
                )
            if key[0] <= _SPACE or key[-1] <= _SPACE:
                raise _padded(key)
            if key not in raw:
                raw[key] = value
            else:
                raw = with_repeat(raw, key, value)
        if _BACKSLASH in head and command not in (b"CONNECT", b"STOMP"):
            for key, value in raw.items():
                name = unescape(key, self.version)
                unescape(value, self.version)
                _refuse_if_padded(name)
            if isinstance(raw, Repeating):
                for _, value in raw.repeats:
                    unescape(value, self.version)
        elif not is_plain:
            for key in raw:
                _refuse_if_padded(key)
        return command.decode(), raw

    def _body_end(
        self, raw: dict[bytes, bytes], data: bytes, start: int, body_start: int, large_from: int
    ) -> int | None:
        """Return where the body ends; None if the frame is held, or its large body has begun."""
        declared = raw.get(b"content-length")
        if declared is None:
            limit = body_start + min(self._limits.max_body_bytes + 1, large_from)
            end = data.find(b"\0", body_start, limit)
            if end < 0:
                if len(data) - body_start >= large_from:
                    self._begin_large(None)
                    return None
                self._check_body(len(data) - body_start)
                self._hold(data[start:], _Waiting.NUL, body_start - start)
                self._whole_at = body_start - start + large_from
                return None
            return end
        digits = declared.strip()
        if not (digits.isdigit() and len(digits) < 16):
            raise ProtocolError(
                f"content-length {quoted(declared.decode())} is not a number of bytes"
            )
        length = int(digits)
        if length >= large_from:
            self._check_large(length)
            self._begin_large(length)
            return None
        self._check_body(length)
        end = body_start + length
        if len(data) <= end:
            self._hold(data[start:], _Waiting.LENGTH, end + 1 - start)
            return None
        if data[end]:
            raise ProtocolError(
                f"the body of content-length {length} is not followed by a NUL byte"
            )
        return end

    def _begin_large(self, size: int | None) -> None:
        self._is_in_large = True
        self._left = size
        self._streamed = 0

    def _piece(self, data: bytes, start: int) -> tuple[BodyPiece, int]:
        """Return the part of a large body that begins at ``start``, and where it ends."""
        if self._left is None:
            end = data.find(b"\0", start)
            is_last = end >= 0
            if not is_last:
                end = len(data)
            self._streamed += end - start
            self._check_large(self._streamed)
        else:
            end = min(start + self._left, len(data))
            self._left -= end - start
            is_last = not self._left and end < len(data)
            if is_last and data[end]:
                raise ProtocolError("the body of a content-length is not followed by a NUL byte")
        if is_last:
            self._is_in_large = False
        return BodyPiece(data[start:end], is_last), end + 1

    def _check_large(self, size: int) -> None:
        if size > self._max_large:
            raise ProtocolError(
                f"frame body is longer than max-large-message-size {self._max_large}"
            )

    def _check_body(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise ProtocolError(
                f"frame body is longer than max-body-bytes {self._limits.max_body_bytes}"
                f"{self._when}"
            )


class Input:
    """The bytes of a client that are not handled yet; they are parsed when frames are asked for.

    A frame can change how those after it are read: CONNECT sets version and limits. So bytes that
    come while the client is to wait are kept as they came, and parsed only once all before them is
    handled. It is bounded by its owner, who reads no more from the socket while it is not empty.
    """

    __slots__ = ("_came", "_parser", "size")

    def __init__(self, parser: FrameParser) -> None:
        self._parser = parser
        self._came: list[bytes] = []
        self.size = 0
        """Bytes that came since it was empty last."""

    def put(self, data: bytes) -> None:
        """Keep what came."""
        self.size += len(data)
        self._came.append(data)

    def take(self) -> Events | None:
        """Return what to read frames from next; None if there is nothing, which resets ``size``.

        It is to be exhausted before the next call.
        """
        if self._came:
            return self._parser.events(self._came.pop(0))
        self.size = 0
        return None

    def clear(self) -> None:
        """Forget everything: no more is wanted."""
        self._came.clear()
        self.size = 0
        self._parser.clear()


def _refuse_if_padded(name: bytes) -> None:
    """Refuse a header whose name, when trimmed, is the name of another.

    Some receivers trim names, each in its way, and a byte that a version cannot express is sent as
    a space: they would take it for a header of the broker, such as the content-length.
    """
    for one in (name.decode()[0], name.decode()[-1]):
        if one <= " " or one.isspace() or one in _TRIMMED:
            raise _padded(name)


def _padded(name: bytes) -> ProtocolError:
    shown = quoted(name[:80].decode("utf-8", "replace"))
    return ProtocolError(
        f"the header name {shown} begins or ends with white space or a colon, which receivers may"
        " leave out: it would be another header to them"
    )


def _unsendable(head: bytes) -> ProtocolError:
    """Return the error that locates a byte at which a receiver may end the line of a header."""
    found = _UNSENDABLE.search(head)
    at = found.start() if found else len(head)
    line = head.count(b"\n", 0, at) + 1
    before = head[head.rfind(b"\n", 0, at) + 1 : at]
    name, colon, _ = before.partition(b":")
    shown = quoted(name[:80].decode("utf-8", "replace"))
    where = f"header {shown}" if colon else f"the line that begins with {shown}"
    what = "a carriage return that ends no line" if head[at : at + 1] == b"\r" else "a NUL byte"
    return ProtocolError(
        f"{where} has {what}, which no header may have: byte {len(before) + 1} of line {line} of"
        " the frame (an empty line ends the headers)"
    )
