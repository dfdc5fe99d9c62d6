"""When the node before was last known to be there."""

import math

import pytest

from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, LockStatus

HOLDER = HolderId("a@h:1:x/2000/20000")
FREE = LockStatus(Lock.LIVE, None, 3, None)


def held(left: float, holder: str = HOLDER) -> LockStatus:
    """Return the live lock as held for so many more seconds, or as expired."""
    return LockStatus(Lock.LIVE, HolderId(holder), 3, left)


def known(*looks: tuple[LockStatus, float]) -> LastSign:
    """Return what is known after these looks."""
    sign = LastSign()
    for live, looked in looks:
        sign = sign.after(live, looked)
    return sign


def test_of_a_pair_that_never_served_nothing_is_known() -> None:
    """No number is made up for it."""
    assert known((FREE, 10.0), (FREE, 20.0)).age_ms(30.0) is None


def test_a_lease_says_when_it_was_renewed() -> None:
    """Whether it has ended or not, and whoever was there to see it."""
    assert known((held(18.5), 100.0)).age_ms(101.0) == 2_500
    assert known((held(-3_600.0), 100.0)).age_ms(100.0) == 3_620_000


def test_a_lease_that_a_step_of_the_clock_made_longer_says_nothing_of_the_future() -> None:
    """Its last renewal was not after the look."""
    assert known((held(35.0), 100.0)).age_ms(101.0) == 1_000


def test_whoever_gave_the_lock_back_was_there_when_it_was_last_seen_held() -> None:
    """Not only at its last renewal."""
    assert known((held(18.5), 100.0), (FREE, 100.5)).age_ms(100.6) == pytest.approx(600)
    assert known((held(18.5), 100.0), (FREE, 100.5), (FREE, 160.0)).age_ms(160.0) == 60_000


@pytest.mark.parametrize("holder", ["a@h:1:x", "a@h:1:x:shared-file-locker:lease-only"])
def test_any_other_lock_is_a_sign_as_long_as_it_is_held(holder: str) -> None:
    """A lease of an older version, or one that follows another lock."""
    assert known((held(5.0, holder), 100.0), (held(4.0, holder), 101.0)).age_ms(103.0) == 2_000
    assert known((held(5.0, holder), 100.0), (held(-4.0, holder), 109.0)).age_ms(110.0) == 10_000
    assert known((held(-7.0, holder), 100.0)).age_ms(110.0) == 17_000
    assert known((held(math.inf, holder), 100.0), (FREE, 100.5)).age_ms(101.0) == 1_000


def test_a_lease_that_ran_out_says_since_when_its_holder_was_gone() -> None:
    """At the latest since then; and before that it may have been there."""
    running, over = known((held(18.5), 100.0)), known((held(18.5), 100.0), (held(-2.5), 121.0))
    assert (running.holder_id, running.gone_ms(101.0)) == (HOLDER, None)
    assert (over.holder_id, over.gone_ms(122.0)) == (HOLDER, 3_500)


def test_whoever_gave_the_lock_back_was_gone_when_it_was_first_seen_free() -> None:
    """However often it was seen free after that."""
    sign = known((held(18.5), 100.0), (FREE, 100.5), (FREE, 160.0))
    assert (sign.holder_id, sign.gone_ms(160.5)) == (HOLDER, 60_000)


@pytest.mark.parametrize(
    ("since", "gone_ms"),
    [(None, None), (99.5, 1_500), (98.5, 2_500), (90.0, 2_500)],
    ids=["unknown", "after its last sign", "at it", "before it"],
)
def test_a_process_that_ended_was_gone_since_then(
    since: float | None, gone_ms: float | None
) -> None:
    """But not since before its last sign, which was at 98.5."""
    assert known((held(18.5), 100.0)).gone_since(since).gone_ms(101.0) == gone_ms
