"""Detects tables of the configured names that another program made, most likely Artemis.

Names and columns of Artemis' JDBC store are those of its ``journal-sql.properties``.
"""

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.database import PermanentStoreError
from orthia.migrations.names import TableNames

_ARTEMIS: Final = (
    frozenset({"recordtype", "userrecordtype", "variablesize", "txdatasize"}),  # a journal
    frozenset({"filename", "extension", "data"}),  # large messages, pages
)
_ARTEMIS_NODE_MANAGER: Final = frozenset(
    {"id", "holder_id", "holder_expiration_time", "node_id", "state"}
)
"""All the columns of that table; Orthia's has more."""


def refuse_tables_of_artemis(connection: Connection, names: TableNames) -> None:
    """Raise PermanentStoreError if a table of a configured name is Artemis'.

    Checks all tables before any is created: a DBMS may commit with each DDL statement.
    """
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    for table in (
        names.node_manager_store,
        names.messages,
        names.bindings,
        names.large_messages,
        names.history,
        names.message_times,
        names.outbox,
        names.acks,
        names.failover_log,
    ):
        if table in there:
            found = [column["name"] for column in inspector.get_columns(table)]
            if _is_of_artemis(found):
                raise _artemis(table)


def refuse_foreign_table(table: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise PermanentStoreError unless a table of this name has the ``wanted`` columns.

    A later revision may have added some. Nothing was changed, in this table or any other.
    """
    if set(wanted) <= set(found):
        return
    if _is_of_artemis(found):
        raise _artemis(table)
    raise PermanentStoreError(
        f"a table {table} exists that is not Orthia's: its columns are"
        f" {', '.join(sorted(found))}; use another database or configure another table name"
    )


def _is_of_artemis(found: Collection[str]) -> bool:
    columns = {column.lower() for column in found}
    return columns == _ARTEMIS_NODE_MANAGER or any(known <= columns for known in _ARTEMIS)


def _artemis(table: str) -> PermanentStoreError:
    return PermanentStoreError(
        f"the table {table} is Apache ActiveMQ Artemis': Orthia keeps messages in another form, and"
        " neither broker can use the other's tables. Nothing was changed; leave the tables as they"
        " are, they hold Artemis' messages. Give Orthia another database, or other names for all"
        " its tables in database-store; to bring messages over, run Artemis until their consumers"
        " have emptied its queues"
    )
