# mypyc compiles this module.
"""A message, whatever protocol it came by, and the bytes it is stored as.

What a protocol wrote of a message beside its body is kept as it came: the *head*, with a tag of its
*encoding*. A client of that protocol gets it back as it was sent, and nothing is parsed unless
somebody asks for the message's ``fields``; see ``encodings`` beside this. What no head says is
in the message's *stated* fields.

A record of version 1, big-endian; its head is of the encoding ``FIRST_ENCODING``::

    version u8 | priority u8 | address length u16 | head length u32 | body length u32
    timestamp i64 | expires i64 | address | head | body | CRC-32 of all before it, u32

Version 2 is a large message: in the place of the body it says where the body is::

    id u64 | size u64 | CRC-32 of the body, u32

Version 3 says what the others cannot. It begins as they do; the head length counts all of::

    encoding u8 | flags u8 (1: the body is a large one's, as in version 2) | stated length u32
    stated fields, a JSON document | head

Version 4 is version 3 with an encoding that nodes of before do not read: ``SECOND_ENCODING``.

A message is written in the first version that can say it, so that older nodes read it. All four are
read for ever.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from orthia.journal.errors import CorruptRecord
from orthia.journal.model.encodings import (
    FIRST_ENCODING,
    KNOWN,
    NO_HEAD,
    SECOND_ENCODING,
    Content,
    encoding_of,
)
from orthia.journal.model.fields import (
    Fields,
    Property,
    decode_fields,
    encode_fields,
    properties_of,
)
from orthia.journal.model.moments import Moment, MomentKind

PLAIN_VERSION: Final = 1
LARGE_VERSION: Final = 2
STATED_VERSION: Final = 3
SECOND_ENCODING_VERSION: Final = 4
NEWEST_VERSION: Final = SECOND_ENCODING_VERSION
"""The highest of a record that this version of Orthia reads."""
_LARGE_BODY: Final = struct.Struct(">QQI")
_BEGINNING: Final = struct.Struct(">BBHIIqq")
_STATED: Final = struct.Struct(">BBI")
_IS_LARGE: Final = 1
_SECOND_ALONE: Final = _STATED.pack(SECOND_ENCODING, 0, 0)
"""Of a message of the second encoding that states nothing beside, as nearly all of them."""
_CRC: Final = struct.Struct(">I")
_MAX_ADDRESS_BYTES: Final = 0xFFFF
_EXPIRES: Final = struct.Struct(">q")
_EXPIRES_AT: Final = _BEGINNING.size - _EXPIRES.size
_NEVER: Final = bytes(_EXPIRES.size)
_SAYS_WHEN: Final = b'"delivery-ms":'
_STATED_VERSIONS: Final = (STATED_VERSION, SECOND_ENCODING_VERSION)
RECORD_OVERHEAD: Final = _BEGINNING.size + _CRC.size
"""Bytes of an encoded message of versions 1 and 2 beside its address, head and body."""
STATED_OVERHEAD: Final = _STATED.size
"""Bytes of one of version 3 beyond that, beside what it states."""
LARGE_OVERHEAD: Final = _LARGE_BODY.size
"""Bytes of one whose body lies outside the journal, in place of it."""


class LargeBody(NamedTuple):
    """The body of a large message, which lies outside the journal."""

    id: int
    size: int
    """In bytes."""
    checksum: int
    """CRC-32 of all of it."""


DEFAULT_PRIORITY: Final = 4
"""Of a message that says nothing of it, from 0 to 9; those of a higher one are delivered first."""


class Message(NamedTuple):
    """A message as it was accepted; a tuple because one is made for each that is sent."""

    address: str
    head: bytes
    """What the protocol it came by says of it beside the body, as it came."""
    body: bytes
    """Empty for a large message."""
    timestamp_ms: int
    """When the broker accepted it, milliseconds since 1970 UTC."""
    expires_ms: int
    """When it expires, milliseconds since 1970 UTC; 0 never."""
    priority: int
    large: LargeBody | None = None
    """Where the body of a large message is."""
    encoding: int = FIRST_ENCODING
    """Of its head: a tag of ``orthia.journal.model.encodings``."""
    stated: bytes = b""
    """What ``encode_fields`` makes of the fields that the head does not say, or says otherwise."""

    @property
    def body_size(self) -> int:
        """Bytes of the body, wherever it is."""
        return len(self.body) if self.large is None else self.large.size

    def fields(self) -> Fields:
        """Return what it says of itself, parsed; raises ValueError if that cannot be read."""
        stated = decode_fields(self.stated)
        if self.encoding == NO_HEAD:
            return stated
        said = encoding_of(self.encoding).fields(self.head)
        return stated.over(said) if self.stated else said

    @property
    def is_typed(self) -> bool:
        """Whether its properties have the types that their sender gave them."""
        return self.encoding != NO_HEAD and encoding_of(self.encoding).is_typed

    def properties(self) -> Mapping[str, Property]:
        """Return what selectors ask for; raises ValueError if that cannot be read."""
        stated = decode_fields(self.stated)
        if self.encoding == NO_HEAD:
            return properties_of(stated)
        said = encoding_of(self.encoding).properties(self.head)
        return {**said, **properties_of(stated)} if self.stated else said

    def content(self, large: bytes = b"") -> Content:
        """Return its body as every protocol can have it; raises ValueError if it cannot be read.

        ``large`` is the body of a large message.
        """
        body = large if self.large is not None else self.body
        if self.encoding == NO_HEAD:
            return Content("", body)
        return encoding_of(self.encoding).content(self.head, body)

    def moment(self) -> Moment | None:
        """Return when it is to leave its queue by itself; see the function of that name."""
        delivery_ms = decode_fields(self.stated).delivery_ms
        if delivery_ms is not None:
            return Moment(MomentKind.DUE, delivery_ms)
        return Moment(MomentKind.EXPIRES, self.expires_ms) if self.expires_ms else None

    def relocated(self, address: str, origin: Mapping[str, str]) -> "Message":
        """Return what is stored of it under another ``address``, for good: it expires no more.

        ``origin`` are the properties that say where it was.
        """
        if self.encoding == NO_HEAD:
            fields = decode_fields(self.stated)
            properties = {**fields.properties, **origin}
            stated = encode_fields(fields._replace(properties=properties))
            return self._replace(address=address, expires_ms=0, stated=stated)
        head = encoding_of(self.encoding).relocated(self.head, origin)
        return self._replace(address=address, expires_ms=0, head=head)

    def expiring(self, expires_ms: int) -> "Message":
        """Return it with another moment of expiry, which its head says, too; 0 is never."""
        if self.encoding == NO_HEAD:
            return self._replace(expires_ms=expires_ms)
        head = encoding_of(self.encoding).expiring(self.head, expires_ms)
        return self._replace(expires_ms=expires_ms, head=head)

    def prioritized(self, priority: int) -> "Message":
        """Return it with another priority, which its head says, too."""
        if self.encoding == NO_HEAD:
            return self._replace(priority=priority)
        head = encoding_of(self.encoding).prioritized(self.head, priority)
        return self._replace(priority=priority, head=head)

    def stamped(self) -> "Message":
        """Return it with its ``timestamp_ms`` said as Artemis' ingress timestamp."""
        if self.encoding == NO_HEAD:
            return with_property(self, "_AMQ_INGRESS_TIMESTAMP", str(self.timestamp_ms))
        head = encoding_of(self.encoding).stamped(self.head, self.timestamp_ms)
        return self._replace(head=head)


def with_property(message: Message, name: str, value: str) -> Message:
    """Return a message that says a property beside what it says."""
    fields = decode_fields(message.stated)
    properties = {**fields.properties, name: value}
    return message._replace(stated=encode_fields(fields._replace(properties=properties)))


def without_property(message: Message, name: str) -> Message:
    """Return a message without a property that was stated of it."""
    fields = decode_fields(message.stated)
    if name not in fields.properties:
        return message
    properties = {key: value for key, value in fields.properties.items() if key != name}
    return message._replace(stated=encode_fields(fields._replace(properties=properties)))


def encode_message(message: Message) -> bytes:
    """Return the stored form of ``message``; raise ValueError for an address over 65,535 bytes."""
    address_text, head, body, timestamp_ms, expires_ms, priority, large, encoding, stated = message
    version = PLAIN_VERSION
    if large is not None:
        version, body = LARGE_VERSION, _LARGE_BODY.pack(*large)
    if stated or encoding != FIRST_ENCODING:
        if encoding == SECOND_ENCODING and large is None and not stated:
            version, head = SECOND_ENCODING_VERSION, _SECOND_ALONE + head
        else:
            version = STATED_VERSION if encoding < SECOND_ENCODING else SECOND_ENCODING_VERSION
            flags = 0 if large is None else _IS_LARGE
            head = b"".join((_STATED.pack(encoding, flags, len(stated)), stated, head))
    address = address_text.encode()
    if len(address) > _MAX_ADDRESS_BYTES:
        raise ValueError(f"an address of {len(address)} bytes is longer than {_MAX_ADDRESS_BYTES}")
    beginning = _BEGINNING.pack(
        version, priority, len(address), len(head), len(body), timestamp_ms, expires_ms
    )
    beginning = b"".join((beginning, address, head))
    return b"".join((beginning, body, _CRC.pack(zlib.crc32(body, zlib.crc32(beginning)))))


def decode_message(data: bytes, seq: int) -> Message:
    """Return the message stored as ``data`` in row ``seq``; raise CorruptRecord."""
    if len(data) < RECORD_OVERHEAD:
        raise CorruptRecord(seq, f"{len(data)} bytes are fewer than a message has")
    version, priority, address_size, head_size, body_size, timestamp_ms, expires_ms = (
        _BEGINNING.unpack_from(data)
    )
    if not 0 < version <= NEWEST_VERSION:
        raise CorruptRecord(
            seq, f"its codec version is {version} and this node reads 1 to {NEWEST_VERSION}"
        )
    head_at = _BEGINNING.size + address_size
    body_at = head_at + head_size
    end = body_at + body_size
    if end + _CRC.size != len(data):
        raise CorruptRecord(seq, f"it has {len(data)} bytes and its lengths say {end + _CRC.size}")
    body = data[body_at:end]
    if zlib.crc32(body, zlib.crc32(data[:body_at])) != _CRC.unpack_from(data, end)[0]:
        raise CorruptRecord(seq, "its checksum does not match")
    try:
        address = data[_BEGINNING.size : head_at].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(seq, "its address is not UTF-8") from error
    if version == PLAIN_VERSION:
        return Message(address, data[head_at:body_at], body, timestamp_ms, expires_ms, priority)
    is_large, encoding, stated, large = version == LARGE_VERSION, FIRST_ENCODING, b"", None
    if version >= STATED_VERSION:
        is_large, encoding, stated = _stated(data[head_at:body_at], version, seq)
        head_at += _STATED.size + len(stated)
    if is_large:
        if body_size != _LARGE_BODY.size:
            raise CorruptRecord(seq, "it does not say where its large body is")
        large, body = LargeBody(*_LARGE_BODY.unpack(body)), b""
    head = data[head_at:body_at]
    return Message(
        *(address, head, body, timestamp_ms, expires_ms, priority, large, encoding, stated)
    )


def _stated(data: bytes, version: int, seq: int) -> tuple[bool, int, bytes]:
    """Return whether a message is large, its encoding and its stated fields."""
    if len(data) < _STATED.size:
        raise CorruptRecord(seq, "it does not say what its encoding is")
    encoding, flags, size = _STATED.unpack_from(data)
    stated = data[_STATED.size : _STATED.size + size]
    if len(stated) != size:
        raise CorruptRecord(seq, f"its stated fields are cut off at {len(stated)} bytes")
    is_second = version == SECOND_ENCODING_VERSION
    if encoding not in KNOWN or (encoding == SECOND_ENCODING) is not is_second or flags > _IS_LARGE:
        raise CorruptRecord(
            seq, f"its encoding is {encoding} with flags {flags}, which this node does not know"
        )
    try:
        decode_fields(stated)
    except ValueError as error:
        raise CorruptRecord(seq, str(error)) from None
    if encoding == NO_HEAD and len(data) != _STATED.size + size:
        raise CorruptRecord(seq, "it has a head of no encoding")
    return flags == _IS_LARGE, encoding, stated


def record_version(payload: bytes) -> int:
    """Return the version an encoded message is of; 0 if it is none."""
    return payload[0] if payload else 0


def moment(payload: bytes) -> Moment | None:
    """Return when an encoded message is to leave its queue by itself; None if it just waits.

    One that is to be delivered later leaves then, whenever it expires. Raises ValueError for fields
    that were never stored.
    """
    if len(payload) < _BEGINNING.size:
        return None
    if payload[0] in _STATED_VERSIONS:
        address_size: int = _BEGINNING.unpack_from(payload)[2]
        at = _BEGINNING.size + address_size
        _, _, size = _STATED.unpack_from(payload, at)
        stated = payload[at + _STATED.size : at + _STATED.size + size]
        if _SAYS_WHEN in stated:
            delivery_ms = decode_fields(stated).delivery_ms
            if delivery_ms is not None:
                return Moment(MomentKind.DUE, delivery_ms)
    if payload[_EXPIRES_AT : _BEGINNING.size] == _NEVER:
        return None
    return Moment(MomentKind.EXPIRES, _EXPIRES.unpack_from(payload, _EXPIRES_AT)[0])


def moment_bytes(beginning: bytes) -> int:
    """Return how many bytes of an encoded message ``moment`` needs, given its ``beginning``.

    0 if it has none, so that most need not be read any further.
    """
    if len(beginning) < _BEGINNING.size:
        return 0
    if beginning[0] >= STATED_VERSION:
        _, _, address_size, head_size, *_ = _BEGINNING.unpack_from(beginning)
        return _BEGINNING.size + int(address_size) + int(head_size)
    return 0 if beginning[_EXPIRES_AT : _BEGINNING.size] == _NEVER else _BEGINNING.size


def large_body(payload: bytes) -> LargeBody | None:
    """Return where the body of an encoded message is; None if it has its own.

    Raises struct.error for one that is cut off.
    """
    version = record_version(payload)
    if version == LARGE_VERSION or (version in _STATED_VERSIONS and _says_large(payload)):
        at = len(payload) - _CRC.size - _LARGE_BODY.size
        return LargeBody(*_LARGE_BODY.unpack_from(payload, at))
    return None


def large_body_id(payload: bytes) -> int | None:
    """Return the id of the large body an encoded message refers to; None if it has its own."""
    large = large_body(payload)
    return None if large is None else large.id


def large_body_size(payload: bytes) -> int:
    """Return the size of the large body an encoded message refers to; 0 if it has its own."""
    large = large_body(payload)
    return 0 if large is None else large.size


def _says_large(payload: bytes) -> bool:
    address_size: int = _BEGINNING.unpack_from(payload)[2]
    flags: int = _STATED.unpack_from(payload, _BEGINNING.size + address_size)[1]
    return flags == _IS_LARGE
