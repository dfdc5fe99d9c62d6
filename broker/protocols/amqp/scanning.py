# mypyc compiles this module.
"""What a broker asks of every message, found without decoding the rest of its sections.

Each function looks at a section in the form that nearly every client writes, and takes a fraction
of the time of decoding it. Of any other form, and of a section that cannot be read, it returns
None: whoever asks decodes that, and gets its values or the error.
"""

from typing import Final, NamedTuple

from orthia.broker.protocols.amqp.types import (
    BINARY_8,
    BINARY_32,
    DESCRIBED,
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


class Routing(NamedTuple):
    """What of a message's properties says where it goes, and until when."""

    to: str | None = None
    absolute_expiry_time: int | None = None
    """Milliseconds since 1970 UTC."""
    group_id: str | None = None


NO_ROUTING: Final = Routing()


def scan_properties(head: bytes, begin: int, end: int) -> Routing | None:
    """Return what a section of properties says of these, or None; all of it can be read then."""
    count, at = _elements(head, begin, end, LIST_8, LIST_32)
    if not 0 <= count <= len(_PROPERTIES):
        return None
    to: str | None = None
    group: str | None = None
    expiry: int | None = None
    for index in range(count):
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
            if index == _EXPIRY and at + 8 <= end:
                expiry = int.from_bytes(head[at : at + 8], "big", signed=True)
            at += width
            continue
        if width == _SIZED_8:
            if at >= end:
                return None
            first = at + 1
            at = first + head[at]
        else:
            first = at + 4
            at = first + int.from_bytes(head[at:first], "big")
        if code in (BINARY_8, BINARY_32):
            continue
        raw = head[first:at]
        if not raw.isascii() and (code in (SYMBOL_8, SYMBOL_32) or not _is_text(raw)):
            return None
        if index == _TO:
            to = raw.decode()
        elif index == _GROUP:
            group = raw.decode()
    return Routing(to, expiry, group) if at == end else None


def is_plain_map(head: bytes, begin: int, end: int) -> bool:
    """Return whether a section is a map of texts to simple values, all of which can be read.

    False if it has to be decoded to know that.
    """
    count, at = _elements(head, begin, end, MAP_8, MAP_32)
    if count < 0 or count % 2:
        return False
    is_key = False
    for _ in range(count):
        if at >= end:
            return False
        is_key = not is_key
        code = head[at]
        width = _WIDTHS[code]
        at += 1
        if width < _SIZED_32:
            if is_key:
                return False
            at += width
            continue
        if width == _SIZED_8:
            if at >= end:
                return False
            first = at + 1
            at = first + head[at]
        elif width == _SIZED_32:
            first = at + 4
            at = first + int.from_bytes(head[at:first], "big")
        else:
            return False
        if code in (STRING_8, STRING_32):
            raw = head[first:at]
            if not raw.isascii() and not _is_text(raw):
                return False
        elif is_key or (code in (SYMBOL_8, SYMBOL_32) and not head[first:at].isascii()):
            return False
    return at == end


def _elements(head: bytes, begin: int, end: int, short: int, long: int) -> tuple[int, int]:
    """Return how many elements the list or map of a section has, and where the first is.

    -1 of another form. ``short`` and ``long`` are its format codes.
    """
    if end - begin >= 6 and head[begin] == DESCRIBED and head[begin + 1] == SMALL_ULONG:
        form = head[begin + 3]
        if form == short:
            if begin + 5 + head[begin + 4] == end:
                return head[begin + 5], begin + 6
        elif form == long and end - begin >= 12:
            first = begin + 12
            if begin + 8 + int.from_bytes(head[begin + 4 : begin + 8], "big") == end:
                return int.from_bytes(head[begin + 8 : first], "big"), first
    return -1, end


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
