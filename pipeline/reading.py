"""Where a job's DataFrames come from: a store, or the directory an export wrote."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import DateType, StringType, StructField, StructType

from journal.file.inspect import read_fence
from pipeline.errors import PipelineError
from pipeline.file_journal import FileReference
from pipeline.schemas import BINDINGS, FAILOVER_LOG, HISTORY, JOURNAL, NODE_MANAGER
from pipeline.store import StoreReference

EXPORTED: Final = StructType([*JOURNAL.fields, StructField("day", DateType())])
"""MESSAGES as an export keeps them: with the day they were written, in UTC."""

EXPORTED_HISTORY: Final = StructType([*HISTORY.fields, StructField("day", DateType())])
"""The history as an export keeps it: with the day messages left their queue, in UTC."""


class Inputs(Protocol):
    """The tables of one pair as DataFrames."""

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
        self._spark = spark
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
        return self._spark.read.format(source).options(**self._options, **options).load()


class FileInputs(StoreInputs):
    """A file journal as it is now. Failover logs of such a pair are files of their own."""

    def __init__(
        self, spark: SparkSession, journal: FileReference, partitions: int | None = None
    ) -> None:
        super().__init__(spark, journal, partitions)
        self._files = journal

    def failover_log(self) -> DataFrame:
        """Return nothing."""
        return self._spark.createDataFrame([], FAILOVER_LOG)

    def node_manager(self) -> DataFrame:
        """Return the fence, which is all that files tell; raises JournalError."""
        fence = {"lock": "live", "fence_token": read_fence(self._files.settings()).token}
        return self._spark.createDataFrame([fence], NODE_MANAGER)


class ExportInputs:
    """The Parquet files of ``orthia pipeline export``."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self._directory = directory.rstrip("/")

    def messages(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``; Spark pushes filters into Parquet by itself."""
        _refuse(conditions)
        found = self._read_whole_names("messages", EXPORTED)
        return found if columns is None else found.select(*columns)

    def history(
        self, columns: Sequence[str] | None = None, conditions: Mapping[str, str] | None = None
    ) -> DataFrame:
        """See ``Inputs``; raises PipelineError if the export was made without it."""
        _refuse(conditions)
        try:
            found = self._read_whole_names("history", EXPORTED_HISTORY)
        except AnalysisException as error:
            raise PipelineError(
                f"{self._directory} has no history: export with --history"
            ) from error
        return found if columns is None else found.select(*columns)

    def bindings(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("bindings", BINDINGS)

    def failover_log(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("failover_log", FAILOVER_LOG)

    def node_manager(self) -> DataFrame:
        """See ``Inputs``."""
        return self._read("node_manager", NODE_MANAGER)

    def _read_whole_names(self, name: str, schema: StructType) -> DataFrame:
        # A directory has a long name's beginning only; exports of before queue_name have no other.
        written = StructType([*schema.fields, StructField("queue_name", StringType())])
        found = self._read(name, written)
        return found.withColumn("queue", F.coalesce("queue_name", "queue")).drop("queue_name")

    def _read(self, name: str, schema: StructType) -> DataFrame:
        # With the schema said, a queue that is called 007 keeps its name.
        return self._spark.read.schema(schema).parquet(f"{self._directory}/{name}")


def _refuse(conditions: Mapping[str, str] | None) -> None:
    if conditions:
        raise PipelineError("conditions are for stores: filter the DataFrame of an export")
