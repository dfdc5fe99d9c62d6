"""Lockers: one primitive that says who may, as ActiveMQ Classic's pluggable storage lockers.

Whatever keeps a lock, its row of NODE_MANAGER_STORE says who has it and under which token. The
token grows by one with every acquisition and is committed before anything is done under it; the
fence of the journal is advanced to it, and that is what protects the store, whatever becomes of the
lock.

- ``LeaseDatabaseLocker``: the row is the lock.
- ``ExclusiveLocker``: an exclusive lock (an open transaction, a lock file, somebody else's) is the
  lock, and the row follows it: it is taken only while the exclusive lock is held, and renewed only
  after that was proved. A node that keeps leases only, on the same store by mistake or on the way
  from one locker to the other, therefore finds the row held.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.exclusive import ExclusiveLock
from orthia.nodemanager.holder_id import HolderId
from orthia.nodemanager.lease import Lease, Lock, LockStatus, deadline
from orthia.nodemanager.store import Acquired, NodeManagerStore

_MOMENT_SECONDS: Final = 0.001

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
        """Keep the lock for another period; raises LockLost if it is not ours any more."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give the lock back; nothing happens if it was lost already."""

    def as_seen(self, row: LockStatus) -> LockStatus:
        """Return the status of the lock, of which the table says ``row``."""
        return row

    @abstractmethod
    def close(self) -> None:
        """Close what was opened, at the end of the node manager, without waiting for the store."""


class RowLocker(Locker):
    """A locker that keeps a row of NODE_MANAGER_STORE: who has the lock, under which token."""

    def __init__(
        self,
        store: NodeManagerStore,
        lock: Lock,
        holder_id: str,
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

    def renew(self, lease: Lease) -> Lease:
        """Set the row's expiry anew."""
        asked = self._clock()
        self._prove()
        now = self._store.renew(self._lock, lease.holder_id, lease.token, self._expiration_ms)
        if now is None:
            raise LockLost(
                f"the {lease.lock.name.lower()} lock is not held by {lease.holder_id} under token"
                f" {lease.token} any more: another node took it"
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

    def try_acquire(self) -> Lease | None:
        """Take the lease if it is free or expired."""
        return self._ask(
            lambda: self._store.try_acquire(self._lock, self._holder_id, self._expiration_ms)
        )

    def take_over(self, seen: LockStatus) -> Lease | None:
        """Take the lease of a holder that is gone, if it is as ``seen``; raises StoreError."""
        return self._take_row(seen)

    def release(self, lease: Lease) -> None:
        """Free the lease if it is still ours."""
        self._store.release(self._lock, lease.holder_id, lease.token)

    def close(self) -> None:
        """Leave the lease to expire."""


class ExclusiveLocker(RowLocker):
    """An exclusive lock, and the row that follows it."""

    def __init__(
        self,
        store: NodeManagerStore,
        lock: Lock,
        holder_id: str,
        exclusive: ExclusiveLock,
        *,
        period_ms: int,
        expiration_ms: int,
        clock: Callable[[], float],
        on_database_time: OnDatabaseTime = lambda *_: None,
        above: Callable[[], int] = lambda: 0,
    ) -> None:
        """Lock ``lock`` as ``holder_id``, by ``exclusive``; ``period_ms`` 0 is never renewed."""
        super().__init__(
            store,
            lock,
            holder_id,
            expiration_ms=expiration_ms,
            clock=clock,
            on_database_time=on_database_time,
            above=above,
        )
        self._exclusive = exclusive
        self._held = False
        self._is_kept = period_ms > 0

    def prepare(self) -> None:
        """Make the exclusive lock ready."""
        self._exclusive.prepare()

    def try_acquire(self) -> Lease | None:
        """Take the exclusive lock, then the row as it was read while that was held.

        A node that froze after it had read the row, and whose lock was taken by another meanwhile,
        finds the row changed and takes nothing. A row that is held by a node of another locker is
        left alone until it has expired.
        """
        return self._follow(None)

    def take_over(self, seen: LockStatus) -> Lease | None:
        """Take the row as it was seen, holding the exclusive lock."""
        return self._follow(seen)

    def _follow(self, seen: LockStatus | None) -> Lease | None:
        """Take the exclusive lock, then the row, as ``seen`` or as it is found; both or neither."""
        if not self._take_exclusive():
            return None
        lease = None
        try:
            row = seen or self._store.lock_status(self._lock)
            self._exclusive.keep_alive()
            if seen is not None or not self._is_a_strangers(row):
                lease = self._take_row(row)
        finally:
            if lease is None:
                self._let_go()
        return lease

    def _prove(self) -> None:
        self._exclusive.keep_alive()

    def _deadline(self, asked_seconds: float) -> float:
        return super()._deadline(asked_seconds) if self._is_kept else math.inf

    def release(self, lease: Lease) -> None:
        """Free the row, then let the exclusive lock go: whoever gets it finds the row free."""
        try:
            self._store.release(self._lock, lease.holder_id, lease.token)
        finally:
            self._let_go()

    def as_seen(self, row: LockStatus) -> LockStatus:
        """Return who holds the exclusive lock; the row says it, but not for how long.

        One that is never proved is held for ever, as far as anybody can see.
        """
        if row.holder_id is None or self._is_a_strangers(row):
            return row
        if self._held or not self._exclusive.is_free():
            left = max(row.expires_in_seconds or 0.0, _MOMENT_SECONDS)
            return replace(row, expires_in_seconds=left if self._is_kept else math.inf)
        return replace(row, expires_in_seconds=min(row.expires_in_seconds or 0.0, 0.0))

    def close(self) -> None:
        """Let the exclusive lock go."""
        if self._held:
            self._held = False
            self._exclusive.abandon()

    def _take_exclusive(self) -> bool:
        self._let_go()
        self._held = self._exclusive.try_acquire()
        return self._held

    def _let_go(self) -> None:
        if self._held:
            self._held = False
            self._exclusive.release()

    def _is_a_strangers(self, row: LockStatus) -> bool:
        """Tell whether ``row`` is held, by a node that does not take this kind of lock."""
        theirs, ours = HolderId.parse(row.holder_id or ""), HolderId.parse(self._holder_id)
        return row.is_held and theirs.kind != ours.kind
