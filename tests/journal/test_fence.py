"""The fence and batches that are in flight while it moves, on every DBMS."""

import threading

import pytest
from sqlalchemy import Connection, select, text, update

from orthia.config.dialects import Dialect
from orthia.database import SQLITE_BEGIN
from orthia.journal import Fenced, MessageLocation
from orthia.journal.engine.batch import Batch
from orthia.journal.model.unit import AppendedMessage, Unit
from tests.journal.support import QUEUE, WORK, SqlJournalStore, payload
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until

_LOCK_WAITS = {
    Dialect.POSTGRESQL: "SELECT count(*) FROM pg_locks WHERE NOT granted",
    Dialect.MYSQL: "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


@pytest.mark.parametrize("kind", WORK)
def test_a_batch_that_meets_a_moving_fence_is_refused(
    sql_store: SqlJournalStore, kind: str
) -> None:
    """A stale batch waits for the successor's fence to be committed, and then stores nothing.

    A batch that only looked whether its token is there, without a lock, would see the token of
    before and be stored after the successor believes that it is alone.
    """
    journal = sql_store.open()
    (kept,) = sql_store.append(journal, "kept")
    completed: list[int] = []
    successor = sql_store.database.engine.execution_options(**{SQLITE_BEGIN: "IMMEDIATE"})
    with successor.connect() as connection, connection.begin() as transaction:
        connection.execute(
            update(sql_store.fence).where(sql_store.fence.c.id == 4).values(holder_token=2)
        )
        WORK[kind](journal, kept, lambda: completed.append(1))
        _wait_for_lock_waits(sql_store, connection, 1)
        transaction.commit()
    sql_store.loop.run_until(lambda: sql_store.failures, "the refusal")
    assert isinstance(sql_store.failures[0], Fenced)
    assert completed == []
    assert sql_store.rows() == {kept: (QUEUE, 1)}


def _wait_for_lock_waits(store: SqlJournalStore, connection: Connection, waits: int) -> None:
    ask = _LOCK_WAITS.get(store.database.dialect)
    if ask is None:
        return  # SQLite shows nobody who waits, and lets nobody write beside this transaction
    wait_until(
        lambda: int(connection.execute(text(ask)).one()[-1]) == waits,
        what=f"{waits} transactions wait for a lock",
    )


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_the_fence_waits_for_a_batch_in_flight(sql_store: SqlJournalStore) -> None:
    """A fence that moves while a batch is in flight waits until it is over, and then holds.

    Otherwise rows of the old node could appear after the successor has read its first window.
    SQLite has one writer at a time: no moment exists at which both are in a transaction.
    """
    journal = sql_store.open()
    (contested,) = sql_store.append(journal, "contested")
    order: list[str] = []
    row = select(sql_store.messages).where(sql_store.messages.c.seq == contested)

    def advance() -> None:
        sql_store.advance_fence(2)
        order.append("fence")

    successor = threading.Thread(target=advance)
    with sql_store.database.engine.connect() as holder, holder.begin() as transaction:
        holder.execute(row.with_for_update())
        journal.delete([MessageLocation(contested)], lambda: order.append("batch"))
        _wait_for_lock_waits(sql_store, holder, 1)
        successor.start()
        _wait_for_lock_waits(sql_store, holder, 2)
        assert order == []
        transaction.commit()
    successor.join(120)
    assert not successor.is_alive()
    sql_store.loop.run_until(lambda: len(order) == 2, "the batch and the fence")
    assert sql_store.rows() == {}
    journal.append_message(QUEUE, payload(), None)
    sql_store.loop.run_until(lambda: sql_store.failures, "the refusal")
    assert sql_store.rows() == {}


def test_a_batch_that_deletes_what_it_inserts_leaves_nothing(sql_store: SqlJournalStore) -> None:
    """Inserts of a batch come before its deletes, however the statements are cut."""
    journal = sql_store.open()
    seq = journal.next_id()
    journal.close(drain=True)
    batch = Batch()
    batch.add(AppendedMessage(seq, QUEUE, payload(), None))
    deletion = Unit(None, seq)
    deletion.add_deletes([MessageLocation(seq)])
    batch.add(deletion)
    sql_store.store(batch)
    assert sql_store.rows() == {}
    assert batch.marker() is None


def test_a_reserved_id_limit_never_goes_back(sql_store: SqlJournalStore) -> None:
    """A reservation that is carried out late, after a higher one, does not lower the limit."""
    sql_store.open().close(drain=True)
    for limit in (5_000_000, 4_000_000):
        reservation = Unit(None, 0)
        reservation.id_limit = limit
        batch = Batch()
        batch.add(reservation)
        sql_store.store(batch)
    assert sql_store.open().recovery_horizon == 5_000_000
