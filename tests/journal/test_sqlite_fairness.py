"""The journal on SQLite, which has one writer at a time, and others who must write too."""

import sqlite3
import threading
from functools import partial

import pytest
from sqlalchemy import update

from orthia.database import Database, sqlite_turnstile, write_transaction
from orthia.journal.model.unit import Unit
from orthia.journal.sql.sqlite import SqliteStore
from tests.journal.support import QUEUE, SqlJournalStore, payload
from tests.support.waiting import wait_until

RENEWALS = 30
BATCHES_PER_RENEWAL = 25
"""Generous: a renewal waits for the batch under way and then for its own turn at the file."""


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_renewals_get_in_under_full_load(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the journal always has a next batch, each renewal waits for a few batches only."""
    # For so long SQLite's own waiting sleeps at a time.
    assert sqlite_turnstile.GIVE_WAY_SECONDS > 0.1
    # A renewal may be as slow as a machine that stands still: no bound is to end its turn.
    for bound in ("GIVE_WAY_SECONDS", "_ENTER_SECONDS"):
        monkeypatch.setattr(f"orthia.database.sqlite_turnstile.{bound}", 60.0)
    journal = sql_store.open()
    batches: list[int] = []
    journal.register_batch_listener(lambda report: batches.append(report.rows))
    enough = threading.Event()

    def keep_sending() -> None:
        if not enough.is_set():
            journal.append_message(QUEUE, payload("x" * 10_000), keep_sending)

    def run_loop() -> None:
        for _ in range(20):
            keep_sending()
        sql_store.loop.run_until(enough.is_set, "the end of the load")

    def more_batches_than(count: int) -> bool:
        return len(batches) > count

    other_node = Database.from_settings(sql_store.settings)
    engine = other_node.dedicated_engine("lease", query_timeout_ms=120_000)
    renewal = update(sql_store.fence).where(sql_store.fence.c.id == 1).values(holder_id="other")
    waits: list[int] = []
    loop = threading.Thread(target=run_loop)
    loop.start()
    try:
        for _ in range(RENEWALS):
            started = len(batches)
            wait_until(partial(more_batches_than, started + 5), what="the journal is busy")
            # Counted from when the renewal has its turn to when it has the file, and no further:
            # what is stored before and after does not keep it waiting.
            with other_node.turnstile.urgent():
                before = len(batches)
                with write_transaction(engine, "renew") as connection:
                    connection.execute(renewal)
                    waits.append(len(batches) - before)
    finally:
        enough.set()
        loop.join(120)
        other_node.dispose()
    sql_store.settle(journal)
    assert max(waits) <= BATCHES_PER_RENEWAL
    assert not sql_store.failures


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_batch_takes_few_statements(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of them the event loop may take the interpreter: each may be a long wait."""
    statements: list[str] = []
    use = SqliteStore._use

    def traced(store: SqliteStore, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)
        use(store, connection)

    monkeypatch.setattr(SqliteStore, "_use", traced)
    journal = sql_store.open()
    for many in (True, False):
        unit = Unit()
        for number in range(1_500):
            unit.add_message([QUEUE], payload(str(number)))
            if many:
                unit.add_message([QUEUE, QUEUE + 1], payload("shared"))
        locations = journal.append_unit(unit)
        sql_store.settle(journal)
        journal.delete(locations)
        sql_store.settle(journal)
    assert not sql_store.rows()
    changes = [one for one in statements if one.startswith(("INSERT", "DELETE", "WITH"))]
    assert len(changes) < 15_000 / 50
    assert not sql_store.failures
