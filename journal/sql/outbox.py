"""The SQL that reads the outbox; see ``orthia.journal.engine.abc.Outbox`` for what it promises.

An id says when a row was inserted, and not when it was committed: a reader that goes on behind the
highest id it saw skips what is committed late. Each DBMS has its own remedy:

- PostgreSQL: *rounds*. A round begins with a snapshot, and returns in the order of id what is
  committed in it and was not in that of the round before. Each row tells the transaction that
  inserted it, so an index finds both kinds of such rows: those of transactions that began since,
  and those of transactions that were open then. Rows that were sent and deleted are in neither
  range, so nobody walks over them, however long somebody's snapshot keeps them in the table.
- MySQL, MariaDB: *holes*, in a module beside this.
- SQLite: there is one writer at a time, so ids are in the order of commits.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.config.dialects import Dialect
from orthia.config.outbox import (
    MAX_DESTINATION_LENGTH,
    OUTBOX_LOCK,
    READ_BODY_BYTES,
    READ_HEADERS,
)
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, fold_table_name
from orthia.journal.engine.abc import Outbox, OutboxRow
from orthia.journal.sql.mysql_outbox import MysqlOutbox
from orthia.journal.sql.outbox_session import SWEEP_SECONDS, SWEEP_SHARE, OutboxSession
from orthia.journal.sql.statements import TableNames

DOZE_SECONDS: Final = 0.016
"""The pause from which on PostgreSQL is asked to wake the reader."""
ASLEEP_SECONDS: Final = 1.0
"""How long it sleeps all the same: who began with an older snapshot does not know that it does."""
_STOP_SECONDS: Final = 0.2
"""How long it takes to notice that it is to stop."""
_EVERYTHING: Final = 2**63 - 1


def open_outbox(
    database: Database,
    s: DatabaseStoreSettings,
    *,
    notify: bool,
    clock: Callable[[], float] = monotonic_seconds,
) -> Outbox:
    """Return the outbox of a database; with ``notify`` PostgreSQL wakes its reader.

    ``clock``, in seconds, says when all rows are looked at.
    """
    match database.dialect:
        case Dialect.POSTGRESQL:
            return PostgresqlOutbox(database, s, notify=notify, clock=clock)
        case Dialect.SQLITE:
            return SqliteOutbox(database, s, clock)
        case Dialect.MYSQL:
            return MysqlOutbox(database, s, clock)


# --- PostgreSQL


@dataclass(frozen=True)
class _Snapshot:
    """Which transactions are over: those below ``xmax``, but for those that were open."""

    xmax: int
    open: list[int]

    @classmethod
    def parse(cls, text: str) -> "_Snapshot":
        _, xmax, listed = text.split(":")
        return cls(int(xmax), [int(one) for one in listed.split(",") if one])


@dataclass
class _Round:
    """A round that is not over."""

    snapshot: _Snapshot
    new_from: int | None
    """The lowest id of a transaction that began after the round before; None without any."""
    position: int = -1
    """The id up to which rows were returned."""


_AT_FIRST: Final = _Snapshot(0, [])


class PostgresqlOutbox(Outbox):
    """Reads by rounds, and is woken by NOTIFY if it says that it sleeps.

    It says so by an advisory lock, which the trigger of the table tries to share: a table would
    fill with dead rows under a long snapshot, and outlive the node.
    """

    def __init__(
        self,
        database: Database,
        s: DatabaseStoreSettings,
        *,
        notify: bool,
        asleep_seconds: float = ASLEEP_SECONDS,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._clock = clock
        self._asleep_seconds = asleep_seconds
        table = TableNames.from_settings(s, Dialect.POSTGRESQL).outbox
        self._channel = fold_table_name(Dialect.POSTGRESQL, s.outbox_table_name)
        self._session = OutboxSession(
            database,
            s,
            enable_seqscan="off",
            enable_bitmapscan="off",
            enable_hashjoin="off",
            enable_mergejoin="off",
            plan_cache_mode="force_generic_plan",
            jit="off",
        )
        self._prepare_sql = _prepared_statements(table, self._channel)
        self._notify = notify
        self._before: _Snapshot | None = None
        """The snapshot of the last round; None if all rows are to be read."""
        self._round: _Round | None = None
        self._is_sweeping = False
        self._is_asleep = False
        self._sweep_again = 0.0
        self._table = table

    @override
    def next_rows(self, limit: int, max_bytes: int) -> list[OutboxRow]:
        with self._opened("read the outbox") as cursor:
            if self._round is None and self._before is not None and self._is_sweep_due():
                self._before = None
            if self._round is not None:
                return self._more(cursor, self._round, limit, max_bytes)
            if self._before is None:
                return self._all(cursor, limit, max_bytes)
            return self._first(cursor, self._before, limit, max_bytes)

    @override
    def waiting(self, limit: int) -> int:
        position = -1 if self._round is None else self._round.position
        with self._opened("count the outbox") as cursor:
            cursor.execute("EXECUTE orthia_outbox_count(%s, %s)", (position, limit))
            ((count,),) = cursor.fetchall()
        return int(count)

    @override
    def start_over(self) -> None:
        self._before = self._round = None
        self._is_asleep = False

    @override
    def rest(self, seconds: float, stopping: threading.Event) -> None:
        if self._is_asleep:
            self._sleep(stopping)
        elif self._notify and seconds >= DOZE_SECONDS and self._falls_asleep():
            return  # to look once more: from now on it is woken
        else:
            stopping.wait(seconds)

    @override
    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _opened(self, what: str) -> Iterator[Any]:
        with self._session.cursor(what) as cursor:
            if self._session.is_new:
                self.start_over()
                cursor.execute(self._prepare_sql)
            yield cursor

    # --- rounds

    def _is_sweep_due(self) -> bool:
        return self._clock() >= self._sweep_again

    def _first(self, cursor: Any, before: _Snapshot, limit: int, max_bytes: int) -> list[OutboxRow]:
        """Begin a round, and return the first of its rows."""
        cursor.execute(
            "EXECUTE orthia_outbox_first(%s, %s, %s, %s)",
            (before.xmax, before.open, limit, max_bytes),
        )
        found = cursor.fetchall()
        snapshot, new_from, count = _Snapshot.parse(found[0][0]), found[0][1], found[0][2]
        rows = _rows([one[3:] for one in found])
        if len(rows) == count < limit:
            self._before = snapshot
        else:
            self._round = _Round(snapshot, new_from, rows[-1].id)
        if rows and self._is_asleep:
            self._wake(cursor)
        return rows

    def _all(self, cursor: Any, limit: int, max_bytes: int) -> list[OutboxRow]:
        """Begin a round of all rows."""
        self._is_sweeping = True
        self._sweep_again = self._clock() + SWEEP_SECONDS
        cursor.execute("SELECT pg_current_snapshot()::text")
        self._round = _Round(_Snapshot.parse(cursor.fetchall()[0][0]), 0)
        return self._more(cursor, self._round, limit, max_bytes)

    def _more(self, cursor: Any, current: _Round, limit: int, max_bytes: int) -> list[OutboxRow]:
        """Go on with a round."""
        before, now = self._before or _AT_FIRST, current.snapshot
        began = self._clock()
        cursor.execute(
            "EXECUTE orthia_outbox_more(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                current.position,
                current.new_from,
                before.xmax,
                before.open,
                now.xmax,
                now.open,
                limit,
                max_bytes,
                self._before is None,
            ),
        )
        found = cursor.fetchall()
        count = found[0][0]
        rows = _rows([one[1:] for one in found])
        if self._is_sweeping:
            self._sweep_again += SWEEP_SHARE * (self._clock() - began)
        if len(rows) == count < limit:
            self._before, self._round, self._is_sweeping = now, None, False
        else:
            current.position = rows[-1].id
        if rows and self._is_asleep:
            self._wake(cursor)
        return rows

    # --- sleep

    def _falls_asleep(self) -> bool:
        """Tell those who insert from now on to wake the reader; False if one is under way.

        Whoever has inserted since the reader was awake holds a share of the lock until the end of
        the transaction, and does not wake it.
        """
        with self._opened("prepare to wait for the outbox") as cursor:
            cursor.execute("EXECUTE orthia_outbox_sleep")
            ((self._is_asleep,),) = cursor.fetchall()
            cursor.connection.notifies.clear()
        return self._is_asleep

    def _wake(self, cursor: Any) -> None:
        self._is_asleep = False
        cursor.execute("EXECUTE orthia_outbox_wake")

    def _sleep(self, stopping: threading.Event) -> None:
        """Wait for a notification."""
        with self._opened("wait for the outbox") as cursor:
            if not self._is_asleep:
                return  # the connection is another one
            connection = cursor.connection
            until = monotonic_seconds() + self._asleep_seconds
            while not (connection.notifies or stopping.is_set()):
                left = until - monotonic_seconds()
                if left <= 0:
                    break
                if select.select([connection], [], [], min(left, _STOP_SECONDS))[0]:
                    connection.poll()
            connection.notifies.clear()


def _rows(found: list[tuple[Any, ...]]) -> list[OutboxRow]:
    return [
        OutboxRow(row_id, destination, headers, bytes(body), int(created_ms), unread)
        for row_id, destination, headers, body, created_ms, unread in found
        if row_id is not None
    ]


def _prepared_statements(table: str, channel: str) -> str:
    """Return the statements a connection is prepared with.

    Each walks an index, whatever its values: the table is empty one moment and full the next, so
    no statistics say which. An addition hides the transaction's column from the planner where the
    rows are to be walked in the order of id. ``OFFSET 0`` has each row looked up, by all columns of
    either index: a table that was empty when it was analyzed would be walked through for each.
    """
    # An application may have set an infinite time.
    finite = "CASE WHEN isfinite(o.created_at) THEN o.created_at ELSE now() END"
    created = f"CAST(EXTRACT(EPOCH FROM {finite}) * 1000 AS bigint)"
    size = "octet_length(o.body) + coalesce(octet_length(o.headers), 0)"
    is_long = f"octet_length(o.body) > {READ_BODY_BYTES:d}"

    def sized(limit_bytes: str) -> str:
        return f"""(
            SELECT id, destination, headers, body, created_ms, unread FROM (
                SELECT o.id, o.destination, {created} AS created_ms,
                    CASE WHEN octet_length(o.headers) > {READ_HEADERS:d}
                        THEN left(o.headers, {READ_HEADERS:d}) ELSE o.headers END AS headers,
                    CASE WHEN {is_long} THEN '' ELSE o.body END AS body,
                    CASE WHEN {is_long} THEN octet_length(o.body) ELSE 0 END AS unread,
                    sum({size}) OVER (ORDER BY o.id) AS total,
                    row_number() OVER (ORDER BY o.id) AS place
                FROM taken CROSS JOIN LATERAL (
                    SELECT * FROM {table} AS t
                    WHERE t.id = taken.id AND t.txid = taken.txid OFFSET 0) AS o
            ) AS s WHERE s.total <= {limit_bytes} OR s.place = 1
        )"""

    is_over = "((o.txid + 0) < $5 AND (o.txid + 0) <> ALL($6))"
    # A row of another server's past, which a dump has brought here: its transaction is yet to come.
    is_foreign = "($9 AND (o.txid + 0) >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
    lock = f"{OUTBOX_LOCK:d}, '{table}'::regclass::oid::int"
    return f"""
        SET client_min_messages = warning;
        LISTEN "{channel}";
        SELECT pg_advisory_unlock_all();
        PREPARE orthia_outbox_first(bigint, bigint[], int, bigint) AS
            WITH fresh AS MATERIALIZED (SELECT id, txid FROM {table} WHERE txid >= $1),
            late AS MATERIALIZED (SELECT id, txid FROM {table} WHERE txid = ANY($2)),
            taken AS MATERIALIZED (
                SELECT * FROM (SELECT * FROM fresh UNION ALL SELECT * FROM late) AS c
                ORDER BY id LIMIT $3)
            SELECT head.*, s.* FROM (
                SELECT pg_current_snapshot()::text, (SELECT min(id) FROM fresh),
                    (SELECT count(*) FROM taken)
            ) AS head LEFT JOIN {sized("$4")} AS s ON true ORDER BY s.id;
        PREPARE orthia_outbox_more(
            bigint, bigint, bigint, bigint[], bigint, bigint[], int, bigint, boolean) AS
            WITH taken AS MATERIALIZED (
                SELECT * FROM (
                    (SELECT o.id, o.txid FROM {table} AS o
                        WHERE o.id > greatest($1, coalesce($2 - 1, {_EVERYTHING}))
                        AND (o.txid + 0) >= $3 AND ({is_over} OR {is_foreign})
                        ORDER BY o.id LIMIT $7)
                    UNION ALL
                    (SELECT l.* FROM unnest($4) AS t(x) CROSS JOIN LATERAL (
                        SELECT o.id, o.txid FROM {table} AS o WHERE o.txid = x AND o.id > $1
                        ORDER BY o.id LIMIT $7) AS l
                        WHERE x < $5 AND x <> ALL($6))
                ) AS c ORDER BY id LIMIT $7)
            SELECT head.*, s.* FROM (SELECT count(*) FROM taken) AS head
            LEFT JOIN {sized("$8")} AS s ON true ORDER BY s.id;
        PREPARE orthia_outbox_count(bigint, int) AS
            SELECT count(*) FROM (SELECT 1 FROM {table} WHERE id > $1 ORDER BY id LIMIT $2) AS c;
        PREPARE orthia_outbox_sleep AS SELECT pg_try_advisory_lock({lock});
        PREPARE orthia_outbox_wake AS SELECT pg_advisory_unlock({lock})
    """


# --- SQLite


class SqliteOutbox(Outbox):
    """Reads behind the last id: whoever inserts holds the only write lock until the commit."""

    def __init__(
        self,
        database: Database,
        s: DatabaseStoreSettings,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._clock = clock
        table = TableNames.from_settings(s, Dialect.SQLITE).outbox
        self._session = OutboxSession(database, s)
        self._position = -1
        # An application may have set a text that is no time.
        julian = "coalesce(julianday(created_at), julianday('now'))"
        created = f"CAST(({julian} - 2440587.5) * 86400000 AS INTEGER)"
        # Any column may have a text or bytes of any length.
        body, headers = (
            f"CASE typeof({one}) WHEN 'blob' THEN length({one})"
            f" ELSE coalesce(length(CAST({one} AS BLOB)), 0) END"
            for one in ("body", "headers")
        )
        is_long = f"{body} > {READ_BODY_BYTES:d}"
        self._read_sql = (
            f"SELECT id, substr(destination, 1, {MAX_DESTINATION_LENGTH + 1:d}),"
            f" substr(headers, 1, {READ_HEADERS:d}), CASE WHEN {is_long} THEN x'' ELSE body END,"
            f" {created}, CASE WHEN {is_long} THEN {body} ELSE 0 END, {body} + {headers}"
            f" FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
        )
        self._count_sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE id > ? LIMIT ?)"
        self._sweep_again = 0.0

    @override
    def next_rows(self, limit: int, max_bytes: int) -> list[OutboxRow]:
        rows: list[OutboxRow] = []
        size = 0
        with self._session.cursor("read the outbox") as cursor:
            if self._session.is_new:
                cursor.connection.text_factory = _as_text
            if self._clock() >= self._sweep_again:
                self.start_over()
            for row_id, destination, headers, body, created_ms, unread, size_of in cursor.execute(
                self._read_sql, (self._position, limit)
            ):
                size += size_of
                if rows and size > max_bytes:
                    break
                said = None if headers is None else _as_text(headers)
                to, payload = _as_text(destination), _as_bytes(body)
                rows.append(OutboxRow(row_id, to, said, payload, created_ms, unread))
        if rows:
            self._position = rows[-1].id
        return rows

    @override
    def waiting(self, limit: int) -> int:
        with self._session.cursor("count the outbox") as cursor:
            ((count,),) = cursor.execute(self._count_sql, (self._position, limit)).fetchall()
        return int(count)

    @override
    def start_over(self) -> None:
        self._position = -1
        self._sweep_again = self._clock() + SWEEP_SECONDS

    @override
    def close(self) -> None:
        self._session.close()


def _as_text(value: Any) -> str:
    """Return what SQLite has in a column of texts, where an application may have put anything.

    One row that cannot be decoded would keep all others from being read.
    """
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _as_bytes(body: Any) -> bytes:
    """Return what SQLite has in a column of bytes: a text or a number is there as it was given."""
    return body if isinstance(body, bytes) else str(body).encode()
