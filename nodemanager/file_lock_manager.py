"""The node manager of a shared directory: Artemis' FileLockNodeManager.

The locks are the operating system's, on files in the journal directory. They end with the process
that holds them and not before: a live node that is merely stopped stays live, and is replaced when
it is killed. There is no lease, so nothing is renewed, and no clock decides anything.

The rules of a waiting backup are those of ``nodemanager.activation``; a lock that is free while the
state says that a live node is on its way is left alone for ``ON_ITS_WAY_MS``.
"""

import contextlib
import logging
import math
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from config.clock import monotonic_seconds
from config.errors import OrthiaError
from config.settings import Role, SharedFileLockerSettings
from database import StoreUnavailable
from nodemanager.activation import BackupWatch, Decision, decide, still_wanted
from nodemanager.errors import Interrupted, LockAcquisitionTimeout, LockLost, NotHeld
from nodemanager.events import (
    BackupAnnounced,
    BackupLockObtained,
    BackupStarted,
    ConnectorsResume,
    Event,
    LeaseLost,
    LiveLockObtained,
    LockReleased,
    NodeStarted,
    StaleFailback,
    StateNotWritten,
    StateWritten,
    StoreRecovered,
    StoreUnavailableEvent,
    WaitingForBackupLock,
    WaitingForLiveLock,
)
from nodemanager.failover_log import FailoverLog
from nodemanager.lease import Lock, LockStatus, NodeManagerStatus, State
from nodemanager.manager import new_holder_id
from nodemanager.protocol import FormerLife
from nodemanager.server_lock import ServerLock

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


@dataclass(frozen=True)
class FileLockActivation:
    """The live lock is held."""

    manager: "FileLockNodeManager"
    detection_ms: float
    fence_ms: float = 0.0
    """Opening the journal fences it here, so that its time is part of loading."""

    def activation_complete(self) -> None:
        """Write state L: clients are served. Raises LockLost, StoreUnavailable."""
        self.manager.write_live_state(State.LIVE)


class FileLockNodeManager:
    """See ``nodemanager.protocol.NodeManager``."""

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
        self._directory = directory
        self._files = ServerLock(directory)
        self._acquisition_timeout_ms = acquisition_timeout_ms
        self._locker = locker
        self._poll_seconds, self._watch_seconds = POLL_SECONDS, WATCH_SECONDS
        if locker is not None:
            self._poll_seconds = locker.lock_acquire_sleep_interval / 1000
            self._watch_seconds = locker.lock_keep_alive_period / 1000
        self._newest_token = newest_token
        self._clock = clock
        self.holder_id = new_holder_id(name, crash_detection=True)
        self.log = FailoverLog(
            node_name=name,
            holder_id=self.holder_id,
            role=role.value,
            path=log_path,
            listener=listener,
        )
        self._lock_listeners: list[Callable[[str], None]] = []
        self._token: int | None = None
        self._backup_token = 0
        self._interrupted = threading.Event()
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        self._watch = threading.Thread(target=self._watch_locks, name="orthia-locks", daemon=True)
        self._holds: set[Lock] = set()
        self._backup_lost = False
        self._node_id: str | None = None
        self._outage_since: float | None = None

    # --- the life of the node manager

    def start(self) -> None:
        """Create or read the node id.

        Raises LockAcquisitionTimeout if ``failIfLocked`` is set and the live lock is held,
        Interrupted, StoreError.
        """
        shared = self._patiently(self._files.read)
        if shared.node_id is None:
            candidate = str(uuid.uuid4())
            self._patiently(lambda: self._name_pair(candidate))
            shared = self._patiently(self._files.read)
        self._node_id = self.log.node_id = shared.node_id
        version = metadata.version("orthia")
        self.log.emit(
            NodeStarted(version, self.log.role, str(self._directory), shared.node_id or "")
        )
        if self._watch_seconds > 0:
            self._watch.start()
        if self._locker is not None and self._locker.fail_if_locked:
            status = self._patiently(self.status)
            if status.live.is_held:
                raise LockAcquisitionTimeout(
                    f"failIfLocked is true, and the live lock is held by {status.live.holder_id}"
                )

    def _name_pair(self, candidate: str) -> None:
        if self._files.read().node_id is None:
            self._files.update(node_id=candidate)

    def stop(self) -> None:
        """Let every lock go, end the thread and close the log; once is enough."""
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

    def interrupt(self) -> None:
        """Make every present and later wait raise Interrupted."""
        self._interrupted.set()

    def read_node_id(self) -> str:
        """Return the node id of the pair; raises NotHeld before ``start``."""
        if self._node_id is None:
            raise NotHeld("the node id is known after start()")
        return self._node_id

    def register_lock_listener(self, callback: Callable[[str], None]) -> None:
        """Have ``callback`` called with the reason, once, when the live lock is lost."""
        self._lock_listeners.append(callback)

    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        """Never call ``callback``: a file lock is not renewed."""

    # --- what is held

    @property
    def fencing_token(self) -> int:
        """The token of the live lock; raises NotHeld."""
        if self._token is None:
            raise NotHeld("this node does not hold the live lock")
        return self._token

    def is_lease_valid(self) -> bool:
        """Return whether the live lock is held; cheap enough for every delivery."""
        return self._token is not None

    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering: while the lock is held."""
        return self._token is not None

    def lease_seconds_remaining(self) -> float | None:
        """Return None: a file lock has no end of its own."""
        return None

    def status(self) -> NodeManagerStatus:
        """Read what the files say; raises StoreError."""
        return read_status(self._files)

    def is_awaiting_failback(self) -> bool:
        """Return whether a live node asks for its place back; raises StoreError."""
        return self._files.read().state is State.FAILING_BACK

    def is_backup_live(self) -> bool:
        """Return whether some backup is next in line, or live already; raises StoreError."""
        return self._files.is_held_by_somebody(Lock.BACKUP)

    # --- live

    def start_live_node(self) -> FileLockActivation:
        """Write state F, wait for the live lock, take the next token.

        Raises LockAcquisitionTimeout, Interrupted, StoreError.
        """
        self._patiently(lambda: self._files.update(state=State.FAILING_BACK))
        self.log.emit(StateWritten(State.FAILING_BACK))
        started = self._clock()
        try:
            self._wait_for_live_lock(started)
        except (LockAcquisitionTimeout, Interrupted):
            self._withdraw_failback()
            raise
        return self._activate(detection_ms=(self._clock() - started) * 1000)

    def resume_live_node(self, former: FormerLife, period_ms: int) -> FileLockActivation:
        """Take the live lock if nobody had it since ``former``, asking each ``period_ms``.

        Raises LockLost if somebody had it, Interrupted, StoreError.
        """
        while True:
            self._files.release(Lock.LIVE)
            with contextlib.suppress(StoreUnavailable):
                if self._files.try_acquire(Lock.LIVE, self.holder_id, if_token=former.token):
                    with self._mutex:
                        self._holds.add(Lock.LIVE)
                    outage_ms = (self._clock() - former.stopped_seconds) * 1000
                    activation = self._activate(detection_ms=outage_ms)
                    token = self.fencing_token
                    self.log.emit(ConnectorsResume(former.token, token, outage_ms))
                    return activation
                shared = self._files.read()
                if shared.token != former.token:
                    raise LockLost(
                        f"the live lock is not held under token {former.token} any more: it was"
                        f" taken by {shared.live_holder or 'nobody'} under token {shared.token}"
                    )
            self._pause(period_ms / 1000)

    def _wait_for_live_lock(self, started: float) -> None:
        timeout_ms = self._acquisition_timeout_ms
        announced = False
        while not self._try(Lock.LIVE):
            holder = self._patiently(self.status).live.holder_id or "nobody"
            if not announced:
                self.log.emit(WaitingForLiveLock(Lock.LIVE, holder))
                announced = True
            if 0 <= timeout_ms <= (self._clock() - started) * 1000:
                raise LockAcquisitionTimeout(
                    f"the live lock was not free within journal-lock-acquisition-timeout"
                    f" {timeout_ms} ms; it is held by {holder}: another live node runs, or a"
                    " backup that does not allow failback"
                )
            self._pause(self._poll_seconds)

    def _withdraw_failback(self) -> None:
        """Take state F back if somebody serves, so that nobody hands over to a node that left."""
        with contextlib.suppress(OrthiaError):
            if self._files.is_held_by_somebody(Lock.LIVE):
                self._files.update(expected=State.FAILING_BACK, state=State.LIVE)

    # --- backup

    def start_backup(self) -> None:
        """Wait for the backup lock, however long, and keep it; raises Interrupted."""
        self.log.emit(WaitingForBackupLock(Lock.BACKUP))
        while not self._try(Lock.BACKUP):
            self._pause(self._poll_seconds)
        self._backup_lost = False
        self._backup_token = self._patiently(self._files.read).backup_token
        self.log.emit(BackupLockObtained(Lock.BACKUP, self._backup_token))
        self.log.emit(BackupStarted())
        status = self._patiently(self.status)
        nobody = "nobody yet" if status.state is State.FAILING_BACK else "nobody"
        self.log.emit(BackupAnnounced(status.live.holder_id or nobody))

    def await_live_node(self) -> FileLockActivation:
        """Wait until this node may be live, and take the live lock; raises Interrupted."""
        watch = BackupWatch()
        while True:
            if self._backup_lost:
                self._give_up(Lock.BACKUP)
                self.start_backup()
                watch = BackupWatch()
            looked = self._clock()
            status = self._patiently(self.status)
            decision, watch = decide(status, watch, looked, ON_ITS_WAY_MS)
            if decision is Decision.WAIT or not self._try(Lock.LIVE):
                self._pause(self._poll_seconds)
                continue
            state = self._patiently(self._files.read).state
            if still_wanted(decision, state):
                if decision is Decision.TAKE_STALE:
                    since = watch.unheld_since_seconds or looked
                    self.log.emit(StaleFailback(state, (self._clock() - since) * 1000))
                return self._activate(detection_ms=(self._clock() - looked) * 1000)
            self._give_up(Lock.LIVE)

    def release_backup(self) -> None:
        """Give the backup lock to the next in line, if it is held."""
        self._release(Lock.BACKUP)

    def stop_backup(self) -> None:
        """End a backup that never became live."""
        self._release(Lock.BACKUP)

    # --- the end of being live

    def pause_live_server(self) -> None:
        """Write state P and release the live lock: backups stay passive."""
        if self.is_lease_valid():
            try:
                self.write_live_state(State.PAUSED)
            except OrthiaError as error:
                self.log.emit(StateNotWritten(State.PAUSED, str(error)))
        self._release(Lock.LIVE)

    def crash_live_server(self) -> None:
        """Release the live lock and leave the state: a backup takes over at once."""
        self._release(Lock.LIVE)

    def write_live_state(self, state: State) -> None:
        """Write the state as the live node; raises StoreError, LockLost."""
        if not self.is_lease_valid():
            raise LockLost(f"state {state.value} not written: the live lock is not held any more")
        self._files.update(state=state)
        self.log.emit(StateWritten(state))

    # --- inside

    def _activate(self, *, detection_ms: float) -> FileLockActivation:
        token = self._patiently(
            lambda: self._files.next_token(self.holder_id, self._newest_token())
        )
        self._token = token
        self.log.emit(LiveLockObtained(Lock.LIVE, token))
        return FileLockActivation(self, detection_ms)

    def _try(self, lock: Lock) -> bool:
        if self._locker is not None and not self._locker.use_lock:
            return True
        acquired = self._patiently(lambda: self._files.try_acquire(lock, self.holder_id))
        if acquired:
            with self._mutex:
                self._holds.add(lock)
        return acquired

    def _give_up(self, lock: Lock) -> None:
        with self._mutex:
            self._holds.discard(lock)
            self._files.release(lock)

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
        """Notice that a lock file was removed or replaced: then it locks nobody out."""
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
        show = self.log.record(LeaseLost(lock, token, reason))
        if lock is Lock.BACKUP:
            self._backup_lost = True
        else:
            for listener in self._lock_listeners:
                try:
                    listener(reason)
                except Exception:
                    LOGGER.exception("a lock listener failed")
        show()

    def _pause(self, seconds: float) -> None:
        """Wait; raises Interrupted."""
        if self._interrupted.wait(seconds):
            raise Interrupted("the node is being stopped")

    def _patiently(self, ask: Callable[[], _Result]) -> _Result:
        """Ask again and again while the directory is away: a waiting node outlives an outage."""
        while True:
            self._pause(0)
            try:
                answer = ask()
            except StoreUnavailable as error:
                if self._outage_since is None:
                    self._outage_since = self._clock()
                    self.log.emit(StoreUnavailableEvent(str(error)))
            else:
                if self._outage_since is not None:
                    outage_ms = (self._clock() - self._outage_since) * 1000
                    self._outage_since = None
                    self.log.emit(StoreRecovered(outage_ms))
                return answer
            self._pause(_RETRY_SECONDS)


def read_status(files: ServerLock) -> NodeManagerStatus:
    """Return what a directory's files say, in the words of a database's status.

    A file lock that is held expires never, and its time is this machine's.
    """
    shared, held = files.read_held()

    def status(lock: Lock, holder: str | None, token: int) -> LockStatus:
        if lock not in held:
            return LockStatus(lock, None, token, None)
        return LockStatus(lock, holder or "somebody", token, math.inf)

    return NodeManagerStatus(
        shared.state,
        status(Lock.LIVE, shared.live_holder, shared.token),
        status(Lock.BACKUP, shared.backup_holder, shared.backup_token),
        shared.node_id,
        shared.token,
        datetime.now(UTC),
    )
