"""What is found without decoding is what decoding finds, or nothing."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.amqp.conditions import LinkFault
from orthia.broker.protocols.amqp.messages import Incoming, MessageReader
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    TransactionalState,
    Transfer,
    _plain_transfer,
    decode_performative,
    encode_performative,
)
from orthia.broker.protocols.amqp.scanning import (
    PropertiesScanner,
    Routing,
    elements,
    is_plain_map,
)
from orthia.broker.protocols.amqp.sections import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    Header,
    Properties,
    check_application_properties,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    properties_of,
    sections_of,
)
from orthia.broker.protocols.amqp.types import (
    LIST_8,
    LIST_32,
    MAP_8,
    MAP_32,
    encode_described,
    encode_map,
)
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
    Byte,
    Int,
    Symbol,
    Timestamp,
    ULong,
    Value,
)
from tests.core.support import ANYONE
from tests.hostile.fuzzing import damaged, fuzzed

MANY = fuzzed(150)
FULL = Properties(
    *("ID:é", b"me", "queue", "type", "reply", ULong(7), Symbol("text/plain"), Symbol("gzip")),
    *(Timestamp(-5), Timestamp(6), "grüppe", 300, "reply-group"),
)
MAPS: list[dict[str, Value]] = [
    {"colour": "rot und grün", "size": Int(3), "is": True, "none": None, "x": b"1", "y": 2.5},
    {"long": "x" * 300, "id": UUID(int=3), "s": Symbol("a"), "b": Byte(1), "l": 2**40},
    {},
]


def scanned(section: bytes) -> Routing | None:
    """Return what is found of a section of properties."""
    first, count, end = elements(section, 0, LIST_8, LIST_32)
    if not 0 < end == len(section):
        return None
    return PropertiesScanner().scan(section, first, count, end)


def is_plain(section: bytes) -> bool:
    """Return whether a section is a map that need not be decoded."""
    first, count, end = elements(section, 0, MAP_8, MAP_32)
    return 0 < end == len(section) and is_plain_map(section, first, count, end)


OTHERS = (Properties(), Properties(to="x"), Properties(UUID(int=1)), FULL._replace(to=None))


@pytest.mark.parametrize("said", [FULL, *OTHERS])
def test_properties_are_found_as_they_are_decoded(said: Properties) -> None:
    """Those that say where a message goes, and until when."""
    section = encode_properties(said)
    expires = said.absolute_expiry_time
    if section:
        assert scanned(section) == Routing(said.to, expires, said.group_id)


@MANY
@given(damaged(encode_properties(FULL)))
def test_what_is_found_of_properties_can_be_decoded(section: bytes) -> None:
    """Whatever bytes they are: what cannot be read is not found."""
    found = scanned(section)
    if found is None or section[2] != PROPERTIES:
        return
    sections = sections_of(section)
    said = properties_of(section, sections)
    assert (said.to, said.absolute_expiry_time, said.group_id) == found
    assert sections.properties == len(section)


@pytest.mark.parametrize("said", MAPS)
def test_a_plain_map_is_known_without_decoding(said: dict[str, Value]) -> None:
    """Of texts to simple values; one with others has to be decoded."""
    section = encode_application_properties(said)
    assert is_plain(section) is bool(said)
    others: list[dict[object, Value]] = [{1: "x"}, {"list": [1]}, {Symbol("key"): 1}]
    for other in others:
        section = encode_described(0x74, encode_map(other))
        assert not is_plain(section)


@MANY
@given(st.sampled_from(MAPS[:2]).map(encode_application_properties).flatmap(damaged))
def test_a_map_that_is_called_plain_can_be_decoded(section: bytes) -> None:
    """Whatever bytes it is."""
    if is_plain(section) and section[2] == APPLICATION_PROPERTIES:
        check_application_properties(section, sections_of(section))


def of_jms(number: int, *, colour: str = "red", is_wide: bool = False, **said: Any) -> bytes:
    """Return a message as JMS clients send it, with a message id of 100 and ``number``."""
    properties = Properties(
        *(f"ID:{100 + number}:1", None, "queue", None, None, None, Symbol("text/plain"), None),
        creation_time=Timestamp(2**40 + number),
    )
    section = encode_properties(properties._replace(**said))
    if is_wide:  # as Java clients write it, however short it is
        count = section[5].to_bytes(4, "big")
        section = b"\0Ss\xd0" + (len(section) - 2).to_bytes(4, "big") + count + section[6:]
    return b"".join(
        (
            encode_header(Header(durable=True)),
            encode_annotations({Symbol("x-opt-jms-dest"): Byte(0)}),
            section,
            encode_application_properties({"colour": colour, "number": Int(number)}),
            b"\0Su\xa0\x04body",
        )
    )


def read(reader: MessageReader, payload: bytes) -> Incoming | str:
    """Return what is read, or why it is refused."""
    try:
        return reader.read(payload, ANYONE, lambda: 7)
    except (AmqpDecodeError, LinkFault) as error:
        return str(error)


@pytest.mark.parametrize("is_wide", [True, False])
def test_each_message_of_a_link_is_read_as_if_it_were_the_first(*, is_wide: bool) -> None:
    """Whatever of the one before is the same."""
    reader = MessageReader()
    for payload in (
        *(of_jms(number, is_wide=is_wide) for number in range(3)),
        of_jms(3, is_wide=is_wide, to="other"),
        of_jms(4, is_wide=is_wide, absolute_expiry_time=Timestamp(9)),
        of_jms(5, is_wide=is_wide, absolute_expiry_time=Timestamp(10)),
        of_jms(6, is_wide=is_wide, group_id="group"),
        of_jms(7, is_wide=is_wide, message_id=ULong(7)),
        of_jms(8, is_wide=is_wide, creation_time=None),
        of_jms(9, is_wide=is_wide, colour="grün"),
        encode_header(Header(priority=7)) + of_jms(10)[7:],
        of_jms(11)[7:],
        of_jms(12)[:-4] + b"bo",
    ):
        assert read(reader, payload) == read(MessageReader(), payload)


@MANY
@given(st.lists(damaged(of_jms(1, is_wide=True)) | damaged(of_jms(2)), min_size=1, max_size=3))
def test_what_came_before_makes_no_damaged_message_readable(payloads: list[bytes]) -> None:
    """Nor does it change what is read of one."""
    reader = MessageReader()
    for payload in (of_jms(3), *payloads, of_jms(4, is_wide=True), *payloads):
        found = read(reader, payload)
        assert found == read(MessageReader(), payload)
        if isinstance(found, Incoming):
            sections = sections_of(payload)
            assert properties_of(payload, sections).to == found.to
            check_application_properties(payload, sections)


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("settled", [True, False, None])
@pytest.mark.parametrize("number", [0, 7, 300])
def test_a_transfer_in_the_usual_form_is_read_as_every_other(
    number: int, *, settled: bool | None, more: bool
) -> None:
    """With whatever is behind it."""
    said = Transfer(number, number, b"tag", 0, settled, more, None, None, False, True, True)
    body = encode_performative(said)
    assert _plain_transfer(body + b"message") == (said, len(body))
    for other in (
        Transfer(1),
        Transfer(1, 2, b"t", 1),
        Transfer(1, 2, b"t", 0, True, False, 1),
        Transfer(1, 2, b"t", 0, state=TransactionalState(b"x", ACCEPTED)),
    ):
        body = encode_performative(other)
        assert _plain_transfer(body) is None
        assert decode_performative(body) == (other, len(body))


@MANY
@given(damaged(encode_performative(Transfer(1, 300, b"tag", 0, True, False)) + b"message"))
def test_what_is_read_as_a_usual_transfer_is_one(body: bytes) -> None:
    """Whatever bytes it is: else it is decoded as every frame."""
    found = _plain_transfer(body)
    if found is None:
        return
    said, end = found
    again, _ = decode_performative(encode_performative(said))
    assert again == said
    assert 0 < end <= len(body)


def test_damaged_properties_are_refused_by_the_decoder() -> None:
    """A text that is none is not found, and so refused."""
    section = encode_properties(Properties(to="queue")).replace(b"queue", b"\xff" * 5)
    assert scanned(section) is None
    with pytest.raises(AmqpDecodeError):
        properties_of(section, sections_of(section))
