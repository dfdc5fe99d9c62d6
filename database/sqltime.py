"""Time as the database tells it: one column type and the expressions that compare with it.

Every instant in Orthia's tables is UTC with microseconds and is written by the database from its
own clock. Values of one DBMS compare with each other by plain ``<`` and ``=``.

- PostgreSQL: ``timestamptz``, which keeps microseconds, and ``clock_timestamp()``; ``now()`` would
  stand still during a transaction.
- MySQL, MariaDB: ``DATETIME(6)`` and ``UTC_TIMESTAMP(6)``; ``TIMESTAMP`` would be converted by the
  session's time zone.
- SQLite: text ``YYYY-MM-DDTHH:MM:SS.ffffffZ``. Its clock has milliseconds, the digits below are 0.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from sqlalchemy import BigInteger, Float, bindparam
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import String, TypeDecorator, TypeEngine

from orthia.database.errors import UnreadableTime

_Result = TypeVar("_Result")

SQLITE_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_SQLITE_EXAMPLE = "2000-01-31T12:00:00.000000Z"
_SQLITE_LENGTH = len(_SQLITE_EXAMPLE)


class UtcTimestamp(TypeDecorator[datetime]):
    """An instant with microseconds; in Python an aware datetime in UTC."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the DBMS' own type."""
        if dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(String(_SQLITE_LENGTH))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Send an aware datetime; a naive one is refused with ValueError."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone: an instant was expected")
        in_utc = value.astimezone(UTC)
        if dialect.name == "postgresql":
            return in_utc
        if dialect.name in ("mysql", "mariadb"):
            return in_utc.replace(tzinfo=None)
        return in_utc.strftime(SQLITE_FORMAT)

    def process_result_value(
        self,
        value: Any,
        dialect: Dialect,  # noqa: ARG002 - the signature is SQLAlchemy's
    ) -> datetime | None:
        """Read an aware datetime in UTC; raises UnreadableTime."""
        if value is None:
            return None
        if isinstance(value, str):
            return read_sqlite_time(value)
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def read_sqlite_time(value: object) -> datetime:
    """Return the instant of a text in ``SQLITE_FORMAT``; raises UnreadableTime.

    Other forms are refused, though SQLite may know them: times are compared as texts.
    """
    if isinstance(value, str) and len(value) == _SQLITE_LENGTH:
        with suppress(ValueError):
            return datetime.strptime(value, SQLITE_FORMAT).replace(tzinfo=UTC)
    raise UnreadableTime(
        f"{value!r} is no time as Orthia writes it; expected UTC as {_SQLITE_EXAMPLE!r}"
    )


def microsecond_after(text: str) -> str:
    """Return the instant a microsecond after ``text``, both as SQLite has them."""
    instant = read_sqlite_time(text)
    return (instant + timedelta(microseconds=1)).strftime(SQLITE_FORMAT)


class _TimeExpression(FunctionElement[_Result]):
    """An SQL expression whose text differs from DBMS to DBMS; ``{0}`` is its argument."""

    sql: ClassVar[Mapping[str, str]]


class _Now(_TimeExpression[datetime]):
    inherit_cache = True
    type = UtcTimestamp()
    name = "db_now"
    sql: ClassVar = {
        "postgresql": "clock_timestamp()",
        # In parentheses, which MySQL wants around a DEFAULT that is an expression.
        "mysql": "(UTC_TIMESTAMP(6))",
        "sqlite": "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
    }


class _NowPlusMs(_TimeExpression[datetime]):
    inherit_cache = True
    type = UtcTimestamp()
    name = "db_now_plus_ms"
    sql: ClassVar = {
        "postgresql": "(clock_timestamp() + {0} * interval '1 millisecond')",
        "mysql": "TIMESTAMPADD(MICROSECOND, {0} * 1000, UTC_TIMESTAMP(6))",
        "sqlite": "(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', {0} / 1000.0))"
        " || '000Z')",
    }


class _SecondsUntil(_TimeExpression[float]):
    inherit_cache = True
    type = Float()
    name = "seconds_until"
    sql: ClassVar = {
        "postgresql": "CAST(EXTRACT(EPOCH FROM ({0} - clock_timestamp())) AS double precision)",
        "mysql": "(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {0}) / 1000000e0)",
        "sqlite": "((julianday({0}) - julianday('now')) * 86400.0)",
    }


@compiles(_TimeExpression)
def _compile(element: _TimeExpression[Any], compiler: SQLCompiler, **kw: Any) -> str:
    arguments = [compiler.process(clause, **kw) for clause in element.clauses]
    dbms = "mysql" if compiler.dialect.name == "mariadb" else compiler.dialect.name
    return element.sql[dbms].format(*arguments)


def db_now() -> ColumnElement[datetime]:
    """Return the expression of the database's present instant; also good as a server default."""
    return _Now()


def db_now_plus_ms(ms: int | ColumnElement[int]) -> ColumnElement[datetime]:
    """Return the expression of the instant ``ms`` milliseconds after the database's present.

    ``ms`` may be negative; an int is bound, and so may be a ``bindparam``.
    """
    return _NowPlusMs(bindparam(None, ms, BigInteger) if isinstance(ms, int) else ms)


def seconds_until(instant: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the expression of the seconds from the database's present to ``instant``.

    Negative when the instant has passed, NULL when it is NULL.
    """
    return _SecondsUntil(instant)
