"""Rows that another session of the database has locked: their deletes wait, and nothing else."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, select

from orthia.config.dialects import Dialect
from orthia.config.errors import OrthiaError
from orthia.database import write_transaction
from orthia.database.sessions import session_id
from orthia.journal import MessageJournal, MessageLocation, Unit
from orthia.journal.errors import HeldElsewhere
from orthia.journal.model.changes import DuplicateId
from tests.conftest import Servers
from tests.journal.support import (
    OTHER_QUEUE,
    PATIENT_SETTINGS,
    QUEUE,
    SqlJournalStore,
    payload,
)
from tests.support.servers import SERVER_NAMES, SqliteServer
from tests.support.waiting import wait_until

CACHE = 5


@pytest.fixture(params=SERVER_NAMES)
def locking_store(
    request: pytest.FixtureRequest, shared_servers: Servers
) -> Iterator[SqlJournalStore]:
    """Give an empty database whose rows can be locked one by one."""
    server = shared_servers(request.param)
    name = server.create_database()
    opened = SqlJournalStore(server.settings(name, **PATIENT_SETTINGS))
    yield opened
    opened.close()
    server.drop_database(name)


@contextlib.contextmanager
def a_session(store: SqlJournalStore) -> Iterator[Connection]:
    """Open a session of somebody else, in a transaction."""
    with store.database.engine.connect() as connection:
        if store.database.dialect is Dialect.POSTGRESQL:
            connection.exec_driver_sql("SET application_name = 'some GUI'")
            connection.commit()
        with connection.begin() as transaction:
            yield connection
            transaction.rollback()
        connection.invalidate()


def lock(connection: Connection, store: SqlJournalStore, *seqs: int) -> None:
    """Lock messages, as a person's GUI does."""
    for seq in seqs:  # MariaDB would lock all there are of few
        asked = select(store.messages.c.seq).where(store.messages.c.seq == seq).with_for_update()
        assert connection.execute(asked).first() is not None


class Told:
    """What became of units."""

    def __init__(self, store: SqlJournalStore, journal: MessageJournal) -> None:
        self._store = store
        self._journal = journal
        self.done: list[str] = []
        self.refused: list[OrthiaError] = []

    def delete(self, name: str, *seqs: int) -> None:
        """Acknowledge messages."""
        locations = [MessageLocation(seq) for seq in seqs]
        self._journal.delete(locations, lambda: self.done.append(name))

    def unit(self, name: str, unit: Unit) -> None:
        """Append a unit."""
        unit.done = lambda: self.done.append(name)
        unit.refused = self.refused.append
        self._journal.append_unit(unit)

    def wait(self, *names: str) -> None:
        """Wait until so much is done, and see that it was in this order."""
        self._store.loop.run_until(lambda: len(self.done) >= len(names), f"{names} are done")
        assert self.done == list(names)


def test_a_delete_of_a_locked_row_waits_alone(locking_store: SqlJournalStore) -> None:
    """Other deletes and sends go on, and it is done once the other session lets go."""
    store = locking_store
    journal = store.open()
    first, second, third = store.append(journal, "a", "b", "c")
    told = Told(store, journal)
    with a_session(store) as other:
        lock(other, store, second)
        told.delete("second", second)
        told.delete("first", first)
        told.wait("first")
        store.append(journal, "same queue")
        store.append(journal, "another", queue=OTHER_QUEUE)
        told.delete("third", third)
        told.wait("first", "third")
        assert second in store.rows()
        assert journal.locks.put_aside == 1
    told.wait("first", "third", "second")
    assert second not in store.rows()
    assert not store.failures
    wait_until(lambda: not journal.locks.put_aside, what="nothing is put aside")


def test_a_row_that_the_other_session_deletes_is_deleted(locking_store: SqlJournalStore) -> None:
    """Its delete waits for that of the other, and then finds nothing to delete."""
    store = locking_store
    journal = store.open()
    seqs = store.append(journal, *"abc")
    told = Told(store, journal)
    with store.database.engine.connect() as other, other.begin():
        other.execute(delete(store.messages))
        told.delete("all", *seqs)
        told.unit("barrier", Unit(behind_all=True))
        store.append(journal, "new") if store.database.dialect is Dialect.POSTGRESQL else None
    told.wait("all", "barrier")
    assert not set(seqs) & set(store.rows())
    assert not store.failures


def moving(*seqs: int) -> Unit:
    """Return a unit that has a message in another queue in place of some."""
    unit = Unit()
    unit.add_message([OTHER_QUEUE], payload("moved"))
    for seq in seqs:
        unit.delete(MessageLocation(seq))
    return unit


def test_a_unit_that_stores_a_message_is_refused(locking_store: SqlJournalStore) -> None:
    """Its message has its place already, which is not for later; nothing of it is done."""
    store = locking_store
    journal = store.open()
    first, second = store.append(journal, *"ab")
    told = Told(store, journal)
    with a_session(store) as other:
        lock(other, store, second)
        for _ in range(2):
            told.unit("transaction", moving(first, second))
        store.loop.run_until(lambda: len(told.refused) == 2, "both are refused")
        store.settle(journal)
    assert all(isinstance(one, HeldElsewhere) for one in told.refused)
    assert told.done == []
    assert set(store.rows()) == {first, second}
    assert store.bodies(journal, OTHER_QUEUE) == []
    told.unit("again", moving(first, second))
    told.wait("again")
    assert store.bodies(journal, OTHER_QUEUE) == ["moved"]


def test_ids_that_are_locked_are_forgotten_later(locking_store: SqlJournalStore) -> None:
    """A message with an id is stored though the row of the oldest id cannot go."""
    store = locking_store
    journal = store.open()

    def send(name: str) -> None:
        unit = Unit()
        unit.add_message([QUEUE], payload(name))
        unit.guard(DuplicateId(CACHE, name.encode(), 1), range(1))
        told.unit(name, unit)

    told = Told(store, journal)
    send("a")
    told.wait("a")
    (oldest,) = [seq for seq, (queue, _) in store.rows().items() if queue == CACHE]
    with a_session(store) as other:
        lock(other, store, oldest)
        send("b")
        send("c")
        told.wait("a", "b", "c")
        assert oldest in store.rows()
    wait_until(lambda: oldest not in store.rows(), what="the oldest id is forgotten")
    send("d")
    told.wait(*"abcd")
    assert sum(queue == CACHE for queue, _ in store.rows().values()) == 1


def test_who_is_stored_is_told_so_when_a_journal_closes(locking_store: SqlJournalStore) -> None:
    """Though another waits for a lock; else clients would send again what is stored."""
    store = locking_store
    journal = store.open()
    first, second = store.append(journal, *"ab")
    told = Told(store, journal)
    with a_session(store) as other:
        lock(other, store, first)
        told.delete("locked", first)
        told.delete("free", second)
        journal.append_message(QUEUE, payload("c"), lambda: told.done.append("sent"))
        assert not journal.close(drain=True)
        store.loop.run_posted()
        assert sorted(told.done) == ["free", "sent"]


def test_many_locked_rows_are_freed_together(locking_store: SqlJournalStore) -> None:
    """Far more than are looked at one by one."""
    store = locking_store
    journal = store.open()
    seqs = store.append(journal, *map(str, range(300)))
    told = Told(store, journal)
    with a_session(store) as other:
        lock(other, store, *seqs[:200])
        for seq in seqs:
            told.delete(str(seq), seq)
        journal_free = [str(seq) for seq in seqs[200:]]
        store.loop.run_until(lambda: len(told.done) == 100, "the free ones are done")
        assert sorted(told.done, key=int) == journal_free
    store.loop.run_until(lambda: len(told.done) == 300, "all are done")
    assert store.rows() == {}


def test_another_writer_of_sqlite_is_waited_for(tmp_path: Path) -> None:
    """It has the whole file; once it lets go all is stored, in order."""
    server = SqliteServer(tmp_path)
    store = SqlJournalStore(server.settings(server.create_database(), **PATIENT_SETTINGS))
    journal = store.open()
    (first,) = store.append(journal, "a")
    told = Told(store, journal)
    with write_transaction(store.database.engine, "lock the file"):
        told.delete("delete", first)
        journal.append_message(QUEUE, payload("b"), lambda: told.done.append("send"))
        assert store.loop.posted == 0
    told.wait("delete", "send")
    assert not store.failures
    store.close()


def test_who_has_the_lock_is_named(
    locking_store: SqlJournalStore, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, and for a metric."""
    store = locking_store
    journal = store.open()
    (first,) = store.append(journal, "a")
    told = Told(store, journal)
    with a_session(store) as other, caplog.at_level(logging.WARNING, "orthia.journal"):
        number = session_id(other)
        lock(other, store, first)
        told.delete("delete", first)
        wait_until(lambda: journal.locks.sessions, what="who has the lock is known")
        assert [one.session for one in journal.locks.sessions] == [number]
        wait_until(lambda: caplog.records, what="it is in the log")
    told.wait("delete")
    wait_until(lambda: len(caplog.records) == 2, what="its end is in the log")
    begun, ended = (one.getMessage() for one in caplog.records)
    assert f"rows of the journal are locked by session {number} (user " in begun
    assert "its transaction open since " in begun
    assert "1 units that delete them" in begun
    assert "no other session locks rows of the journal any longer" in ended
    assert journal.locks.sessions == ()


def test_a_locked_table_is_waited_for_and_named(
    locking_store: SqlJournalStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be stored meanwhile, and nothing is given up."""
    store = locking_store
    journal = store.open()
    (first,) = store.append(journal, "a")
    told = Told(store, journal)
    is_postgresql = store.database.dialect is Dialect.POSTGRESQL
    statement = (
        f"LOCK TABLE {store.messages.name} IN ACCESS EXCLUSIVE MODE"
        if is_postgresql
        else f"LOCK TABLES {store.messages.name} READ"
    )
    stored: list[int] = []
    with a_session(store) as other, caplog.at_level(logging.WARNING):
        other.exec_driver_sql(statement)
        journal.append_message(QUEUE, payload("b"), lambda: stored.append(1))
        told.delete("delete", first)
        wait_until(
            lambda: "a table of the journal is locked by" in caplog.text, what="it is in the log"
        )
        if is_postgresql:
            assert "a table of the journal is locked by session" in caplog.text
        else:
            assert "INSTALL SONAME 'metadata_lock_info'" in caplog.text
            other.exec_driver_sql("UNLOCK TABLES")
        assert not stored
    told.wait("delete")
    assert stored
    assert not store.failures
