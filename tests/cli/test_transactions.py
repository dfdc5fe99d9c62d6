"""``orthia data transactions``: an operator decides what a transaction manager left open."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.journal import Unit
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from orthia.migrations import upgrade
from orthia.nodemanager import Lock
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lock_directory import LockDirectory
from orthia.nodemanager.locks.server_lock import ServerLock
from orthia.nodemanager.locks.shared_file import SharedFileLock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.cli.conftest import Run
from tests.journal.support import QUEUE, FileJournalStore, JournalStore, SqlJournalStore, payload

XID = Xid(1, b"\x0a", b"\x0b")


@pytest.fixture(params=["file", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    """Give each kind of store."""
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[JournalStore]:
    """Give a store with a transaction in doubt that sends one message."""
    if kind == "file":
        made: JournalStore = FileJournalStore(tmp_path)
    else:
        url = f"jdbc:sqlite:{tmp_path / 'orthia.db'}"
        settings = DatabaseStoreSettings(DatabaseUrl.parse(url))
        database = Database.from_settings(settings)
        upgrade(database, settings)
        database.dispose()
        made = SqlJournalStore(settings)
    journal = made.open()
    unit = Unit()
    unit.add_message([QUEUE], payload("prepared"))
    done: list[bool] = []
    XaTransactions(journal).prepare(XID, unit, lambda: done.append(True))
    made.loop.run_until(lambda: done, "the prepare")
    assert journal.close(drain=True)
    yield made
    made.close()


@pytest.fixture
def broker_xml(store: JournalStore, tmp_path: Path) -> Path:
    """Give the broker.xml of the store."""
    if isinstance(store, FileJournalStore):
        inner = f"""
        <journal-directory>{store.settings.journal_directory}</journal-directory>
        <bindings-directory>{store.settings.bindings_directory}</bindings-directory>
        <journal-type>NIO</journal-type>"""
    else:
        inner = f"""<store><database-store>
        <jdbc-connection-url>jdbc:sqlite:{tmp_path / "orthia.db"}</jdbc-connection-url>
        </database-store></store>"""
    path = tmp_path / "broker.xml"
    path.write_text(
        f'<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">{inner}'
        "</core></configuration>"
    )
    return path


EITHER = pytest.mark.parametrize("words", [("data", "transactions"), ("transactions",)])
"""The command for stopped nodes, and the one for a live node, where none runs."""


def listed(
    run: Run, broker_xml: Path, words: tuple[str, ...] = ("data", "transactions")
) -> list[str]:
    """Return the names of the transactions in doubt."""
    result = run(*words, "list", "--json", "--config", broker_xml)
    assert result.exit_code == 0, result.output
    return [one["transaction"] for one in json.loads(result.stdout)]


def bodies(store: JournalStore) -> list[str]:
    """Return what is in the queue for the next live node."""
    store.advance_fence(99)
    return store.bodies(store.open(token=99))


@EITHER
def test_an_operator_commits(
    run: Run, store: JournalStore, broker_xml: Path, words: tuple[str, ...]
) -> None:
    """It is listed, committed by its name, listed no more, and its message is in the queue."""
    yes = () if words[0] == "data" else ("--yes",)
    assert listed(run, broker_xml, words) == ["1:0a:0b"]
    result = run(*words, "commit", "1:0a:0b", *yes, "--config", broker_xml)
    assert (result.exit_code, result.stdout) == (0, "committed 1:0a:0b\n"), result.output
    assert listed(run, broker_xml, words) == []
    assert bodies(store) == ["prepared"]


def test_an_operator_rolls_back(run: Run, store: JournalStore, broker_xml: Path) -> None:
    """It is listed no more and nothing is in the queue."""
    assert run("data", "transactions", "rollback", "1:0a:0b", "--config", broker_xml).exit_code == 0
    assert listed(run, broker_xml) == []
    assert bodies(store) == []


def test_what_is_not_in_doubt_is_refused(run: Run, store: JournalStore, broker_xml: Path) -> None:
    """A wrong name is an error that says so, and changes nothing."""
    result = run("data", "transactions", "commit", "2::", "--config", broker_xml)
    assert result.exit_code == 64
    assert "transaction 2:: is not in doubt" in result.stderr
    result = run("data", "transactions", "commit", "nonsense", "--config", broker_xml)
    assert result.exit_code == 64
    assert "FORMAT:GLOBAL:BRANCH" in result.stderr
    assert listed(run, broker_xml) == ["1:0a:0b"]


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("at", [8, 1_000_000])
def test_damage_that_may_be_a_transaction_is_not_passed_over(
    at: int, run: Run, store: JournalStore, broker_xml: Path
) -> None:
    """A list that may lack one is not shown, whether its record or what it stored is damaged."""
    assert isinstance(store, FileJournalStore)
    store.close()
    (path, *_) = sorted(store.settings.bindings_directory.glob("*.bindings"))
    found = path.read_bytes().find(b"prepared")
    with path.open("r+b") as file:
        file.seek(1024 + at if at < found else found)
        file.write(b"????")
    result = run("data", "transactions", "list", "--config", broker_xml)
    assert (result.exit_code, result.stdout) == (74, ""), result.stderr


def test_a_live_node_is_not_disturbed(run: Run, store: JournalStore, broker_xml: Path) -> None:
    """While a node holds the live lock nothing is resolved."""
    if isinstance(store, FileJournalStore):
        lock = ServerLock(store.settings.journal_directory)
        assert lock.try_acquire(Lock.LIVE, "node")
    else:
        assert isinstance(store, SqlJournalStore)
        locks = SqlNodeManagerStore(store.database, store.settings, store.database.engine)
        assert locks.try_acquire(Lock.LIVE, "node", 600_000)
    result = run("data", "transactions", "commit", "1:0a:0b", "--config", broker_xml)
    assert result.exit_code == 75
    assert "a node is live" in result.stderr
    result = run("transactions", "rollback", "1:0a:0b", "--yes", "--config", broker_xml)
    assert (result.exit_code, "a node is live" in result.stderr) == (75, True), result.output
    if isinstance(store, FileJournalStore):
        lock.close()
    assert listed(run, broker_xml) == ["1:0a:0b"]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_node_that_never_renews_its_row_is_not_disturbed(
    run: Run, store: JournalStore, broker_xml: Path, tmp_path: Path
) -> None:
    """lockKeepAlivePeriod 0: its row expires while it lives, and its lock file says so."""
    assert isinstance(store, SqlJournalStore)
    (tmp_path / "locks").mkdir()
    broker_xml.write_text(
        broker_xml.read_text().replace(
            "</database-store>",
            '<locker xmlns="urn:orthia"><shared-file-locker lockKeepAlivePeriod="0"'
            f' directory="{tmp_path / "locks"}"/></locker></database-store>',
        )
    )
    holder = HolderId.new("node", crash_detection=False, kind="shared-file-locker")
    rows = SqlNodeManagerStore(store.database, store.settings, store.database.engine)
    assert rows.try_acquire(Lock.LIVE, holder, -5_000)
    file = SharedFileLock(LockDirectory(tmp_path / "locks"), Lock.LIVE, holder)
    assert file.try_acquire()
    result = run("data", "transactions", "commit", "1:0a:0b", "--config", broker_xml)
    assert result.exit_code == 75
    assert "a node is live" in result.stderr
    shown = json.loads(run("status", "--json", "--config", broker_xml).stdout)["live"]
    assert (shown["held"], shown["expires_in_seconds"]) == (True, None)
    url = store.settings.jdbc_connection_url.display
    without_locker = run("status", "--url", url)
    assert "still holds the live lock cannot be told" in without_locker.stderr
    assert "expired" in without_locker.stdout
    assert listed(run, broker_xml) == ["1:0a:0b"]
    file.release()
    assert run("data", "transactions", "commit", "1:0a:0b", "--config", broker_xml).exit_code == 0
    assert listed(run, broker_xml) == []


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("where", ["database", "directory"])
def test_locks_are_looked_for_where_they_are(
    where: str, run: Run, store: JournalStore, broker_xml: Path, tmp_path: Path
) -> None:
    """A live node of a file journal is found by its lock in a database or in another directory."""
    assert isinstance(store, FileJournalStore)
    url = f"jdbc:sqlite:{tmp_path / 'locks.db'}"
    (tmp_path / "locks").mkdir()
    locker = {
        "database": f'<lease-database-locker lockKeepAlivePeriod="2000" jdbcConnectionUrl="{url}"'
        "/>",
        "directory": f'<shared-file-locker directory="{tmp_path / "locks"}"/>',
    }[where]
    broker_xml.write_text(
        broker_xml.read_text().replace(
            "</core>",
            f'<store><file-store><locker xmlns="urn:orthia">{locker}</locker></file-store></store>'
            "</core>",
        )
    )
    commit = ("data", "transactions", "commit", "1:0a:0b", "--config", broker_xml)
    with contextlib.ExitStack() as stack:
        if where == "database":
            settings = DatabaseStoreSettings(DatabaseUrl.parse(url))
            database = Database.from_settings(settings)
            stack.callback(database.dispose)
            upgrade(database, settings)
            locks = SqlNodeManagerStore(database, settings, database.engine)
            acquired = locks.try_acquire(Lock.LIVE, "node", 600_000)
            assert acquired is not None
            assert run(*commit).exit_code == 75
            locks.release(Lock.LIVE, "node", acquired.token)
            assert run("failover-log", "--config", broker_xml).exit_code == 0
        else:
            with contextlib.closing(ServerLock(tmp_path / "locks")) as lock:
                assert lock.try_acquire(Lock.LIVE, "node")
                assert run(*commit).exit_code == 75
    assert run(*commit).exit_code == 0
    assert listed(run, broker_xml) == []
    assert bodies(store) == ["prepared"]
