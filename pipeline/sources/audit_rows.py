"""Rows for an audit: keys as stored, and the faults of their records."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.journal.model.integrity import (
    Finding,
    RowKeys,
    check_binding,
    check_history,
    check_message,
)
from orthia.journal.model.large_check import BodyFinding, StoredPiece, judge_body
from orthia.journal.model.message import LargeBody
from orthia.pipeline.sources.schemas import arrow_schema

_FINDING: Final = StructType(
    [StructField("fault", StringType()), StructField("detail", StringType())]
)
_LARGE: Final = StructType(
    [
        StructField("id", LongType()),
        StructField("size", LongType()),
        StructField("checksum", LongType()),
    ]
)

MESSAGES: Final = StructType(
    [
        StructField("seq", LongType()),
        StructField("id", LongType()),
        StructField("kind", StringType()),
        StructField("record_type", ShortType()),
        StructField("tx_id", LongType()),
        StructField("queue_id", LongType()),
        StructField("epoch", LongType()),
        StructField("written_at", TimestampType()),
        StructField("removed_at", TimestampType()),
        StructField("size", LongType()),
        StructField("address", StringType()),
        StructField("large", _LARGE),
        StructField("body_seq", LongType()),
        StructField("total", LongType()),
        StructField("findings", ArrayType(_FINDING)),
    ]
)
"""A row of MESSAGES, or of the history. ``findings`` are the faults of the row itself, NULL if it
has none; ``large`` is its large body; ``body_seq`` is the row of a reference's body and ``total``
the number of references that body had; only the history has ``removed_at``."""

BINDINGS: Final = StructType(
    [
        StructField("seq", LongType()),
        StructField("id", LongType()),
        StructField("type", StringType()),
        StructField("name", StringType()),
        StructField("address", StringType()),
        StructField("epoch", LongType()),
        StructField("written_at", TimestampType()),
        StructField("queues", ArrayType(LongType())),
        StructField("deletes", ArrayType(LongType())),
        StructField("large", ArrayType(_LARGE)),
        StructField("findings", ArrayType(_FINDING)),
    ]
)
"""A row of BINDINGS; only transactions in doubt have ``queues``, ``deletes`` and ``large``."""

PIECES: Final = StructType(
    [
        StructField("id", LongType()),
        StructField("position", LongType()),
        StructField("epoch", LongType()),
        StructField("length", LongType()),
        StructField("running", LongType()),
    ]
)
"""Stored pieces of large bodies, a row each, see ``journal.model.large_check``; a row with a
negative ``position`` is a reference, as in the table."""

BODY_FINDINGS: Final = StructType(
    [
        StructField("id", LongType()),
        StructField("position", LongType()),
        StructField("seq", LongType()),
        StructField("epoch", LongType()),
        StructField("needed_by", StringType()),
        StructField("fault", StringType()),
        StructField("detail", StringType()),
    ]
)
"""A fault of a body; ``seq`` is a row of the table ``needed_by`` that needs it."""

STORED: Final = (
    *("seq", "id", "record_type", "user_record_type", "tx_id", "queue_id", "epoch", "written_at"),
)
"""The columns that are read beside record and size."""
HISTORY_STORED: Final = (*("seq", "id", "queue_id", "epoch", "written_at", "removed_at", "reason"),)

Row = dict[str, Any]


def judged_messages(
    batch: pa.RecordBatch, *, history: bool = False, records: bool = True
) -> pa.RecordBatch:
    """Return fetched rows, ``records`` with their record, in the columns of MESSAGES."""
    given = {name: batch.column(name) for name in batch.schema.names}
    listed = {name: column.to_pylist() for name, column in given.items() if name != "written_at"}
    nothing = [None] * batch.num_rows
    keys = zip(*(listed.get(name, nothing) for name in RowKeys._fields), strict=True)
    payloads = listed.get("record", nothing)
    if history:
        rows = zip(keys, listed["reason"], listed["size"], payloads, strict=True)
        judged = [check_history(RowKeys(*key), *rest, has_record=records) for key, *rest in rows]
    else:
        judged = [
            check_message(RowKeys(*key), record, has_record=records)
            for key, record in zip(keys, payloads, strict=True)
        ]
    found = {
        "kind": [one.kind for one in judged],
        "address": [one.address for one in judged],
        "large": [None if one.large is None else one.large._asdict() for one in judged],
        "body_seq": [one.body_seq for one in judged],
        "total": [one.total for one in judged],
        "findings": [_findings(one.findings) for one in judged],
    }
    schema = arrow_schema(MESSAGES)
    arrays = [
        given[field.name].cast(field.type)
        if field.name in given
        else pa.array(found.get(field.name, nothing), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def judged_bindings(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return fetched rows in the columns of BINDINGS."""
    rows = [_binding(row) for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(BINDINGS))


def judged_bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare bodies with their stored pieces.

    Each row is a body: ``id``, ``size``, ``checksum``, ``seq``, ``epoch`` and table (``needed_by``)
    of a row that needs it, and ``pieces``, a list of rows of PIECES.
    """
    for batch in batches:
        found = [row for body in batch.to_pylist() for row in _body(body)]
        yield pa.RecordBatch.from_pylist(found, schema=arrow_schema(BODY_FINDINGS))


def _binding(row: Row) -> Row:
    keys = RowKeys(*(row[name] for name in RowKeys._fields))
    judged = check_binding(keys, row["record"])
    return {
        "seq": keys.seq,
        "id": keys.id,
        "type": judged.type,
        "name": judged.name,
        "address": judged.address,
        "epoch": keys.epoch,
        "written_at": row["written_at"],
        "queues": list(judged.queues),
        "deletes": list(judged.deletes),
        "large": [one._asdict() for one in judged.large],
        "findings": _findings(judged.findings),
    }


def _findings(found: Sequence[Finding]) -> list[Row] | None:
    return [one._asdict() for one in found] if found else None


def _body(row: Row) -> Iterator[Row]:
    body = LargeBody(row["id"], row["size"], row["checksum"])
    pieces = sorted(
        StoredPiece(one["position"], one["length"], one["running"]) for one in row["pieces"] or ()
    )
    found: list[BodyFinding] = judge_body(body.size, body.checksum, pieces)
    for position, (fault, detail) in found:
        yield {
            "id": body.id,
            "position": position,
            "seq": row["seq"],
            "epoch": row["epoch"],
            "needed_by": row["needed_by"],
            "fault": fault,
            "detail": detail,
        }


def checked_pieces(batches: Iterator[pa.RecordBatch], *, content: bool) -> Iterator[pa.RecordBatch]:
    """Return pieces of an export, in the order of their bodies and positions, as rows of PIECES."""
    checked = PieceChecker()
    for batch in batches:
        rows = []
        for one in batch.to_pylist():
            piece = one["piece"]
            row = {"id": one["large_id"], "position": one["position"]}
            row["length"] = None if piece is None else len(piece)
            rows.append(checked.row(row | {"piece": piece if content else None}))
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(PIECES))


class PieceChecker:
    """Makes rows of PIECES from pieces in the order of their bodies and positions."""

    def __init__(self) -> None:
        self._body: int | None = None
        self._running = 0

    def row(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a piece, or of a reference."""
        found = {name: stored.get(name) for name in ("id", "position", "epoch", "length")}
        data = stored.get("piece")
        position = stored["position"]
        if data is None or position is None or position < 0:
            return found
        if stored["id"] != self._body:
            self._body, self._running = stored["id"], 0
        self._running = zlib.crc32(data, self._running)
        return found | {"running": self._running}
