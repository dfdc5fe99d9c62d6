"""A local deadline is counted from before the request, however late its answer comes."""

from collections.abc import Callable
from datetime import datetime

import pytest

from orthia.nodemanager.locks.abc import Acquired, ExclusiveLock
from orthia.nodemanager.locks.exclusive_locker import ExclusiveLocker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, deadline
from orthia.nodemanager.locks.lease_locker import LeaseDatabaseLocker, RowLocker
from tests.nodemanager.conftest import ManualClock
from tests.support.memory_store import MemoryNodeManagerStore

EXPIRATION_MS = 20_000
LATE_SECONDS = 7.0


class LateStore(MemoryNodeManagerStore):
    """Does what it is asked at once, and answers much later."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._stopwatch = clock

    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        """Take the lock; the answer is late."""
        acquired = super().try_acquire(lock, holder_id, expiration_ms)
        self._stopwatch.now += LATE_SECONDS
        return acquired

    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        """Take the lock over; the answer is late."""
        acquired = super().take_over(lock, holder_id, expiration_ms, seen=seen)
        self._stopwatch.now += LATE_SECONDS
        return acquired

    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> datetime | None:
        """Renew; the answer is late."""
        renewed = super().renew(lock, holder_id, token, expiration_ms)
        self._stopwatch.now += LATE_SECONDS
        return renewed


class FreeLock(ExclusiveLock):
    """An exclusive lock that nobody else wants; to prove it takes long."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def try_acquire(self) -> bool:
        """Take it."""
        return True

    def keep_alive(self) -> None:
        """Prove it, late."""
        self._clock.now += LATE_SECONDS

    def release(self) -> None:
        """Let it go."""

    def is_free(self) -> bool:
        """Nobody else has it."""
        return True


class Bench:
    """A locker of one kind on a store that answers late."""

    def __init__(self, kind: str) -> None:
        self.clock = ManualClock()
        self.store = LateStore(self.clock)
        self.locker: RowLocker
        if kind == "lease":
            self.locker = LeaseDatabaseLocker(
                self.store, Lock.LIVE, HolderId("me"), expiration_ms=EXPIRATION_MS, clock=self.clock
            )
        else:
            self.locker = ExclusiveLocker(
                self.store,
                Lock.LIVE,
                HolderId.new("me", crash_detection=False, kind="scripted"),
                FreeLock(self.clock),
                period_ms=2_000,
                expiration_ms=EXPIRATION_MS,
                clock=self.clock,
            )

    def acquire(self) -> Lease:
        """Take the lock."""
        return self._there(self.locker.try_acquire())

    def take_over(self) -> Lease:
        """Take the lock as it is seen."""
        return self._there(self.locker.take_over(self.store.lock_status(Lock.LIVE)))

    def renew(self) -> Lease:
        """Renew a lease that was taken some time ago."""
        lease = self.acquire()
        self.clock.now += 1.0
        self.asked = self.clock.now
        return self.locker.renew(lease)

    @staticmethod
    def _there(lease: Lease | None) -> Lease:
        assert lease is not None
        return lease


WAYS: dict[str, Callable[[Bench], Lease]] = {
    "acquired": Bench.acquire,
    "taken over": Bench.take_over,
    "renewed": Bench.renew,
}


@pytest.mark.parametrize("kind", ["lease", "exclusive"])
@pytest.mark.parametrize("way", WAYS)
def test_a_late_answer_gives_no_longer_lease(kind: str, way: str) -> None:
    """However a lease was come by, its holder lets it go no later than the store does."""
    bench = Bench(kind)
    lease = WAYS[way](bench)
    left = bench.store.lock_status(Lock.LIVE).expires_in_seconds
    assert left is not None
    assert lease.deadline_seconds - bench.clock.now < left


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    """Not from the acquisition before it, and not from the answer."""
    bench = Bench("lease")
    lease = bench.renew()
    assert lease.deadline_seconds == deadline(bench.asked, EXPIRATION_MS)
