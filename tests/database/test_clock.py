"""The database's clock as a node has it between two readings."""

from datetime import UTC, datetime, timedelta

import pytest

from orthia.database.clock import DatabaseClock
from tests.nodemanager.conftest import ManualClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a time the database shows."""
    return EPOCH + timedelta(seconds=seconds)


@pytest.fixture
def stopwatch() -> ManualClock:
    """Give a stopwatch that the test moves."""
    return ManualClock()


def clock_of(stopwatch: ManualClock) -> DatabaseClock:
    """Return a clock that goes on as the stopwatch does."""
    return DatabaseClock(
        stopwatch, wall_ms=lambda: 77, ticks_ns=lambda: int(stopwatch.now * 1_000_000_000)
    )


def test_without_a_reading_the_nodes_own_clock_has_to_do(stopwatch: ManualClock) -> None:
    """A message may come before the first renewal."""
    assert clock_of(stopwatch).now_ms() == 77


def test_it_goes_on_with_the_stopwatch_and_not_with_the_wall_clock(stopwatch: ManualClock) -> None:
    """A wall clock that is set between two readings moves nothing."""
    clock = clock_of(stopwatch)
    began = stopwatch.now
    stopwatch.now += 0.010
    clock.observe(at(1_000), asked_seconds=began, now_seconds=stopwatch.now)
    stopwatch.now += 2.5
    assert clock.now_ms() == pytest.approx(1_002_505, abs=1)


def test_a_slow_answer_that_agrees_changes_nothing(stopwatch: ManualClock) -> None:
    """The database read its clock somewhere in between; the better reading counts."""
    clock = clock_of(stopwatch)
    clock.observe(at(1_000), asked_seconds=stopwatch.now, now_seconds=stopwatch.now)
    asked = stopwatch.now
    stopwatch.now += 4
    clock.observe(at(1_000.5), asked_seconds=asked, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx(1_004_000, abs=1)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_of_which_half_was_slow_changes_nothing(
    stopwatch: ManualClock, is_late: bool
) -> None:
    """The question alone took seconds, or the answer did; what counts is not exact either."""
    clock = clock_of(stopwatch)
    began, stopwatch.now = stopwatch.now, stopwatch.now + 0.004
    clock.observe(at(1_000 + 0.004 * (not is_late)), asked_seconds=began, now_seconds=stopwatch.now)
    asked, stopwatch.now = stopwatch.now, stopwatch.now + 4
    shown = 1_000 + 0.004 + (4 if is_late else 0)
    clock.observe(at(shown), asked_seconds=asked, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx(1_004_004, abs=3)


@pytest.mark.parametrize("step", [-3_600.0, 0.2, 3_600.0])
@pytest.mark.parametrize("trip", [0.002, 0.004])
def test_a_step_of_the_databases_clock_is_followed(
    stopwatch: ManualClock, step: float, trip: float
) -> None:
    """At the next reading, in either direction, also if that is a slower one."""
    clock = clock_of(stopwatch)
    for shown, seconds in ((at(100_000), 0.002), (at(100_000 + step), trip)):
        asked = stopwatch.now
        stopwatch.now += seconds
        clock.observe(shown, asked_seconds=asked, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx((100_000 + step) * 1000, abs=3)


def test_the_next_reading_makes_up_for_a_suspended_host(stopwatch: ManualClock) -> None:
    """What counts on between readings may stand still for as long as the host was suspended."""
    suspended = 0.0
    clock = DatabaseClock(
        stopwatch, ticks_ns=lambda: int((stopwatch.now - suspended) * 1_000_000_000)
    )
    clock.observe(at(1_000), asked_seconds=stopwatch.now, now_seconds=stopwatch.now)
    suspended = 600.0
    stopwatch.now += 601.0
    clock.observe(at(1_601), asked_seconds=stopwatch.now - 0.5, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx(1_601_000, abs=1)
