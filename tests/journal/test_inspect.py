"""What the tables hold, as the CLI lists it."""

import pytest

import orthia.journal.sql.inspect
from orthia.config.address_settings import RoutingType
from orthia.database import Database
from orthia.journal import QueueBinding, Unit
from orthia.journal.model.changes import DuplicateId
from orthia.journal.model.codec import IdCacheBinding
from orthia.journal.sql.inspect import QueueTotals, list_queues
from tests.journal.support import OTHER_QUEUE, SqlJournalStore, payload


@pytest.mark.parametrize("chunk_rows", [2, 3, 50_000])
def test_queues_are_listed_with_their_totals(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    """Bound and unbound queues are listed, with exact counts and sizes, chunked or not."""
    monkeypatch.setattr(orthia.journal.sql.inspect, "CHUNK_ROWS", chunk_rows)
    opened = sql_store.open()
    busy = QueueBinding(opened.next_id(), "busy", "busy", RoutingType.ANYCAST)
    idle = QueueBinding(opened.next_id(), "idle", "idle", RoutingType.ANYCAST)
    opened.add_binding(busy)
    opened.add_binding(idle)
    before = sql_store.database.server_now()
    sql_store.append(opened, "a", "bb", "ccc", queue=busy.queue_id)
    unit = Unit()
    unit.add_message([busy.queue_id, OTHER_QUEUE], payload("shared"))
    opened.append_unit(unit)
    sql_store.settle(opened)
    opened.close(drain=True)

    listing = Database.from_settings(sql_store.settings)
    try:
        unbound, first, second = list_queues(listing, sql_store.settings)
    finally:
        listing.dispose()
    sizes = [len(payload(text)) for text in ("a", "bb", "ccc", "shared")]
    assert (unbound.queue_id, unbound.binding) == (OTHER_QUEUE, None)
    assert (unbound.messages, unbound.payload_bytes) == (1, sizes[-1])
    assert (first.binding, first.messages, first.payload_bytes) == (busy, 4, sum(sizes))
    assert first.oldest_written_at is not None
    assert before <= first.oldest_written_at <= sql_store.database.server_now()
    assert second == QueueTotals(idle.queue_id, idle, 0, 0, None)


def test_listing_needs_no_lease(sql_store: SqlJournalStore) -> None:
    """The tables can be read whoever is live, and nothing is changed by it."""
    sql_store.append(sql_store.open(), "a")
    before = sql_store.rows()
    sql_store.advance_fence(99)
    assert [queue.messages for queue in list_queues(sql_store.database, sql_store.settings)] == [1]
    assert sql_store.rows() == before


def test_duplicate_ids_are_no_messages_of_a_queue(sql_store: SqlJournalStore) -> None:
    """An operator is not shown a queue that nobody knows for each address that has such ids."""
    opened = sql_store.open()
    busy = QueueBinding(opened.next_id(), "busy", "busy", RoutingType.ANYCAST)
    opened.add_binding(busy)
    cache = IdCacheBinding(opened.next_id(), "busy")
    opened.add_binding(cache)
    unit = Unit()
    unit.add_message([busy.queue_id], payload("once"))
    unit.guard(DuplicateId(cache.cache_id, b"an id".ljust(16), 10), range(1))
    opened.append_unit(unit)
    sql_store.settle(opened)
    opened.close(drain=True)
    (only,) = list_queues(sql_store.database, sql_store.settings)
    assert (only.binding, only.messages) == (busy, 1)
