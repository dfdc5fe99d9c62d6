"""What every locker promises, on whatever keeps the lock and whatever keeps the messages."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, update

from orthia.config.errors import OrthiaError
from orthia.config.lockers import with_locker
from orthia.config.settings import Role
from orthia.config.store_settings import (
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    LeaseDatabaseLockerSettings,
    LockerSettings,
    SharedFileLockerSettings,
)
from orthia.database import Database, StoreUnavailable, db_now_plus_ms, write_transaction
from orthia.nodemanager import (
    Interrupted,
    JdbcNodeManager,
    LockAcquisitionTimeout,
    LockLost,
    NotHeld,
    jdbc_node_manager,
)
from orthia.nodemanager.events import Event, LiveLockObtained, WaitingForBackupLock
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from orthia.nodemanager.locks.lease import Lock, NodeManagerStatus, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.locks.status import DatabaseLocks, LockUnknown
from orthia.nodemanager.tables import node_manager_store
from tests.conftest import EVERY_DBMS, Servers
from tests.nodemanager.nodes import Manager, Node
from tests.support.schema import make_tables
from tests.support.servers import (
    LAPSING_LEASE_MS,
    LEASE_MS,
    MYSQL_FAMILY,
    ServerProcess,
    SqliteServer,
)
from tests.support.waiting import wait_until

KEEP_ALIVE_MS = 200
COMBINATIONS = [
    *(("lease", dbms) for dbms in EVERY_DBMS),
    *(("database", dbms) for dbms in EVERY_DBMS if dbms != "sqlite"),
    *(("file", dbms) for dbms in EVERY_DBMS),
    ("file", "directory"),
]
LOCKERS: dict[str, LockerSettings] = {
    "lease": LeaseDatabaseLockerSettings(
        lock_acquire_sleep_interval=LEASE_MS, lock_keep_alive_period=KEEP_ALIVE_MS
    ),
    "database": DatabaseLockerSettings(
        lock_acquire_sleep_interval=50, lock_keep_alive_period=KEEP_ALIVE_MS
    ),
    "file": SharedFileLockerSettings(
        lock_acquire_sleep_interval=50, lock_keep_alive_period=KEEP_ALIVE_MS
    ),
}


@dataclass
class Place:
    """Where the locks of one test are, and how to disturb them."""

    locker: str
    directory: Path
    settings: DatabaseStoreSettings | None = None
    server: ServerProcess | None = None
    newest_token: int = 0
    lease_ms: int = LEASE_MS
    """For how long a node holds a lock of which it gives no sign, where that has an end."""
    nodes: list[Node[Manager]] = field(default_factory=list)
    databases: list[Database] = field(default_factory=list)

    def node(self, name: str, role: Role = Role.LIVE, **changes: Any) -> Node[Manager]:
        """Make a node; ``changes`` are properties of its locker."""
        events: list[Event] = []
        locker = self.locker_with(**changes)
        self.nodes.append(Node(self._manager(name, role, locker, events), events))
        return self.nodes[-1]

    def locker_with(self, **changes: Any) -> LockerSettings:
        """Return the locker with other properties."""
        locker = replace(LOCKERS[self.locker], **changes)
        if isinstance(locker, LeaseDatabaseLockerSettings):
            locker = replace(locker, lock_acquire_sleep_interval=self.lease_ms)
        if isinstance(locker, SharedFileLockerSettings):
            locker = replace(locker, directory=self.directory)
        return locker

    def _manager(
        self, name: str, role: Role, locker: LockerSettings, events: list[Event]
    ) -> Manager:
        if self.settings is None:
            assert isinstance(locker, SharedFileLockerSettings)
            return FileLockNodeManager(
                self.directory,
                name=name,
                role=role,
                locker=locker,
                newest_token=lambda: self.newest_token,
                listener=events.append,
            )
        settings = replace(self.settings, jdbc_lock_expiration=self.lease_ms, locker=locker)
        settings = with_locker(settings)
        self.databases.append(Database.from_settings(settings))
        return jdbc_node_manager(
            settings,
            name=name,
            role=role,
            listener=events.append,
            database=self.databases[-1],
            newest_token=lambda: self.newest_token,
        )

    @property
    def path(self) -> Path:
        """The file of the live lock."""
        return self.directory / ("serverlock.1" if self.settings is None else "lock")

    def table_says(self) -> NodeManagerStatus:
        """Read NODE_MANAGER_STORE itself."""
        assert self.settings is not None
        database = self.databases[0]
        return SqlNodeManagerStore(database, self.settings, database.engine).status()

    def close(self) -> None:
        """End every node."""
        for node in self.nodes:
            node.close()
        for database in self.databases:
            database.dispose()


@pytest.fixture(params=COMBINATIONS, ids="-on-".join)
def place(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[Place]:
    """Give each locker on everything it goes with."""
    locker, store = request.param
    directory = tmp_path / "locks"
    directory.mkdir()
    made = Place(locker, directory)
    if store != "directory":
        server = SqliteServer(tmp_path) if store == "sqlite" else shared_servers(store)
        made.settings = server.settings(server.create_database())
        made.server = server if isinstance(server, ServerProcess) else None
        database = Database.from_settings(made.settings)
        make_tables(database, made.settings)
        made.databases.append(database)
    yield made
    made.close()
    if made.settings is not None:
        name = str(made.settings.jdbc_connection_url.sqlalchemy_url.database)
        wait_until(lambda: not server.connections(name), what="no connection is left behind")


def only(*found: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test on these combinations only."""
    return pytest.mark.parametrize("place", found, indirect=True, ids="-on-".join)


def of(locker: str) -> list[tuple[str, str]]:
    """Return the combinations of one locker."""
    return [one for one in COMBINATIONS if one[0] == locker]


def test_one_node_is_live(place: Place) -> None:
    """It holds the lock under a token; another does not get it while it does."""
    live = place.node("a")
    with pytest.raises(NotHeld):
        _ = live.manager.fencing_token
    assert not live.manager.is_lease_valid()
    token = live.go_live()
    assert token >= 1
    assert live.manager.is_lease_valid()
    wait_until(live.manager.may_deliver, what="deliveries are allowed")  # a renewal may be late
    status = live.manager.status()
    assert (status.state, status.live.holder_id) == (State.LIVE, live.manager.holder_id)
    assert (status.live.is_held, status.live.token) == (True, token)
    assert status.node_id == live.manager.read_node_id()
    remaining = live.manager.lease_seconds_remaining()
    assert remaining is None or remaining > 0
    other = place.node("b", fail_if_locked=True)
    with pytest.raises(LockAcquisitionTimeout, match=r"failIfLocked is true.*held by a@"):
        other.manager.start()


@contextmanager
def standstill(place: Place) -> Iterator[Callable[[], float]]:
    """Give for how long at most this process, or its database, has stood still since."""
    looked, longest, over = time.monotonic(), 0.0, threading.Event()

    def measure() -> float:
        return max(time.monotonic() - looked, longest)

    def look() -> None:
        nonlocal looked, longest
        while not over.wait(0.05):
            if place.databases:
                with suppress(StoreUnavailable):
                    place.databases[0].server_now()
            longest = measure()
            looked = time.monotonic()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield measure
    finally:
        over.set()
        looking.join()


@only(
    *(("lease", dbms) for dbms in MYSQL_FAMILY),
    ("database", "postgresql"),
    ("file", "sqlite"),
    ("file", "directory"),
)
def test_the_lock_outlives_its_periods(place: Place) -> None:
    """It is kept alive for longer than it lasts without, and stays under its token."""
    place.lease_ms = 6_000
    for _ in range(10):
        live, backup = place.node("a"), place.node("b", Role.BACKUP)
        with standstill(place) as longest_seconds:
            try:
                token = live.go_live()
                future = backup.wait_as_backup()
                threading.Event().wait(1.2 * place.lease_ms / 1000)
                assert live.manager.is_lease_valid()
                assert live.lost == []
                assert live.manager.fencing_token == token
                assert not future.done()
            except (AssertionError, OrthiaError):
                # A lease ends on a machine that stands still, as it should: another try.
                if longest_seconds() < 1:
                    raise
            else:
                return
        backup.close()
        live.close()
    pytest.fail("this machine stood still each time")


@only(*of("database"), *(one for one in of("file") if one[1] != "directory"))
def test_a_command_sees_and_leaves_a_lock_that_is_never_renewed(place: Place) -> None:
    """lockKeepAlivePeriod 0: its row has expired, and it is held until its process ends."""
    live = place.node("a", lock_keep_alive_period=0)
    token = live.go_live()
    assert place.settings is not None
    table = node_manager_store(
        MetaData(), place.settings.node_manager_store_table_name, place.databases[0].dialect
    )
    lapse = update(table).where(table.c.id == 1).values(holder_expiration_time=db_now_plus_ms(-1))
    with write_transaction(place.databases[0].engine, "lapse") as connection:
        connection.execute(lapse)
    assert not place.table_says().live.is_held
    settings = replace(place.settings, locker=place.locker_with(lock_keep_alive_period=0))
    with DatabaseLocks(place.databases[0], settings, "tool") as locks:
        assert locks.read_status().live.expires_in_seconds == math.inf
        assert locks.try_acquire_live() is None
        with (
            DatabaseLocks(place.databases[0], place.settings, "astray") as astray,
            pytest.raises(LockUnknown, match=r"a@.* still holds the live lock.*--config"),
        ):
            astray.try_acquire_live()
        live.close()
        wait_until(lambda: not locks.read_status().live.is_held, what="the lock ends with its node")
        lease = locks.try_acquire_live()
        assert lease is not None
        assert lease.token == token + 1
        locks.release(lease)
    assert place.table_says().live.holder_id is None


def test_a_released_lock_goes_to_the_backup_under_a_greater_token(place: Place) -> None:
    """An orderly end with failover; the next backup then moves up."""
    place.lease_ms = 600_000  # by whose end it would not come in time
    live = place.node("a")
    token = live.go_live()
    backup, next_one = place.node("b", Role.BACKUP), place.node("c", Role.BACKUP)
    future = backup.wait_next()
    next_future = next_one.wait_as_backup()
    live.manager.crash_live_server()
    assert (live.manager.is_lease_valid(), live.lost) == (False, [])
    second = future.result(120)
    assert second > token
    backup.manager.release_backup()
    assert not next_future.done()
    wait_until(
        lambda: next_one.manager.is_backup_live() and not next_future.done(), what="c moves up"
    )
    backup.manager.crash_live_server()
    assert next_future.result(120) > second


def test_a_node_that_is_gone_is_replaced(place: Place) -> None:
    """It gave nothing back; the lock ends with what held it, or with its lease."""
    live = place.node("a")
    token = live.go_live()
    backup = place.node("b", Role.BACKUP)
    future = backup.wait_as_backup()
    live.vanish()
    assert future.result(120) > token
    assert backup.manager.read_node_id() == live.manager.read_node_id()
    if place.settings is not None:
        assert place.table_says().fence_token == backup.manager.fencing_token
    with pytest.raises(LockLost):
        live.manager.write_live_state(State.PAUSED)


def test_a_paused_pair_waits_for_its_live_node(place: Place) -> None:
    """State P keeps the backup passive though the lock is free; a live node takes it."""
    live = place.node("a")
    token = live.go_live()
    backup = place.node("b", Role.BACKUP)
    future = backup.wait_next()
    live.manager.pause_live_server()
    assert backup.manager.status().state is State.PAUSED
    again = place.node("a")
    assert again.go_live() > token
    assert not future.done()
    again.manager.crash_live_server()
    assert future.result(120) > token + 1


def test_a_returning_live_node_gets_its_place_back(place: Place) -> None:
    """It asks, again if it is put off; the backup hands over, and is next in line again."""
    place.lease_ms = 600_000  # by whose end it would not come in time
    live, backup = place.node("a"), place.node("b", Role.BACKUP)
    live.go_live()
    taken = backup.wait_next()
    live.manager.crash_live_server()
    taken.result(120)
    assert not backup.manager.is_awaiting_failback()
    returning = place.node("a")
    coming_back = returning.soon(returning.go_live)
    wait_until(backup.manager.is_awaiting_failback, what="failback is asked for")
    for _ in range(2):
        backup.manager.ask_who_waits()
        wait_until(backup.manager.is_awaiting_failback, what="failback is asked for again")
    backup.manager.release_backup()
    backup.manager.crash_live_server()
    token = coming_back.result(120)
    waiting = backup.wait_next()
    assert not waiting.done()
    returning.manager.crash_live_server()
    assert waiting.result(120) > token


def test_waiting_nodes_are_interrupted(place: Place) -> None:
    """Whatever they wait for; one that wanted its place back withdraws that."""
    live, returning = place.node("a"), place.node("b")
    live.go_live()
    coming_back = returning.soon(returning.go_live)
    wait_until(live.manager.is_awaiting_failback, what="failback is asked for")
    first, second = place.node("c", Role.BACKUP), place.node("d", Role.BACKUP)
    waits = [coming_back, first.wait_next(), second.wait_as_backup()]
    second.wait_for(WaitingForBackupLock)
    for node, wait in zip((returning, first, second), waits, strict=True):
        node.manager.interrupt()
        with pytest.raises(Interrupted):
            wait.result(120)
    assert live.manager.status().state is State.LIVE
    live.manager.write_live_state(State.FAILING_BACK)  # as one that was killed leaves it
    live.manager.ask_who_waits()
    assert live.manager.status().state is State.LIVE
    assert live.lost == []


def test_the_token_is_above_that_of_the_journal(place: Place) -> None:
    """A journal outside of the locks' store may have been opened under greater tokens."""
    place.lease_ms = 600_000  # by whose end it would not come in time
    place.newest_token = 41
    live = place.node("a")
    assert live.go_live() == 42
    future = place.node("b", Role.BACKUP).wait_as_backup()
    live.manager.crash_live_server()
    assert future.result(120) == 43


@only(*(one for one in COMBINATIONS if one[1] != "directory"))
def test_the_token_is_committed_before_the_fence_is_advanced(place: Place) -> None:
    """When the lock is said to be obtained, row 1 has the token and the fence an older one."""
    seen: list[tuple[int, int, int]] = []
    live = place.node("a")

    class Witness(list[Event]):
        def append(self, event: Event) -> None:
            if isinstance(event, LiveLockObtained):
                says = place.table_says()
                seen.append((event.token, says.live.token, says.fence_token))

    assert isinstance(live.manager, JdbcNodeManager)
    live.manager.log._listener = Witness().append
    token = live.go_live()
    assert seen == [(token, token, token - 1)]
    assert place.table_says().fence_token == token


def test_without_a_lock_a_second_node_stops_the_first(place: Place) -> None:
    """useLock false: nothing keeps it away, but the token grows and fences the first."""
    first, second = place.node("a", use_lock=False), place.node("b", use_lock=False)
    token = first.go_live()
    assert second.go_live() > token
    if place.settings is not None:
        wait_until(lambda: first.lost, what="the first notices")
        assert "another node took it" in first.lost[0]


@only(*of("database"))
def test_a_session_that_the_database_dropped_is_noticed(place: Place) -> None:
    """At the next keep-alive the node is live no more, though nobody else wants to be."""
    assert place.server is not None
    assert place.settings is not None
    live = place.node("a")
    token = live.go_live()
    name = str(place.settings.jdbc_connection_url.sqlalchemy_url.database)
    server = place.server

    def has_lost() -> bool:
        # Again and again: one that is in a statement at that moment is no idle one.
        server.end_open_transactions(name)
        return bool(live.lost)

    wait_until(has_lost, what="the lost lock is noticed")
    assert not live.manager.is_lease_valid()
    assert place.node("b").go_live() > token


@only(*of("database"))
def test_a_node_that_gives_no_sign_loses_the_lock(place: Place) -> None:
    """The database ends its transaction when the node's own deadline has passed."""
    place.lease_ms = LAPSING_LEASE_MS
    live = place.node("a")
    token = live.go_live()
    assert isinstance(live.manager, JdbcNodeManager)
    live.manager._kept[Lock.LIVE].stop()
    future = place.node("b", Role.BACKUP).wait_as_backup()
    second = future.result(120)
    assert second > token
    assert not live.manager.is_lease_valid()


def disturbances() -> dict[str, Callable[[Path], object]]:
    """Return what a third party may do to a lock file."""
    return {
        "deleted": lambda path: path.unlink(),
        "replaced": lambda path: (
            path.with_name("new").write_text("x") and path.with_name("new").replace(path)
        ),
        "truncated": lambda path: path.open("wb").close(),
        "written to": lambda path: path.write_text("x"),
    }


@pytest.mark.parametrize(
    ("place", "what"),
    [
        *((("file", "sqlite"), what) for what in disturbances()),
        *((("file", "directory"), what) for what in ("deleted", "replaced", "truncated")),
    ],
    indirect=["place"],
)
def test_a_lock_file_that_a_third_party_touched_is_noticed(place: Place, what: str) -> None:
    """The node is live no more; another takes its place under a greater token."""
    live = place.node("a")
    token = live.go_live()
    path = place.path
    if place.settings is None and what == "truncated":
        path = place.directory / "server.lock"
    disturbances()[what](path)
    wait_until(lambda: live.lost, what="the lost lock is noticed")
    assert not live.manager.is_lease_valid()
    live.manager.stop()
    assert place.node("b").go_live() > (0 if path != place.path else token)


@only(*of("lease"))
def test_a_lease_that_another_took_is_noticed(place: Place) -> None:
    """At the next keep-alive: the row is not the node's any more."""
    live = place.node("a")
    live.go_live()
    database = place.databases[0]
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", database.dialect)
    with write_transaction(database.engine, "take it away") as connection:
        connection.execute(
            update(table).where(table.c.id == 1).values(holder_id="x", holder_token=99)
        )
    wait_until(lambda: live.lost, what="the lost lock is noticed")
    assert not live.manager.is_lease_valid()


@only(("lease", "sqlite"))
def test_lockers_of_two_kinds_keep_each_other_away(place: Place) -> None:
    """By mistake, or on the way from one to the other: the row says that the lock is held."""
    live = place.node("a")
    token = live.go_live()
    renewals: list[float] = []
    live.manager.register_renewal_listener(lambda _, seconds: renewals.append(seconds))
    place.locker = "file"
    file_locked = place.node("b", Role.BACKUP)
    future = file_locked.wait_next()
    place.locker = "lease"
    with pytest.raises(LockAcquisitionTimeout):
        place.node("c", fail_if_locked=True).manager.start()
    renewals.clear()
    wait_until(lambda: len(renewals) > 5 or live.lost, what="the backup has looked many times")
    assert live.lost == []
    assert not future.done()
    live.manager.crash_live_server()
    assert future.result(120) > token
    with pytest.raises(LockAcquisitionTimeout, match="held by b@"):
        place.node("d", fail_if_locked=True).manager.start()
