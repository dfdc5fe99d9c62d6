"""The hot path on MySQL and MariaDB.

A lone message is one statement that commits itself: an INSERT ... SELECT from the fence with a
share lock. Anything else is a transaction of multi-row statements, each within the server's
``max_allowed_packet``. Records go as hex literals: no escaping depends on the session's SQL mode,
a statement's size is known beforehand, and it costs a third of PyMySQL's ``executemany``
(measured with rows of 1 KiB at 2,000 rows: 62,000 rows/s against 24,000).
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, numbers, hex)

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pymysql
from pymysql.cursors import Cursor
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection

from orthia.database import translate_errors
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, Marker
from orthia.journal.errors import Fenced
from orthia.journal.records import FENCE_ROW_ID, ID_COUNTER_SEQ, RecordType, UserRecordType
from orthia.journal.sql.statements import (
    HISTORY_COLUMNS,
    TableNames,
    confirm_sql,
    history_of,
    unlink_sql,
)
from orthia.journal.unit import Row

_COLUMNS = "(seq, id, record_type, user_record_type, queue_id, epoch, record)"
_STATEMENT_BYTES = 4 * 1024 * 1024
"""The size multi-row statements are filled to, where the server allows it."""
_ROW_OVERHEAD_BYTES = 256
"""More than the text of a row without its record, or of a statement without its rows."""
_SEQS_IN_STATEMENT = 5_000
_BODIES_IN_STATEMENT = 200
_KEEP_ALIVES_IN_SILENCE = 3
"""How many keep-alives fall into the time after which the server ends a silent session."""


class MysqlStore(BatchStore):
    """Writes batches through one PyMySQL connection in autocommit."""

    def __init__(self, engine: Engine, names: TableNames, token: int) -> None:
        self._engine = engine
        self._names = names
        self._token = token
        self._proxy: PoolProxiedConnection | None = None
        self._statement_bytes = _STATEMENT_BYTES
        self._removed_at: datetime | None = None
        """Of the latest row of the history; with one, later than those of all before."""
        now = "1" if names.history is None else "UTC_TIMESTAMP(6)"
        self._fence_sql = (
            f"SELECT {now} FROM {names.node_manager_store}"
            f" WHERE id = {FENCE_ROW_ID} AND holder_token = {token:d} LOCK IN SHARE MODE"
        )
        self._link_sql = (
            f"INSERT INTO {names.large_messages} (id, position, epoch, piece)"
            f" VALUES (%s, -%s, {token:d}, '')"
        )
        self._unlink_sql = unlink_sql(names)
        self._confirm_sql = confirm_sql(names, token)

    def connect(self) -> None:
        """See ``BatchStore``; a new session ends the earlier one by the mark they share."""
        self.close()
        with translate_errors("connect the journal writer"):
            self._proxy = self._engine.raw_connection()
            connection: Any = self._proxy.driver_connection
            connection.autocommit(value=True)
            self._cursor: Cursor = connection.cursor()
            self._cursor.execute("SELECT @@max_allowed_packet, @@SESSION.wait_timeout")
            packet_bytes, silence_seconds = self._cursor.fetchone() or (0, 1)
            if self._names.history is not None:
                self._cursor.execute(f"SELECT MAX(removed_at) FROM {self._names.history}")
                ((self._removed_at,),) = self._cursor.fetchall()
        self.keep_alive_seconds = silence_seconds / _KEEP_ALIVES_IN_SILENCE
        self._statement_bytes = min(_STATEMENT_BYTES, packet_bytes) - _ROW_OVERHEAD_BYTES
        # Two hex digits a byte; two overheads, of the row and of its statement.
        self.max_record_bytes = packet_bytes // 2 - 2 * _ROW_OVERHEAD_BYTES

    def store(self, batch: Batch) -> None:
        """See ``BatchStore``."""
        if batch.only_messages and len(batch.messages) == 1:
            self._store_at_once(batch)
        else:
            self._store_in_transaction(batch)

    def is_stored(self, marker: Marker) -> bool:
        """See ``BatchStore``."""
        table = self._names.of(marker.table)
        with translate_errors("look for a row of a journal batch"):
            self._cursor.execute(
                f"SELECT 1 FROM {table} WHERE seq = %s AND epoch = %s", (marker.seq, self._token)
            )
            return self._cursor.fetchone() is not None

    def keep_alive(self) -> None:
        """See ``BatchStore``.

        On MySQL the server ends a session that is silent for a quarter of the lease, in place of
        one that idles in a transaction, which it cannot tell: that ends what a frozen node holds.
        """
        with translate_errors("keep the journal's session alive"):
            self._cursor.execute("DO 0")

    def confirm(self) -> None:
        """See ``BatchStore``."""
        with self._fenced_transaction("journal confirmation") as cursor:
            cursor.execute(self._confirm_sql)

    def close(self) -> None:
        """See ``BatchStore``."""
        if self._proxy is not None:
            with contextlib.suppress(SQLAlchemyError, pymysql.Error):
                self._proxy.invalidate()
            self._proxy = None

    def _store_at_once(self, batch: Batch) -> None:
        ((seq, queue_id, payload, *_),) = batch.messages
        values = f"{seq}, {seq}, {RecordType.ADD_RECORD:d}, {UserRecordType.ADD_MESSAGE:d}"
        with translate_errors("store a journal batch", during_commit=True):
            inserted = self._cursor.execute(
                f"INSERT INTO {self._names.messages} {_COLUMNS}"
                f" SELECT {values}, {queue_id:d}, {self._token:d}, x'{payload.hex()}'"
                f" FROM {self._names.node_manager_store} WHERE id = {FENCE_ROW_ID}"
                f" AND holder_token = {self._token:d} LOCK IN SHARE MODE"
            )
        if not inserted:
            raise Fenced(self._token)

    def _store_in_transaction(self, batch: Batch) -> None:
        with self._fenced_transaction("journal batch") as cursor:
            self._change(cursor, batch)

    @contextlib.contextmanager
    def _fenced_transaction(self, what: str) -> Iterator[Cursor]:
        cursor = self._cursor
        try:
            with translate_errors(f"store a {what}"):
                cursor.execute("START TRANSACTION")
                if not cursor.execute(self._fence_sql):
                    raise Fenced(self._token)  # noqa: TRY301 - rolled back below like the others
                if self._names.history is not None:
                    self._take_time(cursor)
                yield cursor
            with translate_errors(f"commit a {what}", during_commit=True):
                cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(pymysql.Error):
                cursor.execute("ROLLBACK")
            raise

    def _take_time(self, cursor: Cursor) -> None:
        """Note when what leaves its queue in this transaction leaves it: see ``history_of``."""
        ((now,),) = cursor.fetchall()
        latest = self._removed_at
        later = now if latest is None else max(now, latest + timedelta(microseconds=1))
        self._removed_at = later

    def _change(self, cursor: Cursor, batch: Batch) -> None:
        names = self._names
        self._insert(cursor, names.messages, self._message_values(batch))
        self._insert(cursor, names.messages, self._row_values(batch.rows))
        if names.history is not None:
            for reason, seqs in batch.deletes_by_reason().items():
                _keep(cursor, names, names.history, (reason.value, self._removed_at), seqs)
        _delete(cursor, names.messages, batch.deletes)
        if batch.bodies:
            _delete(cursor, names.messages, self._unreferenced(cursor, batch))
        if batch.touches_large_bodies:
            cursor.executemany(self._link_sql, batch.linked)
            for large_id, seq in batch.unlinked:
                cursor.execute(self._unlink_sql, {"id": large_id, "seq": seq})
        self._insert(cursor, names.bindings, self._row_values(batch.binding_rows))
        _delete(cursor, names.bindings, batch.unbound)
        if batch.id_limit:
            cursor.execute(
                f"UPDATE {names.bindings} SET id = %s, epoch = {self._token:d}"
                f" WHERE seq = {ID_COUNTER_SEQ} AND id < %s",
                (batch.id_limit, batch.id_limit),
            )

    def _message_values(self, batch: Batch) -> Iterator[str]:
        kinds = f"{RecordType.ADD_RECORD:d},{UserRecordType.ADD_MESSAGE:d}"
        token = self._token
        for seq, queue_id, payload, _, _, _ in batch.messages:
            yield f"({seq},{seq},{kinds},{queue_id},{token},x'{payload.hex()}')"

    def _row_values(self, rows: Iterable[Row]) -> Iterator[str]:
        add = f"{RecordType.ADD_RECORD:d}"
        for seq, row_id, kind, queue, record in rows:
            queue_id = "NULL" if queue is None else f"{queue:d}"
            yield f"({seq},{row_id},{add},{kind:d},{queue_id},{self._token},x'{record.hex()}')"

    def _insert(self, cursor: Cursor, table: str, values: Iterable[str]) -> None:
        """Insert rows by as few statements as their sizes allow."""
        start = f"INSERT INTO {table} {_COLUMNS} VALUES "
        waiting: list[str] = []
        size = 0
        for row in values:
            if waiting and size + len(row) >= self._statement_bytes:
                cursor.execute(start + ",".join(waiting))
                waiting, size = [], 0
            waiting.append(row)
            size += len(row) + 1
        if waiting:
            cursor.execute(start + ",".join(waiting))

    def _unreferenced(self, cursor: Cursor, batch: Batch) -> list[int]:
        """Return the bodies that have no reference left; by primary key, one range a body."""
        table = self._names.messages
        bodies = list(set(batch.bodies))
        found: list[int] = []
        for start in range(0, len(bodies), _BODIES_IN_STATEMENT):
            questions = [
                f"SELECT {seq:d} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {table}"
                f" WHERE seq BETWEEN {seq + 1:d} AND {seq + references:d})"
                for seq, references in bodies[start : start + _BODIES_IN_STATEMENT]
            ]
            cursor.execute(" UNION ALL ".join(questions))
            found += [seq for (seq,) in cursor.fetchall()]
        return found


def _keep(
    cursor: Cursor,
    names: TableNames,
    history: str,
    why_and_when: tuple[str, datetime | None],
    seqs: Sequence[int],
) -> None:
    for start in range(0, len(seqs), _SEQS_IN_STATEMENT):
        listed = ",".join(map(str, seqs[start : start + _SEQS_IN_STATEMENT]))
        cursor.execute(
            f"INSERT INTO {history} ({HISTORY_COLUMNS}) {history_of(names, '%s', '%s')}"
            f" WHERE m.seq IN ({listed}) ON DUPLICATE KEY UPDATE {history}.seq = {history}.seq",
            why_and_when,
        )


def _delete(cursor: Cursor, table: str, seqs: Sequence[int]) -> None:
    for start in range(0, len(seqs), _SEQS_IN_STATEMENT):
        listed = ",".join(map(str, seqs[start : start + _SEQS_IN_STATEMENT]))
        cursor.execute(f"DELETE FROM {table} WHERE seq IN ({listed})")
