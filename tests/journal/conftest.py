"""Stores to open journals on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from tests.conftest import EVERY_DBMS, Servers
from tests.journal.support import (
    PATIENT_SETTINGS,
    FileJournalStore,
    JournalStore,
    MemoryJournalStore,
    SqlJournalStore,
)
from tests.support.servers import SqliteServer, StoreServer


@pytest.fixture(params=["memory", "file", *EVERY_DBMS])
def store(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[JournalStore]:
    """Give an empty store of every kind, the in-memory twin included."""
    if request.param == "memory":
        yield MemoryJournalStore()
        return
    if request.param == "file":
        files = FileJournalStore(tmp_path)
        yield files
        files.close()
        return
    server: StoreServer = (
        SqliteServer(tmp_path) if request.param == "sqlite" else shared_servers(request.param)
    )
    name = server.create_database()
    opened = SqlJournalStore(server.settings(name, **PATIENT_SETTINGS))
    yield opened
    opened.close()
    server.drop_database(name)


@pytest.fixture
def store_settings(store_settings: DatabaseStoreSettings) -> DatabaseStoreSettings:
    """Give settings of an empty database, with time for what is done in it."""
    return replace(store_settings, **PATIENT_SETTINGS)


@pytest.fixture
def sql_store(store_settings: DatabaseStoreSettings) -> Iterator[SqlJournalStore]:
    """Give an empty migrated database on every DBMS; nobody may stay connected to it."""
    opened = SqlJournalStore(store_settings)
    yield opened
    opened.close()
