"""A message of AMQP in the core: a STOMP client reads it, and it becomes a dead letter."""

from dataclasses import replace
from uuid import UUID

import pytest

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.protocols.amqp.encoding import TAG
from orthia.broker.protocols.amqp.performatives import RECEIVER, Attach, Source, Target
from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    data_prefix,
    encode_application_properties,
    encode_header,
    encode_properties,
    message_annotations_of,
    sections_of,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import Int, ULong, Value
from orthia.config.address_settings import AddressSettings
from tests.amqp.support import Client as AmqpClient
from tests.core.support import SETTINGS, CoreUnderTest, anyone
from tests.stomp.support import QUEUE, Client

SAID = encode_header(Header(durable=True)) + encode_properties(
    Properties(message_id="ID:1", correlation_id="c", reply_to="answers", group_id="g")
)


def amqp(body: bytes, prefix: bytes = b"") -> OutgoingMessage:
    """Return a message as the core gets it of an AMQP client; it names a length that it has not."""
    said: dict[str, Value] = {"size": Int(3), "content-length": "1"}
    head = SAID + encode_application_properties(said) + prefix
    return OutgoingMessage(head, body, persistent=True, expires_ms=0, priority=4, encoding=TAG)


def test_a_stomp_client_reads_texts_bytes_and_maps_of_amqp() -> None:
    """By its own selector; the length is that of what it gets."""
    core = CoreUnderTest()
    for message in (
        amqp("é".encode(), text_prefix(2)),
        amqp(b"\0\xff", data_prefix(2)),
        amqp(encode_described(0x77, encode({"a": 1}))),
    ):
        core.broker.send(anyone(), QUEUE, message, None)
    client = Client(core)
    client.send("SUBSCRIBE", destination=QUEUE, id="1", selector="size = 3 AND JMSXGroupID = 'g'")
    got = client.frames()
    assert [frame.body for frame in got] == ["é".encode(), b"\0\xff", b'{"a":1}']
    assert [frame.get(b"content-length") for frame in got] == ["2", "2", "7"]
    assert [frame.get(b"content-type") for frame in got] == [None, None, "application/json"]
    for name, value in {"correlation-id": "c", "reply-to": "answers", "size": "3"}.items():
        assert [frame.get(name.encode()) for frame in got] == [value] * 3


@pytest.mark.parametrize("asked", ["c-1", ULong(7), UUID(int=1), b"\1\xff", "ID:AMQP_ULONG:7x"])
def test_a_stomp_client_answers_a_request_of_amqp(asked: Value) -> None:
    """By its reply-to, with its correlation-id as it is: whatever type that had comes back."""
    core = CoreUnderTest()
    requester = AmqpClient(core)
    reply_to = requester.attach(
        Attach("r", 0, RECEIVER, source=Source(dynamic=True), target=Target())
    ).source
    assert reply_to is not None
    said = Properties(reply_to=reply_to.address, correlation_id=asked, group_id="g")
    requester.send(requester.sender("orders"), "question", properties=said)
    requester.flow(0, 1)
    client = Client(core)
    client.send("SUBSCRIBE", destination=QUEUE, id="1")
    (frame,) = client.frames()
    client.send(
        "SEND",
        "answer",
        destination=frame.get(b"reply-to") or "",
        correlation_id=frame.get(b"correlation-id") or "",
    )
    (answer,) = requester.messages()
    assert answer.text == "answer"
    found = answer.properties.correlation_id
    assert (found, type(found)) == (asked, type(asked))


def test_a_dead_letter_of_amqp_says_where_it_was_to_both() -> None:
    """In annotations to AMQP clients, in headers to STOMP's."""
    given = AddressSettings("orders", max_delivery_attempts=1, dead_letter_address="DLQ")
    core = CoreUnderTest(replace(SETTINGS, address_settings=(given,)))
    core.broker.send(anyone(), QUEUE, amqp(b"body", text_prefix(4)), None)
    client = Client(core)
    client.send("SUBSCRIBE", destination=QUEUE, id="1", ack="client-individual")
    (frame,) = client.frames()
    client.send("NACK", id=frame.get(b"ack") or "")
    client.send("SUBSCRIBE", destination="/queue/DLQ", id="2", ack="client")
    (dead,) = client.frames()
    assert (dead.body, dead.get(b"_AMQ_ORIG_QUEUE")) == (b"body", "orders")
    amqp_client = core.consume("/queue/DLQ")
    client.send("DISCONNECT")
    record = amqp_client.received[0].record
    annotations = message_annotations_of(record.head, sections_of(record.head))
    assert annotations == {
        "x-opt-ORIG-ADDRESS": "orders",
        "x-opt-ORIG-QUEUE": "orders",
        "x-opt-ORIG-MESSAGE-ID": int(frame.get(b"message-id") or ""),
    }
    assert record.head.endswith(text_prefix(4))
