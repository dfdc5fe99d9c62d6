"""The turn meter: a long turn of the loop is met, with where it was, and a short one is not."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from orthia.broker.node import turn_meter
from orthia.broker.node.turn_meter import TurnMeter, TurnWatch
from tests.support.waiting import wait_until

LONG = 0.05


class ThreadUnderTest:
    """A thread of a loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.marks: list[Callable[[float, float], None]] = []

    def used(self) -> float:
        """Return the processor time that it has used."""
        return self.now

    def where(self) -> str:
        """Return where it is."""
        return f"at {self.now:g}"

    def mark(self, passed: Callable[[float, float], None]) -> None:
        """Keep what is called when the turn is over."""
        self.marks.append(passed)


class Watched:
    """A watch of such a thread, and what it told."""

    def __init__(self) -> None:
        self.thread = ThreadUnderTest()
        self.measured: list[float] = []
        self.long: list[tuple[float, str]] = []
        self.watch = TurnWatch(
            self.thread,
            look_seconds=0.01,
            long_seconds=LONG,
            measured=self.measured.append,
            too_long=lambda seconds, where: self.long.append((seconds, where)),
        )

    def look_at(self, now: float) -> None:
        """Look when the thread has used so much."""
        self.thread.now = now
        self.watch.look()


def test_a_loop_that_rests_is_left_alone() -> None:
    """No mark is posted into it: it would be woken up."""
    watched = Watched()
    for _ in range(10):
        watched.look_at(0.0)
    assert watched.thread.marks == []


def test_a_long_turn_is_told_with_where_the_loop_was() -> None:
    """Once, when it is over; taken down amid it."""
    watched = Watched()
    for now in (0.01, 0.03, 0.04, 0.06):
        watched.look_at(now)
    (passed,) = watched.thread.marks
    passed(0.07, 0.001)
    watched.look_at(0.072)
    ((seconds, where),) = watched.long
    assert seconds == pytest.approx(0.06)
    assert where == "at 0.06"
    assert watched.measured == [pytest.approx(0.06), 0.001]


def test_short_turns_are_measured_and_not_told() -> None:
    """However many follow one another without a pause."""
    watched = Watched()
    now = 0.0
    for _ in range(20):
        now += 0.01
        watched.look_at(now)
        if watched.thread.marks:
            watched.thread.marks.pop()(now + 0.002, 0.004)
    assert watched.long == []
    assert len(watched.measured) >= 18


def test_what_the_garbage_collector_takes_is_of_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own thread alone: what another one collects takes no time of the loop's."""
    used = 1.0
    monkeypatch.setattr(time, "thread_time", lambda: used)
    monkeypatch.setattr(time, "clock_gettime", lambda _: used)
    loop = asyncio.new_event_loop()
    of_loop = turn_meter._OfLoop(loop)
    loop.close()

    def collect(seconds: float) -> None:
        nonlocal used
        of_loop.collecting("start", {})
        used += seconds
        of_loop.collecting("stop", {})

    collect(5.0)
    assert of_loop.used() == 1.0
    other = threading.Thread(target=collect, args=(3.0,))
    other.start()
    other.join()
    assert of_loop.used() == 4.0


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_measures_loops_of_both_kinds(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A callback that computes is met and named; one that waits for something is not."""
    loop = new_loop()
    long: list[tuple[float, str]] = []

    def computes_for_long() -> None:
        until = time.thread_time() + 4 * LONG
        while time.thread_time() < until:
            pass

    async def work() -> None:
        meter = TurnMeter(
            loop,
            long_seconds=LONG,
            measured=lambda _: None,
            too_long=lambda *found: long.append(found),
            look_seconds=0.005,
        )
        meter.start()
        loop.call_soon(computes_for_long)
        await asyncio.to_thread(wait_until, lambda: long)
        meter.stop()

    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
    ((seconds, where),) = long
    assert LONG < seconds < 6 * LONG
    assert "computes_for_long" in where
