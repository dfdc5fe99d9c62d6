"""What several tests of the pipeline do with stores, readers and commands."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader

from orthia.config.address_settings import RoutingType
from orthia.journal import MessageJournal, QueueBinding
from orthia.pipeline.sources.spark_versions import ReadAllAvailable, ReadLimit
from tests.journal.support import OTHER_QUEUE, QUEUE, JournalStore

ALL_AVAILABLE = ReadAllAvailable()


def answer(result: Any, exit_code: int = 0) -> Any:
    """Return the JSON that a command printed."""
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout)


@contextmanager
def jobs_at_most(spark: SparkSession, count: int) -> Iterator[None]:
    """Check that no more jobs of Spark are begun within the block; broadcasts are jobs, too."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    yield
    assert scheduler.numTotalJobs() - before <= count


def with_queues(store: JournalStore, address: str | None = None) -> MessageJournal:
    """Open a journal with queues ``orders`` and ``audit``, both of ``address`` if one is given."""
    journal = store.open()
    kind = RoutingType.ANYCAST if address is None else RoutingType.MULTICAST
    for queue_id, name in ((QUEUE, "orders"), (OTHER_QUEUE, "audit")):
        journal.add_binding(QueueBinding(queue_id, name, address or name, kind))
    store.settle(journal)
    return journal


def read(reader: DataSourceReader) -> list[dict[str, Any]]:
    """Read everything as Spark does: the reader pickled, partition by partition."""
    travelled: DataSourceReader = pickle.loads(pickle.dumps(reader))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in travelled.read(pickle.loads(pickle.dumps(partition))):
            assert isinstance(batch, pa.RecordBatch)
            rows += batch.to_pylist()
    return rows


def tail(
    reader: Any, start: dict[str, Any], limit: ReadLimit = ALL_AVAILABLE
) -> tuple[list[int], dict[str, Any]]:
    """Read one micro-batch as Spark does; return the seqs, as they come, and where it ends."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    seqs = [
        row["seq"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return seqs, end
