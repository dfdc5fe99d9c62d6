"""Whatever is in a row of the journal: CorruptRecord, or a value that can be stored again."""

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.stomp.encoding import headers_map
from orthia.config.address_settings import RoutingType
from orthia.journal import AddressBinding, CorruptRecord, Message, QueueBinding
from orthia.journal.model.codec import (
    ReferenceRecord,
    decode_address_binding,
    decode_queue_binding,
    decode_reference,
    encode_address_binding,
    encode_queue_binding,
    encode_reference,
)
from orthia.journal.model.message import decode_message, encode_message
from tests.hostile.fuzzing import Long, damaged, fuzzed

pytestmark = pytest.mark.extended

VALID = [
    encode_message(Message("orders", b"a:b\n", b"body", 1_700_000_000_000, 0, 4)),
    encode_message(
        Message("orders", b"a:b\n", b"body", 1_700_000_000_000, 0, 4, stated=b'{"group":"g"}')
    ),
    encode_reference(ReferenceRecord(1, 2)),
    encode_queue_binding(QueueBinding(3, "q", "a", RoutingType.ANYCAST)),
    encode_address_binding(AddressBinding(3, "a", frozenset(RoutingType))),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = "name address routing-type routing-types durable max-consumers auto-created position total"
DOCUMENTS = st.one_of(
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS.split()), JSON | st.just("ANYCAST")).map(
        lambda value: json.dumps(value).encode()
    ),
    st.sampled_from([Long(b"[" * 100_000), Long(b'{"a":' * 100_000), b"\xff", b"", b"NaN"]),
    st.just(b"9" * 5_000),
)


def checked(text: bytes) -> bytes:
    """Return a document's stored form, its checksum right whatever it says."""
    return Long(struct.pack(">BI", 1, zlib.crc32(text)) + text)


def with_checksum(data: bytes) -> bytes:
    """Return a damaged message whose checksum is right."""
    return data[:-4] + struct.pack(">I", zlib.crc32(data[:-4])) if len(data) > 4 else data


ROWS = st.one_of(
    *(damaged(row) for row in VALID),
    *(damaged(row).map(with_checksum) for row in VALID[:2]),
    DOCUMENTS.map(checked),
    st.binary(max_size=120),
)
CODECS: list[tuple[Callable[[bytes, int], Any], Callable[[Any], bytes]]] = [
    (decode_message, encode_message),
    (decode_reference, encode_reference),
    (decode_queue_binding, encode_queue_binding),
    (decode_address_binding, encode_address_binding),
]


@fuzzed(500)
@given(ROWS)
def test_any_row_is_corrupt_or_can_be_stored_again(row: bytes) -> None:
    """Each decoder, on whatever is in the column."""
    for decode, encode in CODECS:
        try:
            value = decode(row, 42)
        except CorruptRecord:
            continue
        assert decode(encode(value), 42) == value


@fuzzed(200)
@given(st.binary(max_size=60) | damaged(b"key:value\na\\cb:c\\nd\n"))
def test_any_header_block_is_read_or_a_value_error(block: bytes) -> None:
    """What the pipeline reads of a message a client made up."""
    try:
        headers_map(block)
    except ValueError:
        return


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000], ids=["list", "object"])
def test_a_deeply_nested_document_is_corrupt(text: bytes) -> None:
    """It is named, and ends no thread."""
    with pytest.raises(CorruptRecord, match="not JSON"):
        decode_queue_binding(checked(text), 1)


def test_a_name_that_is_no_text_is_corrupt() -> None:
    """Half of a surrogate pair could not be stored again."""
    fields = json.loads(VALID[3][5:]) | {"name": "\ud800"}
    with pytest.raises(CorruptRecord, match="field 'name' is not a text"):
        decode_queue_binding(checked(json.dumps(fields).encode()), 1)
