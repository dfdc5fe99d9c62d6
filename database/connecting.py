"""Opens a connection and sets it up for each DBMS: time-outs, session, isolation.

Whatever the server does, a call on such a connection ends within the query time-out: the server
is told to give up a little earlier, with an error of its own that leaves the connection usable;
if it says nothing, the client cuts the connection.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import psycopg2
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine import Dialect as SqlalchemyDialect
from sqlalchemy.engine.interfaces import DBAPIConnection

from orthia.config.dialects import Dialect
from orthia.config.secrets import Secret
from orthia.database.network_timeout import TimedConnection
from orthia.database.read_only import give_up_read_only, refuse_read_only_mysql
from orthia.database.tls import tls_arguments

SQLITE_BEGIN = "sqlite_begin"
"""Execution option: what SQLite transactions begin with, ``DEFERRED`` or ``IMMEDIATE``."""

NOT_UTF_8 = "the server refuses connections and says why in an encoding that is not UTF-8"
"""What is told of a PostgreSQL of whose answer the driver gives nothing."""

_LOST_HOST_PROBE_SECONDS = 5
_LOST_HOST_PROBES = 3
_USER_TIMEOUT_SINCE = 12_00_00
_MYSQL_UNREACHABLE = (2003, 2005)

_SERVER_SHARE = 0.9
"""The part of the query time-out after which the server itself gives a statement up."""


@dataclass(frozen=True)
class SessionLimits:
    """What bounds the calls of one connection."""

    purpose: str
    """Shown by the server's list of sessions, as ``orthia PURPOSE``."""
    query_timeout_ms: int
    idle_in_transaction_ms: int | None = None
    locks_fence: bool = False
    """Whether the session is one that others may have to wait for, if its host is lost."""
    writes: bool = False
    """Whether a server that takes no writes is refused: a standby, or a primary of before. It
    answers questions, and what it says may be what was once true."""
    postgresql_settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings for the session of PostgreSQL when it begins."""

    @property
    def query_timeout_seconds(self) -> float:
        """The time-out of one call."""
        return self.query_timeout_ms / 1000

    @property
    def server_timeout_ms(self) -> int:
        """When the server gives a statement up."""
        return max(1, int(self.query_timeout_ms * _SERVER_SHARE))


def connect_arguments(
    dialect: Dialect, url: URL, password: Secret | None, limits: SessionLimits
) -> dict[str, Any]:
    """Return the driver's keyword arguments that go before those of the URL."""
    match dialect:
        case Dialect.POSTGRESQL:
            return _postgresql_arguments(password, limits)
        case Dialect.MYSQL:
            return _mysql_arguments(url, password, limits)
        case Dialect.SQLITE:
            # Autocommit as far as sqlite3 is concerned: transactions begin with our own BEGIN.
            return {"isolation_level": None, "timeout": limits.query_timeout_seconds}


def prepare_sessions(dialect: Dialect, engine: Engine, limits: SessionLimits) -> None:
    """Make the engine set up every connection it opens, before it is used."""
    if limits.writes:
        give_up_read_only(engine)
    match dialect:
        case Dialect.POSTGRESQL:
            prepare: Callable[[Any, SessionLimits], None] = _prepare_postgresql
            event.listen(engine, "do_connect", _connect_postgresql)
        case Dialect.MYSQL:
            prepare = _prepare_mysql
            event.listen(engine, "do_connect", _connect_mysql)
        case Dialect.SQLITE:
            prepare = _prepare_sqlite
            event.listen(engine, "begin", _begin_sqlite)

    def on_connect(connection: DBAPIConnection, _record: object) -> None:
        prepare(connection, limits)

    event.listen(engine, "connect", on_connect, insert=True)


def _postgresql_arguments(password: Secret | None, limits: SessionLimits) -> dict[str, Any]:
    def factory(dsn: str, **_: object) -> TimedConnection:
        return TimedConnection(dsn, limits.query_timeout_seconds)

    half = max(1, int(limits.query_timeout_seconds / 2))
    arguments: dict[str, Any] = {
        "connection_factory": factory,
        "connect_timeout": ceil(limits.query_timeout_seconds),
        "tcp_user_timeout": limits.query_timeout_ms,
        "keepalives": 1,
        "keepalives_idle": half,
        "keepalives_interval": max(1, half // 3),
        "keepalives_count": 3,
        "client_encoding": "utf8",
        "application_name": f"orthia {limits.purpose}",
    }
    if limits.writes:
        arguments["target_session_attrs"] = "read-write"
    if password is not None:
        arguments["password"] = password.reveal()
    return arguments


def _connect_postgresql(
    dialect: SqlalchemyDialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> DBAPIConnection:
    # A server that starts, shuts down or is full may answer in its own encoding:
    # it has not looked at the client's yet, and psycopg2 takes all for UTF-8.
    try:
        return dialect.connect(*arguments, **options)
    except UnicodeDecodeError as error:
        raise psycopg2.OperationalError(error.object.decode("utf-8", "replace")) from error
    except psycopg2.OperationalError as error:
        if error.args:
            raise
        # So it is with some versions of Python, as Debian 12's.
        raise psycopg2.OperationalError(NOT_UTF_8) from error


def _prepare_postgresql(connection: Any, limits: SessionLimits) -> None:
    """Tell PostgreSQL of the session: not as it starts, which PgBouncer takes no settings for."""
    settings: dict[str, object] = {
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "default_transaction_isolation": "read committed",
        "statement_timeout": limits.server_timeout_ms,
        **limits.postgresql_settings,
    }
    if limits.idle_in_transaction_ms is not None:
        settings["idle_in_transaction_session_timeout"] = limits.idle_in_transaction_ms
    if limits.locks_fence:
        settings |= _notices_of_a_lost_host(connection)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
    connection.autocommit = False


def _notices_of_a_lost_host(connection: Any) -> dict[str, int]:
    """Make PostgreSQL notice that the session's host is gone; its own default is two hours.

    Its successor does not wait for that, so it is patient enough for a machine that stood still.
    """
    probe, probes = _LOST_HOST_PROBE_SECONDS, _LOST_HOST_PROBES
    settings = {
        "tcp_keepalives_idle": probe,
        "tcp_keepalives_interval": probe,
        "tcp_keepalives_count": probes,
    }
    if connection.server_version >= _USER_TIMEOUT_SINCE:
        # While an answer is on its way there are no probes, and many repeats of it.
        settings["tcp_user_timeout"] = 1000 * probe * (probes + 1)
    return settings


def _mysql_arguments(url: URL, password: Secret | None, limits: SessionLimits) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "connect_timeout": limits.query_timeout_seconds,
        "read_timeout": limits.query_timeout_seconds,
        "write_timeout": limits.query_timeout_seconds,
        "charset": "utf8mb4",
        "program_name": f"orthia {limits.purpose}",
        **tls_arguments(url),
    }
    text = password.reveal() if password is not None else url.password
    if text is not None:
        # As bytes: PyMySQL would encode text as Latin-1, which not every password is.
        arguments["password"] = str(text).encode()
    return arguments


def _connect_mysql(
    _dialect: SqlalchemyDialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> DBAPIConnection:
    import pymysql

    from orthia.database.mysql_connection import MysqlConnection

    try:
        connection: Any = MysqlConnection(*arguments, **options)
    except pymysql.OperationalError as error:
        if len(error.args) < 2 or error.args[0] not in _MYSQL_UNREACHABLE:
            raise
        # PyMySQL names the host only.
        code, reason = error.args[:2]
        raise pymysql.OperationalError(
            code, f"{reason}, port {options.get('port', 3306)}"
        ) from error
    opened: DBAPIConnection = connection
    return opened


def _prepare_mysql(connection: Any, limits: SessionLimits) -> None:
    seconds = limits.server_timeout_ms / 1000
    mariadb = "mariadb" in connection.get_server_info().lower()
    settings: dict[str, float | str] = {
        "time_zone": "'+00:00'",
        "sql_mode": "'TRADITIONAL,NO_AUTO_VALUE_ON_ZERO'",
        "innodb_lock_wait_timeout": max(1, int(seconds)),
        "lock_wait_timeout": max(1, int(seconds)),
    }
    if mariadb:
        settings["max_statement_time"] = seconds
    else:
        settings["max_execution_time"] = limits.server_timeout_ms
    if limits.idle_in_transaction_ms is not None:
        idle_seconds = max(1, limits.idle_in_transaction_ms // 1000)
        # MySQL has no limit of its own for a session that idles inside a transaction.
        settings["idle_transaction_timeout" if mariadb else "wait_timeout"] = idle_seconds
        # For the rest of a statement that has begun to come, there is another limit.
        settings["net_read_timeout"] = idle_seconds
    assignments = ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())
    with connection.cursor() as cursor:
        if limits.writes:
            refuse_read_only_mysql(cursor)
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(f"SET {assignments}")


def _prepare_sqlite(connection: sqlite3.Connection, limits: SessionLimits) -> None:
    # The switch to WAL wants the file for itself and does not wait by the busy time-out.
    give_up_seconds = time.monotonic() + limits.query_timeout_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= give_up_seconds:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    how = connection.get_execution_options().get(SQLITE_BEGIN, "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {how}")
