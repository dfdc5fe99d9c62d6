"""Real disks that are full: of a database server, of SQLite and of the file journal.

A disk is a tmpfs, which only root can mount; another user's tests leave these out.
"""

import contextlib
import itertools
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from orthia.broker.client.connection import BrokerRefused
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.database.sqlite_reserve import LEASE_RESERVE_BYTES, SpaceReserve
from orthia.journal.sql.journal import open_journal
from orthia.nodemanager.locks.lease import Lock, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.conftest import Servers
from tests.process.clients import QUEUE, Client, connecting
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import cluster, status_of
from tests.support.schema import make_tables
from tests.support.servers import SERVER_NAMES, SERVER_PROCESSES, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

MIB = 1024 * 1024
BODY = b"x" * 3_000
"""Small enough to be in its row: MariaDB ends itself when it has no room for what is beside it."""
NO_QUOTA = '<max-store-bytes xmlns="urn:orthia">-1</max-store-bytes>'


@contextlib.contextmanager
def disk(size: int) -> Iterator[Path]:
    """Give a disk of its own of so many bytes, where servers with users of their own come to."""
    directory = Path(tempfile.mkdtemp(prefix="orthia-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        directory.rmdir()
        pytest.skip("nobody but root can mount a disk")
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


class Ballast:
    """A file that fills a disk up, and can be removed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def leave(self, size: int) -> None:
        """Take all of the disk but so many bytes."""
        status = os.statvfs(self._path.parent)
        with self._path.open("ab") as file:
            file.write(bytes(max(0, status.f_bavail * status.f_frsize - size)))

    def remove(self) -> None:
        """Give it back."""
        self._path.unlink()


def send_until_refused(client: Client) -> tuple[int, str]:
    """Return how many messages were stored, and why the next was not."""
    for stored in itertools.count():
        try:
            client.send(QUEUE, BODY)
        except BrokerRefused as error:
            return stored, str(error)
    raise AssertionError


def goes_on_and_comes_back(nodes: FileCluster, ballast: Ballast, *, left: int) -> None:
    """Fill the disk by sends, take messages from it, and make room: one and the same node."""
    node = nodes.alone()
    with connecting() as connect:
        connect(node).send(QUEUE, BODY)
        ballast.leave(left)
        stored, reason = send_until_refused(connect(node))
        assert "no room left" in reason
        assert "free disk space" in reason
        assert stored > 5
        with pytest.raises(BrokerRefused, match="no room left"):
            connect(node).send(QUEUE, b"another")
        connect(node).takes(stored + 1, QUEUE)
        assert node.is_running
        ballast.remove()
        node.wait_log("has room again")
        connect(node).send(QUEUE, BODY)
    assert node.is_running
    assert node.log.count("AMQ221007") + node.log.count("AMQ221010") <= 1


@pytest.mark.parametrize("dbms", SERVER_NAMES)
def test_a_database_server_without_room(
    dbms: str, templates: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are refused, what is stored is delivered and acknowledged, the lease is renewed."""
    with disk(512 * MIB) as mounted, disk(512 * MIB) as other:
        template = templates(dbms)
        monkeypatch.setattr(ServerProcess, "place", mounted)
        server = SERVER_PROCESSES[dbms](template=template)
        monkeypatch.undo()
        # As docs/limits.md says: a server that cannot write its log ends itself.
        if dbms == "postgresql":
            subprocess.run(["mv", str(server.data / "pg_wal"), str(other)], check=True)
            (server.data / "pg_wal").symlink_to(other / "pg_wal")
            # And a checkpoint on a full disk ends all its sessions; by default one in five minutes.
            server.options.extend(["-c", "checkpoint_timeout=1d"])
        else:
            subprocess.run(["chown", "--reference", str(server.data), str(other)], check=True)
            of_mysql = [*server.data.glob("#innodb_redo")]
            logs = of_mysql or [*server.data.glob("ib_logfile*")]
            subprocess.run(["mv", *logs, str(other)], check=True)
            server.options.append(f"--innodb-log-group-home-dir={other}")
            if of_mysql:
                server.options.append(f"--log-bin={other}/binlog")
        try:
            server.start()
            settings = server.settings(server.create_database())
            core = store(tmp_path, settings, "lease") + NO_QUOTA
            with file_cluster(tmp_path, core) as nodes:
                goes_on_and_comes_back(nodes, Ballast(mounted), left=6 * MIB)
        finally:
            server.discard()


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_disk_of_a_node_without_room(kind: str, tmp_path: Path) -> None:
    """Locks and acknowledgements are on the same disk: what they need is kept free."""
    with disk(64 * MIB) as mounted:
        if kind == "files":
            (tmp_path / "shared").symlink_to(mounted)
            of_store = "<journal-file-size>1M</journal-file-size>"
        else:
            of_store = store(tmp_path, sqlite_on(mounted), "lease")
        core = f"<max-disk-usage>-1</max-disk-usage>{of_store}"
        with file_cluster(tmp_path, core) as nodes:
            goes_on_and_comes_back(nodes, Ballast(mounted), left=8 * MIB)


def sqlite_on(mounted: Path) -> DatabaseStoreSettings:
    """Return settings of a database of SQLite on a disk."""
    return DatabaseStoreSettings(DatabaseUrl.parse(f"jdbc:sqlite:{mounted / 'orthia.db'}"))


class Locks(NamedTuple):
    """A database of SQLite on a disk, and the store of its locks."""

    mounted: Path
    settings: DatabaseStoreSettings
    database: Database
    store: SqlNodeManagerStore

    def fill(self) -> None:
        """Write the log into the database, and leave no byte."""
        with contextlib.closing(sqlite3.connect(self.mounted / "orthia.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        Ballast(self.mounted).leave(0)


@pytest.fixture
def locks() -> Iterator[Locks]:
    """Give the tables on a disk of their own."""
    with disk(32 * MIB) as mounted:
        settings = sqlite_on(mounted)
        database = Database.from_settings(settings)
        make_tables(database, settings)
        engine = database.dedicated_engine("live-lock", query_timeout_ms=10_000)
        yield Locks(mounted, settings, database, SqlNodeManagerStore(database, settings, engine))
        database.dispose()


def test_a_lease_on_sqlite_is_renewed_without_any_room(locks: Locks) -> None:
    """Also before anything was given up for that, and whoever else fills what becomes free."""
    store, mounted, ballast = locks.store, locks.mounted, Ballast(locks.mounted)
    acquired = store.try_acquire(Lock.LIVE, "a", 60_000)
    assert acquired is not None
    with contextlib.closing(sqlite3.connect(mounted / "orthia.db")) as reader:
        # The log cannot begin anew while somebody reads what was there before it.
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM node_manager_store").fetchone()
        for _ in range(30):
            assert store.renew(Lock.LIVE, "a", acquired.token, 60_000) is not None
            ballast.leave(0)
    ballast.remove()
    assert store.renew(Lock.LIVE, "a", acquired.token, 60_000) is not None
    assert (mounted / "orthia.db-lease-reserve").stat().st_size == LEASE_RESERVE_BYTES
    assert store.release(Lock.LIVE, "a", acquired.token)
    assert not (mounted / "orthia.db-lease-reserve").exists()


def test_a_lock_on_sqlite_is_taken_over_without_any_room(locks: Locks) -> None:
    """By a backup, whose lease has kept room for that; else a pair stood still."""
    store, ballast = locks.store, Ballast(locks.mounted)
    backup = store.try_acquire(Lock.BACKUP, "b", 60_000)
    assert backup is not None
    assert store.renew(Lock.BACKUP, "b", backup.token, 60_000) is not None
    locks.fill()
    live = store.try_acquire(Lock.LIVE, "b", 60_000)
    assert live is not None
    ballast.leave(0)
    assert store.advance_fence("b", live.token)
    ballast.leave(0)
    assert store.write_state_as_live(State.LIVE, "b", live.token)


def test_a_journal_on_sqlite_is_opened_without_any_room(locks: Locks) -> None:
    """A node that died kept room for that: its successor can deliver what is stored."""
    assert SpaceReserve(str(locks.mounted / "orthia.db")).hold()
    locks.fill()
    failures: list[OrthiaError] = []
    journal = open_journal(
        locks.database,
        locks.settings,
        token=0,
        still_valid=lambda: True,
        post=lambda callback: callback(),
        on_failure=failures.append,
    )
    assert journal.close(drain=True)
    assert not failures


def test_sends_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    """At max-disk-usage; who empties the queue makes room, though the file gets no smaller."""
    with (
        disk(128 * MIB) as mounted,
        cluster(f"sqlite:///{mounted / 'orthia.db'}", tmp_path) as nodes,
    ):
        node = nodes.live().wait_serving()
        with connecting() as connect:
            stored, reason = send_until_refused(connect(node))
            assert "beyond max-disk-usage 90" in reason
            assert str(mounted) in reason
            wait_until(
                lambda: status_of(node.url)["sends_refused_by"] == "disk", what="the status says so"
            )
            status = os.statvfs(mounted)
            assert status.f_bavail > status.f_blocks * 0.02
            connect(node).takes(stored, QUEUE)
            node.wait_log("again: accepting messages")
            wait_until(
                lambda: status_of(node.url)["sends_refused_by"] is None, what="the status says so"
            )
            connect(node).send(QUEUE, BODY)
        assert node.is_running
