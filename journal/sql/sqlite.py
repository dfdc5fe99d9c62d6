"""The hot path on SQLite: BEGIN IMMEDIATE and executemany on a connection of its own."""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import cast

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection

from orthia.config.dialects import Dialect
from orthia.database import Database, NoRoom, Turnstile, translate_errors
from orthia.database.sqlite_reserve import SpaceReserve
from orthia.database.sqltime import microsecond_after
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, Marker
from orthia.journal.errors import Fenced
from orthia.journal.records import FENCE_ROW_ID, ID_COUNTER_SEQ, RecordType, UserRecordType
from orthia.journal.sql.statements import HISTORY_COLUMNS, TableNames, confirm_sql, history_of
from orthia.journal.unit import Row

_WHAT = "store a journal batch"


class SqliteStore(BatchStore):
    """Writes batches to one SQLite file, giving way to leases before each."""

    def __init__(self, engine: Engine, names: TableNames, token: int, turnstile: Turnstile) -> None:
        self._engine = engine
        self._names = names
        self._token = token
        self._turnstile = turnstile
        self._proxy: PoolProxiedConnection | None = None
        self._connection: sqlite3.Connection | None = None
        self._reserve = SpaceReserve(engine.url.database)
        self._is_full = False
        kind = int(UserRecordType.ADD_MESSAGE)
        add = int(RecordType.ADD_RECORD)
        columns = "(seq, id, record_type, user_record_type, queue_id, epoch, record)"
        self._fence_sql = (
            f"SELECT 1 FROM {names.node_manager_store}"
            f" WHERE id = {FENCE_ROW_ID} AND holder_token = {token:d}"
        )
        self._message_sql = (
            f"INSERT INTO {names.messages} {columns}"
            f" VALUES (?1, ?1, {add}, {kind}, ?2, {token:d}, ?3)"
        )
        row_values = f"VALUES (?, ?, {add}, ?, ?, {token:d}, ?)"
        self._row_sql = f"INSERT INTO {names.messages} {columns} {row_values}"
        self._binding_sql = f"INSERT INTO {names.bindings} {columns} {row_values}"
        self._delete_sql = f"DELETE FROM {names.messages} WHERE seq = ?"
        self._keep_sql = (
            f"INSERT INTO {names.history} ({HISTORY_COLUMNS}) {history_of(names, '?1', '?2')}"
            " WHERE m.seq = ?3 ON CONFLICT (seq) DO NOTHING"
        )
        self._now_sql = (
            "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z',"
            f" (SELECT MAX(removed_at) FROM {names.history})"
        )
        self._body_sql = (
            f"DELETE FROM {names.messages} WHERE seq = ?1 AND NOT EXISTS (SELECT 1"
            f" FROM {names.messages} AS r WHERE r.seq BETWEEN ?1 + 1 AND ?1 + ?2)"
        )
        self._link_sql = (
            f"INSERT INTO {names.large_messages} (id, position, epoch, piece)"
            f" VALUES (?1, -?2, {token:d}, x'')"
        )
        self._unlink_sql = f"DELETE FROM {names.large_messages} WHERE id = ?1 AND position = -?2"
        if names.history is not None:
            self._unlink_sql += f" AND NOT EXISTS (SELECT 1 FROM {names.history} WHERE seq = ?2)"
        self._confirm_sql = confirm_sql(names, token)
        self._unbind_sql = f"DELETE FROM {names.bindings} WHERE seq = ?"
        self._limit_sql = (
            f"UPDATE {names.bindings} SET id = ?1, epoch = {token:d}"
            f" WHERE seq = {ID_COUNTER_SEQ} AND id < ?1"
        )

    def connect(self) -> None:
        """See ``BatchStore``; a closed SQLite connection leaves nothing behind."""
        self._disconnect()
        if not self._is_full:
            self._reserve.hold()
        with translate_errors("connect the journal writer"):
            self._proxy = self._engine.raw_connection()
        self._connection = cast("sqlite3.Connection", self._proxy.driver_connection)
        self.max_record_bytes = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) // 2

    def store(self, batch: Batch) -> None:
        """See ``BatchStore``."""
        try:
            with self._fenced_transaction(_WHAT) as connection:
                self._write(connection, batch)
        except NoRoom:
            self._is_full = True
            self._reserve.release()
            raise

    def has_room(self) -> bool:
        """See ``BatchStore``: not before there is room for what must go on without any."""
        self._is_full = not (self._reserve.hold() and super().has_room())
        return not self._is_full

    @contextlib.contextmanager
    def _fenced_transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        connection = self._connected()
        self._turnstile.give_way()
        with translate_errors(what):
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._prove_fence(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def is_stored(self, marker: Marker) -> bool:
        """See ``BatchStore``."""
        table = self._names.of(marker.table)
        with translate_errors("look for a row of a journal batch"):
            found = self._connected().execute(
                f"SELECT 1 FROM {table} WHERE seq = ? AND epoch = ?",
                (marker.seq, self._token),
            )
            return found.fetchone() is not None

    def confirm(self) -> None:
        """See ``BatchStore``."""
        with self._fenced_transaction("store a journal confirmation") as connection:
            connection.execute(self._confirm_sql)

    def close(self) -> None:
        """See ``BatchStore``; a node that does not write keeps no space."""
        self._disconnect()
        self._reserve.release()

    def _disconnect(self) -> None:
        if self._proxy is not None:
            with contextlib.suppress(SQLAlchemyError, sqlite3.Error):
                self._proxy.invalidate()
            self._proxy = self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the journal writer is not connected")
        return self._connection

    def _prove_fence(self, connection: sqlite3.Connection) -> None:
        if connection.execute(self._fence_sql).fetchone() is None:
            raise Fenced(self._token)

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        if batch.messages:
            connection.executemany(
                self._message_sql,
                [(seq, queue_id, payload) for seq, queue_id, payload, _, _, _ in batch.messages],
            )
        if batch.rows:
            connection.executemany(self._row_sql, map(_values, batch.rows))
        if batch.deletes:
            if self._names.history is not None:
                at = self._removed_at(connection)
                for reason, seqs in batch.deletes_by_reason().items():
                    kept = [(reason.value, at, seq) for seq in seqs]
                    connection.executemany(self._keep_sql, kept)
            connection.executemany(self._delete_sql, zip(batch.deletes, strict=True))
        if batch.bodies:
            connection.executemany(self._body_sql, set(batch.bodies))
        if batch.touches_large_bodies:
            connection.executemany(self._link_sql, batch.linked)
            connection.executemany(self._unlink_sql, batch.unlinked)
        if batch.touches_bindings:
            self._write_bindings(connection, batch)

    def _removed_at(self, connection: sqlite3.Connection) -> str:
        """Return when what leaves its queue in this transaction leaves it: see ``history_of``."""
        now, latest = connection.execute(self._now_sql).fetchone()
        return str(now) if latest is None else max(str(now), microsecond_after(latest))

    def _write_bindings(self, connection: sqlite3.Connection, batch: Batch) -> None:
        connection.executemany(self._binding_sql, map(_values, batch.binding_rows))
        connection.executemany(self._unbind_sql, zip(batch.unbound, strict=True))
        if batch.id_limit:
            connection.execute(self._limit_sql, (batch.id_limit,))


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
