"""The failover logs of many pairs, read by Spark's workers as chapters: one life in one source.

A chapter is a row with the pair, the holder, and its events as bytes. So some thousand rows go
through Spark in place of a quarter of a million, each line is parsed once, and a life with events
in the table and in a file is joined from its chapters. A source that cannot be read is a row with
its error.
"""

import gc
import json
import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from orthia.config.errors import OrthiaError
from orthia.nodemanager import events
from orthia.nodemanager.merge import lines_of_file, say_skipped
from orthia.pipeline.history.lives import LoggedEvent
from orthia.pipeline.sources.fetching import TIME, Column, Source, open_source
from orthia.pipeline.sources.schemas import arrow_schema
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.times import FIRST, LAST, microseconds

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

_READ_FOR_DETAILS: Final = tuple(
    kind.__name__
    for kind in (
        events.LiveLockObtained,
        events.LeaseLost,
        events.CrashDetected,
        events.LeaseExpired,
        events.TakeoverTimings,
        events.LoopUnanswered,
        events.BackupAnnounced,
        events.WaitingForLiveLock,
        events.RenewalSlow,
        events.RenewalFailed,
        events.RenewalGap,
        events.RenewalBeyondExpiration,
        events.RenewalNotTriggered,
        events.RenewalOverrun,
    )
)
_detailed: Final = frozenset(_READ_FOR_DETAILS)

_COLUMNS: Final = (
    Column("id", pa.int64()),
    Column("db_time", TIME),
    Column("node_time", pa.string()),
    Column("node_id", pa.string()),
    Column("node_name", pa.string()),
    Column("holder_id", pa.string()),
    Column("event", pa.string()),
    Column("lock_name", pa.string()),
    Column("token", pa.int64()),
    Column("event_seq", pa.int64()),
    Column(
        "detail",
        pa.string(),
        f"CASE WHEN event IN ({', '.join(repr(name) for name in _READ_FOR_DETAILS)})"
        " THEN detail END",
    ),
)


@dataclass(frozen=True)
class LogPart:
    """The part of the logs that one task reads: rows of one store's table, or some files."""

    pair: str | None = None
    """The name of the pair; None for its node id."""
    store: Mapping[str, str] | None = None
    """Options of ``StoreReference``."""
    first: int = 0
    end: int = 0
    """Rows with ``first <= id < end``."""
    files: Sequence[str] = ()


def chapters(spark: SparkSession, parts: Sequence[LogPart]) -> DataFrame:
    """Return the chapters of all ``parts``, each read by a task of its own."""
    rows = [(json.dumps(asdict(part)),) for part in parts]
    slices = spark.sparkContext.parallelize(rows, max(1, len(rows)))
    return spark.createDataFrame(slices, "part string").mapInArrow(_read, CHAPTERS)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield from read_part(LogPart(**json.loads(text)))


def read_part(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Yield the chapters of one part, and a row with the errors of sources that failed."""
    lives: dict[tuple[str, str], _Chapter] = {}
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


def _read_all(part: LogPart, lives: "_Lives") -> Iterator[str]:
    """Read every source of a part; yield the error of each that cannot be read."""
    reads: list[Callable[[], None]] = [
        partial(_read_file, Path(name), lives) for name in part.files
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


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable garbage collection, which would scan a hundred thousand new tuples repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Chapter:
    """The events of one life in one source."""

    __slots__ = ("events", "node_id")

    def __init__(self) -> None:
        self.node_id: str | None = None
        self.events: list[tuple[Any, ...]] = []


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    # Spark's options are lower case.
    return {name.lower(): value for name, value in options.items()}


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


_Lives = dict[tuple[str, str], _Chapter]


def _read_table(part: LogPart, options: Mapping[str, str], lives: _Lives) -> None:
    settings = StoreReference.from_options(options).settings()
    with open_source(settings) as source:
        table = source.table(settings.failover_log_table_name)
        where = f"FROM {table} WHERE id >= {part.first:d} AND id < {part.end:d}"
        for row in _rows(source, where):
            _add_row(row, table, lives)


def _rows(source: Source, where: str) -> Iterator[tuple[Any, ...]]:
    for batch in source.batches(_COLUMNS, where):
        # Times as numbers: making a datetime of each would take longer than all the rest.
        columns = [
            (column.cast(pa.int64()) if column.type == TIME else column).to_pylist()
            for column in batch.columns
        ]
        yield from zip(*columns, strict=True)


def _add_row(row: tuple[Any, ...], table: str, lives: _Lives) -> None:
    number, at, node_time, node_id, node, holder, event, lock, token, seq, detail = row
    try:
        node_at = microseconds(_instant(node_time))
        _check_in_calendar(at, node_at)
        details = _encodable(json.loads(detail)).get("details") if detail is not None else None
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        say_skipped(f"{table} row {number}", error)
        return
    found = details if isinstance(details, dict) else {}
    chapter = _chapter(lives, holder, node)
    chapter.node_id = node_id or chapter.node_id
    chapter.events.append((seq, at, node_at, event, lock, token, found, True))


_instant: Final = datetime.fromisoformat
_NONE: Final[Mapping[str, Any]] = {}
_decode: Final = json.JSONDecoder().raw_decode
"""``json.loads`` without its search for white space, which takes a third of its time."""


def _read_file(path: Path, lives: _Lives) -> None:
    for number, line in lines_of_file(path):
        try:
            data, end = _decode(line)
            if line[end:].strip():
                raise ValueError("more than one value in a line")  # noqa: TRY301 - as any other
            if "\\ud" in line or "\\uD" in line:
                data = _encodable(data)
            event, db_time = data["event"], data["db_time"]
            node_at = microseconds(_instant(data["node_time"]))
            at = node_at if db_time is None else microseconds(_instant(db_time))
            _check_in_calendar(at, node_at)
            details = data["details"] if event in _detailed else _NONE
            seq, lock, token = data["event_seq"], data["lock"], data["token"]
            holder, node, node_id = data["holder_id"], data["node_name"], data["node_id"]
            if not (
                # JSON types: a boolean is not a number.
                type(seq) is int
                and type(event) is str
                and (lock is None or type(lock) is str)
                and (token is None or type(token) is int)
                and type(details) is dict
                and type(holder) is str
                and type(node) is str
                and (node_id is None or type(node_id) is str)
            ):
                raise ValueError("a field is not of its type")  # noqa: TRY301 - as any other
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            say_skipped(f"{path}:{number}", error)
            continue
        chapter = lives.get((holder, node)) or _chapter(lives, holder, node)
        chapter.node_id = node_id or chapter.node_id
        chapter.events.append((seq, at, node_at, event, lock, token, details, db_time is not None))


def _check_in_calendar(at: int, node_at: int) -> None:
    """Raise ValueError for a time that its UTC offset moves out of the calendar."""
    if not (FIRST <= at <= LAST and FIRST <= node_at <= LAST):
        raise ValueError("a time beyond the calendar")


def _encodable(data: Any) -> Any:
    """Return JSON data with a question mark for each lone surrogate, which no text can hold.

    A node writes surrogates when it quotes a path that is not UTF-8.
    """
    text = json.dumps(data, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def _chapter(lives: _Lives, holder: str, node: str) -> _Chapter:
    found = lives.get((holder, node))
    if found is None:
        found = lives[holder, node] = _Chapter()
    return found
