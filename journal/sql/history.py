"""The history's table: counted along its index in steps, and pruned under the fence."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Select, delete, func, select, text, update
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, db_now, translate_errors, write_transaction
from orthia.journal.engine.abc import History
from orthia.journal.model.codec import encode_pruned_through
from orthia.journal.model.history import HistoryTotals, Kept, KeptRow
from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.journal.sql.fence import fenced_engine, prove_fence
from orthia.journal.sql.tables import bindings_table, history_index_name, history_table

COUNT_STEP_ROWS = 50_000
"""Rows that one statement reads, so that it stays far below the query time-out."""

_Rows = Select[*tuple[Any, ...]]


class HistoryWalk:
    """Counts one history along its index, from the oldest message on."""

    def __init__(self, s: DatabaseStoreSettings, dialect: Dialect) -> None:
        self.history = history_table(MetaData(), s.message_history_table_name, dialect)
        self._index = history_index_name(self.history.name, dialect)
        self._dialect = dialect

    def step(
        self, connection: Connection, after: datetime | None, up_to: datetime | None
    ) -> tuple[Kept, datetime | None]:
        """Count some of the rows with ``after < removed_at <= up_to``.

        Returns also the time up to which it counted; None if no row is left. One step counts all
        rows of one instant.
        """
        self._prepare(connection)
        removed_at, size = self.history.c.removed_at, self.history.c.size
        within = [] if after is None else [removed_at > after]
        within += [] if up_to is None else [removed_at <= up_to]
        instants: _Rows = select(removed_at).order_by(removed_at)
        ahead = self._by_index(instants.where(*within))
        end = connection.execute(ahead.offset(COUNT_STEP_ROWS - 1).limit(1)).scalar_one_or_none()
        within += [] if end is None else [removed_at <= end]
        sums: _Rows = select(func.count(), func.sum(size)).select_from(self.history)
        rows, record_bytes = connection.execute(self._by_index(sums.where(*within))).one()
        return Kept(rows, int(record_bytes or 0)), end

    def oldest(self, connection: Connection) -> datetime | None:
        """Return when the oldest message left its queue; None if none is kept."""
        removed_at: Column[datetime] = self.history.c.removed_at
        first = select(removed_at).order_by(removed_at).limit(1)
        return connection.execute(first).scalar_one_or_none()

    def _prepare(self, connection: Connection) -> None:
        if self._dialect is Dialect.POSTGRESQL:
            # Only the index has the sizes without the records; statistics of a table that fills
            # and empties all the time mislead the planner.
            connection.execute(
                text("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            )

    def _by_index(self, statement: _Rows) -> _Rows:
        return statement.with_hint(self.history, f"FORCE INDEX ({self._index})", "mysql").with_hint(
            self.history, f"INDEXED BY {self._index}", "sqlite"
        )


class SqlHistory(History):
    """The history of one database, under one token, on a connection of its own."""

    def __init__(self, database: Database, s: DatabaseStoreSettings, token: int) -> None:
        self._engine = fenced_engine(database, s, "history", token)
        self._database = database
        self._settings = s
        self._token = token
        self._walk = HistoryWalk(s, database.dialect)

    @override
    def now(self) -> datetime:
        return self._database.server_now()

    @override
    def oldest(self) -> datetime | None:
        with translate_errors("look at the history"), self._engine.connect() as connection:
            return self._walk.oldest(connection)

    @override
    def count(self, after: datetime | None, up_to: datetime | None) -> tuple[Kept, datetime | None]:
        with translate_errors("count the history"), self._engine.connect() as connection:
            return self._walk.step(connection, after, up_to)

    @override
    def prune(
        self, limit: int, choose: Callable[[datetime, Sequence[KeptRow]], list[KeptRow]]
    ) -> list[KeptRow]:
        history = self._walk.history
        columns = history.c
        oldest = select(columns.seq, columns.removed_at, columns.size)
        oldest = oldest.order_by(columns.removed_at).limit(limit)
        name, dialect = self._settings.bindings_table_name, self._database.dialect
        bindings = bindings_table(MetaData(), name, dialect)
        self._database.turnstile.give_way()
        with write_transaction(self._engine, "prune the history") as connection:
            prove_fence(connection, self._settings, dialect, self._token)
            now = connection.execute(select(db_now())).scalar_one()
            gone = choose(now, [KeptRow(*row) for row in connection.execute(oldest)])
            if gone:
                seqs = [row.seq for row in gone]
                connection.execute(delete(history).where(columns.seq.in_(seqs)))
                # A stream of the history reads this to detect that pruning overtook it.
                through = encode_pruned_through(max(row.removed_at for row in gone))
                counter = bindings.c.seq == ID_COUNTER_SEQ
                connection.execute(update(bindings).where(counter).values(record=through))
        return gone

    @override
    def close(self) -> None:
        self._engine.dispose()


def history_totals(database: Database, s: DatabaseStoreSettings) -> HistoryTotals:
    """Count the history, from any machine and without a lease; raises StoreError."""
    walk = HistoryWalk(s, database.dialect)
    kept, after = Kept(), None
    while True:
        with translate_errors("count the history"), database.engine.connect() as connection:
            found, after = walk.step(connection, after, None)
            kept += found
            if after is None:
                return HistoryTotals(kept, walk.oldest(connection))
