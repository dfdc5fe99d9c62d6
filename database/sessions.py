"""Sessions of the database: marks the journal's, and ends those that block others.

A process that freezes, or whose host is lost, can leave a transaction open that locks what others
wait for. An idle one is ended by the limit it carries; one in the middle of a COPY is active, and
no limit of a server ends it. So whoever waits asks the server which sessions it waits for, and
ends them:

- PostgreSQL says who blocks a session. Ending one needs no right if it is of the same role, else
  membership in that role or in ``pg_signal_backend``.
- MySQL and MariaDB say so only to those who may see all processes. So each session that may lock
  the fence holds a user lock, the *mark*, whose name others can derive; the server tells anybody
  which connection holds it. Ending one needs no right if it is of the same user, else CONNECTION
  ADMIN (MySQL: ``CONNECTION_ADMIN``).
- SQLite has no sessions: its locks belong to processes, and only ending the process frees them.
"""

import time
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

import psycopg2
from psycopg2 import extensions
from sqlalchemy import ColumnElement, Connection, Integer, bindparam, column, select, text
from sqlalchemy.exc import DBAPIError

from orthia.database.errors import StoreUnavailable

JOURNAL_PURPOSE: Final = "journal"
FENCED_PURPOSES: Final = (JOURNAL_PURPOSE, "large messages", "history", "message times")
"""What the sessions are for whose transactions lock the fence with a share lock."""

_END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.01
_PG_NOT_ALLOWED: Final = "42501"
_MYSQL_NOT_ALLOWED: Final = (1095, 1227)
_MYSQL_UNKNOWN_SESSION: Final = 1094
_ROW_LOCKS: Final = "('transactionid', 'tuple')"
"""What a PostgreSQL session that waits for a row waits for."""
_PG_DESCRIPTION: Final = (
    "concat_ws(', ', 'role ' || usename, nullif(application_name, ''),"
    " 'client ' || host(client_addr), state)"
)


class Blocker(NamedTuple):
    """A session that others wait for."""

    session: int
    """PostgreSQL's process id, or MySQL's connection id."""
    description: str
    """What the server tells of it."""
    refusal: str | None
    """Why it could not be ended, and what would help; None if it was ended."""


def user_lock_name(database: str | None, name: str) -> str:
    """Return what stands for ``name`` in MySQL's lock functions: one server, 64 characters."""
    return "orthia-" + sha256(f"{database}/{name}".encode()).hexdigest()[:32]


def fenced_mark(table: str, purpose: str, token: int) -> str:
    """Return the mark of the session of this purpose that writes under ``token``.

    ``table`` is the node manager's, as it exists.
    """
    return f"{table}-{purpose}-{token}"


def session_id(connection: Connection) -> int | None:
    """Return the server's number of the session behind ``connection``; None where there is none.

    The server is asked: behind a pooler the driver knows the pooler's.
    """
    match connection.dialect.name:
        case "postgresql":
            ask = "SELECT pg_backend_pid()"
        case "mysql" | "mariadb":
            ask = "SELECT CONNECTION_ID()"
        case _:
            return None
    return int(connection.execute(text(ask)).scalar_one())


# --- PostgreSQL


def end_postgresql_session(cursor: extensions.cursor, pid: int, started: datetime) -> None:
    """End the session, which may still be at work for a client that is gone, and see it gone.

    Raises StoreUnavailable if it does not end.
    """
    give_up_seconds = time.monotonic() + _END_SECONDS
    while True:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = %s AND backend_start = %s",
            (pid, started),
        )
        ended: list[Any] = cursor.fetchall()
        if not ended:
            return
        if time.monotonic() >= give_up_seconds:
            raise StoreUnavailable(
                f"the journal's earlier session, process {pid}, does not end in the database"
            )
        time.sleep(_POLL_SECONDS)


def end_postgresql_blockers(
    connection: Connection, waiting: int, *, only_while: ColumnElement[bool]
) -> list[Blocker]:
    """End the sessions that keep session ``waiting`` from a row, as long as ``only_while`` is true.

    Each is ended by a statement that finds it still in the way.
    """
    sessions = select(column("pid", Integer)).select_from(text("pg_stat_activity"))
    in_the_way = sessions.where(
        text(
            "pid = ANY(pg_blocking_pids(:waiting)) AND pid <> 0"  # noqa: S608 - constants
            " AND EXISTS (SELECT 1 FROM pg_locks AS l WHERE l.pid = :waiting AND NOT l.granted"
            f" AND l.locktype IN {_ROW_LOCKS})"
        ).bindparams(bindparam("waiting", waiting)),
        only_while,
    )
    found = connection.execute(in_the_way.add_columns(text(_PG_DESCRIPTION))).all()
    blockers: list[Blocker] = []
    for pid, description in found:
        connection.rollback()
        end = in_the_way.where(column("pid", Integer) == pid)
        try:
            ended = connection.execute(end.add_columns(text("pg_terminate_backend(pid)"))).first()
        except DBAPIError as error:
            if not _is_refused(error):
                raise
            reason = (
                f"{_text_of(error)}; GRANT pg_signal_backend TO {_role(connection)}, or have all"
                " nodes log in as one role"
            )
            blockers.append(Blocker(pid, description, reason))
        else:
            if ended is not None:
                blockers.append(Blocker(pid, description, None))
    return blockers


def _role(connection: Connection) -> str:
    connection.rollback()
    return str(connection.execute(text("SELECT quote_ident(current_user)")).scalar_one())


# --- MySQL and MariaDB


def mark_mysql_session(cursor: Any, name: str) -> None:
    """Mark a session by the user lock ``name``; an earlier one that has it is ended.

    That may still be at work for a client that is gone. A session gives its user locks up last,
    after its transaction is over. ``cursor`` is PyMySQL's. Raises StoreUnavailable if the earlier
    session does not end, or is of another user: whoever logs in to the server may take any lock.
    """
    give_up_seconds = time.monotonic() + _END_SECONDS
    refusal = ""
    while True:
        cursor.execute("SELECT GET_LOCK(%s, 0), IS_USED_LOCK(%s)", (name, name))
        taken, holder = cursor.fetchone() or (0, None)
        if taken:
            return
        if time.monotonic() >= give_up_seconds:
            raise StoreUnavailable(
                f"connection {holder} of the database has the user lock {name}, which marks a"
                f" session of this node, and does not end{refusal}"
            )
        if holder is not None:
            import pymysql

            try:
                cursor.execute("KILL %s", (holder,))
            except pymysql.OperationalError as error:
                if error.args[0] in _MYSQL_NOT_ALLOWED:
                    refusal = f": {error.args[1]}; it is another user's, whom an administrator ends"
                elif error.args[0] != _MYSQL_UNKNOWN_SESSION:
                    raise
        time.sleep(_POLL_SECONDS)


def end_marked_mysql_sessions(connection: Connection, marks: Iterable[str]) -> list[Blocker]:
    """End the sessions that have one of these marks."""
    blockers: list[Blocker] = []
    for mark in marks:
        name = user_lock_name(connection.engine.url.database, mark)
        holder = connection.execute(text("SELECT IS_USED_LOCK(:name)"), {"name": name}).scalar()
        if holder is None:
            continue
        try:
            connection.execute(text("KILL :session"), {"session": holder})
        except DBAPIError as error:
            code = _code(error)
            if code == _MYSQL_UNKNOWN_SESSION:
                continue
            if code not in _MYSQL_NOT_ALLOWED:
                raise
            reason = (
                f"{_text_of(error)}; grant CONNECTION ADMIN (MySQL: CONNECTION_ADMIN) to this"
                " node's user, or have all nodes log in as one user"
            )
            blockers.append(Blocker(int(holder), mark, reason))
        else:
            blockers.append(Blocker(int(holder), mark, None))
    return blockers


def _code(error: DBAPIError) -> object:
    arguments: tuple[object, ...] = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None


def _is_refused(error: DBAPIError) -> bool:
    return isinstance(error.orig, psycopg2.Error) and error.orig.pgcode == _PG_NOT_ALLOWED


def _text_of(error: DBAPIError) -> str:
    if isinstance(error.orig, psycopg2.Error):
        return str(error.orig.diag.message_primary)
    return str(getattr(error.orig, "args", ("", ""))[-1])
