"""Reads MESSAGES and BINDINGS in ranges of ``seq``: the statements, and the split into ranges.

One fenced writer gives out ``seq``, so a range below the highest committed one is complete for
ever: rows only leave it. Ranges begin where a message begins: one statement reads a body and its
references, which have consecutive ``seq``, hence as of one instant, and a reader on a running
broker never sees a reference without its body.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, Final, NamedTuple

import pyarrow as pa

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.codec import QueueBinding, decode_queue_binding
from orthia.journal.model.records import UserRecordType
from orthia.pipeline.sources.fetching import TIME, Column, Source

LAST_SEQ: Final = 2**63 - 1
_PROBES_A_PARTITION: Final = 8
_ROWS_A_PARTITION: Final = 250_000
_MAX_PARTITIONS: Final = 64
_WINDOW: Final = 1_000
"""Ids of a sample."""
_WINDOWS_A_STATEMENT: Final = 256

_TYPES: Final = {
    "seq": pa.int64(),
    "id": pa.int64(),
    "record_type": pa.int16(),
    "user_record_type": pa.int16(),
    "tx_id": pa.int64(),
    "queue_id": pa.int64(),
    "epoch": pa.int64(),
    "written_at": TIME,
    "record": pa.binary(),
    "removed_at": TIME,
    "reason": pa.string(),
}
_OF_HISTORY: Final = {
    "size": Column("size", pa.int64(), "m.size"),
    "user_record_type": Column(
        "user_record_type", pa.int16(), f"{int(UserRecordType.ADD_MESSAGE)}"
    ),
    "body_record": Column("body_record", pa.binary(), "NULL"),
}
"""The record type of the history's rows for readers of messages: each is a whole message."""


@dataclass(frozen=True)
class Condition:
    """A comparison that the database evaluates: ``column operator value``, or ``IN`` values."""

    column: str
    operator: str
    """``=``, ``<``, ``<=``, ``>``, ``>=`` or ``IN``."""
    values: tuple[Any, ...]

    def sql(self, source: Source, queue_ids: dict[str, list[int]]) -> str:
        """Return it for the WHERE clause; a queue's name becomes the ids it has had."""
        column, values, operator = self.column, self.values, self.operator
        if column == "queue":
            column, operator = "queue_id", "IN"
            values = tuple(one for name in values for one in queue_ids.get(name, []))
        literals = [self._literal(source, value) for value in values]
        if operator != "IN":
            return f"m.{column} {operator} {literals[0]}"
        return f"m.{column} IN ({', '.join(literals)})" if literals else "1 = 0"

    @staticmethod
    def _literal(source: Source, value: object) -> str:
        return source.time(value) if isinstance(value, datetime) else f"{value:d}"


@dataclass(frozen=True)
class SeqRange:
    """Rows with ``first <= seq < end``."""

    first: int
    end: int


def column(name: str) -> Column:
    """Return a column of MESSAGES; ``size`` and ``body_record`` are computed by the database."""
    match name:
        case "size":
            return Column("size", pa.int64(), "LENGTH(m.record)")
        case _:
            return Column(name, _TYPES[name], f"m.{name}")


def history_column(name: str) -> Column:
    """Return a column of the history, as readers of messages name it."""
    return _OF_HISTORY[name] if name in _OF_HISTORY else column(name)


def body_column(table: str) -> Column:
    """Return the column with the body's record of a reference, looked up by key; else NULL."""
    reference = int(UserRecordType.ADD_REF)
    lookup = f"SELECT b.record FROM {table} b WHERE b.seq = m.id"  # noqa: S608 - a validated name
    return Column(
        "body_record",
        pa.binary(),
        f"CASE WHEN m.user_record_type = {reference} THEN ({lookup}) END",
    )


def select_rows(
    source: Source,
    settings: DatabaseStoreSettings,
    names: Sequence[str],
    seqs: SeqRange,
    conditions: Sequence[Condition] = (),
    queue_ids: dict[str, list[int]] | None = None,
    *,
    history: bool = False,
    ordered: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read columns of MESSAGES, or with ``history`` of the history; raises StoreError.

    They come in the order of ``seq`` only if ``ordered``: a queue has an id for each priority.
    """
    table = source.table(settings.message_table_name)
    columns = [
        history_column(name)
        if history
        else body_column(table)
        if name == "body_record"
        else column(name)
        for name in names
    ]
    tests = [f"m.seq >= {seqs.first:d}", f"m.seq <= {seqs.end - 1:d}"]
    tests += [condition.sql(source, queue_ids or {}) for condition in conditions]
    order = " ORDER BY m.seq" if ordered else ""
    return source.batches(columns, f"FROM {table} m WHERE {' AND '.join(tests)}{order}")


def last_seq(source: Source, settings: DatabaseStoreSettings) -> int:
    """Return the highest seq in MESSAGES, 0 if it is empty; raises StoreError."""
    table = source.table(settings.message_table_name)
    ((found,),) = source.rows(f"SELECT MAX(seq) FROM {table}")  # noqa: S608
    return int(found or 0)


def first_seq_since(
    source: Source, settings: DatabaseStoreSettings, instant: datetime, *, after: int
) -> int | None:
    """Return where the first message above ``after`` begins that was written at ``instant`` or
    later.

    None if there is none; raises StoreError.
    """
    table = source.table(settings.message_table_name)
    # A row's id is the seq at which its message begins.
    ((found,),) = source.rows(
        f"SELECT MIN(id) FROM {table} WHERE seq > {after:d}"  # noqa: S608
        f" AND written_at >= {source.time(instant)}"
    )
    return None if found is None else int(found)


def plan_ranges(
    source: Source,
    settings: DatabaseStoreSettings,
    partitions: int | None,
    conditions: Sequence[Condition] = (),
    *,
    within: SeqRange = SeqRange(0, LAST_SEQ),
) -> list[SeqRange]:
    """Split the present rows into ranges of about as many rows; raises StoreError.

    Ids are reserved in blocks, so there may be a gap of a million at each takeover, and most of a
    range may be acknowledged: probes of the primary key find where rows begin and end, and samples
    how many there are, without counting all.
    """
    table = source.table(settings.message_table_name)
    tests = [f"m.seq >= {within.first:d}", f"m.seq <= {within.end - 1:d}"]
    tests += [one.sql(source, {}) for one in conditions if one.column == "seq"]
    where = " AND ".join(tests)
    ((first, last),) = source.rows(
        f"SELECT MIN(m.seq), MAX(m.seq) FROM {table} m WHERE {where}"  # noqa: S608
    )
    if first is None:
        return []
    # References of a body are read even if a filter on seq excludes them.
    whole = _DenseRange(int(first), int(last))
    if partitions == 1 or (partitions is None and whole.width <= _ROWS_A_PARTITION):
        return [whole.seqs]
    most = partitions or _MAX_PARTITIONS
    rough = _split_at_gaps(source, table, whole, most * _PROBES_A_PARTITION)
    weighed = _weighed(source, table, rough)
    rows = sum(one.rows for one in weighed)
    wanted = partitions or min(most, 1 + round(rows) // _ROWS_A_PARTITION)
    if wanted == 1:
        return [whole.seqs]
    return _balanced(_refined(source, table, weighed, rows / wanted / 2), wanted)


class _DenseRange(NamedTuple):
    """Rows from the first of a message to the last before a gap, or before the next range."""

    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    @property
    def seqs(self) -> SeqRange:
        return SeqRange(self.first, self.last + 1)


class _Weighed(NamedTuple):
    """A range, and about how many rows it has."""

    dense: _DenseRange
    rows: float


def _weighed(source: Source, table: str, ranges: Sequence[_DenseRange]) -> list[_Weighed]:
    """Estimate the rows of ranges: most of the ids of a range may be acknowledged.

    Rows are counted in a window of each, in one statement.
    """
    counts = []
    for first in range(0, len(ranges), _WINDOWS_A_STATEMENT):
        some = ranges[first : first + _WINDOWS_A_STATEMENT]
        parts = (
            f"(SELECT COUNT(*) FROM {table} WHERE seq BETWEEN {one.first:d} AND {end:d})"  # noqa: S608
            for one, end in ((one, min(one.last, one.first + _WINDOW - 1)) for one in some)
        )
        (answers,) = source.rows(f"SELECT {', '.join(parts)}")
        counts += [int(one) for one in answers]
    return [
        _Weighed(one, count * max(1.0, one.width / _WINDOW))
        for one, count in zip(ranges, counts, strict=True)
    ]


def _refined(source: Source, table: str, ranges: Sequence[_Weighed], most: float) -> list[_Weighed]:
    """Split ranges with more than ``most`` rows."""
    found = []
    for dense, rows in ranges:
        parts = [dense]
        if rows > most:
            parts = _split_at_gaps(source, table, dense, ceil(rows / most))
        width = sum(part.width for part in parts)
        found += [_Weighed(part, rows * part.width / width) for part in parts]
    return found


def _split_at_gaps(source: Source, table: str, whole: _DenseRange, count: int) -> list[_DenseRange]:
    step = max(1, whole.width // count)
    # At most ``count`` ranges: the first one needs no probe.
    probes = range(whole.first + step, whole.last + 1, step)[: count - 1]
    before: dict[int, int] = {}
    """The begin of each range but the first, and the end of the rows before it."""
    for first in range(0, len(probes), _WINDOWS_A_STATEMENT):
        # A row's id is the seq at which its message begins.
        parts = (
            f"(SELECT id FROM {table} WHERE seq >= {probe:d} ORDER BY seq LIMIT 1),"  # noqa: S608
            f" (SELECT MAX(seq) FROM {table} WHERE seq < {probe:d})"
            for probe in probes[first : first + _WINDOWS_A_STATEMENT]
        )
        (answers,) = source.rows(f"SELECT {', '.join(parts)}")
        for start, end in zip(answers[::2], answers[1::2], strict=True):
            if start is not None and whole.first < start <= whole.last:
                before.setdefault(int(start), min(int(end), int(start) - 1))
    begins = sorted(before)
    return [
        _DenseRange(first, last)
        for first, last in zip(
            [whole.first, *begins], [*(before[one] for one in begins), whole.last], strict=True
        )
    ]


def _balanced(ranges: Sequence[_Weighed], count: int) -> list[SeqRange]:
    share = sum(rows for _, rows in ranges) / count
    begins = [ranges[0].dense.first]
    filled = 0.0
    for dense, rows in ranges:
        # The rows on either side of the middle of a range decide where it belongs.
        if filled + rows / 2 >= share * len(begins) and filled:
            begins.append(dense.first)
        filled += rows
    return [
        SeqRange(first, end)
        for first, end in zip(begins, [*begins[1:], ranges[-1].dense.last + 1], strict=True)
    ]


def queue_names(source: Source, settings: DatabaseStoreSettings) -> dict[int, str]:
    """Return the bound queues by id, without those with a corrupt record."""
    table = source.table(settings.bindings_table_name)
    kind = int(UserRecordType.QUEUE_BINDING)
    names: dict[int, str] = {}
    for seq, record in source.rows(
        f"SELECT seq, record FROM {table} WHERE user_record_type = {kind}"  # noqa: S608
    ):
        binding = _queue(seq, record)
        if binding is not None:
            names[seq] = binding.name
    return names


def ids_by_name(queues: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the ids of each queue name."""
    ids: dict[str, list[int]] = {}
    for queue_id, name in queues.items():
        ids.setdefault(name, []).append(queue_id)
    return ids


def _queue(seq: int, record: object) -> QueueBinding | None:
    if not isinstance(record, bytes | memoryview):
        return None
    try:
        return decode_queue_binding(bytes(record), seq)
    except CorruptRecord:
        return None
