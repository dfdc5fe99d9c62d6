"""What the user of a node may not do with the tables, found before the node waits for its turn."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.database import PermanentStoreError
from orthia.migrations.names import TableNames

_APPENDS: Final = ("SELECT", "INSERT", "DELETE")
_CHANGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


class RightsMissing(PermanentStoreError):  # noqa: N818 - named for what is the case
    """A node's user may not do with a table what a node has to, once it is live."""

    def __init__(self, where: str, missing: list[str]) -> None:
        """Say which rights are ``missing`` in the store ``where``, and what to do."""
        super().__init__(
            f"{where}: no right to {'; '.join(missing)}. Grant what is missing, as the owner of the"
            " tables; a table that a new version added needs it once more: `orthia docs databases`"
        )


def missing_rights(connection: Connection, names: TableNames) -> list[str]:
    """Return what the session's user may not do, as "INSERT, DELETE on messages"; PostgreSQL only.

    A backup with too few rights would else find out when it takes over. On MySQL and MariaDB rights
    are those of the database, which are on tables to come, too.
    """
    asked = sa.text(
        "SELECT r FROM unnest(CAST(:rights AS text[])) AS r"
        " WHERE NOT has_table_privilege(to_regclass(quote_ident(:name)), r)"
    )
    missing = []
    for name, rights in _needed(names).items():
        found = connection.execute(asked, {"rights": list(rights), "name": name}).scalars()
        lacking = set(found)
        if lacking:
            missing.append(f"{', '.join(one for one in rights if one in lacking)} on {name}")
    return missing


def _needed(names: TableNames) -> dict[str, tuple[str, ...]]:
    return {
        names.node_manager_store: ("SELECT", "UPDATE"),
        names.bindings: _CHANGES,
        names.messages: _APPENDS,
        names.history: _APPENDS,
        names.large_messages: _APPENDS,
        names.message_times: _CHANGES,
    }
