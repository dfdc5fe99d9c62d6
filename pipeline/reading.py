"""Where a job's DataFrames come from: a store, or the directory an export wrote."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import DateType, StringType, StructField, StructType

from journal.file.inspect import read_fence
from pipeline.errors import PipelineError, WrongInput
from pipeline.file_journal import FileReference
from pipeline.manifest import NAME as MANIFEST
from pipeline.manifest import Manifest, run_names
from pipeline.outputs import Files
from pipeline.schemas import BINDINGS, FAILOVER_LOG, HISTORY, JOURNAL, NODE_MANAGER
from pipeline.store import StoreReference

EXPORTED: Final = StructType([*JOURNAL.fields, StructField("day", DateType())])
"""MESSAGES as an export keeps them: with the day they were written, in UTC."""

EXPORTED_HISTORY: Final = StructType([*HISTORY.fields, StructField("day", DateType())])
"""The history as an export keeps it: with the day messages left their queue, in UTC."""


class Inputs(Protocol):
    """The tables of one pair as DataFrames."""

    spark: SparkSession

    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return MESSAGES, or some columns of it; ``conditions`` are ``orthia.journal``'s."""
        ...

    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return what journal-retention keeps, or some columns of it."""
        ...

    def bindings(self) -> DataFrame:
        """Return BINDINGS."""
        ...

    def failover_log(self) -> DataFrame:
        """Return FAILOVER_LOG."""
        ...

    def node_manager(self) -> DataFrame:
        """Return NODE_MANAGER_STORE, a row for each lock."""
        ...


class StoreInputs:
    """A store's tables as they are now."""

    def __init__(
        self,
        spark: SparkSession,
        store: StoreReference | FileReference,
        partitions: int | None = None,
    ) -> None:
        self.spark = spark
        self._options = store.to_options()
        self._partitions = {} if partitions is None else {"numPartitions": str(partitions)}

    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``."""
        return self._journal("messages", columns, conditions)

    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``."""
        return self._journal("history", columns, conditions)

    def bindings(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("orthia.journal", table="bindings")

    def failover_log(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("orthia.failover_log", **self._partitions)

    def node_manager(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("orthia.node_manager")

    def _journal(
        self, table: str, columns: Sequence[str] | None, conditions: Mapping[str, str] | None
    ) -> DataFrame:
        chosen = {} if columns is None else {"columns": ",".join(columns)}
        options = {**self._partitions, **chosen, **(conditions or {})}
        return self._read("orthia.journal", table=table, **options)

    def _read(self, source: str, **options: str) -> DataFrame:
        return self.spark.read.format(source).options(**self._options, **options).load()


class FileInputs(StoreInputs):
    """A file journal as it is now. Failover logs of such a pair are files of their own."""

    def __init__(
        self, spark: SparkSession, journal: FileReference, partitions: int | None = None
    ) -> None:
        super().__init__(spark, journal, partitions)
        self._files = journal

    def failover_log(self) -> DataFrame:
        """Return nothing."""
        return self.spark.createDataFrame([], FAILOVER_LOG)

    def node_manager(self) -> DataFrame:
        """Return the fence, which is all that files tell; raises JournalError."""
        fence = {"lock": "live", "fence_token": read_fence(self._files.settings()).token}
        return self.spark.createDataFrame([fence], NODE_MANAGER)


class ExportInputs:
    """The Parquet files of ``orthia pipeline export``, or of all runs of an incremental one."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """Look what is there; raises WrongInput if a later version wrote it."""
        self.spark = spark
        self._directory = directory.rstrip("/")
        files = Files(spark, self._directory)
        runs = run_names(files.names(self._directory))
        self._exports = [f"{self._directory}/{run}" for run in runs] or [self._directory]
        """Their directories, the oldest first."""
        for one in self._exports:
            if files.exists(f"{one}/{MANIFEST}"):
                Manifest.from_json(files.read_text(f"{one}/{MANIFEST}"), f"{one}/{MANIFEST}")

    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``; Spark pushes filters into Parquet by itself."""
        _refuse(conditions)
        found = (
            self._read_whole_names("messages", EXPORTED)
            if len(self._exports) == 1
            else self._messages_of_runs()
        )
        return found if columns is None else found.select(*columns)

    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``; raises WrongInput if the export was made without it."""
        _refuse(conditions)
        try:
            found = self._read_whole_names("history", EXPORTED_HISTORY)
        except AnalysisException as error:
            raise WrongInput(f"{self._directory} has no history: export with --history") from error
        return found if columns is None else found.select(*columns)

    def bindings(self) -> DataFrame:
        """See ``Inputs``; of several runs the last one's."""
        return self._read("bindings", BINDINGS)

    def failover_log(self) -> DataFrame:
        """See ``Inputs``; of several runs the last one's."""
        return self._read("failover_log", FAILOVER_LOG)

    def node_manager(self) -> DataFrame:
        """See ``Inputs``; of several runs the last one's."""
        return self._read("node_manager", NODE_MANAGER)

    def _read_whole_names(self, name: str, schema: StructType) -> DataFrame:
        # A directory has a long name's beginning only; exports of before queue_name have no other.
        found = self._read(name, _with_whole_name(schema))
        return found.withColumn("queue", F.coalesce("queue_name", "queue")).drop("queue_name")

    def _messages_of_runs(self) -> DataFrame:
        # Spark makes columns of directories' names below one root only. Whatever has runs has a
        # queue_name, and the day is that of the row.
        found = (
            self.spark.read.schema(_with_whole_name(EXPORTED))
            .option("recursiveFileLookup", "true")
            .parquet(*(f"{one}/messages" for one in self._exports))
        )
        written_on = F.to_date(F.coalesce("written_at", "timestamp"))
        return found.withColumns({"queue": F.col("queue_name"), "day": written_on}).drop(
            "queue_name"
        )

    def _read(self, name: str, schema: StructType) -> DataFrame:
        # With the schema said, a queue that is called 007 keeps its name, and a column that an
        # older version did not write is NULL.
        return self.spark.read.schema(schema).parquet(f"{self._exports[-1]}/{name}")


def _with_whole_name(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField("queue_name", StringType())])


def _refuse(conditions: Mapping[str, str] | None) -> None:
    if conditions:
        raise PipelineError("conditions are for stores: filter the DataFrame of an export")
