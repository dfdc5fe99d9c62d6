"""One database and the connections Orthia keeps to it."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect as SqlalchemyDialect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database.abc import Turnstile
from orthia.database.connecting import (
    SQLITE_BEGIN,
    SessionLimits,
    connect_arguments,
    prepare_sessions,
)
from orthia.database.errors import translate_errors
from orthia.database.read_only import ask_at_checkout
from orthia.database.sessions import mark_mysql_session, user_lock_name
from orthia.database.sqlite_turnstile import OpenTurnstile, SqliteTurnstile
from orthia.database.sqltime import db_now
from orthia.database.tls import without_tls

_WRITERS = "orthia-writers"
"""What of a connection says when it was opened, by what wrote then."""

_POOL_SIZE = 8
"""The size of the JDBC pool Artemis uses when its properties say nothing."""


class Database:
    """The database of a ``database-store``; opening it connects nowhere.

    ``engine`` is the shared pool, for shared state and tools; whoever must not be starved takes a
    ``dedicated_engine``, and who reads all the time a ``reading_engine``. One object serves all
    threads of a process; a forked child makes its own.
    """

    dialect: Dialect
    engine: Engine
    turnstile: Turnstile
    """Lease statements run inside ``turnstile.urgent()``; the journal's writer calls
    ``turnstile.give_way()`` before each batch. Only on SQLite does it do anything."""

    def __init__(
        self,
        dialect: Dialect,
        url: sqlalchemy.URL,
        *,
        password: Secret | None,
        network_timeout_ms: int,
        pool_properties: Mapping[str, str],
    ) -> None:
        self.dialect = dialect
        self._url = url
        self._password = password
        self.timeout_ms = network_timeout_ms
        """How long a call lasts at most that nobody waits for in haste."""
        self._dedicated: list[Engine] = []
        self._numbers = itertools.count(1)
        self._writers = 0
        """The number of the newest connection of an engine that leads."""
        self.turnstile = OpenTurnstile()
        if dialect is Dialect.SQLITE:
            self.turnstile = SqliteTurnstile(_checked_sqlite_file(url))
        self.engine = self._create_engine(
            SessionLimits("shared", network_timeout_ms),
            **_pool_arguments(pool_properties, network_timeout_ms),
        )

    @classmethod
    def from_settings(cls, s: DatabaseStoreSettings) -> "Database":
        """Return the database of these settings.

        Raises ConfigurationError when an SQLite file cannot be where the URL says.
        """
        url = s.jdbc_connection_url.sqlalchemy_url
        if s.jdbc_user is not None:
            url = url.set(username=s.jdbc_user)
        return cls(
            s.jdbc_connection_url.dialect,
            url,
            password=s.jdbc_password,
            network_timeout_ms=s.jdbc_network_timeout,
            pool_properties=s.data_source_properties,
        )

    def dedicated_engine(
        self,
        purpose: str,
        *,
        query_timeout_ms: int,
        idle_in_transaction_ms: int | None = None,
        mark: str | None = None,
        leads: bool = False,
    ) -> Engine:
        """Return an engine with exactly one connection, which nobody else can take away.

        It connects to no server that is read-only: that is StoreUnavailable.
        A call lasts at most ``query_timeout_ms``; a checkout that finds the connection broken
        pings and reconnects within one more each. With ``idle_in_transaction_ms`` the server
        ends a transaction that stands still for longer, so that a frozen process cannot hold
        its locks (PostgreSQL, MariaDB; MySQL ends every session idle for so long; SQLite cannot).
        One that is not idle others can end, by its ``mark``: see ``orthia.database.sessions``. A
        new connection under the same mark ends an earlier one that is still there. Where it
        ``leads``, no ``reading_engine`` uses a connection that is older than its own.
        """
        engine = self._dedicate(
            SessionLimits(
                purpose,
                query_timeout_ms,
                idle_in_transaction_ms,
                locks_fence=mark is not None,
                writes=True,
            )
        )
        if leads:
            event.listen(engine, "connect", self._note_new_writer)
        if mark is not None and self.dialect is Dialect.MYSQL:
            name = user_lock_name(self._url.database, mark)

            def take_mark(connection: DBAPIConnection, _record: object) -> None:
                with contextlib.closing(connection.cursor()) as cursor:
                    mark_mysql_session(cursor, name)

            event.listen(engine, "connect", take_mark)
        return engine

    def reading_engine(
        self,
        purpose: str,
        *,
        query_timeout_ms: int,
        postgresql_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Engine:
        """Return an engine of one connection, for a thread that only reads, and reads all the time.

        A statement costs one round trip and nothing more: it is a transaction of its own, which
        sees what is committed when it begins, and the connection is not asked whether it still
        stands. The first read after it broke is StoreUnavailable; the next one connects anew, to no
        server that is read-only. So does a read after an engine that ``leads`` connected anew: what
        that writes may be on another server by then, of which the one of before knows nothing.
        On SQLite, where nothing travels, what is read of one checkout is read in one transaction.
        """
        limits = SessionLimits(
            purpose, query_timeout_ms, writes=True, postgresql_settings=postgresql_settings
        )
        saving: dict[str, Any] = {}
        if self.dialect is not Dialect.SQLITE:
            saving = {
                "isolation_level": "AUTOCOMMIT",
                "skip_autocommit_rollback": True,
                "pool_pre_ping": False,
            }
        engine = self._dedicate(limits, **saving)
        if self.dialect is not Dialect.SQLITE:
            event.listen(engine, "checkout", self._refuse_before_writers)
        return engine

    def _note_new_writer(self, _connection: DBAPIConnection, _record: object) -> None:
        self._writers = next(self._numbers)

    def _note_writers(
        self, _dialect: SqlalchemyDialect, record: ConnectionPoolEntry, *_arguments: object
    ) -> None:
        record.info[_WRITERS] = self._writers

    def _refuse_before_writers(
        self, _connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object
    ) -> None:
        if record.info[_WRITERS] != self._writers:
            raise DisconnectionError("what is written goes through a newer connection")

    def _dedicate(self, limits: SessionLimits, **arguments: Any) -> Engine:
        wait_seconds = limits.query_timeout_seconds
        engine = self._create_engine(
            limits, pool_size=1, max_overflow=0, pool_timeout=wait_seconds, **arguments
        )
        self._dedicated.append(engine)
        return engine

    def server_now(self) -> datetime:
        """Return the database's present instant; raises StoreError."""
        with translate_errors("read the database's clock"), self.engine.connect() as connection:
            return connection.execute(sqlalchemy.select(db_now())).scalar_one()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    def dispose(self) -> None:
        """Close every idle connection, without waiting for the server."""
        for engine in (self.engine, *self._dedicated):
            engine.dispose()
        self._dedicated.clear()

    def _create_engine(self, limits: SessionLimits, **arguments: Any) -> Engine:
        pings = arguments.pop("pool_pre_ping", True)
        asks = pings and limits.writes and self.dialect is not Dialect.SQLITE
        arguments["pool_pre_ping"] = pings and not asks
        if self.dialect is Dialect.POSTGRESQL:
            arguments["use_native_hstore"] = False  # saves a query on every connect
        engine = sqlalchemy.create_engine(
            without_tls(self._url) if self.dialect is Dialect.MYSQL else self._url,
            connect_args=connect_arguments(self.dialect, self._url, self._password, limits),
            hide_parameters=True,
            **arguments,
        )
        event.listen(engine, "do_connect", self._note_writers)  # before the one that connects
        prepare_sessions(self.dialect, engine, limits)
        if asks:
            ask_at_checkout(self.dialect, engine)
        return engine


@contextmanager
def write_transaction(engine: Engine, what: str) -> Iterator[Connection]:
    """Open a transaction that will write, and commit it if the block ends without an exception.

    On SQLite it begins with BEGIN IMMEDIATE: a transaction that reads first and writes later
    would fail when another wrote in between. Raises StoreError, with a text that begins with
    ``what``; UnknownOutcome if the connection was lost at the commit.
    """
    writing = engine.execution_options(**{SQLITE_BEGIN: "IMMEDIATE"})
    with translate_errors(what), writing.connect() as connection, connection.begin() as transaction:
        yield connection
        with translate_errors(what, during_commit=True):
            transaction.commit()


def _checked_sqlite_file(url: sqlalchemy.URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "an SQLite database in memory cannot be shared by two nodes; expected a file's path"
        )
    path = Path(url.database).absolute()
    directory = path.parent
    if not directory.is_dir():
        raise ConfigurationError(
            f"the directory of the SQLite database {path} does not exist; create {directory}"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the directory {directory} of the SQLite database is not writable for this user;"
            " SQLite needs to create files beside the database"
        )
    if path.exists() and not (path.is_file() and os.access(path, os.R_OK | os.W_OK)):
        raise ConfigurationError(f"{path} is not a file this user may read and write")
    return path


def _pool_arguments(properties: Mapping[str, str], network_timeout_ms: int) -> dict[str, float]:
    """Translate the properties of the JDBC pool (Commons DBCP) that mean something here."""
    max_total = _int_property(properties, "maxTotal", _POOL_SIZE)
    max_idle = _int_property(properties, "maxIdle", _POOL_SIZE)
    max_wait_ms = _int_property(properties, "maxWaitMillis", -1)
    lifetime_ms = _int_property(properties, "maxConnLifetimeMillis", -1)
    unlimited = max_total <= 0
    size = max(1, max_idle if unlimited else min(max_idle, max_total))
    wait_ms = network_timeout_ms if max_wait_ms < 0 else min(max_wait_ms, network_timeout_ms)
    return {
        "pool_size": size,
        "max_overflow": -1 if unlimited else max_total - size,
        "pool_timeout": wait_ms / 1000,
        "pool_recycle": -1 if lifetime_ms <= 0 else max(1, lifetime_ms // 1000),
    }


def _int_property(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"data-source-property {name} is {text!r}; expected a whole number"
        ) from None
