"""What a node asks of its node manager, whatever its locks are: the interfaces of the room.

Those of lockers are in ``orthia.nodemanager.locks.abc``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.reports import Report


@dataclass(frozen=True, kw_only=True)
class Activation(ABC):
    """The live lock is held: what is left to do before clients are served."""

    detection_ms: float | None = None
    """From the last sign of the node before, as far as this one saw, to the lock being taken; None
    if there was none."""
    fence_ms: float = 0.0
    """What fencing the journal took; 0 where opening it does that, and is counted as loading."""

    @abstractmethod
    def activation_complete(self) -> None:
        """Write state L: clients are served. Raises StoreError, LockLost."""


@dataclass(frozen=True)
class FormerLife:
    """Who held the live lock when it lost sight of the store."""

    holder_id: str
    token: int
    stopped_seconds: float
    """On the stopwatch, which goes on from one life of a process to the next."""

    def last_sign(self) -> LastSign:
        """Return what the next life knows of this one: exactly when it stopped serving."""
        stopped = self.stopped_seconds
        return LastSign(stopped, stopped, HolderId(self.holder_id), stopped)


class NodeManager(ABC):
    """Waits for locks, keeps them, gives them back; names are Artemis' in snake case.

    Methods block and belong on an activation thread; ``is_lease_valid``, ``may_deliver``,
    ``lease_seconds_remaining``, ``fencing_token``, ``message_time_ms`` and ``interrupt`` may be
    used from any.
    """

    holder_id: HolderId
    log: FailoverLog

    @property
    @abstractmethod
    def fencing_token(self) -> int:
        """The token the journal is opened under; raises NotHeld."""

    @abstractmethod
    def is_lease_valid(self) -> bool:
        """Return whether the live lock is certainly held."""

    @abstractmethod
    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering."""

    @abstractmethod
    def lease_seconds_remaining(self) -> float | None:
        """Return how long the live lock is held at least; None if not, or if it has no end."""

    @abstractmethod
    def message_time_ms(self) -> int:
        """Return milliseconds since 1970 UTC by the store's clock, or this node's without one."""

    def publish(self, report: Report) -> None:  # noqa: B027 - a default: not every lock is shared
        """Publish ``report`` beside each lock that is held, if it has changed; raises StoreError.

        On one thread, which may have to wait for the store.
        """

    @abstractmethod
    def start(self) -> None:
        """Create or read the node id."""

    @abstractmethod
    def stop(self) -> None:
        """Stop every thread and close the log."""

    @abstractmethod
    def interrupt(self) -> None:
        """Make every present and later wait raise Interrupted."""

    @abstractmethod
    def register_lock_listener(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the reason, once, when the live lock is lost."""

    @abstractmethod
    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        """Call ``callback`` with lock and seconds after each renewal."""

    @abstractmethod
    def start_live_node(self) -> Activation:
        """Wait for the live lock as a live node."""

    @abstractmethod
    def resume_live_node(self, former: FormerLife, period_ms: int) -> Activation:
        """Take the live lock if it is still as ``former`` had it, asking each ``period_ms``.

        Raises LockLost if it is not, Interrupted.
        """

    @abstractmethod
    def start_backup(self) -> None:
        """Wait for the backup lock."""

    @abstractmethod
    def await_live_node(self) -> Activation:
        """Wait, as a backup, until this node may be live, and take the live lock."""

    @abstractmethod
    def release_backup(self) -> None:
        """Give the backup lock to the next in line."""

    @abstractmethod
    def stop_backup(self) -> None:
        """End a backup that never became live."""

    @abstractmethod
    def is_awaiting_failback(self) -> bool:
        """Return whether a live node asks for its place back; raises StoreError."""

    @abstractmethod
    def ask_who_waits(self) -> None:
        """Make a live node ask for its place again, if it is still there."""

    @abstractmethod
    def is_live_here(self) -> bool:
        """Return whether a process of this host has the live lock; raises StoreError."""

    @abstractmethod
    def pause_live_server(self) -> None:
        """Write state P and release the live lock: backups stay passive."""

    @abstractmethod
    def give_up_live_server(self) -> None:
        """Release the live lock of a node that never served: a backup takes over at once."""

    @abstractmethod
    def crash_live_server(self) -> None:
        """Release the live lock and leave the state: a backup takes over at once."""
