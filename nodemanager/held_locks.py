"""The locks that a node has, each renewed until it is given back or lost."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from orthia.database import StoreError
from orthia.nodemanager.errors import NotHeld
from orthia.nodemanager.events import Event, LockReleased, ReleaseFailed
from orthia.nodemanager.keepalive import KeepAlive
from orthia.nodemanager.locks.abc import Locker
from orthia.nodemanager.locks.lease import Lease, Lock
from orthia.nodemanager.threads import Threads

_IDLE_SECONDS: Final = 0.5


class HeldLocks:
    """One keep-alive for each lock that is held."""

    def __init__(
        self,
        lockers: Mapping[Lock, Locker],
        *,
        period_ms: int,
        expiration_ms: int,
        delivery_ms: float | None,
        query_timeout_ms: int,
        clock: Callable[[], float],
        report: Callable[[Event], None],
        threads: Threads,
    ) -> None:
        """Keep by ``lockers``; the timers are those of ``KeepAlive``.

        A renewal that is under way when a lock is given back is waited for during
        ``query_timeout_ms``.
        """
        self._lockers = lockers
        self._period_ms = period_ms
        self._expiration_ms = expiration_ms
        self._delivery_ms = delivery_ms
        self._query_timeout_ms = query_timeout_ms
        self._clock = clock
        self._report = report
        self._threads = threads
        self._kept: dict[Lock, KeepAlive] = {}
        self.live: KeepAlive | None = None
        """What keeps the live lock, for the checks of each delivery and each batch."""
        self.on_renewed: Callable[[Lock, float], None] = lambda *_: None
        """Called with lock and seconds after each successful renewal."""

    def __bool__(self) -> bool:
        """Whether any lock is held."""
        return bool(self._kept)

    def __getitem__(self, lock: Lock) -> KeepAlive:
        """Return what keeps ``lock``; raises NotHeld."""
        keep_alive = self._kept.get(lock)
        if keep_alive is None:
            raise NotHeld(f"this node does not hold the {lock.name.lower()} lock")
        return keep_alive

    def get(self, lock: Lock) -> KeepAlive | None:
        """Return what keeps ``lock``; None if it is not held."""
        return self._kept.get(lock)

    def keep(self, lease: Lease, on_lost: Callable[[int, str], None]) -> None:
        """Begin to renew; ``on_lost`` hears token and reason, once, on a thread of its own."""
        keep_alive = KeepAlive(
            self._lockers[lease.lock],
            lease,
            period_ms=self._period_ms,
            expiration_ms=self._expiration_ms,
            clock=self._clock,
            report=self._report,
            on_lost=lambda reason: on_lost(lease.token, reason),
            on_renewed=lambda seconds: self.on_renewed(lease.lock, seconds),
            delivery_ms=self._delivery_ms,
            threads=self._threads,
        )
        self._kept[lease.lock] = keep_alive
        self.live = self._kept.get(Lock.LIVE)
        keep_alive.start()

    def forget(self, lock: Lock) -> None:
        """Stop renewing a lock that was lost."""
        keep_alive = self._drop(lock)
        if keep_alive is not None:
            keep_alive.stop()

    def _drop(self, lock: Lock) -> KeepAlive | None:
        keep_alive = self._kept.pop(lock, None)
        self.live = self._kept.get(Lock.LIVE)
        return keep_alive

    def release(self, lock: Lock) -> None:
        """Give a lock back within one query's time; a lease that is not valid is left alone."""
        keep_alive = self._kept.get(lock)
        if keep_alive is None:
            return
        valid = keep_alive.is_valid()
        keep_alive.stop()
        keep_alive.wait_idle(self._query_timeout_ms / 1000)
        lease = keep_alive.lease
        self._drop(lock)
        if not valid:
            return
        try:
            self._lockers[lock].release(lease)
        except StoreError as error:
            self._report(ReleaseFailed(lock, lease.token, str(error)))
        else:
            self._report(LockReleased(lock, lease.token))

    def silent_ms(self, lock: Lock) -> float | None:
        """Return how long ago the last renewal that succeeded began; None without renewals."""
        keep_alive = self._kept.get(lock)
        if keep_alive is None:
            return None
        silent_ms = (self._clock() - keep_alive.renewed_seconds) * 1000
        return silent_ms if math.isfinite(silent_ms) else None

    def stop(self) -> None:
        """Stop renewing, and let what is held expire."""
        for keep_alive in list(self._kept.values()):
            keep_alive.stop()
            # So that its connection is returned before the pool is closed, if the database answers.
            keep_alive.wait_idle(_IDLE_SECONDS)
