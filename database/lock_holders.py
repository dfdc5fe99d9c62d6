"""Finds the sessions of the database that have locked rows or tables others wait for.

- PostgreSQL says of a row which transaction has locked it, and of every lock whose it is, to
  anybody; what a session of another role does, and since when, to members of ``pg_read_all_stats``.
- MySQL lists the locks of all rows in ``performance_schema``, and transactions to who has PROCESS.
- MariaDB lists transactions that have locked rows to who has PROCESS, not which rows: named are
  those of this database that have been open for a second. Locks of tables it tells only with its
  plugin ``METADATA_LOCK_INFO``.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from orthia.database.errors import StoreUnavailable

_PG_LOOK_MS = 2_000
_PG_SESSION = """
    SELECT DISTINCT a.pid, a.usename, a.application_name, host(a.client_addr), a.state,
        to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
    FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE a.pid <> pg_backend_pid()
"""
_PG_OTHERS = "NOT (a.application_name LIKE 'orthia %' AND a.usename = current_user)"
_PG_STRONG = "('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
_PG_OF_ROWS = "('RowShareLock', 'RowExclusiveLock')"
_MYSQL_SESSION = """
    p.ID, p.USER, {application}, SUBSTRING_INDEX(p.HOST, ':', 1), p.COMMAND,
    CONCAT(DATE_SUB(UTC_TIMESTAMP(), INTERVAL TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) SECOND),
        ' UTC')
"""


_UNKNOWN = "''"


class SessionWithLock(NamedTuple):
    """A session of the database that has locked what others wait for."""

    session: int
    """PostgreSQL's process id, or MySQL's connection id."""
    user: str
    application: str
    """What its program calls itself; empty if that is not known."""
    description: str
    """All of that, and since when its transaction is open, for a log."""


class LockedTable(NamedTuple):
    """A table, and a condition that its locked rows meet; None for the table itself."""

    name: str
    """As it is written in a statement."""
    rows: str | None = None


def sessions_with_locks(
    connection: Connection, tables: Sequence[LockedTable]
) -> list[SessionWithLock]:
    """Return who has locked rows of these tables, or one of the tables.

    Raises StoreUnavailable if the database does not tell, and what the driver raises.
    """
    if connection.dialect.name == "postgresql":
        return _postgresql(connection, tables)
    if connection.dialect.name not in ("mysql", "mariadb"):
        return []
    version = str(connection.execute(text("SELECT VERSION()")).scalar_one())
    of_rows = any(table.rows is not None for table in tables)
    if "mariadb" in version.lower():
        return _mariadb_rows(connection) if of_rows else _mariadb_tables(connection, tables)
    return _mysql(connection, tables, of_rows=of_rows)


def _postgresql(connection: Connection, tables: Sequence[LockedTable]) -> list[SessionWithLock]:
    connection.execute(text(f"SET LOCAL lock_timeout = {_PG_LOOK_MS:d}"))
    lockers = " UNION ".join(
        f"SELECT xmax::text FROM {table.name} WHERE {table.rows}"
        for table in tables
        if table.rows is not None
    )
    if lockers:
        exact = (
            f"{_PG_SESSION} AND l.granted AND l.locktype = 'transactionid'"
            f" AND l.transactionid::text IN ({lockers})"
        )
        found = connection.execute(text(exact)).all()
        if found:
            return _sessions(found)
    # More than one session shares a row, or it is the table.
    names = ", ".join(f"'{table.name}'::regclass" for table in tables)
    modes = f"l.granted AND l.mode IN {_PG_OF_ROWS}" if lockers else f"l.mode IN {_PG_STRONG}"
    holds = (
        f"{_PG_SESSION} AND {_PG_OTHERS} AND l.locktype = 'relation'"
        f" AND l.relation IN ({names}) AND {modes}"
    )
    return _sessions(connection.execute(text(holds)).all())


def _mysql(
    connection: Connection, tables: Sequence[LockedTable], *, of_rows: bool
) -> list[SessionWithLock]:
    names = ", ".join(f"'{table.name.strip('`')}'" for table in tables)
    locks, thread = ("metadata_locks", "OWNER_THREAD_ID"), "THREAD_ID"
    condition = "l.OBJECT_TYPE = 'TABLE' AND l.LOCK_TYPE NOT LIKE 'SHARED\\_READ%'"
    if of_rows:
        locks, condition = ("data_locks", "THREAD_ID"), "l.LOCK_TYPE = 'RECORD'"
    application = (
        "(SELECT MAX(c.ATTR_VALUE) FROM performance_schema.session_connect_attrs AS c"
        " WHERE c.PROCESSLIST_ID = p.ID AND c.ATTR_NAME = 'program_name')"
    )
    ask = (
        f"SELECT DISTINCT {_MYSQL_SESSION.format(application=application)}"
        f" FROM performance_schema.{locks[0]} AS l"
        f" JOIN performance_schema.threads AS h ON h.{thread} = l.{locks[1]}"
        " JOIN information_schema.PROCESSLIST AS p ON p.ID = h.PROCESSLIST_ID"
        " LEFT JOIN information_schema.INNODB_TRX AS t ON t.trx_mysql_thread_id = p.ID"
        f" WHERE l.OBJECT_SCHEMA = DATABASE() AND l.OBJECT_NAME IN ({names})"
        f" AND l.LOCK_STATUS = 'GRANTED' AND {condition} AND p.ID <> CONNECTION_ID()"
    )
    return _others(connection.execute(text(ask)).all())


def _mariadb_rows(connection: Connection) -> list[SessionWithLock]:
    ask = (
        f"SELECT DISTINCT {_MYSQL_SESSION.format(application=_UNKNOWN)}"
        " FROM information_schema.INNODB_TRX AS t"
        " JOIN information_schema.PROCESSLIST AS p ON p.ID = t.trx_mysql_thread_id"
        " WHERE t.trx_rows_locked > 0 AND t.trx_state <> 'LOCK WAIT' AND p.ID <> CONNECTION_ID()"
        " AND t.trx_started <= NOW() - INTERVAL 1 SECOND AND (p.DB = DATABASE() OR p.DB IS NULL)"
    )
    return _sessions(connection.execute(text(ask)).all())


def _mariadb_tables(connection: Connection, tables: Sequence[LockedTable]) -> list[SessionWithLock]:
    plugin = (
        "SELECT 1 FROM information_schema.PLUGINS"
        " WHERE PLUGIN_NAME = 'METADATA_LOCK_INFO' AND PLUGIN_STATUS = 'ACTIVE'"
    )
    if connection.execute(text(plugin)).first() is None:
        raise StoreUnavailable(
            "MariaDB tells whose locks of tables there are only with its plugin METADATA_LOCK_INFO"
            " (INSTALL SONAME 'metadata_lock_info')"
        )
    names = ", ".join(f"'{table.name.strip('`')}'" for table in tables)
    ask = (
        f"SELECT DISTINCT {_MYSQL_SESSION.format(application=_UNKNOWN)}"
        " FROM information_schema.METADATA_LOCK_INFO AS l"
        " JOIN information_schema.PROCESSLIST AS p ON p.ID = l.THREAD_ID"
        " LEFT JOIN information_schema.INNODB_TRX AS t ON t.trx_mysql_thread_id = p.ID"
        f" WHERE l.TABLE_SCHEMA = DATABASE() AND l.TABLE_NAME IN ({names})"
        " AND l.LOCK_MODE NOT IN ('MDL_SHARED_READ', 'MDL_SHARED') AND p.ID <> CONNECTION_ID()"
    )
    return _sessions(connection.execute(text(ask)).all())


def _others(rows: Iterable[Row[Any]]) -> list[SessionWithLock]:
    return [one for one in _sessions(rows) if not one.application.startswith("orthia ")]


def _sessions(rows: Iterable[Row[Any]]) -> list[SessionWithLock]:
    found = []
    for row in rows:
        number, user, application, client, state, since = tuple[Any, ...](row)
        told = [
            f"user {user}",
            f"application {application}" if application else "",
            f"client {client}" if client else "",
            str(state) if state else "what it does is not shown to this user",
            f"its transaction open since {since}" if since else "",
        ]
        description = f"session {number} ({', '.join(filter(None, told))})"
        found.append(SessionWithLock(int(number), str(user), application or "", description))
    return found
