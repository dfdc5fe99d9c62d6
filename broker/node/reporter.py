"""Publishes a node's report beside its locks, on a thread.

Best effort: nothing waits for it, and a failed attempt is repeated.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.node.users_digest import Signature, signature_of, users_digest
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.settings import Settings
from orthia.nodemanager.abc import NodeManager
from orthia.nodemanager.locks.reports import OutboxReport, Refusal, Report

LOGGER = logging.getLogger("orthia.broker")
PERIOD_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 1.0
_REFUSALS: Final = {
    "disk": Refusal.DISK,
    "database": Refusal.DATABASE,
    "max-store-bytes": Refusal.MAX_STORE_BYTES,
}


class Reporter:
    """Looks every second at what there is to report; publishes it when it has changed."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        manager: NodeManager,
        refused_by: Callable[[], str | None],
        api_url: Callable[[], str | None] = lambda: None,
        outbox: Callable[[], RelayStatus | None] = lambda: None,
        period_seconds: float = PERIOD_SECONDS,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``settings`` gives those in effect, which a changed ``broker.xml`` replaces.

        ``refused_by`` names what refuses messages (``StoreUse.refused_by``); None if nothing.
        ``api_url`` returns where the API is served; None if it is not. ``outbox`` returns what
        there is of the outbox; None if it is off, or this node is not live.
        """
        self._settings = settings
        self._manager = manager
        self._refused_by = refused_by
        self._api_url = api_url
        self._outbox = outbox
        self._clock = clock
        self._relayed: tuple[float, int] | None = None
        """When was looked last, and how many rows had been sent."""
        self._period_seconds = period_seconds
        self._report = Report()
        self._digested: Signature | None = None
        self._put_off_until: datetime | None = None
        self._failure: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orthia-report", daemon=True)

    def start(self) -> None:
        """Start; the manager is started and knows the id of its pair."""
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing; a call to a store that hangs is left behind."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def failback_put_off(self, wait_ms: float) -> None:
        """Report that failback is put off for so long from now; any thread."""
        until = (self._manager.message_time_ms() + wait_ms) / 1000
        self._put_off_until = datetime.fromtimestamp(until, UTC)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            self.look()

    def look(self) -> None:
        """Publish the present report if it has changed."""
        try:
            self._manager.publish(self._current())
        except MemoryError:
            raise  # the node is to end with this thread
        except Exception as error:
            # No report may end a node that serves.
            is_expected = isinstance(error, OrthiaError)
            reason = str(error) if is_expected else repr(error)
            if reason != self._failure and not self._stopped.is_set():
                LOGGER.warning(
                    "publishing the state that `orthia status` shows of this node failed: %s;"
                    " retrying every %g s",
                    reason,
                    self._period_seconds,
                    exc_info=None if is_expected else error,
                )
            self._failure = reason
        else:
            self._failure = None

    def _current(self) -> Report:
        settings = self._settings()
        signature = signature_of(settings)
        if signature != self._digested:
            digest = users_digest(settings, self._manager.log.node_id or "")
            self._report = replace(self._report, users_digest=digest)
            self._digested = signature
        refused_by = self._refused_by()
        self._report = replace(
            self._report,
            refusal=None if refused_by is None else _REFUSALS[refused_by],
            failback_put_off_until=self._put_off_until,
            api_url=self._api_url(),
            outbox=self._of_outbox(),
        )
        return self._report

    def _of_outbox(self) -> OutboxReport | None:
        seen, now = self._outbox(), self._clock()
        if seen is None:
            self._relayed = None
            return None
        before, self._relayed = self._relayed, (now, seen.relayed)
        rate = 0.0
        if before is not None and now > before[0]:
            rate = (seen.relayed - before[1]) / (now - before[0])
        oldest = seen.oldest_ms
        return OutboxReport(
            seen.waiting,
            None if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC),
            float(f"{rate:.3g}"),
            seen.held,
        )
