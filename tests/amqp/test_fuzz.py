"""Whatever bytes come, they are read or refused: no other error, no memory that they only claim."""

import math
import struct
import tracemalloc
from functools import partial
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.amqp import performatives as said
from orthia.broker.protocols.amqp.encoding import TAG, head_for
from orthia.broker.protocols.amqp.frames import FrameReader, encode_frame
from orthia.broker.protocols.amqp.performatives import (
    decode_performative,
    decode_sasl,
    decode_transaction,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import (
    MAX_HEAD_BYTES,
    BodyCheck,
    Header,
    Properties,
    Sections,
    body_sections,
    check_application_properties,
    data_prefix,
    decode_body,
    delivered_head,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    find_sections,
    sections_of,
)
from orthia.broker.protocols.amqp.types import decode, encode, encode_described, end_of
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
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
)
from orthia.broker.protocols.stomp.encoding import parts_for
from orthia.journal.model.message import Message
from tests.hostile.fuzzing import damaged, fuzzed

MANY = fuzzed(100)
BYTES_A_BYTE = 400
"""What a byte of input may take in memory: a list of lists is the dearest."""


def within(kind: type, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    """Return integers of a type."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.sampled_from([low, high, 0, 1, 127, 128, 255]), st.integers(low, high)).map(
        lambda number: kind(min(max(number, low), high))
    )


TEXTS = st.one_of(st.text(max_size=20), st.text(min_size=250, max_size=260))
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
FLOATS = st.floats(width=32, allow_nan=False).map(Float)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    within(UByte, 8, signed=False),
    within(UShort, 16, signed=False),
    within(UInt, 32, signed=False),
    within(ULong, 64, signed=False),
    within(Byte, 8, signed=True),
    within(Short, 16, signed=True),
    within(Int, 32, signed=True),
    within(int, 64, signed=True),
    within(Timestamp, 64, signed=True),
    FLOATS,
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.sampled_from([4, 8, 16])
    .flatmap(lambda size: st.binary(min_size=size, max_size=size))
    .map(Decimal),
    st.uuids(),
    st.binary(max_size=20),
    TEXTS,
    SYMBOLS,
)
KEYS = st.one_of(TEXTS, SYMBOLS, st.binary(max_size=5))
ARRAYS: st.SearchStrategy[Any] = st.one_of(
    st.lists(SYMBOLS, max_size=5).map(lambda values: Array(0xA3, tuple(values))),
    st.lists(TEXTS, max_size=5).map(
        lambda values: Array(
            0xB1 if any(len(one.encode()) > 255 for one in values) else 0xA1, tuple(values)
        )
    ),
    st.lists(within(UInt, 32, signed=False), max_size=5).map(lambda v: Array(0x70, tuple(v))),
    st.lists(within(int, 64, signed=True), max_size=5).map(
        lambda values: Array(0x81, tuple(values), Symbol("of:longs"))
    ),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(SCALARS, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Described, st.one_of(SYMBOLS, within(ULong, 64, signed=False)), inner),
    ),
    max_leaves=12,
)
NAMED: st.SearchStrategy[Any] = st.dictionaries(SYMBOLS, VALUES, max_size=3)
NAMES: st.SearchStrategy[Any] = st.lists(SYMBOLS, max_size=3).map(tuple)
U32 = st.integers(0, 2**32 - 1)
SAID_ERROR = st.none() | st.builds(said.Error, SYMBOLS, st.none() | TEXTS, NAMED)
OUTCOMES: st.SearchStrategy[Any] = st.one_of(
    st.just(said.ACCEPTED),
    st.just(said.RELEASED),
    st.builds(said.Rejected, SAID_ERROR),
    st.builds(said.Modified, st.booleans(), st.booleans(), st.none() | NAMED),
    st.builds(said.Declared, st.binary(max_size=9)),
)
STATES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    OUTCOMES,
    st.builds(said.Received, U32, st.integers(0, 2**64 - 1)),
    st.builds(said.TransactionalState, st.binary(max_size=9), st.none() | OUTCOMES),
)
TERMINUS: tuple[Any, ...] = (*(st.none() | TEXTS, U32, SYMBOLS, U32, st.booleans(), NAMED),)
SOURCES = st.builds(
    said.Source, *TERMINUS, st.none() | SYMBOLS, NAMED, st.none() | OUTCOMES, NAMES, NAMES
)
TARGETS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.builds(said.Target, *TERMINUS, NAMES), st.builds(said.Coordinator, NAMES)
)
SHORTS = st.integers(0, 2**16 - 1)
BYTES = st.integers(0, 255)
PERFORMATIVES: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        said.Open,
        *(TEXTS, st.none() | TEXTS, U32, SHORTS, st.none() | U32, NAMES, NAMES, NAMES, NAMES),
        NAMED,
    ),
    st.builds(said.Begin, st.none() | SHORTS, U32, U32, U32, U32, NAMES, NAMES, NAMED),
    st.builds(
        said.Attach,
        *(TEXTS, U32, st.booleans(), BYTES, BYTES, st.none() | SOURCES, TARGETS),
        st.dictionaries(st.binary(max_size=9), VALUES, max_size=2),
        *(st.booleans(), st.none() | U32, st.integers(0, 2**64 - 1), NAMES, NAMES, NAMED),
    ),
    st.builds(
        said.Flow,
        *(st.none() | U32, U32, U32, U32, *[st.none() | U32] * 4, st.booleans(), st.booleans()),
        NAMED,
    ),
    st.builds(
        said.Transfer,
        *(U32, st.none() | U32, st.none() | st.binary(max_size=32), st.none() | U32),
        *(st.none() | st.booleans(), st.booleans(), st.none() | BYTES, STATES),
        *[st.booleans()] * 3,
    ),
    st.builds(
        said.Disposition, st.booleans(), U32, st.none() | U32, st.booleans(), STATES, st.booleans()
    ),
    st.builds(said.Detach, U32, st.booleans(), SAID_ERROR),
    st.builds(said.End, SAID_ERROR),
    st.builds(said.Close, SAID_ERROR),
)
SAID: st.SearchStrategy[Any] = st.none() | TEXTS
IDS: st.SearchStrategy[Any] = st.one_of(
    SAID, st.uuids(), st.binary(max_size=9), within(ULong, 64, signed=False)
)
TIMES: st.SearchStrategy[Any] = st.none() | within(Timestamp, 64, signed=True)
HEADS: st.SearchStrategy[bytes] = st.builds(
    lambda header, annotations, properties, applications: b"".join(
        (
            encode_header(header),
            encode_annotations(annotations),
            encode_properties(properties),
            encode_application_properties(applications),
        )
    ),
    st.builds(Header, st.booleans(), BYTES, st.none() | U32, st.booleans(), U32),
    NAMED,
    st.builds(
        Properties,
        *(IDS, st.none() | st.binary(max_size=9), SAID, SAID, SAID, IDS, st.none() | SYMBOLS),
        *(st.none() | SYMBOLS, TIMES, TIMES, SAID, st.none() | U32, SAID),
    ),
    st.dictionaries(TEXTS, SCALARS, max_size=4),
)
BODIES: st.SearchStrategy[bytes] = st.one_of(
    st.just(b""),
    VALUES.map(lambda value: encode_described(0x77, encode(value))),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda pieces: b"".join(data_prefix(len(one)) + one for one in pieces)
    ),
    st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=3).map(
        lambda lists: b"".join(encode_described(0x76, encode(one)) for one in lists)
    ),
)


def types_of(value: object) -> object:
    """Return the types in a value, for 1 equals True and 1.0."""
    if isinstance(value, dict):
        return [(types_of(key), types_of(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_of(one) for one in value]
    return type(value)


@MANY
@given(VALUES)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    """With its types; and where it ends is found without decoding it."""
    encoded = encode(value)
    decoded, end = decode(encoded)
    assert (decoded, end) == (value, len(encoded))
    assert types_of(decoded) == types_of(value)
    assert end_of(encoded) == len(encoded)
    assert encode(decoded) == encoded


@MANY
@given(PERFORMATIVES)
def test_a_performative_comes_back_as_it_was(performative: object) -> None:
    """Every field of every one."""
    body = encode_performative(performative)
    assert decode_performative(body) == (performative, len(body))


@MANY
@given(HEADS, BODIES)
def test_a_message_comes_back_as_it_was(head: bytes, body: bytes) -> None:
    """Divided, delivered again and read by others; the bare message is what it was."""
    message = head + body
    sections = sections_of(message)
    check_application_properties(message, sections)
    kept, rest = message[: sections.head], message[sections.head :]
    decode_body(sections_of(kept), rest)
    again = delivered_head(kept, sections, delivery_count=7)
    bare = message[sections.message_annotations :]
    assert (again + rest).endswith(bare)
    record = Message("orders", kept, rest, 0, 0, 4, encoding=TAG)
    assert head_for(record) + record.body == message
    lines, _ = parts_for(record)
    assert b"\0" not in lines
    record.content()
    record.properties()
    moved = record.relocated("DLQ", {"_AMQ_ORIG_QUEUE": "orders"})
    assert moved.properties()["_AMQ_ORIG_QUEUE"] == "orders"
    assert moved.body == rest


@MANY
@given(HEADS, BODIES, st.integers(1, 9), st.binary(max_size=20))
def test_a_body_is_checked_in_pieces_as_it_is_whole(
    head: bytes, body: bytes, step: int, behind: bytes
) -> None:
    """Neither lets through what the other does not."""
    message = head + body + behind
    try:
        sections = sections_of(message)
    except AmqpDecodeError:
        return
    rest = message[sections.head :]
    outcomes = []
    for look in (partial(_look_whole, sections), partial(_look_in_pieces, sections, step)):
        try:
            look(rest)
        except AmqpDecodeError:
            outcomes.append(False)
        else:
            outcomes.append(True)
    assert outcomes[0] == outcomes[1]


def _look_whole(sections: Sections, body: bytes) -> None:
    for _ in body_sections(sections, body):
        pass


def _look_in_pieces(sections: Sections, step: int, body: bytes) -> None:
    check = BodyCheck(sections)
    for at in range(0, len(body), step):
        check.add(body[at : at + step])
    check.finish()


# --- bytes that nobody wrote


TOKENS = (
    b"\0\x53",
    b"\x40",
    b"\x45",
    b"\xa0\xff",
    b"\xb0\xff\xff\xff\xff",
    b"\xc0",
    b"\xd0\x7f\xff",
)


def read_all(data: bytes) -> None:
    """Read bytes as everything that bytes of a client are read as."""
    for read in (decode, end_of, decode_performative, decode_sasl, decode_transaction):
        refused_or_read(read, data)
    refused_or_read(find_sections, data)
    refused_or_read(read_message, data)
    reader = FrameReader(512)
    reader.receive(b"AMQP\0\1\0\0")
    reader.next_frame()
    reader.receive(data)
    refused_or_read(lambda _: list(iter(reader.next_frame, None)), data)


def refused_or_read(read: Any, data: bytes) -> None:
    """Read bytes; an error says where in them it is."""
    try:
        read(data)
    except AmqpDecodeError as error:
        is_told = 0 <= error.at <= len(data) and bool(error.expected)
    else:
        is_told = True
    assert is_told


def read_message(data: bytes) -> None:
    """Read a message as a receiver, and as everybody who reads it later."""
    sections = sections_of(data)
    assert sections.head <= min(len(data), MAX_HEAD_BYTES + 5)
    head, body = data[: sections.head], data[sections.head :]
    record = Message("orders", head, body, 0, 0, 4, encoding=TAG)
    parts_for(record)
    record.relocated("DLQ", {"_AMQ_ORIG_QUEUE": "orders"}).expiring(5).prioritized(3).stamped()
    refused_or_read(lambda _: record.fields(), data)
    refused_or_read(lambda _: record.properties(), data)
    refused_or_read(lambda _: record.content(), data)
    decode_body(sections, body)


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever they are read as."""
    read_all(data)


@MANY
@given(
    st.one_of(
        VALUES.map(encode),
        PERFORMATIVES.map(encode_performative),
        PERFORMATIVES.map(lambda one: encode_frame(encode_performative(one))),
        st.builds(lambda head, body: head + body, HEADS, BODIES),
    ).flatmap(lambda whole: damaged(whole, TOKENS))
)
def test_what_was_damaged_on_the_way_is_read_or_refused(data: bytes) -> None:
    """Nearly right is what goes deepest."""
    read_all(data)


@MANY
@given(
    st.sampled_from([b"\x45", b"\x40", b"\x43", b"\xc1\1\0", b"\xa1\0", b"\0\x44\x40"]),
    st.sampled_from([0xD0, 0xD1, 0xF0]),
    st.integers(0, 3_000),
    st.integers(0, 31),
)
def test_memory_is_in_proportion_to_what_came(
    element: bytes, code: int, count: int, depth: int
) -> None:
    """Of the values whose encoding is shortest as of any: nothing is allocated for a claim."""
    constructor = element[:1] if code == 0xF0 else b""
    content = constructor + (element[1:] if code == 0xF0 else element) * count
    encoded = bytes([code]) + struct.pack(">II", len(content) + 4, count) + content
    for _ in range(depth):
        encoded = b"\xd0" + struct.pack(">II", len(encoded) + 4, 1) + encoded
    tracemalloc.start()
    try:
        refused_or_read(decode, encoded)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < 100_000 + BYTES_A_BYTE * len(encoded)


def test_numbers_that_are_none_come_back() -> None:
    """They equal nothing, themselves included."""
    for kind in (float, Float):
        decoded, _ = decode(encode(kind("nan")))
        assert isinstance(decoded, float)
        assert math.isnan(decoded)
    assert decode(encode(UUID(int=5)))[0] == UUID(int=5)
