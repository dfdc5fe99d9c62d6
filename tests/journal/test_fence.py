"""The fence and batches that are in flight while it moves, on every DBMS."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Connection, select, text, update

from orthia.config.dialects import Dialect
from orthia.database import SQLITE_BEGIN
from orthia.journal import Fenced, MessageLocation
from orthia.journal.engine.batch import Batch
from orthia.journal.journal import MessageJournal
from orthia.journal.model.unit import AppendedMessage, Unit
from orthia.journal.sql.fence import fenced_engine
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until

_LOCK_WAITS = {
    Dialect.POSTGRESQL: "SELECT count(*) FROM pg_locks WHERE NOT granted",
    Dialect.MYSQL: "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


def _append(kind: str, journal: MessageJournal, consumed: int, done: Callable[[], None]) -> None:
    match kind:
        case "one message":
            journal.append_message(QUEUE, payload(), done)
        case "few messages":
            unit = Unit(done)
            unit.add_message([QUEUE], payload())
            unit.delete(MessageLocation(consumed))
            journal.append_unit(unit)
        case "several queues":
            unit = Unit(done)
            unit.add_message([QUEUE, OTHER_QUEUE], payload())
            journal.append_unit(unit)
        case _:
            journal.delete([MessageLocation(consumed)], done)


@pytest.mark.parametrize("kind", ["one message", "few messages", "several queues", "delete"])
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
        _append(kind, journal, kept, lambda: completed.append(1))
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


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_frozen_nodes_transaction_does_not_hold_the_fence(sql_store: SqlJournalStore) -> None:
    """A transaction that stands still is ended by the server long before the lease is."""
    short = replace(sql_store.settings, jdbc_lock_expiration=20_000)
    engine = fenced_engine(sql_store.database, short, "journal", 1)
    with engine.connect() as frozen:
        frozen.execute(select(sql_store.fence).with_for_update(read=True))
        sql_store.advance_fence(2)
        frozen.invalidate()


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
