# mypyc compiles this module.
"""Described lists by tables: what AMQP's performatives, outcomes and sections are.

A table says for each field its name and its kind, in the order of the list. Fields at the end that
are null need not be there. A field that is null or absent has its default.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from orthia.broker.protocols.amqp.types import (
    ARRAY_8,
    ARRAY_32,
    BINARY_8,
    BINARY_32,
    BOOLEAN,
    DESCRIBED,
    FALSE,
    LIST_0,
    LIST_8,
    LIST_32,
    MAP_8,
    MAP_32,
    MAX_DEPTH,
    NULL,
    SMALL_UINT,
    SMALL_ULONG,
    STRING_8,
    STRING_32,
    SYMBOL_8,
    SYMBOL_32,
    TIMESTAMP,
    TRUE,
    UBYTE,
    UINT,
    UINT_0,
    ULONG,
    ULONG_0,
    USHORT,
    compound_extent,
    decode_value,
    encode,
    encode_binary,
    encode_described,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_symbols,
    encode_uint,
    encode_ulong,
    symbol,
    utf8,
)
from orthia.broker.protocols.amqp.values import (
    AmqpCutOffError,
    AmqpDecodeError,
    AmqpEncodeError,
    Array,
    Symbol,
    Timestamp,
    Value,
)

Symbols: TypeAlias = tuple[Symbol, ...]
FieldMap: TypeAlias = Mapping[Symbol, Value]
"""A map whose keys are symbols."""
NO_FIELDS: Final[FieldMap] = {}


A_BOOLEAN: Final = 0
A_UBYTE: Final = 1
A_USHORT: Final = 2
A_UINT: Final = 3
A_ULONG: Final = 4
A_STRING: Final = 5
A_SYMBOL: Final = 6
A_BINARY: Final = 7
SYMBOLS: Final = 8
"""A symbol or an array of symbols."""
FIELDS: Final = 9
ANYTHING: Final = 10
AN_ERROR: Final = 11
A_SOURCE: Final = 12
A_TARGET: Final = 13
A_STATE: Final = 14
AN_OUTCOME: Final = 15
DELIVERIES: Final = 16
"""A map of delivery tags."""
A_TIMESTAMP: Final = 17
_KINDS: Final = (
    *("a boolean", "a ubyte", "a ushort", "a uint", "a ulong", "a string", "a symbol"),
    *("a binary", "a symbol or an array of symbols", "a map with symbols as its keys", "a value"),
    *("an error", "a source", "a target or a coordinator", "a delivery state", "an outcome"),
    *("a map of delivery tags", "a timestamp"),
)


class Composite(NamedTuple):
    """A described list."""

    code: int
    name: str
    """As its symbolic descriptor has it: ``amqp:NAME:list``."""
    make: Callable[..., Any]
    fields: tuple[tuple[str, int], ...]
    defaults: tuple[Any, ...]
    mandatory: tuple[int, ...]


MANDATORY: Final = object()
"""In the place of the default of a field that has to be there."""
_BY_CODE: Final[dict[int, Composite]] = {}
_BY_CLASS: Final[dict[type, Composite]] = {}
_CODES: Final[dict[str, int]] = {}
"""The codes by the symbolic descriptors."""
_CONSTANTS: Final[dict[bytes, Any]] = {}
"""The values of lists without fields, by their shortest encoding."""


def define(
    code: int, name: str, make: type, *fields: tuple[str, int] | tuple[str, int, Any]
) -> None:
    """Add a row to the table.

    ``make`` takes the fields in their order. A field's third element is its default, in place of
    None.
    """
    defaults = tuple(field[2] if len(field) > 2 else None for field in fields)
    composite = Composite(
        code,
        name,
        make,
        tuple((field[0], field[1]) for field in fields),
        tuple(None if default is MANDATORY else default for default in defaults),
        tuple(at for at, default in enumerate(defaults) if default is MANDATORY),
    )
    _BY_CODE[code] = composite
    _BY_CLASS[make] = composite
    _CODES[f"amqp:{name}:list"] = code
    if not fields:
        _CONSTANTS[b"\0\x53%c\x45" % code] = make()


_OUTCOMES: Final = frozenset({0x24, 0x25, 0x26, 0x27, 0x33})
_ALLOWED: Final[dict[int, frozenset[int]]] = {
    AN_ERROR: frozenset({0x1D}),
    A_SOURCE: frozenset({0x28}),
    A_TARGET: frozenset({0x29, 0x30}),
    A_STATE: _OUTCOMES | {0x23, 0x34},
    AN_OUTCOME: _OUTCOMES,
}
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


def decode_whole(body: bytes, allowed: frozenset[int], expected: str) -> tuple[Any, int]:
    """Return the described list that ``body`` begins with, and where it ends.

    ``allowed`` are the codes it may have, and ``expected`` says so. Raises AmqpDecodeError.
    """
    try:
        value, end = decode_composite(body, 0, allowed, expected, MAX_DEPTH)
    except (IndexError, struct.error):
        raise AmqpCutOffError(len(body)) from None
    return value, end


def decode_composite(
    data: bytes, at: int, allowed: frozenset[int], expected: str, depth: int
) -> tuple[Any, int]:
    """Do as ``decode_whole``; raise IndexError or struct.error for what is cut off."""
    begin = at
    if depth <= 0:
        raise AmqpDecodeError(at, f"values at most {MAX_DEPTH} deep in each other")
    if data[at] != DESCRIBED:
        raise AmqpDecodeError(at, f"{expected}, found the format code 0x{data[at]:02x}")
    if data[at + 1] == SMALL_ULONG:
        code = data[at + 2]
        at += 3
    else:
        code, at = _descriptor(data, at + 1)
    if code not in allowed:
        raise AmqpDecodeError(begin, f"{expected}, found the descriptor 0x{code:x}")
    composite = _BY_CODE[code]
    list_code = data[at]
    at += 1
    if list_code == LIST_0:
        count, end = 0, at
    elif list_code in (LIST_8, LIST_32):
        count, at, end = compound_extent(data, list_code, at)
    else:
        raise AmqpDecodeError(at - 1, f"the list of {composite.name}, found 0x{list_code:02x}")
    fields = composite.fields
    if count > len(fields):
        raise AmqpDecodeError(
            at, f"at most {len(fields)} fields of {composite.name}, found {count}"
        )
    values = list(composite.defaults)
    for index in range(count):
        field_code = data[at]
        if field_code == NULL:
            at += 1
            continue
        kind = fields[index][1]
        if kind == A_UINT:
            if field_code == SMALL_UINT:
                values[index] = data[at + 1]
                at += 2
                continue
            if field_code == UINT_0:
                values[index] = 0
                at += 1
                continue
            if field_code == UINT:
                values[index] = _U32.unpack_from(data, at + 1)[0]
                at += 5
                continue
        elif kind == A_BOOLEAN:
            if field_code == TRUE:
                values[index] = True
                at += 1
                continue
            if field_code == FALSE:
                values[index] = False
                at += 1
                continue
        elif kind == A_STATE:
            constant = _CONSTANTS.get(data[at : at + 4])
            if constant is not None:
                values[index] = constant
                at += 4
                continue
        try:
            values[index], at = _field(data, at, field_code, kind, depth - 1)
        except _WrongKind:
            raise AmqpDecodeError(
                at,
                f"{_KINDS[kind]} for {fields[index][0]} of {composite.name}, "
                f"found the format code 0x{field_code:02x}",
            ) from None
    if at != end:
        raise AmqpDecodeError(
            at, f"the end of the {count} fields of {composite.name} at byte {end}"
        )
    for index in composite.mandatory:
        if values[index] is None:
            raise AmqpDecodeError(end, f"{composite.name} with its {fields[index][0]}")
    return composite.make(*values), end


class _WrongKind(Exception):  # noqa: N818 - becomes an AmqpDecodeError that names the field
    """A field has a format code of another type."""


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    """Return a descriptor that is not in the short form most have."""
    if data[at] == ULONG:
        return int(_U64.unpack_from(data, at + 1)[0]), at + 9
    begin = at
    value, at = decode_value(data, at, 1)
    if isinstance(value, Symbol):
        code = _CODES.get(value)
        if code is not None:
            return code, at
    raise AmqpDecodeError(begin, f"a descriptor that AMQP 1.0 defines, found {value!r:.80}")


def _field(data: bytes, at: int, code: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return a field that is not null, and where the next one begins; raises _WrongKind."""
    if kind in (A_STRING, A_SYMBOL, A_BINARY):
        return _sized_field(data, at, code, kind)
    if kind == A_BOOLEAN:
        if code == BOOLEAN:
            return decode_value(data, at, 0)
        raise _WrongKind
    if kind == A_UBYTE:
        if code == UBYTE:
            return data[at + 1], at + 2
        raise _WrongKind
    if kind == A_USHORT:
        if code == USHORT:
            return int(_U16.unpack_from(data, at + 1)[0]), at + 3
        raise _WrongKind
    if kind == A_ULONG:
        if code == SMALL_ULONG:
            return data[at + 1], at + 2
        if code == ULONG_0:
            return 0, at + 1
        if code == ULONG:
            return int(_U64.unpack_from(data, at + 1)[0]), at + 9
        raise _WrongKind
    if kind == SYMBOLS:
        return _symbols(data, at, code, depth)
    if kind == FIELDS:
        return _field_map(data, at, code, Symbol, depth)
    if kind == DELIVERIES:
        return _field_map(data, at, code, bytes, depth)
    if kind == ANYTHING:
        return decode_value(data, at, depth)
    if kind == A_TIMESTAMP:
        if code == TIMESTAMP:
            return decode_value(data, at, 0)
        raise _WrongKind
    if kind == A_UINT:
        raise _WrongKind
    if code != DESCRIBED:
        raise _WrongKind
    return decode_composite(data, at, _ALLOWED[kind], _KINDS[kind], depth)


def _sized_field(data: bytes, at: int, code: int, kind: int) -> tuple[Any, int]:
    if code & 0xF0 == 0xA0:
        begin = at + 2
        end = begin + data[at + 1]
    else:
        begin = at + 5
        end = begin
        if code & 0xF0 == 0xB0:
            end += int(_U32.unpack_from(data, at + 1)[0])
    if kind == A_BINARY:
        if code not in (BINARY_8, BINARY_32):
            raise _WrongKind
    elif kind == A_STRING:
        if code not in (STRING_8, STRING_32):
            raise _WrongKind
    elif code not in (SYMBOL_8, SYMBOL_32):
        raise _WrongKind
    if end > len(data):
        raise AmqpCutOffError(len(data))
    raw = data[begin:end]
    if kind == A_BINARY:
        return raw, end
    return (utf8(raw, begin) if kind == A_STRING else symbol(raw, begin)), end


def _symbols(data: bytes, at: int, code: int, depth: int) -> tuple[Symbols, int]:
    if code in (SYMBOL_8, SYMBOL_32):
        one, end = _sized_field(data, at, code, A_SYMBOL)
        return (one,), end
    if code not in (ARRAY_8, ARRAY_32):
        raise _WrongKind
    array, end = decode_value(data, at, depth)
    if not isinstance(array, Array) or (array.values and not isinstance(array.values[0], Symbol)):
        raise _WrongKind
    return array.values, end


def _field_map(
    data: bytes, at: int, code: int, kind_of_keys: type, depth: int
) -> tuple[Mapping[Any, Value], int]:
    if code not in (MAP_8, MAP_32):
        raise _WrongKind
    value, end = decode_value(data, at, depth)
    if not isinstance(value, dict) or not all(isinstance(key, kind_of_keys) for key in value):
        raise _WrongKind
    return value, end


# --- encoding


def encode_composite(said: object) -> bytes:
    """Return an instance of a class that is in the table as bytes; raises AmqpEncodeError."""
    composite = _BY_CLASS.get(type(said))
    if composite is None:
        raise AmqpEncodeError(f"a {type(said).__name__} is no described list of AMQP")
    values = _values_of(said, composite)
    encoded: list[bytes] = []
    last = 0
    for (name, kind), value, default in zip(
        composite.fields, values, composite.defaults, strict=True
    ):
        if value is None or (default is not None and value == default):
            encoded.append(b"\x40")
            continue
        try:
            encoded.append(_encode_field(kind, value))
        except (TypeError, AttributeError, OverflowError, struct.error) as error:
            raise AmqpEncodeError(
                f"{value!r:.80} is not {_KINDS[kind]}, as {name} of {composite.name} is"
            ) from error
        last = len(encoded)
    for index in composite.mandatory:
        if values[index] is None:
            raise AmqpEncodeError(f"{composite.name} has no {composite.fields[index][0]}")
    return encode_described(composite.code, encode_list(encoded[:last]))


def _values_of(said: Any, composite: Composite) -> tuple[Any, ...]:
    if isinstance(said, tuple):
        return said
    return tuple(getattr(said, name.replace("-", "_")) for name, _ in composite.fields)


def _encode_field(kind: int, value: Any) -> bytes:
    if kind == A_UINT:
        return encode_uint(value)
    if kind == A_BOOLEAN:
        return b"\x41" if value else b"\x42"
    if kind == A_BINARY:
        return encode_binary(value)
    if kind == A_STRING:
        return encode_string(value)
    if kind == A_SYMBOL:
        return encode_symbol(value)
    if kind == A_UBYTE:
        return b"\x50%c" % value
    if kind == A_USHORT:
        return b"\x60%b" % _U16.pack(value)
    if kind == A_ULONG:
        return encode_ulong(value)
    if kind == SYMBOLS:
        return encode_symbols(value)
    if kind in (FIELDS, DELIVERIES):
        return encode_map(value)
    if kind == ANYTHING:
        return encode(value)
    if kind == A_TIMESTAMP:
        return encode(Timestamp(value))
    return encode_composite(value)
