"""A failure that is retried: it is logged if it lasts, and again more seldom."""

import logging
from collections.abc import Callable
from typing import Final

from orthia.config.reminders import Reminder

STUCK_SECONDS: Final = 2.0
"""How long attempts fail before the log says so; a metric alone counts shorter failures."""
LOGGER = logging.getLogger("orthia.journal")


class LastingFailure:
    """Logs what goes on failing, from the first failure until it has succeeded."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        """``what`` says what fails, up to a time: ``reading the outbox has failed``."""
        self._what = what
        self._clock = clock
        self._reminder: Reminder | None = None

    def failed(self, why: object) -> None:
        """Note a failure, which is about to be retried."""
        now = self._clock()
        if self._reminder is None:
            self._reminder = Reminder(now, first_seconds=STUCK_SECONDS)
            return
        seconds = self._reminder.due(now)
        if seconds is not None:
            LOGGER.warning("%s for %.0f s: %s; retrying", self._what, seconds, why)

    def succeeded(self) -> None:
        """Forget the failures."""
        self._reminder = None
