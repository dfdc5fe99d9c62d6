"""Rows of MESSAGE_TIMES that count failed deliveries of messages that are gone."""

from sqlalchemy import ColumnClause, MetaData, Select, Table, delete, literal_column, select, tuple_
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors, write_transaction
from orthia.journal.engine.abc import LeftTimes
from orthia.journal.model.moments import MomentKind
from orthia.journal.sql.fence import fenced_engine, prove_fence
from orthia.journal.sql.tables import messages_table, times_index_name, times_table

ROWS_IN_STEP = 500
"""Rows that one step reads and deletes: neither the writer nor a successor waits long for it."""


class SqlLeftTimes(LeftTimes):
    """The rows of one database that an earlier node left, deleted under one token."""

    def __init__(
        self, database: Database, s: DatabaseStoreSettings, token: int, up_to_seq: int
    ) -> None:
        """``up_to_seq`` is the last that an earlier node may have given out.

        No node stores another message up to it, so a missing one stays gone.
        """
        self._engine = fenced_engine(database, s, "message times", token)
        self._database = database
        self._settings = s
        self._token = token
        self._up_to_seq = up_to_seq
        self._times: Table = times_table(MetaData(), s.message_times_table_name, database.dialect)
        self._messages = messages_table(MetaData(), s.message_table_name, database.dialect)
        self._index = times_index_name(s.message_times_table_name, database.dialect)

    @override
    def sweep(self, after_seq: int) -> tuple[int, int | None]:
        """Read without the fence, since most steps delete nothing."""
        times, messages = self._times.c, self._messages.c
        with translate_errors("look for attempts"), self._engine.connect() as connection:
            found = list(connection.execute(self._stretch(after_seq)).scalars())
            there = select(messages.seq).where(messages.seq.in_(found))
            gone = sorted(set(found).difference(connection.execute(there).scalars()))
        if gone:
            self._database.turnstile.give_way()
            with write_transaction(self._engine, "delete attempts") as connection:
                prove_fence(connection, self._settings, self._database.dialect, self._token)
                connection.execute(delete(self._times).where(times.seq.in_(gone)))
        return len(gone), found[-1] if len(found) == ROWS_IN_STEP else None

    def _stretch(self, after_seq: int) -> Select[int]:
        columns = self._times.c
        # Such rows have no due time, so they are in the order of seq; a literal, as for moments.
        kind: ColumnClause[int] = literal_column(str(int(MomentKind.NEVER)))
        statement = select(columns.seq)
        if self._database.dialect is Dialect.POSTGRESQL:
            # A row-value comparison is a range of this index only.
            place = tuple_(columns.kind, columns.at_ms, columns.seq)
            statement = statement.where(
                place > tuple_(kind, 0, after_seq), place <= tuple_(kind, 0, self._up_to_seq)
            )
        else:
            statement = statement.where(
                columns.kind == kind,
                columns.at_ms == 0,
                columns.seq > after_seq,
                columns.seq <= self._up_to_seq,
            )
        statement = statement.with_hint(
            self._times, f"FORCE INDEX ({self._index})", "mysql"
        ).with_hint(self._times, f"INDEXED BY {self._index}", "sqlite")
        ordered = statement.order_by(columns.kind, columns.at_ms, columns.seq)
        return ordered.limit(ROWS_IN_STEP)

    @override
    def close(self) -> None:
        self._engine.dispose()
