"""The locker of ``lease-database-locker``, and of a store without a locker: the row is the lock."""

from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import Acquired, Locker, NodeManagerStore, OnDatabaseTime
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, deadline


class RowLocker(Locker):
    """A locker that keeps a row of NODE_MANAGER_STORE: who has the lock, under which token."""

    def __init__(
        self,
        store: NodeManagerStore,
        lock: Lock,
        holder_id: HolderId,
        *,
        expiration_ms: int,
        clock: Callable[[], float],
        on_database_time: OnDatabaseTime = lambda *_: None,
        above: Callable[[], int] = lambda: 0,
    ) -> None:
        """Lock ``lock`` of ``store`` as ``holder_id``, under a token greater than ``above()``."""
        self._store = store
        self._lock = lock
        self._holder_id = holder_id
        self._expiration_ms = expiration_ms
        self._clock = clock
        self._on_database_time = on_database_time
        self._above = above

    @override
    def renew(self, lease: Lease) -> Lease:
        asked = self._clock()
        self._prove()
        now = self._store.renew(self._lock, lease.holder_id, lease.token, self._expiration_ms)
        if now is None:
            raise LockLost(
                f"the {lease.lock.name.lower()} lock is no longer held by {lease.holder_id} under"
                f" token {lease.token}: another node took it"
            )
        self._on_database_time(now, asked, self._clock())
        return lease.renewed(asked, self._expiration_ms)

    def _prove(self) -> None:
        """Raise LockLost if the row says more than is true."""

    def _ask(self, request: Callable[[], Acquired | None]) -> Lease | None:
        asked = self._clock()
        acquired = request()
        if acquired is None:
            return None
        self._on_database_time(acquired.database_time, asked, self._clock())
        lease = Lease(self._lock, self._holder_id, acquired.token, self._deadline(asked))
        return self._raised(lease, self._above())

    def _take_row(self, seen: LockStatus) -> Lease | None:
        """Take the row, if it is as ``seen``."""
        return self._ask(
            lambda: self._store.take_over(
                self._lock, self._holder_id, self._expiration_ms, seen=seen
            )
        )

    def _deadline(self, asked_seconds: float) -> float:
        return deadline(asked_seconds, self._expiration_ms)

    def _raised(self, lease: Lease, above: int) -> Lease | None:
        """Return the lease under a token greater than ``above``; None if it was lost meanwhile."""
        if lease.token > above:
            return lease
        if not self._store.raise_token(lease.lock, lease.holder_id, lease.token, above + 1):
            return None
        return replace(lease, token=above + 1)


class LeaseDatabaseLocker(RowLocker):
    """A row with an expiry: the locker of the JDBC node manager."""

    @override
    def try_acquire(self) -> Lease | None:
        return self._ask(
            lambda: self._store.try_acquire(self._lock, self._holder_id, self._expiration_ms)
        )

    @override
    def take_over(self, seen: LockStatus) -> Lease | None:
        return self._take_row(seen)

    @override
    def release(self, lease: Lease) -> None:
        self._store.release(self._lock, lease.holder_id, lease.token)

    @override
    def close(self) -> None:
        """Leave the lease to expire."""
