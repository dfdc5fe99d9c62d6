"""Rows are found by their keys on PostgreSQL, though it takes their tables for empty.

It does where a table was empty when it was analyzed, as tables of a broker are most of the time.
Then all indexes look the same to it, and one whose second column is the key is walked through.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple

import pytest
from sqlalchemy import text

from orthia.config.store_settings import DatabaseStoreSettings, RetentionSettings
from orthia.journal import MessageLocation, Unit
from orthia.journal.engine.batch import batch_of
from orthia.journal.engine.locks import RowKey, RowKind
from orthia.journal.model.changes import Body
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.records import RemovalReason
from orthia.journal.sql.acks import open_acks
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.journal import batch_store
from orthia.journal.sql.walk import LAST_SEQ
from orthia.journal.sql.windows import WindowQueries
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("server", ["postgresql"], indirect=True)
_ROWS: Final = "generate_series(1, 1000) AS n"
_FILLED: Final = {
    "messages": "(seq, id, record_type, user_record_type, queue_id, epoch, record)"
    f" SELECT n, n, 11, 31, {QUEUE}, 1, decode('{payload().hex()}', 'hex') FROM {_ROWS}",
    "messages_times": "(seq, queue_id, kind, at_ms, attempts, retry_ms)"
    f" SELECT n, {QUEUE}, 0, 0, 1, 0 FROM {_ROWS}",
    "orthia_outbox": f"(destination, body) SELECT 'q', 'x' FROM {_ROWS}",
    "orthia_acks": f"(message_id) SELECT n FROM {_ROWS}",
}
"""Tables with a second index that has their key."""


class Scans(NamedTuple):
    """How often indexes were used."""

    by_key: int
    by_others: int


class Analyzed:
    """A database whose tables are full, and were analyzed when they were empty."""

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        self.store = SqlJournalStore(settings)
        with self.store.database.engine.begin() as session:
            for table, rows in _FILLED.items():
                session.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
                session.execute(text(f"INSERT INTO {table} {rows}"))
                session.execute(text(f"DELETE FROM {table}"))
        self._analyze()
        with self.store.database.engine.begin() as session:
            for table, rows in _FILLED.items():
                session.execute(text(f"INSERT INTO {table} {rows}"))
            outbox = session.execute(text("SELECT id FROM orthia_outbox ORDER BY id"))
            self.outbox: list[int] = list(outbox.scalars())

    def _analyze(self) -> None:
        with self.store.database.engine.begin() as session:
            session.execute(text(f"ANALYZE {', '.join(_FILLED)}"))

    def scans(self, *tables: str) -> Scans:
        """Return how often the tables' indexes were used, once all sessions have told."""
        self.store.database.dispose()
        others = text(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        used = text(
            "SELECT SUM(idx_scan) FILTER (WHERE indisprimary),"
            " SUM(idx_scan) FILTER (WHERE NOT indisprimary)"
            " FROM pg_stat_user_indexes JOIN pg_index USING (indexrelid)"
            " WHERE relname = ANY(:tables)"
        )
        with self.store.database.engine.connect() as session:
            wait_until(lambda: session.execute(others).scalar_one() == 0, what="all have ended")
            session.commit()
            return Scans(*session.execute(used, {"tables": list(tables)}).one())


@pytest.fixture(params=[None, RetentionSettings(storage_limit=10**9)])
def analyzed(
    request: pytest.FixtureRequest, store_settings: DatabaseStoreSettings
) -> Iterator[Analyzed]:
    """Give a database, without retention and with it."""
    made = Analyzed(replace(store_settings, journal_retention=request.param))
    yield made
    made.store.close()


def _units(outbox: list[int]) -> Iterator[Unit]:
    """Yield units of which each is stored in a way of its own."""
    for seqs in ([5], [6, 7]):
        unit = Unit()
        unit.add_deletes(MessageLocation(seq) for seq in seqs)
        yield unit
    together = Unit()
    together.add_message([QUEUE], payload())
    together.delete(MessageLocation(8))
    yield together
    moved = Unit()
    moved.add_message([OTHER_QUEUE], payload())
    moved.move(MessageLocation(9, is_timed=True), RemovalReason.DEAD_LETTERED)
    yield moved
    body = Unit()
    body.delete(MessageLocation(11, body=Body(10, 1)))
    yield body
    for rows in (outbox[:1], outbox[1:100]):
        relayed = Unit()
        for row in rows:
            relayed.add_message([QUEUE], payload())
            relayed.take_from_outbox(row)
        yield relayed


def test_the_writer_finds_rows_by_their_keys(analyzed: Analyzed) -> None:
    """Those it deletes of every table, those that others may have locked, and acknowledgements."""
    with analyzed.store.database.engine.begin() as session:
        session.execute(text("DELETE FROM orthia_acks WHERE message_id = 9"))
    before = analyzed.scans(*_FILLED)
    store, settings = analyzed.store, analyzed.store.settings
    engine = fenced_engine(store.database, settings, "journal", 1)
    with closing(batch_store(store.database, settings, engine, 1)) as batches:
        batches.connect()
        seq = 5_000
        for unit in _units(analyzed.outbox):
            unit.place(seq)
            seq = unit.last_seq + 1
            batches.store(batch_of([unit]))
        keys = [RowKey(kind, 12) for kind in (RowKind.MESSAGE, RowKind.TIME)]
        keys.append(RowKey(RowKind.OUTBOX, analyzed.outbox[-1]))
        assert batches.locked(keys) == set()
    engine.dispose()
    after = analyzed.scans(*_FILLED)
    assert after.by_others == before.by_others
    assert after.by_key > before.by_key
    assert len(store.rows()) == 1_000 - 7 + 2 + 100


def test_applications_acknowledge_by_the_key(analyzed: Analyzed) -> None:
    """And so is it read and pruned, with the messages it is about."""
    store, settings = analyzed.store, analyzed.store.settings
    with store.database.engine.begin() as session:
        session.execute(text("DELETE FROM orthia_acks"))
    before, of_messages = analyzed.scans("messages", "orthia_acks"), analyzed.scans("messages")
    with store.database.engine.begin() as session:
        for seq in range(1, 20):
            session.execute(text(f"SELECT orthia_ack('{seq}')"))
    acks = open_acks(store.database, settings)
    assert acks is not None
    with closing(acks), closing(WindowQueries(store.database, settings)) as windows:
        assert acks.prune([1, 2, 2_000]) == {2_000}
        assert windows.acknowledged([2, 5, 2_000]) == {2, 5}
        assert [one.message.seq for one in windows.stored([3, 4, 2_000])] == [3, 4]
    after = analyzed.scans("messages", "orthia_acks")
    assert after.by_others == before.by_others
    assert after.by_key > before.by_key
    with closing(acks):
        assert [one.queue_id for one in acks.read(100)] == [QUEUE] * 19
    assert analyzed.scans("messages").by_others == of_messages.by_others


def test_messages_whose_moment_has_come_are_read_by_their_keys(analyzed: Analyzed) -> None:
    """Their moments are found by an index of theirs."""
    store, settings = analyzed.store, analyzed.store.settings
    with store.database.engine.begin() as session:
        session.execute(text("UPDATE messages_times SET kind = 2, at_ms = 1 WHERE seq < 4"))
    before = analyzed.scans("messages")
    with closing(WindowQueries(store.database, settings)) as windows:
        found = windows.reached(MomentKind.EXPIRES, MomentPlace(0, 0), LAST_SEQ, 100, 10**6)
    assert len(found.messages) == 3
    assert analyzed.scans("messages").by_others == before.by_others
