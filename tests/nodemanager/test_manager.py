"""The life of node managers on each DBMS: waiting, becoming live, handing over, giving up."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import MetaData, update

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, StoreUnavailable, write_transaction
from orthia.nodemanager import (
    Interrupted,
    LockAcquisitionTimeout,
    LockLost,
    NotHeld,
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
    WaitingForLiveLock,
)
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from tests.support.schema import make_tables
from tests.support.servers import (
    LAPSING_LEASE_MS,
    LEASE_MS,
    SERVER_NAMES,
    ServerProcess,
    StoreServer,
)
from tests.support.waiting import wait_until


class Node:
    """A node manager with a thread of its own, and what it said."""

    def __init__(self, settings: DatabaseStoreSettings, name: str, role: Role) -> None:
        self.database = Database.from_settings(settings)
        self.events: list[Event] = []
        self.lost: list[str] = []
        self.manager = jdbc_node_manager(
            settings, name=name, role=role, listener=self.events.append, database=self.database
        )
        self.manager.register_lock_listener(self.lost.append)
        self._pool = ThreadPoolExecutor(1)

    def soon(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call on the node's thread."""
        return self._pool.submit(call)

    def has_said(self, kind: type[Event]) -> bool:
        """Return whether an event of this kind was reported."""
        return any(isinstance(event, kind) for event in list(self.events))

    def wait_for(self, kind: type[Event]) -> None:
        """Wait until it is."""
        wait_until(lambda: self.has_said(kind), what=f"{kind.__name__} is reported")

    def go_live(self) -> int:
        """Start as live node and return the token, when it has the presence lock it wants."""
        self.manager.start()
        self.manager.start_live_node().activation_complete()
        wait_until(self._is_present, what="the live node has the presence lock")
        return self.manager.fencing_token

    def _is_present(self) -> bool:
        keeper = self.manager._crashes.keeper
        return keeper is None or keeper.held_since_seconds is not None

    def wait_as_backup(self) -> "Future[Any]":
        """Start as backup; the future ends when it has become live."""

        def wait() -> None:
            self.manager.start()
            self.manager.start_backup()
            self.manager.await_live_node().activation_complete()

        return self.soon(wait)

    def vanish(self) -> None:
        """End without giving anything back, as a crash does."""
        self.manager.stop()

    def close(self) -> None:
        """End the node."""
        self.manager.interrupt()
        self._pool.shutdown()
        self.manager.stop()
        self.database.dispose()


Nodes = Callable[..., Node]


@pytest.fixture
def nodes(migrated_store: DatabaseStoreSettings) -> Iterator[Nodes]:
    """Give a maker of nodes on one store."""
    made: list[Node] = []

    def make(name: str, role: Role = Role.LIVE, **changes: Any) -> Node:
        made.append(Node(replace(migrated_store, **changes), name, role))
        return made[-1]

    yield make
    for node in made:
        node.close()


def test_a_live_node_that_gives_up_on_its_way_is_replaced_at_once(nodes: Nodes) -> None:
    """It leaves no state of a node on its way, for which a backup waits an expiration."""
    live, backup = nodes("a"), nodes("b", Role.BACKUP)
    live.manager.start()
    live.manager.start_live_node()  # and never says that it serves
    taken = backup.wait_as_backup()
    backup.wait_for(WaitingForBackupLock)
    live.manager.give_up_live_server()
    taken.result(120)
    assert not backup.has_said(StaleFailback)


def test_a_live_node_holds_the_lock_and_says_so(nodes: Nodes) -> None:
    """State L, its holder id in the table, its token fenced."""
    live = nodes("a")
    token = live.go_live()
    status = live.manager.status()
    assert status.state is State.LIVE
    assert status.live.holder_id == live.manager.holder_id
    assert status.live.holder_id.startswith("a@")
    assert (status.live.token, status.fence_token) == (token, token)
    assert status.node_id == live.manager.read_node_id()
    assert live.manager.is_lease_valid()
    remaining = live.manager.lease_seconds_remaining()
    assert remaining is not None
    assert 0 < remaining <= LEASE_MS / 1000


def test_before_it_is_live_a_node_has_no_token(nodes: Nodes) -> None:
    """Asking is an error that says what is missing."""
    node = nodes("a")
    with pytest.raises(NotHeld):
        node.manager.read_node_id()
    node.manager.start()
    with pytest.raises(NotHeld):
        _ = node.manager.fencing_token
    assert not node.manager.is_lease_valid()
    assert node.manager.lease_seconds_remaining() is None


def test_a_crashed_live_node_is_replaced_under_a_greater_token(nodes: Nodes) -> None:
    """When its lease has run out."""
    live, backup = nodes("a"), nodes("b", Role.BACKUP)
    token = live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.vanish()
    taking_over.result(120)
    assert backup.manager.fencing_token == token + 1
    assert backup.manager.status().fence_token == token + 1
    assert backup.manager.read_node_id() == live.manager.read_node_id()
    with pytest.raises(LockLost):
        live.manager.write_live_state(State.PAUSED)


def test_an_orderly_stop_with_failover_hands_over(nodes: Nodes) -> None:
    """The lock is released with state L."""
    live, backup = nodes("a", jdbc_lock_expiration=600_000), nodes("b", Role.BACKUP)
    live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.manager.crash_live_server()
    taking_over.result(120)
    assert live.lost == []


def test_a_paused_pair_waits_for_its_live_node(nodes: Nodes) -> None:
    """State P keeps backups passive, until a live node was started again."""
    live, backup = nodes("a"), nodes("b", Role.BACKUP)
    live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.manager.pause_live_server()
    assert backup.manager.status().state is State.PAUSED
    again = nodes("a")
    again.go_live()
    assert not taking_over.done()
    again.vanish()
    taking_over.result(120)


def test_a_returning_live_node_gets_its_place_back(nodes: Nodes) -> None:
    """It asks with state F; the backup releases; the backup waits again."""
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=600_000)
    live = nodes("a")
    live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.vanish()
    taking_over.result(120)
    backup.manager.release_backup()
    assert not backup.manager.is_awaiting_failback()
    returning = nodes("a", jdbc_lock_expiration=600_000)
    coming_back = returning.soon(returning.go_live)
    wait_until(backup.manager.is_awaiting_failback, what="failback is asked for")
    returning.wait_for(WaitingForLiveLock)
    backup.manager.crash_live_server()
    coming_back.result(120)

    def wait_again() -> None:
        backup.manager.start_backup()
        backup.manager.await_live_node()

    waiting = backup.soon(wait_again)
    wait_until(backup.manager.is_backup_live, what="the backup waits again")
    returning.manager.crash_live_server()
    waiting.result(120)


def test_a_live_node_that_still_waits_asks_again(nodes: Nodes) -> None:
    """One that was killed meanwhile does not: nobody hands over to it."""
    serving = nodes("b")
    serving.go_live()
    returning = nodes("a")
    coming_back = returning.soon(returning.go_live)
    wait_until(serving.manager.is_awaiting_failback, what="failback is asked for")
    for _ in range(2):
        serving.manager.ask_who_waits()
        wait_until(serving.manager.is_awaiting_failback, what="failback is asked for again")
    returning.manager.interrupt()
    with pytest.raises(Interrupted):
        coming_back.result(120)
    serving.manager.ask_who_waits()
    assert serving.manager.status().state is State.LIVE
    assert not serving.lost


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
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.vanish()
    taking_over.result(120)
    assert backup.has_said(said)


def test_a_crash_is_noticed_long_before_the_lease_runs_out(nodes: Nodes) -> None:
    """The lease has minutes left when the backup becomes live."""
    live = nodes("a", jdbc_lock_expiration=600_000)
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=600_000)
    token = live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    live.vanish()
    taking_over.result(120)
    assert backup.manager.fencing_token == token + 1
    assert backup.has_said(CrashDetected)


def test_a_restarted_live_node_need_not_wait_for_its_former_self(nodes: Nodes) -> None:
    """A single node that was killed and started again serves within a few renew periods."""
    former = nodes("a", jdbc_lock_expiration=600_000)
    former.go_live()
    former.vanish()
    again = nodes("a", jdbc_lock_expiration=600_000)
    again.soon(again.go_live).result(120)
    assert again.has_said(CrashDetected)


def lose_session(node: Node, other: Node) -> None:
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
        return node.has_said(PresenceLost)

    wait_until(is_noticed, what="the loss is noticed")


def test_a_live_node_whose_session_alone_was_lost_stays_live(nodes: Nodes) -> None:
    """The waiting backup watches it for its own period, and gives the presence lock back."""
    live = nodes("a", jdbc_lock_expiration=600_000, jdbc_lock_renew_period=200_000)
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=600_000, jdbc_lock_renew_period=200)
    token = live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
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


def test_timers_that_differ_are_told_once(nodes: Nodes) -> None:
    """By the node that waits, with the timers of both."""
    live = nodes("a", jdbc_lock_expiration=30_000, jdbc_lock_renew_period=3_000)
    backup = nodes("b", Role.BACKUP)
    live.go_live()
    taking_over = backup.wait_as_backup()
    backup.wait_for(TimersDiffer)
    live.manager.crash_live_server()
    taking_over.result(120)
    told = [event for event in backup.events if isinstance(event, TimersDiffer)]
    ours = backup.manager._settings
    assert told == [
        TimersDiffer(
            live.manager.holder_id,
            3_000,
            30_000,
            ours.jdbc_lock_renew_period,
            ours.jdbc_lock_expiration,
        )
    ]
    assert not live.has_said(TimersDiffer)


def presence(node: Node) -> float | None:
    """Return since when a node has the presence lock."""
    keeper = node.manager._crashes.keeper
    return None if keeper is None else keeper.held_since_seconds


def test_a_live_node_gives_up_when_the_lock_is_not_to_be_had(nodes: Nodes) -> None:
    """After jdbc-lock-acquisition-timeout, naming the holder; its request is withdrawn."""
    first = nodes("a")
    first.go_live()
    second = nodes("b", jdbc_lock_acquisition_timeout=300)
    second.manager.start()
    with pytest.raises(LockAcquisitionTimeout, match="300 ms; it is held by a@"):
        second.manager.start_live_node()
    assert first.manager.status().state is State.LIVE


def test_a_waiting_node_is_interrupted(nodes: Nodes) -> None:
    """Whatever it waits for."""
    live = nodes("a")
    live.go_live()
    other, first, second = nodes("b"), nodes("c", Role.BACKUP), nodes("d", Role.BACKUP)
    other.manager.start()
    waits = [other.soon(other.manager.start_live_node), first.wait_as_backup()]
    wait_until(first.manager.is_backup_live, what="the first backup waits")
    waits.append(second.wait_as_backup())
    second.wait_for(WaitingForBackupLock)
    other.wait_for(WaitingForLiveLock)
    for node, wait in zip((other, first, second), waits, strict=True):
        node.manager.interrupt()
        with pytest.raises(Interrupted):
            wait.result(120)


def test_the_next_backup_moves_up(nodes: Nodes) -> None:
    """One is paired, the others wait for the backup lock."""
    live, first, second = (
        nodes(name, role, jdbc_lock_expiration=600_000)
        for name, role in (("a", Role.LIVE), ("b", Role.BACKUP), ("c", Role.BACKUP))
    )
    live.go_live()
    taking_over = first.wait_as_backup()
    wait_until(first.manager.is_backup_live, what="the first backup waits")
    second.wait_as_backup()
    second.wait_for(WaitingForBackupLock)
    live.manager.crash_live_server()
    taking_over.result(120)
    first.manager.release_backup()
    wait_until(
        lambda: first.manager.status().backup.holder_id == second.manager.holder_id,
        what="the second backup moves up",
    )


@pytest.mark.parametrize("private_server", SERVER_NAMES, indirect=True)
def test_waiting_nodes_outlive_the_database(private_server: ServerProcess) -> None:
    """It dies and comes back: a waiting backup says so and goes on waiting, then takes over."""
    settings = private_server.settings(private_server.create_database())
    database = Database.from_settings(settings)
    make_tables(database, settings)
    database.dispose()
    live, backup = Node(settings, "a", Role.LIVE), Node(settings, "b", Role.BACKUP)
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


@pytest.mark.parametrize("private_server", SERVER_NAMES, indirect=True)
def test_a_hung_database_is_noticed_before_the_lease_is_anybody_elses(
    private_server: ServerProcess,
) -> None:
    """The lock listener hears of it while the lease has not expired in the database."""
    # A renewal that hangs is given up a whole period before the lease ends.
    settings = private_server.settings(
        private_server.create_database(),
        jdbc_lock_expiration=128_000,
        jdbc_lock_renew_period=60_000,
    )
    database = Database.from_settings(settings)
    make_tables(database, settings)
    database.dispose()
    live = Node(settings, "a", Role.LIVE)
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
        assert not live.has_said(ReleaseFailed), "a lease that is lost is left alone"
    finally:
        private_server.resume()
        live.close()


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_node_frozen_inside_a_renewal_does_not_hold_up_its_successor(nodes: Nodes) -> None:
    """The server ends the transaction it stands still in, which frees the live lock's row."""
    live = nodes("a", jdbc_lock_expiration=LAPSING_LEASE_MS)
    backup = nodes("b", Role.BACKUP, jdbc_lock_expiration=LAPSING_LEASE_MS)
    live.go_live()
    taking_over = backup.wait_as_backup()
    wait_until(backup.manager.is_backup_live, what="the backup waits")
    store = live.manager._stores.live
    assert isinstance(store, SqlNodeManagerStore)
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
