"""The presence lock where a database hangs: one thread at a time has it, and no stopped one."""

import queue
import threading
from collections.abc import Callable

import pytest
from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.database import PresenceLock, StoreUnavailable
from orthia.nodemanager.crash_detection import CrashDetection
from orthia.nodemanager.threads import RealThreads, Thread
from tests.nodemanager.conftest import PresenceLocks
from tests.support.servers import SERVER_NAMES


def test_a_lock_that_is_wanted_no_more_is_not_taken(locks: PresenceLocks) -> None:
    """Though it is free, and whatever it took to get a session."""
    lock, other = locks(), locks()
    assert not lock.acquire(lock.patience_seconds, lambda: False)
    assert not lock.is_held()
    assert other.acquire(60.0)
    other.release()
    assert lock.acquire(60.0, lambda: True)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_an_interruption_at_any_moment_ends_the_wait(locks: PresenceLocks) -> None:
    """Also one that comes before the wait begins, of a lock that was wanted just now.

    Elsewhere a wait is short, and is not ended.
    """
    first, second = locks(), locks()
    assert first.acquire(60.0)

    def is_wanted() -> bool:
        second.interrupt()
        return True

    with pytest.raises(StoreUnavailable):
        second.acquire(30.0, is_wanted)
    assert not second.is_held()
    first.release()
    assert second.acquire(60.0)


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_session_that_broke_in_a_transaction_holds_nothing(locks: PresenceLocks) -> None:
    """What SQLAlchemy itself says of it is no error of a driver."""
    lock = locks()
    assert lock.acquire(60.0)
    lock._connection.invalidate()  # type: ignore[attr-defined]
    assert not lock.is_held()
    assert lock.acquire(60.0)


# --- one keeper after the other


class _ImpatientThread(threading.Thread):
    """A thread for whose end nobody waits who would not wait for ever; says who does."""

    def __init__(self, run: Callable[[], None], name: str, said: "queue.SimpleQueue[str]") -> None:
        super().__init__(target=run, name=name, daemon=True)
        self._said = said

    @override
    def join(self, timeout: float | None = None) -> None:
        if timeout is not None:
            return
        self._said.put("waits for the one before")
        super().join()


class _ImpatientThreads(RealThreads):
    def __init__(self) -> None:
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.made: list[threading.Thread] = []

    @override
    def thread(self, run: Callable[[], None], name: str) -> Thread:
        thread = _ImpatientThread(run, name, self.said)
        self.made.append(thread)
        return thread


class _Wanting:
    """What wants a lock, on threads that are looked at."""

    def __init__(self, lock: PresenceLock) -> None:
        self.threads = _ImpatientThreads()
        self.is_obtained = threading.Event()
        self.crashes = CrashDetection(
            lock,
            period_seconds=0.01,
            clock=monotonic_seconds,
            wake=self.is_obtained.set,
            report=lambda _: None,
            threads=self.threads,
        )

    def end(self) -> None:
        """Want it no more, and wait until no thread is left."""
        self.crashes.drop()
        for thread in self.threads.made:
            threading.Thread.join(thread, 120)
            assert not thread.is_alive()


class _SlowLock(PresenceLock):
    """A lock whose session is there only when the test says so."""

    patience_seconds = 0.01

    def __init__(self, said: "queue.SimpleQueue[str]") -> None:
        self.said = said
        self.is_connected = threading.Event()
        self.taken_by: list[threading.Thread] = []

    @override
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        self.said.put("uses the lock")
        self.is_connected.wait()
        if not is_wanted():
            return False
        self.taken_by.append(threading.current_thread())
        return True

    @override
    def interrupt(self) -> None:
        """Do nothing: there is no session."""

    @override
    def is_held(self) -> bool:
        return True

    @override
    def release(self) -> None:
        """Do nothing."""


def test_whoever_wants_the_lock_again_waits_for_the_thread_before() -> None:
    """Two threads on one connection break it, and a stopped one takes no lock."""
    lock = _SlowLock(queue.SimpleQueue())
    wanting = _Wanting(lock)
    lock.said = said = wanting.threads.said
    try:
        wanting.crashes.want()
        assert said.get(timeout=120) == "uses the lock"
        wanting.crashes.drop()
        wanting.crashes.want()
        assert said.get(timeout=120) == "waits for the one before"
        wanting.crashes.drop()
        wanting.crashes.want()
        assert said.get(timeout=120) == "waits for the one before"
        lock.is_connected.set()
        assert wanting.is_obtained.wait(120)
        assert lock.taken_by == wanting.threads.made[2:]
    finally:
        lock.is_connected.set()
        wanting.end()
