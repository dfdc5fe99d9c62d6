"""What is worth an operator's attention about renewals and clocks: without IO.

Gaps and durations follow Artemis' lease lock, which warns when renewals are further apart than
their period plus 100 ms. That is one in twenty of the default period, and a busy host is as late
every day; here it is a third of the period. Drift follows ``jdbc-allowed-time-diff``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from orthia.database.clock import counts
from orthia.nodemanager.events import (
    ClockDrift,
    Event,
    RenewalBeyondExpiration,
    RenewalGap,
    RenewalSlow,
)
from orthia.nodemanager.locks.lease import Lease

GAP_TOLERANCE_PERIODS = 1 / 3
"""A renewal that begins later than its period by more than this is reported."""
DRIFT_REPORT_SECONDS = 600.0
"""A drift is reported when it begins and then at most this often."""
NOT_TRIGGERED_PERIODS = 1.5
"""A renewal that did not begin for so many periods was not triggered."""


@dataclass(frozen=True)
class RenewalTimes:
    """One successful renewal, on the stopwatch."""

    previous_started_seconds: float
    started_seconds: float
    ended_seconds: float


def check_renewal(
    lease: Lease, times: RenewalTimes, *, period_ms: int, expiration_ms: int
) -> list[Event]:
    """Return what is to be reported about a renewal that succeeded."""
    found: list[Event] = []
    gap_ms = (times.started_seconds - times.previous_started_seconds) * 1000
    duration_ms = (times.ended_seconds - times.started_seconds) * 1000
    if gap_ms > expiration_ms:
        found.append(RenewalBeyondExpiration(lease.lock, lease.token, gap_ms, expiration_ms))
    elif gap_ms > period_ms * (1 + GAP_TOLERANCE_PERIODS):
        found.append(
            RenewalGap(lease.lock, lease.token, gap_ms, period_ms, expiration_ms),
        )
    if duration_ms > period_ms:
        found.append(RenewalSlow(lease.lock, lease.token, duration_ms, period_ms))
    return found


def not_triggered_after_seconds(started_seconds: float, period_ms: int) -> float:
    """Return when a renewal that follows one begun at ``started_seconds`` counts as not triggered.

    Well before the deadline, since an expiration has room for more than two periods.
    """
    return started_seconds + NOT_TRIGGERED_PERIODS * period_ms / 1000


class DriftCheck:
    """Compares this node's wall clock with the database's, for the log only."""

    def __init__(self, allowed_ms: int) -> None:
        self._allowed_ms = allowed_ms
        self._reported_seconds: float | None = None
        self.offset = timedelta(0)
        """What to add to this node's wall clock to have the database's."""
        self._uncertainty = timedelta.max

    def observe(
        self, database_time: datetime, wall_time: datetime, *, asked_seconds: float, now: float
    ) -> ClockDrift | None:
        """Note a reading: ``wall_time`` at stopwatch ``now``, the request sent at ``asked``.

        The database read its clock somewhere in between, so half of the round trip is allowed for.
        It is the one that is compared if it ``counts``.
        """
        half_trip = timedelta(seconds=(now - asked_seconds) / 2)
        offset = database_time - (wall_time - half_trip)
        if counts(offset, half_trip, self.offset, self._uncertainty):
            self.offset, self._uncertainty = offset, half_trip
        drift_ms = abs(self.offset.total_seconds()) * 1000
        if drift_ms - self._uncertainty.total_seconds() * 1000 <= self._allowed_ms:
            self._reported_seconds = None
            return None
        if (
            self._reported_seconds is not None
            and now - self._reported_seconds < DRIFT_REPORT_SECONDS
        ):
            return None
        self._reported_seconds = now
        return ClockDrift(drift_ms, self._allowed_ms)
