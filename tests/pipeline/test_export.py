"""What an export writes of names and headers, which are whatever clients sent."""

import csv
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from orthia.journal.model.unit import Unit
from orthia.pipeline.jobs import export
from orthia.pipeline.sources.inputs import ExportInputs
from orthia.pipeline.sources.schemas import JOURNAL
from tests.cli.conftest import Run, run
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.pipeline.support import answer, with_queues

__all__ = ["run"]

pytestmark = pytest.mark.extended

NOW = datetime(2026, 1, 30, tzinfo=UTC)
LONG = ["q" * 300, "ü" * 130, "a:b" * 80]
"""Too long for a directory: as it is, in UTF-8, and once Spark has escaped it."""
WHOLE = ["orders", "007", "q" * 249, "a" * 246 + ":"]


def written(spark: SparkSession, rows: list[dict[str, object]], form: str, target: Path) -> None:
    """Export rows of MESSAGES; what a row does not say is null."""
    blank = dict.fromkeys(JOURNAL.names)
    whole = [tuple((blank | {"written_at": NOW} | row).values()) for row in rows]
    messages = export.exported(spark.createDataFrame(whole, JOURNAL))
    partitioned = export.writer(messages, form).partitionBy(*export.PARTITIONED_BY)
    partitioned.save(str(target / "messages"))


def test_a_queue_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """One whose name is too long for a directory is exported with the others, under its name."""
    names = [*WHOLE, *LONG]
    written(spark, [{"queue": name, "seq": n} for n, name in enumerate(names)], "parquet", tmp_path)
    found = ExportInputs(spark, str(tmp_path)).messages(["seq", "queue"]).collect()
    assert {row["seq"]: row["queue"] for row in found} == dict(enumerate(names))
    directories = {path.name for path in (tmp_path / "messages" / "day=2026-01-30").iterdir()}
    assert {"queue=orders", "queue=007", f"queue={'q' * 249}"} <= directories
    assert sum("~" in name for name in directories) == len(LONG)


def test_an_export_of_before_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Its files have no queue_name; the directories have the names."""
    blank = dict.fromkeys(JOURNAL.names)
    row = tuple((blank | {"queue": "007", "seq": 1}).values())
    old = spark.createDataFrame([row], JOURNAL)
    old.write.partitionBy("queue").parquet(str(tmp_path / "messages"))
    (found,) = ExportInputs(spark, str(tmp_path)).messages(["queue"]).collect()
    assert found["queue"] == "007"


def test_a_spreadsheet_calculates_nothing_a_client_sent(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In CSV a text that begins as a formula does has an apostrophe before it; numbers are left."""
    texts = ["=1+1", "+1", "-1", "@A1", "\t=1", "\uff1d1", "'=1", "a=b"]
    rows = [{"queue": "orders", "address": text, "seq": -n} for n, text in enumerate(texts)]
    written(spark, rows, "csv", tmp_path)
    found: dict[str, str] = {}
    for path in (tmp_path / "messages").rglob("*.csv"):
        with path.open(newline="") as opened:
            found |= {row["seq"]: row["address"] for row in csv.DictReader(opened)}
    assert found == {f"{-n}": text if text == "a=b" else f"'{text}" for n, text in enumerate(texts)}


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("spark")
def test_files_are_as_large_as_asked_for(run: Run, store: SqlJournalStore, tmp_path: Path) -> None:
    """Six tasks write six files a queue, or one, or as many as the rows of a file demand."""
    journal = with_queues(store)
    for _ in range(6):
        unit = Unit()
        for number in range(1_000):
            unit.add_message([QUEUE if number % 2 else OTHER_QUEUE], payload(str(number)))
        journal.append_unit(unit)
    journal.close(drain=True)

    def files(name: str, *options: str) -> list[int]:
        out = tmp_path / name
        url = store.settings.jdbc_connection_url.display
        command = ("pipeline", "export", "--url", url, "--to", out, "--partitions", "6", *options)
        answer(run(*command, "--json", "-q"))
        found = [pq.read_metadata(one).num_rows for one in (out / "messages").rglob("*.parquet")]
        assert sum(found) == 6_000
        return found

    assert len(files("as read")) > 6
    assert files("gathered", "--file-mib", "64") == [3_000, 3_000]
    assert max(files("bounded", "--file-mib", "64", "--file-rows", "700")) == 700
