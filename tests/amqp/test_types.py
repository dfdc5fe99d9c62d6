"""AMQP's types as bytes: what the specification writes, and bytes that lie."""

import struct
import tracemalloc
from uuid import UUID

import pytest

from orthia.broker.protocols.amqp.types import MAX_DEPTH, decode, encode, end_of
from orthia.broker.protocols.amqp.values import (
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

# Each value with its shortest encoding, as the specification's part 1 defines it.
SHORTEST: list[tuple[Value, bytes]] = [
    (None, b"\x40"),
    (True, b"\x41"),
    (False, b"\x42"),
    (UByte(200), b"\x50\xc8"),
    (UShort(0x1234), b"\x60\x12\x34"),
    (UInt(0), b"\x43"),
    (UInt(255), b"\x52\xff"),
    (UInt(256), b"\x70\0\0\1\0"),
    (ULong(0), b"\x44"),
    (ULong(255), b"\x53\xff"),
    (ULong(2**64 - 1), b"\x80" + b"\xff" * 8),
    (Byte(-1), b"\x51\xff"),
    (Short(-2), b"\x61\xff\xfe"),
    (Int(-128), b"\x54\x80"),
    (Int(128), b"\x71\0\0\0\x80"),
    (127, b"\x55\x7f"),
    (-129, b"\x81" + b"\xff" * 7 + b"\x7f"),
    (Float(1.5), b"\x72\x3f\xc0\0\0"),
    (-2.0, b"\x82\xc0\0\0\0\0\0\0\0"),
    (Char("é"), b"\x73\0\0\0\xe9"),
    (Timestamp(1), b"\x83\0\0\0\0\0\0\0\1"),
    (Decimal(b"1234"), b"\x741234"),
    (Decimal(b"12345678"), b"\x8412345678"),
    (Decimal(b"1234567890123456"), b"\x941234567890123456"),
    (UUID(int=7), b"\x98" + bytes(15) + b"\7"),
    (b"\0\xff", b"\xa0\2\0\xff"),
    (b"x" * 256, b"\xb0\0\0\1\0" + b"x" * 256),
    ("é", b"\xa1\2\xc3\xa9"),
    ("x" * 256, b"\xb1\0\0\1\0" + b"x" * 256),
    (Symbol("abc"), b"\xa3\3abc"),
    (Symbol("x" * 256), b"\xb3\0\0\1\0" + b"x" * 256),
    ([], b"\x45"),
    ([True, "a"], b"\xc0\5\2\x41\xa1\1a"),
    (["x" * 255], b"\xd0\0\0\1\5\0\0\0\1\xa1\xff" + b"x" * 255),
    ({}, b"\xc1\1\0"),
    ({Symbol("a"): 1}, b"\xc1\6\2\xa3\1a\x55\1"),
    (Described(ULong(0x24), []), b"\0\x53\x24\x45"),
    (Described(Symbol("x:y"), None), b"\0\xa3\3x:y\x40"),
    (Array(0xA3, (Symbol("a"), Symbol("bc"))), b"\xe0\7\2\xa3\1a\2bc"),
    (Array(0x70, (UInt(1),)), b"\xe0\6\1\x70\0\0\0\1"),
    (Array(0x40, ()), b"\xe0\2\0\x40"),
]
# Other encodings of a value, which decoders have to read.
LONGER: list[tuple[Value, bytes]] = [
    (True, b"\x56\1"),
    (False, b"\x56\0"),
    (UInt(0), b"\x52\0"),
    (UInt(1), b"\x70\0\0\0\1"),
    (ULong(0), b"\x53\0"),
    (ULong(1), b"\x80" + bytes(7) + b"\1"),
    (Int(-1), b"\x71\xff\xff\xff\xff"),
    (-1, b"\x81" + b"\xff" * 8),
    (b"a", b"\xb0\0\0\0\1a"),
    ("a", b"\xb1\0\0\0\1a"),
    (Symbol("a"), b"\xb3\0\0\0\1a"),
    ([], b"\xc0\1\0"),
    ([], b"\xd0\0\0\0\4\0\0\0\0"),
    ({1: 2}, b"\xd1\0\0\0\x08\0\0\0\2\x55\1\x55\2"),
    (Array(0x50, (UByte(1), UByte(2))), b"\xf0\0\0\0\7\0\0\0\2\x50\1\2"),
    (Array(0x41, (True,)), b"\xe0\2\1\x41"),
    (
        Array(0x50, (UByte(1), UByte(2)), Symbol("a")),
        b"\xe0\x08\2\0\xa3\1a\x50\1\2",
    ),
    (Array(0xC0, ([True], [])), b"\xe0\7\2\xc0\2\1\x41\1\0"),
]


@pytest.mark.parametrize(("value", "encoded"), SHORTEST)
def test_a_value_is_written_shortly_and_read_as_it_was(value: Value, encoded: bytes) -> None:
    """Each type has the bytes that the specification gives it, and comes back as that type."""
    assert encode(value) == encoded
    decoded, end = decode(b"--" + encoded + b"--", 2)
    assert (decoded, end) == (value, 2 + len(encoded))
    assert type(decoded) is type(value)


@pytest.mark.parametrize(("value", "encoded"), LONGER)
def test_every_encoding_of_a_value_is_read(value: Value, encoded: bytes) -> None:
    """A peer may write longer than it has to."""
    decoded, end = decode(encoded)
    assert (decoded, end) == (value, len(encoded))
    assert type(decoded) is type(value)


@pytest.mark.parametrize("encoded", [encoded for _, encoded in SHORTEST + LONGER])
def test_a_value_that_is_cut_off_is_refused_at_its_end(encoded: bytes) -> None:
    """However much of a value is missing, the error says where more bytes were expected."""
    assert end_of(encoded) == len(encoded)
    for size in range(len(encoded)):
        for read in (decode, end_of):
            with pytest.raises(AmqpDecodeError) as refused:
                read(encoded[:size])
            assert refused.value.at == size
            assert "more bytes" in refused.value.expected


@pytest.mark.parametrize(
    ("encoded", "at", "expected"),
    [
        (b"\x4f", 0, "a format code, found 0x4f"),
        (b"\x20", 0, "a format code, found 0x20"),
        (b"\x5f\0", 0, "a format code, found 0x5f"),
        (b"\x6f\0\0", 0, "a format code, found 0x6f"),
        (b"\x7f\0\0\0\0", 0, "a format code, found 0x7f"),
        (b"\x8f" + bytes(8), 0, "a format code, found 0x8f"),
        (b"\x9f" + bytes(16), 0, "a format code, found 0x9f"),
        (b"\xa5\1a", 0, "a format code, found 0xa5"),
        (b"\xb5\0\0\0\1a", 0, "a format code, found 0xb5"),
        (b"\xc2\1\0", 0, "a format code, found 0xc2"),
        (b"\xe1\2\0\x40", 0, "a format code, found 0xe1"),
        (b"\x56\2", 1, "0 or 1 for a boolean"),
        (b"\x73\0\0\xd8\0", 1, "a character of Unicode"),
        (b"\x73\0\x11\0\0", 1, "a character of Unicode"),
        (b"\xa1\3a\xffb", 3, "a string in UTF-8"),
        (b"\xa3\2a\xe9", 3, "a symbol in ASCII"),
        (b"\xc0\0\0", 1, "a size of at least 1"),
        (b"\xd0\0\0\0\3\0\0\0\0", 1, "a size of at least 4"),
        (b"\xc0\2\2\x40", 1, "a count of at most 1, found 2"),
        (b"\xc0\3\1\x40\x40", 4, "the end of the 1 elements at byte 5"),
        (b"\xc0\2\1\xa1\1a", 6, "the end of the 1 elements at byte 4"),
        (b"\xc1\4\3\x40\x40\x40", 3, "keys and values in pairs"),
        (b"\xc1\3\2\x45\x40", 3, "a key that is neither a list nor a map"),
        (b"\xe0\5\1\0\x40\0\x40", 5, "one descriptor of an array's elements"),
    ],
)
def test_bytes_that_are_no_value_are_refused_where_they_begin(
    encoded: bytes, at: int, expected: str
) -> None:
    """The error says where, what was expected, and what there was."""
    with pytest.raises(AmqpDecodeError) as refused:
        decode(encoded)
    assert refused.value.at == at
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\xd0\x7f\xff\xff\xff\x7f\xff\xff\xff",
        b"\xd1\x7f\xff\xff\xff\x7f\xff\xff\xfe",
        b"\xd0\0\0\0\5\x7f\xff\xff\xff\x40",
        b"\xf0\0\0\0\5\x7f\xff\xff\xff\x40",
        b"\xf0\0\0\0\5\x7f\xff\xff\xff\x45",
        b"\xb0\x7f\xff\xff\xff",
        b"\xb1\x7f\xff\xff\xff",
    ],
)
def test_a_claim_of_gigabytes_takes_no_memory(encoded: bytes) -> None:
    """A size or a count that the bytes do not bear out is refused before anything is made of it."""
    tracemalloc.start()
    try:
        with pytest.raises(AmqpDecodeError):
            decode(encoded)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def nested(beginning: bytes, depth: int, innermost: bytes = b"\x40") -> bytes:
    """Return values in each other; ``beginning`` is a described type, or of a list of one."""
    for _ in range(depth):
        if beginning == b"\xd0":
            innermost = b"\xd0" + struct.pack(">II", len(innermost) + 4, 1) + innermost
        else:
            innermost = beginning + innermost
    return innermost


@pytest.mark.parametrize("beginning", [b"\xd0", b"\0\x44"])
def test_depth_is_bounded(beginning: bytes) -> None:
    """As many as may be are read in each other; one more is refused, a million as well."""
    decode(nested(beginning, MAX_DEPTH))
    with pytest.raises(AmqpDecodeError, match="32 deep"):
        decode(nested(beginning, MAX_DEPTH + 1))
    with pytest.raises(AmqpDecodeError, match="32 deep"):
        decode(nested(beginning, 10_000))


def test_descriptors_in_each_other_are_bounded_where_nothing_is_decoded() -> None:
    """Who only wants to know where a value ends is no victim of its depth."""
    with pytest.raises(AmqpDecodeError, match="32 descriptors"):
        end_of(b"\0" * 100_000)


def test_keys_that_a_client_can_make_collide_are_bounded() -> None:
    """Numbers with the same hash make each look-up a walk through all of them."""
    keys = [key * (2**61 - 1) for key in range(1, 4)] + list(range(254))
    pairs = b"".join(encode(key) + b"\x40" for key in keys)
    encoded = b"\xd1" + struct.pack(">II", len(pairs) + 4, 2 * len(keys)) + pairs
    with pytest.raises(AmqpDecodeError, match="at most 256 keys of a map that are no text"):
        decode(encoded)
    texts: Value = {str(key): None for key in range(5_000)}
    assert decode(encode(texts))[0] == texts


@pytest.mark.parametrize(
    "value",
    [
        object(),
        2**63,
        UInt(-1),
        UInt(2**32),
        ULong(2**64),
        Int(2**31),
        UByte(256),
        Float(1e300),
        Char("ab"),
        Char("\ud800"),
        "\ud800",
        Symbol("é"),
        Decimal(b"123"),
        [object()],
        Array(0x40, (None,) * 3),
        Array(0x20, (1,)),
        Array(0xA1, (1,)),
    ],
)
def test_what_amqp_cannot_say_is_not_written(value: object) -> None:
    """A value out of the range of its type is an error of its own, and never other bytes."""
    with pytest.raises(AmqpEncodeError):
        encode(value)


def test_arrays_are_written_by_a_code_that_can_say_all_of_them() -> None:
    """An array that came with a short code may hold what only a longer one can say."""
    for array in (
        Array(0x43, (UInt(0), UInt(70_000))),
        Array(0xA1, ("a", "x" * 300)),
        Array(0xC0, ([1], ["x" * 300])),
        Array(0xC1, ({1: 2}, {})),
        Array(0x45, ([],)),
        Array(0xE0, (Array(0x50, (UByte(1),)), Array(0x50, ()))),
        Array(0x56, (True, False)),
        Array(0x98, (UUID(int=1),)),
        Array(0x73, (Char("a"),)),
        Array(0x74, (Decimal(b"abcd"),)),
        Array(0x50, (UByte(1),), ULong(9)),
    ):
        decoded, _ = decode(encode(array))
        assert isinstance(decoded, Array)
        assert (decoded.values, decoded.descriptor) == (array.values, array.descriptor)
