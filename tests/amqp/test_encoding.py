"""What other protocols, selectors and operators read of an AMQP message, and AMQP of others'."""

from typing import Any
from uuid import UUID

import pytest

from orthia.broker.core.selectors import parse
from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.amqp.encoding import TAG, head_for, id_text, id_value
from orthia.broker.protocols.amqp.sections import (
    NO_HEADER,
    Header,
    Properties,
    application_properties_of,
    data_prefix,
    decode_body,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    header_of,
    message_annotations_of,
    properties_of,
    sections_of,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    ULong,
    Value,
)
from orthia.broker.protocols.stomp.encoding import head_for as stomp_head_for
from orthia.broker.protocols.stomp.encoding import header_lines, headers_map, parts_for
from orthia.config.address_settings import RoutingType
from orthia.journal.model.encodings import NO_HEAD, Content
from orthia.journal.model.fields import Fields, Property, encode_fields
from orthia.journal.model.message import LargeBody, Message, decode_message, encode_message

NOW_MS = 1_700_000_000_000
PROPERTIES = Properties(
    message_id="ID:1",
    user_id=b"ann",
    to="orders",
    subject="order",
    reply_to="answers",
    correlation_id="c-1",
    content_type=Symbol("text/plain"),
    creation_time=Timestamp(NOW_MS - 5),
    group_id="g",
    group_sequence=2**32 - 1,
)
APPLICATION: dict[str, Value] = {"colour": "red", "size": Int(3), "ratio": 0.5, "new": True}


def amqp(
    body: bytes = text_prefix(4) + b"body",
    *,
    properties: Properties = PROPERTIES,
    application: dict[str, Value] | None = None,
    annotations: dict[object, Value] | None = None,
    header: Header = NO_HEADER,
    **fields: Any,
) -> Message:
    """Return a message as an AMQP client sends it; ``body`` is encoded."""
    encoded = b"".join(
        (
            encode_header(header),
            encode_annotations(annotations) if annotations else b"",
            encode_properties(properties),
            encode_application_properties(APPLICATION if application is None else application),
            body,
        )
    )
    at = sections_of(encoded).head
    return Message(
        "orders", encoded[:at], encoded[at:], NOW_MS, 0, header.priority, encoding=TAG
    )._replace(**fields)


def stomp(headers: dict[str, str], body: bytes = b"body", **fields: Any) -> Message:
    """Return a message as a STOMP client sends it."""
    return Message("orders", header_lines(headers), body, NOW_MS, 0, 4)._replace(**fields)


def test_a_record_of_amqp_comes_back_as_it_was() -> None:
    """Byte for byte, and its body is what the client sent."""
    message = amqp(encode_described(0x77, encode({"a": Int(1)})))
    assert decode_message(encode_message(message), 1) == message


def test_fields_are_read_of_sections() -> None:
    """Each in the terms that every protocol has; properties keep their types."""
    message = amqp(header=Header(durable=True), annotations={Symbol("x-opt-jms-dest"): Byte(1)})
    assert message.fields() == Fields(
        id="ID:1",
        routing_type=RoutingType.MULTICAST,
        durable=True,
        group="g",
        group_sequence=-1,
        correlation_id="c-1",
        reply_to="answers",
        content_type="text/plain",
        user_id="ann",
        subject="order",
        properties={"colour": "red", "size": 3, "ratio": 0.5, "new": True},
    )
    types = [type(value) for value in message.fields().properties.values()]
    assert types == [str, int, float, bool]
    assert amqp(properties=Properties(), application={}).fields() == Fields(durable=False)


@pytest.mark.parametrize(
    ("annotations", "kind"),
    [
        ({"x-opt-jms-dest": Byte(0)}, RoutingType.ANYCAST),
        ({"x-opt-jms-dest": Byte(2)}, RoutingType.ANYCAST),
        ({"x-opt-jms-dest": Byte(3)}, RoutingType.MULTICAST),
        ({"x-opt-jms-dest": Byte(4)}, None),
        ({"x-opt-jms-dest": "queue"}, None),
        ({"x-opt-routing-type": Byte(0)}, RoutingType.MULTICAST),
        ({"x-opt-routing-type": Byte(1), "x-opt-jms-dest": Byte(1)}, RoutingType.ANYCAST),
        ({}, None),
    ],
)
def test_annotations_say_the_routing_type(
    annotations: dict[str, Value], kind: RoutingType | None
) -> None:
    """As JMS numbers destinations, or as Artemis numbers its routing types."""
    named: dict[object, Value] = {Symbol(name): value for name, value in annotations.items()}
    assert amqp(annotations=named).fields().routing_type is kind


@pytest.mark.parametrize(
    ("selector", "is_matched"),
    [
        ("JMSMessageID = 'ID:1'", True),
        ("JMSCorrelationID = 'c-1'", True),
        ("JMSType = 'order'", True),
        ("JMSReplyTo = 'answers'", True),
        ("JMSXGroupID = 'g' AND JMSXGroupSeq = -1", True),
        ("JMSXUserID = 'ann'", True),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", True),
        ("JMSDeliveryMode = 'PERSISTENT'", False),
        ("JMSPriority = 7", True),
        (f"JMSTimestamp = {NOW_MS - 5}", True),
        (f"JMSExpiration = {NOW_MS + 1}", True),
        ("colour = 'red' AND size = 3 AND ratio < 0.6 AND new", True),
        ("size = '3' OR number > 1 OR number + 1 = 3 OR truth OR -number = -2", False),
        ("number = '2' AND number + 1 = '21' AND truth = 'true'", True),
        ("convert_string_expressions:size = '3' AND number > 1 AND number + 1 = 3", True),
        ("convert_string_expressions:truth AND -number = -2", True),
        ("no_convert_string_expressions:size = '3'", False),
        ("size BETWEEN 2 AND 4 AND size * ratio = 1.5", True),
        ("absent IS NULL", True),
        ("_AMQ_CONTENT_TYPE = 'text/plain'", True),
    ],
)
def test_selectors_read_what_jms_calls_it(selector: str, is_matched: bool) -> None:
    """Application properties are compared by their types."""
    application = {**APPLICATION, "number": "2", "truth": "true"}
    message = amqp(header=Header(priority=7), expires_ms=NOW_MS + 1, application=application)
    assert parse(selector).matches(message) is is_matched


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (UByte(200), 200),
        (ULong(2**63 - 1), 2**63 - 1),
        (ULong(2**64 - 1), float(2**64 - 1)),
        (Float(0.5), 0.5),
        (Char("x"), "x"),
        (Symbol("x"), "x"),
        (Timestamp(5), 5),
        (UUID(int=1), str(UUID(int=1))),
        (b"\0\1", b"\0\1"),
        (Decimal(b"abcd"), b"abcd"),
        (None, None),
        ({"a": 1}, None),
        ([1], None),
    ],
)
def test_a_property_of_each_type_is_one_that_others_have(value: Value, shown: object) -> None:
    """What no property may be is left out."""
    message = amqp(application={"x": value})
    found = message.fields().properties.get("x")
    assert (found, type(found)) == (shown, type(shown))
    assert message.properties().get("x") == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ID:1", "ID:1"),
        ("plain", "ID:AMQP_NO_PREFIX:plain"),
        (ULong(7), "ID:AMQP_ULONG:7"),
        (UUID(int=1), f"ID:AMQP_UUID:{UUID(int=1)}"),
        (b"\1\xff", "ID:AMQP_BINARY:01FF"),
    ],
)
def test_ids_are_texts_for_others_and_come_back(value: Value, text: str) -> None:
    """As JMS clients see them, so that a reply by STOMP correlates with its request."""
    assert id_text(value) == text
    assert (id_value(text), type(id_value(text))) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["ID:AMQP_ULONG:x", "ID:AMQP_ULONG:99999999999999999999", "ID:AMQP_UUID:1", "c"]
)
def test_what_is_no_id_of_another_type_stays_a_text(text: str) -> None:
    """Whoever wrote it."""
    assert id_value(text) == text
    assert id_value("ID:AMQP_BINARY:xx") == "ID:AMQP_BINARY:xx"
    assert id_value("ID:AMQP_STRING:ID:AMQP_ULONG:7") == "ID:AMQP_ULONG:7"


# --- bodies


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (text_prefix(2) + "é".encode(), Content("text", "é".encode())),
        (encode_described(0x77, encode(None)), Content("text", b"")),
        (data_prefix(2) + b"\0\xff", Content("bytes", b"\0\xff")),
        (data_prefix(1) + b"a" + data_prefix(1) + b"b", Content("bytes", b"ab")),
        (encode_described(0x77, encode(b"\0\xff")), Content("bytes", b"\0\xff")),
        (b"", Content("none", b"")),
        (
            encode_described(0x77, encode({"a": Int(1), "b": b"\1", "c": None})),
            Content("map", b'{"a":1,"b":{"bytes":"01"},"c":null}'),
        ),
        (
            encode_described(0x77, encode(["é", True, 0.5, float("inf")])),
            Content("stream", '["é",true,0.5,{"float":"inf"}]'.encode()),
        ),
        (
            encode_described(0x76, encode([1])) + encode_described(0x76, encode([2])),
            Content("stream", b"[1,2]"),
        ),
        (encode_described(0x77, encode(Int(5))), Content("value", b"5")),
        (
            encode_described(
                0x77,
                encode(
                    [
                        *(Array(0xA3, (Symbol("a"),)), Described(Symbol("d"), 1)),
                        *(UUID(int=1), Decimal(b"abcd"), Timestamp(5), {True: Char("x")}),
                    ]
                ),
            ),
            Content(
                "stream",
                b'[["a"],{"descriptor":"d","value":1},"00000000-0000-0000-0000-000000000001",'
                b'{"bytes":"61626364"},5,{"True":"x"}]',
            ),
        ),
    ],
)
def test_a_body_is_said_as_what_it_is(body: bytes, content: Content) -> None:
    """Texts and bytes as they are; what only AMQP can say as JSON."""
    assert amqp(body, properties=Properties()).content() == content


@pytest.mark.parametrize(
    ("content_type", "annotation", "kind"),
    [
        ("text/plain", 3, "text"),
        ("application/json; charset=utf-8", 3, "text"),
        ("application/vnd.x+json", 3, "text"),
        ("application/octet-stream", 3, "bytes"),
        ("application/x-java-serialized-object", 1, "object"),
        (None, 1, "object"),
        (None, 3, "bytes"),
    ],
)
def test_data_is_what_its_content_type_says(
    content_type: str | None, annotation: int, kind: str
) -> None:
    """Or, without one, what the JMS client says that sent it."""
    named = None if content_type is None else Symbol(content_type)
    message = amqp(
        data_prefix(2) + b"{}",
        properties=Properties(content_type=named),
        annotations={Symbol("x-opt-jms-msg-type"): Byte(annotation)},
    )
    assert message.content() == Content(kind, b"{}")


def test_a_long_list_is_left_as_it_is() -> None:
    """It may have hundreds of thousands of values, which nobody waits for."""
    encoded = encode_described(0x77, encode([None] * 70_000))
    assert amqp(encoded, properties=Properties()).content() == Content("stream", encoded)


def test_what_cannot_be_read_is_a_value_error() -> None:
    """For whoever asks for it; the message goes to AMQP clients all the same."""
    message = amqp()._replace(head=b"\0\x53\x73\xc0\1\xff")
    for ask in (message.fields, message.properties, message.content):
        with pytest.raises(ValueError, match="at byte"):
            ask()
    assert parse("colour IS NULL").matches(message)
    assert head_for(message) == message.head
    assert parts_for(message) == (b"", b"body")


# --- what the broker changes


def test_a_dead_letter_says_where_it_was() -> None:
    """In annotations, as Artemis does; the application's properties and the body are untouched."""
    expires = Properties(message_id="ID:1", absolute_expiry_time=Timestamp(5))
    message = amqp(properties=expires, header=Header(True, 7, 1_000), expires_ms=5)
    origin = {
        "_AMQ_ORIG_ADDRESS": "orders",
        "_AMQ_ORIG_QUEUE": "orders",
        "_AMQ_ORIG_MESSAGE_ID": "17",
        "_AMQ_ACTUAL_EXPIRY": "5",
    }
    moved = message.relocated("DLQ", origin)
    sections = sections_of(moved.head)
    annotations = message_annotations_of(moved.head, sections)
    assert annotations == {
        "x-opt-ORIG-ADDRESS": "orders",
        "x-opt-ORIG-QUEUE": "orders",
        "x-opt-ORIG-MESSAGE-ID": 17,
        "x-opt-ACTUAL-EXPIRY": 5,
    }
    assert type(annotations["x-opt-ORIG-MESSAGE-ID"]) is int
    assert (moved.address, moved.expires_ms) == ("DLQ", 0)
    assert header_of(moved.head, sections) == Header(True, 7)
    assert properties_of(moved.head, sections) == Properties(message_id="ID:1")
    assert application_properties_of(moved.head, sections) == APPLICATION
    assert decode_body(sections, moved.body) == (0x77, "body")
    properties = moved.properties()
    assert properties["_AMQ_ORIG_QUEUE"] == "orders"
    assert headers_map(stomp_head_for(moved))["_AMQ_ORIG_MESSAGE_ID"] == "17"
    again = moved.relocated("other", {"_AMQ_ORIG_QUEUE": "DLQ"})
    assert again.fields().properties["_AMQ_ORIG_QUEUE"] == "DLQ"
    assert "_AMQ_ORIG_ADDRESS" not in again.properties()
    back = again.relocated("orders", {})
    assert message_annotations_of(back.head, sections_of(back.head)) == {}


def test_an_expiry_and_a_priority_are_changed_in_the_head() -> None:
    """What the broker decides is what clients are told."""
    message = amqp(header=Header(True, 7, 1_000))
    changed = message.expiring(NOW_MS).prioritized(2)
    sections = sections_of(changed.head)
    assert header_of(changed.head, sections) == Header(True, 2)
    assert properties_of(changed.head, sections) == PROPERTIES._replace(
        absolute_expiry_time=Timestamp(NOW_MS)
    )
    never = changed.expiring(0)
    assert properties_of(never.head, sections_of(never.head)) == PROPERTIES
    assert (changed.expires_ms, changed.priority, never.expires_ms) == (NOW_MS, 2, 0)


def test_an_ingress_time_is_said_as_an_annotation() -> None:
    """And as the property of that name to others."""
    stamped = amqp().stamped()
    annotations = message_annotations_of(stamped.head, sections_of(stamped.head))
    assert annotations == {"x-opt-ingress-time": NOW_MS}
    assert stamped.properties()["_AMQ_INGRESS_TIMESTAMP"] == str(NOW_MS)


def test_a_head_that_cannot_be_read_is_kept() -> None:
    """No message is lost for what it says of itself."""
    message = amqp()._replace(head=b"\0\x53\x73\xc0")
    for changed in (
        message.relocated("DLQ", {"_AMQ_ORIG_QUEUE": "orders"}),
        message.expiring(5),
        message.prioritized(2),
        message.stamped(),
    ):
        assert changed.head == message.head


# --- to STOMP


def test_a_stomp_client_reads_a_text_of_amqp() -> None:
    """With the headers that it knows, and its properties as texts."""
    message = amqp(header=Header(priority=7), priority=7, expires_ms=5)
    lines, body = parts_for(message)
    assert body == b"body"
    assert headers_map(lines) == {
        "colour": "red",
        "size": "3",
        "ratio": "0.5",
        "new": "true",
        "content-type": "text/plain",
        "correlation-id": "c-1",
        "reply-to": "answers",
        "type": "order",
        "JMSXGroupID": "g",
        "JMSXGroupSeq": "-1",
        "JMSXUserID": "ann",
        "persistent": "false",
        "expires": "5",
        "priority": "7",
        "JMSMessageID": "ID:1",
    }


def test_a_stomp_client_reads_a_map_as_json() -> None:
    """And is told so."""
    message = amqp(encode_described(0x77, encode({"a": 1})), properties=Properties())
    lines, body = parts_for(message)
    assert (headers_map(lines)["content-type"], body) == ("application/json", b'{"a":1}')


def test_no_property_is_taken_for_a_header_of_the_frame() -> None:
    """Or a sender could say where a message ends, or which one it is."""
    names = ("content-length", "destination", "message-id", "subscription", "ack", "redelivered")
    forged = dict.fromkeys((*names, "_AMQ_ORIG_QUEUE", "JMSXUserID", "JMSXDeliveryCount"), "7")
    message = amqp(application=dict(forged), properties=Properties())
    said = headers_map(parts_for(message)[0])
    assert not forged.keys() & said.keys()


def test_a_large_message_of_amqp_has_its_headers_for_stomp() -> None:
    """Its body is streamed as it is."""
    message = amqp(data_prefix(300) + bytes(300))
    large = message._replace(body=b"", large=LargeBody(1, 300, 0))
    lines, body = parts_for(large)
    assert (headers_map(lines)["colour"], body) == ("red", b"")
    assert large.content(bytes(300)).body == bytes(300)


# --- from STOMP and from operators


def test_an_amqp_client_reads_a_text_of_stomp() -> None:
    """With properties, and annotations by which JMS knows what it is."""
    message = stomp(
        {
            "content-type": "text/plain",
            "correlation-id": "ID:AMQP_ULONG:7",
            "type": "order",
            "reply-to": "answers",
            "JMSXGroupID": "g",
            "JMSXGroupSeq": "-1",
            "colour": "red",
            "destination-type": "MULTICAST",
            "persistent": "false",
            "priority": "7",
            "_AMQ_DUPL_ID": "d-1",
            "ingress-timestamp": "5",
        },
        priority=7,
        expires_ms=NOW_MS + 1,
    )
    head = head_for(message, 17)
    sections = sections_of(head)
    assert header_of(head, sections) == Header(False, 7)
    assert message_annotations_of(head, sections) == {
        "x-opt-jms-msg-type": 5,
        "x-opt-jms-dest": 1,
        "x-opt-ingress-time": 5,
    }
    assert properties_of(head, sections) == Properties(
        message_id="ID:17",
        to="orders",
        subject="order",
        reply_to="answers",
        correlation_id=ULong(7),
        content_type=Symbol("text/plain"),
        absolute_expiry_time=Timestamp(NOW_MS + 1),
        creation_time=Timestamp(NOW_MS),
        group_id="g",
        group_sequence=2**32 - 1,
    )
    assert application_properties_of(head, sections) == {"colour": "red", "_AMQ_DUPL_ID": "d-1"}
    assert decode_body(sections, message.body) == (0x77, "body")


@pytest.mark.parametrize(
    ("content_type", "body", "decoded"),
    [
        (None, b"text", (0x77, "text")),
        (None, b"\xff", (0x75, b"\xff")),
        (None, b"", (0x77, "")),
        ("text/plain", b"\xff", (0x75, b"\xff")),
        ("application/json;charset=utf-8", b"{}", (0x77, "{}")),
        ("application/octet-stream", b"text", (0x75, b"text")),
        ("é", b"text", (0x75, b"text")),
    ],
)
def test_a_body_of_stomp_is_a_text_if_it_can_be(
    content_type: str | None, body: bytes, decoded: tuple[int, Value]
) -> None:
    """Unless its content type says otherwise: STOMP has no text messages and no bytes messages."""
    headers = {} if content_type is None else {"content-type": content_type}
    head = head_for(stomp(headers, body))
    sections = sections_of(head)
    assert decode_body(sections, body) == decoded
    kind = message_annotations_of(head, sections)["x-opt-jms-msg-type"]
    assert kind == (5 if decoded[0] == 0x77 else 3)


def test_a_large_body_of_stomp_is_data() -> None:
    """Whether it is a text would be seen only by reading all of it."""
    large = stomp({"content-type": "text/plain"}, b"", large=LargeBody(1, 300, 0))
    assert head_for(large).endswith(data_prefix(300))


def test_stated_properties_keep_their_types() -> None:
    """An operator's message has numbers; JMS reads them as such."""
    properties: dict[str, Property] = {
        "int": 3,
        "long": 2**40,
        "double": 0.5,
        "yes": True,
        "raw": b"\1",
    }
    stated = encode_fields(Fields(id="m-1", durable=True, properties=properties))
    message = Message("orders", b"", b"body", NOW_MS, 0, 4, encoding=NO_HEAD, stated=stated)
    head = head_for(message)
    sections = sections_of(head)
    found = application_properties_of(head, sections)
    assert found == properties
    assert [type(value) for value in found.values()] == [Int, int, float, bool, bytes]
    assert properties_of(head, sections).message_id == "m-1"
    assert header_of(head, sections).durable


def test_a_dead_letter_of_stomp_says_where_it_was_to_amqp() -> None:
    """In the annotations that an AMQP message would have."""
    moved = stomp({"colour": "red"}).relocated(
        "DLQ", {"_AMQ_ORIG_QUEUE": "orders", "_AMQ_ORIG_MESSAGE_ID": "17"}
    )
    head = head_for(moved)
    sections = sections_of(head)
    annotations = message_annotations_of(head, sections)
    assert annotations["x-opt-ORIG-QUEUE"] == "orders"
    assert annotations["x-opt-ORIG-MESSAGE-ID"] == 17
    assert application_properties_of(head, sections) == {"colour": "red"}


def test_an_amqp_message_goes_to_amqp_clients_as_it_came() -> None:
    """With what the broker states of it beside the application's own properties."""
    message = amqp()
    assert head_for(message) == message.head
    due = message._replace(stated=encode_fields(Fields(delivery_ms=5)))
    assert head_for(due) == message.head
    stated = message._replace(stated=encode_fields(Fields(properties={"first": "true"})))
    head = head_for(stated)
    sections = sections_of(head)
    assert application_properties_of(head, sections) == {**APPLICATION, "first": "true"}
    assert properties_of(head, sections) == PROPERTIES
    assert decode_body(sections, message.body) == (0x77, "body")


def test_a_user_that_the_broker_states_stands_for_the_sender_s() -> None:
    """For AMQP clients, too; all else is as it came."""
    message = amqp()
    head = head_for(message._replace(stated=encode_fields(Fields(user_id="ann"))))
    sections = sections_of(head)
    assert properties_of(head, sections) == PROPERTIES._replace(user_id=b"ann")
    assert application_properties_of(head, sections) == APPLICATION
    assert decode_body(sections, message.body) == (0x77, "body")


def test_a_head_of_stomp_that_cannot_be_read_has_no_properties() -> None:
    """The body is delivered all the same."""
    head = head_for(stomp({})._replace(head=b"no colon\n"))
    assert application_properties_of(head, sections_of(head)) == {}
    with pytest.raises(AmqpDecodeError):
        sections_of(b"no colon\n")
