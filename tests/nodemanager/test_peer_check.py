"""What a waiting node notices about the one that is live."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from orthia.nodemanager.events import TimersDiffer
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, LockStatus
from orthia.nodemanager.peer_check import PeerCheck

START = datetime(2026, 1, 1, tzinfo=UTC)
ME = HolderId("node-a@here:1:x/2000/20000")


def told(holder: str, *, renews: int, lasts: float = 20) -> list[str | TimersDiffer]:
    """Return what is told of a holder that renewed so often, each seen 0.3 s late."""
    watch = PeerCheck(ME)
    found: list[str | TimersDiffer] = []
    for number in range(renews + 1):
        expires = START + timedelta(seconds=2 * number + lasts)
        for left in (lasts - 0.3, lasts - 0.8):
            found += watch.look(LockStatus(Lock.LIVE, HolderId(holder), 7, left, expires))
    return found


def test_a_node_of_the_same_name_is_told_once() -> None:
    """The logs of two nodes of one name cannot be told apart."""
    (warning,) = told("node-a@there:2:y", renews=9)
    assert isinstance(warning, str)
    assert "node-a@there:2:y, is called 'node-a' as this one is" in warning
    assert told("node-b@there:2:y", renews=9) == []


def test_an_earlier_process_of_this_node_is_not_another_of_its_name() -> None:
    """What it left is not renewed any more; nor is a node its own neighbour."""
    assert told("node-a@here:0:y", renews=0) == []
    assert told(ME, renews=9) == []


def test_a_file_lock_that_is_held_is_held_by_one_that_runs() -> None:
    """It goes with its process, so the name is told at once."""
    held = LockStatus(Lock.LIVE, HolderId("node-a@there:2:y"), 7, math.inf)
    watch = PeerCheck(ME)
    assert len([*watch.look(held), *watch.look(held)]) == 1


@pytest.mark.parametrize(
    ("published", "renews", "told_of"),
    [
        ("/2000/20000", 9, None),
        ("/4000/20000", 9, (4_000, 20_000)),
        ("/2000/60000", 1, (2_000, 60_000)),
        ("/4000/20000", 0, None),
        ("", 9, None),
    ],
    ids=["alike", "other period", "other expiration", "may be gone", "older version"],
)
def test_timers_that_differ_are_told_once(
    published: str, renews: int, told_of: tuple[int, int] | None
) -> None:
    """Of a node that renews; what an earlier process of this node left is no neighbour."""
    holder = f"node-b@there:2:y{published}"
    expected = [] if told_of is None else [TimersDiffer(holder, *told_of, 2_000, 20_000)]
    assert told(holder, renews=renews) == expected
