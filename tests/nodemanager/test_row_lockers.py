"""Lockers and the rows that follow them, step by step, on a store that the test scripts."""

from collections.abc import Callable

import pytest
from typing_extensions import override

from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import ExclusiveLock
from orthia.nodemanager.locks.exclusive_locker import ExclusiveLocker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, deadline
from orthia.nodemanager.locks.lease_locker import LeaseDatabaseLocker, RowLocker
from tests.nodemanager.conftest import ManualClock
from tests.nodemanager.scripted import ScriptedNodeStore

EXPIRATION_MS = 10_000
LATE_SECONDS = 3.0


class ScriptedLock(ExclusiveLock):
    """A lock that does as it is told."""

    def __init__(self) -> None:
        self.free = True
        self.held = False
        self.lost: str | None = None
        self.on_keep_alive: Callable[[], object] = lambda: None
        self.on_release: Callable[[], object] = lambda: None

    @override
    def try_acquire(self) -> bool:
        self.held = self.free
        return self.held

    @override
    def keep_alive(self) -> None:
        self.on_keep_alive()
        if self.lost is not None:
            raise LockLost(self.lost)

    @override
    def release(self) -> None:
        self.on_release()
        self.held = False

    @override
    def is_free(self) -> bool:
        return self.free


class Bench:
    """A locker, its lock if it has one, its row and their clock."""

    def __init__(self, kind: str = "exclusive") -> None:
        self.clock = ManualClock()
        self.store = ScriptedNodeStore(self.clock)
        self.lock = ScriptedLock()
        timing = {"expiration_ms": EXPIRATION_MS, "clock": self.clock}
        self.locker: RowLocker
        if kind == "lease":
            self.locker = LeaseDatabaseLocker(self.store, Lock.LIVE, HolderId("me"), **timing)  # type: ignore[arg-type]
        else:
            me = HolderId.new("me", crash_detection=False, kind="scripted")
            self.locker = ExclusiveLocker(
                self.store,
                Lock.LIVE,
                me,
                self.lock,
                period_ms=3_000,
                **timing,  # type: ignore[arg-type]
            )

    @property
    def row(self) -> LockStatus:
        """The row of the live lock."""
        return self.store.lock_status(Lock.LIVE)

    def acquire(self) -> Lease:
        """Take the lock."""
        lease = self.locker.try_acquire()
        assert lease is not None
        return lease

    def take_over(self) -> Lease:
        """Take the lock as it is seen."""
        lease = self.locker.take_over(self.row)
        assert lease is not None
        return lease

    def renew(self) -> Lease:
        """Renew a lease that was taken some time ago."""
        lease = self.acquire()
        self.clock.now += 1.0
        return self.locker.renew(lease)


def rival(kind: str) -> str:
    """Return the holder id of another node."""
    return HolderId.new("rival", crash_detection=False, kind=kind)


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
    asked: list[float] = []

    def be_late(_: object = None) -> None:
        bench.clock.now += LATE_SECONDS

    def send(_: str) -> None:
        asked.append(bench.clock.now)
        be_late()

    bench.store.before, bench.store.after = send, be_late
    bench.lock.on_keep_alive = be_late
    lease = WAYS[way](bench)
    left = bench.row.expires_in_seconds
    assert left is not None
    assert lease.deadline_seconds - bench.clock.now < left
    if kind == "lease":
        assert lease.deadline_seconds == deadline(asked[-1], EXPIRATION_MS)


def test_a_node_that_froze_before_it_took_the_row_takes_nothing() -> None:
    """Its lock went to another meanwhile: the row is not as it was read, and is left alone."""
    bench = Bench()
    other = rival("scripted")
    bench.lock.on_keep_alive = lambda: bench.store.try_acquire(Lock.LIVE, other, EXPIRATION_MS)
    assert bench.locker.try_acquire() is None
    assert bench.row.holder_id == other
    assert not bench.lock.held


def test_a_lock_that_was_lost_before_the_row_was_read_takes_nothing() -> None:
    """The proof comes after the reading: what was read may be the other's row."""
    bench = Bench()
    bench.lock.lost = "the session is gone"
    with pytest.raises(LockLost, match="the session is gone"):
        bench.locker.try_acquire()
    assert bench.row.token == 0
    assert not bench.lock.held


def test_the_row_of_another_kind_of_locker_is_waited_out() -> None:
    """A lease is not taken away because a lock file is free."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival(""), EXPIRATION_MS)
    assert bench.locker.try_acquire() is None
    assert bench.locker.as_seen(bench.row).is_held
    bench.clock.now += EXPIRATION_MS / 1000 + 0.001
    assert bench.acquire().token == 2


def test_the_row_of_a_holder_that_is_gone_is_taken_at_once() -> None:
    """Of the same kind: its lock is free, whatever the row says."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival("scripted"), EXPIRATION_MS)
    assert not bench.locker.as_seen(bench.row).is_held
    assert bench.acquire().token == 2


def test_a_frozen_holder_is_seen_to_hold() -> None:
    """Its row has expired, its lock is not free."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival("scripted"), EXPIRATION_MS)
    bench.clock.now += EXPIRATION_MS
    bench.lock.free = False
    assert bench.locker.as_seen(bench.row).is_held
    assert bench.locker.try_acquire() is None


def test_a_lock_that_is_lost_does_not_renew_the_row() -> None:
    """Others see it expire."""
    bench = Bench()
    lease = bench.acquire()
    before = bench.row.expiration_time
    bench.clock.now += 1
    bench.lock.lost = "gone"
    with pytest.raises(LockLost):
        bench.locker.renew(lease)
    assert bench.row.expiration_time == before


def test_the_row_is_free_when_the_lock_is() -> None:
    """Whoever gets the lock finds the row free."""
    bench = Bench()
    lease = bench.acquire()
    seen: list[str | None] = []
    bench.lock.on_release = lambda: seen.append(bench.row.holder_id)
    bench.locker.release(lease)
    assert seen == [None]
