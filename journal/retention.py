"""Pruning the history: a thread of the live node deletes what is older than the retention."""

import logging
import threading
from datetime import timedelta

from sqlalchemy import Engine, MetaData, delete, select

from config.dialects import Dialect
from config.settings import DatabaseStoreSettings
from database import StoreError, db_now, write_transaction
from journal.errors import Fenced
from journal.recovery import prove_fence
from journal.tables import history_table

LOGGER = logging.getLogger("orthia.journal")
ROWS_IN_STEP = 500
"""Rows of one transaction: short enough that neither the writer nor a successor waits for it."""
PERIOD_SECONDS = 30.0
"""Between two looks for rows to delete."""
PAUSE_SECONDS = 0.05
"""Between two steps, so that the database has time for the journal."""


class Pruner:
    """Deletes the history's old rows in small fenced steps, on a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        s: DatabaseStoreSettings,
        dialect: Dialect,
        *,
        token: int,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._engine = engine
        self._settings = s
        self._dialect = dialect
        self._token = token
        self._period_seconds = period_seconds
        self._history = history_table(MetaData(), s.message_history_table_name, dialect)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-pruner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after the step it is at."""
        self._stopped.set()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread's end."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def prune(self) -> int:
        """Delete one step's rows and return how many; raises Fenced, StoreError."""
        retention, table = self._settings.journal_retention, self._history
        if retention is None:
            return 0
        with write_transaction(self._engine, "prune the history") as connection:
            prove_fence(connection, self._settings, self._dialect, self._token)
            now = connection.execute(select(db_now())).scalar_one()
            old = table.c.removed_at < now - timedelta(seconds=retention.seconds)
            step = select(table.c.seq).where(old).order_by(table.c.removed_at).limit(ROWS_IN_STEP)
            seqs = connection.execute(step).scalars().all()
            if seqs:
                connection.execute(delete(table).where(table.c.seq.in_(seqs)))
        return len(seqs)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                full = self.prune() == ROWS_IN_STEP
            except Fenced:
                return  # the successor prunes
            except StoreError as error:
                LOGGER.warning("the history could not be pruned, trying again: %s", error)
                full = False
            pause = PAUSE_SECONDS if full else self._period_seconds
