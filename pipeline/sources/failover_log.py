"""``orthia.failover_log``: the table of a store, and JSON-lines files of any number of nodes.

Options: ``url`` or ``config`` for the table FAILOVER_LOG; ``load(PATH)`` for files, where PATH may
be a directory, a pattern such as ``logs/*.jsonl``, or several of these with commas between, also
packed by gzip;
``pair`` names the pair the events are of (default: its node id); ``numPartitions`` cuts the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.nodemanager.merge import entries_of_file
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources import micro_batches
from orthia.pipeline.sources.failover_files import find_files, in_groups
from orthia.pipeline.sources.failover_rows import in_batches, table_entries
from orthia.pipeline.sources.fetching import Source, open_source
from orthia.pipeline.sources.options import check_options, positive
from orthia.pipeline.sources.schemas import FAILOVER_LOG
from orthia.pipeline.sources.spark_versions import require_streams
from orthia.pipeline.sources.store import OPTIONS, StoreReference
from orthia.pipeline.sources.streams import FailoverLogStreamReader

_ROWS_A_PARTITION: Final = 100_000
_MAX_PARTITIONS: Final = 32


class FailoverLogSource(DataSource):
    """The data source; every worker makes its own from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raises BadOption."""
        self._limits = micro_batches.Limits.from_options(options)
        if self._limits.max_bytes is not None:
            raise BadOption("option maxBytesPerBatch: events are small: say maxRowsPerBatch")
        self._starting = micro_batches.starting_at(options)
        own = {"pair", "numpartitions", micro_batches.STARTING, *micro_batches.OPTIONS}
        check_options(options, {*OPTIONS, *own})
        self._store = None
        if "url" in options or "config" in options:
            self._store = StoreReference.from_options(options)
        self._paths = options.get("path")
        if self._store is None and self._paths is None:
            raise BadOption(
                "say where the failover log is: the option url or config for the table, load(PATH)"
                " for files"
            )
        self._pair = options.get("pair")
        self._partitions = positive(options, "numpartitions")

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "orthia.failover_log"

    def schema(self) -> StructType:
        """Return the columns."""
        return FAILOVER_LOG

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader of a batch."""
        return FailoverLogReader(self._store, self._paths, self._pair, self._partitions)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of a stream, of a table only."""
        require_streams()
        if self._store is None or self._paths is not None:
            raise BadOption("a stream reads the table: give the option url or config, and no path")
        return FailoverLogStreamReader(
            self._store, self._pair, limits=self._limits, starting=self._starting
        )


class IdPartition(InputPartition):
    """A range of rows of the table: ``first <= id < end``."""

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class FilesPartition(InputPartition):
    """Some files: many are small, and a task for each would cost more than reading it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)


class FailoverLogReader(DataSourceReader):
    """Reads the table in ranges of its ids, and files in groups."""

    def __init__(
        self,
        store: StoreReference | None,
        paths: str | None = None,
        pair: str | None = None,
        partitions: int | None = None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._pair = pair
        self._wanted_partitions = partitions

    def partitions(self) -> list[InputPartition]:
        """Return the present ranges and files; raises BadOption if a path has no file."""
        found: list[InputPartition] = []
        if self._paths is not None:
            found += map(FilesPartition, in_groups(find_files(self._paths)))
        if self._store is not None:
            settings = self._store.settings()
            with open_source(settings) as source:
                found += ranges_of(source, settings, self._wanted_partitions)
        return found or [IdPartition(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a range or a file; a line that is no entry is skipped."""
        if isinstance(partition, FilesPartition):
            entries = (one for path in partition.paths for one in entries_of_file(Path(path)))
            yield from in_batches(entries, self._pair)
        elif isinstance(partition, IdPartition) and self._store is not None:
            settings = self._store.settings()
            with open_source(settings) as source:
                table = source.table(settings.failover_log_table_name)
                where = f"id >= {partition.first:d} AND id < {partition.end:d}"
                yield from in_batches(table_entries(source, table, where), self._pair)


def ranges_of(
    source: Source, settings: DatabaseStoreSettings, partitions: int | None = None
) -> Iterator[IdPartition]:
    """Yield the ranges of the table's present rows; raises StoreError."""
    table = source.table(settings.failover_log_table_name)
    ((first, last),) = source.rows(f"SELECT MIN(id), MAX(id) FROM {table}")  # noqa: S608
    if first is None:
        return
    count = last - first + 1
    parts = partitions or min(_MAX_PARTITIONS, 1 + count // _ROWS_A_PARTITION)
    step = -(-count // parts)
    for start in range(first, last + 1, step):
        yield IdPartition(start, min(start + step, last + 1))
