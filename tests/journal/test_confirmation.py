"""Nothing is confirmed that no standby has, and nothing by a server that takes no writes."""

from collections.abc import Iterator

import pytest
from sqlalchemy import select
from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.message import LargeBody
from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.journal.model.windows import Window
from orthia.journal.sql.journal import batch_store
from tests.conftest import Servers
from tests.journal.support import (
    ALWAYS,
    QUEUE,
    WORK,
    SqlJournalStore,
    count_connects,
    threads_of,
)
from tests.support.servers import MariadbServer, PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until


class Replicated(SqlJournalStore):
    """A PostgreSQL whose commits can be made to wait for a standby that does not exist."""

    def __init__(self, server: PostgresqlServer) -> None:
        self.server = server
        self.name = server.create_database()
        super().__init__(server.settings(self.name, jdbc_network_timeout=120_000))

    def lose_standby(self) -> None:
        """Have every commit from now on wait."""
        self._set_standbys("nobody")

    def find_standby(self) -> None:
        """Have those that wait go on."""
        self._set_standbys("")

    def waiting(self, name: str) -> list[int]:
        """Return the sessions of this name whose commit waits for a standby."""
        rows = self.server._administrate(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event = 'SyncRep'"
            " AND application_name = %s",
            self.name,
            name,
        )
        return [pid for (pid,) in rows]

    def end_waiting(self, name: str = "orthia journal", by: str = "pg_terminate_backend") -> None:
        """End the session whose commit waits, or its waiting, and see another wait in its place."""
        wait_until(lambda: self.waiting(name), what="a commit waits for the standby")
        (pid,) = self.waiting(name)
        self.server._administrate(f"SELECT {by}(%s)", pid)
        wait_until(
            lambda: any(other != pid for other in self.waiting(name)),
            what="another commit waits behind the one that was lost",
        )

    def _set_standbys(self, names: str) -> None:
        self.server._administrate(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.server._administrate("SELECT pg_reload_conf()")
        wait_until(
            lambda: self.server._administrate("SHOW synchronous_standby_names") == [(names,)],
            what="the configuration is read again",
        )
        # The checkpointer is who tells commits; it reads the configuration before its checkpoint.
        self.server._administrate("CHECKPOINT")

    @override
    def close(self) -> None:
        self.find_standby()
        super().close()


@pytest.fixture
def replicated(templates: Servers) -> Iterator[Replicated]:
    """Give a database of its own server."""
    with PostgresqlServer(template=templates("postgresql")) as server:
        store = Replicated(server)
        yield store
        store.close()


@pytest.mark.parametrize("by", ["pg_terminate_backend", "pg_cancel_backend"])
@pytest.mark.parametrize("work", WORK)
def test_a_commit_that_no_standby_has_is_not_confirmed(
    replicated: Replicated, work: str, by: str
) -> None:
    """Not when its row is found, nor when PostgreSQL reports success, with a notice only.

    The session was ended, and with it only its waiting; or the waiting was. Once the standby is
    back, and has what was committed, the receipt comes.
    """
    journal = replicated.open()
    (consumed,) = replicated.append(journal, "consumed")
    done: list[int] = []
    replicated.lose_standby()
    WORK[work](journal, consumed, lambda: done.append(1))
    for _ in range(2):
        replicated.end_waiting(by=by)
        replicated.loop.run_posted()
        assert done == []
    replicated.find_standby()
    replicated.loop.run_until(lambda: done, "the receipt")
    assert replicated.failures == []


def test_a_large_body_that_no_standby_has_is_not_complete(replicated: Replicated) -> None:
    """Its pieces are stored again, which waits for the standby as well."""
    journal = replicated.open()
    outcomes: list[LargeBody | OrthiaError] = []
    replicated.append(journal, "something, so that all threads are at rest")
    replicated.lose_standby()
    assert journal.large is not None
    upload = journal.large.upload(lambda: None, outcomes.append)
    upload.add(b"x" * PIECE_BYTES)
    upload.finish()
    replicated.end_waiting("orthia large messages")
    replicated.loop.run_posted()
    assert outcomes == []
    replicated.find_standby()
    replicated.loop.run_until(lambda: outcomes, "the body")
    assert isinstance(outcomes[0], LargeBody)


def test_a_confirmation_changes_a_row(sql_store: SqlJournalStore) -> None:
    """Each one: MySQL and MariaDB tell no replica of an UPDATE that changes nothing."""
    sql_store.open().close(drain=True)
    bindings = sql_store.bindings.c
    counter = select(bindings.id).where(bindings.seq == ID_COUNTER_SEQ)
    engine = sql_store.database.dedicated_engine("test", query_timeout_ms=60_000)
    store = batch_store(sql_store.database, sql_store.settings, engine, 1)
    store.connect()
    found = []
    for _ in range(3):
        with sql_store.database.engine.connect() as connection:
            found.append(connection.execute(counter).scalar_one())
        store.confirm()
    store.close()
    assert found == sorted(set(found))


def read_only(server: ServerProcess, name: str, *, switch: bool) -> None:
    """Have the server take writes, or not, and end the sessions there are."""
    if isinstance(server, PostgresqlServer):
        value = "on" if switch else "off"
        server._administrate(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
        server._administrate(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name
        )
        return
    assert isinstance(server, MariadbServer)
    server._administrate(f"SET GLOBAL read_only = {switch:d}")
    sessions = server._administrate(
        "SELECT id FROM information_schema.processlist WHERE db = %s", name
    )
    for (session,) in sessions:
        server.end_session(session)


@pytest.fixture
def private_store(private_server: ServerProcess) -> Iterator[SqlJournalStore]:
    """Give a store on a server that may be made read-only."""
    store = SqlJournalStore(private_server.settings(private_server.create_database()))
    yield store
    store.close()


def name_of(store: SqlJournalStore) -> str:
    """Return the name of a store's database."""
    return str(store.settings.jdbc_connection_url.sqlalchemy_url.database)


@pytest.mark.parametrize("work", WORK)
def test_a_server_that_takes_no_writes_confirms_nothing(
    private_server: ServerProcess, private_store: SqlJournalStore, work: str
) -> None:
    """A primary of before answers, also that a row is there; it is as one that does not answer.

    MariaDB lets this user write all the same: what is written there is lost.
    """
    store, name = private_store, name_of(private_store)
    journal = store.open()
    (consumed,) = store.append(journal, "consumed")
    before = store.rows()
    attempts = count_connects(journal)
    read_only(private_server, name, switch=True)
    done: list[int] = []
    WORK[work](journal, consumed, lambda: done.append(1))
    wait_until(lambda: len(attempts) > 2, what="several attempts")
    assert (store.loop.run_posted(), done) == (0, [])
    assert store.rows() == before
    read_only(private_server, name, switch=False)
    store.loop.run_until(lambda: done, "the receipt")
    assert store.failures == []


def test_no_queue_is_read_from_a_server_that_takes_no_writes(
    private_server: ServerProcess, private_store: SqlJournalStore
) -> None:
    """A primary of before knows none that came since: whoever believed it would pass them by."""
    store, name = private_store, name_of(private_store)
    journal = store.open()
    store.append(journal, "a")
    assert store.bodies(journal) == ["a"]
    attempts: list[int] = []
    windows = threads_of(journal).windows
    window = windows.window

    def count(*arguments: int) -> Window:
        attempts.append(1)
        return window(*arguments)

    windows.window = count  # type: ignore[method-assign,assignment]
    read_only(private_server, name, switch=True)
    answers: list[Window | OrthiaError] = []
    journal.read_window(QUEUE, 0, ALWAYS, 10, 10_000, answers.append)
    wait_until(lambda: len(attempts) > 2, what="several attempts")
    assert (store.loop.run_posted(), answers) == (0, [])
    read_only(private_server, name, switch=False)
    store.loop.run_until(lambda: answers, "the window")
    (found,) = answers
    assert isinstance(found, Window)
    assert [one.record.body for one in found.messages] == [b"a"]


def test_the_message_says_that_the_server_is_read_only(
    private_server: ServerProcess, private_store: SqlJournalStore
) -> None:
    """Which is what an operator has to know: whom the nodes' address leads to."""
    read_only(private_server, name_of(private_store), switch=True)
    with pytest.raises(OrthiaError, match=r"read-only.*primary of before"):
        private_store.open()
