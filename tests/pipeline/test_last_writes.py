"""When each epoch wrote last, of what is left of it: on every DBMS, with few small statements."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import MetaData, delete, func, insert, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.events import LiveLockObtained
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.sources.last_writes import last_writes
from orthia.pipeline.sources.store import StoreReference
from tests.journal.keeping import KeepingStore
from tests.journal.support import SqlJournalStore


def micros(at: datetime) -> int:
    """Return an instant in microseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def asked(reference: StoreReference) -> dict[int, int]:
    """Return what a report is told."""
    settings = reference.settings()
    database = Database.from_settings(settings)
    try:
        return last_writes(database, settings)
    finally:
        database.dispose()


def test_the_last_row_of_each_epoch_is_found(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """However many there are of it; of an epoch without any nothing is said."""
    assert asked(reference) == {}
    for token, count in ((1, 5), (2, 1), (4, 40), (5, 1)):
        store.advance_fence(token)
        journal = store.open(token=token)
        store.append(journal, *map(str, range(count)))
        journal.close(drain=True)
    columns = store.messages.c
    ask = select(columns.epoch, func.max(columns.written_at)).group_by(columns.epoch)
    with store.database.engine.connect() as connection:
        expected = {epoch: micros(at) for epoch, at in connection.execute(ask)}
    assert sorted(expected) == [1, 2, 4, 5]
    assert asked(reference) == expected
    with store.database.engine.begin() as connection:
        connection.execute(delete(store.messages).where(columns.epoch.in_([2, 5])))
    assert asked(reference) == {epoch: expected[epoch] for epoch in (1, 4)}


def test_what_left_its_queue_is_a_write_of_whoever_served_then(
    store_settings: DatabaseStoreSettings,
) -> None:
    """An acknowledgement is the last proof of a node whose messages are all gone."""
    store = KeepingStore(store_settings)
    dialect = store.database.dialect
    log = failover_log(MetaData(), store.settings.failover_log_table_name, dialect)
    event = {"node_time": "x", "node_name": "a", "role": "live", "code": "AMQ221035"}
    event |= {"level": "INFO", "event": LiveLockObtained.__name__, "detail": "{}"}
    store.keep(b"x", first=1)
    store.keep(b"y", first=2)
    removed = store.removed()
    start = max(removed.values()) + timedelta(microseconds=1)
    with store.database.engine.begin() as connection:
        for token, at in ((1, min(removed.values()) - timedelta(seconds=1)), (2, start)):
            row = event | {"holder_id": f"{token}", "token": token, "db_time": at}
            connection.execute(insert(log), [row | {"event_seq": 1}])
    found = last_writes(store.database, store.settings)
    # Nothing has left since token 2 began.
    assert found == {1: micros(removed[2])}
    store.close()
