"""How a node waits: for its turn, until it is interrupted, and through an outage of the store."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from orthia.config.errors import OrthiaError
from orthia.config.reminders import Reminder
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.nodemanager.errors import Interrupted
from orthia.nodemanager.events import Event, StoreRecovered, StoreUnavailableEvent
from orthia.nodemanager.threads import Threads

LOGGER = logging.getLogger("orthia.failover")
_Result = TypeVar("_Result")
_RETRY_SECONDS: Final = 0.5


class Waits:
    """The waits of one activation thread; ``wake`` and ``interrupt`` may be called on any."""

    def __init__(
        self, *, clock: Callable[[], float], report: Callable[[Event], None], threads: Threads
    ) -> None:
        self._clock = clock
        self._report = report
        self._interrupted = threads.event()
        self._wake = threads.event()
        self._outage_since: float | None = None
        self._outage_reminder = Reminder(0.0)

    def interrupt(self) -> None:
        """Make every present and later wait raise Interrupted."""
        self._interrupted.set()
        self._wake.set()

    def wake(self) -> None:
        """End a wait: there is something to look at."""
        self._wake.set()

    def pause(self, seconds: float) -> None:
        """Wait, or until there is something to look at; raises Interrupted."""
        if self._wake.wait(seconds):
            self._wake.clear()
        if self._interrupted.is_set():
            raise Interrupted("the node is being stopped")

    def outlast(self, ask: Callable[[], _Result]) -> _Result:
        """Ask the store, again and again while it is away: a waiting node outlives an outage.

        Raises Interrupted, and what ``ask`` raises of a store that answers.
        """
        while True:
            self.pause(0)
            try:
                answer = ask()
            except (StoreUnavailable, TransientStoreError) as error:
                self.note_unavailable(error)
            else:
                if self._outage_since is not None:
                    outage_ms = (self._clock() - self._outage_since) * 1000
                    self._outage_since = None
                    self._report(StoreRecovered(outage_ms))
                return answer
            self.pause(_RETRY_SECONDS)

    def outlast_timed(self, ask: Callable[[], _Result]) -> tuple[float, _Result]:
        """As ``outlast``; the first is when that request was begun which was answered."""
        return self.outlast(lambda: (self._clock(), ask()))

    def note_unavailable(self, error: OrthiaError) -> None:
        """Report that the store does not answer: first an event, then lines of the log."""
        now = self._clock()
        if self._outage_since is None:
            self._outage_since = now
            self._outage_reminder = Reminder(now)
            self._report(StoreUnavailableEvent(str(error)))
            return
        seconds = self._outage_reminder.due(now)
        if seconds is not None:
            LOGGER.warning(
                "the store has not answered for %.0f s: %s; still waiting", seconds, error
            )

    def end_outage(self) -> None:
        """End the outage without an event: another one reports that the store answers."""
        self._outage_since = None
