"""Instants as numbers: microseconds since 1970 UTC, which compare and pickle cheaply."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(instant: datetime) -> int:
    """Return the number for an aware ``instant``; raises TypeError for a naive one."""
    return (instant - EPOCH) // _MICROSECOND


def instant_at(micros: int) -> datetime:
    """Return the instant of a number, in UTC; raises OverflowError beyond the calendar."""
    return EPOCH + timedelta(microseconds=micros)


FIRST: Final = microseconds(datetime.min.replace(tzinfo=UTC))
LAST: Final = microseconds(datetime.max.replace(tzinfo=UTC))
"""The ends of the calendar."""


def iso(at: int | None) -> str | None:
    """Return an instant in UTC, to the millisecond, clamped to the calendar's range."""
    if at is None:
        return None
    found = instant_at(min(max(at, FIRST), LAST))
    return f"{found.isoformat(timespec='microseconds')[:23]}Z"
