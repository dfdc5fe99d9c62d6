"""The locker of every exclusive lock: that is the lock, and the row follows it.

The row is taken only while the exclusive lock is held, and renewed only after that was proved. A
node that keeps leases only, on the same store by mistake or on the way from one locker to the
other, therefore finds the row held.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from typing_extensions import override

from orthia.nodemanager.locks.abc import ExclusiveLock, NodeManagerStore, OnDatabaseTime
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus
from orthia.nodemanager.locks.lease_locker import RowLocker

_MOMENT_SECONDS: Final = 0.001


class ExclusiveLocker(RowLocker):
    """An exclusive lock, and the row that follows it."""

    def __init__(
        self,
        store: NodeManagerStore,
        lock: Lock,
        holder_id: HolderId,
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

    @override
    def prepare(self) -> None:
        self._exclusive.prepare()

    @override
    def try_acquire(self) -> Lease | None:
        """Take the exclusive lock, then the row as it was read while that was held.

        A node that froze after it had read the row, and whose lock was taken by another meanwhile,
        finds the row changed and takes nothing. A row that is held by a node of another locker is
        left alone until it has expired.
        """
        return self._follow(None)

    @override
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
            if seen is not None or not self._is_of_another_locker(row):
                lease = self._take_row(row)
        finally:
            if lease is None:
                self._let_go()
        return lease

    @override
    def _prove(self) -> None:
        self._exclusive.keep_alive()

    @override
    def _deadline(self, asked_seconds: float) -> float:
        return super()._deadline(asked_seconds) if self._is_kept else math.inf

    @override
    def release(self, lease: Lease) -> None:
        """Free the row, then let the exclusive lock go: whoever gets it finds the row free."""
        try:
            self._store.release(self._lock, lease.holder_id, lease.token)
        finally:
            self._let_go()

    @override
    def as_seen(self, row: LockStatus) -> LockStatus:
        """Return who holds the exclusive lock; the row says it, but not for how long.

        One that is never proved is held for ever, as far as anybody can see.
        """
        if row.holder_id is None or self._is_of_another_locker(row):
            return row
        if self._held or not self._exclusive.is_free():
            left = max(row.expires_in_seconds or 0.0, _MOMENT_SECONDS)
            return replace(row, expires_in_seconds=left if self._is_kept else math.inf)
        return replace(row, expires_in_seconds=min(row.expires_in_seconds or 0.0, 0.0))

    @override
    def close(self) -> None:
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

    def _is_of_another_locker(self, row: LockStatus) -> bool:
        """Tell whether ``row`` is held, by a node that does not take this kind of lock."""
        if row.holder_id is None or not row.is_held:
            return False
        return row.holder_id.kind != self._holder_id.kind


class NoLock(ExclusiveLock):
    """``useLock`` false: everybody has it."""

    @override
    def try_acquire(self) -> bool:
        return True

    @override
    def keep_alive(self) -> None:
        """Do nothing."""

    @override
    def release(self) -> None:
        """Do nothing."""
