"""The proof of the fence in the journal's transactions, and the sessions that make it."""

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, fold_table_name, for_share
from orthia.database.sessions import JOURNAL_PURPOSE, fenced_mark
from orthia.journal.errors import Fenced
from orthia.journal.model.records import FENCE_ROW_ID


def fenced_engine(database: Database, s: DatabaseStoreSettings, purpose: str, token: int) -> Engine:
    """Return an engine of one connection, whose session cannot hold the fence for long.

    A frozen node may have a transaction open; its successor's fence waits for it. The server ends
    an idle transaction after a quarter of the lease, which leaves the successor most of its time.
    The successor ends any other one; it finds the session by ``purpose``, one of
    ``orthia.database.sessions.FENCED_PURPOSES``.
    """
    table = fold_table_name(database.dialect, s.node_manager_store_table_name)
    # The journal's message may need a body that another connection stored.
    leads = purpose == JOURNAL_PURPOSE
    return database.dedicated_engine(
        purpose,
        query_timeout_ms=s.jdbc_network_timeout,
        idle_in_transaction_ms=max(1, s.jdbc_lock_expiration // 4),
        mark=fenced_mark(table, purpose, token),
        leads=leads,
    )


def prove_fence(
    connection: Connection, s: DatabaseStoreSettings, dialect: Dialect, token: int
) -> None:
    """Lock the fence against a successor until the transaction ends; raises Fenced."""
    store = sql_table(
        fold_table_name(dialect, s.node_manager_store_table_name),
        sql_column("id"),
        sql_column("holder_token"),
    )
    newest = select(text("1")).where(store.c.id == FENCE_ROW_ID, store.c.holder_token == token)
    if connection.execute(for_share(newest.select_from(store), dialect)).first() is None:
        raise Fenced(token)
