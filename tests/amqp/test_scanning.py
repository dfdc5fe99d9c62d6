"""What is found without decoding is what decoding finds, or nothing."""

import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.protocols.amqp.conditions import LinkFault
from orthia.broker.protocols.amqp.encoding import TAG
from orthia.broker.protocols.amqp.messages import Incoming, MessageReader
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    TransactionalState,
    Transfer,
    TransferForm,
    _plain_transfer,
    decode_performative,
    encode_performative,
)
from orthia.broker.protocols.amqp.scanning import (
    APPLICATION_BEGINS,
    PROPERTIES_BEGIN,
    PropertiesScanner,
    Routing,
    end_of_plain_map,
)
from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    body_sections,
    check_application_properties,
    delivered_head,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    header_of,
    message_annotations_of,
    properties_of,
    sections_of,
)
from orthia.broker.protocols.amqp.types import (
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
from orthia.config.address_settings import RoutingType
from orthia.journal.model.fields import Fields, encode_fields
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
    if not section.startswith(PROPERTIES_BEGIN):
        return None
    found, end = PropertiesScanner().scan(section, 0)
    return found if end == len(section) else None


def is_plain(section: bytes) -> bool:
    """Return whether a section is a map that need not be decoded."""
    return section.startswith(APPLICATION_BEGINS) and end_of_plain_map(section, 0) == len(section)


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
    if found is None:
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
    if is_plain(section):
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
        return reader.read(b"before" + payload, 6, ANYONE, lambda: 7)
    except (AmqpDecodeError, LinkFault) as error:
        return str(error)


def decoded(payload: bytes) -> Incoming | None:
    """Return what each section says once it is decoded; None if one cannot be read."""
    try:
        sections = sections_of(payload)
        body = payload[sections.head :]
        list(body_sections(sections, body))
        header, said = header_of(payload, sections), properties_of(payload, sections)
        annotations = message_annotations_of(payload, sections)
        check_application_properties(payload, sections)
    except AmqpDecodeError:
        return None
    message = OutgoingMessage(
        delivered_head(payload[: sections.head], sections, delivery_count=0),
        body,
        header.durable,
        expires_ms=max(said.absolute_expiry_time or 0, 0) or (7 + header.ttl if header.ttl else 0),
        priority=min(header.priority, 9),
        encoding=TAG,
        stated=encode_fields(Fields(group=said.group_id)) if said.group_id else b"",
    )
    is_queue = isinstance(annotations.get(Symbol("x-opt-jms-dest")), int)
    return message, said.to, RoutingType.ANYCAST if is_queue else None


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


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        (b"ID:", b"I\xff:"),
        (b"queue", b"\xff" * 5),
        (b"red", b"\xff" * 3),
        (b"red", "ü!".encode()),
        (b"colour", b"\xff" * 6),
        (b"body", b"bo"),
        (b"body", b"bodies"),
        (b"\xa0\x04body", b"\xa0\x04bodies"),
        (b"\xa0\x04body", b"\xb0\0\0\0\x04body"),
        (b"\xa0\x04body", b"\xb0\0\0"),
        (b"\xa0\x04body", b"\x40"),
    ],
)
def test_a_message_is_read_as_if_none_like_it_had_been_before(there: bytes, instead: bytes) -> None:
    """It is refused if it cannot be read, and is the same if it can."""
    reader = MessageReader()
    read(reader, of_jms(1))
    read(reader, of_jms(2))
    assert of_jms(3).count(there) == 1
    payload = of_jms(3).replace(there, instead)
    found = read(reader, payload)
    assert (None if isinstance(found, str) else found) == decoded(payload)


def test_a_link_remembers_little_of_its_messages() -> None:
    """However much each says of itself."""
    readers = [MessageReader() for _ in range(20)]
    message = of_jms(1, subject="x" * 50_000)
    read(readers[0], message)
    tracemalloc.start()
    for reader in readers:
        read(reader, message)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000


@MANY
@given(st.lists(damaged(of_jms(1, is_wide=True)) | damaged(of_jms(2)), min_size=1, max_size=3))
def test_what_came_before_makes_no_damaged_message_readable(payloads: list[bytes]) -> None:
    """Nor does it change what is read of one."""
    reader = MessageReader()
    for payload in (of_jms(3), *payloads, of_jms(4, is_wide=True), *payloads):
        found = read(reader, payload)
        assert found == read(MessageReader(), payload)
        assert (None if isinstance(found, str) else found) == decoded(payload)


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


FORMS = st.tuples(
    st.sampled_from([0, 1, 300]),
    st.sampled_from([0, 1, 2, 300, 301, 70_000]),
    st.sampled_from([b"", b"t", b"tag", b"gat"]),
    st.sampled_from([0, 0, 0, None, 1]),
    st.sampled_from([None, True, False]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([None, None, None, 0]),
    st.sampled_from([None, None, None, ACCEPTED]),
).map(lambda said: encode_performative(Transfer(*said)) + b"message")


@MANY
@given(st.lists(FORMS | FORMS.flatmap(damaged), min_size=2, max_size=6))
def test_a_transfer_that_is_known_by_its_form_is_what_decoding_says(bodies: list[bytes]) -> None:
    """Whatever bytes it is, and the ones before: else it is decoded as every frame."""
    form = TransferForm()
    for body in bodies:
        delivery_id = form.id_of(body)
        try:
            said, end = decode_performative(body)
        except AmqpDecodeError:
            assert delivery_id == -1
            continue
        if not isinstance(said, Transfer):
            assert delivery_id == -1
        elif delivery_id == -1:
            form.note(said, body, end)
        else:
            found = Transfer(form.handle, delivery_id, said.delivery_tag, settled=form.is_settled)
            plain = said._replace(settled=bool(said.settled), message_format=None)
            assert plain._replace(rcv_settle_mode=None, batchable=False) == found
            assert (said.message_format or 0, form.end) == (0, end)


@pytest.mark.parametrize("first", [1, 300, 70_000])
def test_transfers_are_known_whose_ids_and_tags_alone_differ(*, first: int) -> None:
    """As most do; of another form none is."""
    form = TransferForm()
    said = Transfer(1, first, b"tag", 0, False)
    body = encode_performative(said)
    assert form.id_of(body + b"a") == -1
    form.note(said, body + b"a", len(body))
    again = encode_performative(Transfer(1, first + 1, b"gat", 0, False))
    assert (form.id_of(again + b"another"), form.end) == (first + 1, len(again))
    # Its tag is shorter, and its message format not 0, and all that is behind that is the same.
    tag_at = body.index(b"\xa0\3tagCB")
    assert form.id_of(body[:tag_at] + b"\xa0\2ta\x52CB" + b"a") == -1
    for other in (
        said._replace(handle=2),
        said._replace(settled=True),
        said._replace(more=True),
        said._replace(delivery_tag=b"long"),
        said._replace(state=ACCEPTED),
    ):
        assert form.id_of(encode_performative(other) + b"a") == -1


def test_damaged_properties_are_refused_by_the_decoder() -> None:
    """A text that is none is not found, and so refused."""
    section = encode_properties(Properties(to="queue")).replace(b"queue", b"\xff" * 5)
    assert scanned(section) is None
    with pytest.raises(AmqpDecodeError):
        properties_of(section, sections_of(section))


def test_long_properties_are_not_kept_to_be_compared_with_others() -> None:
    """Each of very many links would have some, which nobody counts."""
    for size in (100, 5_000):
        scanner = PropertiesScanner()
        properties = Properties(
            message_id="ID:1",
            to="orders",
            subject="x" * size,
            content_type=Symbol("text/plain"),
            creation_time=Timestamp(1),
        )
        head = encode_properties(properties)
        found, _ = scanner.scan(head, 0)
        assert found is not None
        assert bool(scanner._between) is (size == 100)
