"""From stored rows to the columns of ``orthia.journal``, by the broker's own codec."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import pyarrow as pa

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.stomp.encoding import (
    TAG,
    fields_of,
    headers_map,
    parts_for,
    property_texts,
)
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.codec import (
    AddressBinding,
    IdCacheBinding,
    OperatorRecord,
    PreparedTransaction,
    QueueBinding,
    RecordVersion,
    decode_binding,
    decode_duplicate_id,
)
from orthia.journal.model.encodings import Content
from orthia.journal.model.fields import Fields, Property
from orthia.journal.model.message import LargeBody, Message, decode_message, large_body_size
from orthia.journal.model.records import ID_COUNTER_SEQ, UserRecordType
from orthia.journal.model.windows import stored_message
from orthia.pipeline.errors import BodyUnreadable
from orthia.pipeline.sources.bodies import BodyReader
from orthia.pipeline.sources.failover_events import collector_at_rest
from orthia.pipeline.sources.schemas import BINDINGS, SAID, arrow_schema

STORED: Final = frozenset(
    {"seq", "id", "record_type", "user_record_type", "tx_id", "queue_id", "epoch"}
    | {"written_at", "record", "size", "removed_at", "reason"}
)
"""Columns that are read from the database unchanged."""

_TYPES: Final = {int: "integer", float: "float", bool: "boolean", bytes: "bytes"}
_DECODED: Final = frozenset(
    {*SAID}
    | {"address", "body", "body_type", "body_size", "large", "large_id", "large_crc32"}
    | {"priority", "timestamp", "expires", "corrupt"}
)
"""Columns for which a record must be decoded."""

_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "kind": ("user_record_type", "queue_id"),
    "queue": ("queue_id",),
    **dict.fromkeys(_DECODED, ("seq", "id", "user_record_type", "record", "body_record")),
}

_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: the latest time that readers of the columns can show."""
_FIRST_MS: Final = -62_135_596_800_000
"""The first one of the year 1."""
_MOST_CONSUMERS: Final = 2**31 - 1
_INTEGER: Final = 2**63
_PART_BYTES: Final = 16 * 1024 * 1024
"""Bytes of large bodies after which a batch ends; a larger body has a batch of its own."""


def needed(names: Sequence[str]) -> list[str]:
    """Return the columns to fetch for the columns ``names``."""
    wanted: dict[str, None] = {}
    for name in names:
        wanted |= dict.fromkeys((name,) if name in STORED else _NEEDS[name])
    return list(wanted)


@dataclass(frozen=True)
class Bodies:
    """The bodies of large messages up to a size."""

    reader: BodyReader
    max_bytes: int
    """The largest body that is read."""

    def of(self, large: LargeBody) -> bytes | None:
        """Return a body, or None if it is too large; raises BodyUnreadable."""
        return self.reader.whole(large) if large.size <= self.max_bytes else None


class Decoder:
    """Makes batches of the requested columns; parses equal headers, which are frequent, once."""

    def __init__(
        self, schema: pa.Schema, queues: Mapping[int, str], bodies: Bodies | None = None
    ) -> None:
        """Without ``bodies`` the column body of large messages is NULL."""
        self._bodies = bodies if "body" in schema.names else None
        self._schema = schema
        self._queues = queues
        self._decodes = any(name in _DECODED for name in schema.names)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested columns of fetched rows."""
        decoded = self._decoded(batch) if self._decodes else {}
        arrays = []
        for field in self._schema:
            if field.name in STORED:
                arrays.append(batch.column(field.name))
            elif field.name in decoded:
                arrays.append(decoded[field.name])
            else:
                arrays.append(pa.array(self._derived(field.name, batch), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def decode_in_parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns of fetched rows, in batches that large bodies keep small."""
        if self._bodies is None:
            yield self.decode(batch)
            return
        start = size = 0
        records = (batch.column(name) for name in ("record", "body_record"))
        for at, (record, body) in enumerate(zip(*records, strict=True)):
            large = _large_size(record) or _large_size(body)
            more = large if large <= self._bodies.max_bytes else 0
            if more and size + more > _PART_BYTES and at > start:
                yield self.decode(batch.slice(start, at - start))
                start, size = at, 0
            size += more
        yield self.decode(batch.slice(start))

    def _derived(self, name: str, batch: pa.RecordBatch) -> list[str | None]:
        queue_ids = batch.column("queue_id").to_pylist()
        if name == "queue":
            return [self._queues.get(queue_id) for queue_id in queue_ids]
        kinds = batch.column("user_record_type").to_pylist()
        return [_kind(*pair) for pair in zip(kinds, queue_ids, strict=True)]

    def _decoded(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns for which records are decoded."""
        stored = (batch.column(name).to_pylist() for name in _NEEDS["body"])
        heads = _Heads([name for name in self._schema.names if name in SAID])
        rows = []
        with collector_at_rest():
            for seq, row_id, kind, record, body in zip(*stored, strict=True):
                try:
                    rows.append(self._row(seq, row_id, kind, record, body, heads))
                except CorruptRecord as error:
                    rows.append(_corrupt(error.reason))
                except ValueError as error:
                    rows.append(_corrupt(f"its headers cannot be read: {error}"))
            columns = zip(*rows, strict=True) if rows else ((),) * len(_Row._fields)
            found = dict(zip(_Row._fields, columns, strict=True))
            places = pa.array(found.pop("head"), pa.int32())
            arrays = heads.columns(self._schema, places)
        wanted = set(self._schema.names)
        for name, values in found.items():
            if name in wanted:
                arrays[name] = pa.array(values, self._schema.field(name).type)
        return arrays

    def _row(
        self,
        seq: int | None,
        row_id: int | None,
        kind: int | None,
        record: bytes | None,
        body: bytes | None,
        heads: "_Heads",
    ) -> "_Row":
        """Return the columns of a message; raises CorruptRecord, ValueError."""
        if seq is None or row_id is None or kind is None or record is None:
            return _corrupt("a column of its row that must have a value has none")
        if kind == UserRecordType.ADD_MESSAGE:
            message = decode_message(record, seq)
        elif kind == UserRecordType.DUPLICATE_ID:
            decode_duplicate_id(record, seq)
            return _corrupt(None)
        else:
            message = stored_message(seq, row_id, kind, 0, record, body).record
        head = heads.place_of(message)
        large = message.large
        size = message.body_size
        if size >= _INTEGER:
            return _corrupt(f"it says that its body has {size} bytes")
        if large is not None and large.id >= _INTEGER:
            return _corrupt(f"it says that its body is {large.id}")
        accepted_ms = message.timestamp_ms
        if not _FIRST_MS <= accepted_ms <= _LAST_MS:
            return _corrupt(f"it was accepted at {accepted_ms} ms, which is no time")
        # A valid message: it expires later, or earlier, than the column can represent. Times are
        # microseconds, as Arrow stores them, without an intermediate datetime.
        expires_ms = message.expires_ms
        expires = min(max(expires_ms, _FIRST_MS), _LAST_MS) * 1000 if expires_ms else None
        whole, corrupt = (message.body, None) if large is None else self._large_body(large)
        content = None if whole is None else _content(message, whole)
        return _Row(
            head,
            message.address,
            None if content is None else content.body,
            None if content is None else content.kind or None,
            size,
            large is not None,
            None if large is None else large.id,
            None if large is None else large.checksum,
            message.priority,
            accepted_ms * 1000,
            expires,
            corrupt,
        )

    def _large_body(self, large: LargeBody) -> tuple[bytes | None, str | None]:
        """Return the body, if it is requested, and the reason if it cannot be read."""
        if self._bodies is None:
            return None, None
        try:
            return self._bodies.of(large), None
        except BodyUnreadable as error:
            return None, str(error)


class _Row(NamedTuple):
    """A message's own columns, by their names, and the place of its head."""

    head: int | None
    address: str | None = None
    body: bytes | None = None
    body_type: str | None = None
    body_size: int | None = None
    large: bool | None = None
    large_id: int | None = None
    large_crc32: int | None = None
    priority: int | None = None
    timestamp: int | None = None
    expires: int | None = None
    corrupt: str | None = None


def _corrupt(reason: str | None) -> _Row:
    return _Row(None, corrupt=reason)


class _Heads:
    """The different headers and properties of a batch, parsed once each."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names`` are the wanted columns among ``SAID``."""
        self._names = names
        self._places: dict[bytes, int] = {}
        """Of heads that say everything there is."""
        self._found: list[dict[str, Any]] = []

    def place_of(self, message: Message) -> int:
        """Return the place of a message's head; raises ValueError if that cannot be read."""
        if message.stated or message.encoding != TAG:
            self._found.append(_columns_of(message))
            return len(self._found) - 1
        place = self._places.get(message.head)
        if place is None:
            headers = headers_map(message.head)
            fields = fields_of(headers)
            # Every property that came by STOMP is a text.
            self._found.append(_columns(headers, fields.properties, {}, fields))
            place = self._places[message.head] = len(self._found) - 1
        return place

    def columns(self, schema: pa.Schema, places: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of rows whose heads have these places."""
        arrays = {}
        for name in self._names:
            kind = schema.field(name).type
            values = [one[name] for one in self._found]
            distinct = _map_array(values, kind) if pa.types.is_map(kind) else pa.array(values, kind)
            arrays[name] = distinct.take(places)
        return arrays


def _map_array(values: Sequence[Mapping[str, str]], kind: pa.DataType) -> pa.Array:
    """Return maps as an array, several times as fast as Arrow does it."""
    keys = list(chain.from_iterable(values))
    items = list(chain.from_iterable(one.values() for one in values))
    ends = accumulate(map(len, values), initial=0)
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(items, pa.string())
    ).cast(kind)


def _content(message: Message, body: bytes) -> Content:
    """Return a body as every protocol can have it; as it is stored if it cannot be read."""
    try:
        return message.content(body)
    except ValueError:
        return Content("", body)


def _columns_of(message: Message) -> dict[str, Any]:
    """Return the columns of a message's headers and properties; raises ValueError."""
    fields = message.fields()
    types = {
        name: _TYPES[type(value)]
        for name, value in fields.properties.items()
        if not isinstance(value, str)
    }
    texts = dict(property_texts(fields.properties))
    lines, _ = parts_for(message)
    return _columns(headers_map(lines), texts, types, fields)


def _columns(
    headers: Mapping[str, str],
    properties: Mapping[str, Property],
    types: Mapping[str, str],
    fields: Fields,
) -> dict[str, Any]:
    delivery_ms = fields.delivery_ms
    return {
        "headers": headers,
        "properties": properties,
        "property_types": types,
        "message_id": fields.id,
        "routing_type": None if fields.routing_type is None else fields.routing_type.value,
        "durable": fields.durable,
        "delivery_time": None
        if delivery_ms is None
        else min(max(delivery_ms, _FIRST_MS), _LAST_MS) * 1000,
        "group_id": fields.group,
        "duplicate_id": fields.duplicate_id,
        "correlation_id": fields.correlation_id,
        "reply_to": fields.reply_to,
        "content_type": fields.content_type,
        "user_id": fields.user_id,
    }


def _large_size(record: pa.Scalar) -> int:
    try:
        return large_body_size(record.as_py()) if record.is_valid else 0
    except struct.error:
        return 0  # it is truncated: the decoder reports it


def _kind(user_record_type: int | None, queue_id: int | None) -> str:
    if user_record_type in (UserRecordType.ADD_MESSAGE, UserRecordType.ADD_LARGE_MESSAGE):
        return "body" if queue_id is None else "message"
    if user_record_type == UserRecordType.DUPLICATE_ID:
        return "duplicate-id"
    return "reference" if user_record_type == UserRecordType.ADD_REF else "other"


def decode_bindings(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of BINDINGS, fetched as they are, in the columns of ``schemas.BINDINGS``."""
    rows = [_binding(row) for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(BINDINGS))


def _binding(row: dict[str, Any]) -> dict[str, Any]:
    shared = {name: row[name] for name in ("seq", "id", "epoch", "written_at")}
    if row["record"] is None or row["user_record_type"] is None:
        return shared | {"type": "other", "corrupt": "its row has no record, or no type"}
    names = ("seq", "id", "epoch", "written_at", "user_record_type", "record")
    shared = {name: row[name] for name in names}
    if row["seq"] == ID_COUNTER_SEQ:
        return shared | {"type": "counter"}
    try:
        binding = decode_binding(row["user_record_type"], row["record"], row["seq"])
    except CorruptRecord as error:
        return shared | {"type": "other", "corrupt": error.reason}
    if isinstance(binding, AddressBinding):
        return shared | _of_address(binding)
    if isinstance(binding, PreparedTransaction):
        return shared | {"type": "transaction", "name": str(binding.xid)}
    if isinstance(binding, RecordVersion):
        return shared | {"type": "record-version", "name": str(binding.version)}
    if isinstance(binding, IdCacheBinding):
        return shared | {"type": "id-cache", "name": binding.address, "address": binding.address}
    if isinstance(binding, OperatorRecord):
        return shared | {"type": "operator-record", "name": binding.kind}
    return shared | _of_queue(binding)


def _of_address(binding: AddressBinding) -> dict[str, Any]:
    return {
        "type": "address",
        "name": binding.name,
        "address": binding.name,
        "routing_types": sorted(kind.value for kind in binding.routing_types),
        "auto_created": binding.auto_created,
    }


def _of_queue(binding: QueueBinding) -> dict[str, Any]:
    return {
        "type": "queue",
        "name": binding.name,
        "address": binding.address,
        "routing_types": [binding.routing_type.value],
        "durable": binding.durable,
        "max_consumers": max(min(binding.max_consumers, _MOST_CONSUMERS), -1),
        "auto_created": binding.auto_created,
    }
