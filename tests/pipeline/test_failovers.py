"""The history of pairs, from logs as nodes write them."""

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nodemanager import events
from nodemanager.events import Event
from nodemanager.failover_log import Entry
from nodemanager.lease import Lock
from pipeline.failover_source import in_batches
from pipeline.jobs import failovers
from pipeline.schemas import FAILOVER_LOG
from tests.pipeline import plain_failovers

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the instant so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


class Node:
    """Writes the log of one life of one node."""

    def __init__(self, name: str, pair: str = "pair", off_seconds: float = 0) -> None:
        self.entries: list[Entry] = []
        self._name = name
        self._pair = pair
        self._off = timedelta(seconds=off_seconds)

    def says(self, seconds: float, event: Event, *, knows_time: bool = True) -> "Node":
        """Log ``event`` so many seconds after noon."""
        lock = getattr(event, "lock", None)
        self.entries.append(
            Entry(
                db_time=at(seconds) if knows_time else None,
                node_time=at(seconds) + self._off,
                node_id=self._pair if knows_time else None,
                node_name=self._name,
                holder_id=f"{self._name}@host",
                role="live",
                code=event.code,
                level="INFO",
                event=type(event).__name__,
                lock=lock.name.lower() if lock is not None else None,
                token=getattr(event, "token", None),
                event_seq=len(self.entries) + 1,
                message=event.message,
                details=event.details(),
            )
        )
        return self

    def becomes_live(self, seconds: float, token: int, detection_ms: float | None = 0.0) -> "Node":
        """Log an activation that takes 40 ms from the lock to the open acceptor."""
        self.says(seconds, events.LiveLockObtained(Lock.LIVE, token))
        self.says(seconds + 0.04, events.LiveActive(token))
        return self.says(
            seconds + 0.05, events.TakeoverTimings(token, detection_ms, 5.0, 20.0, 15.0)
        )


def log_of(spark: SparkSession, *nodes: Node) -> DataFrame:
    """Return the log of all nodes."""
    entries: Iterable[Entry] = [entry for node in nodes for entry in node.entries]
    rows = [row for batch in in_batches(entries, None) for row in batch.to_pylist()]
    return spark.createDataFrame(rows, FAILOVER_LOG)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    """Give the log of four pairs, each with a failover of another kind."""
    crash = [
        Node("a", "crash").becomes_live(0, 1),
        Node("b", "crash")
        .says(1, events.BackupLockObtained(Lock.BACKUP, 1))
        .says(102.5, events.CrashDetected("a@host", 2_500.0, 17_000.0))
        .becomes_live(102.6, 2)
        .says(102.7, events.LockReleased(Lock.BACKUP, 1)),
    ]
    pause = [
        Node("c", "pause", off_seconds=3)
        .becomes_live(0, 7)
        .says(50, events.RenewalSlow(Lock.LIVE, 7, 2_100.0, 2_000))
        .says(60, events.RenewalSlow(Lock.LIVE, 7, 2_300.0, 2_000))
        .says(130, events.LeaseLost(Lock.LIVE, 7, "paused"))
        .says(130.1, events.NodeStopped(74, "lease lost")),
        Node("d", "pause").becomes_live(120, 8, detection_ms=4.0),
    ]
    handover = [
        Node("e", "handover").becomes_live(0, 1).says(80, events.LockReleased(Lock.LIVE, 1)),
        Node("f", "handover").becomes_live(80.1, 2, detection_ms=90.0),
    ]
    broken = [
        Node("g", "broken").becomes_live(0, 1).says(50, events.LockReleased(Lock.LIVE, 1)),
        Node("h", "broken").becomes_live(40, 2),
    ]
    log = log_of(spark, *crash, *pause, *handover, *broken)
    return failovers.timeline(log.union(log.limit(5))).cache()


@pytest.fixture(scope="module")
def held(history: DataFrame) -> DataFrame:
    """Give who held what."""
    return failovers.tenures(history).cache()


@pytest.fixture(scope="module")
def taken(history: DataFrame, held: DataFrame) -> DataFrame:
    """Give the takeovers."""
    return failovers.takeovers(history, held).cache()


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return columns of all rows, in order."""
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_who_held_which_lock_when(held: DataFrame) -> None:
    """Every tenure has its holder, its end, and why it ended."""
    shown = rows(held.where("lock = 'live'"), "pair", "node_name", "token", "end")
    assert shown == [
        ("broken", "g", 1, "released"),
        ("broken", "h", 2, None),
        ("crash", "a", 1, "silent"),
        ("crash", "b", 2, None),
        ("handover", "e", 1, "released"),
        ("handover", "f", 2, None),
        ("pause", "c", 7, "lost"),
        ("pause", "d", 8, None),
    ]
    (backup,) = held.where("lock = 'backup'").collect()
    assert (backup["node_name"], backup["end"], backup["next_since"]) == ("b", "released", None)


def test_takeovers_have_cause_outage_and_phases(taken: DataFrame) -> None:
    """The outage begins when the old node stopped serving, however that is known."""
    shown = {
        row["pair"]: (row["cause"], row["outage_ms"], row["fence_ms"])
        for row in taken.where("from_holder IS NOT NULL AND pair <> 'broken'").collect()
    }
    assert shown == {
        "crash": ("crash detected", 2_640.0, 5.0),
        "pause": ("lease expired", 44.0, 5.0),
        "handover": ("released", 140.0, 5.0),
    }
    first = taken.where("from_holder IS NULL").collect()
    assert {(row["cause"], row["outage_ms"]) for row in first} == {("first start", None)}


def test_a_late_notice_is_no_conflict_and_two_holders_are(held: DataFrame) -> None:
    """A paused node that wakes up is told from two nodes that both went on."""
    assert rows(failovers.overlaps(held), "pair", "overlap_ms", "conflict") == [
        ("broken", 10_000.0, True),
        ("pause", 10_000.0, False),
    ]


def test_availability_is_what_part_of_the_period_was_served(
    history: DataFrame, held: DataFrame, taken: DataFrame
) -> None:
    """Served time over the period, the outages in it, and the longest of them."""
    found = failovers.availability(history, held, taken, F.lit(at(50)), F.lit(at(250)))
    by_pair = {row["pair"]: row for row in found.collect()}
    crash = by_pair["crash"]
    assert (crash["takeovers"], crash["longest_outage_ms"]) == (1, 2_640.0)
    assert crash["availability"] == pytest.approx((200_000 - 2_640) / 200_000)
    assert by_pair["handover"]["served_ms"] == pytest.approx(200_000 - 140)


def test_late_renewals_are_counted_and_measured(history: DataFrame) -> None:
    """Each node's slow renewals, with percentiles."""
    (row,) = failovers.late_renewals(history).collect()
    assert (row["node_name"], row["event"], row["count"]) == ("c", "RenewalSlow", 2)
    assert (row["p50_ms"], row["max_ms"]) == (2_200.0, 2_300.0)


def test_a_clock_that_is_off_is_shown(history: DataFrame) -> None:
    """A node's own clock is compared with the database's at every event."""
    off = {row["node_name"]: row["median_ms"] for row in failovers.clock_drift(history).collect()}
    assert off["c"] == 3_000.0
    assert off["d"] == 0.0


def test_an_event_from_before_the_database_answered_keeps_its_place(spark: SparkSession) -> None:
    """It is placed by the node's clock, but not after what followed it, and has its pair."""
    node = Node("late", "pair", off_seconds=600)
    node.says(0, events.BackupStarted(), knows_time=False).becomes_live(1, 1)
    first = failovers.timeline(log_of(spark, node)).orderBy("event_seq").first()
    assert first is not None
    assert (first["pair"], first["at"].astimezone(UTC)) == ("pair", at(1))


def random_lives(chance: random.Random, pair: str, lives: int) -> Iterator[Node]:
    """Yield the lives of a pair's nodes, with every way of beginning and ending they have."""
    seconds = 0.0
    for token in range(1, lives + 1):
        node = Node(f"{pair}-{token}", pair)
        if chance.random() < 0.4:
            node.says(seconds, events.BackupLockObtained(Lock.BACKUP, token))
        if chance.random() < 0.5:
            seconds += chance.uniform(0, 9)
            node.says(seconds, events.CrashDetected("x@host", chance.uniform(0, 9_000), 1.0))
        seconds += chance.uniform(0, 2)
        if chance.random() < 0.8:
            node.becomes_live(
                seconds, token, detection_ms=chance.choice([None, chance.uniform(0, 900)])
            )
        else:
            node.says(seconds, events.LiveLockObtained(Lock.LIVE, token))
        seconds += chance.uniform(1, 60)
        node.says(seconds, events.RenewalSlow(Lock.LIVE, token, 2_100.0, 2_000))
        # Later, perhaps, than the next one's lock: a node that was paused.
        last = seconds + chance.choice((0, 30))
        for end in (
            events.LockReleased(Lock.LIVE, token),
            events.LeaseLost(Lock.LIVE, token, "paused"),
            events.FencedWriteRefused(token, "fenced"),
            events.LockReleased(Lock.BACKUP, token),
            events.NodeStopped(0, "stopped"),
        ):
            if chance.random() < 0.3:
                last += chance.uniform(0, 2)
                node.says(last, end)
        yield node


def test_whatever_happened_is_told_as_a_plain_reading_of_the_log_tells_it(
    spark: SparkSession,
) -> None:
    """Tenures and takeovers of random lives, read from a log in any order and in part twice."""
    chance = random.Random(5)
    nodes = [node for number in range(5) for node in random_lives(chance, f"pair-{number}", 25)]
    log = [entry for node in nodes for entry in node.entries]
    frame = log_of(spark, *chance.sample(nodes, len(nodes)))
    history = failovers.timeline(frame.union(frame.where("event_seq % 2 = 0"))).cache()
    held = failovers.tenures(history).cache()
    expected: tuple[list[dict[str, Any]], DataFrame]
    for expected in (
        (plain_failovers.tenures(log), held),
        (plain_failovers.takeovers(log), failovers.takeovers(history, held)),
    ):
        plain, shown = expected
        columns = sorted(plain[0])
        wanted = [tuple(_in_utc(row[name]) for name in columns) for row in plain]
        found = [tuple(_in_utc(one) for one in row) for row in shown.select(*columns).collect()]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)


def _in_utc(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return round(value, 3) if isinstance(value, float) else value
