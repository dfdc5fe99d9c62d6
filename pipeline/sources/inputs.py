"""The sources of a job's DataFrames: a store, or the directory of an export."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import DateType, StringType, StructField, StructType
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.file.inspect import read_fence
from orthia.pipeline.errors import PipelineError, WrongInput
from orthia.pipeline.jobs.contents import Contents
from orthia.pipeline.jobs.manifest import NAME as MANIFEST
from orthia.pipeline.jobs.manifest import Manifest, run_names
from orthia.pipeline.jobs.outputs import Files
from orthia.pipeline.session import register_sources
from orthia.pipeline.sources.audit_rows import BINDINGS as AUDITED_BINDINGS
from orthia.pipeline.sources.audit_rows import (
    HISTORY_STORED,
    MESSAGES,
    PIECES,
    STORED,
    checked_pieces,
    judged_messages,
)
from orthia.pipeline.sources.file_journal import FileReference
from orthia.pipeline.sources.node_manager import locks_of
from orthia.pipeline.sources.one_task import whole_table
from orthia.pipeline.sources.recheck import ExportRecheck, FileRecheck, Recheck, StoreRecheck
from orthia.pipeline.sources.schemas import (
    BINDINGS,
    BODIES,
    FAILOVER_LOG,
    HISTORY,
    JOURNAL,
    NODE_MANAGER,
)
from orthia.pipeline.sources.sizes import SMALL_ROWS, UNKNOWN, Size
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.sources.whole_table import WholeTable, given

EXPORTED: Final = StructType([*JOURNAL.fields, StructField("day", DateType())])
"""MESSAGES in an export: with the day they were written, in UTC."""

EXPORTED_HISTORY: Final = StructType([*HISTORY.fields, StructField("day", DateType())])
"""The history in an export: with the day messages left their queue, in UTC."""


class Inputs(ABC):
    """The tables of one pair, as DataFrames and as an audit reads them."""

    spark: SparkSession
    size: Size
    """Where all tables are small each is one partition, see ``session.small_data``."""

    @property
    @abstractmethod
    def has_times(self) -> bool | None:
        """Whether rows have the time at which they were written: a file journal's have none.

        None if only the rows tell.
        """

    @property
    @abstractmethod
    def has_links(self) -> bool:
        """Whether ``pieces`` includes the references to each large body."""

    def now(self) -> datetime:
        """Return the present time by the clock that rows were written by, as far as it is known."""
        return datetime.now(UTC)

    def locks(self) -> list[dict[str, Any]]:
        """Return a row for each lock, as ``node_manager`` has them, without a job of Spark.

        None where only a running node could tell. Raises StoreError.
        """
        return []

    @abstractmethod
    def audited(self, table: str, *, content: bool = True) -> DataFrame:
        """Return ``messages``, ``history`` or ``bindings``, every row checked by itself.

        Without ``content`` only its keys are checked.
        """

    @abstractmethod
    def pieces(self, *, content: bool) -> DataFrame | None:
        """Return the pieces of large bodies, read if ``content``; None if the source lacks them."""

    @abstractmethod
    def node_manager(self) -> DataFrame:
        """Return NODE_MANAGER_STORE, a row for each lock."""

    @abstractmethod
    def recheck(self) -> Recheck:
        """Return the second check of suspected rows."""

    @abstractmethod
    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return MESSAGES, or some columns of it; ``conditions`` are ``orthia.journal``'s."""

    @abstractmethod
    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return the history that journal-retention keeps, or some columns of it."""

    @abstractmethod
    def bindings(self) -> DataFrame:
        """Return BINDINGS."""

    @abstractmethod
    def bodies(self) -> DataFrame:
        """Return the bodies of large messages, a row for each piece."""

    @abstractmethod
    def failover_log(self) -> DataFrame:
        """Return FAILOVER_LOG."""

    def _placed(self, frame: DataFrame) -> DataFrame:
        return frame.coalesce(1) if self.is_small else frame

    @property
    def is_small(self) -> bool:
        """Whether each table is one partition."""
        return self.size.is_small

    @property
    def counts_rows(self) -> bool:
        """Whether Spark knows how many rows its tasks have read."""
        return True


class StoreInputs(Inputs):
    """The present tables of a store."""

    has_times = True
    has_links = True

    def __init__(
        self,
        spark: SparkSession,
        store: StoreReference | FileReference,
        partitions: int | None = None,
        *,
        size: Size = UNKNOWN,
    ) -> None:
        self.spark = spark
        self.size = size
        self._store = store
        self._options = store.to_options()
        if size.is_small:
            partitions = 1
        self._partitions = {} if partitions is None else {"numPartitions": str(partitions)}

    @override
    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        return self._journal("messages", columns, conditions)

    @override
    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        return self._journal("history", columns, conditions)

    @override
    def bindings(self) -> DataFrame:
        return self._read("orthia.journal", table="bindings")

    @override
    def bodies(self) -> DataFrame:
        return self._read("orthia.journal", table="bodies", **self._partitions)

    @override
    def failover_log(self) -> DataFrame:
        return self._read("orthia.failover_log", **self._partitions)

    @override
    def node_manager(self) -> DataFrame:
        return self._read("orthia.node_manager")

    @property
    @override
    def counts_rows(self) -> bool:
        return not self.is_small

    def small_tables(self) -> dict[str, WholeTable]:
        """Return bindings, failover log and locks, for one task to read together."""
        return {
            "bindings": self._whole("orthia.journal", table="bindings"),
            "failover_log": self._whole("orthia.failover_log"),
            "node_manager": self._whole("orthia.node_manager"),
        }

    def _whole(self, source: str, **options: str) -> WholeTable:
        return whole_table(source, {**self._options, **options})

    @override
    def locks(self) -> list[dict[str, Any]]:
        return (
            [] if isinstance(self._store, FileReference) else locks_of(self._settings(self._store))
        )

    @override
    def audited(self, table: str, *, content: bool = True) -> DataFrame:
        options = {**self._partitions, "content": str(content).lower()}
        return self._read("orthia.audit", table=table, **options)

    @override
    def pieces(self, *, content: bool) -> DataFrame | None:
        return self.audited("pieces", content=content)

    @override
    def recheck(self) -> Recheck:
        """Query the store from the driver."""
        if isinstance(self._store, FileReference):
            return FileRecheck(self._store)
        return StoreRecheck(self._settings(self._store))

    @override
    def now(self) -> datetime:
        """Return the database's time; raises StoreError."""
        if isinstance(self._store, FileReference):
            return super().now()
        with Database.from_settings(self._settings(self._store)) as database:
            return database.server_now()

    def _settings(self, store: StoreReference) -> DatabaseStoreSettings:
        return store.settings({**os.environ, **self.spark.sparkContext.environment})

    def _journal(
        self, table: str, columns: Sequence[str] | None, conditions: Mapping[str, str] | None
    ) -> DataFrame:
        chosen = {} if columns is None else {"columns": ",".join(columns)}
        options = {**self._partitions, **chosen, **(conditions or {})}
        return self._read("orthia.journal", table=table, **options)

    def _read(self, source: str, **options: str) -> DataFrame:
        if self.is_small:
            return self._whole(source, **options).frame(self.spark)
        register_sources(self.spark)
        return self.spark.read.format(source).options(**self._options, **options).load()


class FileInputs(StoreInputs):
    """The present file journal. Failover logs of such a pair are separate files."""

    has_times = False
    has_links = False

    def __init__(
        self,
        spark: SparkSession,
        journal: FileReference,
        partitions: int | None = None,
        *,
        size: Size = UNKNOWN,
    ) -> None:
        super().__init__(spark, journal, partitions, size=size)
        self._files = journal

    def failover_log(self) -> DataFrame:
        """Return nothing."""
        return given([], FAILOVER_LOG).frame(self.spark)

    def node_manager(self) -> DataFrame:
        """Return the fence, the only lock data in files; raises JournalError."""
        return self._fence().frame(self.spark)

    @override
    def small_tables(self) -> dict[str, WholeTable]:
        """Raises JournalError."""
        return {
            "bindings": self._whole("orthia.journal", table="bindings"),
            "failover_log": given([], FAILOVER_LOG),
            "node_manager": self._fence(),
        }

    def _fence(self) -> WholeTable:
        fence = {"lock": "live", "fence_token": read_fence(self._files.settings()).token}
        return given([fence], NODE_MANAGER)


class ExportInputs(Inputs):
    """The Parquet files of ``orthia pipeline export``, or of all runs of an incremental one."""

    has_times = None
    has_links = False

    def __init__(self, spark: SparkSession, directory: str, size: Size | None = None) -> None:
        """Find the runs and their manifests; raises WrongInput if a later version wrote them.

        ``size`` is that of what was exported; without it the manifests tell.
        """
        self.spark = spark
        self._directory = directory.rstrip("/")
        files = Files(spark, self._directory)
        runs = run_names(files.names(self._directory))
        self._exports = [f"{self._directory}/{run}" for run in runs] or [self._directory]
        """Their directories, the oldest first."""
        self._manifests: list[Manifest] = []
        for one in self._exports:
            if files.exists(f"{one}/{MANIFEST}"):
                text = files.read_text(f"{one}/{MANIFEST}")
                self._manifests.append(Manifest.from_json(text, f"{one}/{MANIFEST}"))
        rows = sum(map(_rows_of, self._manifests))
        known = len(self._manifests) == len(self._exports)
        self.size = size or Size(known and rows <= SMALL_ROWS, rows or None)

    @override
    def now(self) -> datetime:
        """Return when the last run was taken, by the database's clock; later nothing is known.

        The present time, by the local clock, of an export of an older Orthia.
        """
        taken_at = self._manifests[-1].taken_at if self._manifests else None
        return super().now() if taken_at is None else datetime.fromisoformat(taken_at)

    @override
    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Spark pushes filters down to Parquet itself."""
        _refuse(conditions)
        found = (
            self._read_whole_names("messages", EXPORTED)
            if len(self._exports) == 1
            else self._messages_of_runs()
        )
        return found if columns is None else found.select(*columns)

    @override
    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Raise WrongInput if the export was made without it."""
        _refuse(conditions)
        try:
            found = self._read_whole_names("history", EXPORTED_HISTORY)
        except AnalysisException as error:
            raise WrongInput(f"{self._directory} has no history: export with --history") from error
        return found if columns is None else found.select(*columns)

    @override
    def bindings(self) -> DataFrame:
        """Return those of the last run."""
        return self._read("bindings", BINDINGS)

    @override
    def bodies(self) -> DataFrame:
        """Raise WrongInput if the export was made without them."""
        try:
            found = self.spark.read.schema(BODIES)
            return self._placed(found.parquet(*(f"{one}/bodies" for one in self._exports)))
        except AnalysisException as error:
            raise WrongInput(
                f"{self._directory} has no bodies of large messages: it was exported with"
                " --no-bodies, or by an older Orthia"
            ) from error

    @property
    def is_whole(self) -> bool:
        """Whether the export can be imported, and so lists its contents."""
        return len(self._manifests) == 1 and self._manifests[0].contents is not None

    def contents(self) -> Contents:
        """Return the contents that an import needs; raises WrongInput if there are none."""
        (manifest,) = self._manifests if len(self._manifests) == 1 else (None,)
        if manifest is None or manifest.contents is None:
            raise WrongInput(
                f"{self._directory} cannot be brought back: that takes a whole export of this"
                " Orthia as Parquet, without --queue, --since, --until, --incremental and"
                " --no-bodies; what it has can be sent with `orthia pipeline replay`"
            )
        try:
            return Contents.from_fields(manifest.contents)
        except ValueError as error:
            raise WrongInput(
                f"{self._exports[-1]}/{MANIFEST} was changed by hand, and does not tell what the"
                f" export has: {error}; bring back the file, or export again"
            ) from error

    @override
    def failover_log(self) -> DataFrame:
        """Return those of the last run."""
        return self._read("failover_log", FAILOVER_LOG)

    @override
    def node_manager(self) -> DataFrame:
        """Return those of the last run."""
        return self._read("node_manager", NODE_MANAGER)

    @override
    def audited(self, table: str, *, content: bool = True) -> DataFrame:
        """Bindings of an export have no records, only decoded columns."""
        if table == "bindings":
            return _audited_bindings(self.bindings())
        history = table == "history"
        stored = [
            *(HISTORY_STORED if history else STORED),
            "size",
            *(["record"] if content else []),
        ]
        frame = self.history(stored) if history else self.messages(stored)
        return frame.mapInArrow(partial(_judged, history=history, records=content), MESSAGES)

    @override
    def pieces(self, *, content: bool) -> DataFrame | None:
        try:
            stored = self.bodies()
        except WrongInput:
            if self.is_whole:
                raise
            return None
        if len(self._exports) > 1:
            # A message that moved between two runs is in both, and so is its body.
            stored = stored.dropDuplicates(["large_id", "position"])
        ordered = stored.repartition("large_id").sortWithinPartitions("large_id", "position")
        return ordered.mapInArrow(partial(checked_pieces, content=content), PIECES)

    @override
    def recheck(self) -> Recheck:
        return ExportRecheck(self.contents().left if self.is_whole else ())

    def _read_whole_names(self, name: str, schema: StructType) -> DataFrame:
        # A directory has only the beginning of a long name; older exports have no queue_name.
        found = self._read(name, _with_whole_name(schema))
        return found.withColumn("queue", F.coalesce("queue_name", "queue")).drop("queue_name")

    def _messages_of_runs(self) -> DataFrame:
        # Spark makes columns of directory names below one root only. Every export with runs has a
        # queue_name, and the day is the row's.
        found = (
            self.spark.read.schema(_with_whole_name(EXPORTED))
            .option("recursiveFileLookup", "true")
            .parquet(*(f"{one}/messages" for one in self._exports))
        )
        written_on = F.to_date(F.coalesce("written_at", "timestamp"))
        whole = found.withColumns({"queue": F.col("queue_name"), "day": written_on})
        return self._placed(whole.drop("queue_name"))

    def _read(self, name: str, schema: StructType) -> DataFrame:
        # With an explicit schema a queue named 007 keeps its name, and a column that an older
        # version did not write is NULL.
        found = self.spark.read.schema(schema).parquet(f"{self._exports[-1]}/{name}")
        return self._placed(found)


def _rows_of(manifest: Manifest) -> int:
    """Return the number of rows of an export, as far as its manifest tells."""
    if manifest.contents is None:
        return manifest.messages
    try:
        tables = Contents.from_fields(manifest.contents).tables
    except ValueError:
        return manifest.messages  # whoever needs the contents says what is wrong with them
    return max((one.rows for one in tables.values()), default=0)


def _with_whole_name(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField("queue_name", StringType())])


def _refuse(conditions: Mapping[str, str] | None) -> None:
    if conditions:
        raise PipelineError("conditions are for stores: filter the DataFrame of an export")


def _judged(
    batches: Iterator[pa.RecordBatch], *, history: bool, records: bool
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield judged_messages(batch, history=history, records=records)


def _audited_bindings(bindings: DataFrame) -> DataFrame:
    """Return exported bindings in the columns of an audit."""
    finding = F.struct(F.lit("corrupt-binding").alias("fault"), F.col("corrupt").alias("detail"))
    missing = [
        F.lit(None).cast(AUDITED_BINDINGS[name].dataType).alias(name)
        for name in ("queues", "deletes", "large")
    ]
    found = F.when(F.col("corrupt").isNotNull(), F.array(finding)).alias("findings")
    keys = ("seq", "id", "type", "name", "address", "epoch", "written_at")
    return bindings.select(*keys, *missing, found)
