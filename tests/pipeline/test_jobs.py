"""How many jobs of Spark a command takes on a small pair: each costs planning, however small."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from orthia.journal.model.unit import Unit
from orthia.nodemanager.failover_log import FailoverLogTable
from tests.cli.conftest import Run, run
from tests.journal.keeping import KeepingStore
from tests.journal.large_support import put, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, payload
from tests.pipeline.support import answer, jobs_at_most, with_queues
from tests.pipeline.test_failovers import a_crash, entries_of

__all__ = ["run"]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["sqlite"], indirect=True),
]


@pytest.fixture
def url(keeping: KeepingStore) -> str:
    """Give a sound store with something in each table: some messages are left, some are gone."""
    journal = with_queues(keeping, "orders")
    unit = Unit()
    for number in range(20):
        unit.add_message([QUEUE, OTHER_QUEUE], payload(str(number)))
    places = journal.append_unit(unit)
    keeping.settle(journal)
    put(keeping, journal, upload(keeping, journal))
    journal.delete(places[:20])
    keeping.settle(journal)
    journal.close(drain=True)
    table = FailoverLogTable(keeping.database, keeping.settings)
    for entry in entries_of(a_crash()):
        table.insert(entry)
    return keeping.settings.jdbc_connection_url.display


@pytest.mark.parametrize(
    ("command", "jobs"),
    [
        ("audit --history", 5),
        ("audit", 5),
        ("traffic --history", 2),
        ("failovers", 2),
    ],
)
def test_a_command_takes_few_jobs(
    run: Run, spark: SparkSession, url: str, command: str, jobs: int
) -> None:
    """Whatever it tells: each table is read in one, and compared with others in one."""
    with jobs_at_most(spark, jobs):
        found = answer(run("pipeline", *command.split(), "--url", url, "--json", "-q"))
    assert found["queues" if "failovers" not in command else "takeovers"]
    assert found.get("faults", {}) == {}
    if command.startswith("traffic"):
        assert {row["reason"] for row in found["left"]} == {"acknowledged"}
    # Nothing of a small pair is left in the session.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def rows_in(directory: Path, form: str) -> list[dict[str, Any]]:
    """Return the rows of a table that was written as one file."""
    (file,) = directory.glob(f"*.{form}")
    if form == "parquet":
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
        return rows
    with file.open(encoding="utf-8", newline="") as opened:
        return list(map(json.loads, opened)) if form == "json" else list(csv.DictReader(opened))


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_an_export_takes_few_jobs(
    run: Run, spark: SparkSession, keeping: KeepingStore, tmp_path: Path, form: str
) -> None:
    """One for messages, and one for all small tables; what was written is read without one.

    Small tables are whole, in the same format; of large messages there are none.
    """
    journal = with_queues(keeping, "orders")
    keeping.append(journal, *"abc")
    url = keeping.settings.jdbc_connection_url.display
    out = tmp_path / "exported"
    to = ("--to", out, "--format", form)
    with jobs_at_most(spark, 2):
        answer(run("pipeline", "export", "--url", url, *to, "--json", "-q"))
    found = rows_in(out / "bindings", form)
    assert sorted(row["name"] for row in found if row["type"] == "queue") == ["audit", "orders"]
    assert {row["lock"] for row in rows_in(out / "node_manager", form)} == {"live", "backup"}
    assert rows_in(out / "bodies", form) == rows_in(out / "failover_log", form) == []


def test_an_export_of_all_takes_few_jobs(
    run: Run, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """One more each for the history, for bodies of large messages, and to read all of it.

    Its audit takes six.
    """
    out = tmp_path / "exported"
    with jobs_at_most(spark, 5):
        answer(run("pipeline", "export", "--url", url, "--to", out, "--history", "--json", "-q"))
    with jobs_at_most(spark, 6):
        found = answer(run("pipeline", "audit", "--from", out, "--history", "--json", "-q"))
    assert found["sound"]
