# mypyc compiles this module.
"""AMQP 1.0's types: bytes to values and back.

A value begins with a format code. Its upper half says how long the value is::

    0x4 0 bytes | 0x5 1 | 0x6 2 | 0x7 4 | 0x8 8 | 0x9 16
    0xa 1 byte that says how many follow | 0xb 4 bytes that say so
    0xc list or map: size and count, 1 byte each | 0xd the same, 4 bytes each
    0xe array: as 0xc, then one format code for all its elements | 0xf as 0xd

A code 0 is followed by two values, a descriptor and what it describes.

What bytes claim is never believed: nothing is allocated for a size or a count before that many
bytes are there.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from orthia.broker.protocols.amqp.values import (
    AmqpCutOffError,
    AmqpDecodeError,
    AmqpEncodeError,
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

MAX_DEPTH: Final = 32
"""How deep lists, maps, arrays and descriptors may be in each other."""
_MAX_HARD_KEYS: Final = 256
"""How many keys of a map may be neither text nor bytes.

Only of those Python chooses hashes that a client cannot foresee; with numbers it can make a map in
which each is compared to all others.
"""
DESCRIBED: Final = 0x00
NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT_0: Final = 0x43
ULONG_0: Final = 0x44
LIST_0: Final = 0x45
UBYTE: Final = 0x50
BYTE: Final = 0x51
SMALL_UINT: Final = 0x52
SMALL_ULONG: Final = 0x53
SMALL_INT: Final = 0x54
SMALL_LONG: Final = 0x55
BOOLEAN: Final = 0x56
USHORT: Final = 0x60
SHORT: Final = 0x61
UINT: Final = 0x70
INT: Final = 0x71
FLOAT: Final = 0x72
CHAR: Final = 0x73
DECIMAL_32: Final = 0x74
ULONG: Final = 0x80
LONG: Final = 0x81
DOUBLE: Final = 0x82
TIMESTAMP: Final = 0x83
DECIMAL_64: Final = 0x84
DECIMAL_128: Final = 0x94
UUID_CODE: Final = 0x98
BINARY_8: Final = 0xA0
STRING_8: Final = 0xA1
SYMBOL_8: Final = 0xA3
BINARY_32: Final = 0xB0
STRING_32: Final = 0xB1
SYMBOL_32: Final = 0xB3
LIST_8: Final = 0xC0
MAP_8: Final = 0xC1
LIST_32: Final = 0xD0
MAP_32: Final = 0xD1
ARRAY_8: Final = 0xE0
ARRAY_32: Final = 0xF0
_LISTS: Final = (LIST_8, LIST_32)
_MAPS: Final = (MAP_8, MAP_32)

_U16: Final = struct.Struct(">H")
_I16: Final = struct.Struct(">h")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_TWO_U32: Final = struct.Struct(">II")


def decode(data: bytes | memoryview, at: int = 0) -> tuple[Value, int]:
    """Return the value that begins at ``at``, and where the next one does.

    Raises AmqpDecodeError, and nothing else.
    """
    data = bytes(data)
    try:
        return decode_value(data, at, MAX_DEPTH)
    except (IndexError, struct.error):
        raise AmqpCutOffError(len(data)) from None


def end_of(data: bytes | memoryview, at: int = 0) -> int:
    """Return where the value that begins at ``at`` ends, without decoding it.

    Raises AmqpDecodeError if that is not in ``data``.
    """
    data = bytes(data)
    end = claimed_end(data, at)
    if end > len(data):
        raise AmqpCutOffError(len(data))
    return end


def claimed_end(data: bytes, at: int) -> int:
    """Return where the value that begins at ``at`` ends, as it says; perhaps behind all ``data``.

    Raises AmqpCutOffError if it does not say that yet, AmqpDecodeError for what is no value.
    """
    try:
        return _claimed_end(data, at)
    except (IndexError, struct.error):
        raise AmqpCutOffError(len(data)) from None


def _claimed_end(data: bytes, at: int) -> int:
    values = 1
    end = at
    descriptors = 0
    while values:
        code = data[end]
        end += 1
        values -= 1
        if code == DESCRIBED:
            values += 2
            descriptors += 1
            if descriptors > MAX_DEPTH:
                raise AmqpDecodeError(end - 1, f"at most {MAX_DEPTH} descriptors in each other")
            continue
        width = code >> 4
        if 4 < width < 10:
            end += 1 << (width - 5)
        elif width in (0xA, 0xC, 0xE):
            end += 1 + data[end]
        elif width in (0xB, 0xD, 0xF):
            end += 4 + int(_U32.unpack_from(data, end)[0])
        elif width != 4:
            raise AmqpDecodeError(end - 1, f"a format code, found 0x{code:02x}")
    return end


def has_more_values(data: bytes, at: int, end: int, most: int) -> bool:
    """Return whether there are more than ``most`` values between two places, those in others too.

    It takes as long as there are ``most`` of them at most. An array whose elements have values of
    their own counts as one for each byte. What is no value, or is cut off, ends the count: whoever
    decodes it says so.
    """
    if end - at <= most:
        return False  # each has a byte at least
    try:
        return _has_more_values(data, at, end, most)
    except (IndexError, struct.error):
        return False


def _has_more_values(data: bytes, at: int, end: int, most: int) -> bool:
    found = 0
    while at < end and found <= most:
        code = data[at]
        at += 1
        found += 1
        width = code >> 4
        if 4 < width < 10:
            at += 1 << (width - 5)
        elif width == 0xA:
            at += 1 + data[at]
        elif width == 0xB:
            at += 4 + int(_U32.unpack_from(data, at)[0])
        elif width == 0xC:
            at += 2
        elif width == 0xD:
            at += 8
        elif width >= 0xE:
            count, first, after = compound_extent(data, code, at)
            constructor = data[first]
            is_plain = 4 <= constructor >> 4 <= 0xB
            found += count if is_plain else after - first
            at = after
        elif width != 4 and code != DESCRIBED:
            return False
    return found > most


def decode_value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    """Do as ``decode``, and raise IndexError or struct.error for a value that is cut off.

    ``depth`` is how deep it may be.
    """
    return _of_code(data, data[at], at + 1, depth)


def _of_code(data: bytes, code: int, at: int, depth: int) -> tuple[Value, int]:
    """Return the value of a format code, whose own bytes begin at ``at``."""
    width = code >> 4
    if width == 0xA:
        size = data[at]
        at += 1
        return _variable(data, code, at, at + size), at + size
    if width == 0x4:
        return _of_no_bytes(code, at), at
    if width == 0x5:
        return _of_one_byte(code, data[at], at), at + 1
    if width == 0x8:
        return _of_eight_bytes(data, code, at), at + 8
    if width == 0x7:
        return _of_four_bytes(data, code, at), at + 4
    if width == 0xB:
        size = int(_U32.unpack_from(data, at)[0])
        at += 4
        return _variable(data, code, at, at + size), at + size
    if width >= 0xC:
        return _compound(data, code, at, depth)
    if code == DESCRIBED:
        if depth <= 0:
            raise _too_deep(at - 1)
        descriptor, at = decode_value(data, at, depth - 1)
        value, at = decode_value(data, at, depth - 1)
        return Described(descriptor, value), at
    if code == USHORT:
        return UShort(_U16.unpack_from(data, at)[0]), at + 2
    if code == SHORT:
        return Short(_I16.unpack_from(data, at)[0]), at + 2
    if code in (UUID_CODE, DECIMAL_128):
        raw = data[at : at + 16]
        if len(raw) != 16:
            raise AmqpCutOffError(len(data))
        return (UUID(bytes=raw) if code == UUID_CODE else Decimal(raw)), at + 16
    raise _no_such_code(code, at - 1)


def _of_no_bytes(code: int, at: int) -> Value:
    if code == NULL:
        return None
    if code == TRUE:
        return True
    if code == FALSE:
        return False
    if code == UINT_0:
        return UInt(0)
    if code == ULONG_0:
        return ULong(0)
    if code == LIST_0:
        return []
    raise _no_such_code(code, at - 1)


def _of_one_byte(code: int, byte: int, at: int) -> Value:
    if code == SMALL_ULONG:
        return ULong(byte)
    if code == SMALL_UINT:
        return UInt(byte)
    if code == UBYTE:
        return UByte(byte)
    if code == BOOLEAN:
        if byte > 1:
            raise AmqpDecodeError(at, f"0 or 1 for a boolean, found {byte}")
        return byte == 1
    signed = byte - 256 if byte > 127 else byte
    if code == SMALL_INT:
        return Int(signed)
    if code == SMALL_LONG:
        return signed
    if code == BYTE:
        return Byte(signed)
    raise _no_such_code(code, at - 1)


def _of_four_bytes(data: bytes, code: int, at: int) -> Value:
    if code == UINT:
        return UInt(_U32.unpack_from(data, at)[0])
    if code == INT:
        return Int(_I32.unpack_from(data, at)[0])
    if code == FLOAT:
        return Float(_F32.unpack_from(data, at)[0])
    if code == CHAR:
        point = int(_U32.unpack_from(data, at)[0])
        if point > 0x10FFFF or 0xD800 <= point < 0xE000:
            raise AmqpDecodeError(at, f"a character of Unicode, found 0x{point:x}")
        return Char(chr(point))
    if code == DECIMAL_32:
        _U32.unpack_from(data, at)
        return Decimal(data[at : at + 4])
    raise _no_such_code(code, at - 1)


def _of_eight_bytes(data: bytes, code: int, at: int) -> Value:
    if code == LONG:
        return int(_I64.unpack_from(data, at)[0])
    if code == TIMESTAMP:
        return Timestamp(_I64.unpack_from(data, at)[0])
    if code == ULONG:
        return ULong(_U64.unpack_from(data, at)[0])
    if code == DOUBLE:
        return float(_F64.unpack_from(data, at)[0])
    if code == DECIMAL_64:
        _U64.unpack_from(data, at)
        return Decimal(data[at : at + 8])
    raise _no_such_code(code, at - 1)


def _variable(data: bytes, code: int, at: int, end: int) -> Value:
    """Return bytes or a text."""
    if end > len(data):
        raise AmqpCutOffError(len(data))
    raw = data[at:end]
    if code in (STRING_8, STRING_32):
        return utf8(raw, at)
    if code in (SYMBOL_8, SYMBOL_32):
        return symbol(raw, at)
    if code in (BINARY_8, BINARY_32):
        return raw
    raise _no_such_code(code, at - (2 if code < 0xB0 else 5))


def utf8(raw: bytes, at: int) -> str:
    """Return a string's text, whose bytes begin at ``at``; raises AmqpDecodeError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(at + error.start, "a string in UTF-8") from None


def symbol(raw: bytes, at: int) -> Symbol:
    """Return a symbol, whose bytes begin at ``at``; raises AmqpDecodeError."""
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(at + error.start, "a symbol in ASCII") from None


def compound_extent(data: bytes, code: int, at: int) -> tuple[int, int, int]:
    """Return the count of a list, a map or an array, where its first element begins and its end.

    ``at`` is behind its format code. Raises AmqpDecodeError; IndexError or struct.error if it is
    cut off within its lengths.
    """
    if code & 0x10:
        size, count = _TWO_U32.unpack_from(data, at)
        first, counting = at + 8, 4
    else:
        size, count = data[at], data[at + 1]
        first, counting = at + 2, 1
    end = first - counting + int(size)
    if end > len(data):
        raise AmqpCutOffError(len(data))
    if end < first:
        raise AmqpDecodeError(at, f"a size of at least {counting}, found {size}")
    # An element of a list has a byte at least. One of an array may have none: a count of them
    # that has no bytes is only ever an attack.
    if count > end - first:
        raise AmqpDecodeError(at, f"a count of at most {end - first}, found {count}")
    return int(count), first, end


def _compound(data: bytes, code: int, at: int, depth: int) -> tuple[Value, int]:
    if depth <= 0:
        raise _too_deep(at - 1)
    depth -= 1
    count, first, end = compound_extent(data, code, at)
    value: Value
    if code in _LISTS:
        value, at = _list(data, first, count, depth)
    elif code in _MAPS:
        value, at = _map(data, first, count, depth)
    elif code in (ARRAY_8, ARRAY_32):
        value, at = _array(data, first, count, depth)
    else:
        raise _no_such_code(code, at - 1)
    if at != end:
        raise AmqpDecodeError(at, f"the end of the {count} elements at byte {end}")
    return value, end


def _list(data: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    for _ in range(count):
        value, at = _of_code(data, data[at], at + 1, depth)
        values.append(value)
    return values, at


def _map(data: bytes, at: int, count: int, depth: int) -> tuple[dict[Any, Any], int]:
    if count % 2:
        raise AmqpDecodeError(at, f"keys and values in pairs, found {count} elements")
    values: dict[Any, Any] = {}
    hard_keys = 0
    for _ in range(count // 2):
        key_at = at
        key, at = _of_code(data, data[at], at + 1, depth)
        if not isinstance(key, (str, bytes)):
            hard_keys += 1
            if hard_keys > _MAX_HARD_KEYS:
                raise AmqpDecodeError(
                    key_at, f"at most {_MAX_HARD_KEYS} keys of a map that are no text"
                )
        value, at = _of_code(data, data[at], at + 1, depth)
        try:
            values[key] = value
        except TypeError:
            raise AmqpDecodeError(key_at, "a key that is neither a list nor a map") from None
    return values, at


def _array(data: bytes, at: int, count: int, depth: int) -> tuple[Array, int]:
    descriptor: Value = None
    code = data[at]
    at += 1
    if code == DESCRIBED:
        if depth <= 0:
            raise _too_deep(at - 1)
        descriptor, at = decode_value(data, at, depth - 1)
        code = data[at]
        at += 1
        if code == DESCRIBED:
            raise AmqpDecodeError(at - 1, "one descriptor of an array's elements, found two")
    values: list[Any] = []
    for _ in range(count):
        value, at = _of_code(data, code, at, depth)
        values.append(value)
    return Array(code, tuple(values), descriptor), at


def _too_deep(at: int) -> AmqpDecodeError:
    return AmqpDecodeError(at, f"values at most {MAX_DEPTH} deep in each other")


def _no_such_code(code: int, at: int) -> AmqpDecodeError:
    return AmqpDecodeError(at, f"a format code, found 0x{code:02x}")


# --- encoding


def encode(value: object) -> bytes:
    """Return the shortest encoding of a value; a tuple counts as a list.

    Raises AmqpEncodeError for what has no type in AMQP, or is out of the range of its type.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise AmqpEncodeError(f"a {type(value).__name__} has no type in AMQP")
    try:
        return encoder(value)
    except (struct.error, OverflowError):
        raise AmqpEncodeError(f"{value!r:.80} is out of range for {type(value).__name__}") from None


def encode_uint(value: int) -> bytes:
    """Return the encoding of 32 bits without a sign; raises AmqpEncodeError."""
    if 0 < value < 256:
        return b"\x52%c" % value
    if not value:
        return b"\x43"
    try:
        return b"\x70%b" % _U32.pack(value)
    except struct.error:
        raise AmqpEncodeError(f"{value} has more than 32 bits") from None


def encode_ulong(value: int) -> bytes:
    """Return the encoding of 64 bits without a sign; raises AmqpEncodeError."""
    if 0 < value < 256:
        return b"\x53%c" % value
    if not value:
        return b"\x44"
    try:
        return b"\x80%b" % _U64.pack(value)
    except struct.error:
        raise AmqpEncodeError(f"{value} has more than 64 bits") from None


def encode_binary(value: bytes) -> bytes:
    """Return the encoding of bytes."""
    return _sized(BINARY_8, value)


def encode_string(value: str) -> bytes:
    """Return the encoding of a text; raises AmqpEncodeError for half a character."""
    try:
        return _sized(STRING_8, value.encode())
    except UnicodeEncodeError:
        raise AmqpEncodeError(f"{value!r:.80} has half a character") from None


def encode_symbol(value: str) -> bytes:
    """Return the encoding of a symbol; raises AmqpEncodeError if it is not in ASCII."""
    try:
        return _sized(SYMBOL_8, value.encode("ascii"))
    except UnicodeEncodeError:
        raise AmqpEncodeError(f"the symbol {value!r:.80} is not in ASCII") from None


def encode_symbols(values: tuple[str, ...]) -> bytes:
    """Return the encoding of some symbols, an array; raises as ``encode_symbol``."""
    return _encode_array(Array(SYMBOL_8, values))


def encode_list(encoded: list[bytes]) -> bytes:
    """Return the encoding of a list whose elements are encoded."""
    return _compound_of(LIST_8, encoded) if encoded else b"\x45"


def encode_map(values: Mapping[Any, Any]) -> bytes:
    """Return the encoding of a map; raises as ``encode``."""
    encoded: list[bytes] = []
    for key, value in values.items():
        encoded.append(encode(key))
        encoded.append(encode(value))
    return _compound_of(MAP_8, encoded)


def encode_described(code: int, encoded: bytes) -> bytes:
    """Return the encoding of what is encoded, with a defined descriptor."""
    return b"\0%b%b" % (encode_ulong(code), encoded)


def _sized(code: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return b"%c%c%b" % (code, len(raw), raw)
    return b"%c%b%b" % (code | 0x10, _U32.pack(len(raw)), raw)


def _compound_of(code: int, encoded: list[bytes]) -> bytes:
    content = b"".join(encoded)
    if len(content) < 255 and len(encoded) < 256:
        return b"%c%c%c%b" % (code, len(content) + 1, len(encoded), content)
    return b"%c%b%b" % (code | 0x10, _TWO_U32.pack(len(content) + 4, len(encoded)), content)


def _encode_bool(value: Any) -> bytes:
    return b"\x41" if value else b"\x42"


def _encode_long(value: Any) -> bytes:
    if -129 < value < 128:
        return b"\x55%c" % (value & 0xFF)
    return b"\x81%b" % _I64.pack(value)


def _encode_int(value: Any) -> bytes:
    if -129 < value < 128:
        return b"\x54%c" % (value & 0xFF)
    return b"\x71%b" % _I32.pack(value)


def _encode_char(value: Any) -> bytes:
    if len(value) != 1 or 0xD800 <= ord(value) < 0xE000:
        raise AmqpEncodeError(f"{value!r:.80} is not one character")
    return b"\x73%b" % _U32.pack(ord(value))


def _encode_list(values: Any) -> bytes:
    return encode_list([encode(value) for value in values])


_WIDEST: Final[dict[int, int]] = {
    TRUE: BOOLEAN,
    FALSE: BOOLEAN,
    UINT_0: UINT,
    SMALL_UINT: UINT,
    SMALL_INT: INT,
    ULONG_0: ULONG,
    SMALL_ULONG: ULONG,
    SMALL_LONG: LONG,
    LIST_0: LIST_32,
    LIST_8: LIST_32,
    MAP_8: MAP_32,
    ARRAY_8: ARRAY_32,
}
"""The format code of a type by which each of its values can be said."""


def _encode_array(array: Any) -> bytes:
    """Return an array with its format code, or the code that can say every value of its type."""
    code: int = _WIDEST.get(array.code, array.code)
    if code in (BINARY_8, STRING_8, SYMBOL_8):
        raws = [_raw(value) for value in array.values]
        if max(map(len, raws), default=0) < 256:
            elements = [b"%c%b" % (len(raw), raw) for raw in raws]
        else:
            code |= 0x10
            elements = [b"%b%b" % (_U32.pack(len(raw)), raw) for raw in raws]
    else:
        elements = [_element(code, value) for value in array.values]
    constructor = b"%c" % code
    if array.descriptor is not None:
        constructor = b"\0%b%b" % (encode(array.descriptor), constructor)
    content = constructor + b"".join(elements)
    if len(elements) > len(content):
        raise AmqpEncodeError(f"an array of {len(elements)} elements without bytes")
    if len(content) < 255 and len(elements) < 256:
        return b"\xe0%c%c%b" % (len(content) + 1, len(elements), content)
    return b"\xf0%b%b" % (_TWO_U32.pack(len(content) + 4, len(elements)), content)


def _raw(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise AmqpEncodeError(f"a {type(value).__name__} is no text or binary of an array")


def _element(code: int, value: Any) -> bytes:
    """Return a value as the element of an array of ``code``, without that code."""
    packed = _PACKED.get(code)
    if packed is not None:
        return packed.pack(value)
    if code == BOOLEAN:
        return b"\1" if value else b"\0"
    if code == NULL:
        return b""
    if code == CHAR:
        return _encode_char(value)[1:]
    if code == UUID_CODE:
        return bytes(value.bytes)
    if code in (DECIMAL_32, DECIMAL_64, DECIMAL_128):
        return bytes(value.raw)
    if code in (BINARY_32, STRING_32, SYMBOL_32):
        raw = _raw(value)
        return b"%b%b" % (_U32.pack(len(raw)), raw)
    encoded = encode(value)
    if code in (LIST_32, MAP_32, ARRAY_32):
        return _widened(encoded)
    raise AmqpEncodeError(f"0x{code:02x} is no format code of an array's elements")


def _widened(encoded: bytes) -> bytes:
    """Return the size, the count and the elements of an encoded list, map or array, in 32 bits."""
    if encoded[0] == LIST_0:
        return _TWO_U32.pack(4, 0)
    if encoded[0] & 0x10:
        return encoded[1:]
    return _TWO_U32.pack(len(encoded) + 1, encoded[2]) + encoded[3:]


_PACKED: Final[dict[int, struct.Struct]] = {
    UBYTE: struct.Struct(">B"),
    BYTE: struct.Struct(">b"),
    USHORT: _U16,
    SHORT: _I16,
    UINT: _U32,
    INT: _I32,
    FLOAT: _F32,
    ULONG: _U64,
    LONG: _I64,
    TIMESTAMP: _I64,
    DOUBLE: _F64,
}
_DECIMALS: Final = {4: DECIMAL_32, 8: DECIMAL_64, 16: DECIMAL_128}


def _encode_decimal(value: Any) -> bytes:
    code = _DECIMALS.get(len(value.raw))
    if code is None:
        raise AmqpEncodeError(f"no decimal has {len(value.raw)} bytes")
    return b"%c%b" % (code, value.raw)


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"\x40",
    bool: _encode_bool,
    int: _encode_long,
    Int: _encode_int,
    UInt: encode_uint,
    ULong: encode_ulong,
    UByte: lambda value: b"\x50%b" % _PACKED[UBYTE].pack(value),
    Byte: lambda value: b"\x51%b" % _PACKED[BYTE].pack(value),
    UShort: lambda value: b"\x60%b" % _U16.pack(value),
    Short: lambda value: b"\x61%b" % _I16.pack(value),
    Timestamp: lambda value: b"\x83%b" % _I64.pack(value),
    float: lambda value: b"\x82%b" % _F64.pack(value),
    Float: lambda value: b"\x72%b" % _F32.pack(value),
    Char: _encode_char,
    str: encode_string,
    Symbol: encode_symbol,
    bytes: encode_binary,
    UUID: lambda value: b"\x98%b" % value.bytes,
    Decimal: _encode_decimal,
    list: _encode_list,
    tuple: _encode_list,
    dict: encode_map,
    Described: lambda value: b"\0%b%b" % (encode(value.descriptor), encode(value.value)),
    Array: _encode_array,
}
