"""How often a scheduled message is delivered: Classic's period, repeat and cron.

A message with a period and a number of repeats is a *series*: it is delivered when it is due, and
then that many times more, one period after the other. A message with a cron pattern is not
delivered itself: each time of the pattern begins a series, after the delay if there is one, else
after the period; without repeats that is one delivery. The times of a pattern are in UTC, so that
they are the same on both nodes.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from orthia.config.errors import OrthiaError

FOR_EVER = -1
"""Repeats without end."""
LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: a later time is a mistake, and cannot be shown."""
MOST_CHARACTERS: Final = 256
"""The longest cron pattern: the cost of reading one is in proportion."""
_FIELDS: Final = 5


MIN_PERIOD_MS = 100
"""The shortest time between two deliveries of a message: each is a transaction of the journal."""


class RecurrenceRefused(OrthiaError):  # noqa: N818 - named for what is the case
    """A pattern cannot be parsed, or names a time that never comes."""


class Recurrence(NamedTuple):
    """What follows once a message was due."""

    period_ms: int = 0
    repeats: int = 0
    """How often it is delivered again; ``FOR_EVER`` or not negative."""
    cron: str = ""
    """A pattern of five fields; empty for a series."""
    delay_ms: int = 0
    """With a pattern: how long after each of its times a series begins."""

    def encode(self) -> str:
        """Return the stored form."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    def after(self, due_ms: int, now_ms: int) -> "Following":
        """Return what follows the moment ``due_ms``, at ``now_ms``."""
        if self.cron:
            begins = list(self._series(now_ms))
            again = (next_time(self.cron, max(due_ms, now_ms)), self)
            return Following(is_delivered=not begins, scheduled=[*begins, again])
        if not self.repeats:
            return Following(is_delivered=True, scheduled=[])
        left = FOR_EVER if self.repeats == FOR_EVER else self.repeats - 1
        # Times that passed while no node was live are skipped, as in Classic.
        period_ms = max(self.period_ms, MIN_PERIOD_MS)  # earlier nodes stored any
        following = due_ms + period_ms
        if following <= now_ms:
            following = now_ms + period_ms
        if following > LATEST_MS:
            return Following(is_delivered=True, scheduled=[])
        scheduled = [(following, self._replace(repeats=left))]
        return Following(is_delivered=True, scheduled=scheduled)

    def _series(self, now_ms: int) -> Iterator[tuple[int, "Recurrence"]]:
        if self.delay_ms or self.repeats:
            begins = now_ms + (self.delay_ms or self.period_ms)
            if begins <= LATEST_MS:
                yield begins, Recurrence(self.period_ms, self.repeats)


class Following(NamedTuple):
    """What happens to a message that is due."""

    is_delivered: bool
    """Whether it is delivered now."""
    scheduled: list[tuple[int, Recurrence]]
    """When it is due again, milliseconds since 1970 UTC, and what follows then."""


ONCE = Recurrence()


def decode(stored: str) -> Recurrence:
    """Return a recurrence from its stored form; raises ValueError."""
    try:
        return Recurrence(**json.loads(stored))
    except TypeError as error:
        raise ValueError(str(error)) from None


def next_time(cron: str, after_ms: int) -> int:
    """Return the first time of a pattern after a moment; raises RecurrenceRefused."""
    if len(cron) > MOST_CHARACTERS:
        raise RecurrenceRefused(
            f"the cron pattern {cron!r:.100} has {len(cron)} characters, and may have"
            f" {MOST_CHARACTERS}"
        )
    if len(cron.split()) != _FIELDS:
        raise RecurrenceRefused(
            f"the cron pattern {cron!r:.100} has {len(cron.split())} fields, and is to have"
            f" {_FIELDS}: minute, hour, day, month, weekday"
        )
    # Imported here: few brokers ever need it.
    from cronsim import CronSim, CronSimError

    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    try:
        return int(next(CronSim(cron, after)).timestamp() * 1000)
    except (CronSimError, ValueError, OverflowError) as error:
        raise RecurrenceRefused(f"the cron pattern {cron!r:.100} cannot be read: {error}") from None
    except StopIteration:
        raise RecurrenceRefused(
            f"the cron pattern {cron!r:.100} names a time that does not come"
        ) from None
