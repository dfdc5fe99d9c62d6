"""The life of node managers of a database, beside what test_locker_contract has of all of them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import MetaData, update

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, StoreUnavailable, write_transaction
from orthia.nodemanager import (
    JdbcNodeManager,
    LockAcquisitionTimeout,
    State,
    jdbc_node_manager,
)
from orthia.nodemanager.events import (
    BackupLockObtained,
    CrashDetected,
    Event,
    LeaseLost,
    PresenceLost,
    ReleaseFailed,
    StaleFailback,
    StoreRecovered,
    StoreUnavailableEvent,
    TimersDiffer,
    WaitingForBackupLock,
)
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from tests.nodemanager.nodes import Node, jdbc_node
from tests.support.schema import make_tables
from tests.support.servers import (
    LAPSING_LEASE_MS,
    SERVER_NAMES,
    ServerProcess,
    StoreServer,
)
from tests.support.waiting import wait_until

ON_ONE_STORE = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
"""What a node manager makes of a store is the same for each that keeps the contract."""

Nodes = Callable[..., Node[JdbcNodeManager]]


@pytest.fixture
def nodes(migrated_store: DatabaseStoreSettings) -> Iterator[Nodes]:
    """Give a maker of nodes on one store."""
    made: list[Node[JdbcNodeManager]] = []

    def make(name: str, role: Role = Role.LIVE, **changes: Any) -> Node[JdbcNodeManager]:
        made.append(jdbc_node(replace(migrated_store, **changes), name, role))
        return made[-1]

    yield make
    for node in made:
        node.close()


@ON_ONE_STORE
def test_a_live_node_that_gives_up_on_its_way_is_replaced_at_once(nodes: Nodes) -> None:
    """It leaves no state of a node on its way, for which a backup waits an expiration."""
    live, backup = nodes("a"), nodes("b", Role.BACKUP)
    live.manager.start()
    live.manager.start_live_node()  # and never says that it serves
    taken = backup.wait_as_backup()
    backup.wait_for(WaitingForBackupLock)
    live.manager.give_up_live_server()
    taken.result(120)
    assert backup.said(StaleFailback) == []


@pytest.mark.parametrize("role", Role)
def test_a_crash_is_noticed_long_before_the_lease_runs_out(nodes: Nodes, role: Role) -> None:
    """It has minutes left when the backup, or the node that is started again, becomes live."""
    live = nodes("a", jdbc_lock_expiration=600_000)
    following = nodes("b", role, jdbc_lock_expiration=600_000)
    token = live.go_live()
    if role is Role.BACKUP:
        becomes_live = following.wait_next()
        live.vanish()
    else:
        live.vanish()
        becomes_live = following.soon(following.go_live)
    assert becomes_live.result(120) == token + 1
    assert following.said(CrashDetected)


@ON_ONE_STORE
@pytest.mark.parametrize(("detects", "said"), [(True, CrashDetected), (False, StaleFailback)])
def test_a_live_node_that_dies_on_its_way_does_not_leave_the_pair_down(
    nodes: Nodes, detects: bool, said: type[Event]
) -> None:
    """State F and nobody live: the backup takes over, sooner or later, and says why."""
    # It ends soon where its end is waited for, and never where the crash is noticed.
    timers = {"crash_detection": detects, "jdbc_lock_expiration": 600_000 if detects else 6_000}
    live, backup = nodes("a", **timers), nodes("b", Role.BACKUP, **timers)
    live.manager.start()
    live.manager.start_live_node()
    taking_over = backup.wait_next()
    live.vanish()
    taking_over.result(120)
    assert backup.said(said)


def presence(node: Node[JdbcNodeManager]) -> float | None:
    """Return since when a node has the presence lock."""
    keeper = node.manager._crashes.keeper
    return None if keeper is None else keeper.held_since_seconds


def lose_session(node: Node[JdbcNodeManager], other: Node[JdbcNodeManager]) -> None:
    """End the session of a presence lock, as its keeper looks; it goes on when the other has it."""
    lock, keeper = node.manager._crashes.lock, node.manager._crashes.keeper
    assert lock is not None
    assert keeper is not None
    is_held = lock.is_held

    def ended() -> bool:
        lock.is_held = is_held  # type: ignore[method-assign]
        lock.release()
        wait_until(lambda: presence(other) is not None, what="the other has the presence lock")
        return False

    lock.is_held = ended  # type: ignore[method-assign]

    def is_noticed() -> bool:
        with keeper._changed:
            keeper._changed.notify_all()
        return bool(node.said(PresenceLost))

    wait_until(is_noticed, what="the loss is noticed")


def test_a_live_node_whose_session_alone_was_lost_stays_live(nodes: Nodes) -> None:
    """The waiting backup watches it for its own period, and gives the presence lock back."""
    live = nodes("a", jdbc_lock_expiration=600_000, jdbc_lock_renew_period=200_000)
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=600_000, jdbc_lock_renew_period=200)
    token = live.go_live()
    taking_over = backup.wait_next()
    lose_session(live, backup)
    keeper, since = backup.manager._crashes.keeper, presence(backup)
    assert keeper is not None
    assert since is not None
    # By its own period, a thousandth of the other's, it would take over now.
    wait_until(lambda: keeper.confirmed_seconds > since + 1, what="the backup looks and looks")
    assert not taking_over.done()

    def is_back() -> bool:
        live.manager._kept[Lock.LIVE].renew()
        return presence(live) is not None

    wait_until(is_back, what="it has the presence lock again")
    assert not taking_over.done()
    assert live.lost == []
    assert live.manager.fencing_token == token


@ON_ONE_STORE
def test_timers_that_differ_are_told_once(nodes: Nodes) -> None:
    """By the node that waits, with the timers of both."""
    live = nodes("a", jdbc_lock_expiration=30_000, jdbc_lock_renew_period=3_000)
    backup = nodes("b", Role.BACKUP)
    live.go_live()
    taking_over = backup.wait_as_backup()
    backup.wait_for(TimersDiffer)
    live.manager.crash_live_server()
    taking_over.result(120)
    ours = backup.manager._settings
    assert backup.said(TimersDiffer) == [
        TimersDiffer(
            live.manager.holder_id,
            3_000,
            30_000,
            ours.jdbc_lock_renew_period,
            ours.jdbc_lock_expiration,
        )
    ]
    assert live.said(TimersDiffer) == []


@ON_ONE_STORE
def test_a_live_node_gives_up_when_the_lock_is_not_to_be_had(nodes: Nodes) -> None:
    """After jdbc-lock-acquisition-timeout, naming the holder; its request is withdrawn."""
    first = nodes("a")
    first.go_live()
    second = nodes("b", jdbc_lock_acquisition_timeout=300)
    second.manager.start()
    with pytest.raises(LockAcquisitionTimeout, match="300 ms; it is held by a@"):
        second.manager.start_live_node()
    assert first.manager.status().state is State.LIVE


def store_on(server: ServerProcess, **changes: Any) -> DatabaseStoreSettings:
    """Return settings of a new store on a server."""
    settings = server.settings(server.create_database(), **changes)
    database = Database.from_settings(settings)
    make_tables(database, settings)
    database.dispose()
    return settings


def test_waiting_nodes_outlive_the_database(private_server: ServerProcess) -> None:
    """It dies and comes back: a waiting backup says so and goes on waiting, then takes over."""
    settings = store_on(private_server)
    live, backup = jdbc_node(settings, "a"), jdbc_node(settings, "b", Role.BACKUP)
    try:
        live.go_live()
        taking_over = backup.wait_as_backup()
        # Not when the database has its lock: it may not have heard of that itself.
        backup.wait_for(BackupLockObtained)
        private_server.kill()
        wait_until(lambda: live.lost, what="the live node loses its lease")
        live.vanish()
        backup.wait_for(StoreUnavailableEvent)
        backup.wait_for(LeaseLost)  # its backup lock could not be renewed either
        assert not taking_over.done()
        private_server.start()
        taking_over.result(120)
        backup.wait_for(StoreRecovered)
        assert not backup.lost, "which is no reason for a waiting node to stop"
    finally:
        live.close()
        backup.close()


def test_a_hung_database_is_noticed_before_the_lease_is_anybody_elses(
    private_server: ServerProcess,
) -> None:
    """The lock listener hears of it while the lease has not expired in the database."""
    # A renewal that hangs is given up a whole period before the lease ends.
    settings = store_on(private_server, jdbc_lock_expiration=128_000, jdbc_lock_renew_period=60_000)
    live = jdbc_node(settings, "a")
    heard_remaining: list[float | None] = []
    heard = threading.Event()

    def listen(_: str) -> None:
        lease = live.manager._kept[Lock.LIVE].lease
        heard_remaining.append(lease.deadline_seconds - live.manager._clock())
        heard.set()

    live.manager.register_lock_listener(listen)
    try:
        live.go_live()
        private_server.pause()
        live.manager._kept[Lock.LIVE]._renewals.run_now()
        assert heard.wait(120)
        assert heard_remaining[0] is not None
        assert heard_remaining[0] > 0
        assert not live.manager.is_lease_valid()
        live.manager.crash_live_server()
        assert live.said(ReleaseFailed) == [], "a lease that is lost is left alone"
    finally:
        private_server.resume()
        live.close()


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_node_frozen_inside_a_renewal_does_not_hold_up_its_successor(nodes: Nodes) -> None:
    """The server ends the transaction it stands still in, which frees the live lock's row."""
    live = nodes("a", jdbc_lock_expiration=LAPSING_LEASE_MS)
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=LAPSING_LEASE_MS)
    live.go_live()
    taking_over = backup.wait_next()
    store = live.manager._stores.live
    assert isinstance(store, SqlNodeManagerStore)
    assert live.database is not None
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", live.database.dialect)
    touch = update(table).where(table.c.id == int(Lock.LIVE)).values(node_id=None)
    with (  # noqa: PT012 - the server ends the transaction while something else is waited for
        pytest.raises(StoreUnavailable),
        write_transaction(store._engine, "freeze") as connection,
    ):
        connection.execute(touch)
        taking_over.result(120)
    wait_until(lambda: live.lost, what="the loss is told")


def test_a_node_manager_closes_the_database_it_opened(
    migrated_store: DatabaseStoreSettings, database: Database, server: StoreServer
) -> None:
    """After stop() none of its sessions is left."""
    database.dispose()
    name = str(migrated_store.jdbc_connection_url.sqlalchemy_url.database)
    manager = jdbc_node_manager(migrated_store, name="a")
    manager.start()
    manager.start_live_node().activation_complete()
    assert server.connections(name)
    manager.crash_live_server()
    manager.stop()
    wait_until(lambda: not server.connections(name), what="its sessions end")
