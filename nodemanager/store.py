"""What a node manager asks of NODE_MANAGER_STORE, whatever it is kept in."""

from abc import ABC, abstractmethod
from datetime import datetime
from typing import NamedTuple

from orthia.database import Blocker
from orthia.nodemanager.lease import Lock, LockStatus, NodeManagerStatus, State


class Acquired(NamedTuple):
    """The store's answer to an acquisition that succeeded."""

    token: int
    database_time: datetime


class NodeManagerStore(ABC):
    """Each method is one atomic step; each raises a ``StoreError`` if the store does not answer."""

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
