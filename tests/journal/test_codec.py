"""The stored form of records: what goes in comes out, and damage is noticed."""

import json
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config.address_settings import RoutingType
from orthia.config.queues import PLAIN, QueueOptions
from orthia.journal import (
    AddressBinding,
    CorruptRecord,
    Message,
    QueueBinding,
    decode_message,
    encode_message,
)
from orthia.journal.model.codec import (
    DurableSubscription,
    IdCacheBinding,
    OperatorRecord,
    ReferenceRecord,
    decode_address_binding,
    decode_binding,
    decode_operator_record,
    decode_queue_binding,
    decode_reference,
    encode_address_binding,
    encode_id_cache,
    encode_operator_record,
    encode_queue_binding,
    encode_reference,
)
from orthia.journal.model.document import encode_document
from orthia.journal.model.message import LargeBody
from orthia.journal.model.records import UserRecordType

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
UINT64 = st.integers(0, 2**64 - 1)
_LARGE = st.tuples(
    st.just(b""), st.builds(LargeBody, id=UINT64, size=UINT64, checksum=st.integers(0, 2**32 - 1))
)
_BODIES = st.one_of(st.tuples(st.binary(max_size=2_000), st.none()), _LARGE)


def _message(
    content: tuple[bytes, LargeBody | None],
    address: str,
    headers: bytes,
    times: tuple[int, int],
    priority: int,
) -> Message:
    body, large = content
    return Message(address, headers, body, *times, priority, large)


MESSAGES = st.builds(
    _message,
    _BODIES,
    NAMES,
    st.binary(max_size=300),
    st.tuples(INT64, INT64),
    st.integers(0, 255),
)
EXAMPLE = Message("orders", b"a:b\n", b"body", 1_700_000_000_000, 0, 4)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Decoding undoes encoding, whatever the bytes."""
    assert decode_message(encode_message(message), 1) == message


@given(MESSAGES, st.data())
def test_any_flipped_bit_of_a_message_is_noticed(message: Message, data: st.DataObject) -> None:
    """No single damaged bit passes for a message."""
    stored = bytearray(encode_message(message))
    position = data.draw(st.integers(0, len(stored) - 1))
    stored[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord):
        decode_message(bytes(stored), 1)


@given(MESSAGES, st.data())
def test_a_truncated_message_is_noticed(message: Message, data: st.DataObject) -> None:
    """A message that lost its end, or all of it, is corrupt."""
    stored = encode_message(message)
    with pytest.raises(CorruptRecord):
        decode_message(stored[: data.draw(st.integers(0, len(stored) - 1))], 1)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt_and_nothing_worse(data: bytes) -> None:
    """Whatever is in the column, the decoder raises CorruptRecord and names the row."""
    for decode in (decode_message, decode_reference, decode_queue_binding, decode_address_binding):
        with pytest.raises(CorruptRecord) as caught:
            decode(data, 42)
        assert caught.value.seq == 42


def test_a_later_version_is_named() -> None:
    """A record of a codec this node does not know says so, and not that it is damaged."""
    with pytest.raises(CorruptRecord, match="codec version is 5 and this node reads 1 to 4"):
        decode_message(b"\x05" + encode_message(EXAMPLE)[1:], 1)


def test_the_stored_form_of_a_message_is_fixed() -> None:
    """Version 1 stays readable for ever: these bytes were written by the first of it."""
    stored = bytes.fromhex(
        "0104000600000004000000040000018bcfe568000000000000000000"
        "6f7264657273613a620a626f64794f46891e"
    )
    assert (encode_message(EXAMPLE), decode_message(stored, 1)) == (stored, EXAMPLE)


def test_the_stored_form_of_a_large_message_is_fixed() -> None:
    """Version 2 stays readable for ever too."""
    large = EXAMPLE._replace(body=b"", large=LargeBody(7, 2**40, 0xCAFEF00D))
    stored = bytes.fromhex(
        "0204000600000004000000140000018bcfe568000000000000000000"
        "6f7264657273613a620a"
        "00000000000000070000010000000000cafef00db5af5a88"
    )
    assert (encode_message(large), decode_message(stored, 1)) == (stored, large)


def test_an_address_too_long_to_store_is_refused() -> None:
    """An address has 65,535 bytes at most."""
    with pytest.raises(ValueError, match="address of 65536 bytes"):
        encode_message(EXAMPLE._replace(address="x" * 65_536))


ROUTING = st.sampled_from(RoutingType)
OPTIONS = st.builds(
    QueueOptions,
    filter=st.none() | NAMES,
    exclusive=st.booleans(),
    last_value_key=st.none() | NAMES,
    non_destructive=st.booleans(),
    ring_size=st.integers(-1, 2**62),
    purge_on_no_consumers=st.booleans(),
    consumers_before_dispatch=st.integers(0, 2**31),
    delay_before_dispatch=st.integers(-1, 2**62),
    enabled=st.booleans(),
    group_rebalance=st.booleans(),
    group_rebalance_pause_dispatch=st.booleans(),
    group_buckets=st.integers(-1, 2**31),
    group_first_key=st.none() | NAMES,
)
QUEUES = st.builds(
    QueueBinding,
    queue_id=st.just(3),
    name=NAMES,
    address=NAMES,
    routing_type=ROUTING,
    durable=st.booleans(),
    max_consumers=st.integers(-1, 2**31),
    auto_created=st.booleans(),
    user=st.none() | NAMES,
    subscription=st.none() | st.builds(DurableSubscription, NAMES, NAMES, st.booleans()),
    auto_delete=st.booleans(),
    options=st.just(PLAIN) | OPTIONS,
)
ADDRESSES = st.builds(
    AddressBinding,
    address_id=st.just(3),
    name=NAMES,
    routing_types=st.frozensets(ROUTING),
    auto_created=st.booleans(),
)


@given(QUEUES, ADDRESSES)
def test_bindings_come_back_as_they_were(queue: QueueBinding, address: AddressBinding) -> None:
    """Queues and addresses survive encoding, by whichever of the record types."""
    stored = encode_queue_binding(queue)
    assert decode_queue_binding(stored, 3) == queue
    assert decode_binding(UserRecordType.QUEUE_BINDING, stored, 3) == queue
    stored = encode_address_binding(address)
    assert decode_binding(UserRecordType.ADDRESS_BINDING, stored, 3) == address


@pytest.mark.parametrize("user", [None, "", "alice"])
def test_an_id_cache_comes_back_as_it_was(user: str | None) -> None:
    """Whoever counts for it is a field more, which older nodes do not ask for."""
    cache = IdCacheBinding(3, "orders", user)
    stored = encode_id_cache(cache)
    assert decode_binding(UserRecordType.ID_CACHE, stored, 3) == cache
    assert (b"user" in stored) is (user is not None)


def test_what_an_operator_asked_for_comes_back_as_it_was() -> None:
    """Its details are whoever's who wrote it."""
    record = OperatorRecord(3, "job", "orders", {"done": 7, "of": ["a"]})
    stored = encode_operator_record(record)
    assert decode_binding(UserRecordType.OPERATOR_RECORD, stored, 3) == record
    with pytest.raises(CorruptRecord, match="'details' is not a JSON object"):
        decode_operator_record(encode_document({"kind": "a", "name": "b", "details": 1}), 3)


def test_a_queue_is_stored_in_the_oldest_version_that_can_say_it() -> None:
    """Older nodes read what they read before, and refuse a queue with options by its version."""
    plain = QueueBinding(3, "q", "q", RoutingType.ANYCAST)
    assert encode_queue_binding(plain)[0] == 1
    of_somebody = replace(plain, subscription=DurableSubscription("me", "news"), auto_delete=True)
    assert encode_queue_binding(of_somebody)[0] == 1
    without_own = replace(plain, subscription=DurableSubscription("me", "news", no_local=True))
    assert encode_queue_binding(without_own)[0] == 2
    for option in (QueueOptions(filter="a = 1"), QueueOptions(enabled=False)):
        assert encode_queue_binding(replace(plain, options=option))[0] == 2
    of_values = replace(plain, options=QueueOptions(last_value_key="id"))
    assert encode_queue_binding(of_values)[0] == 3
    assert encode_queue_binding(replace(plain, priority=9))[0] == 3
    of_all = replace(plain, options=QueueOptions(last_value_key="id", non_destructive=True))
    assert encode_queue_binding(of_all)[0] == 4


def test_a_binding_of_a_later_version_is_corrupt() -> None:
    """This node does not guess what a newer one would do with it."""
    stored = encode_queue_binding(QueueBinding(3, "q", "q", RoutingType.ANYCAST))
    with pytest.raises(CorruptRecord, match="version is 5 and this node reads 1 to 4"):
        decode_queue_binding(b"\x05" + stored[1:], 3)
    with pytest.raises(CorruptRecord, match="version is 2 and this node reads 1"):
        decode_address_binding(b"\x02" + stored[1:], 3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": 1}, "option 'colour' is not one this node knows"),
        ({"ring-size": "many"}, "field 'ring-size' is not an integer"),
        ({"enabled": 1}, "field 'enabled' is not true or false"),
        ({"filter": False}, "field 'filter' is not a text"),
        ([], "field 'options' is not a JSON object"),
    ],
)
def test_options_that_are_not_understood_are_corrupt(options: object, problem: str) -> None:
    """A queue that would do something else than it says is not opened."""
    stored = encode_queue_binding(QueueBinding(3, "q", "q", RoutingType.ANYCAST))
    text = json.dumps(json.loads(stored[5:]) | {"options": options}).encode()
    damaged = struct.pack(">BI", 2, zlib.crc32(text)) + text
    with pytest.raises(CorruptRecord, match=problem):
        decode_queue_binding(damaged, 3)


def test_a_binding_of_an_unknown_type_is_corrupt() -> None:
    """A record type this node does not know is named, not skipped."""
    with pytest.raises(CorruptRecord, match="type 99"):
        decode_binding(99, b"", 3)


def test_a_binding_of_another_kind_is_corrupt() -> None:
    """An intact record without the fields asked for is corrupt."""
    stored = encode_address_binding(AddressBinding(3, "a", frozenset()))
    with pytest.raises(CorruptRecord, match="field 'address' is not a text"):
        decode_queue_binding(stored, 3)


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_a_reference_comes_back_as_it_was(position: int, total: int) -> None:
    """A reference keeps its position and its total."""
    reference = ReferenceRecord(position, total)
    assert decode_reference(encode_reference(reference), 1) == reference
