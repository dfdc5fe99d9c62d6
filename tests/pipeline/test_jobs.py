"""How many jobs of Spark a command takes on a small pair: each costs planning, however small."""

from pathlib import Path

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
        ("audit --history", 6),
        ("audit", 6),
        ("traffic --history", 3),
        ("failovers", 3),
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


def test_an_export_takes_few_jobs(run: Run, spark: SparkSession, url: str, tmp_path: Path) -> None:
    """One for each table that is written, and one for what is told of all; so does its audit."""
    out = tmp_path / "exported"
    with jobs_at_most(spark, 8):
        answer(run("pipeline", "export", "--url", url, "--to", out, "--history", "--json", "-q"))
    with jobs_at_most(spark, 6):
        found = answer(run("pipeline", "audit", "--from", out, "--history", "--json", "-q"))
    assert found["sound"]
