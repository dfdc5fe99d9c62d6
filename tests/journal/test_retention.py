"""Journal retention: what leaves a queue is in the history, and for how long."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, select, text, update

from orthia.config.store_settings import DatabaseStoreSettings, RetentionSettings
from orthia.journal import Fenced, MessageJournal, MessageLocation
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.retention import (
    BYTES_IN_STEP,
    ROWS_IN_STEP,
    Tally,
    rows_to_prune,
)
from orthia.journal.model.codec import decode_pruned_through
from orthia.journal.model.history import ROW_BYTES, Kept, KeptRow
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import AppendedMessage, Unit
from orthia.journal.model.xid import Xid
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.history import history_totals
from orthia.journal.sql.journal import batch_store
from orthia.journal.sql.postgresql import PLAN_FOR_ROWS, PostgresqlStore
from orthia.journal.sql.tables import history_table
from orthia.journal.xa import XaTransactions
from tests.journal.keeping import KeepingStore, gone
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.support.waiting import wait_until

_A, _E, _D = RemovalReason.ACKNOWLEDGED, RemovalReason.EXPIRED, RemovalReason.DEAD_LETTERED


_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def keeping(store_settings: DatabaseStoreSettings) -> Iterator[KeepingStore]:
    """Give a database with retention, on every DBMS."""
    opened = KeepingStore(store_settings)
    yield opened
    opened.close()


@pytest.fixture
def limited(store_settings: DatabaseStoreSettings) -> Iterator[KeepingStore]:
    """Give a database that keeps a bit more than two messages of 1,000 bytes."""
    limit = RetentionSettings(storage_limit=2 * (1_000 + ROW_BYTES) + 500)
    opened = KeepingStore(store_settings, limit)
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


def test_what_a_prepared_transaction_acknowledges_leaves_with_its_commit(
    keeping: KeepingStore,
) -> None:
    """In doubt, and rolled back, nothing has left; committed, it has."""
    journal = keeping.open()
    seqs = keeping.append(journal, "committed", "rolled back")
    transactions = XaTransactions(journal)
    xids = [Xid(1, name, b"") for name in (b"c", b"r")]
    for xid, seq in zip(xids, seqs, strict=True):
        unit = Unit()
        unit.delete(MessageLocation(seq))
        transactions.prepare(xid, unit)
    keeping.settle(journal)
    assert keeping.kept() == {}
    transactions.commit(xids[0])
    transactions.rollback(xids[1])
    keeping.settle(journal)
    assert keeping.kept() == {seqs[0]: (QUEUE, _A.value, payload("committed"))}
    assert list(keeping.rows()) == [seqs[1]]


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
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("short"), None), gone(5), times=2)
    assert keeping.kept() == {5: (QUEUE, _A.value, payload("short"))}
    assert keeping.rows() == {}


def test_few_messages_and_a_removal_in_one_batch_are_kept(keeping: KeepingStore) -> None:
    """A batch small enough for one statement keeps what it removes."""
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("old"), None))
    keeping.store_batch(AppendedMessage(6, QUEUE, payload("new"), None), gone(5))
    assert keeping.kept() == {5: (QUEUE, _A.value, payload("old"))}


def test_a_message_whose_body_is_missing_can_leave(keeping: KeepingStore) -> None:
    """A damaged table stops no node: what there is of the message is kept."""
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    (place, _) = unit.place(5)
    keeping.store_batch(unit)
    keeping.remove(5)
    leaves = Unit(None, place.seq)
    leaves.add_deletes([place])
    keeping.store_batch(leaves)
    assert list(keeping.kept()) == [place.seq]


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_no_statement_of_the_writer_reads_the_whole_table(keeping: KeepingStore) -> None:
    """Also not one that was planned while the table was empty, as on the day of installation."""
    with keeping.database.engine.begin() as connection:
        connection.execute(text("ANALYZE messages"))
    engine = fenced_engine(keeping.database, keeping.settings, "journal", 1)
    writer = batch_store(keeping.database, keeping.settings, engine, 1)
    assert isinstance(writer, PostgresqlStore)
    writer.connect()
    plans(writer)
    batch = Batch()
    for seq in range(1, PLAN_FOR_ROWS + 1):
        batch.add(AppendedMessage(seq, QUEUE, b"x", None))
    writer.store(batch)
    found = plans(writer)
    writer.close()
    engine.dispose()
    for plan in found:
        assert "messages_pkey" in plan
        assert not re.search("Seq Scan|Hash|messages_queue_seq", plan), plan


def plans(writer: PostgresqlStore) -> list[str]:
    """Return how each statement is done, in the session that prepared it."""
    seqs, records = "ARRAY[1, 2]::bigint[]", "ARRAY[]::bytea[]"
    found = []
    for statement in (
        f"orthia_delete({seqs})",
        f"orthia_put_and_delete({seqs}, {seqs}, {records}, {seqs})",
        f"orthia_keep({seqs}, 'expired')",
        f"orthia_delete_unfenced({seqs})",
        f"orthia_delete_bodies({seqs}, {seqs})",
    ):
        writer._cursor.execute(f"EXPLAIN EXECUTE {statement}")
        found.append("\n".join(line for (line,) in writer._cursor.fetchall()))
    return found


def test_a_fenced_node_keeps_and_prunes_nothing(keeping: KeepingStore) -> None:
    """Once another node is live, nothing moves and nothing is pruned by the old one."""
    keeping.store_batch(AppendedMessage(5, QUEUE, payload("old"), None))
    keeping.advance_fence(2)
    with pytest.raises(Fenced):
        keeping.store_batch(gone(5))
    assert keeping.kept() == {}
    assert list(keeping.rows()) == [5]
    with pytest.raises(Fenced):
        keeping.pruner().prune()


def test_old_messages_are_pruned_in_steps(keeping: KeepingStore) -> None:
    """What is older than the period goes, a bounded number at a time; what is younger stays."""
    keeping.keep(*repeat(b"x", ROWS_IN_STEP + 2))
    keeping.age(days=6)
    assert keeping.pruner().prune() == 0
    keeping.age(days=2)
    keeping.keep(b"x", first=9_000)
    pruner = keeping.pruner()
    assert [pruner.prune() for _ in range(3)] == [ROWS_IN_STEP, 2, 0]
    assert list(keeping.kept()) == [9_000]


def test_above_the_storage_limit_the_oldest_go(limited: KeepingStore) -> None:
    """The messages that left their queue first go, until what is left is within the limit."""
    for first in range(1, 6):
        limited.keep(bytes(1_000), first=first)
    pruner = limited.pruner()
    pruner.count()
    assert pruner.totals is not None
    assert pruner.totals.kept == Kept(5, 5_000)
    assert [pruner.prune() for _ in range(2)] == [3, 0]
    assert list(limited.kept()) == [4, 5]
    limited.keep(bytes(1_500), first=6)
    pruner.count()
    assert [pruner.prune() for _ in range(2)] == [1, 0]
    assert list(limited.kept()) == [5, 6]


def test_the_count_of_a_long_history_is_exact(
    keeping: KeepingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting in steps counts each message once, also where many left at one instant."""
    monkeypatch.setattr("orthia.journal.sql.history.COUNT_STEP_ROWS", 3)
    for first, messages in ((1, 2), (10, 7), (20, 1), (30, 3)):
        keeping.keep(*repeat(b"four", messages), first=first)
    totals = history_totals(keeping.database, keeping.settings)
    assert totals.kept == Kept(13, 52)
    assert totals.oldest_removed_at == min(keeping.removed().values())


def test_the_row_size_that_is_counted_is_that_of_the_body(keeping: KeepingStore) -> None:
    """Each queue's copy of a message of several queues counts with its body."""
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    places = unit.place(5)
    leaves = Unit(None, unit.last_seq)
    leaves.add_deletes(places)
    keeping.store_batch(unit, leaves)
    assert history_totals(keeping.database, keeping.settings).kept == Kept(
        2, 2 * len(payload("both"))
    )


def _ledger(*ages_seconds: int) -> tuple[Tally, list[datetime], list[int]]:
    """Return a tally of messages of one byte each, when they were removed, and what it looked at.

    The last counts how many messages were looked at, a look at a time.
    """
    removed = [_NOON - timedelta(seconds=age) for age in ages_seconds]
    looked_at: list[int] = []

    def count(after: datetime | None, up_to: datetime | None) -> Kept:
        found = [
            one
            for one in removed
            if (after is None or one > after) and (up_to is None or one <= up_to)
        ]
        looked_at.append(len(found))
        return Kept(len(found), len(found))

    return Tally(count), removed, looked_at


def test_what_was_counted_once_is_not_looked_at_again() -> None:
    """A look costs what is new, however much is kept."""
    tally, removed, looked_at = _ledger(7200, 3600, 300, 30, 10)
    tally.refresh(_NOON)
    assert tally.kept.rows == 5
    removed.append(_NOON + timedelta(seconds=20))
    looked_at.clear()
    tally.refresh(_NOON + timedelta(seconds=30))
    assert tally.kept.rows == 6
    assert sum(looked_at) == 3
    tally.pruned([KeptRow(1, removed.pop(0), 1), KeptRow(6, removed.pop(), 1)])
    assert tally.kept == Kept(4, 4)


@pytest.mark.parametrize("later", [timedelta(seconds=-10), timedelta(days=1)])
def test_everything_is_counted_anew_once_a_day_and_when_the_clock_goes_back(
    later: timedelta,
) -> None:
    """Messages that a clock that was set back puts among the counted ones are found again."""
    tally, removed, _ = _ledger(7200, 300)
    tally.refresh(_NOON)
    removed.append(_NOON - timedelta(minutes=30))
    tally.refresh(_NOON + timedelta(seconds=30))
    assert tally.kept.rows == 2
    tally.refresh(_NOON + later)
    assert tally.kept.rows == 3


def test_a_step_takes_few_large_messages() -> None:
    """A step's messages are bounded by their bytes too, one large message excepted."""
    large = [KeptRow(seq, _NOON, BYTES_IN_STEP // 2) for seq in range(1, 6)]
    assert rows_to_prune(large, None, 2**40) == large[:2]
    (huge,) = [KeptRow(1, _NOON, 9 * BYTES_IN_STEP)]
    assert rows_to_prune([huge, huge], _NOON + timedelta(1), 0) == [huge]


def test_a_message_is_removed_when_its_batch_is_stored(keeping: KeepingStore) -> None:
    """The time is the database's, of the removal, and not when the message was written."""
    keeping.store_batch(AppendedMessage(5, QUEUE, b"x", None))
    before = keeping.database.server_now()
    keeping.store_batch(gone(5))
    assert before <= keeping.removed()[5] <= keeping.database.server_now()


def test_a_fenced_step_of_pruning_ends_within_the_lease(
    keeping: KeepingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning takes its session where the writer does: none that may hold the fence for long."""
    taken: list[str] = []
    dedicated = keeping.database.dedicated_engine

    def take(purpose: str, **limits: Any) -> Engine:
        assert limits["idle_in_transaction_ms"] < keeping.settings.jdbc_lock_expiration
        taken.append(purpose)
        return dedicated(purpose, **limits)

    monkeypatch.setattr(keeping.database, "dedicated_engine", take)
    keeping.open()
    assert taken == ["journal", "large messages", "message times", "history"]


def test_the_live_node_prunes_by_itself(keeping: KeepingStore) -> None:
    """An open journal deletes old history without being asked."""
    keeping.keep(b"x")
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


def _latest(keeping: KeepingStore) -> datetime:
    return max(keeping.removed().values())


def test_what_leaves_later_is_later_in_the_history_whatever_the_clock_does(
    keeping: KeepingStore,
) -> None:
    """A clock that was an hour ahead: what leaves next is still later than all that left before.

    So whoever read the history up to some time finds nothing new below it.
    """
    keeping.keep(b"one", b"two", first=1)
    ahead = _latest(keeping) + timedelta(hours=1)
    with keeping.database.engine.begin() as connection:
        connection.execute(update(keeping.history).values(removed_at=ahead))
    before = ahead
    for first, reason in ((10, None), (20, _E), (30, _D)):
        leaves = gone(first, first + 1)
        if reason is not None:
            # Two reasons, hence two statements of one transaction.
            leaves.reasons = {first: reason}
        stored = (AppendedMessage(seq, QUEUE, b"x", None) for seq in (first, first + 1))
        keeping.store_batch(*stored, leaves)
        times = keeping.removed()
        assert min(times[first], times[first + 1]) > before
        before = _latest(keeping)
    assert before - ahead < timedelta(minutes=1)


def test_pruning_says_up_to_when(keeping: KeepingStore) -> None:
    """The counter's row tells up to when the history is gone; nobody else minds it."""
    keeping.open().close(drain=True)
    keeping.keep(b"old", first=1)
    old = _latest(keeping)
    bindings = keeping.bindings
    ask = select(bindings.c.record).where(bindings.c.seq == 0)

    def pruned_through() -> datetime | None:
        with keeping.database.engine.connect() as connection:
            return decode_pruned_through(bytes(connection.execute(ask).scalar_one()))

    assert pruned_through() is None
    keeping.age(days=8)
    pruner = keeping.pruner()
    pruner.count()
    assert pruner.prune() == 1
    assert pruned_through() == old - timedelta(days=8)
    assert keeping.open().bindings == []
    assert pruned_through() == old - timedelta(days=8)
