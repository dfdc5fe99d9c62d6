"""Presence: a lock that ends with its process, and what a waiting node makes of that."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PresenceLock, StoreUnavailable, presence_lock
from orthia.nodemanager.activation import (
    GRACE_PERIODS,
    BackupWatch,
    Decision,
    Holder,
    HolderWatch,
    decide,
    judge_holder,
)
from orthia.nodemanager.crash_detection import CrashDetection
from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lease import Lock, LockStatus, State
from orthia.nodemanager.locks.presence import PresenceKeeper
from orthia.nodemanager.threads import REAL_THREADS
from tests.nodemanager.conftest import ManualClock, PresenceLocks
from tests.nodemanager.test_rules import NOW, status
from tests.support.servers import SERVER_NAMES, ServerProcess
from tests.support.waiting import wait_until

PERIOD_MS = 2_000
GRACE = 2.5
HOLDER = HolderId.of("live", "h:1:x", timers=Timers(PERIOD_MS, 20_000))
"""A holder that publishes its timers; the looks below are timed for its grace."""


# --- the lock itself, on each DBMS


def test_one_session_holds_the_lock(locks: PresenceLocks) -> None:
    """Others do not get it until it is let go; asking for it again while it is held is harmless."""
    first, second = locks(), locks()
    assert first.acquire(60.0)
    assert first.is_held()
    assert first.acquire(60.0)
    assert not second.acquire(1.0)
    assert not second.is_held()
    first.release()
    assert not first.is_held()
    assert second.acquire(60.0)


def test_whoever_waits_is_woken_by_the_release(locks: PresenceLocks) -> None:
    """The database wakes the waiter, long before its time is up."""
    first, second = locks(), locks()
    assert first.acquire(60.0)
    got = threading.Event()

    def wait() -> None:
        if second.acquire(250.0):
            got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.release()
    assert got.wait(120)
    waiting.join()


@pytest.mark.parametrize("query_timeout_ms", [100, 1_100])
def test_a_wait_is_longer_than_a_query_may_take(
    store_settings: DatabaseStoreSettings, query_timeout_ms: int
) -> None:
    """Waiting for the lock is no query that hangs: whoever waits is told that, and then has it.

    The server's answer may itself be later than a query may take, but not each time.
    """
    database = Database.from_settings(store_settings)
    first = presence_lock(database, "test-presence", query_timeout_ms=60_000)
    second = presence_lock(database, "test-presence", query_timeout_ms=query_timeout_ms)
    try:
        assert first.acquire(60.0)
        answers: list[bool] = []

        def answered() -> bool:
            with suppress(StoreUnavailable):
                answers.append(second.acquire(1.0))
            return bool(answers)

        wait_until(answered, what="the waiter is told that it has not got the lock")
        assert answers == [False]
        first.release()

        def obtained() -> bool:
            with suppress(StoreUnavailable):
                return second.acquire(1.0)
            return False

        wait_until(obtained, what="the waiter has the lock")
        wait_until(lambda: second.is_held() or obtained(), what="it still has it when asked")
    finally:
        first.release()
        second.release()
        database.dispose()


def test_a_wait_can_be_interrupted(locks: PresenceLocks) -> None:
    """A node that is stopped does not wait until the lock is free, or for minutes."""
    first, second = locks(), locks()
    assert first.acquire(60.0)

    def wait() -> None:
        with suppress(StoreUnavailable):
            assert not second.acquire(second.patience_seconds)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        second.interrupt()
        waiting.join(0.05)
    assert not second.is_held()
    first.release()
    assert second.acquire(60.0)


@pytest.mark.parametrize("private_server", SERVER_NAMES, indirect=True)
def test_a_session_that_is_gone_holds_nothing(private_server: ServerProcess) -> None:
    """After a restart of the database the lock is nobody's, and can be had again."""
    database = Database.from_settings(private_server.settings(private_server.create_database()))
    lock = presence_lock(database, "test-presence", query_timeout_ms=60_000)
    assert lock.acquire(60.0)
    private_server.kill()
    assert not lock.is_held()
    with pytest.raises(StoreUnavailable):
        lock.acquire(1.0)
    private_server.start()
    assert lock.acquire(60.0)
    lock.release()
    database.dispose()


# --- the keeper


class ScriptedLock(PresenceLock):
    """A presence lock the test gives and takes."""

    patience_seconds = 0.05

    def __init__(self) -> None:
        self.free = threading.Event()
        self.held = False
        self.releases = 0
        self.asked = 0
        self.error: StoreUnavailable | None = None

    @override
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait for the test."""
        del is_wanted
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.held = self.free.wait(timeout_seconds)
        return self.held

    @override
    def interrupt(self) -> None:
        """Do nothing: waits are short."""

    @override
    def is_held(self) -> bool:
        """Say what the test says."""
        return self.held

    @override
    def release(self) -> None:
        """Note it."""
        self.held = False
        self.releases += 1


class KeeperUnderTest:
    """A keeper and what it said."""

    def __init__(self) -> None:
        self.lock = ScriptedLock()
        self.obtained = threading.Semaphore(0)
        self.lost = threading.Event()
        self.keeper = PresenceKeeper(
            self.lock,
            period_seconds=0.01,
            clock=ManualClock(),
            obtained=self.obtained.release,
            lost=self.lost.set,
        )


@pytest.fixture
def subject() -> Iterator[KeeperUnderTest]:
    """Give a keeper that runs."""
    made = KeeperUnderTest()
    made.keeper.start()
    yield made
    made.keeper.stop()


def test_the_keeper_has_the_lock_and_asks_again_when_it_is_lost(subject: KeeperUnderTest) -> None:
    """It knows since when, and when it was last sure: the time from before it asked."""
    keeper = subject.keeper
    since, confirmed = keeper.held_since_seconds, keeper.confirmed_seconds
    assert since is None
    assert confirmed < 0
    subject.lock.free.set()
    assert subject.obtained.acquire(timeout=120)
    assert keeper.held_since_seconds == 1_000.0
    wait_until(lambda: keeper.confirmed_seconds == 1_000.0, what="the session is asked")
    subject.lock.held = False  # a session may end though the process lives
    assert subject.lost.wait(120)
    assert subject.obtained.acquire(timeout=120)


def test_a_lock_that_is_not_to_be_had_for_a_period_is_held_by_its_node() -> None:
    """So a node that froze is told from one whose process is gone; before that nothing is said."""
    lock, clock = ScriptedLock(), ManualClock()
    detection = CrashDetection(
        lock,
        period_seconds=2.0,
        clock=clock,
        wake=lambda: None,
        report=lambda _: None,
        threads=REAL_THREADS,
    )
    assert detection.presence_of(HOLDER) == "unknown", "it is not asked for"
    detection.want()
    try:
        wait_until(lambda: lock.asked > 1, what="the lock is asked for")
        clock.now += 1.9
        assert detection.presence_of(HOLDER) == "unknown"
        clock.now += 0.1
        assert detection.presence_of(HOLDER) == "held"
        assert detection.presence_of(HolderId(f"{HOLDER}:lease-only")) == "unknown"
        lock.error = StoreUnavailable("away")
        wait_until(lambda: detection.presence_of(HOLDER) == "unknown", what="the store is away")
        lock.error = None
        lock.free.set()
        # It asks again when a period of the real clock is over.
        wait_until(lambda: detection.presence_of(HOLDER) == "free", what="the lock is got")
    finally:
        detection.drop()


def test_the_keeper_outlives_a_database_that_is_away() -> None:
    """It goes on asking."""
    subject = KeeperUnderTest()
    subject.lock.error = StoreUnavailable("away")
    subject.lock.free.set()
    subject.keeper.start()
    try:
        wait_until(lambda: subject.lock.asked >= 3, what="it asks again and again")
        assert subject.keeper.held_since_seconds is None
        subject.lock.error = None
        assert subject.obtained.acquire(timeout=120)
    finally:
        subject.keeper.stop()


def test_standing_back_gives_the_lock_to_another(subject: KeeperUnderTest) -> None:
    """It is let go at once and asked for again later; a stopped keeper holds nothing."""
    subject.lock.free.set()
    assert subject.obtained.acquire(timeout=120)
    subject.keeper.stand_back()
    wait_until(lambda: subject.lock.releases == 1, what="the lock is let go")
    assert subject.obtained.acquire(timeout=120)
    subject.keeper.stop()
    # It waits for its thread, but not for long.
    wait_until(lambda: not subject.lock.held, what="the lock is let go")
    assert subject.keeper.held_since_seconds is None


# --- the judgement


def lease(token: int = 1, renewed: int = 0, holder: str | None = HOLDER) -> LockStatus:
    """Return the live lock as renewed for the ``renewed``th time."""
    held_by = None if holder is None else HolderId(holder)
    return LockStatus(Lock.LIVE, held_by, token, 15.0, NOW.replace(second=renewed % 60))


FREE = LockStatus(Lock.LIVE, None, 1, None)
EXPIRED = LockStatus(Lock.LIVE, HolderId("other@h:1:x"), 1, -1.0, NOW)
Look = tuple[LockStatus, float | None, float]
"""The live lock, since when the presence lock is in hand, and when that is looked at."""


def looks(*times: float, holder: str = HOLDER) -> list[Look]:
    """Return looks at a holder that does not renew, with the presence lock in hand since 9.0."""
    return [(lease(holder=holder), 9.0, now) for now in times]


def watched_for_its_own(period_ms: int) -> list[Look]:
    """Return looks at a holder of that period, around the end of its grace."""
    grace = GRACE_PERIODS * period_ms / 1000
    holder = f"live@h:1:x/{period_ms}/20000"
    return looks(10.0, 10.0 + grace * 0.99, 10.0 + grace * 1.01, holder=holder)


JUDGEMENTS: dict[str, tuple[list[Look], str]] = {
    "it does not renew for the grace, from the first look with the presence lock in hand": (
        [(lease(), None, 0.0), *looks(10.0, 12.4, 12.5)],
        "UNKNOWN UNKNOWN UNKNOWN GONE",
    ),
    "it renews: one is enough, and the watch begins anew": (
        [(lease(), 9.0, 10.0), (lease(renewed=1), 9.0, 12.4), (lease(renewed=1), 9.0, 14.8)],
        "UNKNOWN ALIVE UNKNOWN",
    ),
    "another takes the lock that is free: its first renewal may be late": (
        [(FREE, 9.0, 10.0), (lease(2), 9.0, 10.1), (lease(2), 9.0, 12.0)],
        "UNKNOWN ALIVE UNKNOWN",
    ),
    "another takes the lock that has expired": (
        [(EXPIRED, 9.0, 10.0), (lease(2), 9.0, 10.1), (lease(2), 9.0, 12.0)],
        "UNKNOWN ALIVE UNKNOWN",
    ),
    "another takes the lock that is free before it was watched": (
        [(FREE, 9.0, 10.0), (lease(2), 11.0, 11.1)],
        "UNKNOWN UNKNOWN",
    ),
    "it has its presence lock: a paused process keeps its session, and so its whole lease": (
        [(lease(), None, now) for now in (0.0, 5.0, 19.0)],
        "UNKNOWN UNKNOWN UNKNOWN",
    ),
    "the presence lock was lost meanwhile: it may have had it": (
        [*looks(10.0), (lease(), None, 11.0), (lease(), 12.0, 12.6)],
        "UNKNOWN UNKNOWN UNKNOWN",
    ),
    "the presence lock was lost and got between two looks": (
        [*looks(10.0), (lease(), 12.0, 12.6)],
        "UNKNOWN UNKNOWN",
    ),
    "it never had a presence lock": (
        looks(10.0, 13.0, 16.0, holder=HOLDER + ":lease-only"),
        "UNKNOWN UNKNOWN UNKNOWN",
    ),
    "its period is not known: it is of an older version": (
        looks(10.0, 13.0, 60.0, holder="live@h:1:x"),
        "UNKNOWN UNKNOWN UNKNOWN",
    ),
    "it never renews": (
        looks(10.0, 13.0, 60.0, holder="live@h:1:x/0/20000"),
        "UNKNOWN UNKNOWN UNKNOWN",
    ),
    "it is watched for its own short period": (watched_for_its_own(500), "UNKNOWN UNKNOWN GONE"),
    "it is watched for its own long period": (watched_for_its_own(4_000), "UNKNOWN UNKNOWN GONE"),
    "the lock is free: the ordinary rules hold": (
        [(FREE, 9.0, 10.0), (FREE, 9.0, 20.0)],
        "UNKNOWN UNKNOWN",
    ),
}


def judged(found: list[Look], confirmed_seconds: float = math.inf) -> list[Holder]:
    """Return what each look gives."""
    watch, judgements = HolderWatch(), []
    for lock, since, now in found:
        holder, watch = judge_holder(
            lock,
            watch,
            present_since_seconds=since,
            confirmed_seconds=confirmed_seconds,
            now_seconds=now,
        )
        judgements.append(holder)
    return judgements


@pytest.mark.parametrize("what", JUDGEMENTS)
def test_a_holder_is_judged_by_its_renewals(what: str) -> None:
    """Look by look."""
    found, expected = JUDGEMENTS[what]
    assert [one.name for one in judged(found)] == expected.split()


def test_a_presence_lock_that_may_be_lost_by_now_proves_nothing() -> None:
    """Its session is asked once more after the watch began: a paused holder may have it back."""
    found = looks(10.0, 12.5, 30.0)
    assert set(judged(found, confirmed_seconds=9.9)) == {Holder.UNKNOWN}
    assert judged(found, confirmed_seconds=10.1)[-1] is Holder.GONE


@pytest.mark.parametrize("state", [State.LIVE, State.FAILING_BACK, State.NOT_STARTED])
def test_a_backup_takes_the_lease_of_one_that_is_gone(state: State) -> None:
    """Whatever it was about to do."""
    decision, _ = decide(status(state, 15.0), BackupWatch(), 0.0, 20_000, Holder.GONE)
    assert decision is Decision.TAKE_OVER


def test_a_paused_pair_stays_so() -> None:
    """An operator's word is above it."""
    decision, _ = decide(status(State.PAUSED, 15.0), BackupWatch(), 0.0, 20_000, Holder.GONE)
    assert decision is Decision.WAIT


@given(
    st.floats(0, 10),
    st.floats(0, 3),
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20),
)
def test_whoever_takes_over_does_so_after_the_other_stopped_delivering(
    renewal_began: float, obtained_after: float, steps: list[float]
) -> None:
    """Over any times of looking: both count the same grace, the holder from an earlier moment."""
    now = obtained = renewal_began + obtained_after
    stops_delivering = renewal_began + GRACE
    watch = HolderWatch()
    for step in steps:
        now += step
        holder, watch = judge_holder(
            lease(),
            watch,
            present_since_seconds=obtained,
            confirmed_seconds=now,
            now_seconds=now,
        )
        if holder is Holder.GONE:
            assert now >= stops_delivering
