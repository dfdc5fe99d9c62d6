"""``failover-log``: one timeline from the table and from files."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from orthia.broker.cli.durations import Since, parse_duration
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.nodemanager import events
from orthia.nodemanager.failover_log import Entry, FailoverLogTable
from orthia.nodemanager.locks.lease import Lock
from tests.cli.conftest import Run
from tests.pipeline.forging import Node, holder

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def entry(node: str, number: int, seconds: float, code: str = "AMQ221007") -> Entry:
    """Return an event of ``node``, so many seconds after noon."""
    at = NOON + timedelta(seconds=seconds)
    return Entry(
        db_time=at,
        node_time=at,
        node_id="id",
        node_name=node,
        holder_id=f"{node}@host",
        role="live",
        code=code,
        level="INFO",
        event="LiveActive",
        lock=None,
        token=7,
        event_seq=number,
        message=f"{node} says\n{number}",
        details={},
    )


def insert(url: str, *entries: Entry) -> None:
    """Write entries into the table as nodes do."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(url))
    database = Database.from_settings(settings)
    table = FailoverLogTable(database, settings)
    for one in entries:
        table.insert(one)
    database.dispose()


def file_of(path: Path, *entries: Entry) -> Path:
    """Write entries into a file as nodes do."""
    path.write_text("".join(one.to_json() + "\n" for one in entries))
    return path


def test_a_file_may_be_packed(run: Run, tmp_path: Path) -> None:
    """As logrotate leaves it, whatever it is called."""
    plain = file_of(tmp_path / "a.jsonl", entry("a", 1, 0), entry("a", 2, 1))
    packed = tmp_path / "old"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert run("failover-log", packed).stdout == run("failover-log", plain).stdout != ""


@pytest.mark.parametrize("command", [["failover-log"], ["pipeline", "failovers"]])
def test_a_file_that_is_no_failover_log_is_refused(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    """An empty answer would say that nothing had happened. A blank file is a log of nothing."""
    no_log = tmp_path / "README.md"
    no_log.write_text("# Orthia\n\nA broker.\n")
    whole = gzip.compress(file_of(tmp_path / "a.jsonl", entry("a", 1, 0)).read_bytes())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[:60])
    for path, what in ((no_log, "is no failover log"), (cut, "is cut off or damaged")):
        result = run(*command, path)
        assert (result.exit_code, result.stdout) == (65, "")
        assert f"{path} {what}" in result.stderr
    blank = tmp_path / "blank.jsonl"
    blank.write_text("\n")
    assert run("failover-log", blank).exit_code == 0


def test_nodes_are_merged_by_the_databases_clock(run: Run, sqlite_url: str) -> None:
    """The lines of all nodes come in order of time, one line an event."""
    insert(sqlite_url, entry("a", 1, 0), entry("a", 2, 10), entry("b", 1, 5))
    lines = run("failover-log", "--url", sqlite_url).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["a", "b", "a"]
    assert lines[1] == "2026-01-31 12:00:05.000Z AMQ221007 b          live   b says 1"


def test_an_event_in_file_and_table_is_shown_once(
    run: Run, sqlite_url: str, tmp_path: Path
) -> None:
    """Table and files complete each other."""
    insert(sqlite_url, entry("a", 1, 0))
    file = file_of(tmp_path / "a.jsonl", entry("a", 1, 0), entry("a", 2, 1))
    lines = run("failover-log", file, "--url", sqlite_url).stdout.splitlines()
    assert [line[-1] for line in lines] == ["1", "2"]


def test_files_need_no_database(run: Run, tmp_path: Path) -> None:
    """The files of two dead nodes are enough; a torn last line is passed over."""
    a = file_of(tmp_path / "a.jsonl", entry("a", 1, 3))
    b = file_of(tmp_path / "b.jsonl", entry("b", 1, 2))
    b.write_text(b.read_text() + '{"db_time": "2026-')
    lines = run("failover-log", a, b).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["b", "a"]


def test_a_missing_file_is_named(run: Run, tmp_path: Path) -> None:
    """A file that is not there is one clear line."""
    result = run("failover-log", tmp_path / "none.jsonl")
    assert result.exit_code == 69
    assert "none.jsonl: No such file" in result.stderr


def test_json_is_one_object_a_line(run: Run, sqlite_url: str) -> None:
    """Programs get each event whole, in the format of the files."""
    insert(sqlite_url, entry("a", 1, 0, code="ORT100001"))
    shown = [
        json.loads(x)
        for x in run("failover-log", "--url", sqlite_url, "--json").stdout.splitlines()
    ]
    assert shown == [json.loads(entry("a", 1, 0, code="ORT100001").to_json())]


def test_since_leaves_out_what_is_older(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    """``--since`` takes a point in time, for table and files alike."""
    insert(sqlite_url, entry("a", 1, 0), entry("a", 2, 60))
    file = file_of(tmp_path / "b.jsonl", entry("b", 1, 1), entry("b", 2, 61))
    arguments = ("failover-log", file, "--url", sqlite_url, "--since", "2026-01-31T12:00:30Z")
    assert [line[-1] for line in run(*arguments).stdout.splitlines()] == ["2", "2"]


def stopped_pair(path: Path) -> Path:
    """Write the log of a node that served a minute, was killed, and whose successor was stopped."""
    first = Node("a").becomes_live(0, 1)
    second = Node("b").becomes_live(100, 2, holder("a"), renewed=60, gone=90)
    second.says(300, events.ServiceClosing(2)).says(300.5, events.LockReleased(Lock.LIVE, 2))
    return file_of(path, *(one for node in (first, second) for one in node.entries()))


def test_a_summary_tells_what_the_events_mean(run: Run, tmp_path: Path) -> None:
    """Who served, each outage with its range and cause, and what was planned; as JSON, too."""
    log = stopped_pair(tmp_path / "log.jsonl")
    shown = run("failover-log", log, "--summary").stdout
    assert [heading for heading in shown.splitlines() if heading and heading[0].isupper()] == [
        "Availability",
        "Who served",
        "Outages",
        "Doubts: what the log lacks, or what cannot be",
    ]
    told = json.loads(run("failover-log", log, "--summary", "--json").stdout)
    (pair,) = told["availability"]
    assert (pair["outages"], pair["planned_outages"]) == (1, 0)
    window = "2026-01-31T12:00:50Z/2026-01-31T12:02:00Z"
    told = json.loads(run("failover-log", log, "--summary", "--json", "--planned", window).stdout)
    (pair,) = told["availability"]
    assert (pair["outages"], pair["planned_outages"], pair["availability_most"]) == (0, 1, 1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--summary", "--follow"], "it cannot --follow"),
        (["--planned", "2d/1d"], "--planned is for the --summary"),
        (["--summary", "--planned", "1d/2d"], "ends before it begins"),
        (["--summary", "--planned", "1d"], "is not FROM/TO"),
        (["--summary", "--since", "9999-01-01"], "nothing happened"),
    ],
)
def test_what_a_summary_cannot_do_is_refused(
    run: Run, tmp_path: Path, options: list[str], said: str
) -> None:
    """By name, before anything is read."""
    log = stopped_pair(tmp_path / "log.jsonl")
    result = run("failover-log", log, *options)
    assert result.exit_code == 64
    assert said in " ".join(result.stderr.split())


def test_a_summary_of_what_is_no_log_is_refused(run: Run, tmp_path: Path) -> None:
    """An empty answer would say that nothing had happened."""
    no_log = tmp_path / "README.md"
    no_log.write_text("# Orthia\n")
    result = run("failover-log", no_log, "--summary")
    assert (result.exit_code, result.stdout) == (65, "")
    assert f"{no_log} is no failover log" in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5_400), ("2d", 172_800), ("1w", 604_800)],
)
def test_a_duration_is_counted_back_from_now(text: str, seconds: int) -> None:
    """Durations are what a person writes."""
    assert parse_duration(text) == timedelta(seconds=seconds)
    read = Since().convert(text, None, None)
    assert abs((datetime.now(UTC) - read).total_seconds() - seconds) < 60


@pytest.mark.parametrize("text", ["", "10", "m", "10 minutes", "yesterday", "9999999999999999w"])
def test_a_broken_duration_is_refused(text: str) -> None:
    """What is neither a duration nor a time is a usage error that shows both."""
    with pytest.raises(click.BadParameter, match=r"10m.*2026-01-31T12:00"):
        Since().convert(text, None, None)
