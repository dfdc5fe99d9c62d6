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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

from orthia.broker.protocols.amqp.composites import (
    A_BINARY,
    A_BOOLEAN,
    A_SOURCE,
    A_STATE,
    A_STRING,
    A_SYMBOL,
    A_TARGET,
    A_UBYTE,
    A_UINT,
    A_ULONG,
    A_USHORT,
    AN_ERROR,
    AN_OUTCOME,
    ANYTHING,
    DELIVERIES,
    FIELDS,
    MANDATORY,
    NO_FIELDS,
    SYMBOLS,
    FieldMap,
    Symbols,
    decode_whole,
    define,
    encode_composite,
)
from orthia.broker.protocols.amqp.types import (
    BINARY_8,
    FALSE,
    NULL,
    SMALL_UINT,
    TRUE,
    UINT,
    UINT_0,
    end_of,
)
from orthia.broker.protocols.amqp.values import AmqpDecodeError, Symbol, Value

_TRANSFER: Final = b"\0\x53\x14\xc0"
"""How a transfer begins that is a list of less than 256 bytes."""
_LIST_AT: Final = 6
"""Where its first field is."""
_UINTS: Final = {UINT_0: 0, SMALL_UINT: 1, UINT: 4}
"""By format code how many bytes a uint has."""
_NO_TRANSFER: Final = b"\xff"
"""No frame's body begins so."""
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

# --- errors and outcomes


class Error(NamedTuple):
    """Why a peer ends a connection, a session or a link, or rejects a message."""

    condition: Symbol
    description: str | None = None
    info: FieldMap = NO_FIELDS


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


def bare(outcome: "Outcome") -> "Outcome":
    """Return an outcome without what its peer says beside, which may be long, and is kept."""
    if isinstance(outcome, Rejected):
        return _REJECTED
    if isinstance(outcome, Modified):
        return Modified(outcome.delivery_failed, outcome.undeliverable_here)
    return outcome


_REJECTED: Final = Rejected()
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
    dynamic_node_properties: FieldMap = NO_FIELDS
    distribution_mode: Symbol | None = None
    filter: FieldMap = NO_FIELDS
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
    dynamic_node_properties: FieldMap = NO_FIELDS
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
    properties: FieldMap = NO_FIELDS


class Begin(NamedTuple):
    """Begin a session."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = 0xFFFFFFFF
    offered_capabilities: Symbols = ()
    desired_capabilities: Symbols = ()
    properties: FieldMap = NO_FIELDS


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
    unsettled: Mapping[Any, Value] = NO_FIELDS
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int = 0
    """In bytes; 0 is without a bound."""
    offered_capabilities: Symbols = ()
    desired_capabilities: Symbols = ()
    properties: FieldMap = NO_FIELDS


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
    properties: FieldMap = NO_FIELDS


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

_CAPABILITIES: Final = (
    ("offered-capabilities", SYMBOLS, ()),
    ("desired-capabilities", SYMBOLS, ()),
    ("properties", FIELDS, NO_FIELDS),
)
_TERMINUS: Final = (
    ("address", A_STRING),
    ("durable", A_UINT, 0),
    ("expiry-policy", A_SYMBOL, Symbol("session-end")),
    ("timeout", A_UINT, 0),
    ("dynamic", A_BOOLEAN, False),
    ("dynamic-node-properties", FIELDS, NO_FIELDS),
)
define(
    0x10,
    "open",
    Open,
    ("container-id", A_STRING, MANDATORY),
    ("hostname", A_STRING),
    ("max-frame-size", A_UINT, 0xFFFFFFFF),
    ("channel-max", A_USHORT, 0xFFFF),
    ("idle-time-out", A_UINT),
    ("outgoing-locales", SYMBOLS, ()),
    ("incoming-locales", SYMBOLS, ()),
    *_CAPABILITIES,
)
define(
    0x11,
    "begin",
    Begin,
    ("remote-channel", A_USHORT),
    ("next-outgoing-id", A_UINT, MANDATORY),
    ("incoming-window", A_UINT, MANDATORY),
    ("outgoing-window", A_UINT, MANDATORY),
    ("handle-max", A_UINT, 0xFFFFFFFF),
    *_CAPABILITIES,
)
define(
    0x12,
    "attach",
    Attach,
    ("name", A_STRING, MANDATORY),
    ("handle", A_UINT, MANDATORY),
    ("role", A_BOOLEAN, MANDATORY),
    ("snd-settle-mode", A_UBYTE, MIXED),
    ("rcv-settle-mode", A_UBYTE, FIRST),
    ("source", A_SOURCE),
    ("target", A_TARGET),
    ("unsettled", DELIVERIES, NO_FIELDS),
    ("incomplete-unsettled", A_BOOLEAN, False),
    ("initial-delivery-count", A_UINT),
    ("max-message-size", A_ULONG, 0),
    *_CAPABILITIES,
)
define(
    0x13,
    "flow",
    Flow,
    ("next-incoming-id", A_UINT),
    ("incoming-window", A_UINT, MANDATORY),
    ("next-outgoing-id", A_UINT, MANDATORY),
    ("outgoing-window", A_UINT, MANDATORY),
    ("handle", A_UINT),
    ("delivery-count", A_UINT),
    ("link-credit", A_UINT),
    ("available", A_UINT),
    ("drain", A_BOOLEAN, False),
    ("echo", A_BOOLEAN, False),
    ("properties", FIELDS, NO_FIELDS),
)
define(
    0x14,
    "transfer",
    Transfer,
    ("handle", A_UINT, MANDATORY),
    ("delivery-id", A_UINT),
    ("delivery-tag", A_BINARY),
    ("message-format", A_UINT),
    ("settled", A_BOOLEAN),
    ("more", A_BOOLEAN, False),
    ("rcv-settle-mode", A_UBYTE),
    ("state", A_STATE),
    ("resume", A_BOOLEAN, False),
    ("aborted", A_BOOLEAN, False),
    ("batchable", A_BOOLEAN, False),
)
define(
    0x15,
    "disposition",
    Disposition,
    ("role", A_BOOLEAN, MANDATORY),
    ("first", A_UINT, MANDATORY),
    ("last", A_UINT),
    ("settled", A_BOOLEAN, False),
    ("state", A_STATE),
    ("batchable", A_BOOLEAN, False),
)
define(
    0x16,
    "detach",
    Detach,
    ("handle", A_UINT, MANDATORY),
    ("closed", A_BOOLEAN, False),
    ("error", AN_ERROR),
)
define(0x17, "end", End, ("error", AN_ERROR))
define(0x18, "close", Close, ("error", AN_ERROR))
define(
    0x1D,
    "error",
    Error,
    ("condition", A_SYMBOL, MANDATORY),
    ("description", A_STRING),
    ("info", FIELDS, NO_FIELDS),
)
define(
    0x23,
    "received",
    Received,
    ("section-number", A_UINT, MANDATORY),
    ("section-offset", A_ULONG, MANDATORY),
)
define(0x24, "accepted", Accepted)
define(0x25, "rejected", Rejected, ("error", AN_ERROR))
define(0x26, "released", Released)
define(
    0x27,
    "modified",
    Modified,
    ("delivery-failed", A_BOOLEAN, False),
    ("undeliverable-here", A_BOOLEAN, False),
    ("message-annotations", FIELDS),
)
define(
    0x28,
    "source",
    Source,
    *_TERMINUS,
    ("distribution-mode", A_SYMBOL),
    ("filter", FIELDS, NO_FIELDS),
    ("default-outcome", AN_OUTCOME),
    ("outcomes", SYMBOLS, ()),
    ("capabilities", SYMBOLS, ()),
)
define(0x29, "target", Target, *_TERMINUS, ("capabilities", SYMBOLS, ()))
define(0x30, "coordinator", Coordinator, ("capabilities", SYMBOLS, ()))
define(0x31, "declare", Declare, ("global-id", ANYTHING))
define(0x32, "discharge", Discharge, ("txn-id", A_BINARY, MANDATORY), ("fail", A_BOOLEAN, False))
define(0x33, "declared", Declared, ("txn-id", A_BINARY, MANDATORY))
define(
    0x34,
    "transactional-state",
    TransactionalState,
    ("txn-id", A_BINARY, MANDATORY),
    ("outcome", AN_OUTCOME),
)
define(
    0x40,
    "sasl-mechanisms",
    SaslMechanisms,
    ("sasl-server-mechanisms", SYMBOLS, MANDATORY),
)
define(
    0x41,
    "sasl-init",
    SaslInit,
    ("mechanism", A_SYMBOL, MANDATORY),
    ("initial-response", A_BINARY),
    ("hostname", A_STRING),
)
define(0x42, "sasl-challenge", SaslChallenge, ("challenge", A_BINARY, MANDATORY))
define(0x43, "sasl-response", SaslResponse, ("response", A_BINARY, MANDATORY))
define(
    0x44,
    "sasl-outcome",
    SaslOutcome,
    ("code", A_UBYTE, MANDATORY),
    ("additional-data", A_BINARY),
)

_BOOLEANS: Final = {NULL: None, TRUE: True, FALSE: False}
_Flags: TypeAlias = tuple[bool | None, bool, bool, bool, bool]


def _all_flags() -> Iterator[tuple[bytes, _Flags]]:
    """Yield what may follow the tag of a transfer in the usual form, and what it says.

    That is message format 0, then booleans and nulls: settled, more, two that are null, resume,
    aborted, batchable. Those at the end need not be there.
    """
    some, null = tuple(_BOOLEANS), (NULL,)
    codes = (some, some, null, null, some, some, some)
    for count in range(len(codes) + 1):
        for chosen in product(*codes[:count]):
            said = [_BOOLEANS[code] for code in chosen] + [None] * (len(codes) - count)
            settled, more = said[0], bool(said[1])
            resume, aborted, batchable = bool(said[4]), bool(said[5]), bool(said[6])
            yield bytes((UINT_0, *chosen)), (settled, more, resume, aborted, batchable)


_FLAGS: Final[dict[bytes, _Flags]] = dict(_all_flags())
_U32: Final = struct.Struct(">I")
_PERFORMATIVES: Final = frozenset(range(0x10, 0x19))
_SASL: Final = frozenset(range(0x40, 0x45))
_TRANSACTIONS: Final = frozenset({0x31, 0x32})


# --- decoding


def decode_performative(body: bytes) -> tuple[Performative, int]:
    """Return what the body of an AMQP frame says, and where the message it carries begins.

    Raises AmqpDecodeError.
    """
    if body.startswith(_TRANSFER):
        found = _plain_transfer(body)
        if found is not None:
            return found
    if len(body) > MAX_PERFORMATIVE_BYTES:  # known before anything of it is decoded
        size = end_of(body)
        if size > MAX_PERFORMATIVE_BYTES:
            raise AmqpDecodeError(
                0, f"a performative of at most {MAX_PERFORMATIVE_BYTES} bytes, found {size}"
            )
    performative, end = decode_whole(body, _PERFORMATIVES, "a performative")
    if end != len(body) and not isinstance(performative, Transfer):
        raise AmqpDecodeError(end, "the end of the frame")
    return performative, end


def _plain_transfer(body: bytes) -> tuple[Transfer, int] | None:
    """Return a transfer in the form that most have, and where its message begins.

    None of any other form, and of one that is none: it is decoded as all others are.
    """
    try:
        code = body[6]
        if code == UINT_0:
            handle, at = 0, 7
        elif code == SMALL_UINT:
            handle, at = int(body[7]), 8
        elif code == UINT:
            handle, at = int(_U32.unpack_from(body, 7)[0]), 11
        else:
            return None
        code = body[at]
        if code == UINT:
            delivery_id, at = int(_U32.unpack_from(body, at + 1)[0]), at + 5
        elif code == SMALL_UINT:
            delivery_id, at = int(body[at + 1]), at + 2
        elif code == UINT_0:
            delivery_id, at = 0, at + 1
        else:
            return None
        if body[at] != BINARY_8:
            return None
        first = at + 2
        at = first + body[at + 1]
    except (IndexError, struct.error):
        return None
    end = 5 + body[4]
    flags = body[at:end]
    said = _FLAGS.get(flags)
    if said is None or len(flags) + 3 != body[5] or end > len(body):
        return None
    settled, more, resume, aborted, batchable = said
    tag = body[first:at]
    found = Transfer(
        *(handle, delivery_id, tag, 0, settled, more, None, None, resume, aborted, batchable)
    )
    return found, end


class TransferForm:
    """Knows transfers that say the same as one before, but for their delivery ids and tags.

    That is of those that carry a whole message and are of no transaction, which nearly all are.
    """

    __slots__ = (
        "_begins", "_ends", "_ends_at", "_id_at", "_tag_at", "_tag_begins", "end", "handle",
        "is_settled",
    )  # fmt: skip

    def __init__(self) -> None:
        """Know none so far."""
        self._begins = _NO_TRANSFER
        """What is before the delivery id, with its format code."""
        self._tag_begins = self._ends = b""
        """The format code and the length of the tag, and what is behind it."""
        self._id_at = self._tag_at = self._ends_at = self.end = 0
        """Where the id and both of these are; and where the message begins."""
        self.handle = 0
        self.is_settled = False

    def id_of(self, body: bytes) -> int:
        """Return the delivery id of the transfer that begins a frame's body; -1 if it is another.

        ``handle``, ``is_settled`` and ``end`` are what else there is to know of it.
        """
        if (
            body.startswith(self._begins)
            and body.startswith(self._tag_begins, self._tag_at)
            and body.startswith(self._ends, self._ends_at)
        ):
            return int.from_bytes(body[self._id_at : self._tag_at], "big")
        return -1

    def note(self, said: Transfer, body: bytes, end: int) -> None:
        """Know what is like the transfer that begins ``body``, and ends at ``end``, from now on."""
        if said.more or said.aborted or said.resume or said.state is not None:
            return
        if said.delivery_id is None or said.delivery_tag is None or said.message_format:
            return
        if not body.startswith(_TRANSFER):
            return
        id_at = _LIST_AT + 2 + _UINTS.get(body[_LIST_AT], 0)
        tag_at = id_at + _UINTS.get(body[id_at - 1], 0)
        if body[tag_at] != BINARY_8:
            return
        self._begins = body[:id_at]
        self._tag_begins = body[tag_at : tag_at + 2]
        self._id_at, self._tag_at = id_at, tag_at
        self._ends_at = tag_at + 2 + body[tag_at + 1]
        self._ends = body[self._ends_at : end]
        self.end = end
        self.handle = said.handle
        self.is_settled = bool(said.settled)


def decode_sasl(body: bytes) -> SaslFrame:
    """Return what the body of a SASL frame says; raises AmqpDecodeError."""
    performative, end = decode_whole(body, _SASL, "a SASL performative")
    if end != len(body):
        raise AmqpDecodeError(end, "the end of the frame")
    sasl: SaslFrame = performative
    return sasl


def decode_transaction(value: bytes) -> Declare | Discharge:
    """Return what the value of a message to a coordinator says; raises AmqpDecodeError."""
    said, end = decode_whole(value, _TRANSACTIONS, "a declare or a discharge")
    if end != len(value):
        raise AmqpDecodeError(end, "the end of the message")
    asked: Declare | Discharge = said
    return asked


# --- encoding


def encode_performative(said: object) -> bytes:
    """Return what one of the classes above says as bytes; raises AmqpEncodeError."""
    return encode_composite(said)
