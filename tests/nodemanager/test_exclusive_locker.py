"""An exclusive lock and the row that follows it, step by step."""

from collections.abc import Callable

import pytest

from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import ExclusiveLock
from orthia.nodemanager.locks.exclusive_locker import ExclusiveLocker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock
from tests.nodemanager.conftest import ManualClock
from tests.support.memory_store import MemoryNodeManagerStore

EXPIRATION_MS = 10_000


class ScriptedLock(ExclusiveLock):
    """A lock that does as it is told."""

    def __init__(self) -> None:
        self.free = True
        self.held = False
        self.lost: str | None = None
        self.on_keep_alive: Callable[[], object] = lambda: None
        self.on_release: Callable[[], object] = lambda: None

    def try_acquire(self) -> bool:
        """Take it, if the script says that it is free."""
        self.held = self.free
        return self.held

    def keep_alive(self) -> None:
        """Prove it, if the script lets it."""
        self.on_keep_alive()
        if self.lost is not None:
            raise LockLost(self.lost)

    def release(self) -> None:
        """Let it go."""
        self.on_release()
        self.held = False

    def is_free(self) -> bool:
        """Say what the script says."""
        return self.free


class Bench:
    """A locker, its lock, its row and their clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryNodeManagerStore(self.clock)
        self.lock = ScriptedLock()
        self.holder_id = HolderId.new("me", crash_detection=False, kind="scripted")
        self.locker = ExclusiveLocker(
            self.store,
            Lock.LIVE,
            self.holder_id,
            self.lock,
            period_ms=3_000,
            expiration_ms=EXPIRATION_MS,
            clock=self.clock,
        )


def rival(kind: str) -> str:
    """Return the holder id of another node."""
    return HolderId.new("rival", crash_detection=False, kind=kind)


def test_a_node_that_froze_before_it_took_the_row_takes_nothing() -> None:
    """Its lock went to another meanwhile: the row is not as it was read, and is left alone."""
    bench = Bench()
    other = rival("scripted")

    def freeze() -> None:
        bench.store.try_acquire(Lock.LIVE, other, EXPIRATION_MS)

    bench.lock.on_keep_alive = freeze
    assert bench.locker.try_acquire() is None
    assert bench.store.lock_status(Lock.LIVE).holder_id == other
    assert not bench.lock.held


def test_a_lock_that_was_lost_before_the_row_was_read_takes_nothing() -> None:
    """The proof comes after the reading: what was read may be the other's row."""
    bench = Bench()
    bench.lock.lost = "the session is gone"
    with pytest.raises(LockLost, match="the session is gone"):
        bench.locker.try_acquire()
    assert bench.store.lock_status(Lock.LIVE).token == 0
    assert not bench.lock.held


def test_the_row_of_another_kind_of_locker_is_waited_out() -> None:
    """A lease is not taken away because a lock file is free."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival(""), EXPIRATION_MS)
    assert bench.locker.try_acquire() is None
    assert bench.locker.as_seen(bench.store.lock_status(Lock.LIVE)).is_held
    bench.clock.now += EXPIRATION_MS / 1000 + 0.001
    lease = bench.locker.try_acquire()
    assert lease is not None
    assert lease.token == 2


def test_the_row_of_a_holder_that_is_gone_is_taken_at_once() -> None:
    """Of the same kind: its lock is free, whatever the row says."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival("scripted"), EXPIRATION_MS)
    assert not bench.locker.as_seen(bench.store.lock_status(Lock.LIVE)).is_held
    lease = bench.locker.try_acquire()
    assert lease is not None
    assert lease.token == 2


def test_a_frozen_holder_is_seen_to_hold() -> None:
    """Its row has expired, its lock is not free."""
    bench = Bench()
    bench.store.try_acquire(Lock.LIVE, rival("scripted"), EXPIRATION_MS)
    bench.clock.now += EXPIRATION_MS
    bench.lock.free = False
    assert bench.locker.as_seen(bench.store.lock_status(Lock.LIVE)).is_held
    assert bench.locker.try_acquire() is None


def test_a_lock_that_is_lost_does_not_renew_the_row() -> None:
    """Others see it expire."""
    bench = Bench()
    lease = bench.locker.try_acquire()
    assert lease is not None
    before = bench.store.lock_status(Lock.LIVE).expiration_time
    bench.clock.now += 1
    bench.lock.lost = "gone"
    with pytest.raises(LockLost):
        bench.locker.renew(lease)
    assert bench.store.lock_status(Lock.LIVE).expiration_time == before


def test_the_row_is_free_when_the_lock_is() -> None:
    """Whoever gets the lock finds the row free."""
    bench = Bench()
    lease = bench.locker.try_acquire()
    assert lease is not None
    seen: list[str | None] = []
    bench.lock.on_release = lambda: seen.append(bench.store.lock_status(Lock.LIVE).holder_id)
    bench.locker.release(lease)
    assert seen == [None]
