"""The hot path on MySQL and MariaDB.

A lone message is one statement that commits itself: an INSERT ... SELECT from the fence with a
share lock. Anything else is a transaction of multi-row statements, each within the server's
``max_allowed_packet``. Records go as hex literals: no escaping depends on the session's SQL mode,
a statement's size is known beforehand, and it costs a third of PyMySQL's ``executemany``
(measured with rows of 1 KiB at 2,000 rows: 62,000 rows/s against 24,000).
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, numbers, hex)

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

import pymysql
from sqlalchemy import Engine
from typing_extensions import override

from orthia.database import Locked, classify, translate_errors
from orthia.database.read_only import (
    MYSQL_TAKES_WRITES,
    read_only_mysql,
    refuse_read_only_mysql,
)
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.locks import RowKey, RowKind
from orthia.journal.errors import Fenced
from orthia.journal.model.changes import Body, Row
from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import (
    RecordType,
    RemovalReason,
    UserRecordType,
)
from orthia.journal.model.unit import AppendedMessage
from orthia.journal.sql.statements import (
    HISTORY_COLUMNS,
    ROW_COLUMNS,
    TIME_COLUMNS,
    Statements,
    TableNames,
    history_of,
)
from orthia.journal.sql.store import SqlStore

_STATEMENT_BYTES = 4 * 1024 * 1024
"""The target size of multi-row statements, if the server allows it."""
_ROW_OVERHEAD_BYTES = 256
"""An upper bound of the text of a row without its record, or of a statement without its rows."""
_SEQS_IN_STATEMENT = 5_000
_BODIES_IN_STATEMENT = 200
_TIMES_IN_STATEMENT = 1_000
_SET_LOCK_TIMEOUTS = "SET SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1"
"""The least possible, one second: how long a batch waits for a row or a table that another session
has locked, before locked rows are searched for."""
_BY_KEY = "FORCE INDEX (PRIMARY)"
_KEEP_ALIVES_IN_SILENCE = 3
"""The number of keep-alives within the time after which the server ends a silent session."""


class MysqlStore(SqlStore):
    """Writes batches through one PyMySQL connection in autocommit."""

    driver_error = pymysql.Error

    rows_looked_at = 500
    """Locks are tested without waiting."""

    def __init__(
        self, engine: Engine, names: TableNames, token: int, *, waits_for_locks: bool = True
    ) -> None:
        """With ``waits_for_locks`` batches wait for locks of others as for anything else."""
        statements = Statements.of(names, token)
        super().__init__(engine, names, token, statements)
        self._waits_for_locks = waits_for_locks
        self._has_met_locks = False
        self._skips_locked = True
        self._statement_bytes = _STATEMENT_BYTES
        self._removed_at: datetime | None = None
        """``removed_at`` of the latest row of the history; grows with each transaction."""
        self._fence = f"{statements.fence} AND {MYSQL_TAKES_WRITES} LOCK IN SHARE MODE"
        now = "1" if names.history is None else "UTC_TIMESTAMP(6)"
        self._fence_sql = f"SELECT {now} {self._fence}"

    @override
    def _use(self, connection: Any) -> None:
        # A new session ends the earlier one by the mark they share.
        connection.autocommit(value=True)
        self._opened = connection.cursor()
        self._cursor.execute("SELECT @@max_allowed_packet, @@SESSION.wait_timeout")
        self._skips_locked = _knows_skip_locked(connection.get_server_info())
        packet_bytes, silence_seconds = self._cursor.fetchone() or (0, 1)
        if not self._waits_for_locks:
            self._cursor.execute(_SET_LOCK_TIMEOUTS)
        if self._names.history is not None:
            self._cursor.execute(f"SELECT MAX(removed_at) FROM {self._names.history}")
            ((self._removed_at,),) = self._cursor.fetchall()
        self.keep_alive_seconds = silence_seconds / _KEEP_ALIVES_IN_SILENCE
        self._statement_bytes = min(_STATEMENT_BYTES, packet_bytes) - _ROW_OVERHEAD_BYTES
        # Two hex digits a byte; two overheads, of the row and of its statement.
        self.max_record_bytes = packet_bytes // 2 - 2 * _ROW_OVERHEAD_BYTES

    @override
    def keep_alive(self) -> None:
        # MySQL cannot detect a session that idles in a transaction; it ends one that is silent for
        # a quarter of the lease, which frees the locks of a frozen node.
        with translate_errors("keep the journal's session alive"):
            self._cursor.execute("DO 0")

    @override
    def _store_at_once(self, batch: Batch) -> bool:
        if not batch.only_messages or len(batch.messages) != 1:
            return False
        ((seq, queue_id, payload, *_),) = batch.messages
        values = f"{seq}, {seq}, {RecordType.ADD_RECORD:d}, {UserRecordType.ADD_MESSAGE:d}"
        with translate_errors("store a journal batch", during_commit=True):
            inserted = self._cursor.execute(
                f"INSERT INTO {self._names.messages} {ROW_COLUMNS}"
                f" SELECT {values}, {queue_id:d}, {self._token:d}, x'{payload.hex()}' {self._fence}"
            )
            if not inserted:
                self._refuse()
        return True

    @override
    def _begin(self) -> None:
        self._cursor.execute("START TRANSACTION")
        if not self._cursor.execute(self._fence_sql):
            self._refuse()
        if self._names.history is not None:
            self._take_time()

    def _refuse(self) -> NoReturn:
        """Raise Fenced, or the error for a server that is, or was a moment ago, read-only."""
        refuse_read_only_mysql(self._cursor)
        if self._cursor.execute(f"SELECT 1 {self._sql.fence}"):
            raise read_only_mysql()
        raise Fenced(self._token)

    def _take_time(self) -> None:
        """Set ``removed_at`` of this transaction's messages: see ``history_of``."""
        ((now,),) = self._cursor.fetchall()
        latest = self._removed_at
        later = now if latest is None else max(now, latest + timedelta(microseconds=1))
        self._removed_at = later

    @override
    def _insert(
        self,
        table: str,
        messages: Sequence[AppendedMessage],
        rows: Sequence[Row],
        payload_bytes: int,
    ) -> None:
        self._insert_values(table, self._message_values(messages))
        self._insert_values(table, self._row_values(rows))

    def _message_values(self, messages: Iterable[AppendedMessage]) -> Iterator[str]:
        kinds = f"{RecordType.ADD_RECORD:d},{UserRecordType.ADD_MESSAGE:d}"
        token = self._token
        for seq, queue_id, payload, _, _, _, _ in messages:
            yield f"({seq},{seq},{kinds},{queue_id},{token},x'{payload.hex()}')"

    def _row_values(self, rows: Iterable[Row]) -> Iterator[str]:
        add = f"{RecordType.ADD_RECORD:d}"
        for seq, row_id, kind, queue, record in rows:
            queue_id = "NULL" if queue is None else f"{queue:d}"
            yield f"({seq},{row_id},{add},{kind:d},{queue_id},{self._token},x'{record.hex()}')"

    def _insert_values(self, table: str, values: Iterable[str]) -> None:
        """Insert rows by as few statements as their sizes allow."""
        start = f"INSERT INTO {table} {ROW_COLUMNS} VALUES "
        waiting: list[str] = []
        size = 0
        for row in values:
            if waiting and size + len(row) >= self._statement_bytes:
                self._cursor.execute(start + ",".join(waiting))
                waiting, size = [], 0
            waiting.append(row)
            size += len(row) + 1
        if waiting:
            self._cursor.execute(start + ",".join(waiting))

    @override
    def _keep(self, seqs_by_reason: Mapping[RemovalReason, list[int]]) -> None:
        names = self._names
        insert = f"INSERT INTO {names.history} ({HISTORY_COLUMNS}) {history_of(names, '%s', '%s')}"
        again = f"ON DUPLICATE KEY UPDATE {names.history}.seq = {names.history}.seq"
        for reason, seqs in seqs_by_reason.items():
            for listed in _lists(seqs):
                self._cursor.execute(
                    f"{insert} WHERE m.seq IN ({listed}) {again}", (reason.value, self._removed_at)
                )

    @override
    def _delete(self, table: str, seqs: Sequence[int]) -> None:
        if self._has_met_locks:
            # With a list the server may scan a small table, and wait for locked rows that are not
            # in the list; no hint prevents that for a DELETE.
            self._execute_each(f"DELETE FROM {table} WHERE seq = %s", [(seq,) for seq in seqs])
            return
        for listed in _lists(seqs):
            self._cursor.execute(f"DELETE FROM {table} WHERE seq IN ({listed})")

    @override
    def _take(self, ids: Sequence[int]) -> int:
        there = 0
        # One by one where locks were met: see ``_delete``.
        each = ([one] for one in ids) if self._has_met_locks else [ids]
        for some in each:
            for listed in _lists(some):
                there += self._cursor.execute(
                    f"DELETE FROM {self._names.outbox} WHERE id IN ({listed})"
                )
        return there

    @override
    def _acknowledged(self, seqs: Sequence[int]) -> Collection[int]:
        found: list[int] = []
        for listed in _lists(seqs):
            self._cursor.execute(
                f"SELECT message_id FROM {self._names.acks} WHERE message_id IN ({listed})"
            )
            found += [seq for (seq,) in self._cursor.fetchall()]
        return found

    @override
    def _delete_bodies(self, bodies: Collection[Body]) -> None:
        """Find unreferenced bodies by primary key, one range for each, and delete them."""
        table = self._names.messages
        wanted = list(bodies)
        found: list[int] = []
        for start in range(0, len(wanted), _BODIES_IN_STATEMENT):
            questions = [
                f"SELECT {seq:d} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {table}"
                f" WHERE seq BETWEEN {seq + 1:d} AND {seq + references:d})"
                for seq, references in wanted[start : start + _BODIES_IN_STATEMENT]
            ]
            self._cursor.execute(" UNION ALL ".join(questions))
            found += [seq for (seq,) in self._cursor.fetchall()]
        self._delete(table, found)

    @override
    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        self._has_met_locks = True
        with translate_errors("look for locked rows"):
            try:
                self._begin()
                return self._locked(rows)
            finally:
                self._roll_back()

    def _locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        """Return the existing rows that cannot be locked at once."""
        locked: set[RowKey] = set()
        for kind, table, columns in (
            (RowKind.MESSAGE, self._names.messages, "seq"),
            (RowKind.TIME, self._names.times, "seq"),
            (RowKind.LARGE_REFERENCE, self._names.large_messages, "-position, id"),
            (RowKind.OUTBOX, self._names.outbox, "id"),
        ):
            wanted = [row for row in rows if row.kind is kind]
            at_once = _SEQS_IN_STATEMENT if self._skips_locked else 1
            for start in range(0, len(wanted), at_once):
                some = wanted[start : start + at_once]
                if kind is RowKind.LARGE_REFERENCE:
                    each = (f"(id = {row.large_id:d} AND position = {-row.seq:d})" for row in some)
                    condition = " OR ".join(each)
                else:
                    key = "id" if kind is RowKind.OUTBOX else "seq"
                    condition = f"{key} IN ({','.join(str(row.seq) for row in some)})"
                ask = f"SELECT {columns} FROM {table} {_BY_KEY} WHERE {condition}"
                free = self._lock_now(ask)
                self._cursor.execute(ask)
                locked.update(RowKey(kind, *found) for found in self._cursor.fetchall())
                locked.difference_update(RowKey(kind, *found) for found in free)
        return locked

    def _lock_now(self, ask: str) -> Iterable[tuple[int, ...]]:
        """Lock and return the query's rows that can be locked without waiting.

        The query finds one row where the server does not support SKIP LOCKED.
        """
        if self._skips_locked:
            self._cursor.execute(f"{ask} FOR UPDATE SKIP LOCKED")
            return tuple(self._cursor.fetchall())
        try:
            self._cursor.execute(f"{ask} FOR UPDATE NOWAIT")
        except pymysql.Error as error:
            if not isinstance(classify(error), Locked):
                raise
            return ()
        return tuple(self._cursor.fetchall())

    @override
    def _put_times(self, times: Sequence[MessageTime]) -> None:
        start = f"REPLACE INTO {self._names.times} {TIME_COLUMNS} VALUES "
        for first in range(0, len(times), _TIMES_IN_STATEMENT):
            some = times[first : first + _TIMES_IN_STATEMENT]
            rows = (f"({','.join(f'{value:d}' for value in one)})" for one in some)
            self._cursor.execute(start + ",".join(rows))


def _knows_skip_locked(server: str) -> bool:
    """Return whether this server supports it: MySQL does, MariaDB from 10.6 on."""
    found = re.search(r"(\d+)\.(\d+)\.\d+-MariaDB", server)
    return found is None or (int(found[1]), int(found[2])) >= (10, 6)


def _lists(seqs: Sequence[int]) -> Iterator[str]:
    """Yield seqs as lists for as few statements as possible."""
    for start in range(0, len(seqs), _SEQS_IN_STATEMENT):
        yield ",".join(map(str, seqs[start : start + _SEQS_IN_STATEMENT]))
