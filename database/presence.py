"""A presence lock: held by a session, and freed by the database the moment the session ends.

PostgreSQL frees a session's advisory locks when its socket closes, MySQL those of GET_LOCK, and the
operating system a file lock: a process that dies frees it at once, whatever its leases say. One
that is merely frozen keeps it. A presence lock alone decides nothing; it tells where to look.
"""

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.database.abc import PresenceLock
from orthia.database.engine import Database
from orthia.database.errors import StoreUnavailable, translate_errors
from orthia.database.file_lock import try_lock
from orthia.database.locks import lock_key

_FILE_POLL_SECONDS = 0.02
_LOCK_NOT_AVAILABLE = "55P03"
_CLIENT_CHECKS_SINCE = (14, 0)
_DEAD_HOST_SECONDS = 1
"""Between the probes by which PostgreSQL notices that the host of a session is gone; three fail."""


def presence_lock(database: Database, name: str, *, query_timeout_ms: int) -> PresenceLock:
    """Return the presence lock of this name, the same for all processes on ``database``.

    ``query_timeout_ms`` bounds each call beside the time it waits for the lock.
    """
    if database.dialect is Dialect.SQLITE:
        path = Path(str(database.engine.url.database))
        return _FilePresenceLock(path.with_name(f"{path.name}-{name}"))
    if database.dialect is Dialect.POSTGRESQL:
        engine = database.dedicated_engine("presence", query_timeout_ms=query_timeout_ms)
        return _PostgresqlPresenceLock(engine, name)
    # PyMySQL has one time-out for all calls of a connection, those that wait included.
    wait_ms = round(_MysqlPresenceLock.patience_seconds * 1000)
    engine = database.dedicated_engine("presence", query_timeout_ms=query_timeout_ms + wait_ms)
    return _MysqlPresenceLock(engine, name)


class _SessionPresenceLock(PresenceLock):
    """A lock of a database session, which is kept checked out of its engine for as long."""

    patience_seconds = 1.0

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._name = name
        self._connection: Connection | None = None
        self._driver: Any = None
        """The driver's connection while ``acquire`` uses it."""
        self._held = False

    @override
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        try:
            with translate_errors("acquire the presence lock"):
                former = self._connection
                self._connection = connection = former or self._engine.connect()
                # Before asking whether the lock is wanted: a later interrupt finds the connection.
                self._driver = connection.connection.driver_connection
                if former is None:
                    self._prepare(connection)
                if is_wanted():
                    self._held = self._take(connection, timeout_seconds)
                else:
                    self.release()
        except BaseException:
            self.release()
            raise
        finally:
            self._driver = None
        return self._held

    @override
    def is_held(self) -> bool:
        if not self._held or self._connection is None:
            return False
        try:
            held = self._asks(self._connection)
        except SQLAlchemyError:
            held = False
        if not held:
            self.release()
        return held

    @override
    def release(self) -> None:
        self._held = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()
            # Even after a failure: the engine has room for one connection only.
            with contextlib.suppress(SQLAlchemyError):
                connection.close()

    @override
    def interrupt(self) -> None:
        """Do nothing: one wait is short."""

    def _prepare(self, connection: Connection) -> None:
        """Set up a new session."""

    @abstractmethod
    def _take(self, connection: Connection, timeout_seconds: float) -> bool:
        """Wait for the lock; return whether it is held now. Raises SQLAlchemyError."""

    @abstractmethod
    def _asks(self, connection: Connection) -> bool:
        """Return whether the session still exists and has the lock. Raises SQLAlchemyError."""


class _PostgresqlPresenceLock(_SessionPresenceLock):
    # The server writes each wait that ends without the lock into its log, as an error.
    patience_seconds = 600.0

    @override
    def interrupt(self) -> None:
        driver = self._driver
        if driver is not None:
            driver.abandon()

    @override
    def _prepare(self, connection: Connection) -> None:
        # The server's own default notices a dead host after two hours.
        connection.execute(
            text(
                f"SET tcp_keepalives_idle = {_DEAD_HOST_SECONDS};"
                f" SET tcp_keepalives_interval = {_DEAD_HOST_SECONDS};"
                " SET tcp_keepalives_count = 3"
            )
        )
        if (connection.dialect.server_version_info or (0,)) >= _CLIENT_CHECKS_SINCE:
            # A session that waits for a lock would not notice that its client is gone.
            connection.execute(text("SET client_connection_check_interval = '5s'"))

    @override
    def _take(self, connection: Connection, timeout_seconds: float) -> bool:
        number = lock_key(connection, self._name)
        wait_ms = max(1, round(timeout_seconds * 1000))
        connection.execute(text(f"SET lock_timeout = {wait_ms}; SET statement_timeout = 0"))
        driver: Any = connection.connection.driver_connection
        usual = driver.network_timeout_seconds
        driver.network_timeout_seconds = usual + timeout_seconds
        try:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": number})
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
                raise
            connection.rollback()
            return False
        finally:
            driver.network_timeout_seconds = usual
        return True

    @override
    def _asks(self, connection: Connection) -> bool:
        connection.execute(text("SELECT 1"))
        return True


class _MysqlPresenceLock(_SessionPresenceLock):
    @override
    def _prepare(self, connection: Connection) -> None:
        # The limit of a query, which may be shorter than the wait, would end that with an error.
        mariadb = connection.dialect.is_mariadb  # type: ignore[attr-defined]
        limit = "max_statement_time" if mariadb else "max_execution_time"
        connection.execute(text(f"SET SESSION {limit} = 0"))

    @override
    def _take(self, connection: Connection, timeout_seconds: float) -> bool:
        answer = connection.execute(
            text("SELECT GET_LOCK(:key, :seconds)"),
            {"key": lock_key(connection, self._name), "seconds": max(1, round(timeout_seconds))},
        )
        return answer.scalar() == 1

    @override
    def _asks(self, connection: Connection) -> bool:
        key = lock_key(connection, self._name)
        answer = connection.execute(
            text("SELECT IS_USED_LOCK(:key) = CONNECTION_ID()"), {"key": key}
        )
        return bool(answer.scalar())


class _FilePresenceLock(PresenceLock):
    """A lock of the operating system on a file beside an SQLite database."""

    patience_seconds = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @override
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        if self._descriptor is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o660)
        except OSError as error:
            raise StoreUnavailable(f"acquire the presence lock {self._path}: {error}") from None
        give_up_seconds = time.monotonic() + timeout_seconds
        try:
            while not (is_wanted() and try_lock(descriptor)):
                if not is_wanted() or time.monotonic() >= give_up_seconds:
                    os.close(descriptor)
                    return False
                time.sleep(_FILE_POLL_SECONDS)
        except OSError as error:
            os.close(descriptor)
            raise StoreUnavailable(f"acquire the presence lock {self._path}: {error}") from None
        self._descriptor = descriptor
        return True

    @override
    def interrupt(self) -> None:
        """Do nothing: one wait is short."""

    @override
    def is_held(self) -> bool:
        """Held for as long as the file is the one that others would lock."""
        if self._descriptor is None:
            return False
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            same = False
        if not same:
            self.release()
        return same

    @override
    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
