"""An application beside a store, for the recipes of docs/outbox.md."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.migrations import TableNames

STORED = 5
"""The id of a message in a queue."""


@pytest.fixture
def shop(database: Database, migrated_store: DatabaseStoreSettings) -> Iterator[Engine]:
    """Give the engine of an application with a table of orders, and a message in a queue."""
    engine = database.engine
    names = TableNames.from_settings(migrated_store)
    quoted = engine.dialect.identifier_preparer.quote(names.messages)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, done INTEGER DEFAULT 0)")
        )
        connection.execute(
            text(
                f"INSERT INTO {quoted} (seq, id, record_type, user_record_type, queue_id, epoch,"
                f" record) VALUES ({STORED}, {STORED}, 11, 31, 1, 1, '')"
            )
        )
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE shop_orders"))
