"""The node manager of a shared directory: Artemis' FileLockNodeManager.

The locks are the operating system's, on files in the journal directory. They end with the process
that holds them and not before: a live node that is merely stopped stays live, and is replaced when
it is killed. There is no lease, so nothing is renewed, and no clock decides anything.

The rules of a waiting backup are those of ``orthia.nodemanager.activation``; a lock that is free
while the state says that a live node is on its way is left alone for ``ON_ITS_WAY_MS``.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.config.settings import Role
from orthia.config.store_settings import SharedFileLockerSettings
from orthia.database import StoreUnavailable
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.errors import LockLost, NotHeld
from orthia.nodemanager.events import (
    ConnectorsResume,
    Event,
    LockReleased,
    NodeStarted,
    StateWritten,
)
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, NodeManagerStatus, State
from orthia.nodemanager.locks.report_files import ReportFiles
from orthia.nodemanager.locks.reports import Report
from orthia.nodemanager.locks.server_lock import STATE_FILE, ServerLock
from orthia.nodemanager.locks.status import status_of_files
from orthia.nodemanager.pair import ActivateCallback, PairNodeManager

LOGGER = logging.getLogger("orthia.failover")
_Result = TypeVar("_Result")

POLL_SECONDS: Final = 0.1
"""How often a waiting node tries a lock; a takeover costs half of it on average."""
WATCH_SECONDS: Final = 1.0
"""How often the holder of a lock looks whether its file is still in place."""
ON_ITS_WAY_MS: Final = 5_000
"""How long a live node may take from asking for failback to taking the free lock."""
_RETRY_SECONDS: Final = 0.5
_LOG_CLOSE_SECONDS: Final = 2.0
_JOIN_SECONDS: Final = 2.0


class FileLockNodeManager(PairNodeManager[Lock]):
    """The node manager of a directory; a lock that was taken is itself."""

    acquisition_timeout = "journal-lock-acquisition-timeout"

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        role: Role = Role.LIVE,
        acquisition_timeout_ms: int = -1,
        locker: SharedFileLockerSettings | None = None,
        newest_token: Callable[[], int] = lambda: 0,
        log_path: Path | None = None,
        listener: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """Make the node manager of ``directory``, which exists; opens its files.

        ``newest_token`` says which token the journal was last opened under: the next is above it,
        even if ``server.lock`` was lost. ``locker`` says how often to try and to look, if not as by
        default. Raises StoreUnavailable.
        """
        holder_id = HolderId.new(name, crash_detection=True)
        super().__init__(
            log=FailoverLog(
                node_name=name,
                holder_id=holder_id,
                role=role.value,
                path=log_path,
                listener=listener,
            ),
            holder_id=holder_id,
            clock=clock,
            poll_seconds=locker.lock_acquire_sleep_interval / 1000 if locker else POLL_SECONDS,
            acquisition_timeout_ms=acquisition_timeout_ms,
            on_its_way_ms=ON_ITS_WAY_MS,
        )
        self._directory = directory
        self._files = ServerLock(directory)
        self._locker = locker
        self._watch_seconds = locker.lock_keep_alive_period / 1000 if locker else WATCH_SECONDS
        self._newest_token = newest_token
        self._token: int | None = None
        self._backup_token = 0
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        self._watch = threading.Thread(target=self._watch_locks, name="orthia-locks", daemon=True)
        self._holds: set[Lock] = set()
        self._reports = ReportFiles(directory)
        self._published: dict[Lock, tuple[int, Report]] = {}

    # --- the life of the node manager

    @override
    def start(self) -> None:
        """Create or read the node id.

        Raises LockAcquisitionTimeout if ``failIfLocked`` is set and the live lock is held,
        Interrupted, StoreError.
        """
        shared = self._waits.outlast(self._files.read)
        if shared.node_id is None:
            candidate = str(uuid.uuid4())
            self._waits.outlast(lambda: self._name_pair(candidate))
            shared = self._waits.outlast(self._files.read)
        self._node_id = self.log.node_id = shared.node_id
        version = metadata.version("orthia")
        self.log.emit(
            NodeStarted(version, self.log.role, str(self._directory), shared.node_id or "")
        )
        if self._watch_seconds > 0:
            self._watch.start()
        if self._locker is not None and self._locker.fail_if_locked:
            self._fail_if_locked()

    def _name_pair(self, candidate: str) -> None:
        """Give a pair its id; one whose ``server.lock`` is new beside an old journal is paused.

        Nobody knows whether it was, and a backup that took over would end an operator's pause.
        """
        if self._files.read().node_id is not None:
            return
        if not self._newest_token():
            self._files.update(node_id=candidate)
            return
        fresh = State.NOT_STARTED
        if self._files.update(expected=fresh, node_id=candidate, state=State.PAUSED) is not None:
            LOGGER.warning(
                "%s is new, though the journal was in use: it no longer tells whether the pair was"
                " paused, so it counts as paused; start the live node: until then no backup takes"
                " over",
                self._directory / STATE_FILE,
            )

    @override
    def stop(self) -> None:
        """Release every lock, end the thread and close the log; repeating it does no harm."""
        self.interrupt()
        with self._mutex:
            first = not self._closing.is_set()
            self._closing.set()
        if not first:
            return
        if self._watch.is_alive():
            self._watch.join(_JOIN_SECONDS)
        with self._mutex:
            self._holds.clear()
            self._token = None
            self._files.close()
        self.log.close(_LOG_CLOSE_SECONDS)

    @override
    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        """Never call ``callback``: a file lock is not renewed."""

    @override
    def publish(self, report: Report) -> None:
        with self._mutex:
            holds = list(self._holds)
        for lock in holds:
            told = (self._token_of(lock), report)
            if self._published.get(lock) != told:
                self._reports.write(lock, self.holder_id, *told)
                self._published[lock] = told

    # --- what is held

    @property
    @override
    def fencing_token(self) -> int:
        if self._token is None:
            raise NotHeld("this node does not hold the live lock")
        return self._token

    @override
    def is_lease_valid(self) -> bool:
        return self._token is not None

    @override
    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering: while the lock is held."""
        return self._token is not None

    @override
    def message_time_ms(self) -> int:
        """Return milliseconds since 1970 UTC by this node's clock: files have none."""
        return time.time_ns() // 1_000_000

    @override
    def lease_seconds_remaining(self) -> float | None:
        """Return None: a file lock has no end of its own."""
        return None

    @override
    def status(self) -> NodeManagerStatus:
        return status_of_files(self._files)

    @override
    def is_awaiting_failback(self) -> bool:
        return self._files.read().state is State.FAILING_BACK

    def is_backup_live(self) -> bool:
        """Return whether some backup is next in line, or live already; raises StoreError."""
        return self._files.is_held_by_somebody(Lock.BACKUP)

    # --- live

    @override
    def resume_live_node(self, former: FormerLife, period_ms: int) -> ActivateCallback:
        """Take the live lock if nobody had it since ``former``, asking each ``period_ms``.

        Raises LockLost if somebody had it, Interrupted, StoreError.
        """
        while True:
            self._files.release(Lock.LIVE)
            try:
                if self._files.try_acquire(Lock.LIVE, self.holder_id, if_token=former.token):
                    with self._mutex:
                        self._holds.add(Lock.LIVE)
                    outage_ms = (self._clock() - former.stopped_seconds) * 1000
                    activation = self._activate(Lock.LIVE, former.last_sign())
                    token = self.fencing_token
                    self._waits.end_outage()
                    self.log.emit(ConnectorsResume(former.token, token, outage_ms))
                    return activation
                shared = self._files.read()
                if shared.token != former.token:
                    raise LockLost(
                        f"the live lock is no longer held under token {former.token}: it was"
                        f" taken by {shared.live_holder or 'nobody'} under token {shared.token}"
                    )
            except StoreUnavailable as error:
                self._waits.note_unavailable(error)
            self._waits.pause(period_ms / 1000)

    # --- backup

    @override
    def _wait_for_backup_lock(self) -> int:
        while self._try_acquire(Lock.BACKUP) is None:
            self._waits.pause(self._poll_seconds)
        self._backup_lost.clear()
        self._backup_token = self._waits.outlast(self._files.read).backup_token
        return self._backup_token

    @override
    def _forget_backup_lock(self) -> None:
        self._give_up(Lock.BACKUP)

    @override
    def _decline(self, held: Lock) -> None:
        self._give_up(held)

    # --- the end of being live

    @override
    def write_live_state(self, state: State) -> None:
        if not self.is_lease_valid():
            raise LockLost(f"state {state.value} not written: the live lock is not held any more")
        self._files.update(state=state)
        self.log.emit(StateWritten(state))

    @override
    def _write_state(self, state: State, *, expected: State | None = None) -> None:
        self._files.update(expected=expected, state=state)

    # --- inside

    @override
    def _activate(
        self,
        held: Lock,
        former: LastSign,
    ) -> ActivateCallback:
        token = self._waits.outlast(
            lambda: self._files.next_token(self.holder_id, self._newest_token())
        )
        self._token = token
        self.log.emit(self._obtained(token, former))
        return ActivateCallback(self, detection_ms=former.age_ms(self._clock()))

    @override
    def _try_acquire(self, lock: Lock) -> Lock | None:
        if self._locker is not None and not self._locker.use_lock:
            return lock
        if not self._waits.outlast(lambda: self._files.try_acquire(lock, self.holder_id)):
            return None
        with self._mutex:
            self._holds.add(lock)
        return lock

    def _give_up(self, lock: Lock) -> None:
        with self._mutex:
            self._holds.discard(lock)
            self._files.release(lock)

    @override
    def _release(self, lock: Lock) -> None:
        token = self._token_of(lock)
        if lock is Lock.LIVE:
            self._token = None
        if lock not in self._holds:
            return
        self._give_up(lock)
        self.log.emit(LockReleased(lock, token))

    def _token_of(self, lock: Lock) -> int:
        return self._backup_token if lock is Lock.BACKUP else self._token or 0

    def _watch_locks(self) -> None:
        """Detect that a lock file was removed or replaced: it then protects nothing."""
        while not self._closing.wait(self._watch_seconds):
            with self._mutex:
                lost = {lock: self._files.why_lost(lock) for lock in self._holds}
            for lock, reason in lost.items():
                if reason is not None:
                    self._lose(lock, reason)

    def _lose(self, lock: Lock, reason: str) -> None:
        token = self._token_of(lock)
        with self._mutex:
            if lock not in self._holds:
                return
            self._holds.discard(lock)
            if lock is Lock.LIVE:
                self._token = None
        lose = self._lose_backup_lock if lock is Lock.BACKUP else self._lose_live_lock
        lose(token, reason)
