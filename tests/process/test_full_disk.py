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
from xml.sax.saxutils import escape

import pytest

from orthia.broker.client.connection import BrokerAddress, BrokerRefused, Connection
from orthia.config.errors import OrthiaError
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.database.sqlite_reserve import LEASE_RESERVE_BYTES, SpaceReserve
from orthia.journal.sql.journal import open_journal
from orthia.nodemanager.locks.lease import Lock, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.conftest import Servers
from tests.process.file_nodes import FileNodeProcess, file_cluster
from tests.process.nodes import cluster, status_of
from tests.support.schema import make_tables
from tests.support.servers import PASSWORD, SERVER_NAMES, SERVER_PROCESSES, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

QUEUE = "/queue/orders"
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


class Client:
    """A client that sends one message after the other, or takes what there is."""

    def __init__(self, port: int) -> None:
        address = BrokerAddress("127.0.0.1", port)
        self._connection = Connection.open(address, timeout_seconds=120, heart_beat_ms=0)
        self._numbers = itertools.count()

    def _receipt(self, command: str, body: bytes = b"", **headers: str) -> None:
        receipt = f"r{next(self._numbers)}"
        self._connection.send(command, headers | {"receipt": receipt}, body)
        frames: list[str] = []

        def came() -> bool:
            frames.extend(
                frame.headers.get("receipt-id", "") for frame in self._connection.exchange(0.1)
            )
            return receipt in frames

        wait_until(came, what=f"the receipt of a {command}")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, body: bytes = BODY) -> None:
        """Send a message; raises BrokerRefused."""
        self._receipt("SEND", body, destination=QUEUE)

    def send_until_refused(self) -> tuple[int, str]:
        """Return how many messages were stored, and why the next was not."""
        for stored in itertools.count():
            try:
                self.send()
            except BrokerRefused as error:
                return stored, str(error)
        raise AssertionError

    def take(self, count: int) -> None:
        """Take and acknowledge so many messages."""
        headers = {"destination": QUEUE, "id": "s", "ack": "client-individual"}
        self._connection.send("SUBSCRIBE", headers)
        taken = 0
        answered = 0

        def all_taken() -> bool:
            nonlocal taken, answered
            for frame in self._connection.exchange(0.1):
                if frame.command == "MESSAGE":
                    taken += 1
                    ack = {"id": frame.headers["ack"], "receipt": f"a{taken}"}
                    self._connection.send("ACK", ack)
                elif frame.command == "RECEIPT":
                    answered += 1
            return answered >= count

        wait_until(all_taken, what=f"{count} messages are acknowledged")


def goes_on_and_comes_back(node: FileNodeProcess, ballast: Ballast, *, left: int) -> None:
    """Fill the disk by sends, take messages from it, and make room: one and the same node."""
    with Client(node.port) as first:
        first.send()
    ballast.leave(left)
    with Client(node.port) as sender:
        stored, reason = sender.send_until_refused()
    assert "no room left" in reason
    assert "free disk space" in reason
    assert stored > 5
    with Client(node.port) as another, pytest.raises(BrokerRefused, match="no room left"):
        another.send(b"another")
    with Client(node.port) as consumer:
        consumer.take(stored)
    assert node.is_running
    ballast.remove()
    node.wait_log("has room again")
    with Client(node.port) as last:
        last.send()
    assert node.is_running
    assert node.log.count("AMQ221007") + node.log.count("AMQ221010") <= 1


def database_store(settings: DatabaseStoreSettings) -> str:
    """Return the elements of a broker.xml for a database."""
    user = settings.jdbc_user
    login = f"<jdbc-user>{user}</jdbc-user><jdbc-password>{escape(PASSWORD)}</jdbc-password>"
    return (
        "<store><database-store><jdbc-connection-url>"
        f"{escape(settings.jdbc_connection_url.display)}</jdbc-connection-url>"
        f"{login if user else ''}</database-store></store>{NO_QUOTA}"
    )


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
            core = database_store(server.settings(server.create_database()))
            with file_cluster(tmp_path, core) as nodes:
                node = nodes.node(Role.LIVE, "live", policy="")
                node.start().wait_serving()
                goes_on_and_comes_back(node, Ballast(mounted), left=6 * MIB)
        finally:
            server.discard()


def test_a_file_journal_without_room(tmp_path: Path) -> None:
    """What is left of its files is for acknowledgements, which make room."""
    core = "<max-disk-usage>-1</max-disk-usage><journal-file-size>1M</journal-file-size>"
    with disk(32 * MIB) as mounted, file_cluster(tmp_path, core) as nodes:
        node = nodes.node(Role.LIVE, "live", policy="")
        node.url = str(mounted)
        node.start().wait_serving()
        goes_on_and_comes_back(node, Ballast(mounted), left=8 * MIB)


def test_sqlite_without_room(tmp_path: Path) -> None:
    """Its locks are on the same disk: what it needs for them, and to delete, is kept free."""
    with disk(64 * MIB) as mounted:
        url = f"jdbc:sqlite:{mounted / 'orthia.db'}"
        core = (
            "<max-disk-usage>-1</max-disk-usage><store><database-store>"
            f"<jdbc-connection-url>{url}</jdbc-connection-url></database-store></store>"
        )
        with file_cluster(tmp_path, core) as nodes:
            node = nodes.node(Role.LIVE, "live", policy="")
            node.start().wait_serving()
            goes_on_and_comes_back(node, Ballast(mounted), left=8 * MIB)


def test_a_lease_on_sqlite_is_renewed_without_any_room() -> None:
    """Also before anything was given up for that, and whoever else fills what becomes free."""
    with disk(16 * MIB) as mounted:
        settings = DatabaseStoreSettings(
            jdbc_connection_url=DatabaseUrl.parse(f"jdbc:sqlite:{mounted / 'orthia.db'}")
        )
        database = Database.from_settings(settings)
        make_tables(database, settings)
        engine = database.dedicated_engine("live-lock", query_timeout_ms=10_000)
        store = SqlNodeManagerStore(database, settings, engine)
        acquired = store.try_acquire(Lock.LIVE, "a", 60_000)
        assert acquired is not None
        ballast = Ballast(mounted)
        renewed = 0
        with contextlib.closing(sqlite3.connect(mounted / "orthia.db")) as reader:
            # The log cannot begin anew while somebody reads what was there before it.
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM node_manager_store").fetchone()
            for _ in range(30):
                assert store.renew(Lock.LIVE, "a", acquired.token, 60_000) is not None
                renewed += 1
                ballast.leave(0)
        assert renewed == 30
        ballast.remove()
        assert store.renew(Lock.LIVE, "a", acquired.token, 60_000) is not None
        assert (mounted / "orthia.db-lease-reserve").stat().st_size == LEASE_RESERVE_BYTES
        assert store.release(Lock.LIVE, "a", acquired.token)
        assert not (mounted / "orthia.db-lease-reserve").exists()
        database.dispose()


def test_a_lock_on_sqlite_is_taken_over_without_any_room() -> None:
    """By a backup, whose lease has kept room for that; else a pair stood still."""
    with disk(16 * MIB) as mounted:
        settings = DatabaseStoreSettings(
            jdbc_connection_url=DatabaseUrl.parse(f"jdbc:sqlite:{mounted / 'orthia.db'}")
        )
        database = Database.from_settings(settings)
        make_tables(database, settings)
        engine = database.dedicated_engine("live-lock", query_timeout_ms=10_000)
        store = SqlNodeManagerStore(database, settings, engine)
        backup = store.try_acquire(Lock.BACKUP, "b", 60_000)
        assert backup is not None
        assert store.renew(Lock.BACKUP, "b", backup.token, 60_000) is not None
        with contextlib.closing(sqlite3.connect(mounted / "orthia.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ballast = Ballast(mounted)
        ballast.leave(0)
        live = store.try_acquire(Lock.LIVE, "b", 60_000)
        assert live is not None
        ballast.leave(0)
        assert store.advance_fence("b", live.token)
        ballast.leave(0)
        assert store.write_state_as_live(State.LIVE, "b", live.token)
        database.dispose()


def test_a_journal_on_sqlite_is_opened_without_any_room() -> None:
    """A node that died kept room for that: its successor can deliver what is stored."""
    with disk(32 * MIB) as mounted:
        settings = DatabaseStoreSettings(
            jdbc_connection_url=DatabaseUrl.parse(f"jdbc:sqlite:{mounted / 'orthia.db'}")
        )
        database = Database.from_settings(settings)
        make_tables(database, settings)
        assert SpaceReserve(str(mounted / "orthia.db")).hold()
        with contextlib.closing(sqlite3.connect(mounted / "orthia.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        Ballast(mounted).leave(0)
        failures: list[OrthiaError] = []
        journal = open_journal(
            database,
            settings,
            token=0,
            still_valid=lambda: True,
            post=lambda callback: callback(),
            on_failure=failures.append,
        )
        assert journal.close(drain=True)
        assert not failures
        database.dispose()


def test_sends_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    """At max-disk-usage; who empties the queue makes room, though the file gets no smaller."""
    with (
        disk(128 * MIB) as mounted,
        cluster(f"sqlite:///{mounted / 'orthia.db'}", tmp_path) as nodes,
    ):
        node = nodes.live().wait_serving()
        with Client(node.port) as sender:
            stored, reason = sender.send_until_refused()
        assert "beyond max-disk-usage 90" in reason
        assert str(mounted) in reason
        wait_until(
            lambda: status_of(node.url)["sends_refused_by"] == "disk", what="the status says so"
        )
        status = os.statvfs(mounted)
        assert status.f_bavail > status.f_blocks * 0.02
        with Client(node.port) as consumer:
            consumer.take(stored)
        node.wait_log("again: accepting messages")
        wait_until(
            lambda: status_of(node.url)["sends_refused_by"] is None, what="the status says so"
        )
        with Client(node.port) as last:
            last.send()
        assert node.is_running
