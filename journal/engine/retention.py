"""Prunes the history: a thread of the live node deletes what retention no longer keeps.

The thread counts what is kept when the node becomes live, along an index; from then on it counts
only what is new. The writer counts nothing: keeping a message costs it one row.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from orthia.config.clock import monotonic_seconds
from orthia.config.store_settings import RetentionSettings
from orthia.database import StoreError
from orthia.journal.engine.abc import History
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import Fenced
from orthia.journal.model.history import ROW_BYTES, HistoryTotals, Kept, KeptRow

LOGGER = logging.getLogger("orthia.journal")
ROWS_IN_STEP = 500
"""Rows of one transaction: short enough that neither the writer nor a successor waits for it."""
BYTES_IN_STEP = 4 * 1024 * 1024
"""Records of one transaction, after which it takes no other row."""
PERIOD_SECONDS = 30.0
"""Between two looks for rows to delete."""
PAUSE_SECONDS = 0.02
"""Between two steps, so that the database has time for the journal."""
SETTLED_AFTER = timedelta(minutes=1)
"""Rows removed longer ago than this are counted once: no transaction is open for as long, and a
clock that is set back by less is noticed."""
RECOUNT_AFTER = timedelta(days=1)
"""How often everything is recounted, which corrects for a clock that was set back by more."""


class Tally:
    """How much is kept: what is settled was counted once, the rest is counted at each look."""

    def __init__(self, count: Callable[[datetime | None, datetime | None], Kept]) -> None:
        """``count`` counts what was removed later than the first, not later than the second."""
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Forget everything, so that the next refresh counts everything."""
        self._settled = self._recent = Kept()
        self._settled_until: datetime | None = None
        self._counted_at: datetime | None = None

    @property
    def kept(self) -> Kept:
        """What was kept at the last refresh, without what was pruned since."""
        return self._settled + self._recent

    def refresh(self, now: datetime) -> None:
        """Count what is new; ``now`` is the database's."""
        if self._counted_at is None or not timedelta() <= now - self._counted_at < RECOUNT_AFTER:
            self.reset()
            self._counted_at = now
        settled_until = max(now - SETTLED_AFTER, self._settled_until or now - SETTLED_AFTER)
        self._settled += self._count(self._settled_until, settled_until)
        self._settled_until = settled_until
        self._recent = self._count(settled_until, None)

    def pruned(self, rows: Iterable[KeptRow]) -> None:
        """Stop counting these rows."""
        for row in rows:
            if self._settled_until is None or row.removed_at > self._settled_until:
                self._recent -= Kept(1, row.size)
            else:
                self._settled -= Kept(1, row.size)


def rows_to_prune(
    oldest: Sequence[KeptRow], keep_from: datetime | None, excess_bytes: int
) -> list[KeptRow]:
    """Choose one step's rows from the ``oldest``: those before ``keep_from``, and the excess."""
    chosen: list[KeptRow] = []
    record_bytes = 0
    for row in oldest:
        too_old = keep_from is not None and row.removed_at < keep_from
        if not (too_old or excess_bytes > 0) or record_bytes >= BYTES_IN_STEP:
            break
        chosen.append(row)
        record_bytes += row.size
        excess_bytes -= row.size + ROW_BYTES
    return chosen


class Pruner:
    """Deletes the history's oldest rows in small fenced steps, on a thread of its own."""

    def __init__(
        self,
        history: History,
        retention: RetentionSettings,
        *,
        period_seconds: float = PERIOD_SECONDS,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._history = history
        self._retention = retention
        self._period_seconds = period_seconds
        self._clock = clock
        self._tally = Tally(self._count)
        self._worker: Worker[None] = Worker("journal-pruner", self._run, ended=history.close)
        self._stopped = self._worker.stopping
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join
        self.totals: HistoryTotals | None = None
        """What was kept at the last look; None before the first."""

    def count(self) -> None:
        """Bring the count of what is kept up to date; raises StoreError."""
        self._tally.refresh(self._history.now())
        self.totals = HistoryTotals(self._tally.kept, self._history.oldest())

    def prune(self) -> int:
        """Delete one step's rows and return how many; raises Fenced, StoreError."""
        limit = self._retention.storage_limit
        excess = 0 if limit is None else self._tally.kept.stored_bytes - limit

        def choose(now: datetime, oldest: Sequence[KeptRow]) -> list[KeptRow]:
            return rows_to_prune(oldest, self._keep_from(now), excess)

        gone = self._history.prune(ROWS_IN_STEP, choose)
        self._tally.pruned(gone)
        return len(gone)

    def _keep_from(self, now: datetime) -> datetime | None:
        seconds = self._retention.seconds
        return None if seconds is None else now - timedelta(seconds=seconds)

    def _count(self, after: datetime | None, up_to: datetime | None) -> Kept:
        kept, place = Kept(), after
        while not self._stopped.is_set():
            found, place = self._history.count(place, up_to)
            kept += found
            if place is None:
                break
        return kept

    def _run(self) -> None:
        with contextlib.suppress(Fenced):  # the next live node prunes
            self._prune_until_stopped()

    def _prune_until_stopped(self) -> None:
        pause = 0.0
        count_again = self._clock()
        while not self._stopped.wait(pause):
            pause = self._period_seconds
            try:
                if self._clock() >= count_again:
                    self.count()
                    count_again = self._clock() + self._period_seconds
                if self.prune():
                    pause = PAUSE_SECONDS
            except StoreError as error:
                LOGGER.warning("pruning the history failed: %s; retrying in %g s", error, pause)
                self._tally.reset()
                count_again = self._clock()
