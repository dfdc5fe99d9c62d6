"""For how long a backup serves on when the live nodes it hands back to do not last."""

from hypothesis import given
from hypothesis import strategies as st

from orthia.nodemanager.failback import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SHORT_SECONDS,
    Failbacks,
)


def test_the_first_failback_is_at_once() -> None:
    """A backup that took over from a live node that crashed hands back when that returns."""
    assert Failbacks().serves_again(1_000.0).may_hand_back(1_000.0)


def test_after_each_life_that_is_short_the_next_failback_waits_longer() -> None:
    """Twice as long each time, up to a bound."""
    failbacks, now, pauses = Failbacks(), 1_000.0, []
    for _ in range(9):
        failbacks = failbacks.handed_back(now).serves_again(now + 5.0)
        now += 5.0
        assert failbacks.lasted_seconds == 5.0
        assert not failbacks.may_hand_back(now)
        now = failbacks.not_before_seconds
        assert failbacks.may_hand_back(now)
        pauses.append(failbacks.pause_seconds)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS * factor for factor in (1, 2, 4)]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_whoever_was_put_off_asks_again() -> None:
    """It may be gone when the time has come; who comes then need not."""
    failbacks = Failbacks().handed_back(0.0).serves_again(5.0)
    assert not failbacks.was_put_off
    put_off = failbacks.put_off()
    assert put_off.was_put_off
    assert put_off.not_before_seconds == failbacks.not_before_seconds
    assert put_off.asked_again() == failbacks
    assert not put_off.handed_back(50.0).serves_again(55.0).was_put_off


def test_a_live_node_that_lasts_is_trusted_again() -> None:
    """However often others did not."""
    failbacks = Failbacks(short_terms=5).handed_back(0.0)
    assert failbacks.serves_again(SHORT_SECONDS) == Failbacks()


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=30))
def test_no_failback_is_put_off_for_longer_than_the_bound(
    lives: list[tuple[float, float]],
) -> None:
    """Whatever came before: nobody waits for ever."""
    failbacks, now = Failbacks(), 0.0
    for lasted, served in lives:
        failbacks = failbacks.handed_back(now).serves_again(now + lasted)
        now += lasted
        assert failbacks.may_hand_back(now + LONGEST_PAUSE_SECONDS)
        now += served
