"""Reads tables as Arrow batches, with the fastest driver of each DBMS.

PostgreSQL through ADBC, which reads the server's binary COPY directly into Arrow; SQLite through
the standard library; MySQL and MariaDB through PyMySQL's streaming cursor. One statement is one
snapshot. Statements contain only validated names, numbers and times.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import Any, Final

import pyarrow as pa
import pymysql
import pymysql.cursors
from psycopg2.extensions import make_dsn
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    PermanentStoreError,
    StoreUnavailable,
    fold_table_name,
    translate_errors,
)
from orthia.database.sqltime import SQLITE_FORMAT
from orthia.pipeline.sources.portions import BYTES, portions

TIME: Final = pa.timestamp("us", tz="UTC")
_BATCH_BYTES_OPTION: Final = "adbc.postgresql.batch_size_hint_bytes"


@dataclass(frozen=True)
class Column:
    """A column of a statement's result."""

    name: str
    type: pa.DataType
    expression: str | None = None
    """The selected expression; None selects the table's column of this name."""


class Source(ABC):
    """A read-only connection to one store; used by one thread."""

    dialect: Dialect
    _quote = '"'

    @abstractmethod
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small result; raises StoreError."""

    @abstractmethod
    def batches(
        self, columns: Sequence[Column], rest: str, values: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Select ``columns`` from ``rest`` (``FROM ...``), batch by batch; raises StoreError.

        ``values`` are bound to the placeholders in ``rest``.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def table(self, name: str) -> str:
        """Return the quoted name of a configured table; raises ConfigurationError."""
        return f"{self._quote}{fold_table_name(self.dialect, name)}{self._quote}"

    @abstractmethod
    def placeholder(self, number: int) -> str:
        """Return the placeholder of a bound value, numbered from 1."""

    @abstractmethod
    def time(self, instant: datetime) -> str:
        """Return the literal of an instant, comparable with a column of times."""

    def selected_time(self, expression: str) -> str:
        """Return the expression that selects a time in the form that ``batches`` reads."""
        return expression

    def _select(self, columns: Sequence[Column], rest: str) -> str:
        parts = (
            f"{self._expression(column)} AS {self._quote}{column.name}{self._quote}"
            for column in columns
        )
        return f"SELECT {', '.join(parts)} {rest}"

    def _expression(self, column: Column) -> str:
        expression = column.expression or column.name
        return self.selected_time(expression) if column.type == TIME else expression


@contextmanager
def open_source(settings: DatabaseStoreSettings) -> Iterator[Source]:
    """Connect to a store for reading; raises StoreError."""
    match settings.jdbc_connection_url.dialect:
        case Dialect.POSTGRESQL:
            source: Source = PostgresqlSource(settings)
        case Dialect.MYSQL:
            source = MysqlSource(settings)
        case Dialect.SQLITE:
            source = SqliteSource(settings)
    try:
        yield source
    finally:
        source.close()


def _connect_arguments(settings: DatabaseStoreSettings) -> dict[str, Any]:
    """Return the driver's arguments as SQLAlchemy would pass them, password included."""
    url = settings.jdbc_connection_url.sqlalchemy_url
    if settings.jdbc_user is not None:
        url = url.set(username=settings.jdbc_user)
    _, arguments = url.get_dialect()().create_connect_args(url)
    if settings.jdbc_password is not None:
        arguments["password"] = settings.jdbc_password.reveal()
    return dict(arguments)


class PostgresqlSource(Source):
    """ADBC."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        dsn = postgresql_dsn(settings, "-c default_transaction_read_only=on")
        # Imported here: it loads pandas, half a second in each worker that does not need it.
        from adbc_driver_postgresql import dbapi

        with adbc_errors("connect the pipeline", connecting=True):
            self._connection = dbapi.connect(dsn, autocommit=True)

    @override
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with adbc_errors("read the store"), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @override
    def batches(
        self, columns: Sequence[Column], rest: str, values: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([(column.name, column.type) for column in columns])
        with adbc_errors("read the store"), self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_BATCH_BYTES_OPTION: str(BYTES)})
            cursor.execute(self._select(columns, rest), list(values) or None)
            for batch in cursor.fetch_record_batch():
                yield batch if batch.schema.equals(schema) else batch.cast(schema)

    @override
    def placeholder(self, number: int) -> str:
        return f"${number:d}"

    @override
    def time(self, instant: datetime) -> str:
        return f"timestamptz '{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}+00'"

    @override
    def selected_time(self, expression: str) -> str:
        """A time outside the range of ``datetime`` becomes the first or the last day."""
        bounded = f"LEAST({expression}, timestamptz '9999-12-31')"
        bounded = f"GREATEST({bounded}, timestamptz '0001-01-01')"
        # LEAST and GREATEST ignore NULL, which would become the last day.
        return f"CASE WHEN {expression} IS NOT NULL THEN {bounded} END"

    @override
    def close(self) -> None:
        self._connection.close()


def postgresql_dsn(settings: DatabaseStoreSettings, options: str = "") -> str:
    """Return the driver's words for a connection, password included, with times in UTC."""
    arguments = _connect_arguments(settings)
    given = arguments.pop("options", "")
    seconds = settings.jdbc_network_timeout / 1000
    dsn: str = make_dsn(
        connect_timeout=ceil(seconds),
        tcp_user_timeout=settings.jdbc_network_timeout,
        application_name="orthia pipeline",
        options=f"{given} -c TimeZone=UTC {options}".strip(),
        **arguments,
    )
    return dsn


@contextmanager
def adbc_errors(what: str, *, connecting: bool = False) -> Iterator[None]:
    """Translate the errors of ADBC to StoreError."""
    from adbc_driver_manager import AdbcStatusCode, Error

    try:
        yield
    except Error as error:
        lost = error.status_code in (AdbcStatusCode.IO, AdbcStatusCode.TIMEOUT)
        if lost and (connecting or not error.sqlstate):
            raise StoreUnavailable(f"{what}: {_one_line(error)}") from error
        raise PermanentStoreError(f"{what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _CursorSource(Source):
    """A source that is read row by row through a cursor, and converted to columns."""

    @override
    def batches(
        self, columns: Sequence[Column], rest: str, values: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([(column.name, column.type) for column in columns])
        with translate_errors("read the store"), self._cursor() as cursor:
            cursor.execute(self._select(columns, rest), list(values))
            sized = [at for at, column in enumerate(columns) if column.type == pa.binary()]
            for rows in portions(cursor, sized):
                by_column = zip(*rows, strict=True)
                arrays = [
                    self._array(values, column.type)
                    for values, column in zip(by_column, columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        make = self._times if kind == TIME else partial(pa.array, type=kind)
        try:
            return make(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            # SQLite stores any type in any column: a value of another type becomes NULL.
            return pa.array([self._single(value, kind) for value in values], kind)

    def _single(self, value: Any, kind: pa.DataType) -> Any:
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            (found,) = self._times([value]) if kind == TIME else pa.array([value], kind)
            return found
        return None

    @abstractmethod
    def _times(self, values: Sequence[Any]) -> pa.Array:
        """Convert values that ``selected_time`` selects to an array."""

    @abstractmethod
    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Give a cursor that does not fetch the whole result at once."""


class SqliteSource(_CursorSource):
    """The standard library's sqlite3, on a file opened read-only."""

    dialect = Dialect.SQLITE

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        path = settings.jdbc_connection_url.sqlite_path
        if path is None or not path.exists():
            raise StoreUnavailable(f"connect the pipeline: there is no database {path}")
        with translate_errors("connect the pipeline"):
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=settings.jdbc_network_timeout / 1000,
                isolation_level=None,
            )

    @override
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with translate_errors("read the store"):
            return self._connection.execute(statement).fetchall()

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _times(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, pa.string()).cast(TIME)

    @override
    def placeholder(self, number: int) -> str:
        return "?"

    @override
    def time(self, instant: datetime) -> str:
        return f"'{instant.astimezone(UTC).strftime(SQLITE_FORMAT)}'"

    @override
    def close(self) -> None:
        self._connection.close()


class MysqlSource(_CursorSource):
    """PyMySQL, which has no C code; its streaming cursor keeps memory flat."""

    dialect = Dialect.MYSQL
    _quote = "`"

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        self._connection = connect_mysql(
            settings, autocommit=True, init_command="SET SESSION TRANSACTION READ ONLY"
        )

    @override
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with translate_errors("read the store"), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        # Any: PyMySQL has no public way to abandon a result.
        connection: Any = self._connection
        cursor: Any = connection.cursor(pymysql.cursors.SSCursor)
        try:
            yield cursor
        except BaseException:
            # Closing the cursor would read the rest of the result, perhaps a million rows.
            connection._force_close()  # noqa: SLF001
            cursor._result.unbuffered_active = False  # noqa: SLF001 - else it reads on, and fails
            raise
        cursor.close()

    @override
    def selected_time(self, expression: str) -> str:
        return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {expression})"

    def _times(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(TIME)

    @override
    def placeholder(self, number: int) -> str:
        return "%s"

    @override
    def time(self, instant: datetime) -> str:
        return f"'{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"

    @override
    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def connect_mysql(settings: DatabaseStoreSettings, **more: Any) -> pymysql.Connection:
    """Connect to MySQL or MariaDB with the network time-out; raises StoreError."""
    arguments = _connect_arguments(settings)
    if isinstance(arguments.get("password"), str):
        # As bytes: PyMySQL would encode text as Latin-1, which cannot hold every password.
        arguments["password"] = arguments["password"].encode()
    seconds = settings.jdbc_network_timeout / 1000
    with translate_errors("connect the pipeline"):
        return pymysql.connect(
            **{
                "charset": "utf8mb4",
                **arguments,
                "connect_timeout": seconds,
                "read_timeout": seconds,
                "program_name": "orthia pipeline",
                **more,
            }
        )
