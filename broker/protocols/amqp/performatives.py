# mypyc compiles this module.
"""What AMQP's frames say: the performatives, and what is in them.

Each is a list with a descriptor; the tables below say for each field its name and its kind, in the
order of the list. Fields at the end that are null need not be there. A field that is null or absent
has the default of the class.

Each class has its fields in that order. Performatives are named tuples: one is made for each
message that comes, and for each disposition. What a broker sends most is written by functions of
its own, in ``frames`` beside this.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from orthia.broker.protocols.amqp.types import (
    ARRAY_8,
    ARRAY_32,
    BINARY_8,
    BINARY_32,
    BOOLEAN,
    CUT_OFF,
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
    AmqpDecodeError,
    AmqpEncodeError,
    Array,
    Symbol,
    Value,
)

MAX_PERFORMATIVE_BYTES: Final = 16_384
"""How long a performative may be; what a transfer carries does not count."""
SENDER: Final = False
"""The role of who sends messages on a link."""
RECEIVER: Final = True
UNSETTLED: Final = 0
"""A sender's settle mode: it learns the outcome of each delivery."""
SETTLED: Final = 1
MIXED: Final = 2
FIRST: Final = 0
"""A receiver's settle mode: it settles by itself."""
SECOND: Final = 1
"""A receiver's settle mode: it settles once the sender has."""

Symbols: TypeAlias = tuple[Symbol, ...]
FieldMap: TypeAlias = Mapping[Symbol, Value]
"""A map whose keys are symbols."""
_NO_FIELDS: Final[FieldMap] = {}


# --- errors and outcomes


class Error(NamedTuple):
    """Why a peer ends a connection, a session or a link, or rejects a message."""

    condition: Symbol
    description: str | None = None
    info: FieldMap = _NO_FIELDS


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver has taken the message: it is gone from its source."""


@dataclass(frozen=True, slots=True)
class Released:
    """The message is to be delivered again, as if it had not been."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The receiver finds the message invalid: it goes to the dead letters."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Modified:
    """The message is to be delivered again, or elsewhere, with other annotations."""

    delivery_failed: bool = False
    """Whether the delivery counts as an attempt."""
    undeliverable_here: bool = False
    message_annotations: FieldMap | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """How far a receiver is with a message that still comes; no outcome."""

    section_number: int
    section_offset: int


@dataclass(frozen=True, slots=True)
class Declared:
    """The outcome of ``Declare``."""

    txn_id: bytes


@dataclass(frozen=True, slots=True)
class TransactionalState:
    """A delivery or its outcome is of a transaction."""

    txn_id: bytes
    outcome: "Outcome | None" = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Declared
DeliveryState: TypeAlias = Outcome | Received | TransactionalState
ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


# --- what a link has at its ends


class Source(NamedTuple):
    """Where a link's messages are from."""

    address: str | None = None
    durable: int = 0
    """What of the terminus outlives the link: 0 nothing, 1 that it is, 2 its unsettled, too."""
    expiry_policy: Symbol = Symbol("session-end")
    timeout: int = 0
    """How long it is kept after that, seconds."""
    dynamic: bool = False
    dynamic_node_properties: FieldMap = _NO_FIELDS
    distribution_mode: Symbol | None = None
    filter: FieldMap = _NO_FIELDS
    default_outcome: "Outcome | None" = None
    outcomes: Symbols = ()
    capabilities: Symbols = ()


class Target(NamedTuple):
    """Where a link's messages go."""

    address: str | None = None
    durable: int = 0
    expiry_policy: Symbol = Symbol("session-end")
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: FieldMap = _NO_FIELDS
    capabilities: Symbols = ()


class Coordinator(NamedTuple):
    """The target of a link by which transactions are begun and ended."""

    capabilities: Symbols = ()


# --- the performatives


class Open(NamedTuple):
    """Begin a connection."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 0xFFFFFFFF
    channel_max: int = 0xFFFF
    idle_time_out: int | None = None
    """In milliseconds."""
    outgoing_locales: Symbols = ()
    incoming_locales: Symbols = ()
    offered_capabilities: Symbols = ()
    desired_capabilities: Symbols = ()
    properties: FieldMap = _NO_FIELDS


class Begin(NamedTuple):
    """Begin a session."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = 0xFFFFFFFF
    offered_capabilities: Symbols = ()
    desired_capabilities: Symbols = ()
    properties: FieldMap = _NO_FIELDS


class Attach(NamedTuple):
    """Begin or resume a link."""

    name: str
    handle: int
    role: bool
    """Of who sends this: ``SENDER`` or ``RECEIVER``."""
    snd_settle_mode: int = MIXED
    rcv_settle_mode: int = FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Mapping[Any, Value] = _NO_FIELDS
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int = 0
    """In bytes; 0 is without a bound."""
    offered_capabilities: Symbols = ()
    desired_capabilities: Symbols = ()
    properties: FieldMap = _NO_FIELDS


class Flow(NamedTuple):
    """Say how far a session and a link are, and give credit."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: FieldMap = _NO_FIELDS


class Transfer(NamedTuple):
    """Carry a message, or a part of one, which follows it in its frame."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


class Disposition(NamedTuple):
    """Say the state of deliveries, from the first to the last."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


class Detach(NamedTuple):
    """End or suspend a link."""

    handle: int
    closed: bool = False
    error: Error | None = None


class End(NamedTuple):
    """End a session."""

    error: Error | None = None


class Close(NamedTuple):
    """End a connection."""

    error: Error | None = None


# --- SASL


class SaslMechanisms(NamedTuple):
    """Name the mechanisms by which a client may log in."""

    sasl_server_mechanisms: Symbols


class SaslInit(NamedTuple):
    """Choose one of them."""

    mechanism: Symbol
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslChallenge(NamedTuple):
    """Ask the client for more."""

    challenge: bytes


class SaslResponse(NamedTuple):
    """Answer a challenge."""

    response: bytes


class SaslOutcome(NamedTuple):
    """End the login: with 0 it succeeded."""

    code: int
    additional_data: bytes | None = None


# --- transactions: the messages to a coordinator


class Declare(NamedTuple):
    """Begin a transaction."""

    global_id: Value = None


class Discharge(NamedTuple):
    """End a transaction."""

    txn_id: bytes
    fail: bool = False
    """Whether it is rolled back."""


Performative: TypeAlias = (
    Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
)
SaslFrame: TypeAlias = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome

# --- the tables

_BOOL: Final = 0
_UBYTE: Final = 1
_USHORT: Final = 2
_UINT: Final = 3
_ULONG: Final = 4
_STRING: Final = 5
_SYMBOL: Final = 6
_BINARY: Final = 7
_SYMBOLS: Final = 8
"""A symbol or an array of symbols."""
_MAP: Final = 9
_ANY: Final = 10
_ERROR: Final = 11
_SOURCE: Final = 12
_TARGET: Final = 13
_STATE: Final = 14
_OUTCOME: Final = 15
_DELIVERIES: Final = 16
"""A map of delivery tags."""
_KINDS: Final = (
    *("a boolean", "a ubyte", "a ushort", "a uint", "a ulong", "a string", "a symbol"),
    *("a binary", "a symbol or an array of symbols", "a map with symbols as its keys", "a value"),
    *("an error", "a source", "a target or a coordinator", "a delivery state", "an outcome"),
    "a map of delivery tags",
)


class _Composite(NamedTuple):
    """A described list."""

    code: int
    name: str
    """As its symbolic descriptor has it: ``amqp:NAME:list``."""
    make: Callable[..., Any]
    fields: tuple[tuple[str, int], ...]
    defaults: tuple[Any, ...]
    mandatory: tuple[int, ...]


_MANDATORY: Final = object()


def _composite(
    code: int, name: str, make: Callable[..., Any], *fields: tuple[str, int] | tuple[str, int, Any]
) -> _Composite:
    """Return a row of the table; a field's third element is its default, in place of None."""
    defaults = tuple(field[2] if len(field) > 2 else None for field in fields)
    return _Composite(
        code,
        name,
        make,
        tuple((field[0], field[1]) for field in fields),
        tuple(None if default is _MANDATORY else default for default in defaults),
        tuple(at for at, default in enumerate(defaults) if default is _MANDATORY),
    )


_CAPABILITIES: Final = (
    ("offered-capabilities", _SYMBOLS, ()),
    ("desired-capabilities", _SYMBOLS, ()),
    ("properties", _MAP, _NO_FIELDS),
)
_TERMINUS: Final = (
    ("address", _STRING),
    ("durable", _UINT, 0),
    ("expiry-policy", _SYMBOL, Symbol("session-end")),
    ("timeout", _UINT, 0),
    ("dynamic", _BOOL, False),
    ("dynamic-node-properties", _MAP, _NO_FIELDS),
)
_COMPOSITES: Final = (
    _composite(
        0x10,
        "open",
        Open,
        ("container-id", _STRING, _MANDATORY),
        ("hostname", _STRING),
        ("max-frame-size", _UINT, 0xFFFFFFFF),
        ("channel-max", _USHORT, 0xFFFF),
        ("idle-time-out", _UINT),
        ("outgoing-locales", _SYMBOLS, ()),
        ("incoming-locales", _SYMBOLS, ()),
        *_CAPABILITIES,
    ),
    _composite(
        0x11,
        "begin",
        Begin,
        ("remote-channel", _USHORT),
        ("next-outgoing-id", _UINT, _MANDATORY),
        ("incoming-window", _UINT, _MANDATORY),
        ("outgoing-window", _UINT, _MANDATORY),
        ("handle-max", _UINT, 0xFFFFFFFF),
        *_CAPABILITIES,
    ),
    _composite(
        0x12,
        "attach",
        Attach,
        ("name", _STRING, _MANDATORY),
        ("handle", _UINT, _MANDATORY),
        ("role", _BOOL, _MANDATORY),
        ("snd-settle-mode", _UBYTE, MIXED),
        ("rcv-settle-mode", _UBYTE, FIRST),
        ("source", _SOURCE),
        ("target", _TARGET),
        ("unsettled", _DELIVERIES, _NO_FIELDS),
        ("incomplete-unsettled", _BOOL, False),
        ("initial-delivery-count", _UINT),
        ("max-message-size", _ULONG, 0),
        *_CAPABILITIES,
    ),
    _composite(
        0x13,
        "flow",
        Flow,
        ("next-incoming-id", _UINT),
        ("incoming-window", _UINT, _MANDATORY),
        ("next-outgoing-id", _UINT, _MANDATORY),
        ("outgoing-window", _UINT, _MANDATORY),
        ("handle", _UINT),
        ("delivery-count", _UINT),
        ("link-credit", _UINT),
        ("available", _UINT),
        ("drain", _BOOL, False),
        ("echo", _BOOL, False),
        ("properties", _MAP, _NO_FIELDS),
    ),
    _composite(
        0x14,
        "transfer",
        Transfer,
        ("handle", _UINT, _MANDATORY),
        ("delivery-id", _UINT),
        ("delivery-tag", _BINARY),
        ("message-format", _UINT),
        ("settled", _BOOL),
        ("more", _BOOL, False),
        ("rcv-settle-mode", _UBYTE),
        ("state", _STATE),
        ("resume", _BOOL, False),
        ("aborted", _BOOL, False),
        ("batchable", _BOOL, False),
    ),
    _composite(
        0x15,
        "disposition",
        Disposition,
        ("role", _BOOL, _MANDATORY),
        ("first", _UINT, _MANDATORY),
        ("last", _UINT),
        ("settled", _BOOL, False),
        ("state", _STATE),
        ("batchable", _BOOL, False),
    ),
    _composite(
        0x16,
        "detach",
        Detach,
        ("handle", _UINT, _MANDATORY),
        ("closed", _BOOL, False),
        ("error", _ERROR),
    ),
    _composite(0x17, "end", End, ("error", _ERROR)),
    _composite(0x18, "close", Close, ("error", _ERROR)),
    _composite(
        0x1D,
        "error",
        Error,
        ("condition", _SYMBOL, _MANDATORY),
        ("description", _STRING),
        ("info", _MAP, _NO_FIELDS),
    ),
    _composite(
        0x23,
        "received",
        Received,
        ("section-number", _UINT, _MANDATORY),
        ("section-offset", _ULONG, _MANDATORY),
    ),
    _composite(0x24, "accepted", Accepted),
    _composite(0x25, "rejected", Rejected, ("error", _ERROR)),
    _composite(0x26, "released", Released),
    _composite(
        0x27,
        "modified",
        Modified,
        ("delivery-failed", _BOOL, False),
        ("undeliverable-here", _BOOL, False),
        ("message-annotations", _MAP),
    ),
    _composite(
        0x28,
        "source",
        Source,
        *_TERMINUS,
        ("distribution-mode", _SYMBOL),
        ("filter", _MAP, _NO_FIELDS),
        ("default-outcome", _OUTCOME),
        ("outcomes", _SYMBOLS, ()),
        ("capabilities", _SYMBOLS, ()),
    ),
    _composite(0x29, "target", Target, *_TERMINUS, ("capabilities", _SYMBOLS, ())),
    _composite(0x30, "coordinator", Coordinator, ("capabilities", _SYMBOLS, ())),
    _composite(0x31, "declare", Declare, ("global-id", _ANY)),
    _composite(
        0x32, "discharge", Discharge, ("txn-id", _BINARY, _MANDATORY), ("fail", _BOOL, False)
    ),
    _composite(0x33, "declared", Declared, ("txn-id", _BINARY, _MANDATORY)),
    _composite(
        0x34,
        "transactional-state",
        TransactionalState,
        ("txn-id", _BINARY, _MANDATORY),
        ("outcome", _OUTCOME),
    ),
    _composite(
        0x40,
        "sasl-mechanisms",
        SaslMechanisms,
        ("sasl-server-mechanisms", _SYMBOLS, _MANDATORY),
    ),
    _composite(
        0x41,
        "sasl-init",
        SaslInit,
        ("mechanism", _SYMBOL, _MANDATORY),
        ("initial-response", _BINARY),
        ("hostname", _STRING),
    ),
    _composite(0x42, "sasl-challenge", SaslChallenge, ("challenge", _BINARY, _MANDATORY)),
    _composite(0x43, "sasl-response", SaslResponse, ("response", _BINARY, _MANDATORY)),
    _composite(
        0x44,
        "sasl-outcome",
        SaslOutcome,
        ("code", _UBYTE, _MANDATORY),
        ("additional-data", _BINARY),
    ),
)
_BY_CODE: Final = {one.code: one for one in _COMPOSITES}
_BY_CLASS: Final[dict[type, _Composite]] = {one.make: one for one in _COMPOSITES}  # type: ignore[misc]
_CODES: Final = {f"amqp:{one.name}:list": one.code for one in _COMPOSITES}
"""The codes by the symbolic descriptors."""
_PERFORMATIVES: Final = frozenset(range(0x10, 0x19))
_SASL: Final = frozenset(range(0x40, 0x45))
_TRANSACTIONS: Final = frozenset({0x31, 0x32})
_OUTCOMES: Final = frozenset({0x24, 0x25, 0x26, 0x27, 0x33})
_ALLOWED: Final[dict[int, frozenset[int]]] = {
    _ERROR: frozenset({0x1D}),
    _SOURCE: frozenset({0x28}),
    _TARGET: frozenset({0x29, 0x30}),
    _STATE: _OUTCOMES | {0x23, 0x34},
    _OUTCOME: _OUTCOMES,
}
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


# --- decoding


def decode_performative(body: bytes) -> tuple[Performative, int]:
    """Return what the body of an AMQP frame says, and where the message it carries begins.

    Raises AmqpDecodeError.
    """
    performative, end = _decode_body(body, _PERFORMATIVES, "a performative")
    if end != len(body) and not isinstance(performative, Transfer):
        raise AmqpDecodeError(end, "the end of the frame")
    return performative, end


def decode_sasl(body: bytes) -> SaslFrame:
    """Return what the body of a SASL frame says; raises AmqpDecodeError."""
    performative, end = _decode_body(body, _SASL, "a SASL performative")
    if end != len(body):
        raise AmqpDecodeError(end, "the end of the frame")
    sasl: SaslFrame = performative
    return sasl


def decode_transaction(value: bytes) -> Declare | Discharge:
    """Return what the value of a message to a coordinator says; raises AmqpDecodeError."""
    said, end = _decode_body(value, _TRANSACTIONS, "a declare or a discharge")
    if end != len(value):
        raise AmqpDecodeError(end, "the end of the message")
    asked: Declare | Discharge = said
    return asked


def _decode_body(body: bytes, allowed: frozenset[int], expected: str) -> tuple[Any, int]:
    try:
        value, end = _decode_composite(body, 0, allowed, expected, MAX_DEPTH)
    except (IndexError, struct.error):
        raise AmqpDecodeError(len(body), CUT_OFF) from None
    return value, end


def _decode_composite(
    data: bytes, at: int, allowed: frozenset[int], expected: str, depth: int
) -> tuple[Any, int]:
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
    if begin == 0 and end > MAX_PERFORMATIVE_BYTES:
        raise AmqpDecodeError(
            at, f"a performative of at most {MAX_PERFORMATIVE_BYTES} bytes, found {end}"
        )
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
        if kind == _UINT:
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
        elif kind == _BOOL:
            if field_code == TRUE:
                values[index] = True
                at += 1
                continue
            if field_code == FALSE:
                values[index] = False
                at += 1
                continue
        elif kind == _STATE and data[at : at + 4] == b"\0S\x24E":
            values[index] = ACCEPTED
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
    if kind in (_STRING, _SYMBOL, _BINARY):
        return _sized_field(data, at, code, kind)
    if kind == _BOOL:
        if code == BOOLEAN:
            return decode_value(data, at, 0)
        raise _WrongKind
    if kind == _UBYTE:
        if code == UBYTE:
            return data[at + 1], at + 2
        raise _WrongKind
    if kind == _USHORT:
        if code == USHORT:
            return int(_U16.unpack_from(data, at + 1)[0]), at + 3
        raise _WrongKind
    if kind == _ULONG:
        if code == SMALL_ULONG:
            return data[at + 1], at + 2
        if code == ULONG_0:
            return 0, at + 1
        if code == ULONG:
            return int(_U64.unpack_from(data, at + 1)[0]), at + 9
        raise _WrongKind
    if kind == _SYMBOLS:
        return _symbols(data, at, code, depth)
    if kind == _MAP:
        return _field_map(data, at, code, Symbol, depth)
    if kind == _DELIVERIES:
        return _field_map(data, at, code, bytes, depth)
    if kind == _ANY:
        return decode_value(data, at, depth)
    if kind == _UINT:
        raise _WrongKind
    if code != DESCRIBED:
        raise _WrongKind
    return _decode_composite(data, at, _ALLOWED[kind], _KINDS[kind], depth)


def _sized_field(data: bytes, at: int, code: int, kind: int) -> tuple[Any, int]:
    if code & 0xF0 == 0xA0:
        begin = at + 2
        end = begin + data[at + 1]
    else:
        begin = at + 5
        end = begin
        if code & 0xF0 == 0xB0:
            end += int(_U32.unpack_from(data, at + 1)[0])
    if kind == _BINARY:
        if code not in (BINARY_8, BINARY_32):
            raise _WrongKind
    elif kind == _STRING:
        if code not in (STRING_8, STRING_32):
            raise _WrongKind
    elif code not in (SYMBOL_8, SYMBOL_32):
        raise _WrongKind
    if end > len(data):
        raise AmqpDecodeError(len(data), CUT_OFF)
    raw = data[begin:end]
    if kind == _BINARY:
        return raw, end
    return (utf8(raw, begin) if kind == _STRING else symbol(raw, begin)), end


def _symbols(data: bytes, at: int, code: int, depth: int) -> tuple[Symbols, int]:
    if code in (SYMBOL_8, SYMBOL_32):
        one, end = _sized_field(data, at, code, _SYMBOL)
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


def encode_performative(said: object) -> bytes:
    """Return a performative, or anything else of the tables, as bytes; raises AmqpEncodeError."""
    composite = _BY_CLASS.get(type(said))
    if composite is None:
        raise AmqpEncodeError(f"a {type(said).__name__} is nothing that frames say")
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


def _values_of(said: Any, composite: _Composite) -> tuple[Any, ...]:
    if isinstance(said, tuple):
        return said
    return tuple(getattr(said, name.replace("-", "_")) for name, _ in composite.fields)


def _encode_field(kind: int, value: Any) -> bytes:
    if kind == _UINT:
        return encode_uint(value)
    if kind == _BOOL:
        return b"\x41" if value else b"\x42"
    if kind == _BINARY:
        return encode_binary(value)
    if kind == _STRING:
        return encode_string(value)
    if kind == _SYMBOL:
        return encode_symbol(value)
    if kind == _UBYTE:
        return b"\x50%c" % value
    if kind == _USHORT:
        return b"\x60%b" % _U16.pack(value)
    if kind == _ULONG:
        return encode_ulong(value)
    if kind == _SYMBOLS:
        return encode_symbols(value)
    if kind in (_MAP, _DELIVERIES):
        return encode_map(value)
    if kind == _ANY:
        return encode(value)
    return encode_performative(value)
