"""What is read of the acknowledgements of applications, on every DBMS that has them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, TextClause, text

from orthia.database import Dialect
from orthia.journal.engine.abc import ApplicationAcks
from orthia.journal.engine.acks import AckReader
from orthia.journal.sql.acks import open_acks
from orthia.journal.sql.windows import WindowQueries
from tests.journal.scripted import ScriptedStore
from tests.journal.support import QUEUE, SqlJournalStore
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES
from tests.support.waiting import wait_until

SERVERS = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)


class Acknowledged:
    """Stored messages, applications that acknowledge them, and the reader."""

    def __init__(self, store: SqlJournalStore) -> None:
        self.store = store
        journal = store.open()
        self.seqs = store.append(journal, *"abcdefgh")
        journal.close(drain=True)
        acks = open_acks(store.database, store.settings)
        assert acks is not None
        self.acks: ApplicationAcks = acks

    @contextmanager
    def application(self) -> Iterator[Connection]:
        """Give a session whose transaction is committed at the end."""
        with self.store.database.engine.begin() as session:
            yield session

    def acknowledge(self, session: Connection, *numbers: int) -> None:
        """Acknowledge messages by their numbers."""
        call = "SELECT" if self.store.database.dialect is Dialect.POSTGRESQL else "CALL"
        for number in numbers:
            session.execute(text(f"{call} orthia_ack('{self.seqs[number]}')"))

    def commit(self, *numbers: int) -> None:
        """Acknowledge each message in a transaction of its own."""
        for number in numbers:
            with self.application() as session:
                self.acknowledge(session, number)

    def read(self, limit: int = 100) -> list[int]:
        """Return the numbers of the messages that the next read finds."""
        found = self.acks.read(limit)
        assert {one.queue_id for one in found} <= {QUEUE}
        return [self.seqs.index(one.seq) for one in found]


@pytest.fixture
def acknowledged(sql_store: SqlJournalStore) -> Iterator[Acknowledged]:
    """Give eight stored messages."""
    made = Acknowledged(sql_store)
    yield made
    made.acks.close()


@SERVERS
def test_one_that_commits_amid_a_round_of_reads_is_found(acknowledged: Acknowledged) -> None:
    """Though the round is beyond its place by then: it began before the others."""
    with acknowledged.application() as late:
        acknowledged.acknowledge(late, 0)
        acknowledged.commit(1, 2, 3, 4)
        assert acknowledged.read(2) == [1, 2]
    seen = set(acknowledged.read(2))

    def is_found() -> bool:
        seen.update(acknowledged.read(2))
        return 0 in seen

    wait_until(is_found, what="the late one is found")
    wait_until(lambda: seen >= {3, 4}, what="so are those behind it")


@SERVERS
def test_one_that_was_open_for_many_rounds_is_found(acknowledged: Acknowledged) -> None:
    """And so is one of the lowest message that was acknowledged lately, read before or not."""
    with acknowledged.application() as late:
        acknowledged.acknowledge(late, 2)
        for number in (4, 5, 6):
            acknowledged.commit(number)
            assert number in acknowledged.read()
    wait_until(lambda: 2 in acknowledged.read(), what="the late one is found")


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_rows_that_are_pruned_are_not_walked_over_again(acknowledged: Acknowledged) -> None:
    """A snapshot that somebody holds keeps them in the table and in its indexes."""
    read = text(
        "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes"
        " WHERE indexrelname = 'orthia_acks_txid'"
    )
    lives = text("SELECT COUNT(*) FROM pg_stat_activity WHERE application_name LIKE '%acknowl%'")

    def asked(statement: TextClause) -> int:
        with acknowledged.application() as session:
            return int(session.execute(statement).scalar_one())

    def blocks() -> int:
        acknowledged.acks.close()  # its session tells now what it has read
        wait_until(lambda: not asked(lives), what="its session has ended")
        return asked(read)

    filled = "INSERT INTO orthia_acks (message_id) SELECT 1000 + n FROM generate_series(1, 20000) n"
    with acknowledged.store.database.engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT COUNT(*) FROM orthia_acks"))
        with acknowledged.application() as session:
            session.execute(text(filled))
        with acknowledged.application() as session:
            session.execute(text("DELETE FROM orthia_acks"))
        assert acknowledged.read() == []
        acknowledged.read()
        before = blocks()
        for number in range(5):
            acknowledged.commit(number)
            assert acknowledged.read() == [number]
        assert blocks() - before < 100


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_the_lowest_that_was_acknowledged_lately_is_read_again(acknowledged: Acknowledged) -> None:
    """A round begins there, so that others are found that commit about then."""
    acknowledged.commit(3)
    assert acknowledged.read() == [3]
    acknowledged.acks._sweep_again = float("inf")  # type: ignore[attr-defined]
    acknowledged.read()
    acknowledged.commit(5)
    assert acknowledged.read() == [3, 5]


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_lately_lasts_over_the_end_of_its_first_part(acknowledged: Acknowledged) -> None:
    """A message above the lowest of the part before is found, though lower ones are pruned."""
    reader, now = acknowledged.acks, 0.0
    reader._clock = lambda: now  # type: ignore[attr-defined]
    acknowledged.commit(2)
    assert acknowledged.read() == [2]
    reader._sweep_again = float("inf")  # type: ignore[attr-defined]
    acknowledged.read()
    with acknowledged.application() as session:
        session.execute(text(f"DELETE FROM MESSAGES WHERE SEQ = {acknowledged.seqs[2]}"))
    reader.prune([acknowledged.seqs[2]])
    now = 3.0
    acknowledged.commit(5)
    assert acknowledged.read() == [5]
    acknowledged.commit(3)
    assert acknowledged.read() == [3, 5]


@SERVERS
def test_what_cannot_be_deleted_at_the_opening_is_left_to_the_loop(
    acknowledged: Acknowledged,
) -> None:
    """A message whose row another session has locked keeps no node from becoming live."""

    acknowledged.commit(0)
    reader = AckReader(acknowledged.acks, post=lambda callback: callback())
    windows = WindowQueries(acknowledged.store.database, acknowledged.store.settings)
    store = ScriptedStore(locked=[{acknowledged.seqs[0]}])
    reader.settle_left(store, windows, ())
    windows.close()
    assert store.calls == ["store"]
    assert store.deleted == []
