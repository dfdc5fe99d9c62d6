"""The database's time as a node knows it, and a warning if the node's own clock is far from it."""

from collections.abc import Callable
from datetime import UTC, datetime

from orthia.database import DatabaseClock
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.renewal_checks import DriftCheck


class DatabaseTime:
    """Learns from every answer that tells it; the entries of the log carry it."""

    def __init__(
        self, log: FailoverLog, *, allowed_drift_ms: int, clock: Callable[[], float]
    ) -> None:
        self._log = log
        self._clock = DatabaseClock(clock)
        self._drift = DriftCheck(allowed_drift_ms)
        self.now_ms = self._clock.now_ms
        """Returns milliseconds since 1970 UTC; asked for every message."""

    def note(self, database_time: datetime, asked: float, now: float) -> None:
        """Take a reading: asked for, and answered, at these times of the stopwatch."""
        self._clock.observe(database_time, asked_seconds=asked, now_seconds=now)
        wall = datetime.now(UTC)
        drift = self._drift.observe(database_time, wall, asked_seconds=asked, now=now)
        self._log.database_time = self._clock.now
        if drift is not None:
            self._log.emit(drift)
