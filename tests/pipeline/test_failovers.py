"""The history of pairs, read by Spark from logs as nodes write them."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, delete

from orthia.broker.cli.opening import opened
from orthia.nodemanager import events
from orthia.nodemanager.errors import FailoverLogUnreadable
from orthia.nodemanager.failover_log import Entry, FailoverLogTable
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.history.account import account_of
from orthia.pipeline.history.lives import LoggedEvent
from orthia.pipeline.history.pairs import Period
from orthia.pipeline.history.rows import TABLES, rows_of
from orthia.pipeline.jobs.failovers import analyse
from orthia.pipeline.sources.failover_chapters import events_in, read_part
from orthia.pipeline.sources.failover_events import LogPart
from orthia.pipeline.sources.failover_files import find_files
from orthia.pipeline.sources.failover_parts import NamedStore, StoreLog, ask_all
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.summary import summary
from tests.journal.support import SqlJournalStore
from tests.pipeline.forging import SECOND, Node, holder, lives, us
from tests.pipeline.support import jobs_at_most

NOON_US = us(0)
Row = dict[str, Any]


def write(path: Path, *nodes: Node, pair: str = "pair") -> str:
    """Write the events of some nodes as a file."""
    path.write_text("".join(map(_line, entries_of(nodes, pair))))
    return str(path)


def entries_of(nodes: Sequence[Node], pair: str = "pair") -> list[Entry]:
    """Return all that nodes of a pair have logged."""
    return [entry for node in nodes for entry in node.entries(pair)]


def _line(entry: Entry) -> str:
    return entry.to_json() + "\n"


def a_crash() -> list[Node]:
    """Return two nodes, of which the second takes over from the first."""
    first = Node("a").becomes_live(0, 1)
    first.says(40, events.RenewalSlow(Lock.LIVE, 1, 2_100.0, 2_000))
    first.says(60, events.RenewalSlow(Lock.LIVE, 1, 2_300.0, 2_000))
    second = Node("b")
    second.own_clock_is_off = 3
    second.says(0.5, events.StoreUnavailableEvent("no answer"), knows_time=False)
    second.says(0.6, events.NodeStarted("0.1.0", "backup", "the store", "pair"))
    return [first, second.becomes_live(102.6, 2, holder("a"), renewed=99.6, gone=101.6)]


def test_an_account_is_told_in_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Who served, how it was taken over, late renewals, clocks; ranges where nobody knows."""
    file = write(tmp_path / "log.jsonl", *a_crash())
    tables = analyse(spark, [], [file], Period(until=NOON_US + 200 * SECOND), now=0)
    assert set(tables) == set(TABLES)
    (pair,) = tables["availability"]
    assert (pair["pair"], pair["takeovers"], pair["outages"]) == ("pair", 1, 1)
    assert pair["period_from"] == "2026-01-31T12:00:00.040Z"
    # Of what comes after the last event files tell nothing, whatever is asked for.
    assert pair["period_to"] == "2026-01-31T12:01:42.643Z"
    assert pair["availability"] < pair["availability_most"] < 1
    outage = next(row for row in tables["outages"] if row["known"])
    assert (outage["out_ms"], outage["out_least_ms"]) == (3_040.0, 1_025.0)
    assert (outage["cause"], outage["from_node"], outage["to_node"]) == ("unknown", "a", "b")
    first, second = tables["takeovers"]
    assert (first["cause"], first["outage_ms"]) == ("first start", None)
    assert (second["serving_at"], second["fence_ms"]) == ("2026-01-31T12:01:42.640Z", 5.0)
    assert [(row["node_name"], row["end"]) for row in tables["tenures"]] == [
        ("a", "silent"),
        ("b", None),
    ]
    (late,) = tables["late_renewals"]
    assert (late["count"], late["p50_ms"], late["max_ms"]) == (2, 2_200.0, 2_300.0)
    assert [row["median_ms"] for row in tables["clock_drift"]] == [0.0, 3_000.0]


def test_a_pair_has_one_name_wherever_its_events_were_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also those from before a node knew its pair, and those that were read twice."""
    both = [
        write(tmp_path / f"{name}.jsonl", *a_crash(), pair="node-id") for name in ("one", "two")
    ]
    named = StoreLog("eu", "node-id")
    tables = analyse(spark, [named], both, now=NOON_US + 200 * SECOND)
    assert [row["pair"] for row in tables["availability"]] == ["eu"]
    assert tables["doubts"] == []


def test_a_store_that_does_not_answer_is_a_row_with_its_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The others are told of all the same; it comes before those that serve."""
    away = StoreLog("away", error="no answer")
    file = write(tmp_path / "log.jsonl", *a_crash())
    tables = analyse(spark, [away], [file], now=NOON_US + 200 * SECOND)
    assert [(row["pair"], row["error"]) for row in tables["availability"]] == [
        ("away", "no answer"),
        ("pair", None),
    ]


def test_a_period_ends_with_what_is_known() -> None:
    """The future was not served, and nobody was out in it."""
    assert [Period(until=at).end(100) for at in (None, 99, 101)] == [100, 99, 100]


def test_a_pair_whose_log_is_empty_is_in_the_report(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference
) -> None:
    """Nothing is known of it, which is said."""
    (log,) = ask_all([NamedStore("eu", store.settings, reference)], opened)
    (row,) = analyse(spark, [log], now=0)["availability"]
    assert (row["pair"], row["now"], row["availability"]) == ("eu", "unknown", None)


def test_a_file_that_is_gone_is_an_error_of_what_it_belongs_to(tmp_path: Path) -> None:
    """Read by a worker that does not see it, say."""
    good = write(tmp_path / "good.jsonl", Node("a").becomes_live(0, 1))
    files = [str(tmp_path / "none.jsonl"), good, str(tmp_path / "neither.jsonl")]
    (row,), (other,) = (batch.to_pylist() for batch in read_part(LogPart("pair", files=files)))
    assert row["pair"] == "pair"
    assert "none.jsonl" in row["error"]
    assert "neither.jsonl" in row["error"]
    # It keeps no other file from being read.
    assert (other["node"], other["error"]) == ("a", None)


def test_a_directory_gives_the_files_that_were_rotated_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As logrotate and others call them; what lies beside them is left out."""
    one = Path(write(tmp_path / "failover-a.jsonl", Node("a").becomes_live(0, 1)))
    names = ["a.jsonl.1", "a.jsonl-20260131", "a.jsonl.2.gz", "b.jsonl.gz", "b.jsonl"]
    for name in names:
        data = one.read_bytes()
        packed = gzip.compress(data) if name.endswith(".gz") else data
        (tmp_path / f"failover-{name}").write_bytes(packed)
    (tmp_path / "audit-a.jsonl").write_text('{"event": "login"}\n')
    (tmp_path / "failover-blank.jsonl").write_text("\n")
    (tmp_path / "failover-torn.jsonl").write_text("{\n")
    (tmp_path / "failover-c.jsonl.bz2").write_bytes(b"BZh9")
    wanted = {f"failover-{name}" for name in [*names, "a.jsonl", "blank.jsonl"]}
    assert {path.name for path in find_files(str(tmp_path))} == wanted
    assert "failover-c.jsonl.bz2 looks like a failover log, and is not read" in caplog.text
    assert "failover-torn.jsonl is no failover log" in caplog.text
    assert "audit" not in caplog.text
    assert [path.name for path in find_files(f"{tmp_path}/*-a.jsonl")] == ["failover-a.jsonl"]
    (batch,) = read_part(LogPart(files=[str(tmp_path / "failover-a.jsonl.2.gz")]))
    (row,) = batch.to_pylist()
    assert len(list(events_in(row["events"]))) == 4


def test_what_is_named_and_is_no_log_is_refused(tmp_path: Path) -> None:
    """Also a directory or a pattern without any."""
    (tmp_path / "readme.jsonl").write_text("# Orthia\n")
    for name in (tmp_path / "readme.jsonl", tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(FailoverLogUnreadable, match="failover log"):
            find_files(str(name))


LINE = json.loads(Node("a").becomes_live(0, 1).entries()[0].to_json())


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        "{}",
        "[" * 100_000,
        json.dumps(LINE | {"event_seq": True}),
        json.dumps(LINE | {"token": "1"}),
        json.dumps(LINE | {"details": None}),
        json.dumps(LINE | {"holder_id": 5}),
        json.dumps(LINE | {"node_time": "2026-01-01T00:00:00"}),
        json.dumps(LINE | {"db_time": "9999-99-99"}),
    ],
)
def test_a_line_that_is_none_is_passed_over(line: str, tmp_path: Path) -> None:
    """Torn, or written by something else."""
    path = tmp_path / "log.jsonl"
    path.write_text(f"{line}\n\n{json.dumps(LINE)}\n")
    (batch,) = read_part(LogPart(files=[str(path)]))
    (row,) = batch.to_pylist()
    assert [one.event for one in events_in(row["events"])] == ["LiveLockObtained"]


def random_lives(chance: random.Random, pair: str, count: int) -> Iterator[Node]:
    """Yield the lives of a pair's nodes, with every way of beginning and ending they have."""
    seconds = 0.0
    for token in range(1, count + 1):
        node = Node(f"{pair}-{token}")
        if chance.random() < 0.4:
            node.says(seconds, events.BackupLockObtained(Lock.BACKUP, token))
        if chance.random() < 0.5:
            seconds += chance.uniform(0, 9)
            node.says(seconds, events.CrashDetected("x@host", chance.uniform(0, 9_000), 1.0))
        seconds += chance.uniform(0, 2)
        if chance.random() < 0.8:
            node.becomes_live(seconds, token, chance.choice([None, "x@host"]))
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


def test_spark_tells_what_the_rules_tell_of_each_pair(spark: SparkSession, tmp_path: Path) -> None:
    """Random lives of some pairs, from files in any order, cut into pieces and in part twice."""
    chance = random.Random(5)
    pairs = {f"pair-{n}": list(random_lives(chance, f"pair-{n}", 25)) for n in range(4)}
    entries = [one for pair, nodes in pairs.items() for one in entries_of(nodes, pair)]
    pieces = [chance.sample(entries, len(entries) // 2), entries]
    files = []
    for number, piece in enumerate(pieces):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(chance.sample(list(map(_line, piece)), len(piece))))
        files.append(str(file))
    until = max(one.at for nodes in pairs.values() for node in nodes for one in node.events)
    until -= SECOND
    found = analyse(spark, [], files, Period(until=until), now=0)
    wanted: dict[str, list[Row]] = {name: [] for name in TABLES}
    for pair, nodes in pairs.items():
        of_lives = sorted(lives(*nodes), key=lambda one: one.holder)
        for name, row in rows_of(pair, account_of(of_lives, None, None, until), of_lives):
            wanted[name].append(json.loads(json.dumps(row)))
    for name in TABLES:
        assert _sorted(found[name]) == _sorted(wanted[name]), name


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def test_a_table_is_read_on_every_dbms(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference
) -> None:
    """Its columns say what its lines of JSON say; what the store says of its locks closes it."""
    table = FailoverLogTable(store.database, store.settings)
    for entry in entries_of(a_crash()):
        table.insert(entry)
    (log,) = ask_all([NamedStore("eu", store.settings, reference)], opened)
    assert log.error is None
    assert log.live_lock is not None
    said: dict[str, list[LoggedEvent]] = {}
    for part in log.parts:
        for batch in read_part(part):
            for row in batch.to_pylist():
                said.setdefault(row["holder"], []).extend(events_in(row["events"]))
    for node in a_crash():
        found = said[node.holder]
        assert [one.event for one in found] == [one.event for one in node.events]
        assert [one.at for one in found][1:] == [one.at for one in node.events][1:]
        obtained = next(one for one in node.events if one.event == "LiveLockObtained")
        assert next(one for one in found if one.event == obtained.event).details == obtained.details
    tables = analyse(spark, [log], now=0)
    (pair,) = tables["availability"]
    # Nobody has the lock of this store, and the log knows of no release: it ended somehow.
    assert (pair["pair"], pair["now"], pair["error"]) == ("eu", "OUT", None)
    names = {row["kind"] for row in tables["doubts"]}
    assert names == {"store behind the log"}


def test_a_summary_without_spark_has_the_same_rows(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference, tmp_path: Path
) -> None:
    """Of random lives, from the table, from files, and from both; Spark needs three jobs."""
    chance = random.Random(7)
    pairs = {name: list(random_lives(chance, name, 30)) for name in ("pair", "other")}
    files = [write(tmp_path / f"{name}.jsonl", *pairs[name], pair=name) for name in pairs]
    table = FailoverLogTable(store.database, store.settings)
    for entry in entries_of(pairs["pair"][10:]):
        table.insert(entry)
    (log,) = ask_all([NamedStore(None, store.settings, reference)], opened)
    assert log.live_lock is not None
    # The store's clock goes on between the two.
    period = Period(until=NOON_US + 1_500 * SECOND)
    at = (store.database, store.settings)
    for logs, of_store, named in (([], None, files), ([log], at, []), ([log], at, files)):
        with jobs_at_most(spark, 3):
            wanted = analyse(spark, logs, named, period, now=log.live_lock.now)
        found = summary(of_store, list(map(Path, named)), period, now=log.live_lock.now)
        assert len(found["outages"]) > 5
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(wanted))


def test_rows_that_were_deleted_from_the_table_are_named(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference
) -> None:
    """Their numbers are missing."""
    table = FailoverLogTable(store.database, store.settings)
    for entry in entries_of(a_crash()):
        table.insert(entry)
    rows = failover_log(MetaData(), "FAILOVER_LOG", store.database.dialect)
    with store.database.engine.begin() as connection:
        connection.execute(delete(rows).where(rows.c.event == "LiveActive", rows.c.token == 2))
    (log,) = ask_all([NamedStore("eu", store.settings, reference)], opened)
    found = analyse(spark, [log], now=0)["doubts"]
    (missing,) = (row for row in found if row["kind"] == "events missing")
    assert "1 of the events of b@host" in missing["what"]
