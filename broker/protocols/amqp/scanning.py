# mypyc compiles this module.
"""What a broker asks of every message, found without decoding the rest of its sections.

Each function looks at a section in the form that nearly every client writes, and takes a fraction
of the time of decoding it. Of any other form, and of a section that cannot be read, it returns
None: whoever asks decodes that, and gets its values or the error.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from orthia.broker.protocols.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    MAX_HEAD_BYTES,
    MAX_HEAD_VALUES,
    PROPERTIES,
    VALUE,
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

_SECTION: Final = b"\0S%c"
"""How a section begins whose descriptor is a number of one byte."""
PROPERTIES_BEGIN: Final = _SECTION % PROPERTIES
APPLICATION_BEGINS: Final = _SECTION % APPLICATION_PROPERTIES
_BODIES: Final = {
    _SECTION % DATA + bytes((BINARY_8,)): 1,
    _SECTION % DATA + bytes((BINARY_32,)): 4,
    _SECTION % VALUE + bytes((STRING_8,)): 1,
    _SECTION % VALUE + bytes((STRING_32,)): 4,
}
"""How a body begins that is a binary or a text, and in how many bytes it says of how many."""
_SIZE_AND_COUNT: Final = struct.Struct(">II")
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
_LONGEST_KNOWN: Final = 1_024
"""Of how many bytes properties are remembered, for each link."""
_NOTHING: Final = b"\xff"
"""No section begins so."""
_NAMES: Final[dict[bytes, int]] = {}
"""Names of properties that came before, each from its format code to that of its value: how many
bytes the value has, or ``_SIZED_8``."""
_MOST_NAMES: Final = 256
_LONGEST_NAME: Final = 64
"""How many are remembered, and how long they may be, in bytes."""
Usual: TypeAlias = tuple[int, int, int, "Routing"]
"""Where the properties of a message end, those of its application, and its head; and what its
properties say."""


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
    were created, which comes last. What is before and between is compared with what was read
    before.
    """

    __slots__ = ("_after_id", "_begins", "_between", "_id_at", "_routing", "_size")

    def __init__(self) -> None:
        self._begins = _NOTHING
        """How the properties that were read last begin, up to the length of the id."""
        self._between = b""
        """What was between their id and the time of their creation."""
        self._id_at = self._after_id = self._size = 0
        """Where in them the id begins and ends, and how many bytes they have."""
        self._routing = NO_ROUTING
        """What they say."""

    def scan(self, data: bytes, at: int) -> tuple[Routing | None, int]:
        """Return what the properties that begin at ``at`` say, and where they end.

        None if they have to be decoded; otherwise all of them can be read.
        """
        if data.startswith(self._begins, at):
            after_id = at + self._after_id
            message_id = data[at + self._id_at : after_id]
            if data.startswith(self._between, after_id) and message_id.isascii():
                return self._routing, at + self._size
        first, count, end = _elements(data, at, LIST_8, LIST_32)
        return self._scan_each(data, at, first, count, end), end

    def _scan_each(
        self, data: bytes, begin: int, first: int, count: int, end: int
    ) -> Routing | None:
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
            code = data[at]
            if code == NULL:
                at += 1
                continue
            if code not in _PROPERTIES[index]:
                return None
            width = _WIDTHS[code]
            at += 1
            if width < _SIZED_32:
                if index == _EXPIRY and at + _TIME_BYTES <= end:
                    expiry = int.from_bytes(data[at : at + _TIME_BYTES], "big", signed=True)
                at += width
                continue
            if width == _SIZED_8:
                if at >= end:
                    return None
                text = at + 1
                at = text + data[at]
            else:
                text = at + 4
                at = text + int.from_bytes(data[at:text], "big")
            raw = data[text:at]
            if not raw.isascii() and not _may_hold(code, raw):
                return None
            if index == _TO:
                to = raw.decode()
            elif index == _GROUP:
                group = raw.decode()
        if at != end or not end:
            return None
        found = Routing(to, expiry, group)
        is_of_jms = count == _OF_JMS and data[first] == STRING_8 and code == TIMESTAMP
        if is_of_jms and expiry is None and end - begin <= _LONGEST_KNOWN:
            self._begins = data[begin : first + 2]
            self._between = data[after_id : end - _TIME_BYTES]
            self._id_at, self._after_id = len(self._begins), after_id - begin
            self._size = end - begin
            self._routing = found
        return found


def end_of_plain_map(data: bytes, at: int) -> int:
    """Return where the application properties end that begin at ``at``.

    They are texts and simple values, and can be read; 0 if they have to be decoded to know that.
    """
    at, count, end = _elements(data, at, MAP_8, MAP_32)
    if count % 2 or count >= MAX_HEAD_VALUES:
        return 0
    names = _NAMES
    try:
        for _ in range(count // 2):
            begin = at
            at += 3 + data[at + 1]
            width = names.get(data[begin:at], _OTHER)
            if width < _SIZED_32:
                at += width
                continue
            if width == _SIZED_8:
                text = at + 1
                at = text + data[at]
                if data[text:at].isascii():
                    continue
            at = _end_of_property(data, begin)
            if not at:
                return 0
    except IndexError:
        return 0
    return at if at == end else 0


def _end_of_property(data: bytes, at: int) -> int:
    """Return where a name and its value end; 0 if they have to be decoded to know that.

    Raises IndexError if they are cut off.
    """
    if data[at] != STRING_8:
        return 0
    begin = at
    at = begin + 2 + data[begin + 1]
    name = data[begin + 2 : at]
    if not name.isascii() and not _is_text(name):
        return 0
    code = data[at]
    width = _WIDTHS[code]
    at += 1
    if width != _OTHER and width != _SIZED_32 and len(name) <= _LONGEST_NAME:
        if len(_NAMES) >= _MOST_NAMES:
            _NAMES.clear()
        _NAMES[data[begin:at]] = width
    if width < _SIZED_32:
        return at + width
    if width == _SIZED_8:
        begin = at + 1
        at = begin + data[at]
    elif width == _SIZED_32:
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "big")
    else:
        return 0
    raw = data[begin:at]
    return at if raw.isascii() or _may_hold(code, raw) else 0


def _may_hold(code: int, raw: bytes) -> bool:
    """Return whether bytes that are not ASCII are of a value of a format code."""
    if code in (BINARY_8, BINARY_32):
        return True
    return code in (STRING_8, STRING_32) and _is_text(raw)


def _elements(data: bytes, begin: int, short: int, long: int) -> tuple[int, int, int]:
    """Return where the first element of a section's list or map is, their count, and its end.

    The end is 0 for another form, and for what is cut off. ``begin`` is where the section begins,
    with a descriptor of one byte; ``short`` and ``long`` are the format codes of the list or map.
    """
    try:
        form = data[begin + 3]
        if form == short:
            first, count, end = begin + 6, data[begin + 5], begin + 5 + data[begin + 4]
        elif form == long:
            size, count = _SIZE_AND_COUNT.unpack_from(data, begin + 4)
            first, end = begin + 12, begin + 8 + size
        else:
            return 0, 0, 0
    except (IndexError, struct.error):
        return 0, 0, 0
    return (first, count, end) if first <= end <= len(data) else (0, 0, 0)


def scan_usual(data: bytes, begin: int, at: int, scanner: PropertiesScanner) -> Usual | None:
    """Return where the parts of a message are and what its properties say, or None.

    All that follows its annotations can be read then, and the body is nothing but the bytes of a
    binary or a text. The message is all of ``data`` from ``begin`` on; ``at`` is where its
    annotations end.
    """
    routing = NO_ROUTING
    if data.startswith(PROPERTIES_BEGIN, at):
        said, at = scanner.scan(data, at)
        if said is None:
            return None
        routing = said
    properties = at
    if data.startswith(APPLICATION_BEGINS, at):
        at = end_of_plain_map(data, at)
        if not at:
            return None
    width = _BODIES.get(data[at : at + 4])
    if width is None or at - begin > MAX_HEAD_BYTES:
        return None
    head = at + 4 + width
    if head + int.from_bytes(data[at + 4 : head], "big") != len(data):
        return None
    return properties, at, head, routing


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
