"""What a store has lost since it was migrated: tables and rows that somebody removed."""

import sqlalchemy as sa
from sqlalchemy import Connection

from database import PermanentStoreError
from migrations.names import TableNames
from migrations.rows import MEANINGS, missing_rows, tokens_behind


class StoreDamaged(PermanentStoreError):  # noqa: N818 - named for what is the case
    """Tables or rows of a migrated store are gone, or its tokens are older than its journal."""

    def __init__(self, where: str, damage: list[str]) -> None:
        """Say what ``damage`` was found in the store ``where``, and what to do."""
        super().__init__(
            f"{where} is damaged: {'; '.join(damage)}. Restore what is lost from a backup, or run"
            " `orthia db upgrade`: it puts rows back, and makes tables anew, empty"
            " (docs/backup-and-restore.md)"
        )


def find_damage(connection: Connection, names: TableNames) -> list[str]:
    """Return what a migrated store lacks, a sentence for each; empty when it is sound."""
    inspector = sa.inspect(connection)
    lost = [name for name in _tables(names) if not inspector.has_table(name)]
    damage = [f"table {name} is missing" for name in lost]
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


def _tables(names: TableNames) -> tuple[str, ...]:
    return (
        names.node_manager_store,
        names.failover_log,
        names.messages,
        names.bindings,
        names.history,
        names.large_messages,
    )
