"""The floors of every measurement: a bare driver loop on the same database, in the same run.

A floor has no fence, no ids, no callers to complete, no sockets and no second thread.
"""

import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from orthia.config.dialects import Dialect
from orthia.database import Database
from orthia.journal import Message, encode_message
from tests.support.servers import MariadbServer, PostgresqlServer, SqliteServer, StoreServer

EVERY_DBMS = ("postgresql", "mariadb", "sqlite")
BODY = b"x" * 1024
QUEUE = 7
FLOOR_ROWS = 1_000
"""Rows a commit of the bulk floor."""
FLOOR_SEQ = 2**40
"""Where the floor's rows begin, out of the journal's way."""
PAYLOAD = encode_message(
    Message("bench", b"content-type:text/plain\n", BODY, 1_700_000_000_000, 0, 4)
)
COLUMNS = "(seq, id, record_type, user_record_type, queue_id, epoch, record)"


class Floor:
    """The bare driver loops of one DBMS."""

    def __init__(self, database: Database, first_seq: int = FLOOR_SEQ) -> None:
        self._dialect = database.dialect
        self._proxy = database.dedicated_engine("floor", query_timeout_ms=60_000).raw_connection()
        connection: Any = self._proxy.driver_connection
        self._seq = first_seq
        match self._dialect:
            case Dialect.POSTGRESQL:
                connection.autocommit = True
            case Dialect.MYSQL:
                connection.autocommit(value=True)
        self._cursor = connection.cursor()
        if self._dialect is Dialect.POSTGRESQL:
            self._cursor.execute(
                "PREPARE floor_row (bigint, bigint, bytea) AS"
                f" INSERT INTO messages {COLUMNS} VALUES ($1, $1, 11, 31, $2, 1, $3)"
            )

    def one_at_a_time(self, seconds: float) -> float:
        """Return rows a second, with one INSERT and commit per row.

        SQLite's driver prepares the statement by itself; MariaDB's driver cannot.
        """
        mark = "?" if self._dialect is Dialect.SQLITE else "%s"
        table = "messages" if self._dialect is Dialect.POSTGRESQL else "MESSAGES"
        sql = f"INSERT INTO {table} {COLUMNS} VALUES ({mark}, {mark}, 11, 31, {mark}, 1, {mark})"
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            self._seq += 1
            self._cursor.execute(sql, (self._seq, self._seq, QUEUE, PAYLOAD))
            count += 1
        return count / (time.perf_counter() - start)

    def prepared_one_at_a_time(self, seconds: float) -> float:
        """Return the same on PostgreSQL with a statement that the server has prepared."""
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            self._seq += 1
            self._cursor.execute("EXECUTE floor_row (%s, %s, %s)", (self._seq, QUEUE, PAYLOAD))
            count += 1
        return count / (time.perf_counter() - start)

    def many_outstanding(self, seconds: float) -> float:
        """Return rows a second, with FLOOR_ROWS per commit in the driver's fastest way."""
        insert = {
            Dialect.POSTGRESQL: self._copy,
            Dialect.MYSQL: self._multi_row,
            Dialect.SQLITE: self._executemany,
        }[self._dialect]
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            insert(range(self._seq + 1, self._seq + 1 + FLOOR_ROWS))
            self._seq += FLOOR_ROWS
            count += FLOOR_ROWS
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        """Close the connection."""
        self._proxy.invalidate()

    def _copy(self, seqs: range) -> None:
        row = struct.Struct(">hiqiqihihiqiqi")
        parts = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
        for seq in seqs:
            parts.append(row.pack(7, 8, seq, 8, seq, 2, 11, 2, 31, 8, QUEUE, 8, 1, len(PAYLOAD)))
            parts.append(PAYLOAD)
        parts.append(b"\xff\xff")
        sql = f"COPY messages {COLUMNS} FROM STDIN (FORMAT binary)"
        self._cursor.copy_expert(sql, BytesIO(b"".join(parts)), 65_536)

    def _multi_row(self, seqs: range) -> None:
        rows = ",".join([f"({seq},{seq},11,31,{QUEUE},1,x'{PAYLOAD.hex()}')" for seq in seqs])
        self._cursor.execute(f"INSERT INTO MESSAGES {COLUMNS} VALUES {rows}")

    def _executemany(self, seqs: range) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        self._cursor.executemany(
            f"INSERT INTO MESSAGES {COLUMNS} VALUES (?, ?, 11, 31, ?, 1, ?)",
            [(seq, seq, QUEUE, PAYLOAD) for seq in seqs],
        )
        self._cursor.execute("COMMIT")


@contextmanager
def started(dbms: str) -> Iterator[StoreServer]:
    """Run a private server."""
    if dbms == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield SqliteServer(Path(directory))
    else:
        with {"postgresql": PostgresqlServer, "mariadb": MariadbServer}[dbms]() as server:
            yield server
