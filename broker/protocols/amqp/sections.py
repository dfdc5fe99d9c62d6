# mypyc compiles this module.
"""A message as AMQP encodes it, in sections: where they are, and those that a broker writes anew.

A message is a row of described values, in this order; each may be absent::

    header | delivery annotations | message annotations     what brokers may change
    properties | application properties | body | footer     the bare message, which none may change

A body is one value, or any number of data sections, or of sequences. Here a message is kept in two
parts. Its *head* is all before the body, and of the body's first section what precedes the bytes of
a binary or a text: so the *body* begins with these bytes, and for most messages is nothing but
them, as other protocols have it. Head and body together are the message as it came.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from orthia.broker.protocols.amqp.composites import (
    A_BINARY,
    A_BOOLEAN,
    A_STRING,
    A_SYMBOL,
    A_TIMESTAMP,
    A_UBYTE,
    A_UINT,
    ANYTHING,
    decode_whole,
    define,
    encode_composite,
)
from orthia.broker.protocols.amqp.types import (
    BINARY_8,
    BINARY_32,
    DESCRIBED,
    LIST_0,
    LIST_8,
    LIST_32,
    MAP_8,
    MAP_32,
    SMALL_ULONG,
    STRING_8,
    STRING_32,
    SYMBOL_8,
    SYMBOL_32,
    ULONG,
    ULONG_0,
    claimed_end,
    decode,
    encode_described,
    encode_map,
    end_of,
    has_more_values,
    utf8,
)
from orthia.broker.protocols.amqp.values import (
    AmqpCutOffError,
    AmqpDecodeError,
    Symbol,
    Timestamp,
    ULong,
    Value,
)

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
NO_BODY: Final = 0
MAX_HEAD_BYTES: Final = 65_536
"""How long all before the body may be."""
MAX_HEAD_VALUES: Final = 512
"""How many values there may be in each section before the body; a property and its name are two."""
_FREE_SECTIONS: Final = 1_024
_SECTION_BYTES: Final = 1_024
"""How many sections a body may have in any case, and for how many bytes one more.

Each is looked at by itself: a body of many small ones would hold up everybody else.
"""
_NAMES: Final = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery-annotations",
    MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application-properties",
    DATA: "data",
    SEQUENCE: "amqp-sequence",
    VALUE: "amqp-value",
    FOOTER: "footer",
}
_BY_SYMBOL: Final = {
    **{f"amqp:{name}:map": code for code, name in _NAMES.items()},
    "amqp:header:list": HEADER,
    "amqp:properties:list": PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
}
_LISTS_AND_MAPS: Final = (b"", b"\x45", b"\xc0", b"\xc1", b"\xd0", b"\xd1")
_DESCRIPTORS: Final = (SMALL_ULONG, ULONG_0, ULONG, SYMBOL_8, SYMBOL_32)
"""The format codes of what describes a section."""
_DEFAULT_PRIORITY: Final = 4
_BEGINNING_BYTES: Final = 4_096
"""In how many bytes a section of a body says how long it is."""


class Header(NamedTuple):
    """How a message is to be delivered."""

    durable: bool = False
    priority: int = _DEFAULT_PRIORITY
    ttl: int | None = None
    """How long it lives, milliseconds from when it was sent."""
    first_acquirer: bool = False
    """Whether nobody can have had it before."""
    delivery_count: int = 0
    """How many deliveries of it failed."""


class Properties(NamedTuple):
    """What a message says of itself by names that AMQP has."""

    message_id: Value = None
    """A ``ULong``, a ``UUID``, a binary or a text; as the correlation id."""
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Value = None
    content_type: Symbol | None = None
    content_encoding: Symbol | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


NO_HEADER: Final = Header()
NO_PROPERTIES: Final = Properties()
define(
    HEADER,
    "header",
    Header,
    ("durable", A_BOOLEAN, False),
    ("priority", A_UBYTE, _DEFAULT_PRIORITY),
    ("ttl", A_UINT),
    ("first-acquirer", A_BOOLEAN, False),
    ("delivery-count", A_UINT, 0),
)
define(
    PROPERTIES,
    "properties",
    Properties,
    ("message-id", ANYTHING),
    ("user-id", A_BINARY),
    ("to", A_STRING),
    ("subject", A_STRING),
    ("reply-to", A_STRING),
    ("correlation-id", ANYTHING),
    ("content-type", A_SYMBOL),
    ("content-encoding", A_SYMBOL),
    ("absolute-expiry-time", A_TIMESTAMP),
    ("creation-time", A_TIMESTAMP),
    ("group-id", A_STRING),
    ("group-sequence", A_UINT),
    ("reply-to-group-id", A_STRING),
)


class Sections(NamedTuple):
    """Where the sections of a head end. Each begins where the one before it ends.

    One that is absent ends where it begins.
    """

    header: int
    delivery_annotations: int
    message_annotations: int
    properties: int
    application_properties: int
    head: int
    """How many bytes the head has: there the body begins, as this module divides a message."""
    body: int
    """What the body's first section is: ``DATA``, ``SEQUENCE``, ``VALUE`` or ``NO_BODY``."""
    code: int
    """The format code of what the first section holds; 0 without a body."""
    first: int
    """How many bytes of a binary or a text the body begins with; -1 if it begins with a section.

    Of a head alone, which then ends before its body, ``body`` is ``NO_BODY`` and this is -1.
    """


# --- finding


def find_sections(data: bytes) -> Sections | None:
    """Return where the sections of a message are whose beginning is ``data``.

    None before all of its head is there. Raises AmqpDecodeError for what is no message, and for a
    head of more than ``MAX_HEAD_BYTES``.
    """
    try:
        found = sections_of(data)
    except AmqpCutOffError:
        found = None
    if found is not None and found.body != NO_BODY:
        return found
    if len(data) > MAX_HEAD_BYTES:
        raise _head_too_long(len(data))
    return None


def sections_of(head: bytes) -> Sections:
    """Return where the sections of a whole message or of a head are; raises AmqpDecodeError."""
    ends = [0, 0, 0, 0, 0]
    at = done = 0
    length = len(head)
    while at < length:
        if at > MAX_HEAD_BYTES:
            raise _head_too_long(at)
        if at + 2 < length and head[at] == DESCRIBED and head[at + 1] == SMALL_ULONG:
            code, value_at = int(head[at + 2]), at + 3
            if not HEADER <= code <= FOOTER:
                raise _no_section(at)
        else:
            code, value_at = _section(head, at)
        if code == FOOTER:
            break
        if code >= DATA:
            return _with_body(head, ends, done, at, code, value_at)
        index = code - HEADER
        if index < done:
            raise AmqpDecodeError(at, f"one {_NAMES[code]} and in its place, found another")
        if value_at + 5 <= length and head[value_at] in (LIST_8, MAP_8):
            end = value_at + 2 + head[value_at + 1]
        else:
            end = _end_of_section(head, value_at, code)
        if end > length:
            raise AmqpCutOffError(length)
        if end - value_at > MAX_HEAD_VALUES and has_more_values(
            head, value_at, end, MAX_HEAD_VALUES
        ):
            raise AmqpDecodeError(
                at, f"at most {MAX_HEAD_VALUES} values, names among them, in the {_NAMES[code]}"
            )
        while done < index:
            ends[done] = at
            done += 1
        ends[index] = at = end
        done = index + 1
    while done < 5:
        ends[done] = at
        done += 1
    if at > MAX_HEAD_BYTES:
        raise _head_too_long(at)
    return Sections(ends[0], ends[1], ends[2], ends[3], ends[4], at, NO_BODY, 0, -1)


def _end_of_section(head: bytes, at: int, code: int) -> int:
    """Return where a section's list or map ends, as it says; perhaps behind all bytes."""
    if at + 5 <= len(head):
        form = head[at]
        if form in (LIST_32, MAP_32):
            return at + 5 + int.from_bytes(head[at + 1 : at + 5], "big")
    if head[at : at + 1] not in _LISTS_AND_MAPS:
        raise AmqpDecodeError(at, f"a list or a map as the {_NAMES[code]}")
    return end_of(head, at)


def _with_body(
    data: bytes, ends: list[int], done: int, at: int, code: int, value_at: int
) -> Sections:
    while done < 5:
        ends[done] = at
        done += 1
    if value_at >= len(data):
        raise AmqpCutOffError(len(data))
    form = data[value_at]
    if code != VALUE:
        _check_form(code, form, value_at)
    head, first = at, -1
    if form in (BINARY_8, STRING_8):
        head = value_at + 2
        first = data[value_at + 1] if head <= len(data) else 0
    elif form in (BINARY_32, STRING_32):
        head = value_at + 5
        first = int.from_bytes(data[value_at + 1 : head], "big")
    if head > len(data):
        raise AmqpCutOffError(len(data))
    return Sections(ends[0], ends[1], ends[2], ends[3], ends[4], head, code, form, first)


def _check_form(code: int, form: int, at: int) -> None:
    """Raise AmqpDecodeError if a section of a body may not be of a format code."""
    if code == DATA and form not in (BINARY_8, BINARY_32):
        raise AmqpDecodeError(at, f"a binary as the data, found 0x{form:02x}")
    if code == SEQUENCE and form not in (LIST_0, LIST_8, LIST_32):
        raise AmqpDecodeError(at, f"a list as the sequence, found 0x{form:02x}")


def _section(data: bytes, at: int) -> tuple[int, int]:
    """Return the code of the section at ``at``, and where its value begins.

    Raises AmqpDecodeError for what is none.
    """
    if data[at] != DESCRIBED:
        raise AmqpDecodeError(at, f"a section of a message, found 0x{data[at]:02x}")
    if at + 2 < len(data) and data[at + 1] == SMALL_ULONG:
        code, value_at = int(data[at + 2]), at + 3
    else:
        code, value_at = 0, at
        if at + 1 >= len(data):
            raise AmqpCutOffError(len(data))
        if data[at + 1] in _DESCRIPTORS:  # a list, of whatever length, describes no section
            descriptor, value_at = decode(data, at + 1)
            if isinstance(descriptor, Symbol):
                code = _BY_SYMBOL.get(descriptor, 0)
            elif isinstance(descriptor, ULong):
                code = descriptor
    if not HEADER <= code <= FOOTER:
        raise _no_section(at)
    return code, value_at


def _no_section(at: int) -> AmqpDecodeError:
    return AmqpDecodeError(at, "a section of a message, found another descriptor")


def _head_too_long(found: int) -> AmqpDecodeError:
    return AmqpDecodeError(0, f"at most {MAX_HEAD_BYTES} bytes before the body, found {found}")


# --- reading


def header_of(head: bytes, sections: Sections) -> Header:
    """Return the header, or its defaults; raises AmqpDecodeError."""
    if not sections.header:
        return NO_HEADER
    header, _ = decode_whole(head[: sections.header], frozenset({HEADER}), "a header")
    found: Header = header
    return found


def properties_of(head: bytes, sections: Sections) -> Properties:
    """Return the properties; raises AmqpDecodeError."""
    begin, end = sections.message_annotations, sections.properties
    if begin == end:
        return NO_PROPERTIES
    properties, _ = decode_whole(head[begin:end], frozenset({PROPERTIES}), "properties")
    found: Properties = properties
    return found


def message_annotations_of(head: bytes, sections: Sections) -> dict[object, Value]:
    """Return the message annotations; raises AmqpDecodeError."""
    return map_in(head, sections.delivery_annotations, sections.message_annotations)


def application_properties_of(head: bytes, sections: Sections) -> dict[object, Value]:
    """Return the application's properties; raises AmqpDecodeError."""
    return map_in(head, sections.properties, sections.application_properties)


def map_in(head: bytes, begin: int, end: int) -> dict[object, Value]:
    """Return what a section that is a map holds, by where it is; raises AmqpDecodeError."""
    if begin == end:
        return {}
    _, at = decode(head, begin + 1)
    values, _ = decode(head, at)
    if not isinstance(values, dict):
        raise AmqpDecodeError(at, "a map")
    return values


def check_application_properties(head: bytes, sections: Sections) -> None:
    """Raise AmqpDecodeError if they cannot be read, by who asks for them later."""
    for name in application_properties_of(head, sections):
        if not isinstance(name, str):
            raise AmqpDecodeError(sections.properties, "texts as the names of properties")


class BodySection(NamedTuple):
    """A section of a body: what it is, and where in the body its value is."""

    code: int
    """``DATA``, ``SEQUENCE``, ``VALUE`` or ``FOOTER``."""
    form: int
    """The format code of its value."""
    begin: int
    """Where its value begins: of a binary or a text that begins the body, where its bytes do."""
    end: int


def body_sections(sections: Sections, body: bytes) -> Iterator[BodySection]:
    """Yield the sections of a body in their order, the footer last; raises AmqpDecodeError.

    ``sections`` are those of its head.
    """
    at = count = 0
    before = NO_BODY
    if sections.first >= 0:
        at, before = sections.first, sections.body
        if at > len(body):
            raise AmqpCutOffError(len(body))
        yield BodySection(before, sections.code, 0, at)
    while at < len(body):
        count += 1
        _check_count(count, at)
        code, begin = _section(body, at)
        _check_order(before, code, at)
        end = end_of(body, begin)
        _check_form(code, body[begin], begin)
        yield BodySection(code, body[begin], begin, end)
        at, before = end, code


def _check_count(count: int, at: int) -> None:
    """Raise AmqpDecodeError if the first ``at`` bytes of a body have too many sections."""
    if count > _FREE_SECTIONS + at // _SECTION_BYTES:
        raise AmqpDecodeError(
            at,
            f"at most {_FREE_SECTIONS} sections of a body, and one more for each"
            f" {_SECTION_BYTES} bytes",
        )


def _check_order(before: int, code: int, at: int) -> None:
    """Raise AmqpDecodeError if a section of a body may not follow the one ``before`` it."""
    is_next = before == NO_BODY or (code == before and code != VALUE) or code == FOOTER
    if code < DATA or before == FOOTER or not is_next:
        raise AmqpDecodeError(at, f"the end or more of the body, found {_NAMES[code]}")


class BodyCheck:
    """Looks whether a body is one that comes in pieces of any size, and keeps none of them.

    Of the values it learns how long they are; what lists and maps have in them is not looked at,
    as in ``body_sections``.
    """

    __slots__ = ("_at", "_before", "_begun", "_count", "_left")

    def __init__(self, sections: Sections) -> None:
        """``sections`` are those of its head."""
        self._before = sections.body if sections.first >= 0 else NO_BODY
        self._left = max(sections.first, 0)
        """Bytes of a value that are still to come."""
        self._begun = b""
        """The beginning of a section that does not say yet how long it is."""
        self._at = max(sections.first, 0)
        """Where the section begins that comes next."""
        self._count = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes; raises AmqpDecodeError if they are no part of a body."""
        at, end = 0, len(data)
        while at < end:
            if self._left:
                skipped = min(self._left, end - at)
                self._left -= skipped
                at += skipped
                continue
            known = len(self._begun)
            begun = self._begun + data[at : at + _BEGINNING_BYTES]
            try:
                after = self._begin(begun)
            except AmqpCutOffError:
                if len(begun) >= _BEGINNING_BYTES:
                    raise AmqpDecodeError(
                        self._at, f"the length of a section in its first {_BEGINNING_BYTES} bytes"
                    ) from None
                self._begun = begun
                return
            self._begun = b""
            self._at += after
            skipped = min(after - known, end - at)
            self._left = after - known - skipped
            at += skipped

    def _begin(self, begun: bytes) -> int:
        """Return where the section ends that begins here; raises AmqpDecodeError."""
        _check_count(self._count + 1, self._at)
        code, begin = _section(begun, 0)
        _check_order(self._before, code, self._at)
        end = claimed_end(begun, begin)
        _check_form(code, begun[begin], begin)
        self._before = code
        self._count += 1
        return end

    def finish(self) -> None:
        """Raise AmqpCutOffError if more is to come."""
        if self._left or self._begun:
            raise AmqpCutOffError(self._at)


class Body(NamedTuple):
    """What a body is, decoded."""

    code: int
    """``DATA``, ``SEQUENCE``, ``VALUE`` or ``NO_BODY``."""
    value: Value
    """Of data the bytes, of sequences a list of all their elements; None without a body."""


def decode_body(sections: Sections, body: bytes) -> Body:
    """Return what a body says, its footer left out; raises AmqpDecodeError.

    ``sections`` are those of its head.
    """
    found = NO_BODY
    pieces: list[bytes] = []
    elements: list[Value] = []
    value: Value = None
    for one in body_sections(sections, body):
        if one.code == FOOTER:
            continue
        found = one.code
        if one.begin == 0:
            value = body[: one.end]
            if one.form in (STRING_8, STRING_32):
                value = utf8(body[: one.end], 0)
        else:
            value, _ = decode(body, one.begin)
        if found == DATA and isinstance(value, bytes):
            pieces.append(value)
        elif found == SEQUENCE and isinstance(value, list):
            elements.extend(value)
    if found == DATA:
        return Body(DATA, pieces[0] if len(pieces) == 1 else b"".join(pieces))
    return Body(found, elements if found == SEQUENCE else value)


# --- writing


def delivered_head(
    head: bytes,
    sections: Sections,
    *,
    delivery_count: int,
    header: Header | None = None,
    annotations: Mapping[Symbol, Value] | None = None,
) -> bytes:
    """Return a head as a consumer gets it: without delivery annotations, the bare message as it is.

    ``delivery_count`` is the number of failed deliveries. ``header`` is what its header says if not
    what it said; ``annotations`` are added to those of the message, in the place of any of the same
    names. Raises AmqpDecodeError.
    """
    begin, end = sections.delivery_annotations, sections.message_annotations
    if header is None and not delivery_count and not annotations:
        said = sections.header
        if said == begin:
            return head
        return head[:said] + head[begin:]
    if header is None:
        header = header_of(head, sections)
    if delivery_count != header.delivery_count:
        header = header._replace(delivery_count=delivery_count)
    written = encode_header(header)
    if annotations:
        there = message_annotations_of(head, sections)
        for name, value in annotations.items():
            there[name] = value
        return b"".join((written, encode_annotations(there), head[end:]))
    return written + head[begin:]


def with_annotations(head: bytes, sections: Sections, annotations: Mapping[Symbol, Value]) -> bytes:
    """Return a head with message annotations beside or in the place of its own.

    One whose value is None is removed. Raises AmqpDecodeError.
    """
    begin, end = sections.delivery_annotations, sections.message_annotations
    there = message_annotations_of(head, sections)
    for name, value in annotations.items():
        if value is None:
            there.pop(name, None)
        else:
            there[name] = value
    written = encode_annotations(there) if there else b""
    return b"".join((head[:begin], written, head[end:]))


def with_header(head: bytes, sections: Sections, header: Header) -> bytes:
    """Return a head with another header."""
    return encode_header(header) + head[sections.header :]


def with_properties(head: bytes, sections: Sections, properties: Properties) -> bytes:
    """Return a head with other properties; raises AmqpEncodeError."""
    begin, end = sections.message_annotations, sections.properties
    return b"".join((head[:begin], encode_properties(properties), head[end:]))


def with_application_properties(
    head: bytes, sections: Sections, properties: Mapping[object, Value]
) -> bytes:
    """Return a head with other properties of the application; raises AmqpEncodeError."""
    begin, end = sections.properties, sections.application_properties
    return b"".join((head[:begin], encode_application_properties(properties), head[end:]))


def encode_header(header: Header) -> bytes:
    """Return a header section; empty if the header says nothing."""
    return b"" if header == NO_HEADER else encode_composite(header)


def encode_annotations(annotations: Mapping[object, Value]) -> bytes:
    """Return a section of message annotations; raises AmqpEncodeError."""
    return encode_described(MESSAGE_ANNOTATIONS, encode_map(annotations))


def encode_properties(properties: Properties) -> bytes:
    """Return a properties section; empty if there are none. Raises AmqpEncodeError."""
    if properties == NO_PROPERTIES:
        return b""
    return encode_composite(properties)


def encode_application_properties(properties: Mapping[Any, Value]) -> bytes:
    """Return a section of the application's properties; empty if there are none.

    Raises AmqpEncodeError.
    """
    return encode_described(APPLICATION_PROPERTIES, encode_map(properties)) if properties else b""


def data_prefix(size: int) -> bytes:
    """Return what precedes the ``size`` bytes of a data section."""
    return _prefix(DATA, BINARY_8, size)


def text_prefix(size: int) -> bytes:
    """Return what precedes the ``size`` bytes of a text as the value of a message."""
    return _prefix(VALUE, STRING_8, size)


def _prefix(section: int, code: int, size: int) -> bytes:
    if size < 256:
        return b"\0\x53%c%c%c" % (section, code, size)
    return b"\0\x53%c%c%b" % (section, code | 0x10, size.to_bytes(4, "big"))
