"""Lockers: one primitive that says who may, as ActiveMQ Classic's pluggable storage lockers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime

from nodemanager.errors import LockLost
from nodemanager.lease import Lease, Lock, LockStatus, deadline
from nodemanager.store import Acquired, NodeManagerStore


class Locker(ABC):
    """Takes, keeps and gives back one lock; all calls may block, within the store's time-outs.

    Each method raises ``StoreUnavailable`` if the store does not answer.
    """

    @abstractmethod
    def try_acquire(self) -> Lease | None:
        """Take the lock if nobody holds it; None if somebody does."""

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Keep the lock for another period; raises LockLost if it is not ours any more."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give the lock back; nothing happens if it was lost already."""

    @abstractmethod
    def status(self) -> LockStatus:
        """Return who holds the lock, as the store sees it."""


class LeaseDatabaseLocker(Locker):
    """A row with an expiry: the locker of the JDBC node manager."""

    def __init__(
        self,
        store: NodeManagerStore,
        lock: Lock,
        holder_id: str,
        *,
        expiration_ms: int,
        clock: Callable[[], float],
        on_database_time: Callable[[datetime, float, float], None] = lambda *_: None,
    ) -> None:
        """Lock ``lock`` of ``store`` as ``holder_id``.

        ``on_database_time`` hears the database's time whenever it is told, with the stopwatch's
        readings before the request and after the answer.
        """
        self._store = store
        self._lock = lock
        self._holder_id = holder_id
        self._expiration_ms = expiration_ms
        self._clock = clock
        self._on_database_time = on_database_time

    def try_acquire(self) -> Lease | None:
        """Take the lease if it is free or expired."""
        return self._ask(
            lambda: self._store.try_acquire(self._lock, self._holder_id, self._expiration_ms)
        )

    def take_over(self, seen: LockStatus) -> Lease | None:
        """Take the lease of a holder that is gone, if it is as ``seen``; raises StoreError."""
        return self._ask(
            lambda: self._store.take_over(
                self._lock, self._holder_id, self._expiration_ms, seen=seen
            )
        )

    def _ask(self, request: Callable[[], Acquired | None]) -> Lease | None:
        asked = self._clock()
        acquired = request()
        if acquired is None:
            return None
        self._on_database_time(acquired.database_time, asked, self._clock())
        until = deadline(asked, self._expiration_ms)
        return Lease(self._lock, self._holder_id, acquired.token, until)

    def renew(self, lease: Lease) -> Lease:
        """Set the lease's expiry anew."""
        asked = self._clock()
        now = self._store.renew(self._lock, lease.holder_id, lease.token, self._expiration_ms)
        if now is None:
            raise LockLost(
                f"the {self._lock.name.lower()} lock is not held by {lease.holder_id} under token"
                f" {lease.token} any more: another node took it"
            )
        self._on_database_time(now, asked, self._clock())
        return lease.renewed(asked, self._expiration_ms)

    def release(self, lease: Lease) -> None:
        """Free the lease if it is still ours."""
        self._store.release(self._lock, lease.holder_id, lease.token)

    def status(self) -> LockStatus:
        """Return the lease as the database sees it."""
        return self._store.lock_status(self._lock)
