"""What the holders of locks report beside them, in each database and in a directory."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager import jdbc_node_manager
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.report_files import ReportFiles
from orthia.nodemanager.locks.reports import Published, Refusal, Report, ReportStore, SqlReportStore
from orthia.nodemanager.locks.status import DatabaseLocks, DirectoryLocks

UNTIL = datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)
FULL = Report("d" * 36, Refusal.MAX_STORE_BYTES, UNTIL, "https://node-a.example:8161")


def check_that_reports_are_read_as_written(reports: ReportStore) -> None:
    """Beside each lock there is one; the next takes its place."""
    assert reports.read() == {}
    reports.write(Lock.LIVE, "a@host", 3, Report())
    reports.write(Lock.LIVE, "a@host", 3, FULL)
    reports.write(Lock.BACKUP, "b@host", 1, Report("e" * 36))
    assert reports.read() == {
        Lock.LIVE: Published("a@host", 3, FULL),
        Lock.BACKUP: Published("b@host", 1, Report("e" * 36)),
    }


def test_a_database_keeps_reports(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """In rows that are made when they are needed."""
    check_that_reports_are_read_as_written(SqlReportStore(database, migrated_store))


def test_a_directory_keeps_reports(tmp_path: Path) -> None:
    """In files, of which no parts are left behind."""
    check_that_reports_are_read_as_written(ReportFiles(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "serverlock.1.json",
        "serverlock.2.json",
    ]


def test_a_node_that_wakes_does_not_speak_for_its_successor(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """Its token is the older one."""
    reports = SqlReportStore(database, migrated_store)
    reports.write(Lock.LIVE, "b@host", 2, FULL)
    reports.write(Lock.LIVE, "a@host", 1, Report())
    assert reports.read()[Lock.LIVE] == Published("b@host", 2, FULL)


def test_the_reports_shown_are_those_of_the_present_holders(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """What a node reports goes with its lock."""
    manager = jdbc_node_manager(migrated_store, name="a", database=database)
    locks = DatabaseLocks(database, migrated_store, "test")
    try:
        manager.start()
        manager.publish(FULL)
        assert locks.reports() == {}, "it holds no lock"
        manager.start_live_node()
        manager.publish(FULL)
        assert locks.reports() == {Lock.LIVE: FULL}
        manager.publish(Report())
        assert locks.reports() == {Lock.LIVE: Report()}
        manager.crash_live_server()
        assert locks.reports() == {}
    finally:
        locks.close()
        manager.stop()


def test_a_report_that_has_not_changed_is_not_written_again(
    migrated_store: DatabaseStoreSettings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published every second."""
    written: list[Any] = []
    monkeypatch.setattr(SqlReportStore, "write", lambda *given: written.append(given[1:]))
    manager = jdbc_node_manager(migrated_store, name="a", database=database)
    try:
        manager.start()
        manager.start_live_node()
        for _ in range(3):
            manager.publish(FULL)
        assert written == [(Lock.LIVE, manager.holder_id, manager.fencing_token, FULL)]
    finally:
        manager.stop()


def test_nodes_of_a_directory_report_in_files_beside_their_locks(tmp_path: Path) -> None:
    """With a file journal the same is told."""
    with _stopped(lambda: FileLockNodeManager(tmp_path, name="a")) as live:
        live.start()
        live.start_live_node()
        live.publish(FULL)
        with _stopped(lambda: FileLockNodeManager(tmp_path, name="b")) as backup:
            backup.start()
            backup.start_backup()
            backup.publish(Report("e" * 36))
            with DirectoryLocks(tmp_path, "test") as locks:
                assert locks.reports() == {Lock.LIVE: FULL, Lock.BACKUP: Report("e" * 36)}
                live.crash_live_server()
                assert locks.reports() == {Lock.BACKUP: Report("e" * 36)}


@contextmanager
def _stopped(make: Callable[[], FileLockNodeManager]) -> Iterator[FileLockNodeManager]:
    manager = make()
    try:
        yield manager
    finally:
        manager.stop()


def test_a_file_that_is_no_report_says_nothing(tmp_path: Path) -> None:
    """Somebody may have written it."""
    (tmp_path / "serverlock.1.json").write_text("{}")
    (tmp_path / "serverlock.2.json").write_text("[")
    assert ReportFiles(tmp_path).read() == {}


def test_a_letter_of_a_newer_version_is_no_error(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """An older `orthia status` shows the rest."""
    reports = SqlReportStore(database, migrated_store)
    reports.write(Lock.LIVE, "a", 1, Report("d" * 36, failback_put_off_until=UNTIL))
    with database.engine.begin() as connection:
        table = reports._table
        connection.execute(table.update().where(table.c.id == 8).values(state="?"))
    assert reports.read()[Lock.LIVE].report == Report("d" * 36, None, UNTIL)


def test_the_address_of_a_former_holder_is_not_that_of_one_that_publishes_none(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """A node of an older version writes the row of its report alone."""
    reports = SqlReportStore(database, migrated_store)
    reports.write(Lock.LIVE, "a@host", 1, FULL)
    with database.engine.begin() as connection:
        table = reports._table
        theirs = {"holder_id": "b@host", "holder_token": 1}
        connection.execute(table.update().where(table.c.id == 8).values(theirs))
    published = reports.read()[Lock.LIVE]
    assert (published.holder_id, published.report.api_url) == ("b@host", None)


def test_a_file_of_an_older_version_says_no_address(tmp_path: Path) -> None:
    """It says the rest."""
    reports = ReportFiles(tmp_path)
    reports.write(Lock.LIVE, "a@host", 3, FULL)
    file = tmp_path / "serverlock.1.json"
    document = json.loads(file.read_text())
    del document["api_url"]
    file.write_text(json.dumps(document))
    assert reports.read()[Lock.LIVE].report == replace(FULL, api_url=None)
