"""The node manager: waits for locks, keeps them, advances the fence, gives them back.

Methods have the names of Artemis' NodeManager in snake case. They block and belong on an activation
thread; ``is_lease_valid``, ``fencing_token`` and ``interrupt`` may be used from any.
"""

import logging
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from orthia.config.clock import monotonic_seconds
from orthia.config.lockers import keeps_leases, with_locker
from orthia.config.rules import lease_query_timeout
from orthia.config.settings import DatabaseStoreSettings, Role
from orthia.database import (
    Database,
    DatabaseClock,
    PresenceLock,
    StoreError,
    StoreUnavailable,
    TransientStoreError,
    fold_table_name,
    presence_lock,
)
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.activation import (
    Holder,
    HolderWatch,
    grace_seconds,
    judge_holder,
)
from orthia.nodemanager.errors import LockLost, NotHeld
from orthia.nodemanager.events import (
    ConnectorsResume,
    CrashDetected,
    Event,
    FenceAdvanced,
    LockReleased,
    NodeStarted,
    PresenceLost,
    ReleaseFailed,
    StateWritten,
)
from orthia.nodemanager.failover_log import FailoverLog, FailoverLogTable
from orthia.nodemanager.fencing import Unblocker
from orthia.nodemanager.judgement import DriftJudge
from orthia.nodemanager.keepalive import KeepAlive
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.abc import Locker, NodeManagerStore, OnDatabaseTime
from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.locks.lease_locker import LeaseDatabaseLocker
from orthia.nodemanager.locks.lockers import Lockers, LockHolder, kind_of, lockers_of
from orthia.nodemanager.locks.presence import PresenceKeeper
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.pair import ActivateCallback, PairNodeManager
from orthia.nodemanager.threads import REAL_THREADS, Threads

LOGGER = logging.getLogger("orthia.failover")
_Result = TypeVar("_Result")
LockListener = Callable[[str], None]

_MAX_POLL_SECONDS = 0.5
_MIN_POLL_SECONDS = 0.02
_LOG_CLOSE_SECONDS = 2.0
_IDLE_SECONDS = 0.5


def poll_seconds(renew_period_ms: int) -> float:
    """Return how often a waiting node looks: a quarter of the renew period, half a second at most.

    An orderly hand-over costs half of it on average.
    """
    return min(_MAX_POLL_SECONDS, max(_MIN_POLL_SECONDS, renew_period_ms / 4000))


def idle_limit_ms(expiration_ms: int) -> int:
    """Return for how long a transaction of the node manager may stand still in the server.

    A process that freezes between an UPDATE and its COMMIT holds the row, and whoever waits for
    the row waits with it. The server ends that transaction well before the lease expires, so that
    the successor finds the row free. More than a renew period, so that no idle session is hit
    where the DBMS counts idleness outside of transactions too.
    """
    return expiration_ms // 2


def timers_of(store: DatabaseStoreSettings) -> Timers:
    """Return the timers that a node with these settings publishes with its lease."""
    return Timers(store.jdbc_lock_renew_period, store.jdbc_lock_expiration)


@dataclass(frozen=True)
class Stores:
    """The store through the connections that must not wait for each other."""

    live: NodeManagerStore
    backup: NodeManagerStore
    shared: NodeManagerStore
    fence: NodeManagerStore


class JdbcNodeManager(PairNodeManager[Lease]):
    """The node manager of a database store."""

    acquisition_timeout = "jdbc-lock-acquisition-timeout"

    def __init__(
        self,
        stores: Stores,
        settings: DatabaseStoreSettings,
        *,
        name: str,
        log: FailoverLog,
        holder_id: HolderId,
        presence: PresenceLock | None = None,
        clock: Callable[[], float] = monotonic_seconds,
        threads: Threads = REAL_THREADS,
        lockers: Lockers | None = None,
    ) -> None:
        """Make a node manager; without ``presence`` a crash is noticed when the lease runs out.

        Without ``lockers`` the locks are leases.
        """
        super().__init__(
            log=log,
            holder_id=holder_id,
            clock=clock,
            poll_seconds=poll_seconds(settings.jdbc_lock_renew_period),
            acquisition_timeout_ms=settings.jdbc_lock_acquisition_timeout,
            on_its_way_ms=settings.jdbc_lock_expiration,
            threads=threads,
        )
        self._stores = stores
        self._settings = settings
        self._name = name
        self._threads = threads
        self._drift = DriftJudge(settings.jdbc_allowed_time_diff)
        self._database_clock = DatabaseClock(clock)
        self._lockers = (lockers or self._leases)(self._note_database_time)
        locker = settings.locker
        if locker is not None and not keeps_leases(settings):
            self._poll_seconds = locker.lock_acquire_sleep_interval / 1000
        self._kept: dict[Lock, KeepAlive] = {}
        self._renewal_listener: Callable[[Lock, float], None] = lambda *_: None
        self._presence = presence
        self._keeper: PresenceKeeper | None = None
        self._own_database: Database | None = None

    def _leases(self, on_database_time: OnDatabaseTime) -> Mapping[Lock, Locker]:
        stores = {Lock.LIVE: self._stores.live, Lock.BACKUP: self._stores.backup}
        return {
            lock: LeaseDatabaseLocker(
                store,
                lock,
                self.holder_id,
                expiration_ms=self._settings.jdbc_lock_expiration,
                clock=self._clock,
                on_database_time=on_database_time,
            )
            for lock, store in stores.items()
        }

    @classmethod
    def from_settings(
        cls,
        store: DatabaseStoreSettings,
        *,
        name: str,
        role: Role = Role.LIVE,
        listener: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = monotonic_seconds,
        database: Database | None = None,
        log_path: Path | None = None,
        newest_token: Callable[[], int] = lambda: 0,
    ) -> "JdbcNodeManager":
        """Make the node manager of this ``database-store``; connects nowhere yet.

        Raises ConfigurationError if its locker is not to be had. ``newest_token`` says which token
        a journal outside of this database was last opened under: the next is above it.

        ``listener`` hears every event, on the thread it happens on. ``log_path`` is the failover
        log's file. Without ``database`` the node manager opens one of its own, which ``stop``
        closes.
        """
        own_database = None
        store = with_locker(store)
        if database is None:
            database = own_database = Database.from_settings(store)
        timeout_ms = lease_query_timeout(store)

        def open_store(purpose: str, query_timeout_ms: int) -> NodeManagerStore:
            engine = database.dedicated_engine(
                purpose,
                query_timeout_ms=query_timeout_ms,
                idle_in_transaction_ms=idle_limit_ms(store.jdbc_lock_expiration),
            )
            return SqlNodeManagerStore(database, store, engine)

        stores = Stores(
            live=open_store("live-lock", timeout_ms),
            backup=open_store("backup-lock", timeout_ms),
            shared=open_store("shared-state", store.jdbc_network_timeout),
            # The fence waits for the batch in flight, or for that to be ended.
            fence=open_store("fence", store.jdbc_lock_expiration),
        )
        holder_id = HolderId.new(
            getattr(store.locker, "lease_holder_id", None) or name,
            crash_detection=store.crash_detection,
            kind=kind_of(store),
            timers=None if kind_of(store) else timers_of(store),
        )
        presence = None
        if store.crash_detection:
            table = fold_table_name(database.dialect, store.node_manager_store_table_name)
            presence = presence_lock(
                database, f"{table}-presence", query_timeout_ms=store.jdbc_network_timeout
            )
        log = FailoverLog(
            node_name=name,
            holder_id=holder_id,
            role=role.value,
            path=log_path,
            table=FailoverLogTable(database, store),
            listener=listener,
        )
        manager = cls(
            stores,
            store,
            name=name,
            log=log,
            holder_id=holder_id,
            presence=presence,
            clock=clock,
            lockers=lockers_of(
                store,
                database,
                {Lock.LIVE: stores.live, Lock.BACKUP: stores.backup},
                LockHolder(name, holder_id, clock, newest_token),
            ),
        )
        manager._own_database = own_database
        return manager

    # --- the life of the node manager

    def message_time_ms(self) -> int:
        """Return milliseconds since 1970 UTC by the database's clock, as each renewal reads it."""
        return self._database_clock.now_ms()

    def start(self) -> None:
        """Create or read the node id; waits while the database is away.

        The schema must exist. Raises ConfigurationError or LockDirectoryMissing if a locker cannot
        be used so, LockAcquisitionTimeout if ``failIfLocked`` is set and the live lock is held,
        Interrupted, StoreError.
        """
        for locker in self._lockers.values():
            self._patiently(locker.prepare)
        candidate = str(uuid.uuid4())
        node_id = self._patiently(lambda: self._stores.shared.create_node_id(candidate))
        self._node_id = self.log.node_id = node_id
        # Only to learn the database's time: the first entry of the log carries it already.
        asked = self._clock()
        self._note_database_time(self._patiently(self.status).database_time, asked, self._clock())
        url = self._settings.jdbc_connection_url.display
        self.log.emit(NodeStarted(metadata.version("orthia"), self.log.role, url, node_id))
        if self._settings.locker is not None and self._settings.locker.fail_if_locked:
            self._fail_if_locked()

    def stop(self) -> None:
        """Stop every thread and close the log; leases that are held are left to expire."""
        self.interrupt()
        for keep_alive in list(self._kept.values()):
            keep_alive.stop()
            # So that its connection is back before the pool is closed, if the database answers.
            keep_alive.wait_idle(_IDLE_SECONDS)
        self._drop_presence()
        for locker in self._lockers.values():
            locker.close()
        self.log.close(_LOG_CLOSE_SECONDS)
        if self._own_database is not None:
            self._own_database.dispose()

    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        """Have ``callback`` called with lock and seconds after each successful renewal."""
        self._renewal_listener = callback

    # --- what is held

    @property
    def fencing_token(self) -> int:
        """The token of the live lease; raises NotHeld."""
        return self._live().lease.token

    def is_lease_valid(self) -> bool:
        """Return whether the live lease is certainly held; cheap enough for every delivery."""
        keep_alive = self._kept.get(Lock.LIVE)
        return keep_alive is not None and keep_alive.is_valid()

    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering.

        With crash detection that is stricter than a valid lease: a renewal has begun within
        ``GRACE_PERIODS`` of the renew period.
        """
        keep_alive = self._kept.get(Lock.LIVE)
        return keep_alive is not None and keep_alive.may_deliver()

    def lease_seconds_remaining(self) -> float | None:
        """Return what the stopwatch leaves of the live lease; None if not held, or without end."""
        keep_alive = self._kept.get(Lock.LIVE)
        if keep_alive is None or not keep_alive.is_valid():
            return None
        remaining = keep_alive.lease.deadline_seconds - self._clock()
        return remaining if math.isfinite(remaining) else None

    def status(self) -> NodeManagerStatus:
        """Read what the store says, and who has the live lock; raises StoreError."""
        status = self._stores.shared.status()
        live = self._lockers[Lock.LIVE].as_seen(status.live)
        return status if live is status.live else replace(status, live=live)

    def is_awaiting_failback(self) -> bool:
        """Return whether a live node asks for its place back; raises StoreError."""
        return self.status().state is State.FAILING_BACK

    def is_backup_live(self) -> bool:
        """Return whether some backup is next in line, or live already; raises StoreError."""
        return self._lockers[Lock.BACKUP].as_seen(self.status().backup).is_held

    # --- live

    def resume_live_node(self, former: FormerLife, period_ms: int) -> ActivateCallback:
        """Take the live lock, exactly as ``former`` left it, keep it, advance the fence.

        Never under the token of ``former``: its last batch may be in flight, and the fence waits
        for that. Asks each ``period_ms``. Raises LockLost if the lock is somebody else's,
        Interrupted.
        """
        while True:
            try:
                live = self._stores.shared.status().live
                # Or it is taken already, by a request of this life whose answer was lost.
                known = (former.holder_id, former.token)
                if live.holder_id != self.holder_id and (live.holder_id, live.token) != known:
                    raise LockLost(
                        f"the live lock is not held under token {former.token} any more: it is held"
                        f" by {live.holder_id or 'nobody'} under token {live.token}"
                    )
                lease = self._lockers[Lock.LIVE].take_over(live)
                if lease is not None:
                    outage_ms = (self._clock() - former.stopped_seconds) * 1000
                    self._outage_since = None
                    self.log.emit(ConnectorsResume(former.token, lease.token, outage_ms))
                    self._want_presence()
                    return self._activate(lease, former.last_sign())
            except (StoreUnavailable, TransientStoreError) as error:
                self._say_unavailable(error)
            self._pause(period_ms / 1000)

    def _wait_for_live_lock(self, started: float) -> tuple[Lease, LastSign]:
        self._want_presence()
        return super()._wait_for_live_lock(started)

    def _try_acquire(self, lock: Lock) -> Lease | None:
        return self._patiently(self._lockers[lock].try_acquire)

    # --- backup

    def _wait_for_backup_lock(self) -> int:
        while True:
            lease = self._try_acquire(Lock.BACKUP)
            if lease is not None:
                break
            self._pause(self._until_free(self._patiently(self.status).backup))
        self._backup_lost.clear()
        self._keep(lease, self._lose_backup_lock)
        self._want_presence()
        return lease.token

    def _leave_the_line(self) -> None:
        self._forget(Lock.BACKUP)
        self._drop_presence()

    def _judge_holder(self, live: LockStatus, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        """Judge the live lock's holder; one that is alive gets its presence lock back."""
        keeper = self._keeper
        holder, watch = judge_holder(
            live,
            watch,
            present_since_seconds=keeper.held_since_seconds if keeper else None,
            confirmed_seconds=keeper.confirmed_seconds if keeper else -math.inf,
            now_seconds=self._clock(),
        )
        if holder is Holder.ALIVE and keeper is not None:
            keeper.stand_back()
        return holder, watch

    def _take_over(self, live: LockStatus, watch: HolderWatch) -> Lease | None:
        lease = self._patiently(lambda: self._lockers[Lock.LIVE].take_over(live))
        if lease is None:
            lease = self._take_what_is_ours()
        if lease is not None:
            watched_ms = (self._clock() - watch.unchanged_since_seconds) * 1000
            remaining_ms = (live.expires_in_seconds or 0.0) * 1000
            holder = live.holder_id or "nobody"
            self.log.emit(CrashDetected(holder, watched_ms, remaining_ms))
        return lease

    def _take_what_is_ours(self) -> Lease | None:
        """Take the live lock once more, if an earlier request did whose answer was lost.

        Nobody serves under that token: not this node, which does not know that it has it.
        """
        live = self._patiently(self.status).live
        return self._try_acquire(Lock.LIVE) if live.holder_id == self.holder_id else None

    def _want_presence(self) -> None:
        if self._presence is None or self._keeper is not None:
            return
        self._keeper = PresenceKeeper(
            self._presence,
            period_seconds=self._settings.jdbc_lock_renew_period / 1000,
            clock=self._clock,
            obtained=self._wake.set,
            lost=lambda: self.log.emit(PresenceLost()),
            threads=self._threads,
        )
        self._keeper.start()

    def _drop_presence(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()

    def _is_still_held(self, lease: Lease) -> bool:
        return lease.is_valid(self._clock())

    def _decline(self, lease: Lease) -> None:
        self._patiently(lambda: self._lockers[Lock.LIVE].release(lease))
        # Said though it was never used: whoever reads the log looks for each token.
        self.log.emit(LockReleased(Lock.LIVE, lease.token))

    def await_active_status(self) -> None:
        """Wait until some node serves, however long; raises Interrupted."""
        while self._patiently(self.status).state is not State.LIVE:
            self._pause(poll_seconds(self._settings.jdbc_lock_renew_period))

    # --- the end of being live

    def write_live_state(self, state: State) -> None:
        """Write the state as the live node; raises StoreError, LockLost, NotHeld."""
        lease = self._live().lease
        if not self._stores.shared.write_state_as_live(state, self.holder_id, lease.token):
            raise LockLost(f"state {state.value} not written: the live lock is not ours any more")
        self.log.emit(StateWritten(state))

    def _write_state(self, state: State, *, expected: State | None = None) -> None:
        self._stores.shared.write_state(state, expected=expected)

    # --- inside

    def _live(self) -> KeepAlive:
        keep_alive = self._kept.get(Lock.LIVE)
        if keep_alive is None:
            raise NotHeld("this node does not hold the live lock")
        return keep_alive

    def _activate(self, lease: Lease, former: LastSign) -> ActivateCallback:
        self._keep(lease, self._lose_live_lock)
        keeper = self._keeper
        if keeper is not None and (former.holder_id is None or former.holder_id.has_presence):
            former = former.gone_since(keeper.held_since_seconds)
        self.log.emit(self._obtained(lease.token, former))
        asked = self._clock()
        detection_ms = former.age_ms(asked)
        unblocker = Unblocker(
            lambda: self._stores.fence.end_fence_blockers(self.holder_id, lease.token),
            token=lease.token,
            is_held=self.is_lease_valid,
            report=self.log.emit,
            threads=self._threads,
        )
        unblocker.start()
        try:
            while not self._try_advance_fence(lease):
                self._pause(poll_seconds(self._settings.jdbc_lock_renew_period))
        finally:
            unblocker.stop()
        fence_ms = (self._clock() - asked) * 1000
        self.log.emit(FenceAdvanced(lease.token, fence_ms))
        return ActivateCallback(self, detection_ms=detection_ms, fence_ms=fence_ms)

    def _silent_ms(self, lock: Lock) -> float | None:
        keep_alive = self._kept.get(lock)
        if keep_alive is None:
            return None
        silent_ms = (self._clock() - keep_alive.renewed_seconds) * 1000
        return silent_ms if math.isfinite(silent_ms) else None

    def _try_advance_fence(self, lease: Lease) -> bool:
        if not self.is_lease_valid():
            raise LockLost("the live lease was lost before the journal was fenced")
        try:
            advanced = self._stores.fence.advance_fence(self.holder_id, lease.token)
        except (StoreUnavailable, TransientStoreError):
            return False  # renewals decide whether there is a next attempt
        if not advanced:
            raise LockLost(
                f"the journal was not fenced under token {lease.token}: the live lock expired in"
                " the database or a newer token is fenced already, which another node then holds"
            )
        return True

    def _keep(self, lease: Lease, on_lost: Callable[[int, str], None]) -> None:
        period_ms = self._settings.jdbc_lock_renew_period
        keep_alive = KeepAlive(
            self._lockers[lease.lock],
            lease,
            period_ms=period_ms,
            expiration_ms=self._settings.jdbc_lock_expiration,
            clock=self._clock,
            report=self.log.emit,
            on_lost=lambda reason: on_lost(lease.token, reason),
            on_renewed=lambda seconds: self._renewal_listener(lease.lock, seconds),
            delivery_ms=grace_seconds(period_ms) * 1000 if self._presence is not None else None,
            threads=self._threads,
        )
        self._kept[lease.lock] = keep_alive
        keep_alive.start()

    def _forget(self, lock: Lock) -> None:
        keep_alive = self._kept.pop(lock, None)
        if keep_alive is not None:
            keep_alive.stop()

    def _release(self, lock: Lock) -> None:
        """Give a lock back within one query's time; a lease that is not valid is left alone."""
        keep_alive = self._kept.get(lock)
        if keep_alive is None:
            return
        valid = keep_alive.is_valid()
        keep_alive.stop()
        keep_alive.wait_idle(lease_query_timeout(self._settings) / 1000)
        lease = keep_alive.lease
        self._kept.pop(lock, None)
        try:
            if valid:
                self._give_back(lock, lease)
        finally:
            if not self._kept:
                # After the lease: whoever is woken by it finds the lock free.
                self._drop_presence()

    def _give_back(self, lock: Lock, lease: Lease) -> None:
        try:
            self._lockers[lock].release(lease)
        except StoreError as error:
            self.log.emit(ReleaseFailed(lock, lease.token, str(error)))
        else:
            self.log.emit(LockReleased(lock, lease.token))

    def _note_database_time(self, database_time: datetime, asked: float, now: float) -> None:
        self._database_clock.observe(database_time, asked_seconds=asked, now_seconds=now)
        wall = datetime.now(UTC)
        drift = self._drift.observe(database_time, wall, asked_seconds=asked, now=now)
        self.log.database_time = self._database_clock.now
        if drift is not None:
            self.log.emit(drift)

    def _until_free(self, status: LockStatus) -> float:
        """Return how long to wait before looking at a lock again: no longer than it can last."""
        period = self._poll_seconds
        if status.expires_in_seconds is None or not keeps_leases(self._settings):
            return period
        return min(period, max(_MIN_POLL_SECONDS, status.expires_in_seconds))
