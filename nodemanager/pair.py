"""What the node managers of a pair do alike, wherever their two locks are.

A live node asks for its place and waits for the live lock; a backup waits for the backup lock, and
with that for its turn to be live. The rules are those of ``orthia.nodemanager.activation``. How a
lock is tried, kept and given back is each node manager's own.
"""

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.nodemanager.abc import Activation, NodeManager
from orthia.nodemanager.activation import (
    BackupWatch,
    Decision,
    Holder,
    HolderWatch,
    decide,
    still_wanted,
)
from orthia.nodemanager.errors import Interrupted, LockAcquisitionTimeout, NotHeld
from orthia.nodemanager.events import (
    BackupAnnounced,
    BackupLockObtained,
    BackupStarted,
    LeaseLost,
    LiveLockObtained,
    StaleFailback,
    StateNotWritten,
    StateWritten,
    TimersDiffer,
    WaitingForBackupLock,
    WaitingForLiveLock,
)
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.peer_check import PeerCheck
from orthia.nodemanager.threads import REAL_THREADS, Threads
from orthia.nodemanager.waits import Waits

LOGGER = logging.getLogger("orthia.failover")
LockListener = Callable[[str], None]
_Held = TypeVar("_Held")


@dataclass(frozen=True)
class ActivateCallback(Activation):
    """What ``start_live_node`` and ``await_live_node`` return: the live lock is held."""

    manager: "PairNodeManager[Any]"

    @override
    def activation_complete(self) -> None:
        self.manager.write_live_state(State.LIVE)


class PairNodeManager(NodeManager, Generic[_Held]):
    """A node manager whose two locks other nodes want, too; ``_Held`` is a lock that was taken."""

    acquisition_timeout: ClassVar[str]
    """The setting of how long a live node waits for the live lock."""

    def __init__(
        self,
        *,
        log: FailoverLog,
        holder_id: HolderId,
        clock: Callable[[], float],
        poll_seconds: float,
        acquisition_timeout_ms: int,
        on_its_way_ms: int,
        threads: Threads = REAL_THREADS,
    ) -> None:
        """Look at locks every ``poll_seconds``; a live node waits for ``acquisition_timeout_ms``.

        A live lock that is free while the state says that a live node is on its way is left alone
        for ``on_its_way_ms``.
        """
        self.holder_id = holder_id
        self.log = log
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._acquisition_timeout_ms = acquisition_timeout_ms
        self._on_its_way_ms = on_its_way_ms
        self._lock_listeners: list[LockListener] = []
        self._waits = Waits(clock=clock, report=log.emit, threads=threads)
        self._backup_lost = threads.event()
        self._node_id: str | None = None
        self._peer = PeerCheck(holder_id)

    # --- what each node manager has of its own

    @abstractmethod
    def status(self) -> NodeManagerStatus:
        """Read what the store says, and who has the locks; raises StoreError."""

    @abstractmethod
    def write_live_state(self, state: State) -> None:
        """Write the state as the live node; raises StoreError, LockLost, NotHeld."""

    @abstractmethod
    def _write_state(self, state: State, *, expected: State | None = None) -> None:
        """Write the state; with ``expected`` only if that is the present one."""

    @abstractmethod
    def _try_acquire(self, lock: Lock) -> _Held | None:
        """Take a lock if nobody has it; outlasts an outage."""

    @abstractmethod
    def _wait_for_backup_lock(self) -> int:
        """Wait for the backup lock, keep it, and return its token."""

    @abstractmethod
    def _forget_backup_lock(self) -> None:
        """Forget the backup lock, which was lost."""

    @abstractmethod
    def _activate(self, held: _Held, former: LastSign) -> ActivateCallback:
        """Begin to keep the live lock; ``former`` is what was seen of its holder before."""

    @abstractmethod
    def _decline(self, held: _Held) -> None:
        """Give back the live lock, which was just taken and is not wanted after all."""

    @abstractmethod
    def _release(self, lock: Lock) -> None:
        """Give a lock back, if it is held."""

    def _judge_holder(
        self,
        live: LockStatus,  # noqa: ARG002 - for those that can tell
        watch: HolderWatch,
    ) -> tuple[Holder, HolderWatch]:
        """Return what is known of the live lock's holder by other means, and what to remember."""
        return Holder.UNKNOWN, watch

    def _take_over(self, live: LockStatus, watch: HolderWatch, sign: LastSign) -> _Held | None:
        """Take the live lock from a holder that was judged to be gone, and tell of it."""
        raise NotImplementedError(f"no holder is ever judged to be gone: {live}, {watch}, {sign}")

    def _tell_of_expired(self, live: LockStatus, sign: LastSign) -> None:
        """Tell of a holder whose lease had ended when this node took the lock; see ``live``."""

    def _is_still_held(self, held: _Held) -> bool:  # noqa: ARG002 - for locks that run out
        """Return whether a lock that was just taken is not over yet."""
        return True

    def _silent_ms(self, lock: Lock) -> float | None:  # noqa: ARG002 - for locks that are renewed
        """Return how long ago the last renewal that succeeded began; None without renewals."""
        return None

    def _obtained(self, token: int, former: LastSign) -> LiveLockObtained:
        now = self._clock()
        return LiveLockObtained(
            Lock.LIVE, token, former.holder_id, former.age_ms(now), former.gone_ms(now)
        )

    def _until_free(self, status: LockStatus) -> float:  # noqa: ARG002 - for locks that run out
        """Return how long to wait, in seconds, before looking at a lock again."""
        return self._poll_seconds

    def _look_at_live(self, sign: LastSign) -> tuple[NodeManagerStatus, LastSign]:
        """Return what the store says, and the last sign there was of another node."""
        looked, status = self._waits.outlast_timed(self.status)
        self._look_at_peer(status.live)
        if status.live.holder_id == self.holder_id:
            return status, sign
        return status, sign.after(status.live, looked)

    # --- for everybody

    @override
    def interrupt(self) -> None:
        # In this order: a wait that ends for the second is over, and takes no lock for lost.
        self._waits.interrupt()
        self._backup_lost.set()

    def read_node_id(self) -> str:
        """Return the node id of the pair; raises NotHeld before ``start``."""
        if self._node_id is None:
            raise NotHeld("the node id is known after start()")
        return self._node_id

    @override
    def register_lock_listener(self, callback: LockListener) -> None:
        """Call ``callback`` with the reason, once, when the live lock is lost.

        It is called on a thread that looks after the lock and must not wait for the store.
        """
        self._lock_listeners.append(callback)

    @override
    def is_live_here(self) -> bool:
        live = self.status().live
        return live.is_held and live.holder_id is not None and live.holder_id.is_here

    def _fail_if_locked(self) -> None:
        live = self._waits.outlast(self.status).live
        if live.is_held:
            raise LockAcquisitionTimeout(
                f"failIfLocked is true, and the live lock is held by {live.holder_id}"
            )

    # --- live

    @override
    def start_live_node(self) -> ActivateCallback:
        """Write state F, wait for the live lock and begin to keep it.

        Raises LockAcquisitionTimeout, LockLost, Interrupted, StoreError.
        """
        self._waits.outlast(lambda: self._write_state(State.FAILING_BACK))
        self.log.emit(StateWritten(State.FAILING_BACK))
        started = self._clock()
        try:
            held, sign = self._wait_for_live_lock(started)
        except (LockAcquisitionTimeout, Interrupted):
            self._withdraw_failback()
            raise
        return self._activate(held, sign)

    def _wait_for_live_lock(self, started: float) -> tuple[_Held, LastSign]:
        timeout_ms = self._acquisition_timeout_ms
        announced = False
        watch, sign = HolderWatch(), LastSign()
        while True:
            status, sign = self._look_at_live(sign)
            live = status.live
            holder, watch = self._judge_holder(live, watch)
            held = self._try_acquire(Lock.LIVE)
            if held is None and holder is Holder.GONE:
                held = self._take_over(live, watch, sign)
            if held is not None:
                self._tell_of_expired(live, sign)
                return held, sign
            name = live.holder_id or "nobody"
            if not announced:
                self.log.emit(WaitingForLiveLock(Lock.LIVE, name))
                announced = True
            if status.state is State.LIVE and live.is_held:
                # Whoever serves became live after this node had asked, or doubts that it still is
                # here; see ``ask_who_waits``.
                self._waits.outlast(self._ask_for_failback_again)
            if 0 <= timeout_ms <= (self._clock() - started) * 1000:
                raise LockAcquisitionTimeout(
                    f"the live lock was not free within {self.acquisition_timeout} {timeout_ms} ms;"
                    f" it is held by {name}: another live node runs, or a backup that does not"
                    " allow failback"
                )
            self._waits.pause(self._until_free(live))

    def _ask_for_failback_again(self) -> None:
        self._write_state(State.FAILING_BACK, expected=State.LIVE)

    def _withdraw_failback(self) -> None:
        """Take state F back if somebody serves, so that nobody hands over to a node that left."""
        with contextlib.suppress(OrthiaError):
            if self.status().live.is_held:
                self._write_state(State.LIVE, expected=State.FAILING_BACK)

    # --- backup

    @override
    def start_backup(self) -> None:
        """Wait for the backup lock, however long, and keep it; raises Interrupted."""
        self.log.emit(WaitingForBackupLock(Lock.BACKUP))
        token = self._wait_for_backup_lock()
        self.log.emit(BackupLockObtained(Lock.BACKUP, token))
        self.log.emit(BackupStarted())
        status = self._waits.outlast(self.status)
        nobody = "nobody yet" if status.state is State.FAILING_BACK else "nobody"
        self.log.emit(BackupAnnounced(status.live.holder_id or nobody))

    @override
    def await_live_node(self) -> ActivateCallback:
        """Wait until this node may be live, take the live lock and begin to keep it.

        A backup lock lost meanwhile is waited for again. Raises LockLost, Interrupted.
        """
        watch, holder_watch, sign = BackupWatch(), HolderWatch(), LastSign()
        while True:
            if self._backup_lost.is_set():
                self._waits.pause(0)
                self._forget_backup_lock()
                self.start_backup()
                watch, holder_watch = BackupWatch(), HolderWatch()
            status, sign = self._look_at_live(sign)
            live = status.live
            holder, holder_watch = self._judge_holder(live, holder_watch)
            decision, watch = decide(status, watch, self._clock(), self._on_its_way_ms, holder)
            if decision is Decision.WAIT:
                held = None
            elif decision is Decision.TAKE_OVER:
                held = self._take_over(live, holder_watch, sign)
            else:
                held = self._try_acquire(Lock.LIVE)
            if held is None:
                self._waits.pause(self._until_free(live))
            elif self._keeps(held, decision, watch):
                self._tell_of_expired(live, sign)
                return self._activate(held, sign)

    def _keeps(self, held: _Held, decision: Decision, watch: BackupWatch) -> bool:
        state = self._waits.outlast(self.status).state
        if not self._is_still_held(held):
            return False  # the store was away meanwhile: look again before anything else
        if not still_wanted(decision, state):
            self._decline(held)
            return False
        if decision is Decision.TAKE_STALE:
            since = watch.unheld_since_seconds or self._clock()
            self.log.emit(StaleFailback(state, (self._clock() - since) * 1000))
        return True

    @override
    def release_backup(self) -> None:
        self._release(Lock.BACKUP)

    @override
    def stop_backup(self) -> None:
        self._release(Lock.BACKUP)

    # --- being live

    @override
    def ask_who_waits(self) -> None:
        """Take state F back: a live node that still waits writes it again, one that is gone not.

        Raises StoreError, LockLost, NotHeld.
        """
        self.write_live_state(State.LIVE)

    # --- the end of being live

    @override
    def pause_live_server(self) -> None:
        if self.is_lease_valid():
            try:
                self.write_live_state(State.PAUSED)
            except OrthiaError as error:
                self.log.emit(StateNotWritten(State.PAUSED, str(error)))
        self._release(Lock.LIVE)

    @override
    def crash_live_server(self) -> None:
        self._release(Lock.LIVE)

    @override
    def give_up_live_server(self) -> None:
        """Release the live lock of a node that never served: a backup takes over at once.

        It would otherwise wait for an expiration, for a node that is on its way to be live.
        """
        if self.is_lease_valid():
            with contextlib.suppress(OrthiaError):
                self.write_live_state(State.LIVE)
        self._release(Lock.LIVE)

    def _lose_live_lock(self, token: int, reason: str) -> None:
        failures: list[Exception] = []
        try:
            show = self.log.record(LeaseLost(Lock.LIVE, token, reason, self._silent_ms(Lock.LIVE)))
        finally:
            # Whatever becomes of the log, with no memory left: who acts on the lease must know.
            for listener in self._lock_listeners:
                try:
                    listener(reason)
                except MemoryError:
                    raise  # the node is to end with this thread
                except Exception as error:  # noqa: BLE001 - logged below, when all are told
                    failures.append(error)
        # The console comes last: it may have stopped as well.
        show()
        for failure in failures:
            LOGGER.error("a lock listener failed: %s", failure, exc_info=failure)

    def _lose_backup_lock(self, token: int, reason: str) -> None:
        lost = LeaseLost(Lock.BACKUP, token, reason, self._silent_ms(Lock.BACKUP))
        show = self.log.record(lost)
        self._backup_lost.set()
        show()

    # --- inside

    def _look_at_peer(self, live: LockStatus) -> None:
        for found in self._peer.look(live):
            if isinstance(found, TimersDiffer):
                self.log.emit(found)
            else:
                LOGGER.warning("%s", found)
