"""The message model: what it says of itself, stated or in its head, and what is stored of it."""

import json
import math
import struct
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols import encodings
from orthia.broker.protocols.stomp.encoding import StompEncoding
from orthia.config.address_settings import RoutingType
from orthia.journal import CorruptRecord, Message, decode_message, encode_message
from orthia.journal.model.encodings import (
    FIRST_ENCODING,
    NO_HEAD,
    SECOND_ENCODING,
    UnknownEncoding,
    encoding_of,
    register_encoding,
)
from orthia.journal.model.fields import NOTHING_SAID, Fields, Property, decode_fields, encode_fields
from orthia.journal.model.message import LargeBody, large_body_id, large_body_size
from tests.journal.test_codec import EXAMPLE, INT64, NAMES
from tests.support.compiled import needs_pure_python

SAID = st.none() | NAMES
FIELDS = st.builds(
    Fields,
    **dict.fromkeys(("id", "group", "duplicate_id", "correlation_id", "reply_to"), SAID),
    content_type=SAID,
    user_id=SAID,
    subject=SAID,
    group_sequence=st.none() | INT64,
    routing_type=st.none() | st.sampled_from(RoutingType),
    durable=st.none() | st.booleans(),
    delivery_ms=st.none() | INT64,
    recurrence=SAID,
    client_id=SAID,
    properties=st.dictionaries(
        NAMES,
        NAMES | INT64 | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=40),
        max_size=6,
    ),
)
NEUTRAL = EXAMPLE._replace(head=b"", encoding=NO_HEAD, stated=encode_fields(Fields(group="g")))


@given(FIELDS)
def test_stated_fields_come_back_as_they_were(fields: Fields) -> None:
    """Each with its type: an integer stays one, and is no truth value."""
    again = decode_fields(encode_fields(fields))
    assert again == fields
    kinds = [(name, type(value)) for name, value in fields.properties.items()]
    assert [(name, type(value)) for name, value in again.properties.items()] == kinds
    message = NEUTRAL._replace(stated=encode_fields(fields))
    assert decode_message(encode_message(message), 1).fields() == fields


@pytest.mark.parametrize("delivery_ms", [0, 1, 10**17, 10**18 - 1, 10**18, 2**63 - 1])
def test_what_only_says_when_comes_back(delivery_ms: int) -> None:
    """Which is read without JSON; what merely looks like it is read as JSON, or refused."""
    stated = encode_fields(Fields(delivery_ms=delivery_ms))
    assert decode_fields(stated) == Fields(delivery_ms=delivery_ms)
    assert decode_fields(stated.replace(b":", b" : ")) == Fields(delivery_ms=delivery_ms)
    beside = encode_fields(Fields(delivery_ms=delivery_ms, client_id="c"))
    assert decode_fields(beside) == Fields(delivery_ms=delivery_ms, client_id="c")
    for wrong in (b"01", b"1.5", b"true", b"%d" % 2**63, b"9" * 30):
        with pytest.raises(ValueError, match=r"field|JSON|property"):
            decode_fields(b'{"delivery-ms":%b}' % wrong)


def test_a_property_may_be_no_number() -> None:
    """Which JSON cannot say, and equals nothing."""
    read = decode_fields(encode_fields(Fields(properties={"x": math.nan}))).properties["x"]
    assert isinstance(read, float)
    assert math.isnan(read)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800"])
def test_what_no_protocol_has_is_not_stored(value: Property) -> None:
    """More than 64 bits, or half a character."""
    with pytest.raises(ValueError, match=r"64 bits|surrogates"):
        encode_fields(Fields(properties={"x": value}))


def _version_3(head: bytes, body: bytes = b"body", version: int = 3) -> bytes:
    """Return a record whose lengths and checksum are right, whatever its head is."""
    beginning = struct.pack(">BBHIIqq", version, 4, 6, len(head), len(body), 0, 0)
    record = beginning + b"orders" + head + body
    return record + struct.pack(">I", zlib.crc32(record))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\0", "does not say what its encoding is"),
        (struct.pack(">BBI", 0, 0, 5) + b"{}", "cut off at 2 bytes"),
        (struct.pack(">BBI", 9, 0, 0), "encoding is 9 with flags 0, which this node does not know"),
        (struct.pack(">BBI", 0, 2, 0), "encoding is 0 with flags 2, which this node does not know"),
        (struct.pack(">BBI", 0, 0, 0) + b"a:b\n", "a head of no encoding"),
        (struct.pack(">BBI", 0, 1, 0), "does not say where its large body is"),
        *(
            (struct.pack(">BBI", 0, 0, len(stated)) + stated, "is corrupt: ")
            for stated in (
                *(b"[]", b"{", b"[" * 100_000, b'{"group":5}', b'{"durable":1}', b"\xff"),
                *(b'{"delivery-ms":true}', b'{"delivery-ms":9223372036854775808}'),
                *(b'{"properties":[]}', b'{"properties":{"a":null}}', b'{"properties":{"a":[]}}'),
                *(b'{"properties":{"a":{"bytes":"x"}}}', b'{"properties":{"a":{"float":"1"}}}'),
                *(b'{"group":"\\ud800"}', b'{"routing-type":"SOME"}'),
                b'{"properties":{"\\ud800":1}}',
            )
        ),
    ],
    ids=lambda value: repr(value)[-40:],
)
def test_a_head_that_no_node_writes_is_corrupt(head: bytes, reason: str) -> None:
    """Though its checksum is right: it is named, and ends nothing."""
    with pytest.raises(CorruptRecord, match=reason):
        decode_message(_version_3(head), 1)


@pytest.mark.parametrize("encoding", [NO_HEAD, FIRST_ENCODING])
def test_the_body_of_a_large_message_of_any_version_is_found(encoding: int) -> None:
    """By whoever has only the record."""
    head = b"" if encoding == NO_HEAD else b"a:b\n"
    large = NEUTRAL._replace(body=b"", large=LargeBody(7, 500, 9), encoding=encoding, head=head)
    for message in (large, large._replace(stated=b"", encoding=FIRST_ENCODING, head=b"a:b\n")):
        stored = encode_message(message)
        assert (large_body_id(stored), large_body_size(stored)) == (7, 500)
        assert decode_message(stored, 1) == message
        assert message.body_size == 500
    small = encode_message(NEUTRAL)
    assert (large_body_id(small), large_body_size(small)) == (None, 0)


def test_the_stored_form_of_stated_fields_is_fixed() -> None:
    """Version 3 stays readable for ever as well."""
    fields = Fields(
        group="g", durable=False, properties={"n": 1, "x": 0.5, "b": b"\0", "inf": math.inf}
    )
    stated = (
        b'{"durable":false,"group":"g","properties":'
        b'{"n":1,"x":0.5,"b":{"bytes":"00"},"inf":{"float":"inf"}}}'
    )
    assert (encode_fields(fields), decode_fields(stated)) == (stated, fields)
    assert (encode_fields(NOTHING_SAID), decode_fields(b"")) == (b"", NOTHING_SAID)
    head = struct.pack(">BBI", 1, 0, len(stated)) + stated + b"a:b\n"
    message = Message("orders", b"a:b\n", b"body", 0, 0, 4, stated=stated)
    assert encode_message(message) == _version_3(head)


def test_what_is_stated_wins_over_what_the_head_says() -> None:
    """Field by field, and property by property."""
    stated = encode_fields(Fields(group="stated", properties={"colour": "blue", "n": 1}))
    head = b"JMSXGroupID:head\ncorrelation-id:c\ncolour:red\nsize:5\n"
    fields = EXAMPLE._replace(head=head, stated=stated).fields()
    assert (fields.group, fields.correlation_id) == ("stated", "c")
    assert fields.properties == {"colour": "blue", "size": "5", "n": 1}
    json.loads(stated)


def test_a_moved_message_says_where_it_was_and_expires_no_more() -> None:
    """One without a head among its stated properties, beside those it had."""
    moved = NEUTRAL._replace(expires_ms=5).relocated("DLQ", {"_AMQ_ORIG_QUEUE": "orders"})
    assert (moved.address, moved.expires_ms) == ("DLQ", 0)
    assert moved.fields() == Fields(group="g", properties={"_AMQ_ORIG_QUEUE": "orders"})
    again = moved.relocated("other", {"_AMQ_ORIG_QUEUE": "DLQ"})
    assert again.fields().properties == {"_AMQ_ORIG_QUEUE": "DLQ"}


@pytest.mark.parametrize(
    "module",
    [
        "orthia.broker.node.node",
        "orthia.pipeline.sources.decoding",
        "orthia.pipeline.sources.audit_rows",
    ],
)
def test_every_program_that_asks_has_the_readers(module: str) -> None:
    """With nothing else imported, as in a worker of Spark."""
    ask = f"import {module}; from orthia.journal.model.encodings import encoding_of, FIRST_ENCODING"
    program = f"{ask}; print(encoding_of(FIRST_ENCODING).fields(b'n:1').properties)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.split() == [b"{'n':", b"'1'}"]


def test_every_known_encoding_has_one_reader() -> None:
    """Programs that import them all can ask any message."""
    stomp, amqp = encodings.ENCODINGS
    assert encoding_of(FIRST_ENCODING) is stomp
    assert encoding_of(SECOND_ENCODING) is amqp
    register_encoding(StompEncoding())  # the same once more
    with pytest.raises(UnknownEncoding, match="encoding 9"):
        encoding_of(9)


@needs_pure_python("no class of a test can be a compiled one's")
def test_no_second_reader_is_registered() -> None:
    """Whoever names a tag that is taken is told whose it is."""

    class Other(StompEncoding):
        """Another reader of the same heads."""

    with pytest.raises(ValueError, match="encoding 1 is StompEncoding's"):
        register_encoding(Other())
