"""Tables as an upgrade leaves them: elsewhere the printed SQL makes them, which is quicker."""

import pytest

from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database


@pytest.fixture
def migrated_store(
    store_settings: DatabaseStoreSettings, database: Database
) -> DatabaseStoreSettings:
    """Give settings of a database that was upgraded."""
    migrations.upgrade(database, store_settings)
    return store_settings
