"""Detects damage of a migrated store: tables, functions and rows that were removed."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.database import PermanentStoreError
from orthia.migrations.names import TableNames
from orthia.migrations.routines import missing_columns, missing_routines
from orthia.migrations.rows import MEANINGS, missing_rows, tokens_behind

_DENIED: Final = frozenset({1044, 1142, 1143})
"""Errors of MySQL and MariaDB: to a database, a table or a column."""


class StoreDamaged(PermanentStoreError):  # noqa: N818 - named for what is the case
    """Tables or rows of a migrated store are gone, or its tokens are older than its journal."""

    def __init__(self, where: str, damage: list[str]) -> None:
        """Name the ``damage`` of the store ``where``, and the remedy."""
        super().__init__(
            f"{where} is damaged: {'; '.join(damage)}. Restore what is lost from a backup, or run"
            " `orthia db upgrade`: it puts rows back, and makes tables anew, empty"
            " (docs/backup-and-restore.md)"
        )


def find_damage(connection: Connection, names: TableNames, revision: str) -> list[str]:
    """Return the damage of a store of this ``revision``, a sentence each; empty if there is none.

    A table that a later revision adds does not count as missing.
    """
    inspector = sa.inspect(connection)
    expected = [name for name, since in _tables(names).items() if since <= revision]
    lost = [name for name in expected if not _is_there(connection, inspector, name)]
    damage = [f"table {name} is missing" for name in lost]
    if names.outbox in expected:
        damage += missing_columns(connection, names)
        damage += missing_routines(connection, names)
    if names.node_manager_store in lost:
        return damage
    damage += [
        f"row {row} of {names.node_manager_store} ({MEANINGS[row]}) is missing"
        for row in missing_rows(connection, names)
    ]
    if names.messages not in lost and names.bindings not in lost:
        damage += [
            f"row {row} of {names.node_manager_store} ({MEANINGS[row]}) has token {token}, but the"
            f" journal was written under token {newest} already"
            for row, token, newest in tokens_behind(connection, names)
        ]
    return damage


def _tables(names: TableNames) -> dict[str, str]:
    """Return the revision that added each table; revisions sort as strings."""
    return {
        names.node_manager_store: "0001",
        names.failover_log: "0001",
        names.messages: "0001",
        names.bindings: "0001",
        names.history: "0002",
        names.large_messages: "0003",
        names.message_times: "0004",
        names.outbox: "0005",
        names.acks: "0005",
    }


def _is_there(connection: Connection, inspector: sa.Inspector, table: str) -> bool:
    """Return whether a table exists, also where its columns are hidden from the user.

    MySQL and MariaDB show none to who may only delete rows: what is missing is a right.
    """
    if inspector.has_table(table):
        return True
    if connection.dialect.name not in ("mysql", "mariadb"):
        return False
    try:
        asked = sa.delete(sa.table(table)).where(sa.false()).compile(connection.engine)
        connection.execute(sa.text(f"EXPLAIN {asked}")).close()
    except sa.exc.DBAPIError as error:
        return error.orig is not None and error.orig.args[0] in _DENIED
    return True
