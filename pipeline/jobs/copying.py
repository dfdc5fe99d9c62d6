"""Copies ranges of a table from one database to another, each by the worker that reads it.

Rows go from the reader's Arrow batches to what the target takes fastest, and not through Spark:
PostgreSQL gets binary COPY, MySQL and MariaDB statements of many rows, SQLite ``executemany``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from sqlalchemy import MetaData, Table, delete, insert, select
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, fold_table_name, translate_errors, write_transaction
from orthia.pipeline.sources.fetching import (
    adbc_errors,
    connect_mysql,
    open_source,
    postgresql_dsn,
)
from orthia.pipeline.sources.journal_rows import SeqRange, plan_ranges, select_rows
from orthia.pipeline.sources.portions import portions
from orthia.pipeline.sources.store import StoreReference

_ROWS: Final = 1_000
_TIMEOUT_MS: Final = 60_000
_COPY: Final = "copy messages"

Batches = Iterator[pa.RecordBatch]
Declare = Callable[[MetaData, str, Dialect], Table]


class Target(ABC):
    """A table that is filled by one task; every call raises StoreError."""

    @abstractmethod
    def clear(self, seqs: SeqRange) -> None:
        """Delete what an earlier attempt of this task left of a range."""

    @abstractmethod
    def insert(self, batches: Batches) -> int:
        """Insert rows, and return their number once they are committed."""


def copied(
    spark: SparkSession,
    source: StoreReference,
    target: StoreReference,
    columns: Sequence[str],
    declare: Declare,
    *,
    history: bool,
    partitions: int | None = None,
) -> int:
    """Copy the rows of MESSAGES, or with ``history`` of the history; return their number.

    A repeated task replaces its own rows.
    """
    settings = source.settings(_environment(spark), history=history)
    with open_source(settings) as reader:
        ranges = plan_ranges(reader, settings, partitions)
    if not ranges:
        return 0
    copier = RangeCopier(source, target, columns, declare, ranges, history=history)
    dialect = target.settings(_environment(spark)).jdbc_connection_url.dialect
    # SQLite allows one writer at a time.
    tasks = 1 if dialect is Dialect.SQLITE else len(ranges)
    numbers = spark.range(0, len(ranges), 1, tasks)
    (row,) = numbers.mapInArrow(copier, "copied long").agg(F.sum("copied")).collect()
    return int(row[0] or 0)


def _environment(spark: SparkSession) -> dict[str, str]:
    return dict(spark.sparkContext.environment)


class RangeCopier:
    """Copies the ranges of a task; pickled to the workers, so it has no connection."""

    def __init__(
        self,
        source: StoreReference,
        target: StoreReference,
        columns: Sequence[str],
        declare: Declare,
        ranges: Sequence[SeqRange],
        *,
        history: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._columns = list(columns)
        self._declare = declare
        self._ranges = list(ranges)
        self._history = history

    def __call__(self, batches: Batches) -> Batches:
        """Copy the ranges whose numbers the batches have; yield how many rows each has."""
        read_from = self._source.settings(history=self._history)
        for batch in batches:
            counts = []
            with (
                open_source(read_from) as source,
                _open_target(self._target.settings(history=self._history), self._declare) as target,
            ):
                for number in batch.column(0).to_pylist():
                    seqs = self._ranges[number]
                    target.clear(seqs)
                    rows = select_rows(
                        source, read_from, self._columns, seqs, history=self._history
                    )
                    counts.append(target.insert(rows))
            yield pa.RecordBatch.from_pydict({"copied": pa.array(counts, pa.int64())})


@contextmanager
def _open_target(settings: DatabaseStoreSettings, declare: Declare) -> Iterator[Target]:
    name = settings.message_table_name
    match settings.jdbc_connection_url.dialect:
        case Dialect.POSTGRESQL:
            copying = _CopyTarget(settings, name)
            try:
                yield copying
            finally:
                copying.close()
        case Dialect.MYSQL:
            many = _MysqlTarget(settings, name)
            try:
                yield many
            finally:
                many.close()
        case Dialect.SQLITE:
            with Database.from_settings(settings) as database:
                yield _SqlTarget(database, declare(MetaData(), name, database.dialect))


class _CopyTarget(Target):
    """PostgreSQL: binary COPY by ADBC, a range in one transaction."""

    def __init__(self, settings: DatabaseStoreSettings, name: str) -> None:
        from adbc_driver_postgresql import dbapi

        self._table = fold_table_name(Dialect.POSTGRESQL, name)
        dsn = postgresql_dsn(settings, f"-c statement_timeout=0 -c lock_timeout={_TIMEOUT_MS}")
        with adbc_errors(_COPY, connecting=True):
            self._connection = dbapi.connect(dsn)

    @override
    def clear(self, seqs: SeqRange) -> None:
        between = f'"{self._table}" WHERE seq BETWEEN {seqs.first:d} AND {seqs.end - 1:d}'
        with adbc_errors(_COPY), self._connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {between}")  # noqa: S608 - a validated name
            self._connection.commit()

    @override
    def insert(self, batches: Batches) -> int:
        first = next(batches, None)
        if first is None:
            return 0
        with adbc_errors(_COPY), self._connection.cursor() as cursor:
            rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
            count: int = cursor.adbc_ingest(self._table, rows, mode="append")
            self._connection.commit()
        return count

    def close(self) -> None:
        """Close the connection; what is not committed is rolled back."""
        self._connection.close()


class _MysqlTarget(Target):
    """MySQL and MariaDB: statements of many rows, written as text without a driver's work a row.

    LOAD DATA LOCAL would need a setting of the server that is off where others share it.
    """

    def __init__(self, settings: DatabaseStoreSettings, name: str) -> None:
        self._table = fold_table_name(Dialect.MYSQL, name)
        self._connection = connect_mysql(settings, autocommit=True)

    @override
    def clear(self, seqs: SeqRange) -> None:
        between = f"`{self._table}` WHERE seq BETWEEN {seqs.first:d} AND {seqs.end - 1:d}"
        with translate_errors(_COPY), self._connection.cursor() as cursor:
            # A DELETE of nothing would lock the gap into which other tasks insert.
            if cursor.execute(f"SELECT seq FROM {between} LIMIT 1"):  # noqa: S608 - validated
                cursor.execute(f"DELETE FROM {between}")  # noqa: S608 - validated

    @override
    def insert(self, batches: Batches) -> int:
        count = 0
        with translate_errors(_COPY), self._connection.cursor() as cursor:
            for batch in batches:
                names = ", ".join(batch.schema.names)
                begin = f"INSERT INTO `{self._table}` ({names}) VALUES "  # noqa: S608 - validated
                texts = [self._texts(column) for column in batch.columns]
                for rows in portions(zip(*texts, strict=True), range(len(texts)), most=_ROWS):
                    cursor.execute(begin + ",".join([f"({','.join(row)})" for row in rows]))
                    count += len(rows)
        return count

    def _texts(self, column: pa.Array) -> list[str]:
        """Return the literals of a column's values."""
        if pa.types.is_binary(column.type):
            return [
                "NULL" if value is None else f"0x{value.hex()}" if value else "''"
                for value in column.to_pylist()
            ]
        if pa.types.is_timestamp(column.type):
            # In UTC, as MySQL writes times.
            texts = column.cast(pa.timestamp("us")).cast(pa.string())
            quoted = pc.binary_join_element_wise("'", texts, "'", "")
            return list(pc.fill_null(quoted, "NULL").to_pylist())
        if pa.types.is_integer(column.type):
            return list(pc.fill_null(column.cast(pa.string()), "NULL").to_pylist())
        return [
            "NULL" if value is None else str(self._connection.escape(value))
            for value in column.to_pylist()
        ]

    def close(self) -> None:
        """Close the connection."""
        if self._connection.open:
            self._connection.close()


class _SqlTarget(Target):
    """SQLite, by SQLAlchemy."""

    def __init__(self, database: Database, table: Table) -> None:
        self._engine = database.dedicated_engine("migrate", query_timeout_ms=_TIMEOUT_MS)
        self._table = table

    @override
    def clear(self, seqs: SeqRange) -> None:
        mine = self._table.c.seq.between(seqs.first, seqs.end - 1)
        with write_transaction(self._engine, _COPY) as connection:
            if connection.execute(select(self._table.c.seq).where(mine).limit(1)).first():
                connection.execute(delete(self._table).where(mine))

    @override
    def insert(self, batches: Batches) -> int:
        count = 0
        for batch in batches:
            for rows in _rows_of(batch):
                with write_transaction(self._engine, _COPY) as connection:
                    connection.execute(insert(self._table), rows)
                count += len(rows)
        return count


def _rows_of(batch: pa.RecordBatch) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a batch in portions that fit one statement."""
    names = batch.schema.names
    columns = (batch.column(name).to_pylist() for name in names)
    for rows in portions(zip(*columns, strict=True), [names.index("record")], most=_ROWS):
        yield [dict(zip(names, row, strict=True)) for row in rows]
