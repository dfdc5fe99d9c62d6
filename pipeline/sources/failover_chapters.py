"""The failover logs of many pairs, read by Spark's workers as chapters: one life in one source.

A chapter is a row with the pair, the holder, and its events as bytes. So some thousand rows go
through Spark in place of a quarter of a million, each line is parsed once, and a life with events
in the table and in a file is joined from its chapters. A source that cannot be read is a row with
its error.
"""

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from orthia.config.errors import OrthiaError
from orthia.pipeline.history.lives import LoggedEvent
from orthia.pipeline.sources.failover_events import (
    COLUMNS,
    READ_FOR_DETAILS,
    Lives,
    LogPart,
    add_file,
    add_row,
    collector_at_rest,
)
from orthia.pipeline.sources.fetching import TIME, Column, Source, open_source
from orthia.pipeline.sources.schemas import arrow_schema
from orthia.pipeline.sources.store import StoreReference

CHAPTERS: Final = (
    StructType()
    .add("pair", StringType())
    .add("node_id", StringType())
    .add("holder", StringType())
    .add("node", StringType())
    .add("events", BinaryType())
    .add("last_at", LongType())
    .add("error", StringType())
)
_ARROW: Final = arrow_schema(CHAPTERS)
_BATCH_BYTES: Final = 8 * 1024 * 1024

_TYPES: Final = {"db_time": TIME, **dict.fromkeys(("id", "token", "event_seq"), pa.int64())}
_EXPRESSIONS: Final = {
    "detail": f"CASE WHEN event IN ({', '.join(map(repr, READ_FOR_DETAILS))}) THEN detail END"
}
_COLUMNS: Final = tuple(
    Column(name, _TYPES.get(name, pa.string()), _EXPRESSIONS.get(name)) for name in COLUMNS
)


def chapters(spark: SparkSession, parts: Sequence[LogPart]) -> DataFrame:
    """Return the chapters of all ``parts``, each read by a task of its own."""
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(partial(_read, parts=list(parts)), CHAPTERS)


def _read(batches: Iterable[pa.RecordBatch], parts: Sequence[LogPart]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_part(parts[number])


def read_part(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Yield the chapters of one part, and a row with the errors of sources that failed."""
    lives: Lives = {}
    with collector_at_rest():
        errors = list(_read_all(part, lives))
    if errors:
        yield _batch([(part.pair, None, None, None, None, None, "; ".join(errors))])
    rows: list[tuple[Any, ...]] = []
    size = 0
    for (holder, node), chapter in lives.items():
        packed = marshal.dumps(chapter.events)
        last_at = max(one[1] for one in chapter.events)
        rows.append((part.pair, chapter.node_id, holder, node, packed, last_at, None))
        size += len(packed)
        if size >= _BATCH_BYTES:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _read_all(part: LogPart, lives: Lives) -> Iterator[str]:
    """Read every source of a part; yield the error of each that cannot be read."""
    reads: list[Callable[[], object]] = [
        partial(add_file, Path(name), lives) for name in part.files
    ]
    if part.store is not None:
        reads.append(partial(_read_table, part, _lowered(part.store), lives))
    for read in reads:
        try:
            read()
        except (OrthiaError, OSError) as failed:
            yield " ".join(str(failed).split())


def events_in(chapter: bytes) -> Iterator[LoggedEvent]:
    """Yield the events of a chapter."""
    return map(LoggedEvent._make, marshal.loads(chapter))  # noqa: S302 - written above, by our own worker


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    # Spark's options are lower case.
    return {name.lower(): value for name, value in options.items()}


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _read_table(part: LogPart, options: Mapping[str, str], lives: Lives) -> None:
    settings = StoreReference.from_options(options).settings()
    with open_source(settings) as source:
        table = source.table(settings.failover_log_table_name)
        where = f"FROM {table} WHERE id >= {part.first:d} AND id < {part.end:d}"
        for row in _rows(source, where):
            add_row(row, table, lives)


def _rows(source: Source, where: str) -> Iterator[tuple[Any, ...]]:
    for batch in source.batches(_COLUMNS, where):
        # Times as numbers: making a datetime of each would take longer than all the rest.
        columns = [
            (column.cast(pa.int64()) if column.type == TIME else column).to_pylist()
            for column in batch.columns
        ]
        yield from zip(*columns, strict=True)
