"""Finds missing rights of a node's user on the tables before the node waits for the lock."""

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.config.store_settings import (
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    SharedFileLockerSettings,
)
from orthia.database import Dialect, PermanentStoreError
from orthia.migrations.names import TableNames

_APPENDS: Final = ("SELECT", "INSERT", "DELETE")
_CHANGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

_TAKES: Final = ("SELECT", "DELETE")

_DENIED: Final = frozenset({1044, 1142, 1143})
"""Errors of MySQL and MariaDB: to a database, a table or a column."""
_NO_DEFAULT: Final = 1364
"""The error of an INSERT that omits columns, for a user with the right to insert."""


class RightsMissing(PermanentStoreError):  # noqa: N818 - named for what is the case
    """A node's user lacks rights on a table that a live node needs."""

    def __init__(self, where: str, missing: list[str]) -> None:
        """Name the rights ``missing`` in the store ``where``, and the remedy."""
        super().__init__(
            f"{where}: no right to {'; '.join(missing)}. Grant what is missing, as the owner of the"
            " tables; a table that a new version added needs it once more: `orthia docs databases`"
        )


def missing_rights(connection: Connection, s: DatabaseStoreSettings) -> list[str]:
    """Return the rights that the session's user lacks, as "INSERT, DELETE on messages".

    A backup with too few rights would otherwise fail only when it takes over. PostgreSQL has a
    function for rights; on MySQL and MariaDB, where rights come from roles, databases and tables,
    EXPLAIN of each statement fails without the right. SQLite has no users.
    """
    names = TableNames.from_settings(s)
    if names.dialect is Dialect.SQLITE:
        return []
    missing = []
    for table, rights in _needed(names, s).items():
        if names.dialect is Dialect.POSTGRESQL:
            found = _lacking(connection, table, rights)
        else:
            number = "seq" if table == names.message_times else "id"
            found = _not_explained(connection, table, rights, number)
        if found:
            missing.append(f"{', '.join(one for one in rights if one in found)} on {table}")
    return missing


def _lacking(connection: Connection, table: str, rights: Iterable[str]) -> set[str]:
    asked = sa.text(
        "SELECT r FROM unnest(CAST(:rights AS text[])) AS r"
        " WHERE NOT has_table_privilege(to_regclass(quote_ident(:name)), r)"
    )
    values = {"rights": list(rights), "name": table}
    return set(connection.execute(asked, values).scalars())


def _not_explained(
    connection: Connection, name: str, rights: Iterable[str], number: str
) -> set[str]:
    """Return the ``rights`` that the server denies; ``number`` is a column of the table."""
    table = sa.table(name, sa.column(number, sa.Integer))
    statements: dict[str, sa.ClauseElement] = {
        "SELECT": sa.select(sa.literal(1)).select_from(table),
        "INSERT": sa.insert(table).values({number: 1}),
        "UPDATE": sa.update(table).values({number: 1}).where(sa.false()),
        "DELETE": sa.delete(table).where(sa.false()),
    }
    found = set()
    for right in rights:
        try:
            asked = statements[right].compile(
                connection.engine, compile_kwargs={"literal_binds": True}
            )
            connection.execute(sa.text(f"EXPLAIN {asked}")).close()
        except sa.exc.DBAPIError as error:
            code = None if error.orig is None else error.orig.args[0]
            if code not in {*_DENIED, _NO_DEFAULT}:
                raise
            if code in _DENIED:
                found.add(right)
    return found


def _needed(names: TableNames, s: DatabaseStoreSettings) -> dict[str, tuple[str, ...]]:
    # These lockers insert a row of their own; the rows of leases exist already.
    adds_row = isinstance(s.locker, DatabaseLockerSettings | SharedFileLockerSettings)
    # Skipping an existing row needs the right to UPDATE on MySQL, but not on PostgreSQL.
    keeps = _CHANGES if names.dialect is Dialect.MYSQL else _APPENDS
    return {
        names.node_manager_store: ("SELECT", "INSERT", "UPDATE")
        if adds_row
        else ("SELECT", "UPDATE"),
        names.failover_log: ("SELECT", "INSERT"),
        names.bindings: _CHANGES,
        names.messages: _APPENDS,
        names.history: keeps,
        names.large_messages: keeps,
        names.message_times: _CHANGES,
        names.outbox: _TAKES,
        names.acks: _TAKES,
    }
