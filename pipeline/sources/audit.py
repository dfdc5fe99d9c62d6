"""``orthia.audit``: the tables of a journal for an audit, every row checked by itself.

Options: those of ``orthia.journal`` that say where the store is; ``table`` is ``messages``
(default), ``history``, ``bindings`` or ``pieces`` (what is stored of large bodies); ``content``
selects whether records and pieces are read and checked (default true) or only their keys,
``numPartitions`` how many tasks read.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.file.bodies import EXTENSION, list_bodies
from orthia.journal.file.disk import io_errors
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.audit_rows import (
    BINDINGS,
    HISTORY_STORED,
    MESSAGES,
    PIECES,
    STORED,
    PieceChecker,
    judged_bindings,
    judged_messages,
)
from orthia.pipeline.sources.fetching import Column, open_source
from orthia.pipeline.sources.file_journal import FileJournalReader, FileReference, stored_bindings
from orthia.pipeline.sources.journal import bindings_of, reference_of
from orthia.pipeline.sources.journal_ranges import RangePartition
from orthia.pipeline.sources.journal_rows import SeqRange, column, plan_ranges, select_rows
from orthia.pipeline.sources.options import check_options, positive
from orthia.pipeline.sources.schemas import arrow_schema
from orthia.pipeline.sources.store import OPTIONS, StoreReference

TABLES: Final = ("messages", "history", "bindings", "pieces")
_OWN_OPTIONS: Final = frozenset(
    {"table", "content", "numpartitions", "directory", "bindingsdirectory"}
    | {"largemessagesdirectory"}
)
_ALL_SEQS: Final = SeqRange(-(2**63), 2**63)
"""Includes every seq that no journal gives out: such a row is a fault."""
_BODIES_A_PARTITION: Final = 500
_ROWS_A_BATCH: Final = 1_000


class AuditSource(DataSource):
    """The data source; every worker makes its own from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raises BadOption."""
        check_options(options, {*OPTIONS, *_OWN_OPTIONS})
        self._store = reference_of(options)
        self._table = options.get("table", "messages")
        if self._table not in TABLES:
            raise BadOption(f"option table: {self._table!r} is none of {', '.join(TABLES)}")
        content = options.get("content", "true")
        if content not in ("true", "false"):
            raise BadOption(f"option content: {content!r} is neither true nor false")
        self._content = content == "true"
        self._partitions = positive(options, "numpartitions")

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "orthia.audit"

    def schema(self) -> StructType:
        """Return the columns."""
        if self._table == "bindings":
            return BINDINGS
        return PIECES if self._table == "pieces" else MESSAGES

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader."""
        store = self._store
        if isinstance(store, FileReference):
            match self._table:
                case "history":
                    raise BadOption("option table: only a database has its history read here")
                case "bindings":
                    return AuditFileBindingsReader(store)
                case "pieces":
                    return FilePiecesReader(store, self._partitions, content=self._content)
            return FileRowsReader(store, self._partitions, content=self._content)
        match self._table:
            case "bindings":
                return AuditBindingsReader(store)
            case "pieces":
                return PiecesReader(store, self._partitions, content=self._content)
        history = self._table == "history"
        return RowsReader(store, self._partitions, content=self._content, history=history)


class RowsReader(DataSourceReader):
    """Reads MESSAGES or the history of a database in ranges of seq."""

    def __init__(
        self, store: StoreReference, partitions: int | None, *, content: bool, history: bool
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._content = content
        self._history = history

    def partitions(self) -> list[InputPartition]:
        """Split the present rows."""
        settings = self._store.settings(history=self._history)
        with open_source(settings) as source:
            found = plan_ranges(source, settings, self._partitions, within=_ALL_SEQS)
        return [RangePartition(seqs) for seqs in found or [SeqRange(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, checked."""
        if not isinstance(partition, RangePartition):
            raise TypeError(f"{partition!r} is no range of this reader")
        settings = self._store.settings(history=self._history)
        stored = HISTORY_STORED if self._history else STORED
        names = [*stored, "size", *(["record"] if self._content else [])]
        with open_source(settings) as source:
            for batch in select_rows(
                source, settings, names, partition.seqs, history=self._history
            ):
                yield judged_messages(batch, history=self._history, records=self._content)


class AuditBindingsReader(DataSourceReader):
    """Reads all BINDINGS of a database, in one statement."""

    def __init__(self, store: StoreReference) -> None:
        self._store = store

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield every binding, checked."""
        return map(judged_bindings, bindings_of(self._store, (*STORED, "record")))


class BodiesPartition(InputPartition):
    """Bodies with ``first <= id <= last``, which one task reads whole."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


class PiecesReader(DataSourceReader):
    """Reads LARGE_MESSAGES, the pieces of a body in order."""

    def __init__(self, store: StoreReference, partitions: int | None, *, content: bool) -> None:
        self._store = store
        self._partitions = partitions
        self._content = content

    def partitions(self) -> list[InputPartition]:
        """Split the present bodies."""
        settings = self._store.settings()
        with open_source(settings) as source:
            table = source.table(settings.large_message_table_name)
            found = source.rows(f"SELECT DISTINCT id FROM {table} ORDER BY id")  # noqa: S608
        return _dealt([body_id for (body_id,) in found], self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a row for each piece and each reference."""
        if not isinstance(partition, BodiesPartition):
            raise TypeError(f"{partition!r} is no part of this reader")
        settings = self._store.settings()
        columns = [Column(name, pa.int64()) for name in ("id", "position", "epoch")]
        columns.append(Column("length", pa.int64(), "LENGTH(piece)"))
        if self._content:
            columns.append(Column("piece", pa.binary()))
        with open_source(settings) as source:
            table = source.table(settings.large_message_table_name)
            rest = (
                f"FROM {table} WHERE id BETWEEN {partition.first:d} AND {partition.last:d}"
                " ORDER BY id, position"
            )
            checked = PieceChecker()
            for batch in source.batches(columns, rest):
                yield _batch(map(checked.row, batch.to_pylist()))


class FileRowsReader(FileJournalReader):
    """Reads the messages of a file journal."""

    def __init__(self, reference: FileReference, partitions: int | None, *, content: bool) -> None:
        names = [*STORED, "size", *(["record"] if content else [])]
        super().__init__(reference, names, partitions)
        self._content = content

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's records, checked."""
        for batch in super().read(partition):
            yield judged_messages(batch, records=self._content)


class AuditFileBindingsReader(DataSourceReader):
    """Reads the bindings of a file journal."""

    def __init__(self, reference: FileReference) -> None:
        self._reference = reference

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield every binding, checked; raises JournalError."""
        rows = [dict.fromkeys(STORED) | row for row in stored_bindings(self._reference)]
        schema = pa.schema([(name, column(name).type) for name in (*STORED, "record")])
        yield judged_bindings(pa.RecordBatch.from_pylist(rows, schema=schema))


class FilePiecesReader(DataSourceReader):
    """Reads the files of a large-messages-directory, as pieces."""

    def __init__(self, reference: FileReference, partitions: int | None, *, content: bool) -> None:
        self._directory = reference.large_messages_directory
        self._partitions = partitions
        self._content = content

    def partitions(self) -> list[InputPartition]:
        """Split the present bodies; raises JournalIOError."""
        return _dealt(self._bodies(), self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a row for each piece; raises JournalIOError."""
        if not isinstance(partition, BodiesPartition):
            raise TypeError(f"{partition!r} is no part of this reader")
        checked = PieceChecker()
        mine = (one for one in self._bodies() if partition.first <= one <= partition.last)
        rows = (checked.row(piece) for one in mine for piece in self._pieces(one))
        while some := list(islice(rows, _ROWS_A_BATCH)):
            yield _batch(some)

    def _bodies(self) -> list[int]:
        directory = Path(self._directory)
        if not directory.is_dir():
            return []
        with io_errors(f"list {directory}"):
            return list_bodies(directory)

    def _pieces(self, body_id: int) -> Iterator[dict[str, Any]]:
        path = Path(self._directory, f"{body_id}{EXTENSION}")
        # A running node removed a body that is missing since it was listed.
        with io_errors(f"read {path}"), suppress(FileNotFoundError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for position in range(-(-size // PIECE_BYTES)):
                length = min(PIECE_BYTES, size - position * PIECE_BYTES)
                row = {"id": body_id, "position": position, "length": length}
                yield row | ({"piece": file.read(PIECE_BYTES)} if self._content else {})


def _dealt(ids: Sequence[int], partitions: int | None) -> list[InputPartition]:
    count = partitions or 1 + len(ids) // _BODIES_A_PARTITION
    size = max(1, -(-len(ids) // count))
    shares = [ids[at : at + size] for at in range(0, len(ids), size)]
    # Spark needs at least one partition; this one is empty.
    return [BodiesPartition(some[0], some[-1]) for some in shares] or [BodiesPartition(1, 0)]


def _batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(PIECES))
