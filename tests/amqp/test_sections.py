"""Messages in sections: found without being decoded, delivered with the bare message untouched."""

from collections.abc import Callable
from uuid import UUID

import pytest

from orthia.broker.protocols.amqp.sections import (
    DATA,
    MAX_HEAD_BYTES,
    NO_BODY,
    SEQUENCE,
    VALUE,
    Body,
    BodyCheck,
    Header,
    Properties,
    Sections,
    application_properties_of,
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
    header_of,
    message_annotations_of,
    properties_of,
    sections_of,
    text_prefix,
    with_annotations,
    with_header,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
    Byte,
    Int,
    Symbol,
    Timestamp,
    ULong,
    Value,
)

HEADER = encode_header(Header(durable=True, priority=7, ttl=1_000, delivery_count=2))
DELIVERY = encode_described(0x71, encode({Symbol("hop"): 1}))
ANNOTATIONS = encode_annotations({Symbol("x-opt-jms-msg-type"): Byte(5)})
PROPERTIES = encode_properties(
    Properties(
        *("ID:1", b"me", "queue", "type", "reply", ULong(7), Symbol("text/plain"), Symbol("gzip")),
        *(Timestamp(5), Timestamp(6), "group", 3, "reply-group"),
    )
)
APPLICATION = encode_application_properties({"colour": "red", "size": Int(3)})
BEFORE = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + APPLICATION
FOOTER = encode_described(0x78, encode({Symbol("crc"): 1}))
TEXT = "é" * 200


def data(raw: bytes) -> bytes:
    """Return a data section."""
    return data_prefix(len(raw)) + raw


# Bodies as they are encoded; how many bytes of them belong to the head; and what they say.
BODIES: list[tuple[bytes, int, Body]] = [
    (b"", 0, Body(NO_BODY, None)),
    (FOOTER, 0, Body(NO_BODY, None)),
    (data(b""), 5, Body(DATA, b"")),
    (data(b"raw"), 5, Body(DATA, b"raw")),
    (data(b"x" * 256), 8, Body(DATA, b"x" * 256)),
    (data(b"raw") + data(b"") + data(b"x" * 300), 5, Body(DATA, b"raw" + b"x" * 300)),
    (data(b"raw") + FOOTER, 5, Body(DATA, b"raw")),
    (encode_described(0x77, encode("text")), 5, Body(VALUE, "text")),
    (encode_described(0x77, encode("")), 5, Body(VALUE, "")),
    (encode_described(0x77, encode(TEXT)) + FOOTER, 8, Body(VALUE, TEXT)),
    (encode_described(0x77, encode(b"raw")), 5, Body(VALUE, b"raw")),
    (encode_described(0x77, encode(None)), 0, Body(VALUE, None)),
    (encode_described(0x77, encode({"a": Int(1)})), 0, Body(VALUE, {"a": Int(1)})),
    (encode_described(0x76, encode([1, "a"])), 0, Body(SEQUENCE, [1, "a"])),
    (
        encode_described(0x76, encode([1])) + encode_described(0x76, encode([])) + FOOTER,
        0,
        Body(SEQUENCE, [1]),
    ),
    (b"\0\xa3\x10amqp:data:binary\xa0\1a", 21, Body(DATA, b"a")),
    (b"\0\x80\0\0\0\0\0\0\0\x75\xa0\1a", 12, Body(DATA, b"a")),
]


@pytest.mark.parametrize(("encoded", "prefix", "body"), BODIES)
@pytest.mark.parametrize("before", [b"", HEADER, PROPERTIES, BEFORE])
def test_a_message_is_divided_so_that_its_body_is_what_was_sent(
    before: bytes, encoded: bytes, prefix: int, body: Body
) -> None:
    """A binary or a text is the body as it is; all else is its section. The head knows which."""
    message = before + encoded
    sections = sections_of(message)
    assert sections.head == len(before) + prefix
    head, rest = message[: sections.head], message[sections.head :]
    kept = sections_of(head)
    assert decode_body(kept, rest) == body
    assert decode_body(sections, rest) == body
    if prefix:
        assert kept == sections


def test_each_section_is_found() -> None:
    """What is before the body is read from the head alone."""
    sections = sections_of(BEFORE + data(b"raw"))
    assert header_of(BEFORE, sections) == Header(True, 7, 1_000, False, 2)
    assert message_annotations_of(BEFORE, sections) == {"x-opt-jms-msg-type": 5}
    said = properties_of(BEFORE, sections)
    assert (said.message_id, said.to, said.correlation_id, said.subject) == (
        *("ID:1", "queue", 7, "type"),
    )
    assert (said.absolute_expiry_time, said.group_id, said.group_sequence) == (5, "group", 3)
    assert application_properties_of(BEFORE, sections) == {"colour": "red", "size": 3}


def test_what_is_not_there_has_its_defaults() -> None:
    """A message may be nothing but its body."""
    sections = sections_of(data(b"raw"))
    assert header_of(b"", sections) == Header(priority=4)
    assert properties_of(b"", sections) == Properties()
    assert message_annotations_of(b"", sections) == {}
    assert application_properties_of(b"", sections) == {}


@pytest.mark.parametrize("value", ["text", ULong(2**63), b"\0", UUID(int=1)])
def test_ids_keep_their_type(value: Value) -> None:
    """A message id may be of four types, and so may a correlation id."""
    encoded = encode_properties(Properties(message_id=value, correlation_id=value))
    said = properties_of(encoded, sections_of(encoded))
    assert (said.message_id, said.correlation_id) == (value, value)
    assert type(said.message_id) is type(value)


@pytest.mark.parametrize(
    "encoded", [encoded for encoded, _, _ in BODIES if encoded[:3] != FOOTER[:3]]
)
def test_a_message_that_comes_in_pieces_is_divided_as_soon_as_its_head_is_there(
    encoded: bytes,
) -> None:
    """Before that nothing is said of it; the rest of the body changes nothing."""
    message = BEFORE + encoded
    sections = sections_of(message)
    first = None
    for size in range(len(message) + 1):
        found = find_sections(message[:size])
        if found is None:
            assert first is None
        else:
            first = size if first is None else first
            assert found == sections
    if encoded:
        assert first is not None
        assert first <= max(sections.head, len(BEFORE) + 21)
    else:
        assert first is None


def is_checked(message: bytes, step: int) -> bool:
    """Return whether the body of a message is found to be one, of which ``step`` bytes come."""
    try:
        sections = sections_of(message)
        body = message[sections.head :]
        check = BodyCheck(sections)
        for at in range(0, len(body), step):
            check.add(body[at : at + step])
        check.finish()
    except AmqpDecodeError:
        return False
    return True


@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
@pytest.mark.parametrize("encoded", [encoded for encoded, _, _ in BODIES])
def test_a_body_that_comes_in_pieces_is_checked_as_a_whole_one(encoded: bytes, step: int) -> None:
    """Whatever the pieces are: it is one, and no longer one with less or more."""
    message = BEFORE + encoded
    assert is_checked(message, step)
    assert not is_checked(message + b"\0", step)
    assert not is_checked(message + HEADER, step)
    if encoded:
        assert not is_checked(message[:-1], step)
    if encoded.endswith(FOOTER):
        assert not is_checked(message + FOOTER, step)


def test_a_section_of_a_body_says_soon_how_long_it_is() -> None:
    """Nothing is kept of a body but the beginning of such a section."""
    check = BodyCheck(sections_of(data(b"")))
    with pytest.raises(AmqpDecodeError, match="the length of a section in its first 4096 bytes"):
        check.add(b"\0\xb3\0\0\xff\xff" + b"x" * 4_090)


def test_a_head_has_a_greatest_length() -> None:
    """Neither what is there nor what is claimed before the body may be longer."""
    room = MAX_HEAD_BYTES - len(encode_application_properties({"a": "x" * 300})) + 300
    fits = encode_application_properties({"a": "x" * room})
    assert find_sections(fits + data(b"")) is not None
    for whole in (sections_of, find_sections):
        with pytest.raises(AmqpDecodeError, match="at most 65536 bytes before the body"):
            whole(encode_application_properties({"a": "x" * (room + 1)}) + data(b""))
    claimed = b"\0\x53\x74\xd1\x7f\xff\xff\xff\0\0\0\2"
    assert find_sections(claimed + bytes(MAX_HEAD_BYTES - len(claimed))) is None
    with pytest.raises(AmqpDecodeError, match="at most 65536 bytes before the body, found 65537"):
        find_sections(claimed + bytes(MAX_HEAD_BYTES + 1 - len(claimed)))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"raw", "at byte 0: expected a section of a message, found 0x72"),
        (b"\0\x53\x14\x45", "a section of a message, found another descriptor"),
        (b"\0\x53\x79\x45", "a section of a message, found another descriptor"),
        (b"\0\x45\x45", "a section of a message, found another descriptor"),
        (b"\0\xa3\2hi\x45", "a section of a message, found another descriptor"),
        (PROPERTIES + HEADER, "one header and in its place, found another"),
        (PROPERTIES + PROPERTIES, "one properties and in its place, found another"),
        (b"\0\x53\x73\xa1\1a", "a list or a map as the properties"),
        (b"\0\x53\x75\xa1\1a", "a binary as the data, found 0xa1"),
        (b"\0\x53\x75\x45", "a binary as the data, found 0x45"),
        (b"\0\x53\x76\xc1\1\0", "a list as the sequence, found 0xc1"),
        (PROPERTIES[:-1], "more bytes"),
        (b"\0\x53\x75", "more bytes"),
        (b"\0\x53\x75\xa0", "more bytes"),
        (b"\0\x53\x75\xb0\0\0", "more bytes"),
    ],
)
def test_what_is_no_message_is_refused(message: bytes, expected: str) -> None:
    """The error says where, and what was expected."""
    with pytest.raises(AmqpDecodeError, match=expected):
        sections_of(message)


@pytest.mark.parametrize(
    "message",
    [
        data(b"raw")[:-1],
        data(b"raw") + b"x",
        data(b"raw") + HEADER,
        data(b"raw") + encode_described(0x77, encode("text")),
        encode_described(0x77, encode("a")) + encode_described(0x77, encode("b")),
        data(b"raw") + FOOTER + FOOTER,
        encode_described(0x76, encode([])) + b"\0\x53\x76\xc1\1\0",
        encode_described(0x76, encode([]))[:-1] + b"\xc0\5\1\x40",
        b"\0\x53\x77\xa1\1\xff",
    ],
)
def test_what_is_no_body_is_refused(message: bytes) -> None:
    """A body is of one kind, with a footer at most behind it."""
    head, body = divided(message)
    with pytest.raises(AmqpDecodeError):
        decode_body(sections_of(head), body)


def divided(message: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body of a message."""
    at = sections_of(message).head
    return message[:at], message[at:]


@pytest.mark.parametrize(
    ("section", "read"),
    [
        (b"\0\x53\x70\xc0\2\1\x43", header_of),
        (b"\0\x53\x72\xc1\3\2\x40\xff", message_annotations_of),
        (b"\0\x53\x72\xc0\1\0", message_annotations_of),
        (b"\0\x53\x73\xc0\2\1\xff", properties_of),
        (b"\0\x53\x73\xc1\1\0", properties_of),
        (b"\0\x53\x74\xc1\3\2\xa1\x05", check_application_properties),
        (b"\0\x53\x74\xc1\3\2\x43\x40", check_application_properties),
    ],
)
def test_a_head_that_nobody_could_read_later_is_refused_first(
    section: bytes, read: Callable[[bytes, Sections], object]
) -> None:
    """Its sections are found by their sizes alone; what is in them is looked at when it comes."""
    message = section + data(b"raw")
    sections = sections_of(message)
    with pytest.raises(AmqpDecodeError):
        read(message, sections)
    read(BEFORE, sections_of(BEFORE))


def test_a_footer_is_told_from_the_body() -> None:
    """It is passed on, and is nothing of what a message says."""
    head, body = divided(BEFORE + data(b"raw") + FOOTER)
    codes = [one.code for one in body_sections(sections_of(head), body)]
    assert codes == [DATA, 0x78]


def test_a_message_that_was_never_delivered_goes_out_as_it_came() -> None:
    """But for what its sender told the broker alone."""
    head, _ = divided(BEFORE + data(b"raw"))
    assert header_of(head, sections_of(head)).delivery_count == 2
    plain = head.replace(DELIVERY, b"").replace(HEADER, b"")
    assert delivered_head(plain, sections_of(plain), delivery_count=0) == plain
    first = head.replace(HEADER, encode_header(Header(durable=True)))
    sent = delivered_head(first, sections_of(first), delivery_count=0)
    assert sent == first.replace(DELIVERY, b"")


def test_a_message_that_is_delivered_again_says_how_often() -> None:
    """The header is written anew; the bare message is what was sent, byte for byte."""
    head, _ = divided(BEFORE + data(b"raw"))
    sent = delivered_head(head, sections_of(head), delivery_count=5)
    sections = sections_of(sent)
    assert header_of(sent, sections) == Header(True, 7, 1_000, False, 5)
    assert sent.endswith(ANNOTATIONS + PROPERTIES + APPLICATION + data_prefix(3))
    assert DELIVERY not in sent
    changed = delivered_head(
        head, sections_of(head), delivery_count=0, header=Header(durable=True, ttl=9)
    )
    assert header_of(changed, sections_of(changed)) == Header(True, 4, 9)


@pytest.mark.parametrize("before", [b"", HEADER, DELIVERY, ANNOTATIONS, BEFORE])
def test_annotations_are_added_and_replaced(before: bytes) -> None:
    """Those that were there stay, with their types."""
    head, _ = divided(before + data(b"raw"))
    added = {Symbol("x-opt-a"): "b"}
    for changed in (
        with_annotations(head, sections_of(head), added),
        delivered_head(head, sections_of(head), delivery_count=0, annotations=added),
    ):
        there = message_annotations_of(changed, sections_of(changed))
        assert there["x-opt-a"] == "b"
        if ANNOTATIONS in before:
            assert type(there["x-opt-jms-msg-type"]) is Byte
        assert changed.endswith(
            PROPERTIES + APPLICATION + head[-5:] if PROPERTIES in before else head[-5:]
        )
    removed = with_annotations(head, sections_of(head), {Symbol("x-opt-jms-msg-type"): None})
    assert message_annotations_of(removed, sections_of(removed)) == {}


def test_a_header_is_replaced_or_made() -> None:
    """One that says nothing is left out."""
    for before in (b"", HEADER):
        head, _ = divided(before + PROPERTIES + data(b"raw"))
        changed = with_header(head, sections_of(head), Header(ttl=1))
        assert header_of(changed, sections_of(changed)) == Header(ttl=1)
        assert changed.endswith(PROPERTIES + data_prefix(3))
        assert with_header(head, sections_of(head), Header()) == PROPERTIES + data_prefix(3)


def test_texts_and_data_are_written_as_they_are_encoded() -> None:
    """What precedes their bytes says what they are, and how many."""
    for raw in (b"", b"x" * 255, b"x" * 256):
        assert data_prefix(len(raw)) + raw == encode_described(0x75, encode(raw))
        assert text_prefix(len(raw)) + raw == encode_described(0x77, encode(raw.decode()))
