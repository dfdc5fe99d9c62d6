"""The last writes of nodes to a journal: a later sign of life than the renewals of their leases.

A node renews every few seconds; one that serves commits all the time. Each row has its epoch
(fencing token) and time; the history has the time at which a message left its queue. Deleted rows
prove nothing: if all messages were consumed and there is no history, no write of an earlier node is
left, and only its renewals bound its end.

Both are looked up by index, for the newest epochs only: a few dozen small statements for each
takeover, whatever the size of the journal.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, MetaData, Select, func, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.sql.tables import history_table, messages_table
from orthia.nodemanager.events import LiveLockObtained
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.times import microseconds

_EPOCHS: Final = 8
"""The number of newest epochs that are looked up."""


def last_writes(database: Database, settings: DatabaseStoreSettings) -> dict[int, int]:
    """Return the last write of each of the newest epochs, in microseconds since 1970 UTC.

    By epoch, without epochs of which no row is left. Raises StoreError.
    """
    found: dict[int, int] = {}
    look = _Look(database, settings)
    with translate_errors("look for the last writes"), database.engine.connect() as connection:
        for epoch, at in (*look.stored(connection), *look.removed(connection)):
            micros = microseconds(at)
            found[epoch] = max(micros, found.get(epoch, micros))
    return found


class _Look:
    """The statements on one store."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings) -> None:
        metadata, dialect = MetaData(), database.dialect
        self._messages = messages_table(metadata, settings.message_table_name, dialect).c
        self._history = history_table(metadata, settings.message_history_table_name, dialect).c
        self._log = failover_log(metadata, settings.failover_log_table_name, dialect).c

    def stored(self, connection: Connection) -> Iterator[tuple[int, datetime]]:
        """Yield epochs, the newest first, and the time of the last row of each."""
        seq = self._messages.seq
        rows = select(seq, self._messages.epoch, self._messages.written_at).where(seq > 0)
        newest = rows.order_by(seq.desc())
        last = _first(connection, newest)
        for _ in range(_EPOCHS):
            if last is None:
                return
            end, epoch, at = last
            yield epoch, at
            # The last row of an earlier epoch is not below `low`, and not above `high`.
            low, high = 0, end
            while low < high:
                middle = (low + high) // 2
                following = _first(connection, rows.where(seq > middle).order_by(seq))
                if following is None or following[1] >= epoch:
                    high = middle
                else:
                    low = following[0]
            last = _first(connection, newest.where(seq <= low))
            if last is not None and last[1] >= epoch:
                return  # epochs are out of order, which an audit reports

    def removed(self, connection: Connection) -> Iterator[tuple[int, datetime]]:
        """Yield epochs, and the time at which the last message left its queue under each."""
        log, removed_at = self._log, self._history.removed_at
        begun = (
            select(log.token, log.db_time)
            .where(log.event == LiveLockObtained.__name__, log.token.is_not(None))
            .order_by(log.id.desc())
            .limit(_EPOCHS)
        )
        rows = connection.execute(begun).all()
        starts = sorted(((row.token, row.db_time) for row in rows), reverse=True)
        asked = [(token, removed_at >= at) for token, at in starts[:1]]
        asked += [(token - 1, removed_at < at) for token, at in starts]
        for epoch, when in asked:
            at = connection.execute(select(func.max(removed_at)).where(when)).scalar_one()
            if at is not None:
                yield epoch, at


def _first(connection: Connection, query: Select[*tuple[Any, ...]]) -> Any:
    return connection.execute(query.limit(1)).first()
