"""The pure rules: deadlines, what a waiting backup does, what is worth a warning."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.nodemanager.activation import BackupWatch, Decision, decide, still_wanted
from orthia.nodemanager.events import RenewalBeyondExpiration, RenewalGap, RenewalSlow
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import (
    Lease,
    Lock,
    LockStatus,
    NodeManagerStatus,
    State,
    deadline,
)
from orthia.nodemanager.renewal_checks import (
    DRIFT_REPORT_SECONDS,
    DriftCheck,
    RenewalTimes,
    check_renewal,
    not_triggered_after_seconds,
)

EXPIRATION_MS = 20_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def status(state: State, live_left: float | None) -> NodeManagerStatus:
    """Return what a store says; ``live_left`` is None while the live lock is free."""
    holder = None if live_left is None else HolderId("somebody")
    return NodeManagerStatus(
        state,
        LockStatus(Lock.LIVE, holder, 1, live_left),
        LockStatus(Lock.BACKUP, HolderId("me"), 1, 10.0),
        "id",
        1,
        NOW,
    )


@pytest.mark.parametrize(("lag", "is_too_late"), [(0.0099, False), (0.011, True)])
def test_a_stopwatch_may_be_slow_within_the_margin(lag: float, is_too_late: bool) -> None:
    """Then the node gives up before the database does; a slower one would not."""
    ends_at = deadline(0.0, EXPIRATION_MS) / (1 - lag)
    assert (ends_at > EXPIRATION_MS / 1000) is is_too_late


def test_a_lease_is_valid_before_its_deadline_and_not_at_it() -> None:
    """At the deadline it may be somebody else's."""
    lease = Lease(Lock.LIVE, HolderId("me"), 7, 100.0)
    assert lease.is_valid(99.999)
    assert not lease.is_valid(100.0)
    assert lease.renewed(90.0, EXPIRATION_MS) == Lease(
        Lock.LIVE, HolderId("me"), 7, deadline(90.0, EXPIRATION_MS)
    )


@pytest.mark.parametrize(
    ("state", "left", "decision"),
    [
        (State.LIVE, 5.0, Decision.WAIT),
        (State.LIVE, None, Decision.TAKE),
        (State.LIVE, -0.1, Decision.TAKE),
        (State.LIVE, 0.0, Decision.TAKE),
        (State.PAUSED, None, Decision.WAIT),
        (State.PAUSED, -5.0, Decision.WAIT),
        (State.FAILING_BACK, 5.0, Decision.WAIT),
        (State.FAILING_BACK, None, Decision.WAIT),
        (State.NOT_STARTED, None, Decision.WAIT),
    ],
)
def test_a_waiting_backup_decides(state: State, left: float | None, decision: Decision) -> None:
    """The table of orthia.nodemanager.activation, at the first look."""
    assert decide(status(state, left), BackupWatch(), 0.0, EXPIRATION_MS)[0] is decision


@pytest.mark.parametrize("state", [State.FAILING_BACK, State.NOT_STARTED])
def test_a_node_that_died_on_its_way_is_replaced(state: State) -> None:
    """Nobody live for a whole expiration, by the waiter's stopwatch: it takes over."""
    watch = BackupWatch()
    decision, watch = decide(status(state, None), watch, 100.0, EXPIRATION_MS)
    assert decision is Decision.WAIT
    decision, watch = decide(status(state, -3.0), watch, 119.9, EXPIRATION_MS)
    assert decision is Decision.WAIT
    decision, watch = decide(status(state, -3.0), watch, 120.0, EXPIRATION_MS)
    assert decision is Decision.TAKE_STALE


@pytest.mark.parametrize("seen", [status(State.FAILING_BACK, 5.0), status(State.PAUSED, None)])
def test_the_wait_begins_anew_when_somebody_was_live(seen: NodeManagerStatus) -> None:
    """Only an uninterrupted absence counts."""
    _, watch = decide(status(State.FAILING_BACK, None), BackupWatch(), 100.0, EXPIRATION_MS)
    _, watch = decide(seen, watch, 110.0, EXPIRATION_MS)
    decision, _ = decide(status(State.FAILING_BACK, None), watch, 125.0, EXPIRATION_MS)
    assert decision is Decision.WAIT


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(State)), st.one_of(st.none(), st.floats(-9, 9)), st.floats(0, 9)
        ),
        max_size=30,
    )
)
def test_a_paused_pair_and_a_held_lock_are_never_taken(
    looks: list[tuple[State, float | None, float]],
) -> None:
    """Over any history of looks."""
    watch, now = BackupWatch(), 0.0
    for state, left, passed in looks:
        now += passed
        seen = status(state, left)
        decision, watch = decide(seen, watch, now, EXPIRATION_MS)
        if decision is not Decision.WAIT:
            assert state is not State.PAUSED
            assert not seen.live.is_held
            assert state is State.LIVE or now >= EXPIRATION_MS / 1000


@pytest.mark.parametrize(
    ("decision", "state", "wanted"),
    [
        (Decision.TAKE, State.LIVE, True),
        (Decision.TAKE, State.PAUSED, False),
        (Decision.TAKE, State.FAILING_BACK, False),
        (Decision.TAKE_STALE, State.FAILING_BACK, True),
        (Decision.TAKE_STALE, State.LIVE, True),
        (Decision.TAKE_STALE, State.PAUSED, False),
        (Decision.TAKE_OVER, State.LIVE, True),
        (Decision.TAKE_OVER, State.FAILING_BACK, True),
        (Decision.TAKE_OVER, State.NOT_STARTED, True),
        (Decision.TAKE_OVER, State.PAUSED, False),
    ],
)
def test_the_state_is_judged_again_under_the_lock(
    decision: Decision, state: State, wanted: bool
) -> None:
    """It may have changed between the look and the taking."""
    assert still_wanted(decision, state) is wanted


LEASE = Lease(Lock.LIVE, HolderId("me"), 7, 100.0)


def judged(previous: float, started: float, ended: float) -> list[type]:
    """Return the kinds of events a renewal gives with a period of 2 s."""
    times = RenewalTimes(previous, started, ended)
    return [
        type(event)
        for event in check_renewal(LEASE, times, period_ms=2_000, expiration_ms=EXPIRATION_MS)
    ]


def test_renewals_in_time_are_not_mentioned() -> None:
    """One that comes less than a third of a period late, as on any busy host, is in time."""
    assert judged(10.0, 12.0, 12.1) == []
    assert judged(10.0, 12.6, 12.7) == []


def test_late_and_slow_renewals_are() -> None:
    """One that began late, one that took longer than a period, and one that did both."""
    assert judged(10.0, 12.7, 12.8) == [RenewalGap]
    assert judged(10.0, 12.0, 14.1) == [RenewalSlow]
    assert judged(10.0, 15.0, 18.0) == [RenewalGap, RenewalSlow]


def test_a_gap_beyond_the_expiration_is_an_error() -> None:
    """The lease had lapsed: that it was still to be had is luck."""
    assert judged(10.0, 30.0, 30.1) == [RenewalGap]
    assert judged(10.0, 30.1, 30.2) == [RenewalBeyondExpiration]
    assert RenewalBeyondExpiration.level > RenewalGap.level


@given(st.integers(1, 10_000), st.integers(2, 100))
def test_a_renewal_not_triggered_is_noticed_well_before_the_deadline(
    period_ms: int, periods: int
) -> None:
    """There is time for another attempt: the rules leave room for two renewals at least."""
    expiration_ms = period_ms * (periods + 1)
    noticed = not_triggered_after_seconds(0.0, period_ms)
    assert noticed + period_ms / 1000 < deadline(0.0, expiration_ms)


def observe(judge: DriftCheck, drift_ms: float, now: float, trip: float = 0.0) -> bool:
    """Return whether a drift is reported."""
    event = judge.observe(
        NOW + timedelta(milliseconds=drift_ms), NOW, asked_seconds=now - trip, now=now
    )
    return event is not None


@pytest.mark.parametrize("drift_ms", [251, -251])
def test_a_drift_is_reported_when_it_begins_and_seldom_after(drift_ms: int) -> None:
    """Either way; once in ten minutes while it lasts; at once when it comes back."""
    judge = DriftCheck(250)
    assert observe(judge, drift_ms, 1.0)
    assert not observe(judge, drift_ms, 3.0)
    assert observe(judge, drift_ms, 1.0 + DRIFT_REPORT_SECONDS)
    assert not observe(judge, 0, 5_000.0)
    assert observe(judge, drift_ms, 5_002.0)


def test_what_the_round_trip_explains_is_no_drift() -> None:
    """A slow answer says little about the clock: half of the trip is allowed for."""
    judge = DriftCheck(250)
    assert not observe(judge, 0, 10.0, trip=3.0)
    assert not observe(judge, -1_700, 10.0, trip=3.0)
    assert observe(judge, 700, 20.0, trip=0.2)


def test_a_slow_answer_does_not_spoil_a_better_reading() -> None:
    """Unless it contradicts it: then the clocks did move."""
    judge = DriftCheck(250)
    observe(judge, 100, 1.0, trip=0.01)
    good = judge.offset
    observe(judge, -800, 3.0, trip=3.0)
    assert judge.offset == good
    observe(judge, 5_000, 5.0, trip=3.0)
    assert judge.offset > timedelta(seconds=5)
