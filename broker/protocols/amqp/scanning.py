# mypyc compiles this module.
"""What a broker asks of every message, found without decoding the rest of its sections.

Each function looks at a section in the form that nearly every client writes, and takes a fraction
of the time of decoding it. Of any other form, and of a section that cannot be read, it returns
None: whoever asks decodes that, and gets its values or the error.
"""

import struct
from typing import Final, NamedTuple

from orthia.broker.protocols.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    MAX_HEAD_BYTES,
    MAX_HEAD_VALUES,
    PROPERTIES,
    VALUE,
    Sections,
)
from orthia.broker.protocols.amqp.types import (
    BINARY_8,
    BINARY_32,
    LIST_8,
    LIST_32,
    MAP_8,
    MAP_32,
    NULL,
    SMALL_ULONG,
    STRING_8,
    STRING_32,
    SYMBOL_8,
    SYMBOL_32,
    TIMESTAMP,
    UINT,
    UINT_0,
    ULONG,
    ULONG_0,
    UUID_CODE,
)

_SECTION: Final = b"\0S"
"""How a section begins whose descriptor is a number of one byte; that follows."""
_SIZE_AND_COUNT: Final = struct.Struct(">II")
_LEAST_SECTION: Final = 6
"""How many bytes a section has that is not empty."""
_OTHER: Final = 255
_SIZED_8: Final = 254
_SIZED_32: Final = 253
_FIXED: Final = {
    **dict.fromkeys(range(0x40, 0x45), 0),
    **dict.fromkeys(range(0x50, 0x56), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x74), 4),
    **dict.fromkeys(range(0x80, 0x85), 8),
    **dict.fromkeys((0x94, UUID_CODE), 16),
    **dict.fromkeys((BINARY_8, STRING_8, SYMBOL_8), _SIZED_8),
    **dict.fromkeys((BINARY_32, STRING_32, SYMBOL_32), _SIZED_32),
}
_WIDTHS: Final = bytes([_FIXED.get(code, _OTHER) for code in range(256)])
"""By format code how many bytes follow, whatever they are; or one of the three above."""
_TEXT: Final = bytes((NULL, STRING_8, STRING_32))
_NAME: Final = bytes((NULL, SYMBOL_8, SYMBOL_32))
_ID: Final = bytes(
    (
        *(NULL, STRING_8, STRING_32, BINARY_8, BINARY_32, UUID_CODE),
        *(ULONG_0, SMALL_ULONG, ULONG),
    )
)
_TIME: Final = bytes((NULL, TIMESTAMP))
_PROPERTIES: Final = (
    *(_ID, bytes((NULL, BINARY_8, BINARY_32)), _TEXT, _TEXT, _TEXT, _ID, _NAME, _NAME),
    *(_TIME, _TIME, _TEXT, bytes((NULL, UINT_0, 0x52, UINT)), _TEXT),
)
"""The format codes that each of the properties may have, in their order."""
_TO: Final = 2
_EXPIRY: Final = 8
_GROUP: Final = 10
_OF_JMS: Final = 10
"""How many properties there are, up to the time of creation, which nearly every message of JMS
says; what follows is of groups."""
_TIME_BYTES: Final = 8
_NOTHING_READ: Final = 1 << 40


class Routing(NamedTuple):
    """What of a message's properties says where it goes, and until when."""

    to: str | None = None
    absolute_expiry_time: int | None = None
    """Milliseconds since 1970 UTC."""
    group_id: str | None = None


NO_ROUTING: Final = Routing()


class PropertiesScanner:
    """Reads the properties of the messages of one link.

    Those of JMS differ from message to message in their id, which comes first, and in when they
    were created, which comes last. What is between is compared with what was read before.
    """

    __slots__ = ("_between", "_left", "_routing")

    def __init__(self) -> None:
        self._between = b""
        """What was between the id and the time of creation of the message that was read last."""
        self._left = _NOTHING_READ
        """How many bytes that is, with those of the time."""
        self._routing = NO_ROUTING
        """What it says."""

    def scan(self, head: bytes, first: int, count: int, end: int) -> Routing | None:
        """Return what ``count`` properties say of these, or None; all of them can be read then.

        The first one begins at ``first``, and they end at ``end``.
        """
        if count == _OF_JMS and first + 1 < end and head[first] == STRING_8:
            begin = first + 2
            at = begin + head[first + 1]
            if (
                end - at == self._left
                and head.startswith(self._between, at)
                and head[begin:at].isascii()
            ):
                return self._routing
        return self._scan_each(head, first, count, end)

    def _scan_each(self, head: bytes, first: int, count: int, end: int) -> Routing | None:
        if count > len(_PROPERTIES):
            return None
        at, after_id, code = first, first, NULL
        to: str | None = None
        group: str | None = None
        expiry: int | None = None
        for index in range(count):
            if index == 1:
                after_id = at
            if at >= end:
                return None
            code = head[at]
            if code == NULL:
                at += 1
                continue
            if code not in _PROPERTIES[index]:
                return None
            width = _WIDTHS[code]
            at += 1
            if width < _SIZED_32:
                if index == _EXPIRY and at + _TIME_BYTES <= end:
                    expiry = int.from_bytes(head[at : at + _TIME_BYTES], "big", signed=True)
                at += width
                continue
            if width == _SIZED_8:
                if at >= end:
                    return None
                begin = at + 1
                at = begin + head[at]
            else:
                begin = at + 4
                at = begin + int.from_bytes(head[at:begin], "big")
            raw = head[begin:at]
            if not raw.isascii() and not _may_hold(code, raw):
                return None
            if index == _TO:
                to = raw.decode()
            elif index == _GROUP:
                group = raw.decode()
        if at != end:
            return None
        found = Routing(to, expiry, group)
        if count == _OF_JMS and code == TIMESTAMP and expiry is None:
            self._between, self._left = head[after_id : end - _TIME_BYTES], end - after_id
            self._routing = found
        return found


def is_plain_map(head: bytes, first: int, count: int, end: int) -> bool:
    """Return whether ``count`` keys and values are texts and simple values, which can be read.

    The first one begins at ``first``, and they end at ``end``. False if they have to be decoded to
    know that.
    """
    if count % 2:
        return False
    try:
        return _end_of_plain(head, first, count // 2) == end
    except IndexError:
        return False


def _end_of_plain(head: bytes, at: int, pairs: int) -> int:
    """Return where ``pairs`` of a key and a value end; 0 if they have to be decoded to know that.

    Raises IndexError if they are cut off.
    """
    for _ in range(pairs):
        if head[at] != STRING_8:
            return 0
        begin = at + 2
        at = begin + head[at + 1]
        raw = head[begin:at]
        if not raw.isascii() and not _is_text(raw):
            return 0
        code = head[at]
        width = _WIDTHS[code]
        at += 1
        if width < _SIZED_32:
            at += width
            continue
        if width == _SIZED_8:
            begin = at + 1
            at = begin + head[at]
        elif width == _SIZED_32:
            begin = at + 4
            at = begin + int.from_bytes(head[at:begin], "big")
        else:
            return 0
        raw = head[begin:at]
        if not raw.isascii() and not _may_hold(code, raw):
            return 0
    return at


def _may_hold(code: int, raw: bytes) -> bool:
    """Return whether bytes that are not ASCII are of a value of a format code."""
    if code in (BINARY_8, BINARY_32):
        return True
    return code in (STRING_8, STRING_32) and _is_text(raw)


def elements(data: bytes, begin: int, short: int, long: int) -> tuple[int, int, int]:
    """Return where the first element of a section's list or map is, their count, and its end.

    The end is 0 for another form, and for what is cut off. ``begin`` is where the section begins;
    ``short`` and ``long`` are the format codes of the list or map.
    """
    length = len(data)
    if begin + _LEAST_SECTION > length or not data.startswith(_SECTION, begin):
        return 0, 0, 0
    form = data[begin + 3]
    if form == short:
        first, count, end = begin + 6, data[begin + 5], begin + 5 + data[begin + 4]
    elif form == long and begin + 12 <= length:
        size, count = _SIZE_AND_COUNT.unpack_from(data, begin + 4)
        first, end = begin + 12, begin + 8 + size
    else:
        return 0, 0, 0
    return (first, count, end) if first <= end <= length else (0, 0, 0)


def scan_usual(
    data: bytes, header: int, begin: int, scanner: PropertiesScanner
) -> tuple[Sections, Routing] | None:
    """Return where the sections of a message are and what its properties say, or None.

    All that follows its annotations can be read then, and the body is nothing but the bytes of a
    binary or a text. ``header`` is where the header ends, and ``begin`` where the annotations of
    the message do; it has none of a delivery.
    """
    at, last = begin, len(data) - _LEAST_SECTION
    routing = NO_ROUTING
    if at > last:
        return None
    code = data[at + 2]
    if code == PROPERTIES:
        first, count, at = elements(data, at, LIST_8, LIST_32)
        said = scanner.scan(data, first, count, at) if at else None
        if said is None or at > last:
            return None
        routing, code = said, data[at + 2]
    properties = at
    if code == APPLICATION_PROPERTIES:
        first, count, at = elements(data, at, MAP_8, MAP_32)
        if not at or at > last or count >= MAX_HEAD_VALUES:
            return None
        if not is_plain_map(data, first, count, at):
            return None
        code = data[at + 2]
    if not data.startswith(_SECTION, at):
        return None
    if code == DATA:
        short, long = BINARY_8, BINARY_32
    elif code == VALUE:
        short, long = STRING_8, STRING_32
    else:
        return None
    form = data[at + 3]
    if form == short:
        head, size = at + 5, int(data[at + 4])
    elif form == long and at + 8 <= len(data):
        head = at + 8
        size = int.from_bytes(data[at + 4 : head], "big")
    else:
        return None
    if head + size != len(data) or at > MAX_HEAD_BYTES:
        return None
    sections = Sections(header, header, begin, properties, at, head, code, form, size)
    return sections, routing


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
