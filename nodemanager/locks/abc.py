"""What a locker is, what keeps an exclusive lock, and what keeps the rows: the interfaces.

A **locker** (``Locker``) is one primitive that says who may, as ActiveMQ Classic's pluggable
storage lockers. Whatever keeps a lock, its row of NODE_MANAGER_STORE says who has it and under
which token. The token grows by one with every acquisition and is committed before anything is done
under it; the fence of the journal is advanced to it, and that is what protects the store, whatever
becomes of the lock. So there are two kinds:

- ``orthia.nodemanager.locks.lease_locker``: the row is the lock.
- ``orthia.nodemanager.locks.exclusive_locker``: an **exclusive lock** (``ExclusiveLock``: an open
  transaction, a lock file, somebody else's) is the lock, and the row follows it.

An exclusive lock knows nothing of tokens. It is what a third party implements: something that is
called with a ``LockerContext`` and returns one, named by an entry point; docs/lockers.md has an
example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from orthia.database import Blocker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus, State

OnDatabaseTime = Callable[[datetime, float, float], None]
"""Hears the database's time whenever it is told, with the stopwatch's readings before the request
and after the answer."""


class Locker(ABC):
    """Takes, keeps and gives back one lock; all calls may block, within the store's time-outs.

    Each method raises ``StoreUnavailable`` if the store does not answer.
    """

    def prepare(self) -> None:
        """Make ready at the start of a node; raises OrthiaError if it must not start so."""
        return

    @abstractmethod
    def try_acquire(self) -> Lease | None:
        """Take the lock if nobody holds it; None if somebody does."""

    @abstractmethod
    def take_over(self, seen: LockStatus) -> Lease | None:
        """Take the lock though its row names a holder, if the row is exactly as ``seen``.

        Whoever calls this knows by other means that the holder is gone, or is itself.
        """

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Keep the lock for another period; raises LockLost if it is no longer ours."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give the lock back; nothing happens if it was lost already."""

    def as_seen(self, row: LockStatus) -> LockStatus:
        """Return the status of the lock, of which the table says ``row``."""
        return row

    @abstractmethod
    def close(self) -> None:
        """Close what was opened, at the end of the node manager, without waiting for the store."""


class ExclusiveLock(ABC):
    """A lock that one holder at most has, and that does not outlive its process.

    One object is one would-be holder. All calls may block for a bounded time. They come from two
    threads, never at once. Each raises ``StoreUnavailable`` if what keeps the lock does not answer.
    """

    def prepare(self) -> None:
        """Make ready at the start of a node; raises OrthiaError if it must not start so."""
        return

    @abstractmethod
    def try_acquire(self) -> bool:
        """Take the lock if nobody has it, without waiting for it."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Prove that the lock is still held; raises LockLost, with the reason, if it is not."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""

    def abandon(self) -> None:
        """Release the lock at the end of the node manager, without waiting for anything."""
        self.release()

    def is_free(self) -> bool:
        """Return whether nobody has the lock; called by a node that has not."""
        if not self.try_acquire():
            return False
        self.release()
        return True


@dataclass(frozen=True)
class LockerContext:
    """What a third-party locker is told."""

    lock: Lock
    """Which of the two locks of a pair is wanted: each is one of its own."""
    node_name: str
    holder_id: HolderId
    """Who would hold it: node, host, process and a UUID."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The ``property`` elements of ``custom-locker``."""


LockerFactory = Callable[[LockerContext], ExclusiveLock]


class Acquired(NamedTuple):
    """The store's answer to an acquisition that succeeded."""

    token: int
    database_time: datetime


class NodeManagerStore(ABC):
    """NODE_MANAGER_STORE, whatever it is kept in.

    Each method is one atomic step; each raises a ``StoreError`` if the store does not answer.
    """

    @abstractmethod
    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        """Take ``lock`` if it is free or expired; its token grows by one. None: it is held.

        Held by ``holder_id`` itself it is taken too: an earlier request was carried out though its
        answer was lost.
        """

    @abstractmethod
    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        """Take ``lock``, though it has not expired, if it is exactly as ``seen``.

        Holder, token and expiry: a renewal in between is a None. Whoever calls this knows by other
        means that the holder is gone.
        """

    @abstractmethod
    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> datetime | None:
        """Set the expiry anew, if holder and token match; return the database's time.

        An expired lease that nobody took may be renewed, as in Artemis. None: it is lost. Raises
        RowMissing if there is no such row any more.
        """

    @abstractmethod
    def raise_token(self, lock: Lock, holder_id: str, token: int, to: int) -> bool:
        """Give the lock that is held under ``token`` the greater token ``to``. False: it is lost.

        For a journal that was written under greater tokens than this store has ever given out.
        """

    @abstractmethod
    def release(self, lock: Lock, holder_id: str, token: int) -> bool:
        """Free ``lock`` if holder and token match; the token stays. False: it was lost before."""

    @abstractmethod
    def advance_fence(self, holder_id: str, token: int) -> bool:
        """Make ``token`` the only one that may write to the journal, guarded by the live lease.

        Waits for a journal transaction that is in flight under an older token. False: the live
        lock is not held under this holder and token, or a newer token is fenced already.
        """

    @abstractmethod
    def end_fence_blockers(self, holder_id: str, token: int) -> list[Blocker]:
        """End the sessions that keep ``advance_fence`` waiting, on another thread, at this moment.

        None is ended unless the live lock is held under this holder and token. Returns those that
        were ended, and those that were to be but could not.
        """

    @abstractmethod
    def write_state(self, state: State, *, expected: State | None = None) -> bool:
        """Write the shared state; with ``expected`` only if that is the present one."""

    @abstractmethod
    def write_state_as_live(self, state: State, holder_id: str, token: int) -> bool:
        """Write the shared state if the live lock is held under this holder and token."""

    @abstractmethod
    def create_node_id(self, candidate: str) -> str:
        """Return the node id; ``candidate`` becomes it if there was none."""

    @abstractmethod
    def status(self) -> NodeManagerStatus:
        """Read everything in one statement."""

    def lock_status(self, lock: Lock) -> LockStatus:
        """Read one lock."""
        status = self.status()
        return status.live if lock is Lock.LIVE else status.backup
