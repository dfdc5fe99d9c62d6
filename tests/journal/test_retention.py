"""Journal retention: what leaves a queue is in the history, and for how long."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import MetaData, select, update

from config.settings import DatabaseStoreSettings, RetentionSettings
from journal import Fenced, MessageJournal, MessageLocation, Unit
from journal.batch import Batch
from journal.journal import _batch_store, _writer_engine
from journal.records import RemovalReason
from journal.retention import ROWS_IN_STEP, Pruner
from journal.tables import history_table
from journal.unit import AppendedMessage, AppendedUnit
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.support.waiting import wait_until

_A, _E, _D = RemovalReason.ACKNOWLEDGED, RemovalReason.EXPIRED, RemovalReason.DEAD_LETTERED


class KeepingStore(SqlJournalStore):
    """A database whose journal has retention."""

    def __init__(self, s: DatabaseStoreSettings) -> None:
        super().__init__(replace(s, journal_retention=RetentionSettings(7)))
        name = self.settings.message_history_table_name
        self.history = history_table(MetaData(), name, self.database.dialect)

    def kept(self) -> dict[int, tuple[int, str, bytes]]:
        """Return queue, reason and payload by seq."""
        c = self.history.c
        with self.database.engine.connect() as connection:
            found = connection.execute(select(c.seq, c.queue_id, c.reason, c.record))
            return {seq: (queue, reason, bytes(body)) for seq, queue, reason, body in found}

    def age(self, days: int) -> None:
        """Make all that is kept older."""
        c = self.history.c
        with self.database.engine.begin() as connection:
            for seq, removed in connection.execute(select(c.seq, c.removed_at)).all():
                older = update(self.history).where(c.seq == seq)
                connection.execute(older.values(removed_at=removed - timedelta(days=days)))

    def pruner(self, token: int = 1) -> Pruner:
        """Return a pruner that is not started."""
        return Pruner(self.database.engine, self.settings, self.database.dialect, token=token)

    def store_batch(self, *items: AppendedMessage | AppendedUnit, times: int = 1) -> None:
        """Store a batch as a writer does that does not know what became of it."""
        batch = Batch()
        for item in items:
            batch.add(item)
        engine = _writer_engine(self.database, self.settings)
        store = _batch_store(self.database, self.settings, engine, 1)
        store.connect()
        try:
            for _ in range(times):
                store.store(batch)
        finally:
            store.close()
            engine.dispose()


@pytest.fixture
def keeping(store_settings: DatabaseStoreSettings) -> Iterator[KeepingStore]:
    """Give a database with retention, on every DBMS."""
    opened = KeepingStore(store_settings)
    yield opened
    opened.close()


def _do(store: SqlJournalStore, act: Callable[[Callable[[], None]], object]) -> None:
    told: list[int] = []
    act(lambda: told.append(1))
    store.loop.run_until(lambda: told, "the commit")


def test_each_removal_is_kept_with_its_reason(keeping: KeepingStore) -> None:
    """Acknowledged, expired and dead-lettered messages are in the history, payloads included."""
    journal = keeping.open()
    seqs = keeping.append(journal, "a", "b", "c", "stays")
    _do(keeping, lambda done: journal.delete([MessageLocation(seqs[0])], done))
    for seq, reason in ((seqs[1], _E), (seqs[2], _D)):
        unit = Unit()
        unit.delete(MessageLocation(seq), reason)
        _do(keeping, lambda done, unit=unit: _append(journal, unit, done))  # type: ignore[misc]
    assert keeping.kept() == {
        seqs[0]: (QUEUE, _A.value, payload("a")),
        seqs[1]: (QUEUE, _E.value, payload("b")),
        seqs[2]: (QUEUE, _D.value, payload("c")),
    }
    assert list(keeping.rows()) == [seqs[3]]


def _append(journal: MessageJournal, unit: Unit, done: Callable[[], None]) -> None:
    unit.done = done
    journal.append_unit(unit)


def test_a_message_of_several_queues_is_kept_for_each_with_its_body(keeping: KeepingStore) -> None:
    """Each queue's removal keeps the body, the last one included."""
    journal = keeping.open()
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    places = journal.append_unit(unit)
    for place in places:
        _do(keeping, lambda done, place=place: journal.delete([place], done))  # type: ignore[misc]
    assert keeping.kept() == {
        places[0].seq: (QUEUE, _A.value, payload("both")),
        places[1].seq: (OTHER_QUEUE, _A.value, payload("both")),
    }
    assert keeping.rows() == {}


def test_a_message_that_comes_and_goes_in_one_batch_is_kept_once(keeping: KeepingStore) -> None:
    """A batch whose outcome was unknown and that is stored again keeps its messages once."""
    gone = AppendedUnit(None, 5)
    gone.add_deletes([MessageLocation(5)])
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("short"), None), gone, times=2)
    assert keeping.kept() == {5: (QUEUE, _A.value, payload("short"))}
    assert keeping.rows() == {}


def test_few_messages_and_a_removal_in_one_batch_are_kept(keeping: KeepingStore) -> None:
    """A batch small enough for one statement keeps what it removes."""
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("old"), None))
    gone = AppendedUnit(None, 6)
    gone.add_deletes([MessageLocation(5)])
    keeping.store_batch(AppendedMessage(6, QUEUE, payload("new"), None), gone)
    assert keeping.kept() == {5: (QUEUE, _A.value, payload("old"))}


def test_a_fenced_node_keeps_and_prunes_nothing(keeping: KeepingStore) -> None:
    """Once another node is live, nothing moves and nothing is pruned by the old one."""
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("old"), None))
    keeping.advance_fence(2)
    gone = AppendedUnit(None, 6)
    gone.add_deletes([MessageLocation(5)])
    with pytest.raises(Fenced):
        keeping.store_batch(gone)
    assert keeping.kept() == {}
    assert list(keeping.rows()) == [5]
    with pytest.raises(Fenced):
        keeping.pruner().prune()


def test_old_messages_are_pruned_in_steps(keeping: KeepingStore) -> None:
    """What is older than the period goes, a bounded number at a time; what is younger stays."""
    seqs = range(1, ROWS_IN_STEP + 3)
    gone = AppendedUnit(None, seqs[-1])
    gone.add_deletes([MessageLocation(seq) for seq in seqs])
    keeping.store_batch(*(AppendedMessage(seq, QUEUE, b"x", None) for seq in seqs), gone)
    keeping.age(days=6)
    assert keeping.pruner().prune() == 0
    keeping.age(days=2)
    keep = AppendedUnit(None, 9_000)
    keep.add_deletes([MessageLocation(9_000)])
    keeping.store_batch(AppendedMessage(9_000, QUEUE, b"x", None), keep)
    pruner = keeping.pruner()
    assert [pruner.prune() for _ in range(3)] == [ROWS_IN_STEP, 2, 0]
    assert list(keeping.kept()) == [9_000]


def test_the_live_node_prunes_by_itself(keeping: KeepingStore) -> None:
    """An open journal deletes old history without being asked."""
    gone = AppendedUnit(None, 5)
    gone.add_deletes([MessageLocation(5)])
    keeping.store_batch(AppendedMessage(5, QUEUE, b"x", None), gone)
    keeping.age(days=8)
    keeping.open()
    wait_until(lambda: keeping.kept() == {}, what="an empty history")


def test_without_retention_nothing_is_kept(sql_store: SqlJournalStore) -> None:
    """By default the history stays empty."""
    journal = sql_store.open()
    (seq,) = sql_store.append(journal, "a")
    _do(sql_store, lambda done: journal.delete([MessageLocation(seq)], done))
    name = sql_store.settings.message_history_table_name
    history = history_table(MetaData(), name, sql_store.database.dialect)
    with sql_store.database.engine.connect() as connection:
        assert connection.execute(select(history)).all() == []
