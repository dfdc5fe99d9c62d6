"""Looks whether the routines of outbox and acknowledgements are there, and as they were made.

Without one of them applications cannot send or acknowledge, or they send what should be refused.
One that somebody has altered may still do what it should: that is told, and no node refuses to
start for it. ``orthia db upgrade`` makes all of them anew. A change of one of them in this version
needs a revision, as one of a table does.

PostgreSQL tells everybody of all functions. MySQL and MariaDB tell of a routine only those who may
use or change it, and its text only whoever made it.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.mysql.base import MySQLDialect

from orthia.database import Dialect
from orthia.migrations.acknowledge import ack_routine_sql
from orthia.migrations.names import TableNames
from orthia.migrations.outbox import IF_NOT_EXISTS, before_outbox, outbox_checks, outbox_functions

_FUNCTION: Final = re.compile(
    r"CREATE OR REPLACE FUNCTION (?:@SCHEMA@|%1\$s)\.(?P<name>\w+)\((?P<arguments>[^)]*)\)\s+"
    r"RETURNS .*?AS \$(?P<quote>\w+)\$(?P<body>.*?)\$(?P=quote)\$",
    re.DOTALL,
)
_PROCEDURE: Final = re.compile(
    r"CREATE PROCEDURE [^`]*`(?P<name>\w+)`.*?SQL SECURITY DEFINER\s+(?P<body>.*)", re.DOTALL
)
_LISTS_ROUTINES: Final = """
    SELECT COUNT(*) FROM (
        SELECT privilege_type AS p FROM information_schema.USER_PRIVILEGES
        UNION ALL SELECT privilege_type FROM information_schema.SCHEMA_PRIVILEGES
            WHERE DATABASE() LIKE table_schema
    ) AS held WHERE p IN ('CREATE ROUTINE', 'ALTER ROUTINE', 'EXECUTE')
"""
"""Whether a user of MySQL or MariaDB may know of all routines; one with such a right by a role that
is not seen here is told less."""


class _Routine(NamedTuple):
    name: str
    arguments: str
    """Their types, of a function."""
    body: str
    is_definers: bool = True
    """Whether it runs with the rights of who made it."""

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})" if self.arguments else self.name


def missing_routines(connection: Connection, names: TableNames) -> list[str]:
    """Return a sentence for each routine, trigger and constraint that is gone."""
    match names.dialect:
        case Dialect.POSTGRESQL:
            there = {one for one, _ in _found_functions(connection, names)}
            lost = [f"function {one}" for one in _functions(names) if one not in there]
            lost += _missing_trigger(connection, names)
        case Dialect.MYSQL:
            there = set(_procedures(names))
            if connection.execute(sa.text(_LISTS_ROUTINES)).scalar_one():
                found = _found_procedures(connection)
                there = {one for one in there if one.name in found}
            lost = [f"procedure {one}" for one in _procedures(names) if one not in there]
        case Dialect.SQLITE:
            return []
    lost += [f"constraint {one}" for one in missing_checks(connection, names)]
    return [f"{one} is missing" for one in lost]


def missing_columns(connection: Connection, names: TableNames) -> list[str]:
    """Return a sentence for each column that applications use, and the tables do not have."""
    inserted = ["txid"] if names.dialect is Dialect.POSTGRESQL else []
    damage = []
    for table, wanted in (
        (names.outbox, ["id", *inserted, "destination", "headers", "body", "created_at"]),
        (names.acks, ["message_id", *inserted, "acked_at"]),
    ):
        inspector = sa.inspect(connection)
        if not inspector.has_table(table):
            continue
        found = {column["name"].lower() for column in inspector.get_columns(table)}
        damage += [f"table {table} has no column {one}" for one in wanted if one not in found]
    return damage


def altered_routines(connection: Connection, names: TableNames) -> list[str]:
    """Return a sentence for each routine that is not what this version makes, as far as is told."""
    match names.dialect:
        case Dialect.POSTGRESQL:
            functions = _found_functions(connection, names)
            return [f"function {one} was altered" for one, is_same in functions if not is_same]
        case Dialect.MYSQL:
            found = _found_procedures(connection)
            return [
                f"procedure {one} was altered"
                for one in _procedures(names)
                if one.name in found and not _is_same_procedure(found[one.name], one)
            ]
        case Dialect.SQLITE:
            return []


def _is_same(one: str | None, other: str) -> bool:
    return one is not None and one.split() == other.split()


# --- PostgreSQL


def _functions(names: TableNames) -> Iterator[_Routine]:
    statements = [
        *before_outbox(names.dialect, names.outbox),
        *outbox_functions(names.dialect, names.outbox),
        ack_routine_sql(names),
    ]
    for statement in statements:
        for found in _FUNCTION.finditer(statement):
            parts = (one.split(" DEFAULT ")[0].split() for one in found["arguments"].split(","))
            types = ", ".join(part[-1] for part in parts if part)
            body = found["body"]
            if found["quote"] == "function":
                body = body.replace("%%", "%")  # format() has made it
            is_definers = "SECURITY DEFINER" in found[0]
            yield _Routine(found["name"], types, body, is_definers)


def _found_functions(connection: Connection, names: TableNames) -> Iterator[tuple[_Routine, bool]]:
    """Yield the functions that are there, and whether each is as this version makes it."""
    asked = sa.text(
        "SELECT p.prosrc, p.prosecdef, quote_ident(n.nspname) AS place,"
        " p.proconfig::text LIKE '%search_path=%' AS has_path"
        " FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        " WHERE p.oid = to_regprocedure(quote_ident(:name) || '(' || :arguments || ')')"
    )
    for one in _functions(names):
        values = {"name": one.name, "arguments": one.arguments}
        row = connection.execute(asked, values).first()
        if row is not None:
            is_same = _is_same(row.prosrc, one.body.replace("@SCHEMA@", row.place))
            is_safe = not one.is_definers or (row.prosecdef and row.has_path)
            yield one, bool(is_same and is_safe)


def _missing_trigger(connection: Connection, names: TableNames) -> list[str]:
    trigger = f"{names.outbox}_wake"
    asked = sa.text(
        "SELECT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = c.oid AND tgname = :trigger"
        " AND tgenabled <> 'D')"
        " FROM pg_class AS c WHERE c.oid = to_regclass(quote_ident(:outbox))"
    )
    has_it = connection.execute(asked, {"trigger": trigger, "outbox": names.outbox}).scalar()
    return [f"trigger {trigger}"] if has_it is False else []


# --- MySQL, MariaDB


def _procedures(names: TableNames) -> Iterator[_Routine]:
    for statement in (ack_routine_sql(names), *outbox_functions(names.dialect, names.outbox)):
        found = _PROCEDURE.match(statement)
        if found is not None:
            yield _Routine(found["name"], "", found["body"])


def _found_procedures(connection: Connection) -> dict[str, sa.Row[tuple[str, str, str]]]:
    asked = sa.text(
        "SELECT ROUTINE_NAME AS name, ROUTINE_DEFINITION AS body, SECURITY_TYPE AS runs_as"
        " FROM information_schema.ROUTINES"
        " WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_TYPE = 'PROCEDURE'"
    )
    return {row.name: row for row in connection.execute(asked)}


def _is_same_procedure(row: sa.Row[tuple[str, str, str]], one: _Routine) -> bool:
    is_told = row.body is not None
    return row.runs_as == "DEFINER" and (not is_told or _is_same(row.body, one.body))


def make_procedures(connection: Connection, names: TableNames, statements: list[str]) -> None:
    """Create the procedures that are missing, and make those anew that were altered.

    MariaDB keeps the rights to use one; MySQL does not.
    """
    found = _found_procedures(connection)
    for statement, one in zip(statements, _procedures(names), strict=True):
        if one.name not in found:
            connection.exec_driver_sql(statement)
        elif not _is_same_procedure(found[one.name], one):
            if _is_mariadb(connection):
                replaced = statement.replace("PROCEDURE", "OR REPLACE PROCEDURE", 1)
                connection.exec_driver_sql(replaced.replace(f" {IF_NOT_EXISTS}", ""))
            else:
                connection.exec_driver_sql(f"DROP PROCEDURE `{one.name}`")
                connection.exec_driver_sql(statement)


def _is_mariadb(connection: Connection) -> bool:
    return isinstance(connection.dialect, MySQLDialect) and connection.dialect.is_mariadb


# --- constraints


def missing_checks(connection: Connection, names: TableNames) -> list[str]:
    """Return the constraints of the outbox that are gone, as far as is told."""
    match names.dialect:
        case Dialect.POSTGRESQL:
            asked = (
                "SELECT conname FROM pg_constraint"
                " WHERE conrelid = to_regclass(quote_ident(:table))"
            )
        case Dialect.MYSQL:
            asked = (
                "SELECT constraint_name FROM information_schema.TABLE_CONSTRAINTS"
                " WHERE table_schema = DATABASE() AND table_name = :table"
            )
            version = connection.dialect.server_version_info or ()
            if not _is_mariadb(connection) and version < (8, 0, 16):
                return []  # it has no constraints of this kind
        case Dialect.SQLITE:
            return []  # nobody can drop one
    found = {
        one.upper() for one in connection.execute(sa.text(asked), {"table": names.outbox}).scalars()
    }
    wanted = [names.suffixed(names.outbox, one) for one in outbox_checks(names.dialect, "")]
    # Whoever may not know of them is not told of the primary key either.
    return [one for one in wanted if found and one.upper() not in found]
