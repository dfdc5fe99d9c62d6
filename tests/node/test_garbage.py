"""What the collector of garbage looks through, and when: how long that takes is a parameter."""

import gc
import subprocess
import sys
import threading
from types import FrameType

import pytest

from orthia.broker.node.garbage import (
    ALONE_SECONDS,
    LEAST_UNSEEN,
    MOST_UNSEEN,
    SHORT_SECONDS,
    FullPasses,
)
from orthia.broker.node.stacks import stack_of

SMALL = 400_000
"""Blocks that are looked through in a short time."""
MANY = 4_000_000
"""Blocks that take long."""


def test_a_short_full_pass_happens_while_clients_wait() -> None:
    """Once there is a quarter more than after the last, and not all the time."""
    passes = FullPasses(SMALL, 0.0)
    assert not passes.is_due(SMALL + SMALL // 4 - 1, 1.0, connections=1)
    grown = SMALL + SMALL // 4
    assert passes.is_due(grown, 2.0, connections=1)
    passes.happened(grown, SMALL, 2.0, SHORT_SECONDS / 2)
    assert not passes.is_due(grown, 2.0 + 49 * SHORT_SECONDS, connections=1)
    assert passes.is_due(grown, 2.0 + 51 * SHORT_SECONDS, connections=1)


def test_a_few_blocks_are_not_looked_for() -> None:
    """However small a node is."""
    passes = FullPasses(1_000, 0.0)
    assert not passes.is_due(LEAST_UNSEEN + 999, 1.0, connections=1)
    assert passes.is_due(LEAST_UNSEEN + 1_000, 1.0, connections=1)


def test_a_long_full_pass_waits_until_nobody_is_connected() -> None:
    """For a while, so that who connects again at once does not meet it."""
    passes = FullPasses(MANY, 0.0)
    grown = 2 * MANY
    assert not passes.is_due(grown, 1.0, connections=1)
    assert not passes.is_due(grown, 2.0, connections=0)
    assert not passes.is_due(grown, 1.0 + ALONE_SECONDS, connections=1)
    assert not passes.is_due(grown, 2.0 + ALONE_SECONDS, connections=0)
    assert passes.is_due(grown, 2.0 + 2 * ALONE_SECONDS, connections=0)


def test_what_cycles_of_clients_take_is_bounded_whoever_waits() -> None:
    """There may be so much more than after the last pass, or twice as much, and no more."""
    passes = FullPasses(MANY, 0.0)
    assert not passes.is_due(MANY + MOST_UNSEEN - 1, 1.0, connections=9)
    assert passes.is_due(MANY + MOST_UNSEEN, 1.0, connections=9)
    larger = 3 * MOST_UNSEEN
    passes.happened(MANY + MOST_UNSEEN, larger, 1.0, 1.0)
    assert not passes.is_due(2 * larger - 1, 1_000.0, connections=9)
    assert passes.is_due(2 * larger, 1_000.0, connections=9)


def test_what_was_freed_since_is_not_made_up_for_by_garbage() -> None:
    """A node that has half of what it had, and as much garbage, finds it."""
    passes = FullPasses(SMALL, 0.0)
    assert not passes.is_due(SMALL // 2, 1.0, connections=1)
    assert passes.is_due(SMALL, 2.0, connections=1)


def test_how_long_a_pass_takes_is_learnt_from_the_last() -> None:
    """On a slow machine fewer blocks are too many."""
    passes = FullPasses(SMALL, 0.0)
    passes.happened(SMALL, SMALL, 0.0, 2 * SHORT_SECONDS)
    assert not passes.is_due(2 * SMALL, 1_000.0, connections=1)


_CYCLES = """
import gc, sys, weakref
from orthia.broker.node import garbage

class Client:
    "One that is a cycle with its session."

def clients(count):
    made = []
    for _ in range(count):
        one = Client()
        one.session = [one, {}, {}, {}]
        made.append(one)
    return made

now = 0.0
connections = 1
timers = []
collector = garbage.GarbageCollector(
    lambda _, callback: timers.append(callback), lambda: connections, lambda: now
)
collector.start()

def look():
    global now
    now += 1_000.0
    timers.pop()()

kept = clients(60_000)  # by then there was a pass, and they are frozen
gone = weakref.ref(kept[0])
collections = gc.get_stats()[2]["collections"]
assert collections > 0, "no pass"
assert len(gc.get_objects(2)) < 150_000, len(gc.get_objects(2))
del kept
gc.collect()
assert gone() is not None, "not frozen"
ACT
assert gone() is None, "not found"
assert not timers == []
collector.stop()
"""


@pytest.mark.parametrize(
    "act",
    [
        "look()",
        "garbage.SHORT_SECONDS = 0; connections = 0; look(); assert gone(); look()",
        "garbage.SHORT_SECONDS = garbage.MOST_UNSEEN = 0; collector._passes._seen = 1; look()",
    ],
    ids=["while it is short", "when nobody waits", "when there is too much"],
)
def test_a_cycle_that_was_frozen_alive_is_freed(act: str) -> None:
    """In a process of its own, whose collector is a node's: passes skip it, a full one does not."""
    script = _CYCLES.replace("ACT", act)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_no_pass_is_made_while_a_stack_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter would crash if a thread left a frame meanwhile that is about to be shown."""
    seen: list[bool] = []
    frames = sys._current_frames

    def current_frames() -> dict[int, FrameType]:
        seen.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    assert "test_no_pass_is_made" in stack_of(threading.get_ident())
    assert (seen, gc.isenabled()) == ([False], True)
