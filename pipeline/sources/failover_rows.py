"""Reads entries of the failover log's table, and makes rows of ``orthia.failover_log``."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.merge import parse_entry
from orthia.pipeline.sources.fetching import TIME, Column, Source
from orthia.pipeline.sources.portions import ROWS
from orthia.pipeline.sources.schemas import FAILOVER_LOG, arrow_schema

_COLUMNS: Final = (
    Column("id", pa.int64()),
    Column("db_time", TIME),
    Column("detail", pa.string()),
)


def table_entries(
    source: Source, table: str, where: str, values: Sequence[str] = ()
) -> Iterator[Entry]:
    """Yield the entries of the table's rows that match ``where``."""
    for batch in source.batches(_COLUMNS, f"FROM {table} WHERE {where}", values):
        for row in batch.to_pylist():
            entry = parse_entry(row["detail"], f"{table} row {row['id']}", row["db_time"])
            if entry is not None:
                yield entry


def in_batches(entries: Iterable[Entry], pair: str | None) -> Iterator[pa.RecordBatch]:
    """Yield entries as batches of ``orthia.failover_log``."""
    schema = arrow_schema(FAILOVER_LOG)
    rows = (_row(entry, pair) for entry in entries)
    while some := list(islice(rows, ROWS)):
        columns = zip(*some, strict=True)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


_OF_AN_ENTRY: Final = FAILOVER_LOG.fieldNames()[1:-1]
"""All columns but the first and the last are attributes of an entry."""
_attributes: Final = attrgetter(*_OF_AN_ENTRY)
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def _row(entry: Entry, pair: str | None) -> tuple[Any, ...]:
    return (pair or entry.node_id, *_attributes(entry), _encode(entry.details))
