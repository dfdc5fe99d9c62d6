"""The failover log: everywhere at once, and in nobody's way."""

import json
import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, StoreUnavailable, TransientStoreError
from orthia.nodemanager import failover_log
from orthia.nodemanager.events import (
    REGISTRY,
    Event,
    FenceAdvanced,
    LiveActive,
    StartFailed,
    StateWritten,
)
from orthia.nodemanager.failover_log import Entry, FailoverLog, FailoverLogTable, log_file_name
from orthia.nodemanager.locks.lease import State
from orthia.nodemanager.merge import merge, read_files, read_table
from tests.nodemanager.conftest import StuckConsole
from tests.support.schema import make_tables
from tests.support.servers import SERVER_NAMES, ServerProcess
from tests.support.waiting import wait_until


def open_log(
    path: Path | None = None, table: FailoverLogTable | None = None, name: str = "a"
) -> FailoverLog:
    """Open a log."""
    return FailoverLog(
        node_name=name, holder_id=f"{name}@h:1:x", role="live", path=path, table=table
    )


def test_an_event_is_on_the_console_in_the_file_and_in_the_table(
    migrated_store: DatabaseStoreSettings,
    database: Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same event, once when merged."""
    path = tmp_path / "log" / "failover-a.jsonl"
    log = open_log(path, FailoverLogTable(database, migrated_store))
    with caplog.at_level(logging.INFO, logger="orthia.failover"):
        log.emit(LiveActive(7))
        log.emit(FenceAdvanced(7, 12.5))
    log.close(120)
    assert "under token 7" in caplog.text
    assert caplog.records[0].__dict__["code"] == "AMQ221007"
    in_file, (in_table, _) = read_files([path]), read_table(database, migrated_store)
    merged = merge(in_file, in_table)
    assert [entry.event for entry in merged] == ["LiveActive", "FenceAdvanced"]
    assert [entry.event_seq for entry in merged] == [1, 2]
    assert merged[1].details == {"token": 7, "duration_ms": 12.5}
    assert merged[0].token == 7
    assert len(in_file) == len(in_table) == 2


def test_an_entry_survives_its_json() -> None:
    """What is written is what is read."""
    log = open_log()
    entry = log._entry(StateWritten(State.PAUSED))
    log.close(1)
    assert Entry.from_json(entry.to_json()) == entry


BROKEN: list[str | dict[str, object]] = [
    *("", "{}", "[1]", "nonsense", '{"db_time": 5}'),
    {"node_time": "2026-01-01T00:00:00"},
    {"db_time": "2026-01-01T00:00:00"},
    {"event_seq": "1"},
    {"event_seq": None},
    {"holder_id": 7},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_line_that_is_no_entry_is_a_value_error(broken: str | dict[str, object]) -> None:
    """Whatever a disk made of it; nor is one that a merge could not compare and put in order."""
    log = open_log()
    line = json.loads(log._entry(LiveActive(1)).to_json())
    log.close(1)
    said = None if isinstance(broken, str) else "not a failover log line"
    with pytest.raises(ValueError, match=said):
        Entry.from_json(broken if isinstance(broken, str) else json.dumps(line | broken))


@pytest.mark.parametrize("private_server", SERVER_NAMES, indirect=True)
def test_a_hung_database_costs_the_file_nothing(
    private_server: ServerProcess, tmp_path: Path
) -> None:
    """Events reach the file at once, closing is bounded, and the table gets what it can later."""
    settings = private_server.settings(private_server.create_database())
    database = Database.from_settings(settings)
    make_tables(database, settings)
    path = tmp_path / "failover-a.jsonl"
    log = open_log(path, FailoverLogTable(database, settings))
    log.emit(LiveActive(1))
    wait_until(lambda: len(read_table(database, settings)[0]) == 1, what="the first is stored")
    private_server.pause()
    log.emit(LiveActive(2))
    log.emit(LiveActive(3))
    wait_until(
        lambda: path.exists() and path.read_text().count("\n") == 3, what="the file has all three"
    )
    private_server.resume()
    wait_until(lambda: len(read_table(database, settings)[0]) == 3, what="the table has them too")
    log.close(120)
    database.dispose()


class ScriptedTable:
    """A table whose inserts fail with these errors, the last for ever if it ``stays_away``."""

    def __init__(self, *errors: Exception, stays_away: bool = False) -> None:
        self.errors = list(errors)
        self.stays_away = stays_away
        self.asked = threading.Event()
        self.kept: list[int | None] = []

    def insert(self, entry: Entry) -> None:
        """Fail, or keep."""
        self.asked.set()
        if self.errors:
            raise self.errors[0] if self.stays_away else self.errors.pop(0)
        self.kept.append(entry.token)


def test_too_many_events_are_dropped_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue is bounded: emit never waits."""
    monkeypatch.setattr(failover_log, "MAX_WAITING", 5)
    table = ScriptedTable(StoreUnavailable("no answer"), stays_away=True)
    log = open_log(table=table)  # type: ignore[arg-type] # stands in for a database that is away
    log.emit(LiveActive(0))
    assert table.asked.wait(120)
    for token in range(20):
        log.emit(LiveActive(token))
    assert "too many events wait" in caplog.text
    log.close(1)


def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And costs nothing else."""
    (tmp_path / "file").write_text("not a directory")
    log = open_log(tmp_path / "file" / "failover.jsonl")
    for token in range(3):
        log.emit(LiveActive(token))
        wait_until(lambda: not log._sinks[0]._waiting.qsize(), what="it is tried")
    log.close(120)
    assert caplog.text.count("cannot be written") == 1


def test_a_node_without_database_time_is_placed_by_its_own(tmp_path: Path) -> None:
    """Merging never loses an entry for want of a time."""
    first, second = open_log(tmp_path / "a.jsonl"), open_log(tmp_path / "b.jsonl", name="b")
    first.emit(LiveActive(1))
    second.emit(LiveActive(2))
    first.close(120)
    second.close(120)
    merged = merge(read_files([tmp_path / "b.jsonl", tmp_path / "a.jsonl"]))
    assert [entry.token for entry in merged] == [1, 2]


def test_the_events_of_a_node_keep_their_order() -> None:
    """One that reached the table late is not shown after what followed it."""
    log = open_log()
    first, second = log._entry(LiveActive(1)), log._entry(LiveActive(2))
    log.close(1)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    late = replace(first, db_time=noon + timedelta(seconds=5))
    later = replace(second, db_time=noon)
    other = replace(second, holder_id="b", token=3, db_time=noon - timedelta(seconds=1))
    assert [entry.token for entry in merge([later, late, other])] == [3, 1, 2]


@pytest.mark.parametrize(
    ("name", "file"),
    [("live-1", "failover-live-1.jsonl"), ("a/b: c", "failover-a_b__c.jsonl")],
)
def test_the_file_carries_the_nodes_name(name: str, file: str) -> None:
    """As far as a file name can."""
    assert log_file_name(name) == file


def test_every_event_has_a_code_a_text_and_advice() -> None:
    """The reference is made from them."""
    assert len(REGISTRY) > 20
    for code, kind in REGISTRY.items():
        assert code == kind.code
        assert code.startswith(("AMQ22", "ORT1000"))
        assert kind.text
        assert kind.advice
        assert kind.__doc__
        assert issubclass(kind, Event)


def test_a_listener_that_fails_costs_no_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file has it, and the console says whose fault it was."""

    def fail(event: Event) -> None:
        raise RuntimeError(f"a defect at {event.code}")

    path = tmp_path / "a.jsonl"
    log = FailoverLog(node_name="a", holder_id="a", role="live", path=path, listener=fail)
    log.emit(LiveActive(1))
    log.emit(LiveActive(2))
    log.close(120)
    assert [entry.token for entry in read_files([path])] == [1, 2]
    assert "a defect at AMQ221007" in caplog.text


def test_a_listener_without_memory_is_not_only_logged(tmp_path: Path) -> None:
    """The node is to end with the thread that tells it; the event is kept."""

    def fail(_: Event) -> None:
        raise MemoryError

    path = tmp_path / "a.jsonl"
    log = FailoverLog(node_name="a", holder_id="a", role="live", path=path, listener=fail)
    with pytest.raises(MemoryError):
        log.emit(LiveActive(1))
    log.close(120)
    assert [entry.token for entry in read_files([path])] == [1]


def test_a_log_without_memory_ends_with_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the node: what it would go on with may be half done."""
    ended: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: ended.append(what.exc_type))

    def fail(_: object) -> str:
        raise MemoryError

    log = FailoverLog(node_name="a", holder_id="a", role="live", path=tmp_path / "a.jsonl")
    with monkeypatch.context() as without:
        without.setattr(Entry, "to_json", fail)
        log.emit(LiveActive(1))
        wait_until(lambda: ended, what="the end of the thread")
    log.close(1)
    assert ended == [MemoryError]


def test_text_no_file_can_hold_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is no UTF-8 may be in any reason; what comes after is kept as well."""
    # Such a text in the captured log could not be sent from the test's process to the runner's.
    monkeypatch.setattr(logging.getLogger("orthia.failover"), "propagate", False)
    path = tmp_path / "a.jsonl"
    log = open_log(path)
    log.emit(StartFailed("cannot read caf\udce9.xml"))
    log.emit(LiveActive(2))
    log.close(120)
    first, second = read_files([path])
    assert first.message == "failed to start server: cannot read caf\udce9.xml"
    assert second.token == 2


def test_a_deadlock_is_tried_again_and_a_defect_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the table lives on."""
    monkeypatch.setattr(failover_log, "_RETRY_SECONDS", 0.01)
    table = ScriptedTable(TransientStoreError("deadlock"), RuntimeError("a defect"))
    log = open_log(table=table)  # type: ignore[arg-type] # stands in for the database's
    log.emit(LiveActive(1))
    wait_until(lambda: not table.errors, what="it was tried twice")
    log.emit(LiveActive(2))
    wait_until(lambda: table.kept == [2], what="the next one is kept")
    log.close(120)


def test_a_stuck_console_holds_back_only_whoever_shows(tmp_path: Path) -> None:
    """What must not wait records first, and shows last."""
    console, path = StuckConsole(), tmp_path / "a.jsonl"
    logger = logging.getLogger("orthia.failover")
    logger.addHandler(console)
    log = open_log(path)
    try:
        show = log.record(StartFailed("no reason"))
        wait_until(lambda: path.exists() and read_files([path]), what="the file has it")
        shown = threading.Thread(target=show)
        shown.start()
        wait_until(lambda: console.waiting, what="it waits for the console")
    finally:
        console.read.set()
        logger.removeHandler(console)
        log.close(120)
    shown.join(120)
    assert not shown.is_alive()
