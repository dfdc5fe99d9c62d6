"""When to repeat a log line about something that lasts: often at first, then more seldom."""

from typing import Final

FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 60.0


class Reminder:
    """For one wait: some seconds after it began, then after twice as long, a minute at most.

    Whoever looks at a log that has been still for a minute can rely on what it said last.
    """

    def __init__(self, began_seconds: float, *, first_seconds: float = FIRST_SECONDS) -> None:
        """Begin at ``began_seconds`` of a stopwatch."""
        self._began_seconds = began_seconds
        self._interval_seconds = first_seconds
        self._due_seconds = began_seconds + first_seconds

    def due(self, now_seconds: float) -> float | None:
        """Return for how many seconds it has gone on, if that is to be said now; else None."""
        if now_seconds < self._due_seconds:
            return None
        self._interval_seconds = min(2 * self._interval_seconds, LONGEST_SECONDS)
        self._due_seconds = now_seconds + self._interval_seconds
        return now_seconds - self._began_seconds
