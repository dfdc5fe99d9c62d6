"""What proton writes is read here as it was meant, and what is written here, there.

Proton is no requirement of the tests: ``make test-amqp`` and ``make test-all`` bring it.
"""

from typing import Any
from uuid import UUID

import pytest

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.amqp.encoding import TAG, head_for
from orthia.broker.protocols.amqp.sections import (
    check_application_properties,
    decode_body,
    header_of,
    sections_of,
)
from orthia.broker.protocols.amqp.types import decode, encode
from orthia.broker.protocols.amqp.values import (
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
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.config.address_settings import RoutingType
from orthia.journal.model.fields import Fields
from orthia.journal.model.message import Message

pytestmark = pytest.mark.extended
proton: Any = pytest.importorskip("proton", reason="python-qpid-proton-wheel is not installed")

# Values here and there; of the two each is to be read as the other.
VALUES: list[tuple[object, Any]] = [
    (None, lambda: None),
    (True, lambda: True),
    (UByte(200), lambda: proton.ubyte(200)),
    (UShort(60_000), lambda: proton.ushort(60_000)),
    (UInt(0), lambda: proton.uint(0)),
    (UInt(4_000_000_000), lambda: proton.uint(4_000_000_000)),
    (ULong(0), lambda: proton.ulong(0)),
    (ULong(2**64 - 1), lambda: proton.ulong(2**64 - 1)),
    (Byte(-5), lambda: proton.byte(-5)),
    (Short(-500), lambda: proton.short(-500)),
    (Int(-70_000), lambda: proton.int32(-70_000)),
    (-(2**40), lambda: -(2**40)),
    (Float(0.5), lambda: proton.float32(0.5)),
    (-0.25, lambda: -0.25),
    (Char("é"), lambda: proton.char("é")),
    (Timestamp(1_700_000_000_000), lambda: proton.timestamp(1_700_000_000_000)),
    (Decimal(bytes(range(8))), lambda: proton.decimal64(int.from_bytes(bytes(range(8)), "big"))),
    (UUID(int=7), lambda: UUID(int=7)),
    (b"\0\xff", lambda: b"\0\xff"),
    ("é" * 200, lambda: "é" * 200),
    (Symbol("x-opt-a"), lambda: proton.symbol("x-opt-a")),
    ([1, "a", [True, None]], lambda: [1, "a", [True, None]]),
    ({"a": 1, Symbol("b"): []}, lambda: {"a": 1, proton.symbol("b"): []}),
    (
        Described(ULong(0x468C00000004), "colour = 'red'"),
        lambda: proton.Described(proton.ulong(0x468C00000004), "colour = 'red'"),
    ),
    (
        Array(0xB3, (Symbol("a"), Symbol("bc"))),
        lambda: proton.Array(
            proton.UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("a"), proton.symbol("bc")
        ),
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    VALUES,
    ids=[f"{number}-{type(ours).__name__}" for number, (ours, _) in enumerate(VALUES)],
)
def test_values_are_read_by_each_as_the_other_writes_them(ours: Any, theirs: Any) -> None:
    """With their types."""
    meant = theirs()
    data = proton.Data()
    data.put_object(meant)
    decoded, _ = decode(data.encode())
    assert (decoded, type(decoded)) == (ours, type(ours))
    read = proton.Data()
    read.decode(encode(ours))
    read.next()
    found = read.get_object()
    assert found == meant
    assert isinstance(found, memoryview if isinstance(meant, bytes) else type(meant))


def sent_by_proton(**changes: Any) -> Message:
    """Return a message as proton writes it and the broker keeps it."""
    message = proton.Message(**changes)
    encoded = message.encode()
    sections = sections_of(encoded)
    check_application_properties(encoded, sections)
    at = sections.head
    return Message("orders", encoded[:at], encoded[at:], 0, 0, 4, encoding=TAG)


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        ("héllo", "text", "héllo".encode()),
        (b"\0\xff", "bytes", b"\0\xff"),
        ({"a": 1}, "map", b'{"a":1}'),
        ([1, "a"], "stream", b'[1,"a"]'),
        (5, "value", b"5"),
        (None, "none", b""),
    ],
)
def test_a_message_of_proton_is_read(body: object, kind: str, shown: bytes) -> None:
    """All that it says, and its body as what it is."""
    message = sent_by_proton(
        body=body,
        durable=True,
        priority=7,
        ttl=1.5,
        id="ID:1",
        subject="order",
        address="orders",
        reply_to="answers",
        correlation_id=proton.ulong(7),
        group_id="g",
        group_sequence=3,
        user_id=b"ann",
        properties={"colour": "red", "n": proton.int32(3), "d": 0.5, "b": True, "u": UUID(int=5)},
        annotations={proton.symbol("x-opt-jms-dest"): proton.byte(1)},
    )
    assert message.fields() == Fields(
        id="ID:1",
        routing_type=RoutingType.MULTICAST,
        durable=True,
        group="g",
        group_sequence=3,
        correlation_id="ID:AMQP_ULONG:7",
        reply_to="answers",
        user_id="ann",
        subject="order",
        properties={"colour": "red", "n": 3, "d": 0.5, "b": True, "u": str(UUID(int=5))},
    )
    header = header_of(message.head, sections_of(message.head))
    assert (header.durable, header.priority, header.ttl) == (True, 7, 1_500)
    assert message.content() == (kind, shown)


def test_a_message_of_stomp_is_read_by_proton() -> None:
    """With its type, its properties and its annotations; a dead letter says where it was."""
    headers = {
        "content-type": "text/plain",
        "correlation-id": "ID:AMQP_ULONG:7",
        "type": "order",
        "reply-to": "answers",
        "JMSXGroupID": "g",
        "JMSXGroupSeq": "3",
        "colour": "red",
        "_AMQ_ORIG_QUEUE": "orders",
        "_AMQ_ORIG_MESSAGE_ID": "17",
    }
    lines = header_lines(headers)
    stored = Message("DLQ", lines, "héllo".encode(), 1_700_000_000_000, 0, 7)
    read = proton.Message()
    read.decode(head_for(stored, 18) + stored.body)
    assert (read.body, read.durable, read.priority) == ("héllo", True, 7)
    assert (read.id, read.address, read.subject) == ("ID:18", "DLQ", "order")
    assert (read.reply_to, read.correlation_id) == ("answers", proton.ulong(7))
    assert (read.group_id, read.group_sequence) == ("g", 3)
    assert read.content_type == "text/plain"
    assert read.properties == {"colour": "red"}
    assert read.annotations == {
        "x-opt-jms-msg-type": proton.byte(5),
        "x-opt-ORIG-QUEUE": "orders",
        "x-opt-ORIG-MESSAGE-ID": 17,
    }
    assert read.creation_time == 1_700_000_000.0


def test_what_the_broker_changes_is_read_by_proton() -> None:
    """A dead letter of proton's own goes back to it with where it was, and expires no more."""
    message = sent_by_proton(body={"a": 1}, durable=True, ttl=1.5, expiry_time=9.0, id=5)
    moved = message.relocated("DLQ", {"_AMQ_ORIG_QUEUE": "orders", "_AMQ_ORIG_MESSAGE_ID": "17"})
    read = proton.Message()
    read.decode(moved.head + moved.body)
    assert (read.body, read.durable, read.ttl, read.expiry_time) == ({"a": 1}, True, 0.0, 0.0)
    assert read.annotations == {"x-opt-ORIG-QUEUE": "orders", "x-opt-ORIG-MESSAGE-ID": 17}
    assert decode_body(sections_of(moved.head), moved.body).value == {"a": 1}
