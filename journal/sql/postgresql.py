"""The hot path on PostgreSQL.

A small batch is one statement of one round trip, which commits itself: a CTE locks the fence
``FOR SHARE`` and every change takes its rows from it, so that without the fence nothing changes.
It is prepared when the connection opens, which makes up for the fence: it is as fast as a bare
INSERT that is parsed each time. From ``COPY_FROM_ROWS`` on, COPY in binary form is faster:
measured with rows of 1 KiB, 25,000 rows/s against 23,000 at 16 rows, 38,000 against 65,000 at 64.
Text COPY with hex bytea was slower, 69,000 against 79,000 at 2,000 rows, for six times the
client's CPU.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import BytesIO
from typing import Any

import psycopg2
from psycopg2 import extensions
from sqlalchemy import Engine
from typing_extensions import override

from orthia.database import UnknownOutcome, translate_errors
from orthia.database.sessions import end_postgresql_session
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.locks import RowKey
from orthia.journal.errors import Fenced
from orthia.journal.model.changes import Body, Row
from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import (
    RecordType,
    RemovalReason,
    UserRecordType,
)
from orthia.journal.model.unit import AppendedMessage
from orthia.journal.sql.postgresql_keys import by_key, one_by_key
from orthia.journal.sql.postgresql_locks import locked_rows_sql
from orthia.journal.sql.statements import (
    HISTORY_COLUMNS,
    ROW_COLUMNS,
    TIME_COLUMNS,
    Statements,
    TableNames,
    history_of,
)
from orthia.journal.sql.store import SqlStore

PLAN_FOR_ROWS = 5_000
"""Inserted rows after which statements are planned again, in a fraction of a millisecond."""
COPY_FROM_ROWS = 24
"""The number of inserted rows from which on a batch uses COPY."""
COPY_FROM_BYTES = 65_536
"""The payload size from which on a batch uses COPY, which does not send it in hex."""
COPY_CHUNK_BYTES = 262_144
"""The size of one message of the COPY protocol. After each one the writer must get the interpreter
back from a busy event loop, so there are few; the server works while the rest is sent, so it is not
one message for all."""

COPY_STATEMENT_BYTES = 8 * 1024 * 1024
"""Records from which on a COPY ends and another begins: each has a time-out of its own, so that a
transaction of any size is stored as long as the link carries so much of it in that time. More than
a batch is that holds nothing of this kind."""

LOCK_TIMEOUT_MS = 200
"""How long a batch waits for locks of another session before locked rows are searched for."""

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
# The number of fields, then each field after its length; the record itself follows.
_COPY_ROW = struct.Struct(">hiqiqihihiqiqi")
_COPY_ROW_WITHOUT_QUEUE = struct.Struct(">hiqiqihihiiqi")


class PostgresqlStore(SqlStore):
    """Writes batches through one psycopg2 connection in autocommit."""

    driver_error = psycopg2.Error
    # A field of 1 GB could be stored but not read: as hex text it has twice the size.
    max_record_bytes = 500 * 1024 * 1024

    rows_looked_at = 16
    """Each locked row is waited for briefly."""

    def __init__(
        self, engine: Engine, names: TableNames, token: int, *, waits_for_locks: bool = True
    ) -> None:
        """With ``waits_for_locks`` batches wait for locks of others as for anything else."""
        statements = Statements.of(names, token)
        super().__init__(engine, names, token, statements)
        self._lock_timeout_ms = 0 if waits_for_locks else LOCK_TIMEOUT_MS
        self._session: tuple[int, datetime] | None = None
        """Process id and start of the previous session."""
        self._rows_since_planned = 0
        self._notices: list[str] = []
        """The driver's list of the server's warnings, normally empty."""
        fence = f"SELECT 1 {statements.fence} FOR SHARE"
        self._begin_sql = f"BEGIN; {fence}"
        self._copy_sql = f"COPY {{}} {ROW_COLUMNS} FROM STDIN (FORMAT binary)"
        self._prepare_sql = _prepared_statements(names, fence, token)
        self._delete_sql = {names.messages: "EXECUTE orthia_delete_unfenced(%s)"}
        self._delete_sql |= {
            table: f"DELETE FROM {table} WHERE {by_key(table, 'seq', '%s')}"
            for table in (names.bindings, names.times)
        }
        # Unlike every other statement of a batch, it cannot take two rows of one key.
        self._times_sql = (
            f"INSERT INTO {names.times} {TIME_COLUMNS} SELECT * FROM unnest(%s::bigint[],"
            " %s::bigint[], %s::smallint[], %s::bigint[], %s::integer[], %s::bigint[])"
            " ON CONFLICT (seq) DO UPDATE SET queue_id = EXCLUDED.queue_id, kind = EXCLUDED.kind,"
            " at_ms = EXCLUDED.at_ms, attempts = EXCLUDED.attempts, retry_ms = EXCLUDED.retry_ms"
        )

    @override
    def _use(self, connection: Any) -> None:
        connection.autocommit = True
        cursor: extensions.cursor = connection.cursor()
        if self._session is not None:
            end_postgresql_session(cursor, *self._session)
        cursor.execute(
            "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
        self._session = cursor.fetchone()
        cursor.execute(self._prepare_sql)
        cursor.execute("SET lock_timeout = %s", (self._lock_timeout_ms,))
        self._opened = cursor
        self._notices = connection.notices
        self._notices.clear()

    def _renew_plans(self, batch: Batch) -> None:
        """Discard cached plans after enough inserts: on an empty table any index looks good.

        Nothing else would replace such a plan before autovacuum has analyzed the table.
        """
        self._rows_since_planned += len(batch.messages) + len(batch.rows)
        if self._rows_since_planned >= PLAN_FOR_ROWS:
            with translate_errors("plan the journal's statements"):
                self._cursor.execute("DISCARD PLANS")
            self._rows_since_planned = 0

    @override
    def _store_at_once(self, batch: Batch) -> bool:
        self._renew_plans(batch)
        if not _fits_one_statement(batch) or (batch.reasons and self._names.history):
            return False
        cursor, messages, deletes = self._cursor, batch.messages, batch.deletes
        with translate_errors("store a journal batch", during_commit=True):
            if len(messages) == 1 and not deletes:
                seq, queue_id, payload, *_ = messages[0]
                cursor.execute("EXECUTE orthia_put(%s, %s, %s)", (seq, queue_id, payload))
                fenced = cursor.rowcount == 0
            else:
                if not messages:
                    cursor.execute("EXECUTE orthia_delete(%s)", (deletes,))
                else:
                    seqs, queue_ids, payloads, *_ = zip(*messages, strict=True)
                    cursor.execute(
                        "EXECUTE orthia_put_and_delete(%s, %s, %s::bytea[], %s::bigint[])",
                        (list(seqs), list(queue_ids), list(payloads), deletes),
                    )
                fenced = cursor.fetchone() is None
        if fenced:
            raise Fenced(self._token)
        if self._notices:
            self._doubt_commit()
        return True

    def _doubt_commit(self) -> None:
        """Treat a commit with a warning as one of unknown outcome; raises UnknownOutcome.

        ``pg_cancel_backend`` ends a commit's wait for its standby. The server then reports
        success, with a mere warning that the standby may lack the transaction.
        """
        text = " ".join(" ".join(notice.split()) for notice in self._notices)
        self._notices.clear()
        raise UnknownOutcome(f"commit a journal batch: the database warns: {text}")

    @override
    def _begin(self) -> None:
        self._cursor.execute(self._begin_sql)
        if self._cursor.fetchone() is None:
            raise Fenced(self._token)

    @override
    def _commit(self) -> None:
        super()._commit()
        if self._notices:
            self._doubt_commit()

    @override
    def _insert(
        self,
        table: str,
        messages: Sequence[AppendedMessage],
        rows: Sequence[Row],
        payload_bytes: int,
    ) -> None:
        parts = _copy_messages(messages, self._token)
        parts += _copy_rows(rows, self._token)
        self._copy(table, parts, payload_bytes)

    @override
    def _keep(self, seqs_by_reason: Mapping[RemovalReason, list[int]]) -> None:
        for reason, seqs in seqs_by_reason.items():
            self._cursor.execute("EXECUTE orthia_keep(%s, %s)", (seqs, reason.value))

    @override
    def _delete(self, table: str, seqs: Sequence[int]) -> None:
        self._cursor.execute(self._delete_sql[table], (list(seqs),))

    @override
    def _take(self, ids: Sequence[int]) -> int:
        self._cursor.execute("EXECUTE orthia_take(%s)", (list(ids),))
        there: int = self._cursor.rowcount
        return there

    @override
    def _acknowledged(self, seqs: Sequence[int]) -> Collection[int]:
        self._cursor.execute("EXECUTE orthia_acknowledged(%s)", (list(seqs),))
        return [seq for (seq,) in self._cursor.fetchall()]

    @override
    def _delete_bodies(self, bodies: Collection[Body]) -> None:
        seqs, references = zip(*bodies, strict=True)
        self._cursor.execute("EXECUTE orthia_delete_bodies(%s, %s)", (list(seqs), list(references)))

    @override
    def _put_times(self, times: Sequence[MessageTime]) -> None:
        last = {one.seq: one for one in times}
        columns = zip(*last.values(), strict=True)
        self._cursor.execute(self._times_sql, [list(map(int, column)) for column in columns])

    @override
    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        with translate_errors("look for locked rows"):
            try:
                self._begin()
                self._cursor.execute(locked_rows_sql(self._names, rows))
                ((found,),) = self._cursor.fetchall()
            finally:
                self._roll_back()
        return {rows[int(index)] for index in found.split()}

    def _copy(self, table: str, parts: list[bytes], payload_bytes: int) -> None:
        """Copy rows, each a head and a record of ``parts``, by as few statements as possible."""
        copies = [parts] if payload_bytes <= COPY_STATEMENT_BYTES else _copies(parts)
        for rows in copies:
            source = BytesIO(b"".join((_COPY_HEADER, *rows, _COPY_TRAILER)))
            self._cursor.copy_expert(self._copy_sql.format(table), source, COPY_CHUNK_BYTES)


def _fits_one_statement(batch: Batch) -> bool:
    messages = batch.messages
    if not batch.only_messages and _changes_more(batch):
        return False
    if len(messages) >= COPY_FROM_ROWS or batch.payload_bytes >= COPY_FROM_BYTES:
        return False
    # The parts of one statement do not see each other's changes.
    return not (messages and batch.deletes) or max(batch.deletes) < messages[0].last_seq


def _changes_more(batch: Batch) -> bool:
    """Return whether a batch does more than insert messages of one queue each and delete some."""
    return bool(
        batch.rows
        or batch.bodies
        or batch.forgotten
        or batch.moved
        or batch.outbox_rows
        or batch.touches_bindings
        or batch.touches_large_bodies
        or batch.touches_times
    )


def _copies(parts: list[bytes]) -> Iterator[list[bytes]]:
    """Cut rows, each a head and a record, into runs of ``COPY_STATEMENT_BYTES`` or one row."""
    run: list[bytes] = []
    size = 0
    for head, record in zip(parts[::2], parts[1::2], strict=True):
        if run and size + len(record) > COPY_STATEMENT_BYTES:
            yield run
            run, size = [], 0
        run += (head, record)
        size += len(record)
    yield run


def _copy_messages(messages: Iterable[AppendedMessage], token: int) -> list[bytes]:
    """Return the binary form of messages of one queue each."""
    add, kind, pack = int(RecordType.ADD_RECORD), int(UserRecordType.ADD_MESSAGE), _COPY_ROW.pack
    parts: list[bytes] = []
    for seq, queue_id, payload, _, _, _, _ in messages:
        size = len(payload)
        parts.append(pack(7, 8, seq, 8, seq, 2, add, 2, kind, 8, queue_id, 8, token, size))
        parts.append(payload)
    return parts


def _copy_rows(rows: Iterable[Row], token: int) -> list[bytes]:
    """Return the binary form of rows, NULL where there is no queue."""
    add = int(RecordType.ADD_RECORD)
    parts: list[bytes] = []
    for seq, row_id, kind, queue_id, record in rows:
        start = (7, 8, seq, 8, row_id, 2, add, 2, int(kind))
        if queue_id is None:
            parts.append(_COPY_ROW_WITHOUT_QUEUE.pack(*start, -1, 8, token, len(record)))
        else:
            parts.append(_COPY_ROW.pack(*start, 8, queue_id, 8, token, len(record)))
        parts.append(record)
    return parts


def _prepared_statements(names: TableNames, fence: str, token: int) -> str:
    """Return the statements a connection is prepared with.

    They have generic plans at once: each walks an index, whatever its values. Sequential scans are
    off: a plan made while the table was small would stay when it is large. Sorts are, too, for the
    index is to be that of the key.
    """
    messages = names.messages
    with_fence = f"WITH fence AS MATERIALIZED ({fence})"
    add, kind = int(RecordType.ADD_RECORD), int(UserRecordType.ADD_MESSAGE)
    put = f"INSERT INTO {messages} {ROW_COLUMNS} SELECT"

    def removed(parameter: int) -> str:
        return by_key(messages, "seq", f"${parameter}")

    keep = keep_4 = keep_1 = ""
    if names.history is not None:
        # The parts of one statement see the state before it: here, the rows that it deletes.
        into = f"INSERT INTO {names.history} ({HISTORY_COLUMNS})"
        latest = f"SELECT MAX(removed_at) + interval '1 microsecond' FROM {names.history}"
        removed_at = f"GREATEST(clock_timestamp(), ({latest}))"
        body = one_by_key("b.record", f"{messages} AS b", "b.seq", "m.id")
        reason = f"'{RemovalReason.ACKNOWLEDGED.value}'"
        acknowledged = history_of(names, reason, removed_at, body)
        again = "ON CONFLICT (seq) DO NOTHING"
        keep_1, keep_4 = (
            f", kept AS ({into} {acknowledged} CROSS JOIN fence WHERE m.{removed(n)} {again})"
            for n in (1, 4)
        )
        keep = (
            "PREPARE orthia_keep(bigint[], text) AS"
            f" {into} {history_of(names, '$2', removed_at, body)} WHERE m.{removed(1)} {again};"
        )
    return f"""
        SET client_min_messages = warning;
        SET plan_cache_mode = force_generic_plan;
        SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
        SET enable_sort = off; SET jit = off;
        PREPARE orthia_put(bigint, bigint, bytea) AS
            {with_fence}
            {put} $1, $1, {add}, {kind}, $2, {token:d}, $3 FROM fence;
        PREPARE orthia_put_and_delete(bigint[], bigint[], bytea[], bigint[]) AS
            {with_fence},
            put AS ({put} v.seq, v.seq, {add}, {kind}, v.queue_id, {token:d}, v.record
                FROM fence, unnest($1, $2, $3) AS v(seq, queue_id, record)),
            gone AS (DELETE FROM {messages} USING fence WHERE {removed(4)}){keep_4}
            SELECT 1 FROM fence;
        PREPARE orthia_delete(bigint[]) AS
            {with_fence},
            gone AS (DELETE FROM {messages} USING fence WHERE {removed(1)}){keep_1}
            SELECT 1 FROM fence;
        {keep}
        PREPARE orthia_delete_unfenced(bigint[]) AS
            DELETE FROM {messages} WHERE {removed(1)};
        PREPARE orthia_take(bigint[]) AS
            DELETE FROM {names.outbox} WHERE {by_key(names.outbox, "id", "$1")};
        PREPARE orthia_acknowledged(bigint[]) AS
            SELECT message_id FROM {names.acks} WHERE message_id = ANY($1) ORDER BY message_id;
        PREPARE orthia_delete_bodies(bigint[], bigint[]) AS
            DELETE FROM {messages} WHERE ctid = ANY(ARRAY(
                SELECT {one_by_key("ctid", messages, "seq", "gone.seq")}
                FROM unnest($1, $2) AS gone(seq, total)
                WHERE (SELECT 1 FROM {messages} AS reference
                    WHERE reference.seq BETWEEN gone.seq + 1 AND gone.seq + gone.total
                    ORDER BY reference.seq LIMIT 1) IS NULL))
    """
