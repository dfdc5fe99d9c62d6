"""What left the queues, as the pipeline sees it: read, exported, told of, checked, sent again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Producer
from orthia.config.settings import Role
from orthia.journal import MessageLocation
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import AppendedMessage, Unit
from orthia.pipeline.jobs import replay, traffic
from orthia.pipeline.sources.journal import JournalReader
from orthia.pipeline.sources.schemas import HISTORY, arrow_schema, subset
from tests.cli.conftest import Run, run
from tests.journal.keeping import KeepingStore
from tests.journal.support import OTHER_QUEUE, QUEUE, payload
from tests.pipeline.conftest import reference_to
from tests.pipeline.support import answer, read, with_queues
from tests.process.clients import take_all
from tests.process.file_nodes import FileCluster, FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER, store
from tests.support.servers import SqliteServer

pytestmark = pytest.mark.extended

__all__ = ["run"]

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SENT = 20


def test_the_history_is_read_as_messages_are(
    keeping: KeepingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue's message shows its body, its queue, why it left it and when."""
    reference = reference_to(keeping.settings, monkeypatch)
    with_queues(keeping, "shop")
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    places = unit.place(2_000_000)
    gone = Unit(None, 2_000_009)
    gone.add_deletes([*places, MessageLocation(2_000_009)])
    gone.reasons = {2_000_009: RemovalReason.EXPIRED}
    keeping.store_batch(unit, AppendedMessage(2_000_009, QUEUE, payload("late"), None), gone)
    columns = HISTORY.fieldNames()
    reader = JournalReader(reference, columns, 2, history=True)
    rows = sorted(read(reader), key=lambda row: row["seq"])
    assert [(row["kind"], row["queue"], row["body"], row["reason"]) for row in rows] == [
        ("message", "orders", b"both", "acknowledged"),
        ("message", "audit", b"both", "acknowledged"),
        ("message", "orders", b"late", "expired"),
    ]
    assert {row["seq"]: row["removed_at"] for row in rows} == keeping.removed()
    assert [row["size"] for row in rows] == [len(row["record"]) for row in rows]
    assert dict(rows[0]["properties"]) == {"colour": "red"}
    (batch, *_) = reader.read(reader.partitions()[0])
    assert batch.schema.equals(arrow_schema(HISTORY))
    assert read(JournalReader(reference, ["seq"])) == []


# --- the jobs


def left(seq: int, **changes: Any) -> dict[str, Any]:
    """Return a row of the history, of a message that stayed for ten seconds."""
    written = NOON + timedelta(seconds=seq)
    values = {
        "seq": seq,
        "id": seq,
        "queue_id": 1,
        "queue": "orders",
        "epoch": 1,
        "size": 150,
        "body_size": 100,
        "written_at": written,
        "removed_at": written + timedelta(seconds=10),
        "reason": "acknowledged",
        "kind": "message",
        "headers": {},
    }
    return values | changes


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return rows as ``orthia.journal`` gives those of the history."""
    return spark.createDataFrame(list(rows), subset(HISTORY, ",".join(left(1))))


def test_traffic_tells_how_long_messages_stayed(spark: SparkSession) -> None:
    """By queue and reason: how many, how many a second, and the time in the queue."""
    slow = left(11, removed_at=NOON + timedelta(seconds=41))
    expired = left(7, reason="expired")
    acknowledged, late = traffic.left(frame(spark, left(1), slow, expired)).collect()
    assert (acknowledged["messages"], acknowledged["bytes"]) == (2, 200)
    assert acknowledged["longest_seconds_in_queue"] == 30
    assert acknowledged["median_seconds_in_queue"] == 10
    assert acknowledged["per_second"] == pytest.approx(2 / 30)
    assert (late["reason"], late["longest_seconds_in_queue"]) == ("expired", 10)


def test_percentiles_are_as_exact_as_is_said(spark: SparkSession) -> None:
    """Their rank is off by 0.01 % at most, from bounded summaries of each task."""
    rows = spark.range(1, 200_001, numPartitions=4).select(
        F.lit("orders").alias("queue"),
        F.lit(NOON).alias("written_at"),
        (F.lit(NOON).cast("double") + F.col("id")).cast("timestamp").alias("removed_at"),
        F.lit("acknowledged").alias("reason"),
        F.lit(1).alias("body_size"),
    )
    (found,) = traffic.left(rows).collect()
    assert found["median_seconds_in_queue"] == pytest.approx(100_000, abs=20)
    assert found["p95_seconds_in_queue"] == pytest.approx(190_000, abs=20)


def test_what_a_replay_sent_is_not_sent_by_the_next(spark: SparkSession) -> None:
    """A replayed message that was consumed is in the history too, and stays there."""
    again = left(5, headers={"orthia-replayed-from": "1"})
    bare = left(6, headers=None)
    kept = replay.first_sent(frame(spark, left(1, headers={"a": "b"}), again, bare))
    assert [row["seq"] for row in kept.orderBy("seq").collect()] == [1, 6]


# --- from a broker and back into it


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FileNodeProcess]:
    """Give a live node with retention, on SQLite."""
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    retention = '<journal-retention xmlns="urn:orthia" period="1"/>'
    with file_cluster(tmp_path, store(tmp_path, settings, "lease", more=retention)) as cluster:
        yield live(cluster)


def live(cluster: FileCluster) -> FileNodeProcess:
    """Start the live node."""
    started = cluster.node(Role.LIVE, "live", policy=HANDS_OVER)
    started.start().wait_serving()
    return started


def consumed(node: FileNodeProcess, queue: str) -> int:
    """Take everything out of a queue; return how many messages it was."""
    return len(take_all(node.port, queue))


def test_what_was_consumed_is_sent_again(
    run: Run, spark: SparkSession, node: FileNodeProcess, tmp_path: Path
) -> None:
    """Consumed, exported, sound, replayed to another queue once, and not twice."""
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=60)
    Producer(link, "/queue/orders", body=lambda n: b"%d" % n, count=SENT).run()
    assert consumed(node, "/queue/orders") == SENT
    out = tmp_path / "exported"
    where = ("--config", node.config_path)
    written = answer(run("pipeline", "export", *where, "--to", out, "--history", "--json", "-q"))
    assert [row["messages"] for row in written["history"]] == [SENT]
    sound = answer(run("pipeline", "audit", "--from", out, "--history", "--json", "-q"))
    assert (sound["sound"], sound["faults"]) == (True, {})
    arguments = ("--history", "--reason", "acknowledged", "--to", "/queue/again", "--json", "-q")
    own = ("--name", "back", "--checkpoint", f"{tmp_path / 'back.secret'}")
    broker = ("--send", *own, "--broker", f"127.0.0.1:{node.port}")
    for sent in (SENT, 0):
        done = answer(run("pipeline", "replay", *where, *arguments, *broker))
        assert (done["messages"], done["sent"]["sent"]) == (SENT, sent)
        assert consumed(node, "/queue/again") == sent
