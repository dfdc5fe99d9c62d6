"""The jobs on what a real pair wrote through a failover, as an operator runs them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, delete

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.pipeline.sources.store import StoreReference
from tests.cli.conftest import Run, run
from tests.journal.large_support import DATA, put, table_of, upload
from tests.journal.support import SqlJournalStore
from tests.pipeline.conftest import PASSWORD_VARIABLE
from tests.pipeline.support import answer
from tests.process.clients import Producer, take_all
from tests.process.nodes import cluster
from tests.support.servers import (
    LEASE_MS,
    PASSWORD,
    ServerProcess,
    SqliteServer,
    url_with_password,
)

pytestmark = pytest.mark.extended

__all__ = ["run"]


@dataclass(frozen=True)
class Story:
    """A pair that has failed over and was stopped, and what the test saw of it."""

    settings: DatabaseStoreSettings
    url: str
    receipted: int
    killed_at: datetime
    served_by: datetime
    logs: Path
    """Where the nodes' failover logs are: a node that ends may not have its last words stored."""


@pytest.fixture(scope="module")
def story(shared_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Give the store of a pair on PostgreSQL whose live node was killed under load."""
    server: ServerProcess = shared_servers("postgresql")
    name = server.create_database()
    settings = server.settings(name)
    url = url_with_password(settings)
    directory = tmp_path_factory.mktemp("pair")
    with cluster(url, directory) as nodes:
        live, backup = nodes.pair()
        with Producer([live.port, backup.port], "/queue/orders") as producer:
            producer.wait_receipts(50)
            killed_at = datetime.now(UTC)
            live.kill()
            backup.wait_log("ORT100008")
            served_by = datetime.now(UTC)
            producer.wait_receipts(50)
            receipted = producer.finish()
        backup.terminate()
    yield Story(settings, url, len(receipted), killed_at, served_by, directory)
    server.drop_database(name)


def test_an_export_holds_every_message_and_is_sound(
    run: Run, spark: SparkSession, story: Story, tmp_path: Path
) -> None:
    """What the broker confirmed is in the files; an audit of store and files finds no fault."""
    out = tmp_path / "exported"
    written = answer(run("pipeline", "export", "--url", story.url, "--to", out, "--json", "-q"))
    assert sum(row["messages"] for row in written["messages"]) >= story.receipted
    assert {row["queue"] for row in written["messages"]} == {"orders"}
    for where in (("--from", out), ("--url", story.url)):
        found = answer(run("pipeline", "audit", *where, "--json", "-q"))
        assert (found["sound"], found["faults"]) == (True, {})
        assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2]
        assert found["epochs"][1]["gap_before"] > 900_000
        waiting = {queue["queue"]: queue["messages"] for queue in found["queues"]}
        assert waiting["orders"] >= story.receipted
    traffic = answer(run("pipeline", "traffic", "--from", out, "--json", "-q"))
    assert {q["queue"]: q["messages"] for q in traffic["queues"]} == {"orders": waiting["orders"]}
    table = tmp_path / "csv"
    told = run("pipeline", "export", "--url", story.url, "--to", table, "--format", "csv", "-q")
    assert told.exit_code == 0, told.output
    (bindings,) = (table / "bindings").glob("*.csv")
    assert '[""ANYCAST""]' in bindings.read_text()
    again = run("pipeline", "export", "--url", story.url, "--to", out)
    assert (again.exit_code, "exists already" in again.stderr) == (69, True)


def test_the_takeover_is_as_long_as_the_test_saw_it(
    run: Run, spark: SparkSession, story: Story, tmp_path: Path
) -> None:
    """Cause, begin and end of the outage; and the report can be looked at."""
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    logs = sorted(story.logs.rglob("failover-*.jsonl"))
    assert len(logs) == 2
    arguments = ("--url", story.url, "--json", "-q", "--html", page, "--png", picture)
    found = answer(run("pipeline", "failovers", *logs, *arguments))
    first, second = found["takeovers"]
    assert (first["cause"], second["cause"]) == ("first start", "crash detected")
    out_since, out_by, serving_at = (
        datetime.fromisoformat(second[name]) for name in ("out_since", "out_by", "serving_at")
    )
    # The last renewal the backup saw was before the kill, the end of its session after it.
    tolerance = timedelta(milliseconds=100)
    assert story.killed_at - timedelta(milliseconds=LEASE_MS) <= out_since
    assert out_since <= story.killed_at + tolerance
    # A node is taken to serve no more two periods after its last renewal, which a busy machine
    # may have kept from renewing for a while when it is killed.
    assert out_by >= story.killed_at - timedelta(seconds=2)
    assert story.killed_at - tolerance <= serving_at <= story.served_by + tolerance
    # Both are gone, the one that served last in good order: that goes on, and was planned.
    (pair,) = found["availability"]
    assert (pair["now"], pair["outages"], pair["error"]) == ("stopped", 1, None)
    crash, stop = found["outages"]
    assert stop["cause"].startswith("released, and ")
    assert (crash["planned"], stop["planned"]) == (False, True)
    assert (stop["open"], stop["ended"]) == (True, None)
    # A node whose first reading of the database's clock was slow is corrected by the next one.
    assert [one for one in found["doubts"] if one["kind"] != "clock stepped"] == []
    assert found["overlaps"] == []
    assert [row["end"] for row in found["tenures"] if row["lock"] == "live"] == [
        "silent",
        "released",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "crash detected" in text
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_a_pair_that_cannot_be_reached_is_a_row_of_the_report(
    run: Run, spark: SparkSession, story: Story
) -> None:
    """The other one is told of all the same; the exit code says that one is not."""
    away = "postgresql://u@127.0.0.1:1/none"
    pairs = ("--pair", f"here={story.url}", "--pair", f"away={away}")
    result = run("pipeline", "failovers", *pairs, "--json", "-q")
    assert result.exit_code == 69
    assert "away is not in the report" in result.stderr
    by_name = {row["pair"]: row for row in json.loads(result.stdout)["availability"]}
    assert by_name["here"]["takeovers"] == 1
    assert "127.0.0.1" in by_name["away"]["error"]
    result = run("pipeline", "failovers", *pairs, "-q")
    assert "not read" in result.stdout
    assert "planned: released" in result.stdout
    assert "OUT" not in result.stdout
    alone = run("pipeline", "failovers", "--pair", f"away={away}", "-q")
    assert (alone.exit_code, alone.stdout) == (69, "")


def test_an_audit_finds_what_is_missing_from_a_store(
    run: Run, spark: SparkSession, story: Story
) -> None:
    """Exit code 1, and the table names the fault, when bindings are gone."""
    from orthia.journal.sql.tables import bindings_table

    database = Database.from_settings(story.settings)
    bindings = bindings_table(MetaData(), "BINDINGS", database.dialect)
    with database.engine.begin() as connection:
        connection.execute(delete(bindings).where(bindings.c.user_record_type == 21))
    database.dispose()
    result = run("pipeline", "audit", "--url", story.url, "--no-records")
    assert result.exit_code == 1
    assert "unknown-queue" in result.stdout


def test_passwords_are_nowhere_in_spark(spark: SparkSession, story: Story) -> None:
    """Not in the plan, the configuration or the text of a DataFrame; and yet it can be read."""
    reference, _ = StoreReference.of(story.settings, PASSWORD_VARIABLE)
    reader = spark.read.format("orthia.journal").options(**reference.to_options())
    frame = reader.option("columns", "seq").load()
    assert frame.count() > 0
    plan = frame._jdf.queryExecution().toString()
    shown = f"{plan} {spark.sparkContext.getConf().getAll()} {frame!r}"
    assert "battery" not in shown
    assert PASSWORD not in shown


def test_a_replay_is_a_dry_run_unless_told_to_send(
    run: Run, spark: SparkSession, story: Story
) -> None:
    """What would be sent is shown, narrowed by conditions; nothing is connected to."""
    arguments = ("--url", story.url, "--where", "size > 0", "--to", "/queue/other", "--json")
    found = answer(run("pipeline", "replay", *arguments, "-q"))
    assert found["sent"] is None
    assert found["messages"] >= story.receipted
    assert found["selected"][0]["destination"] == "/queue/other"
    refused = run("pipeline", "replay", "--url", story.url, "--send")
    assert (refused.exit_code, "--name" in refused.stderr) == (64, True)


@pytest.mark.usefixtures("spark")
def test_a_replay_sends_large_messages(run: Run, tmp_path: Path) -> None:
    """From the store and from an export of it; a damaged body is not sent, and named."""
    server = SqliteServer(tmp_path)
    store = SqlJournalStore(server.settings("large.sqlite"))
    journal = store.open()
    put(store, journal, upload(store, journal))
    store.append(journal, "small")
    url, out = server.url("large.sqlite"), tmp_path / "exported"
    shown = answer(run("pipeline", "replay", "--url", url, "--to", "/queue/x", "--json", "-q"))
    assert (shown["selected"][0]["large"], shown["selected"][0]["body_bytes"]) == (
        1,
        len(DATA) + 5,
    )
    answer(run("pipeline", "export", "--url", url, "--to", out, "--json", "-q"))
    with cluster(f"sqlite:///{tmp_path / 'another.db'}", tmp_path) as nodes:
        node = nodes.live().wait_serving()

        def send(name: str, *where: object) -> Any:
            own = ("--name", name, "--checkpoint", f"{tmp_path / name}.secret")
            to = ("--to", f"/queue/{name}", "--send", "--broker", f"127.0.0.1:{node.port}")
            return run("pipeline", "replay", *where, *own, *to, "--json", "-q")

        for name, where in (("store", ("--url", url)), ("files", ("--from", out))):
            assert answer(send(name, *where))["sent"]["sent"] == 2
            got = [frame.body for frame in take_all(node.port, f"/queue/{name}")]
            assert got == [DATA, b"small"]
        pieces = table_of(store)
        with store.database.engine.begin() as connection:
            connection.execute(delete(pieces).where(pieces.c.position == 2))
        refused = send("damaged", "--url", url)
        assert (refused.exit_code, "ends after" in refused.stderr) == (65, True)
        assert take_all(node.port, "/queue/damaged") == []
        node.terminate()
    store.close()
