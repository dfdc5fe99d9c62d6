"""A database whose journal has retention."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import repeat

from sqlalchemy import MetaData, select, update

from orthia.config.store_settings import DatabaseStoreSettings, RetentionSettings
from orthia.journal import MessageLocation
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.retention import Pruner
from orthia.journal.model.unit import AppendedMessage, Unit
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.history import SqlHistory
from orthia.journal.sql.journal import batch_store
from orthia.journal.sql.tables import history_table
from tests.journal.support import QUEUE, SqlJournalStore

WEEK = RetentionSettings(7)


def gone(*seqs: int) -> Unit:
    """Return the acknowledgement of messages of one queue each."""
    unit = Unit(None, max(seqs))
    unit.add_deletes([MessageLocation(seq) for seq in seqs])
    return unit


class KeepingStore(SqlJournalStore):
    """A database whose journal has retention."""

    def __init__(self, s: DatabaseStoreSettings, retention: RetentionSettings = WEEK) -> None:
        super().__init__(replace(s, journal_retention=retention))
        self._retention = retention
        name = self.settings.message_history_table_name
        self.history = history_table(MetaData(), name, self.database.dialect)

    def kept(self) -> dict[int, tuple[int, str, bytes]]:
        """Return queue, reason and payload by seq."""
        c = self.history.c
        with self.database.engine.connect() as connection:
            found = connection.execute(select(c.seq, c.queue_id, c.reason, c.record))
            return {seq: (queue, reason, bytes(body)) for seq, queue, reason, body in found}

    def removed(self) -> dict[int, datetime]:
        """Return when each message left its queue, by seq."""
        ask = select(self.history.c.seq, self.history.c.removed_at)
        with self.database.engine.connect() as connection:
            return {row.seq: row.removed_at for row in connection.execute(ask)}

    def age(self, days: int) -> None:
        """Make all that is kept older."""
        c = self.history.c
        with self.database.engine.begin() as connection:
            for seq, removed in connection.execute(select(c.seq, c.removed_at)).all():
                older = update(self.history).where(c.seq == seq)
                connection.execute(older.values(removed_at=removed - timedelta(days=days)))

    def pruner(self, token: int = 1) -> Pruner:
        """Return a pruner that is not started."""
        return Pruner(SqlHistory(self.database, self.settings, token), self._retention)

    def keep(self, *payloads: bytes, first: int = 1) -> None:
        """Store messages and acknowledge them, all at one instant."""
        seqs = range(first, first + len(payloads))
        stored = (AppendedMessage(*one, None) for one in zip(seqs, repeat(QUEUE), payloads))
        self.store_batch(*stored, gone(*seqs))

    def store_batch(self, *items: AppendedMessage | Unit, times: int = 1) -> None:
        """Store a batch as a writer does that does not know what became of it."""
        batch = Batch()
        for item in items:
            batch.add(item)
        engine = fenced_engine(self.database, self.settings, "journal", 1)
        store = batch_store(self.database, self.settings, engine, 1)
        store.connect()
        try:
            for _ in range(times):
                store.store(batch)
        finally:
            store.close()
            engine.dispose()
