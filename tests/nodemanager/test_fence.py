"""The fence and the journal's batches, on each DBMS: who waits for whom."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import MetaData, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, for_share, write_transaction
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until

LONG_MS = 600_000


@pytest.fixture
def store(migrated_store: DatabaseStoreSettings, database: Database) -> SqlNodeManagerStore:
    """Give a store through the shared pool."""
    return SqlNodeManagerStore(database, migrated_store, database.engine)


@pytest.fixture
def fencing(migrated_store: DatabaseStoreSettings, database: Database) -> SqlNodeManagerStore:
    """Give one that waits for the fence for as long as a lease lasts, as a node does."""
    engine = database.dedicated_engine("fence", query_timeout_ms=LONG_MS)
    return SqlNodeManagerStore(database, migrated_store, engine)


@contextmanager
def batch(database: Database, token: int) -> Iterator[bool]:
    """Begin a journal transaction as the writer does; gives whether the fence let it."""
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", database.dialect)
    ask = for_share(
        select(table.c.id).where(table.c.id == 4, table.c.holder_token == token), database.dialect
    )
    with write_transaction(database.engine, "a batch") as connection:
        yield connection.execute(ask).first() is not None


def live_under_the_first_token(store: SqlNodeManagerStore) -> int:
    """Make a first live node and return its token."""
    acquired = store.try_acquire(Lock.LIVE, "old", LONG_MS)
    assert acquired is not None
    assert store.advance_fence("old", acquired.token)
    return acquired.token


def hand_over(store: SqlNodeManagerStore, token: int) -> int:
    """Give the live lock to the next node and return its token; the fence stays."""
    assert store.release(Lock.LIVE, "old", token)
    acquired = store.try_acquire(Lock.LIVE, "new", LONG_MS)
    assert acquired is not None
    return acquired.token


def test_a_batch_under_the_newest_token_is_let_in(
    store: SqlNodeManagerStore, database: Database
) -> None:
    """And one under any other is not."""
    token = live_under_the_first_token(store)
    with batch(database, token) as let_in:
        assert let_in
    for other in (token - 1, token + 1):
        with batch(database, other) as let_in:
            assert not let_in


def test_after_the_fence_the_old_token_finds_no_row(
    store: SqlNodeManagerStore, database: Database
) -> None:
    """From the fence on nothing of the old node gets in, though it believes to be live."""
    old = live_under_the_first_token(store)
    new = hand_over(store, old)
    assert store.advance_fence("new", new)
    with batch(database, old) as let_in:
        assert not let_in


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_the_fence_waits_for_the_batch_in_flight(
    store: SqlNodeManagerStore, fencing: SqlNodeManagerStore, database: Database
) -> None:
    """The successor loads only when the old node's last batch is in, or gone."""
    old = live_under_the_first_token(store)
    new = hand_over(store, old)
    fenced = threading.Event()

    def fence() -> None:
        assert fencing.advance_fence("new", new)
        fenced.set()

    with ThreadPoolExecutor(1) as pool:
        with batch(database, old) as let_in:
            assert let_in
            advancing = pool.submit(fence)
            wait_until(lambda: fencing._fencing_session is not None, what="the fence waits")
            # Renewals touch another row: they pass while the fence waits.
            for _ in range(3):
                assert store.renew(Lock.LIVE, "new", new, LONG_MS) is not None
            assert not fenced.is_set()
        advancing.result(120)
    with batch(database, old) as let_in:
        assert not let_in


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_fence_that_waited_beyond_its_lease_is_not_advanced(
    store: SqlNodeManagerStore, fencing: SqlNodeManagerStore, database: Database
) -> None:
    """Whoever lost the lock while it waited must not lock out the one who has it."""
    old = live_under_the_first_token(store)
    new = hand_over(store, old)
    with ThreadPoolExecutor(1) as pool:
        with batch(database, old):
            advancing = pool.submit(fencing.advance_fence, "new", new)
            wait_until(lambda: fencing._fencing_session is not None, what="the fence waits")
            assert store.release(Lock.LIVE, "new", new)
            third = store.try_acquire(Lock.LIVE, "third", LONG_MS)
            assert third is not None
        assert advancing.result(120) is False
    assert store.status().fence_token == old
    assert store.advance_fence("third", third.token)
    wait_until(lambda: store.status().fence_token == third.token, what="the third is fenced in")
