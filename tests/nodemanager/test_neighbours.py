"""What a waiting node notices about the one that is live."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from nodemanager.lease import Lock, LockStatus
from nodemanager.neighbours import NeighbourWatch

START = datetime(2026, 1, 1, tzinfo=UTC)
ME = "node-a@here:1:x"


def told(holder: str, *, lasts: float, renews: int, own_ms: int | None = 20_000) -> list[str]:
    """Return what is told of a holder that renewed so often, each seen 0.3 s late."""
    watch = NeighbourWatch(ME, own_ms)
    found: list[str] = []
    for number in range(renews + 1):
        expires = START + timedelta(seconds=2 * number + lasts)
        for left in (lasts - 0.3, lasts - 0.8):
            found += watch.look(LockStatus(Lock.LIVE, holder, 7, left, expires), 0.5)
    return found


def test_a_node_of_the_same_name_is_told_once() -> None:
    """The logs of two nodes of one name cannot be told apart."""
    (warning,) = told("node-a@there:2:y", lasts=20, renews=9)
    assert "node-a@there:2:y, is called 'node-a' as this one is" in warning
    assert told("node-b@there:2:y", lasts=20, renews=9) == []


def test_an_earlier_process_of_this_node_is_not_another_of_its_name() -> None:
    """What it left is not renewed any more; nor is a node its own neighbour."""
    assert told("node-a@here:0:y", lasts=20, renews=0) == []
    assert told(ME, lasts=20, renews=9) == []


def test_a_file_lock_that_is_held_is_held_by_one_that_runs() -> None:
    """It goes with its process, so the name is told at once."""
    held = LockStatus(Lock.LIVE, "node-a@there:2:y", 7, math.inf)
    watch = NeighbourWatch(ME, 20_000)
    assert len([*watch.look(held, 0.5), *watch.look(held, 0.5)]) == 1


@pytest.mark.parametrize(("lasts", "count"), [(10, 1), (18, 0), (20, 0), (22, 0), (60, 1)])
def test_leases_that_last_otherwise_are_told(lasts: float, count: int) -> None:
    """Each node's promise of a takeover is made with its own timers."""
    warnings = told("node-b@there:2:y", lasts=lasts, renews=9)
    assert len(warnings) == count
    assert all("jdbc-lock-expiration" in warning for warning in warnings)
