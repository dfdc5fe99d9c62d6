"""Migrations on real databases."""

import migrations
from config.settings import DatabaseStoreSettings
from database import Database


def test_an_empty_database_gets_the_newest_revision(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """An empty database has no revision before an upgrade and the newest one after it."""
    assert migrations.current(database, store_settings) is None
    migrations.upgrade(database, store_settings)
    assert migrations.current(database, store_settings) == migrations.head()
