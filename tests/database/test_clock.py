"""The database's clock as a node has it between two readings."""

from datetime import UTC, datetime, timedelta

import pytest

from database.clock import DatabaseClock
from tests.nodemanager.conftest import ManualClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a time the database shows."""
    return EPOCH + timedelta(seconds=seconds)


@pytest.fixture
def stopwatch() -> ManualClock:
    """Give a stopwatch that the test moves."""
    return ManualClock()


def test_without_a_reading_the_nodes_own_clock_has_to_do(stopwatch: ManualClock) -> None:
    """A message may come before the first renewal."""
    assert DatabaseClock(stopwatch, wall_ms=lambda: 77).now_ms() == 77


def test_it_goes_on_with_the_stopwatch_and_not_with_the_wall_clock(stopwatch: ManualClock) -> None:
    """A wall clock that is set between two readings moves nothing."""
    clock = DatabaseClock(stopwatch, wall_ms=lambda: 77)
    began = stopwatch.now
    stopwatch.now += 0.010
    clock.observe(at(1_000), asked_seconds=began, now_seconds=stopwatch.now)
    stopwatch.now += 2.5
    assert clock.now_ms() == pytest.approx(1_002_505, abs=1)


def test_a_slow_answer_that_agrees_changes_nothing(stopwatch: ManualClock) -> None:
    """The database read its clock somewhere in between; the better reading counts."""
    clock = DatabaseClock(stopwatch)
    clock.observe(at(1_000), asked_seconds=stopwatch.now, now_seconds=stopwatch.now)
    asked = stopwatch.now
    stopwatch.now += 4
    clock.observe(at(1_000.5), asked_seconds=asked, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx(1_004_000, abs=1)


@pytest.mark.parametrize("step", [-3_600.0, 0.2, 3_600.0])
def test_a_step_of_the_databases_clock_is_followed(stopwatch: ManualClock, step: float) -> None:
    """At the next reading, in either direction."""
    clock = DatabaseClock(stopwatch)
    for shown in (at(100_000), at(100_000 + step)):
        asked = stopwatch.now
        stopwatch.now += 0.002
        clock.observe(shown, asked_seconds=asked, now_seconds=stopwatch.now)
    assert clock.now_ms() == pytest.approx((100_000 + step) * 1000, abs=3)
