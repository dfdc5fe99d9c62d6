"""``orthia.journal``: MESSAGES and BINDINGS as DataFrames.

Options: ``url`` or ``config`` say where the store is, or ``directory`` and ``bindingsDirectory``
where the files of a file journal are (and ``largeMessagesDirectory``, if it is not beside them);
``table`` is ``messages`` (default), ``history`` (what journal-retention keeps), ``bindings`` or
``bodies`` (of large messages, in pieces); ``columns`` names the requested columns (no other is
decoded), ``numPartitions`` how many tasks read. With ``maxLargeBodyBytes`` the column ``body`` also
holds bodies of large messages up to that size. Options filter rows in the database: ``minSeq`` and
``maxSeq``, ``minEpoch`` and ``maxEpoch`` (each included), ``since`` (included) and ``until`` (not
included) by the time a row was written, ``queue``: a name, or a JSON list of names.

A stream (``spark.readStream``) begins with the present rows, or with those of
``startingTimestamp``, and continues with new commits; ``maxRowsPerBatch`` and ``maxBytesPerBatch``
bound a micro-batch, ``minRowsPerBatch`` is what it waits for, up to ``maxTriggerDelay``; with
``schema`` ``kafka`` it has the columns of Spark's source for Kafka. With ``until`` it stops before
the first message that is not older, so that a run with a later ``until`` resumes there. A stream of
the history has every message that left its queue, in the order of leaving; ``onPruned`` is its
reaction when pruning overtakes it: ``fail`` (default) or ``continue``.

A rule of Spark's optimizer, ``orthia.pipeline.sources.pushdown``, passes the columns and filters of
a DataFrame's query; it sets the option ``takesFilters``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from orthia import config
from orthia.config.parts import Part
from orthia.config.store_settings import FileStoreSettings
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources import kafka_schema, micro_batches
from orthia.pipeline.sources.bodies import FileBodiesReader, SqlBodiesReader
from orthia.pipeline.sources.decoding import decode_bindings
from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.file_journal import (
    BINDING_COLUMNS,
    FileBindingsReader,
    FileJournalReader,
    FileReference,
    default_bodies,
)
from orthia.pipeline.sources.history_stream import HistoryStreamReader
from orthia.pipeline.sources.journal_ranges import RangePartition, read_range
from orthia.pipeline.sources.journal_rows import Condition, SeqRange, column, plan_ranges
from orthia.pipeline.sources.options import check_options, positive
from orthia.pipeline.sources.pushdown import TAKES_FILTERS, taken
from orthia.pipeline.sources.schemas import BINDINGS, BODIES, HISTORY, JOURNAL, subset
from orthia.pipeline.sources.spark_versions import require_streams
from orthia.pipeline.sources.store import OPTIONS, StoreReference
from orthia.pipeline.sources.streams import JournalStreamReader
from orthia.pipeline.sources.tailing import TailOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_OWN_OPTIONS: Final = frozenset(
    {"table", "columns", "numpartitions", "maxlargebodybytes", "onpruned", TAKES_FILTERS}
    | {micro_batches.STARTING, kafka_schema.OPTION, *micro_batches.OPTIONS}
)
_TABLES: Final = ("messages", "history", "bindings", "bodies")


class JournalSource(DataSource):
    """The data source; every worker makes its own from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raises BadOption."""
        self._store = reference_of(options)
        self._table = options.get("table", "messages").lower()
        if self._table not in _TABLES:
            raise BadOption(
                f"option table: {self._table!r} is no table of a journal; expected one of"
                f" {', '.join(_TABLES)}"
            )
        self._columns = options.get("columns")
        self._partitions = positive(options, "numpartitions")
        self._limits = micro_batches.Limits.from_options(options)
        self._starting = micro_batches.starting_at(options)
        self._is_kafka = kafka_schema.is_wanted(options)
        if self._is_kafka and self._table not in ("messages", "history"):
            raise BadOption("option schema: messages and the history alone have Kafka's columns")
        self._max_body = positive(options, "maxlargebodybytes") or 0
        on_pruned = options.get("onpruned", "fail")
        if on_pruned not in ("fail", "continue"):
            raise BadOption(f"option onPruned: {on_pruned!r} is neither fail nor continue")
        self._fail_on_pruned = on_pruned == "fail"
        self._conditions = conditions_of(options)
        self._takes_filters = options.get(TAKES_FILTERS) == "true"
        files = {"directory", "bindingsdirectory", "largemessagesdirectory"}
        check_options(options, {*OPTIONS, *files, *_CONDITIONS, *_OWN_OPTIONS})

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "orthia.journal"

    def schema(self) -> StructType:
        """Return the requested columns."""
        if self._table == "bindings":
            return BINDINGS
        if self._table == "bodies":
            return BODIES
        if self._is_kafka:
            return kafka_schema.KAFKA
        return subset(HISTORY if self._table == "history" else JOURNAL, self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        if self._is_kafka:
            raise BadOption("option schema: only a stream has Kafka's columns (readStream)")
        if self._starting is not None:
            raise BadOption("option startingTimestamp: it is of streams; a batch has since")
        store = self._store
        if isinstance(store, FileReference):
            if self._table == "history":
                raise BadOption("option table: only a database has its history read here")
            if self._table == "bindings":
                return FileBindingsReader(store)
            if self._table == "bodies":
                directory = store.settings().large_messages_directory
                return FileBodiesReader(directory, self._partitions)
            columns = schema.fieldNames()
            of_files = NarrowedFileReader if self._takes_filters else FileJournalReader
            return of_files(
                store, columns, self._partitions, self._conditions, max_body=self._max_body
            )
        if self._table == "bindings":
            return BindingsReader(store)
        if self._table == "bodies":
            return SqlBodiesReader(store, self._partitions)
        of_table = NarrowedReader if self._takes_filters else JournalReader
        return of_table(
            store,
            schema.fieldNames(),
            self._partitions,
            self._conditions,
            history=self._table == "history",
            max_body=self._max_body,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream of messages, or of the history."""
        require_streams()
        if self._table not in ("messages", "history"):
            raise BadOption(
                f"a stream reads messages or the history: the option table must not be"
                f" {self._table}"
            )
        if isinstance(self._store, FileReference):
            raise BadOption("a file journal cannot be read as a stream: read it as a batch")
        what = (self._store, schema.fieldNames(), self._partitions, self._conditions)
        given: TailOptions = {
            "limits": self._limits,
            "max_body": self._max_body,
            "kafka": self._is_kafka,
        }
        if self._table == "history":
            return HistoryStreamReader(
                *what, fail_on_pruned=self._fail_on_pruned, starting=self._starting, **given
            )
        return JournalStreamReader(*what, starting=self._starting, **given)


def reference_of(options: Mapping[str, str]) -> StoreReference | FileReference:
    """Return the location of the journal: a database, or the directories of a file journal.

    Raises BadOption.
    """
    if "directory" in options:
        if "url" in options or "config" in options:
            raise BadOption("option directory: the store is files, or at url or config, not both")
        if "bindingsdirectory" not in options:
            raise BadOption("option directory: say bindingsDirectory, too")
        directory = options["directory"]
        bodies = options.get("largemessagesdirectory", str(default_bodies(Path(directory))))
        return FileReference(directory, options["bindingsdirectory"], bodies)
    if "config" in options and "url" not in options:
        store = config.load(Path(options["config"]), part=Part.STORE).store
        if isinstance(store, FileStoreSettings):
            return FileReference.of(store)
    return StoreReference.from_options(options)


class JournalReader(DataSourceReader):
    """Reads MESSAGES, or the history, in ranges of seq; it can be pickled: it has no connection."""

    def __init__(
        self,
        store: StoreReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        *,
        history: bool = False,
        max_body: int = 0,
    ) -> None:
        self._store = store
        self._history = history
        self._max_body = max_body
        self._columns = list(columns)
        self._wanted_partitions = partitions
        self._conditions = list(conditions)

    def partitions(self) -> list[InputPartition]:
        """Split the present rows."""
        settings = self._store.settings(history=self._history)
        with open_source(settings) as source:
            ranges = plan_ranges(source, settings, self._wanted_partitions, self._conditions)
        # Spark needs at least one partition; this one is empty.
        return [RangePartition(seqs) for seqs in ranges or [SeqRange(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return read_range(
            self._store,
            self._columns,
            partition,
            self._conditions,
            history=self._history,
            max_body=self._max_body,
        )


class NarrowedReader(JournalReader):
    """Reads for one scan of a query, whose filters it takes.

    Spark requires a setting of its own for readers with this method, so other readers lack it.
    """

    @override
    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        conditions, left = taken(filters)
        self._conditions += conditions
        return left


class NarrowedFileReader(FileJournalReader):
    """Reads a file journal for one scan of a query, whose filters it takes."""

    @override
    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        conditions, left = taken(filters, has_times=False)
        self._conditions += conditions
        return left


class BindingsReader(DataSourceReader):
    """Reads all of BINDINGS, which is small."""

    def __init__(self, store: StoreReference) -> None:
        self._store = store

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield every binding."""
        return map(decode_bindings, bindings_of(self._store, BINDING_COLUMNS))


def bindings_of(store: StoreReference, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns ``names`` of all BINDINGS, as stored, from one statement."""
    settings = store.settings()
    with open_source(settings) as source:
        table = source.table(settings.bindings_table_name)
        yield from source.batches([column(name) for name in names], f"FROM {table} m")


def _integer(text: str) -> tuple[int]:
    return (int(text),)


def _instant(text: str) -> tuple[datetime]:
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC),)


def _names(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("["):
        return (text,)
    names = json.loads(text)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(text)
    return tuple(names)


_Read = Callable[[str], tuple[Any, ...]]
_CONDITIONS: Final[Mapping[str, tuple[str, str, _Read, str]]] = {
    "minseq": ("seq", ">=", _integer, "a number"),
    "maxseq": ("seq", "<=", _integer, "a number"),
    "minepoch": ("epoch", ">=", _integer, "a number"),
    "maxepoch": ("epoch", "<=", _integer, "a number"),
    "since": ("written_at", ">=", _instant, "a time such as 2026-01-31T12:00:00Z"),
    "until": ("written_at", "<", _instant, "a time such as 2026-01-31T12:00:00Z"),
    "queue": ("queue", "IN", _names, "a queue's name, or a JSON list of names"),
}
"""Options that filter rows, in lower case: column, operator, parser, and expected value."""


def conditions_of(options: Mapping[str, str]) -> list[Condition]:
    """Return the conditions that the options express; raises BadOption."""
    found = []
    for option, (name, operator, read, expected) in _CONDITIONS.items():
        text = options.get(option)
        if text is not None:
            try:
                found.append(Condition(name, operator, read(text)))
            except ValueError:
                raise BadOption(f"option {option}: {text!r} is not {expected}") from None
    return found
