"""A small export is read back without Spark, and the answers are Spark's own."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orthia.config.address_settings import RoutingType
from orthia.journal import QueueBinding
from orthia.journal.model.unit import Unit
from orthia.pipeline.jobs import backup
from orthia.pipeline.jobs import export as job
from orthia.pipeline.jobs.contents import TableDigest
from orthia.pipeline.jobs.migrate import checksum
from orthia.pipeline.jobs.row_hash import digest_of
from orthia.pipeline.jobs.together import collected_together
from orthia.pipeline.jobs.written import WrittenTable
from orthia.pipeline.sources.inputs import ExportInputs
from orthia.pipeline.sources.schemas import arrow_schema
from tests.cli.conftest import Run, run
from tests.journal.keeping import KeepingStore
from tests.journal.support import OTHER_QUEUE, QUEUE, payload
from tests.pipeline.support import answer, with_queues

pytestmark = pytest.mark.extended
on_sqlite = pytest.mark.parametrize("server", ["sqlite"], indirect=True)

__all__ = ["run"]

HASHED = StructType(
    [
        StructField("long", LongType()),
        StructField("short", ShortType()),
        StructField("bytes", BinaryType()),
        StructField("text", StringType()),
        StructField("time", TimestampType()),
        StructField("int", IntegerType()),
    ]
)
LENGTHS = (0, 1, 3, 4, 5, 7, 8, 15, 31, 32, 33, 63, 64, 95, 100, 1_000)
BEGIN = datetime(1, 1, 1, tzinfo=UTC)
MICROSECONDS = int((datetime(9999, 12, 31, tzinfo=UTC) - BEGIN).total_seconds()) * 1_000_000
NAMES = ("a=b", "100%", "all/ü:*", "x" * 300, "__HIVE_DEFAULT_PARTITION__", "007", "a b")


def random_row(chance: random.Random) -> dict[str, Any]:
    """Return a row whose columns may each be NULL."""
    row = {
        "long": chance.randrange(-(2**63), 2**63),
        "short": chance.randrange(-(2**15), 2**15),
        "bytes": chance.randbytes(chance.choice(LENGTHS)),
        "text": "é" * chance.randrange(40),
        "time": BEGIN + timedelta(microseconds=chance.randrange(MICROSECONDS)),
        "int": chance.randrange(-(2**31), 2**31),
    }
    return {name: None if chance.random() < 0.1 else value for name, value in row.items()}


def test_a_checksum_is_that_of_spark(spark: SparkSession) -> None:
    """Of any columns, values and NULLs, however the rows are cut, and of no row."""
    chance = random.Random(46)
    rows = [random_row(chance) for _ in range(1_500)]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(HASHED))
    frame = spark.createDataFrame(table)
    for names in (HASHED.fieldNames(), ["bytes"], ["text", "int"], ["time", "short"]):
        (row,) = checksum(frame.select(*names)).collect()
        expected = TableDigest(row["rows"], str(row["sum"]), row["xor"])
        chosen = table.select(names)
        (whole,) = chosen.combine_chunks().to_batches()
        assert digest_of(chosen.to_batches(max_chunksize=400)) == expected
        assert digest_of([whole.slice(0, 7), whole.slice(7)]) == expected
    assert digest_of([]) == digest_of([whole.slice(0, 0)]) == TableDigest()


def test_no_checksum_is_made_of_what_is_hashed_otherwise() -> None:
    """A column of another type is refused."""
    schema = arrow_schema(StructType([StructField("held", BooleanType())]))
    with pytest.raises(TypeError, match="bool"):
        digest_of([pa.RecordBatch.from_pylist([{"held": True}], schema=schema)])


@pytest.fixture
def url(keeping: KeepingStore) -> str:
    """Give a store with messages and history of queues of strange names, and of no queue."""
    journal = with_queues(keeping, "orders")
    unit = Unit()
    for number, name in enumerate(NAMES):
        queue_id = 100 + number
        journal.add_binding(QueueBinding(queue_id, name, "orders", RoutingType.MULTICAST))
        unit.add_message([QUEUE, queue_id], payload(name))
    unit.add_message([OTHER_QUEUE, 999], payload("of a queue that nobody knows"))
    places = journal.append_unit(unit)
    keeping.settle(journal)
    journal.delete(places[:5])
    keeping.settle(journal)
    journal.close(drain=True)
    return keeping.settings.jdbc_connection_url.display


@on_sqlite
def test_what_was_written_is_told_as_spark_tells_it(
    run: Run, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Messages of each day and queue, checksums, locks; the history, too."""
    out = tmp_path / "exported"
    told = answer(run("pipeline", "export", "--url", url, "--to", out, "--history", "--json", "-q"))
    found = ExportInputs(spark, str(out))
    asked = {"messages": job.summary(found.messages()), "history": job.summary(found.history())}
    asked |= backup.questions(found, with_history=True)
    expected = collected_together(asked, in_one_task=True)
    assert expected["history"]
    assert {None, *NAMES} <= {row["queue"] for row in expected["messages"]} | {
        row["queue"] for row in expected["history"]
    }
    for name in ("messages", "history"):
        assert told[name] == WrittenTable(out / name).summary() == expected.pop(name)
    answers = backup.answers_of(out, with_history=True)
    for row in expected["locks"]:
        for name in row.keys() - answers["locks"][0].keys():
            del row[name]
    for (row,) in (expected[name] for name in expected if name.startswith("digest of ")):
        row |= {"sum": row["sum"] or "0", "xor": row["xor"] or 0}
    assert answers == expected
    tables = found.contents().tables
    assert min(tables[name].rows for name in ("messages", "history", "bindings")) > 0
    assert list(backup.changed_tables(found, found.contents())) == []


@on_sqlite
def test_an_export_of_nothing_has_nothing(
    run: Run, spark: SparkSession, keeping: KeepingStore, tmp_path: Path
) -> None:
    """Spark writes one file without rows, in no directory of a day."""
    with_queues(keeping).close(drain=True)
    url = keeping.settings.jdbc_connection_url.display
    out = tmp_path / "exported"
    assert (
        answer(run("pipeline", "export", "--url", url, "--to", out, "--json", "-q"))["messages"]
        == []
    )
    found = ExportInputs(spark, str(out))
    assert found.contents().tables["messages"] == TableDigest()
    assert list(backup.changed_tables(found, found.contents())) == []
