"""The node manager: waits for locks, keeps them, advances the fence, gives them back.

Methods have the names of Artemis' NodeManager in snake case. They block and belong on an activation
thread; ``is_lease_valid``, ``fencing_token`` and ``interrupt`` may be used from any.
"""

import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata

from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.config.lockers import keeps_leases
from orthia.config.store_rules import lease_query_timeout
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    PresenceLock,
    StoreUnavailable,
    TransientStoreError,
)
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.activation import (
    Holder,
    HolderWatch,
    grace_seconds,
)
from orthia.nodemanager.crash_detection import CrashDetection
from orthia.nodemanager.database_time import DatabaseTime
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.events import (
    ConnectorsResume,
    CrashDetected,
    FenceAdvanced,
    LeaseExpired,
    LockReleased,
    NodeStarted,
    StateWritten,
)
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.fencing import fence_journal
from orthia.nodemanager.held_locks import HeldLocks
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.locks.lockers import Lockers
from orthia.nodemanager.locks.reports import Report, ReportStore
from orthia.nodemanager.pair import ActivateCallback, PairNodeManager
from orthia.nodemanager.stores import (
    MIN_POLL_SECONDS,
    Stores,
    poll_seconds,
)
from orthia.nodemanager.threads import REAL_THREADS, Threads

_LOG_CLOSE_SECONDS = 2.0


class JdbcNodeManager(PairNodeManager[Lease]):
    """The node manager of a database store."""

    acquisition_timeout = "jdbc-lock-acquisition-timeout"

    def __init__(
        self,
        stores: Stores,
        settings: DatabaseStoreSettings,
        lockers: Lockers,
        *,
        log: FailoverLog,
        holder_id: HolderId,
        presence: PresenceLock | None = None,
        reports: ReportStore | None = None,
        clock: Callable[[], float] = monotonic_seconds,
        threads: Threads = REAL_THREADS,
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a node manager; without ``presence`` a crash is noticed when the lease runs out."""
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
        self._threads = threads
        self._time = DatabaseTime(
            log, allowed_drift_ms=settings.jdbc_allowed_time_diff, clock=clock
        )
        self._lockers = lockers(self._time.note)
        locker = settings.locker
        if locker is not None and not keeps_leases(settings):
            self._poll_seconds = locker.lock_acquire_sleep_interval / 1000
        self._crashes = CrashDetection(
            presence,
            period_seconds=settings.jdbc_lock_renew_period / 1000,
            clock=clock,
            wake=self._waits.wake,
            report=log.emit,
            threads=threads,
        )
        period_ms = settings.jdbc_lock_renew_period
        self._kept = HeldLocks(
            self._lockers,
            period_ms=period_ms,
            expiration_ms=settings.jdbc_lock_expiration,
            delivery_ms=None if presence is None else grace_seconds(period_ms) * 1000,
            query_timeout_ms=lease_query_timeout(settings),
            clock=clock,
            report=log.emit,
            threads=threads,
        )
        self._on_stopped = on_stopped
        self._reports = reports
        self._published: dict[Lock, tuple[int, Report]] = {}

    # --- the life of the node manager

    @override
    def message_time_ms(self) -> int:
        """Return milliseconds since 1970 UTC by the database's clock, as each renewal reads it."""
        return self._time.now_ms()

    @override
    def start(self) -> None:
        """Create or read the node id; waits while the database is unavailable.

        The schema must exist. Raises ConfigurationError or LockDirectoryMissing if a locker cannot
        be used so, LockAcquisitionTimeout if ``failIfLocked`` is set and the live lock is held,
        Interrupted, StoreError.
        """
        for locker in self._lockers.values():
            self._waits.outlast(locker.prepare)
        candidate = str(uuid.uuid4())
        node_id = self._waits.outlast(lambda: self._stores.shared.create_node_id(candidate))
        self._node_id = self.log.node_id = node_id
        # To learn the database's time, which the first entry of the log already carries.
        asked, status = self._waits.outlast_timed(self.status)
        self._time.note(status.database_time, asked, self._clock())
        url = self._settings.jdbc_connection_url.display
        self.log.emit(NodeStarted(metadata.version("orthia"), self.log.role, url, node_id))
        if self._settings.locker is not None and self._settings.locker.fail_if_locked:
            self._fail_if_locked()

    @override
    def stop(self) -> None:
        """Stop every thread and close the log; leases that are held are left to expire."""
        self.interrupt()
        self._kept.stop()
        self._crashes.drop()
        for locker in self._lockers.values():
            locker.close()
        self.log.close(_LOG_CLOSE_SECONDS)
        self._on_stopped()

    @override
    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        self._kept.on_renewed = callback

    @override
    def publish(self, report: Report) -> None:
        for lock in Lock:
            kept = self._kept.get(lock)
            if kept is None or self._reports is None:
                continue
            told = (kept.lease.token, report)
            if self._published.get(lock) != told:
                self._reports.write(lock, self.holder_id, *told)
                self._published[lock] = told

    # --- what is held

    @property
    @override
    def fencing_token(self) -> int:
        return self._kept[Lock.LIVE].lease.token

    @override
    def is_lease_valid(self) -> bool:
        live = self._kept.live
        return live is not None and live.is_valid()

    @override
    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering.

        With crash detection that is stricter than a valid lease: a renewal has begun within
        ``GRACE_PERIODS`` of the renew period.
        """
        live = self._kept.live
        return live is not None and live.may_deliver()

    @override
    def lease_seconds_remaining(self) -> float | None:
        """Return what the stopwatch leaves of the live lease; None if not held, or without end."""
        keep_alive = self._kept.live
        if keep_alive is None or not keep_alive.is_valid():
            return None
        remaining = keep_alive.lease.deadline_seconds - self._clock()
        return remaining if math.isfinite(remaining) else None

    @override
    def status(self) -> NodeManagerStatus:
        status = self._stores.shared.status()
        live = self._lockers[Lock.LIVE].as_seen(status.live)
        return status if live is status.live else replace(status, live=live)

    @override
    def is_awaiting_failback(self) -> bool:
        return self.status().state is State.FAILING_BACK

    def is_backup_live(self) -> bool:
        """Return whether some backup is next in line, or live already; raises StoreError."""
        return self._lockers[Lock.BACKUP].as_seen(self.status().backup).is_held

    # --- live

    @override
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
                        f"the live lock is no longer held under token {former.token}: it is held"
                        f" by {live.holder_id or 'nobody'} under token {live.token}"
                    )
                lease = self._lockers[Lock.LIVE].take_over(live)
                if lease is not None:
                    outage_ms = (self._clock() - former.stopped_seconds) * 1000
                    self._waits.end_outage()
                    self.log.emit(ConnectorsResume(former.token, lease.token, outage_ms))
                    self._crashes.want()
                    return self._activate(lease, former.last_sign())
            except (StoreUnavailable, TransientStoreError) as error:
                self._waits.note_unavailable(error)
            self._waits.pause(period_ms / 1000)

    @override
    def _wait_for_live_lock(self, started: float) -> tuple[Lease, LastSign]:
        self._crashes.want()
        return super()._wait_for_live_lock(started)

    @override
    def _try_acquire(self, lock: Lock) -> Lease | None:
        return self._waits.outlast(self._lockers[lock].try_acquire)

    # --- backup

    @override
    def _wait_for_backup_lock(self) -> int:
        while True:
            lease = self._try_acquire(Lock.BACKUP)
            if lease is not None:
                break
            self._waits.pause(self._until_free(self._waits.outlast(self.status).backup))
        self._backup_lost.clear()
        self._kept.keep(lease, self._lose_backup_lock)
        self._crashes.want()
        return lease.token

    @override
    def _forget_backup_lock(self) -> None:
        self._kept.forget(Lock.BACKUP)
        self._crashes.drop()

    @override
    def _judge_holder(self, live: LockStatus, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        return self._crashes.judge(live, watch)

    @override
    def _take_over(self, live: LockStatus, watch: HolderWatch, sign: LastSign) -> Lease | None:
        lease = self._waits.outlast(lambda: self._lockers[Lock.LIVE].take_over(live))
        if lease is None:
            lease = self._take_what_is_ours()
        if lease is not None:
            now = self._clock()
            # The lease may have ended since it was seen: a store that was away meanwhile was waited
            # for, and this process may have stood still.
            seen_ms = sign.held_ms(now) or 0.0
            remaining_ms = (live.expires_in_seconds or 0.0) * 1000 - seen_ms
            holder = live.holder_id or "nobody"
            if remaining_ms > 0:
                watched_ms = (now - watch.unchanged_since_seconds) * 1000
                self.log.emit(CrashDetected(holder, watched_ms, remaining_ms))
            else:
                self._emit_expired(holder, sign.age_ms(now), -remaining_ms)
        return lease

    @override
    def _tell_of_expired(self, live: LockStatus, sign: LastSign) -> None:
        holder = live.holder_id
        if holder is None or live.is_held or holder == self.holder_id or holder.kind:
            return  # given back, or told of by ``_take_over``, or no lease
        now = self._clock()
        self._emit_expired(holder, sign.age_ms(now), sign.gone_ms(now) or 0.0)

    def _emit_expired(self, holder: str, silent_ms: float | None, expired_ms: float) -> None:
        presence = self._crashes.presence_of(HolderId(holder))
        self.log.emit(LeaseExpired(holder, silent_ms, expired_ms, presence, self.holder_id))

    def _take_what_is_ours(self) -> Lease | None:
        """Take the live lock once more, if an earlier request did whose answer was lost.

        Nobody serves under that token: not this node, which does not know that it has it.
        """
        live = self._waits.outlast(self.status).live
        return self._try_acquire(Lock.LIVE) if live.holder_id == self.holder_id else None

    @override
    def _is_still_held(self, lease: Lease) -> bool:
        return lease.is_valid(self._clock())

    @override
    def _decline(self, lease: Lease) -> None:
        self._waits.outlast(lambda: self._lockers[Lock.LIVE].release(lease))
        # Logged though it was never used: a reader of the log looks for each token.
        self.log.emit(LockReleased(Lock.LIVE, lease.token))

    # --- the end of being live

    @override
    def write_live_state(self, state: State) -> None:
        lease = self._kept[Lock.LIVE].lease
        if not self._stores.shared.write_state_as_live(state, self.holder_id, lease.token):
            raise LockLost(f"state {state.value} not written: the live lock is not ours any more")
        self.log.emit(StateWritten(state))

    @override
    def _write_state(self, state: State, *, expected: State | None = None) -> None:
        self._stores.shared.write_state(state, expected=expected)

    # --- inside

    @override
    def _activate(self, held: Lease, former: LastSign) -> ActivateCallback:
        self._kept.keep(held, self._lose_live_lock)
        former = self._crashes.gone(former)
        self.log.emit(self._obtained(held.token, former))
        asked = self._clock()
        detection_ms = former.age_ms(asked)
        self._fence(held)
        fence_ms = (self._clock() - asked) * 1000
        self.log.emit(FenceAdvanced(held.token, fence_ms))
        return ActivateCallback(self, detection_ms=detection_ms, fence_ms=fence_ms)

    def _fence(self, lease: Lease) -> None:
        poll = poll_seconds(self._settings.jdbc_lock_renew_period)
        fence_journal(
            self._stores.fence,
            lease,
            is_held=self.is_lease_valid,
            pause=lambda: self._waits.pause(poll),
            report=self.log.emit,
            threads=self._threads,
        )

    @override
    def _silent_ms(self, lock: Lock) -> float | None:
        return self._kept.silent_ms(lock)

    @override
    def _release(self, lock: Lock) -> None:
        if self._kept.get(lock) is None:
            return
        try:
            self._kept.release(lock)
        finally:
            if not self._kept:
                # After the lease: whoever is woken by it finds the lock free.
                self._crashes.drop()

    @override
    def _until_free(self, status: LockStatus) -> float:
        """Return how long to wait before looking at a lock again: no longer than it can last."""
        period = self._poll_seconds
        if status.expires_in_seconds is None or not keeps_leases(self._settings):
            return period
        return min(period, max(MIN_POLL_SECONDS, status.expires_in_seconds))
