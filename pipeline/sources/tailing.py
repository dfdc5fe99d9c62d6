"""The common part of streams of a journal, of its history and of a queue."""

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from orthia.pipeline.sources.journal_rows import Condition
from orthia.pipeline.sources.kafka_schema import NEEDED, as_kafka
from orthia.pipeline.sources.micro_batches import Limits, MicroBatches, Places
from orthia.pipeline.sources.spark_versions import ReadLimit, SupportsTriggerAvailableNow
from orthia.pipeline.sources.store import StoreReference


class TailOptions(TypedDict, total=False):
    """What all of them can be told."""

    limits: Limits
    """How much a micro-batch takes."""
    max_body: int
    """The most bytes of a large message's body that is read; 0 for none."""
    kafka: bool
    """Whether rows have the columns of Spark's source for Kafka."""


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new rows; it can be pickled: it has no connection."""

    def __init__(
        self,
        store: StoreReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        **options: Unpack[TailOptions],
    ) -> None:
        """Read ``columns`` of rows that meet ``conditions``."""
        self._store = store
        self._is_kafka = options.get("kafka", False)
        self._columns = list(NEEDED if self._is_kafka else columns)
        self._wanted_partitions = partitions
        self._conditions = list(conditions)
        self._micro_batches = MicroBatches(options.get("limits", Limits()))
        self._max_body = options.get("max_body", 0)
        self._stop_at: int | None = None
        """Where a run that reads only the present rows ends."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the size of a micro-batch."""
        return self._micro_batches.default_limit()

    def end_of_batch(self, places: Places, after: int, last: int, limit: ReadLimit) -> int:
        """Return where the next micro-batch ends, of the rows up to ``last``."""
        waits = self._stop_at is None
        return self._micro_batches.end(places, after, last, limit, waits=waits)

    def shaped(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches in the columns that are wanted."""
        yield from map(as_kafka, batches) if self._is_kafka else batches
