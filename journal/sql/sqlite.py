"""The hot path on SQLite: BEGIN IMMEDIATE and statements of many rows on a connection of its own.

The driver gives the interpreter away for each statement and takes it back. While the event loop
computes, that may take ``sys.getswitchinterval()`` each time: by ``executemany`` 500 rows took
220 ms, of which 15 were work. So one statement has many rows.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import Engine, text
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.database import Database, NoRoom, Turnstile, translate_errors
from orthia.database.sqlite_reserve import SpaceReserve
from orthia.database.sqltime import microsecond_after
from orthia.journal.engine.batch import Batch
from orthia.journal.errors import Fenced
from orthia.journal.model.changes import Body, Row
from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import (
    RecordType,
    RemovalReason,
    UserRecordType,
)
from orthia.journal.model.unit import AppendedMessage
from orthia.journal.sql.checkpoints import Checkpoints
from orthia.journal.sql.statements import (
    HISTORY_COLUMNS,
    ROW_COLUMNS,
    TIME_COLUMNS,
    Statements,
    TableNames,
    history_of,
)
from orthia.journal.sql.store import SqlStore

_MOST_ROWS: Final = 128
"""Rows of one statement, a power of two: so there are few different ones, which the driver keeps.
Every SQLite takes as many values."""


class SqliteStore(SqlStore):
    """Writes batches to one SQLite file, giving way to leases before each."""

    driver_error = sqlite3.Error
    loses_commits = False

    def __init__(self, engine: Engine, names: TableNames, token: int, turnstile: Turnstile) -> None:
        statements = Statements.of(names, token, mark="?", named=":{}", no_bytes="x''")
        super().__init__(engine, names, token, statements)
        self._turnstile = turnstile
        self._reserve = SpaceReserve(engine.url.database)
        self._checkpoints = Checkpoints(engine.url.database)
        self._is_full = False
        kind = int(UserRecordType.ADD_MESSAGE)
        add = int(RecordType.ADD_RECORD)
        self._fence_sql = f"SELECT 1 {statements.fence}"
        self._message_sql = (
            f"INSERT INTO {names.messages} {ROW_COLUMNS}"
            f" VALUES (?1, ?1, {add}, {kind}, ?2, {token:d}, ?3)"
        )
        self._messages_sql = f"INSERT INTO {names.messages} {ROW_COLUMNS} VALUES "
        self._message_values = f"(?, ?, {add}, {kind}, ?, {token:d}, ?)"
        self._row_values = f"(?, ?, {add}, ?, ?, {token:d}, ?)"
        self._keep_sql = (
            f"INSERT INTO {names.history} ({HISTORY_COLUMNS}) {history_of(names, '?1', '?2')}"
            " WHERE m.seq IN ("
        )
        self._now_sql = (
            "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z',"
            f" (SELECT MAX(removed_at) FROM {names.history})"
        )
        self._bodies_sql = (
            "WITH b (seq, refs) AS (VALUES ",
            f") DELETE FROM {names.messages} WHERE seq IN (SELECT b.seq FROM b WHERE NOT EXISTS"
            f" (SELECT 1 FROM {names.messages} AS r"
            " WHERE r.seq BETWEEN b.seq + 1 AND b.seq + b.refs))",
        )

    @override
    def connect(self) -> None:
        # A connection that was closed leaves nothing behind.
        self._disconnect()
        if not self._is_full:
            self._reserve.hold()
        super().connect()

    @override
    def give_room(self) -> None:
        self._reserve.release()

    @override
    def store(self, batch: Batch) -> None:
        size = batch.payload_bytes
        try:
            self._checkpoints.before(self._cursor, size)
            super().store(batch)
            self._checkpoints.after(size)
        except NoRoom:
            self._is_full = True
            self._reserve.release()
            raise

    @override
    def has_room(self) -> bool:
        # Not before the reserve for operations that need no room is back.
        self._is_full = not (self._reserve.hold() and super().has_room())
        return not self._is_full

    @override
    def close(self) -> None:
        # A node that does not write reserves no space.
        super().close()
        self._checkpoints.close()
        self._reserve.release()

    @override
    def _use(self, connection: Any) -> None:
        self._opened = connection.cursor()
        self._checkpoints.connected()
        self.max_record_bytes = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) // 2

    @override
    def _begin(self) -> None:
        cursor = self._cursor
        self._turnstile.give_way()
        cursor.execute("BEGIN IMMEDIATE")
        if cursor.execute(self._fence_sql).fetchone() is None:
            raise Fenced(self._token)

    @override
    def _roll_back(self) -> None:
        if self._opened is not None and self._opened.connection.in_transaction:
            super()._roll_back()

    @override
    def _insert(
        self,
        table: str,
        messages: Sequence[AppendedMessage],
        rows: Sequence[Row],
        payload_bytes: int,
    ) -> None:
        if len(messages) == 1:  # at rest
            seq, queue_id, payload = messages[0][:3]
            self._execute(self._message_sql, (seq, queue_id, payload))
        elif messages:
            values = [
                (seq, seq, queue_id, payload) for seq, queue_id, payload, _, _, _, _ in messages
            ]
            self._execute_for(values, self._messages_sql, self._message_values)
        if rows:
            statement = f"INSERT INTO {table} {ROW_COLUMNS} VALUES "
            self._execute_for([_values(row) for row in rows], statement, self._row_values)

    @override
    def _keep(self, seqs_by_reason: Mapping[RemovalReason, list[int]]) -> None:
        at = self._removed_at()
        for reason, seqs in seqs_by_reason.items():
            one = [(seq,) for seq in seqs]
            before = (reason.value, at)
            after = ") ON CONFLICT (seq) DO NOTHING"
            self._execute_for(one, self._keep_sql, "?", after, before=before)

    def _removed_at(self) -> str:
        """Return ``removed_at`` of this transaction's messages: see ``history_of``."""
        now, latest = self._cursor.execute(self._now_sql).fetchone()
        return str(now) if latest is None else max(str(now), microsecond_after(latest))

    @override
    def _delete(self, table: str, seqs: Sequence[int]) -> None:
        values = [(seq,) for seq in seqs]
        self._execute_for(values, f"DELETE FROM {table} WHERE seq IN (", "?", ")")

    @override
    def _take(self, ids: Sequence[int]) -> int:
        statement = f"DELETE FROM {self._names.outbox} WHERE id IN ("
        return self._execute_for([(one,) for one in ids], statement, "?", ")")

    @override
    def _delete_bodies(self, bodies: Collection[Body]) -> None:
        with_bodies, which = self._bodies_sql
        self._execute_for([*bodies], with_bodies, "(?, ?)", which)

    @override
    def _put_times(self, times: Sequence[MessageTime]) -> None:
        statement = f"INSERT OR REPLACE INTO {self._names.times} {TIME_COLUMNS}"
        self._execute_for(times, f"{statement} VALUES ", "(?, ?, ?, ?, ?, ?)")

    def _execute_for(
        self,
        rows: Sequence[Sequence[object]],
        start: str,
        values: str,
        end: str = "",
        *,
        before: Sequence[object] = (),
    ) -> int:
        """Execute a statement for all ``rows``, many at a time; return how many rows it changed.

        It has ``values`` for each row between ``start`` and ``end``; the values ``before`` come
        before those of the rows.
        """
        execute = self._cursor.execute
        first, left, changed = 0, len(rows), 0
        while left:
            count = min(_MOST_ROWS, 1 << left.bit_length() - 1)
            part = chain(before, *rows[first : first + count])
            changed += execute(_statement(start, values, end, count), tuple(part)).rowcount
            first += count
            left -= count
        return changed


@lru_cache(256)
def _statement(start: str, values: str, end: str, count: int) -> str:
    return start + ", ".join([values] * count) + end


def _values(row: Row) -> tuple[int, int, int, int | None, bytes]:
    return (row.seq, row.id, int(row.user_record_type), row.queue_id, row.record)


def free_bytes(database: Database) -> int:
    """Return the bytes a SQLite file has free, 0 for any other database; raises StoreError."""
    if database.dialect is not Dialect.SQLITE:
        return 0
    with translate_errors("look for free pages"), database.engine.connect() as connection:
        pages: int = connection.execute(text("PRAGMA freelist_count")).scalar_one()
        size: int = connection.execute(text("PRAGMA page_size")).scalar_one()
    return pages * size
