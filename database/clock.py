"""The database's clock, on a node's stopwatch: what the times of messages follow."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from orthia.config.clock import monotonic_seconds

_Time = TypeVar("_Time", float, timedelta)


def counts(ahead: _Time, half_trip: _Time, before: _Time, uncertainty: _Time) -> bool:
    """Return whether a reading replaces the one ``before``.

    Both say how far the database's clock is ahead, give or take half of their round trip. One that
    took longer than the one before counts only if they cannot both be right.
    """
    return half_trip <= uncertainty or abs(ahead - before) > half_trip + uncertainty


class DatabaseClock:
    """Tells the database's time without asking for it, as readings from time to time allow.

    So ``expires`` means the same on both nodes of a pair, whatever their own wall clocks show, and
    a wall clock that is set does not move it. Any thread may note a reading, and ask.
    """

    def __init__(
        self,
        stopwatch: Callable[[], float] = monotonic_seconds,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        ticks_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin without a reading: until there is one, the node's ``wall_ms`` has to do.

        ``stopwatch`` is what readings are timed with. Between them ``ticks_ns`` counts on, which is
        asked for every message and costs a third less; it may stand still while the host is
        suspended, and the next reading, the first thing after that, makes up for it.
        """
        self._stopwatch = stopwatch
        self._wall_ms = wall_ms
        self._ticks_ns = ticks_ns
        self._ahead_ms: float | None = None
        self._uncertainty_ms = 0.0
        self._ahead_of_ticks_ns: int | None = None

    def observe(self, database_time: datetime, *, asked_seconds: float, now_seconds: float) -> None:
        """Note what the database's clock showed between two times of the stopwatch.

        Unless a better reading ``counts``.
        """
        half_trip_ms = (now_seconds - asked_seconds) * 500
        ahead_ms = database_time.timestamp() * 1000 - (asked_seconds * 1000 + half_trip_ms)
        if self._ahead_ms is None or counts(
            ahead_ms, half_trip_ms, self._ahead_ms, self._uncertainty_ms
        ):
            self._ahead_ms, self._uncertainty_ms = ahead_ms, half_trip_ms
        now_ms = self._stopwatch() * 1000 + self._ahead_ms
        self._ahead_of_ticks_ns = int(now_ms * 1_000_000) - self._ticks_ns()

    def now(self) -> datetime | None:
        """Return the time in UTC, right after a suspend of the host too; None without a reading."""
        if self._ahead_ms is None:
            return None
        return datetime.fromtimestamp(self._stopwatch() + self._ahead_ms / 1000, UTC)

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC."""
        ahead_ns = self._ahead_of_ticks_ns
        if ahead_ns is None:
            return self._wall_ms()
        return (self._ticks_ns() + ahead_ns) // 1_000_000
