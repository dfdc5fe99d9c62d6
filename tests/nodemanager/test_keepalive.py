"""Keep-alive and watchdog, with a stopwatch the test moves and a locker it scripts."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from apscheduler.executors.base import BaseExecutor

from orthia.database import StoreUnavailable
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.events import (
    Event,
    RenewalFailed,
    RenewalGap,
    RenewalNotTriggered,
    RenewalOverrun,
)
from orthia.nodemanager.keepalive import KeepAlive
from orthia.nodemanager.locks.abc import Locker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, deadline
from orthia.nodemanager.threads import REAL_THREADS
from tests.nodemanager.conftest import ManualClock
from tests.support.waiting import wait_until

PERIOD_MS = 20
"""Short, so that real threads renew while the stopwatch stands still."""
EXPIRATION_MS = 20_000


class ScriptedLocker(Locker):
    """Renews at once, until told otherwise."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.renewals = 0
        self.error: Exception | None = None
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def try_acquire(self) -> Lease | None:
        """Not used here."""
        raise AssertionError

    def renew(self, lease: Lease) -> Lease:
        """Renew, hang or fail."""
        asked = self._clock()
        self.renewals += 1
        if self.hangs.is_set():
            self.let_go.wait(250)
        if self.error is not None:
            raise self.error
        return lease.renewed(asked, EXPIRATION_MS)

    def take_over(self, seen: LockStatus) -> Lease | None:
        """Not used here."""
        raise AssertionError(seen)

    def close(self) -> None:
        """Not used here."""
        raise AssertionError

    def release(self, lease: Lease) -> None:
        """Not used here."""
        raise AssertionError(lease)


class KeepAliveUnderTest:
    """A keep-alive and what it reports; ``on_lost``, ``report`` and ``on_renewed`` hear it too."""

    def __init__(
        self,
        period_ms: int = PERIOD_MS,
        expiration_ms: int = EXPIRATION_MS,
        **listeners: Callable[[Any], None],
    ) -> None:
        self.clock = ManualClock()
        self.locker = ScriptedLocker(self.clock)
        self.events: list[Event] = []
        self.lost: list[str] = []
        lease = Lease(Lock.LIVE, HolderId("me"), 7, deadline(self.clock(), expiration_ms))
        told: dict[str, Any] = {"report": self.events.append, "on_lost": self.lost.append}
        self.keep_alive = KeepAlive(
            self.locker,
            lease,
            period_ms=period_ms,
            expiration_ms=expiration_ms,
            clock=self.clock,
            **{**told, **listeners},
        )

    def wait_hung(self) -> None:
        """Have renewals hang, and wait for one that does."""
        self.locker.hangs.set()
        before = self.locker.renewals
        wait_until(lambda: self.locker.renewals > before, what="a renewal that hangs")

    def end(self) -> None:
        """Stop it; a renewal that hangs goes on."""
        self.locker.let_go.set()
        self.keep_alive.stop()

    def kinds(self) -> set[type]:
        """Return the kinds of events reported."""
        return {type(event) for event in list(self.events)}

    def pass_time(self, seconds: float) -> None:
        """Move the stopwatch and have the watchdog look."""
        self.clock.now += seconds
        with self.keep_alive._changed:
            self.keep_alive._changed.notify_all()


@pytest.fixture
def subject() -> Iterator[KeepAliveUnderTest]:
    """Give a keep-alive that runs."""
    made = KeepAliveUnderTest()
    made.keep_alive.start()
    yield made
    made.end()


def test_a_lease_is_renewed_for_as_long_as_it_runs(subject: KeepAliveUnderTest) -> None:
    """Each renewal moves the deadline by what the stopwatch read before it."""
    wait_until(lambda: subject.locker.renewals >= 3, what="three renewals")
    subject.clock.now += 5.0
    wait_until(
        lambda: (
            subject.keep_alive.lease.deadline_seconds == deadline(subject.clock.now, EXPIRATION_MS)
        ),
        what="the deadline moved on",
    )
    assert subject.keep_alive.is_valid()
    assert subject.lost == []


@pytest.mark.parametrize(
    "error",
    [LockLost("another took it"), StoreUnavailable("no answer"), RuntimeError("a defect")],
)
def test_a_failed_renewal_loses_the_lease_at_once(
    subject: KeepAliveUnderTest, error: Exception
) -> None:
    """Not at the deadline: a node that cannot renew stops while it certainly is the only one."""
    subject.locker.error = error
    wait_until(lambda: subject.lost, what="the lease is lost")
    assert not subject.keep_alive.is_valid()
    assert str(error) in subject.lost[0]
    assert RenewalFailed in subject.kinds()
    renewals = subject.locker.renewals
    subject.keep_alive.renew()
    assert subject.locker.renewals == renewals, "a lost lease is never renewed"
    assert len(subject.lost) == 1


def test_a_hung_renewal_loses_the_lease_at_the_deadline(subject: KeepAliveUnderTest) -> None:
    """While it still hangs; and its late success changes nothing."""
    subject.wait_hung()
    left = subject.keep_alive.lease.deadline_seconds - subject.clock.now
    subject.pass_time(left - 0.001)
    assert subject.keep_alive.is_valid()
    subject.pass_time(0.002)
    assert not subject.keep_alive.is_valid()
    wait_until(lambda: subject.lost, what="the watchdog fires")
    assert "has not returned by the local deadline" in subject.lost[0]
    subject.locker.let_go.set()
    assert subject.keep_alive.wait_idle(120)
    assert not subject.keep_alive.is_valid()


def test_a_renewal_that_was_not_triggered_is_noticed_and_asked_for() -> None:
    """Well before the deadline; the scheduler then renews after all."""
    subject = KeepAliveUnderTest(period_ms=600_000, expiration_ms=3_000_000)
    subject.keep_alive.start()
    try:
        subject.pass_time(899)
        assert subject.events == []
        subject.pass_time(2)
        wait_until(lambda: subject.locker.renewals == 1, what="the renewal asked for")
        assert RenewalNotTriggered in subject.kinds()
        wait_until(lambda: RenewalGap in subject.kinds(), what="the gap is reported")
        assert subject.lost == []
    finally:
        subject.keep_alive.stop()


def test_a_pause_beyond_the_lease_is_noticed_by_whoever_looks_first() -> None:
    """is_valid() needs no thread: the first delivery after waking is refused."""
    subject = KeepAliveUnderTest(period_ms=600_000)
    subject.clock.now += EXPIRATION_MS / 1000
    assert not subject.keep_alive.is_valid()
    subject.keep_alive.start()
    wait_until(lambda: subject.lost, what="the watchdog fires")
    assert "no renewal was begun" in subject.lost[0]
    subject.keep_alive.stop()


def test_a_renewal_begun_after_a_pause_is_not_blamed() -> None:
    """A process that was frozen is told from a database that does not answer."""
    subject = KeepAliveUnderTest(period_ms=600_000)
    subject.clock.now = subject.keep_alive.lease.deadline_seconds + 7
    subject.locker.hangs.set()
    renewal = threading.Thread(target=subject.keep_alive.renew)
    renewal.start()
    wait_until(lambda: subject.locker.renewals, what="a renewal that hangs")
    subject.keep_alive.start()
    wait_until(lambda: subject.lost, what="the watchdog fires")
    assert "passed 7.0 s before a renewal was begun" in subject.lost[0]
    subject.locker.let_go.set()
    renewal.join()
    subject.keep_alive.stop()


def test_a_stopped_keep_alive_says_nothing_more(subject: KeepAliveUnderTest) -> None:
    """An orderly end is no loss, whatever a renewal under way makes of it."""
    subject.wait_hung()
    subject.keep_alive.stop()
    subject.locker.error = StoreUnavailable("gone")
    subject.locker.let_go.set()
    assert subject.keep_alive.wait_idle(120)
    assert subject.lost == []
    assert RenewalFailed not in subject.kinds()


def test_a_hung_renewal_is_told_of_long_before_the_deadline(subject: KeepAliveUnderTest) -> None:
    """Once: an operator has the rest of the lease to look at the database."""
    subject.wait_hung()
    subject.pass_time(3.0)
    wait_until(lambda: RenewalOverrun in subject.kinds(), what="the overrun is told")
    subject.pass_time(3.0)
    subject.pass_time(EXPIRATION_MS / 1000)
    wait_until(lambda: subject.lost, what="the watchdog fires")
    told = [event for event in subject.events if isinstance(event, RenewalOverrun)]
    assert len(told) == 1
    whole_ms = told[0].running_ms + told[0].remaining_ms
    assert whole_ms == pytest.approx(deadline(0.0, EXPIRATION_MS) * 1000)


def test_the_watchdog_notices_time_that_passed_without_it(subject: KeepAliveUnderTest) -> None:
    """A suspended host: waits for locks do not count that time, the stopwatch does."""
    subject.wait_hung()
    subject.pass_time(1.0)
    wait_until(lambda: RenewalOverrun in subject.kinds(), what="the watchdog waits for the end")
    subject.clock.now += EXPIRATION_MS / 1000
    wait_until(lambda: subject.lost, what="the watchdog fires unasked")


def test_what_listeners_raise_does_not_disarm_the_watchdog() -> None:
    """Neither a report nor a listener of renewals decides about the lease."""
    told: list[object] = []

    def fail(what: object) -> None:
        told.append(what)
        raise RuntimeError("a listener's defect")

    subject = KeepAliveUnderTest(report=fail, on_renewed=fail)
    subject.keep_alive.start()
    try:
        wait_until(lambda: subject.locker.renewals >= 3, what="three renewals")
        subject.wait_hung()
        subject.clock.now += 1.0
        overrun = "the overrun is reported, in vain"
        wait_until(lambda: any(isinstance(what, RenewalOverrun) for what in told), what=overrun)
        assert subject.lost == []
        subject.clock.now += EXPIRATION_MS / 1000
        wait_until(lambda: subject.lost, what="the watchdog fires")
    finally:
        subject.end()


def without_memory(_: object) -> None:
    """Stand in for a listener."""
    raise MemoryError


@pytest.mark.parametrize("who", ["on_renewed", "report"])
def test_a_listener_without_memory_is_told_of_as_the_end_of_its_thread(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node ends then: what was left half done is not gone on with, and not only logged."""
    ended: list[tuple[type[BaseException], str]] = []

    def hook(what: threading.ExceptHookArgs) -> None:
        assert what.thread is not None
        ended.append((what.exc_type, what.thread.name))

    monkeypatch.setattr(threading, "excepthook", hook)
    listener: dict[str, Any] = {who: without_memory}
    subject = KeepAliveUnderTest(**listener)
    if who == "report":
        subject.locker.hangs.set()
    subject.keep_alive.start()
    try:
        if who == "report":
            wait_until(lambda: subject.locker.renewals, what="a renewal that hangs")
            subject.clock.now += 1.0  # which the watchdog tells of
        wait_until(lambda: ended, what="the end of the thread")
        kind, name = ended[0]
        assert kind is MemoryError
        assert ("watchdog" in name) == (who == "report")
    finally:
        subject.end()


def test_the_watchdog_does_not_wait_for_the_scheduler(
    subject: KeepAliveUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that hangs has its lock: the lease is lost at the deadline all the same.

    So a node hung that had no memory for the thread of a renewal, and went on without its lease.
    """
    hangs = threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        subject.locker.let_go.wait(250)

    monkeypatch.setattr(BaseExecutor, "submit_job", hang)
    wait_until(hangs.is_set, what="the scheduler hangs as it submits a renewal")
    subject.clock.now += 1.0
    wait_until(lambda: RenewalNotTriggered in subject.kinds(), what="the watchdog asks for one")
    subject.locker.error = StoreUnavailable("away")
    subject.clock.now += EXPIRATION_MS / 1000
    wait_until(lambda: subject.lost, what="the watchdog fires")


def test_renewals_begin_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no memory none is to be had."""
    subject = KeepAliveUnderTest()
    subject.keep_alive.start()
    begun: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: begun.append(thread.name))
    try:
        wait_until(lambda: begun or subject.locker.renewals >= 3, what="three renewals")
        assert begun == []
    finally:
        subject.keep_alive.stop()


def test_the_watchdog_tells_of_a_loss_that_the_renewal_did_not_come_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the renewals may die, and the hook that hears of it, too."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    lost: list[str] = []

    def on_lost(_: str) -> None:
        lost.append(threading.current_thread().name)
        if len(lost) == 1:
            raise MemoryError

    subject = KeepAliveUnderTest(on_lost=on_lost)
    subject.locker.error = StoreUnavailable("away")
    subject.keep_alive.start()
    try:
        wait_until(lambda: lost, what="a failed renewal")
        subject.clock.now += EXPIRATION_MS / 1000
        wait_until(lambda: len(lost) > 1, what="the watchdog tells of it")
        assert lost == ["orthia-renewals", "orthia-watchdog-live"]
    finally:
        subject.end()


@pytest.mark.parametrize("is_renewal", [True, False])
def test_a_thread_without_memory_for_the_hooks_argument_is_told_of(
    monkeypatch: pytest.MonkeyPatch, *, is_renewal: bool
) -> None:
    """What the hook gets is there before it is needed."""
    ended: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: ended.append(what.exc_type))
    if is_renewal:
        repeated = REAL_THREADS.every(PERIOD_MS / 1000, lambda: without_memory(None))
        start = repeated.start
    else:
        thread = REAL_THREADS.thread(lambda: without_memory(None), "orthia-any")
        start = thread.start
    monkeypatch.setattr(threading, "ExceptHookArgs", without_memory)
    start()
    wait_until(lambda: ended, what="the hook")
    assert ended[0] is MemoryError
    if is_renewal:
        repeated.stop()


def test_any_number_of_threads_may_stop_it(subject: KeepAliveUnderTest) -> None:
    """A failure and an orderly end may come together."""
    renewing = subject.keep_alive._renewals
    stop_renewing, calls = renewing.stop, []
    ended: list[Future[None]] = []

    def stop_slowly() -> None:
        calls.append("stop")
        wait_until(lambda: sum(stop.done() for stop in ended) == 7, what="the others are back")
        stop_renewing()

    renewing.stop = stop_slowly  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        ended += [pool.submit(subject.keep_alive.stop) for _ in range(8)]
    for stop in ended:
        stop.result()
    assert calls == ["stop"]
    renewals = subject.locker.renewals
    subject.keep_alive.renew()
    assert subject.locker.renewals == renewals
