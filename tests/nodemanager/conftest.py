"""Stores of the node manager: the one in memory, and one on each DBMS."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Select, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PresenceLock, presence_lock
from orthia.nodemanager.locks import server_lock
from orthia.nodemanager.locks.abc import NodeManagerStore
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.conftest import EVERY_DBMS, Servers
from tests.support.memory_store import MemoryNodeManagerStore
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer
from tests.support.waiting import wait_until


class ManualClock:
    """A clock the test moves, in seconds."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Read the clock."""
        return self.now


class StuckConsole(logging.Handler):
    """A terminal that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()
        self.waiting: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Wait for a reader."""
        self.waiting.append(record.getMessage())
        self.read.wait(250)


@dataclass
class StoreUnderTest:
    """A store, and how its time passes."""

    store: NodeManagerStore
    clock: ManualClock | None
    database: Database | None = None
    settings: DatabaseStoreSettings | None = None

    def let_expire(self, lock: Lock = Lock.LIVE) -> None:
        """Let time pass until ``lock`` has expired; it was taken for a second at most."""
        if self.clock is not None:
            self.clock.now += 1.001
        wait_until(lambda: not self.store.lock_status(lock).is_held, what="the lock expires")

    @contextmanager
    def row_locked(self, row: int) -> Iterator[None]:
        """Keep a row of NODE_MANAGER_STORE locked by another session; on a server."""
        assert self.database is not None
        with self.database.engine.begin() as connection:
            connection.execute(self._of_row(row).with_for_update()).one()
            yield

    def is_locked(self, row: int) -> bool:
        """Return whether somebody has the row locked, shared or not; on a server."""
        assert self.database is not None
        free = self._of_row(row).with_for_update(skip_locked=True)
        with self.database.engine.begin() as connection:
            return connection.execute(free).first() is None

    def _of_row(self, row: int) -> Select[tuple[int]]:
        assert isinstance(self.store, SqlNodeManagerStore)
        c = self.store._table.c
        return select(c.id).where(c.id == row)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test of a shared directory fail for a disk that takes seconds to sync a file."""
    monkeypatch.setattr(server_lock, "_PATIENCE_SECONDS", 120.0)


@pytest.fixture(params=["memory", *EVERY_DBMS])
def subject(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[StoreUnderTest]:
    """Give an empty store of each kind."""
    if request.param == "memory":
        clock = ManualClock()
        yield StoreUnderTest(MemoryNodeManagerStore(clock), clock)
        return
    server = SqliteServer(tmp_path) if request.param == "sqlite" else shared_servers(request.param)
    settings = server.settings(server.create_database())
    database = Database.from_settings(settings)
    make_tables(database, settings)
    store = SqlNodeManagerStore(database, settings, database.engine)
    yield StoreUnderTest(store, None, database, settings)
    database.dispose()


@pytest.fixture
def store(subject: StoreUnderTest) -> NodeManagerStore:
    """Give the store of ``subject``."""
    return subject.store


PRESENCE = "test-presence"
PresenceLocks = Callable[[], PresenceLock]


@pytest.fixture
def locks(store_settings: DatabaseStoreSettings) -> Iterator[PresenceLocks]:
    """Give a maker of presence locks of one name, each with a session of its own."""
    databases: list[Database] = []
    made: list[PresenceLock] = []

    def make() -> PresenceLock:
        databases.append(Database.from_settings(store_settings))
        made.append(presence_lock(databases[-1], PRESENCE, query_timeout_ms=600_000))
        return made[-1]

    yield make
    for lock in made:
        lock.release()
    for database in databases:
        database.dispose()
