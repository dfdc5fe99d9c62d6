"""A session that stands still in the middle of a batch does not keep the successor waiting."""

import contextlib
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any

import psycopg2
import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.event import listen

from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect, StoreUnavailable
from orthia.journal.sql.fence import fenced_engine
from orthia.nodemanager import JdbcNodeManager
from orthia.nodemanager.events import FenceBlocked, FenceUnblocked
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.conftest import Servers
from tests.nodemanager.nodes import Node, jdbc_node
from tests.support.schema import make_tables
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES, ServerProcess, SqliteServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

LONG_MS = 3_600_000
"""Whatever a server ends by itself it ends after the test's own time-outs."""

SHARE_LOCK = {
    Dialect.POSTGRESQL: "SELECT 1 FROM node_manager_store WHERE id = 4 FOR SHARE",
    Dialect.MYSQL: "SELECT 1 FROM NODE_MANAGER_STORE WHERE id = 4 LOCK IN SHARE MODE",
}
FROZEN_HOLDER = "frozen:lease-only"
"""Its presence lock tells nothing: a process that is frozen keeps it."""

WEAK = "weak_node"
PASSWORD = "as weak as can be"


@contextmanager
def opened(settings: DatabaseStoreSettings) -> Iterator[Database]:
    """Open a database for a while."""
    database = Database.from_settings(settings)
    try:
        yield database
    finally:
        database.dispose()


class Frozen:
    """A node that froze in the middle of a batch: its session, with the fence locked."""

    def __init__(
        self, settings: DatabaseStoreSettings, token: int, purpose: str = "journal"
    ) -> None:
        self.database = Database.from_settings(settings)
        self._thaw = threading.Event()
        self._engine = fenced_engine(self.database, settings, purpose, token)
        self._proxy = self._engine.raw_connection()
        self._driver: Any = self._proxy.driver_connection
        assert self._driver is not None
        self._cursor: Any = self._driver.cursor()
        self._cursor.execute(SHARE_LOCK[self.database.dialect])
        self._cursor.fetchall()
        self._thread: threading.Thread | None = None

    def in_copy(self) -> None:
        """Stand still after the first bytes of a COPY."""
        frozen = self

        class Stuck(RawIOBase):
            def read(self, _size: int = -1) -> bytes:
                begun.set()
                frozen._thaw.wait(600)
                return b""

        begun = threading.Event()
        self._do(
            lambda: self._cursor.copy_expert(
                "COPY messages FROM STDIN (FORMAT binary)", Stuck(), 8_192
            )
        )
        assert begun.wait(60)

    def in_statement(self) -> None:
        """Be at work in the server for longer than anybody waits."""
        sleep = "SELECT pg_sleep(3600)" if self.is_postgresql else "SELECT SLEEP(3600)"
        self._do(lambda: self._cursor.execute(sleep))
        running = (
            f"SELECT query FROM pg_stat_activity WHERE pid = {self.number}"
            if self.is_postgresql
            else f"SELECT info FROM information_schema.processlist WHERE id = {self.number}"
        )

        def is_at_work() -> bool:
            with self.database.engine.connect() as connection:
                return bool(connection.execute(text(running)).scalar() == sleep)

        wait_until(is_at_work, what="the server is at it")

    def in_packet(self) -> None:
        """Stand still in the middle of sending an INSERT of 8 MiB."""
        begun = b"\x03INSERT INTO MESSAGES VALUES (1, 1"
        self._driver._write_bytes(struct.pack("<I", 8 << 20)[:3] + b"\0" + begun)

    def in_transaction(self) -> None:
        """Stand still between two statements."""

    @property
    def is_postgresql(self) -> bool:
        """Whether this is PostgreSQL's."""
        return self.database.dialect is Dialect.POSTGRESQL

    @property
    def number(self) -> int:
        """The server's number of the session."""
        return int(
            self._driver.info.backend_pid if self.is_postgresql else self._driver.thread_id()
        )

    def is_alive(self) -> bool:
        """Ask the server whether the session is there; for one that is between statements."""
        try:
            self._cursor.execute("SELECT 1")
        except (psycopg2.Error, pymysql.Error):
            return False
        return True

    def close(self) -> None:
        """Thaw, and let the session go."""
        self._thaw.set()
        if self._proxy.is_valid:
            with contextlib.suppress(psycopg2.Error, pymysql.Error, OSError):
                self._proxy.invalidate()
        if self._thread is not None:
            self._thread.join(60)
        self.database.dispose()

    def _do(self, call: Callable[[], object]) -> None:
        def run() -> None:
            with contextlib.suppress(psycopg2.Error, pymysql.Error, OSError):
                call()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()


class Pair:
    """A database whose live node, of token 1, has just given its lock up."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.name = server.create_database()
        self.settings = server.settings(
            self.name, jdbc_network_timeout=LONG_MS, jdbc_lock_expiration=LONG_MS
        )
        self._ended: list[Callable[[], None]] = []
        with opened(self.settings) as database:
            make_tables(database, self.settings)
            store = SqlNodeManagerStore(database, self.settings, database.engine)
            acquired = store.try_acquire(Lock.LIVE, "former", LONG_MS)
            assert acquired is not None
            self.token = acquired.token
            assert store.advance_fence("former", self.token)
            assert store.release(Lock.LIVE, "former", self.token)

    def frozen(self, purpose: str = "journal") -> Frozen:
        """Give the former node's session."""
        frozen = Frozen(self.settings, self.token, purpose)
        self._ended.append(frozen.close)
        return frozen

    def successor(self, **changes: Any) -> "tuple[Node[JdbcNodeManager], Future[int]]":
        """Have the next node go live; the future has its token when it has fenced the journal."""
        successor = jdbc_node(replace(self.settings, **changes), "successor")
        self._ended.append(successor.close)
        return successor, successor.soon(successor.go_live)

    @contextmanager
    def fencing(self) -> Iterator[tuple[SqlNodeManagerStore, int]]:
        """Give the store of a next node that holds the live lock, and its token."""
        with opened(self.settings) as database:
            engine = database.dedicated_engine("fence", query_timeout_ms=LONG_MS)
            store = SqlNodeManagerStore(database, self.settings, engine)
            acquired = store.try_acquire(Lock.LIVE, "next", LONG_MS)
            assert acquired is not None
            yield store, acquired.token

    def close(self) -> None:
        """End all that was made, the last first."""
        for end in reversed(self._ended):
            end()
        self.server.drop_database(self.name)


@pytest.fixture(params=SERVER_NAMES)
def dbms(request: pytest.FixtureRequest) -> str:
    """Give the DBMS that have sessions."""
    name: str = request.param
    return name


@pytest.fixture
def pair(dbms: str, shared_servers: Servers) -> Iterator[Pair]:
    """Give a pair whose live node has gone."""
    made = Pair(shared_servers(dbms))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("dbms", "where"),
    [
        *(("postgresql", where) for where in ("in_copy", "in_statement", "in_transaction")),
        *(
            (dbms, where)
            for dbms in MYSQL_FAMILY
            for where in ("in_packet", "in_statement", "in_transaction")
        ),
    ],
)
def test_whatever_a_frozen_node_was_at_its_session_is_ended(pair: Pair, where: str) -> None:
    """The server would keep it for an hour, or for ever; the successor says what it ended."""
    getattr(pair.frozen(), where)()
    successor, fenced = pair.successor()
    assert fenced.result(120) > pair.token
    # The fence goes on as soon as the session is ended; that is told a moment later.
    successor.wait_for(FenceUnblocked)
    (event,) = successor.said(FenceUnblocked)
    assert "journal" in event.message


def test_a_node_frozen_in_a_batch_is_replaced_when_its_lease_ends(pair: Pair) -> None:
    """No later than one that is frozen between two batches, but for a moment."""
    with opened(pair.settings) as database:
        store = SqlNodeManagerStore(database, pair.settings, database.engine)
        former = store.try_acquire(Lock.LIVE, FROZEN_HOLDER, LONG_MS)
        assert former is not None
        assert store.advance_fence(FROZEN_HOLDER, former.token)
    frozen = Frozen(pair.settings, former.token)
    try:
        frozen.in_copy() if frozen.is_postgresql else frozen.in_packet()
        with opened(pair.settings) as database:
            store = SqlNodeManagerStore(database, pair.settings, database.engine)
            assert store.renew(Lock.LIVE, FROZEN_HOLDER, former.token, 3_000) is not None
        _, fenced = pair.successor()
        # Within two minutes, of the hour that the server would keep the session.
        assert fenced.result(120) > former.token
    finally:
        frozen.close()


@pytest.mark.parametrize("purpose", ["large messages", "history"])
def test_so_are_the_other_sessions_that_lock_the_fence(pair: Pair, purpose: str) -> None:
    """Large bodies and the history's pruner are fenced by the same row."""
    pair.frozen(purpose).in_transaction()
    pair.frozen("journal").in_transaction()
    _, fenced = pair.successor()
    assert fenced.result(120) > pair.token


def test_nobody_ends_a_session_without_the_live_lock(pair: Pair) -> None:
    """A node that lost it while its fence waits leaves alone who is in the way."""
    frozen = pair.frozen()
    with pair.fencing() as (store, token):
        with ThreadPoolExecutor(1) as pool:
            advancing = pool.submit(store.advance_fence, "next", token)
            wait_until(lambda: store._fencing_session is not None, what="the fence waits")
            for holder, under in (("other", token), ("next", token - 1)):
                assert store.end_fence_blockers(holder, under) == []
            assert frozen.is_alive()
            blockers: list[object] = []

            def end() -> bool:
                blockers.extend(store.end_fence_blockers("next", token))
                return bool(blockers)

            wait_until(end, what="the blocker is found")
            assert advancing.result(60)
        assert not frozen.is_alive()


def test_who_waits_for_nobody_ends_nobody(pair: Pair) -> None:
    """A session of the former node that is not in the way at this moment is left alone."""
    with pair.fencing() as (store, token):
        frozen = pair.frozen()
        assert store.end_fence_blockers("next", token) == []
        assert frozen.is_alive()


def test_a_session_of_this_node_is_never_in_the_way(pair: Pair) -> None:
    """A look that comes when the fence is passed already finds no former node."""
    with pair.fencing() as (store, token):
        assert store.advance_fence("next", token)
        with contextlib.closing(Frozen(pair.settings, token)) as own:
            store._fencing_session = own.number + 1
            assert store.end_fence_blockers("next", token) == []
            assert own.is_alive()


def test_a_node_that_comes_back_ends_no_session_of_its_successor(pair: Pair) -> None:
    """It ends its own former one only, though both do the same work."""
    successors = Frozen(pair.settings, pair.token + 1)
    with contextlib.closing(successors), contextlib.closing(pair.frozen()) as former:
        assert successors.is_alive()
        assert former.is_alive()


def test_a_session_that_ends_by_itself_is_no_trouble(pair: Pair) -> None:
    """Between the look at who is in the way and its end, too: nobody is told of anything."""
    frozen = pair.frozen()
    with pair.fencing() as (store, token):
        ends: list[str] = []
        sessions = (
            f"SELECT 1 FROM pg_stat_activity WHERE pid = {frozen.number}"
            if frozen.is_postgresql
            else f"SELECT 1 FROM information_schema.processlist WHERE id = {frozen.number}"
        )

        def is_gone() -> bool:
            return not pair.server._administrate(sessions)

        def end_first(_: object, __: object, statement: str, *___: object) -> None:
            if ("KILL" in statement or "pg_terminate_backend" in statement) and not ends:
                ends.append(statement)
                frozen.close()
                assert advancing.result(60)
                wait_until(is_gone, what="the session is gone")

        listen(store._database.engine, "before_cursor_execute", end_first)
        with ThreadPoolExecutor(1) as pool:
            advancing = pool.submit(store.advance_fence, "next", token)
            blockers: list[object] = []

            def end() -> bool:
                blockers.extend(store.end_fence_blockers("next", token))
                return bool(ends)

            wait_until(end, what="the blocker is found")
        assert blockers == []


@pytest.mark.parametrize("dbms", ["postgresql"])
def test_an_administrators_lock_of_the_table_is_waited_for(pair: Pair) -> None:
    """Only who locks the fence's row is a node's session: maintenance is nobody's to end."""
    with (
        pair.fencing() as (store, token),
        opened(pair.settings) as database,
        database.engine.connect() as administrator,
    ):
        administrator.execute(text("LOCK TABLE node_manager_store IN EXCLUSIVE MODE"))
        with ThreadPoolExecutor(1) as pool:
            advancing = pool.submit(store.advance_fence, "next", token)
            waiting = text("SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND pid = :pid")

            def waits() -> bool:
                pid = store._fencing_session
                with database.engine.connect() as connection:
                    return bool(pid and connection.execute(waiting, {"pid": pid}).scalar())

            try:
                wait_until(waits, what="the fence waits")
                assert store.end_fence_blockers("next", token) == []
                administrator.execute(text("SELECT 1"))
            finally:
                administrator.rollback()
            assert advancing.result(60)


def test_a_session_that_may_not_be_ended_is_named(pair: Pair) -> None:
    """With the right that is missing; when somebody else has ended it, the node goes on."""
    if pair.settings.jdbc_connection_url.dialect is Dialect.POSTGRESQL:
        pair.server._administrate(f"CREATE ROLE {WEAK} LOGIN PASSWORD '{PASSWORD}'")
        with opened(pair.settings) as database, database.engine.begin() as connection:
            connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {WEAK}"))
            connection.execute(text(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {WEAK}"))
        right = "pg_signal_backend"
    else:
        user = f"{WEAK}@'127.0.0.1'"
        pair.server._administrate(f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'")
        pair.server._administrate(f"GRANT ALL ON {pair.name}.* TO {user}")
        right = "CONNECTION ADMIN"
    frozen = pair.frozen()
    successor, fenced = pair.successor(jdbc_user=WEAK, jdbc_password=Secret(PASSWORD))
    try:
        successor.wait_for(FenceBlocked)
        (event, *_) = successor.said(FenceBlocked)
        assert right in event.message
        frozen.close()
        assert fenced.result(120) > pair.token
        assert successor.said(FenceUnblocked) == []
    finally:
        successor.close()
        if pair.settings.jdbc_connection_url.dialect is Dialect.POSTGRESQL:
            with opened(pair.settings) as database, database.engine.begin() as connection:
                connection.execute(text(f"DROP OWNED BY {WEAK}"))
            pair.server._administrate(f"DROP ROLE {WEAK}")
        else:
            pair.server._administrate(f"DROP USER {user}")


def test_a_process_frozen_in_a_batch_holds_an_sqlite_store_until_it_ends(tmp_path: Path) -> None:
    """Nothing can end its transaction but its end; then the next node goes on at once."""
    settings = SqliteServer(tmp_path).settings("store.sqlite", jdbc_network_timeout=1_000)
    with opened(settings) as database:
        make_tables(database, settings)
        store = SqlNodeManagerStore(database, settings, database.engine)
        begin = (
            "import os, signal, sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "connection.execute('BEGIN IMMEDIATE')\n"
            "print('begun', flush=True)\n"
            "os.kill(os.getpid(), signal.SIGSTOP)\n"
        )
        command = [sys.executable, "-c", begin, str(tmp_path / "store.sqlite")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as frozen:
            try:
                assert frozen.stdout is not None
                assert frozen.stdout.readline() == b"begun\n"
                with pytest.raises(StoreUnavailable, match="locked"):
                    store.try_acquire(Lock.LIVE, "next", LONG_MS)
            finally:
                frozen.kill()
        acquired = store.try_acquire(Lock.LIVE, "next", LONG_MS)
        assert acquired is not None
        assert store.advance_fence("next", acquired.token)
