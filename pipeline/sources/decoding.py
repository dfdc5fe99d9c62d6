"""From stored rows to the columns of ``orthia.journal``, by the broker's own codec."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.stomp.encoding import TAG, headers_map, parts_for, property_texts
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
from orthia.journal.model.message import LargeBody, Message, large_body_size
from orthia.journal.model.records import ID_COUNTER_SEQ, UserRecordType
from orthia.journal.model.windows import stored_message
from orthia.pipeline.errors import BodyUnreadable
from orthia.pipeline.sources.bodies import BodyReader
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

_KEPT_HEADS: Final = 4_096
_KEPT_HEAD_BYTES: Final = 4 * 1024 * 1024
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
    """Makes batches of the requested columns; caches decoded headers, which often repeat."""

    def __init__(
        self, schema: pa.Schema, queues: Mapping[int, str], bodies: Bodies | None = None
    ) -> None:
        """Without ``bodies`` the column body of large messages is NULL."""
        self._bodies = bodies if "body" in schema.names else None
        self._schema = schema
        self._queues = queues
        self._decodes = any(name in _DECODED for name in schema.names)
        self._heads: dict[bytes, dict[str, Any]] = {}
        self._kept_bytes = 0

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested columns of fetched rows."""
        decoded = self._decoded(batch) if self._decodes else {}
        arrays = []
        for field in self._schema:
            if field.name in STORED:
                arrays.append(batch.column(field.name))
            else:
                values = decoded[field.name] if field.name in _DECODED else None
                if values is None:
                    values = self._derived(field.name, batch)
                arrays.append(pa.array(values, field.type))
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

    def _decoded(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        names = [name for name in self._schema.names if name in _DECODED]
        columns: dict[str, list[Any]] = {name: [] for name in names}
        rows = (batch.column(name).to_pylist() for name in _NEEDS["body"])
        for seq, row_id, kind, record, body in zip(*rows, strict=True):
            values = self._values(seq, row_id, kind, record, body)
            for name in names:
                columns[name].append(values.get(name))
        return columns

    def _values(
        self,
        seq: int | None,
        row_id: int | None,
        kind: int | None,
        record: bytes | None,
        body: bytes | None,
    ) -> dict[str, Any]:
        if seq is None or row_id is None or kind is None or record is None:
            return {"corrupt": "a column of its row that must have a value has none"}
        try:
            if kind == UserRecordType.DUPLICATE_ID:
                decode_duplicate_id(record, seq)
                return {}
            message = stored_message(seq, row_id, kind, 0, record, body).record
            columns = self._message_columns(message)
        except CorruptRecord as error:
            return {"corrupt": error.reason}
        except ValueError as error:
            return {"corrupt": f"its headers cannot be read: {error}"}
        if message.body_size >= _INTEGER:
            return {"corrupt": f"it says that its body has {message.body_size} bytes"}
        if message.large is not None and message.large.id >= _INTEGER:
            return {"corrupt": f"it says that its body is {message.large.id}"}
        if not _FIRST_MS <= message.timestamp_ms <= _LAST_MS:
            return {"corrupt": f"it was accepted at {message.timestamp_ms} ms, which is no time"}
        # A valid message: it expires later, or earlier, than the column can represent.
        expires_ms = min(max(message.expires_ms, _FIRST_MS), _LAST_MS)
        content, corrupt = self._body(message)
        return {
            **columns,
            "address": message.address,
            "body": None if content is None else content.body,
            "body_type": None if content is None else content.kind or None,
            "body_size": message.body_size,
            "large": message.large is not None,
            "large_id": message.large.id if message.large is not None else None,
            "large_crc32": message.large.checksum if message.large is not None else None,
            "priority": message.priority,
            # Microseconds, as Arrow stores them, without an intermediate datetime.
            "timestamp": message.timestamp_ms * 1000,
            "expires": expires_ms * 1000 if expires_ms else None,
            "corrupt": corrupt,
        }

    def _body(self, message: Message) -> tuple[Content | None, str | None]:
        """Return the body, if it is requested, and the reason if it cannot be read."""
        if message.large is None:
            return _content(message, message.body), None
        if self._bodies is None:
            return None, None
        try:
            large = self._bodies.of(message.large)
        except BodyUnreadable as error:
            return None, str(error)
        return None if large is None else _content(message, large), None

    def _message_columns(self, message: Message) -> dict[str, Any]:
        """Return the columns of a message's headers and properties; raises ValueError."""
        if message.stated or message.encoding != TAG:
            return _columns_of(message)
        head = message.head
        found = self._heads.get(head)
        if found is None:
            found = _columns_of(message)
            self._kept_bytes += len(head)
            if len(self._heads) >= _KEPT_HEADS or self._kept_bytes > _KEPT_HEAD_BYTES:
                self._heads.clear()
                self._kept_bytes = len(head)
            self._heads[head] = found
        return found


def _content(message: Message, body: bytes) -> Content:
    """Return a body as every protocol can have it; as it is stored if it cannot be read."""
    try:
        return message.content(body)
    except ValueError:
        return Content("", body)


def _columns_of(message: Message) -> dict[str, Any]:
    fields = message.fields()
    delivery_ms = fields.delivery_ms
    lines, _ = parts_for(message)
    return {
        "headers": list(headers_map(lines).items()),
        "properties": list(property_texts(fields.properties)),
        "property_types": [
            (name, _TYPES[type(value)])
            for name, value in fields.properties.items()
            if not isinstance(value, str)
        ],
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
