"""Every unit is stored exactly once, wherever the connection or the server is lost."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import text
from typing_extensions import override

from orthia.config.address_settings import RoutingType
from orthia.config.dialects import Dialect
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, StoreUnavailable, sessions
from orthia.database.sessions import fenced_mark, user_lock_name
from orthia.journal import BatchReport, Fenced, MessageLocation, QueueBinding, Unit
from orthia.journal.journal import MessageJournal
from orthia.journal.sql.journal import open_journal
from tests.conftest import Servers
from tests.journal.proxy import Cut, CuttingProxy
from tests.journal.support import (
    OTHER_QUEUE,
    PATIENT,
    PATIENT_SETTINGS,
    QUEUE,
    SqlJournalStore,
    payload,
)
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES, ServerProcess, StoreServer
from tests.support.waiting import wait_until

LONE_INSERT = {"postgresql": b"EXECUTE orthia_put(", "mysql": b"LOCK IN SHARE MODE"}
"""What only the statement contains that stores a lone message and commits itself."""

WRITER_SAYS = {
    "postgresql": [b"PREPARE orthia_put"],
    "mysql": [b"LOCK IN SHARE MODE", b"FOR SHARE"],  # the latter by SQLAlchemy, to MySQL
}
"""What the journal's writer alone sends: not the search for large bodies nobody needs."""

ROUNDS = 5
"""A machine may stand still for longer than a server that ends silent sessions waits: not in each.
"""


class ProxiedStore(SqlJournalStore):
    """A migrated database whose journal is reached through a proxy."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        settings = server.settings(name, **PATIENT_SETTINGS)
        super().__init__(settings)
        self.proxy = CuttingProxy(server.port, writer_says=WRITER_SAYS[self.database.dialect.value])
        through = server.url(name).replace(f":{server.port}/", f":{self.proxy.port}/")
        if self.database.dialect is Dialect.MYSQL:
            through += "?sslMode=DISABLED"  # what the proxy cannot read it cannot cut
        self.through_proxy = replace(settings, jdbc_connection_url=DatabaseUrl.parse(through))
        self.proxied = Database.from_settings(self.through_proxy)
        self.reports: list[BatchReport] = []

    def open_proxied(self) -> MessageJournal:
        """Open a journal through the proxy."""
        journal = open_journal(
            self.proxied,
            self.through_proxy,
            token=1,
            still_valid=lambda: self.lease_valid,
            post=self.loop.post,
            on_failure=self.failures.append,
            limits=PATIENT,
        )
        journal.register_batch_listener(self.reports.append)
        self._opened.append(journal)
        return journal

    @override
    def close(self) -> None:
        super().close()
        self.proxied.dispose()
        self.proxy.close()


@pytest.fixture(params=SERVER_NAMES)
def dbms(request: pytest.FixtureRequest) -> str:
    """Give the DBMS that are reached by a network."""
    name: str = request.param
    return name


@pytest.fixture
def proxied_store(dbms: str, shared_servers: Servers) -> Iterator[ProxiedStore]:
    """Give a database behind a proxy."""
    server = shared_servers(dbms)
    name = server.create_database()
    store = ProxiedStore(server, name)
    yield store
    store.close()
    server.drop_database(name)


EITHER_SIDE = pytest.mark.parametrize("cut", [Cut.BEFORE_REQUEST, Cut.AFTER_REQUEST])


@EITHER_SIDE
def test_what_commits_itself_is_stored_once(proxied_store: ProxiedStore, cut: Cut) -> None:
    """A lone message, and deletes alone, which may be repeated whatever became of them."""
    journal = proxied_store.open_proxied()
    dialect = proxied_store.database.dialect
    proxied_store.proxy.cut_once(cut, LONE_INSERT[dialect.value])
    (seq,) = proxied_store.append(journal, "precious")
    assert proxied_store.rows() == {seq: (QUEUE, 1)}
    assert proxied_store.proxy.cuts == 1
    assert proxied_store.reports[-1].attempts == 2
    (following,) = proxied_store.append(journal, "the next")
    assert following == seq + 1
    deletes = b"orthia_delete" if dialect is Dialect.POSTGRESQL else b"COMMIT"
    proxied_store.proxy.cut_once(cut, deletes)
    journal.delete([MessageLocation(seq)])
    proxied_store.settle(journal)
    assert proxied_store.proxy.cuts == 2
    assert set(proxied_store.rows()) == {following}


@EITHER_SIDE
def test_a_batch_is_stored_once(proxied_store: ProxiedStore, cut: Cut) -> None:
    """On either side of its COMMIT: inserts, deletes, bodies; or a queue alone, told by itself."""
    journal = proxied_store.open_proxied()
    (old,) = proxied_store.append(journal, "old")
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    shared = journal.append_unit(unit)
    proxied_store.settle(journal)

    proxied_store.proxy.cut_once(cut, b"COMMIT")
    unit = Unit()
    for _ in range(300):
        unit.add_message([QUEUE], payload())
    for location in (MessageLocation(old), *shared):
        unit.delete(location)
    stored = journal.append_unit(unit)
    proxied_store.settle(journal)
    assert proxied_store.proxy.cuts == 1
    assert set(proxied_store.rows()) == {location.seq for location in stored}

    binding = QueueBinding(journal.next_id(), "q", "q", RoutingType.ANYCAST)
    proxied_store.proxy.cut_once(cut, b"COMMIT")
    journal.add_binding(binding)
    proxied_store.settle(journal)
    assert proxied_store.proxy.cuts == 2
    journal.close(drain=True)
    assert proxied_store.open().bindings == [binding]


POSTGRESQL, MYSQL = Dialect.POSTGRESQL, Dialect.MYSQL
OPENING = {
    "it proves the fence": ({POSTGRESQL: b"holder_token", MYSQL: b"holder_token"}, False),
    # On PostgreSQL READ COMMITTED comes before, of which this is no part; on MySQL another COMMIT,
    # on a connection that has yet to lock the fence as the writer does.
    "it reserves ids": ({POSTGRESQL: b"COMMIT\0", MYSQL: b"COMMIT"}, True),
    # The first COMMIT of all: after the bindings, of which no transaction is, comes the mode. The
    # pool has room for one connection, and not for a lost one.
    "its connection goes back to the pool": ({MYSQL: b"\x03COMMIT"}, False),
    "its writer is set up": (
        {POSTGRESQL: b"PREPARE orthia_put", MYSQL: b"max_allowed_packet"},
        False,
    ),
}
"""What a journal that is opened sends as it does so, and whether it is the writer's on MySQL."""


@EITHER_SIDE
@pytest.mark.parametrize(
    ("dbms", "when"),
    [
        (dbms, when)
        for when, (patterns, _) in OPENING.items()
        for dbms in (SERVER_NAMES if POSTGRESQL in patterns else MYSQL_FAMILY)
    ],
)
def test_a_journal_is_opened_though_its_connection_is_lost(
    proxied_store: ProxiedStore, when: str, cut: Cut
) -> None:
    """The node that takes over may be the last; ids it reserved twice are not given out twice."""
    dialect = proxied_store.database.dialect
    patterns, of_writer = OPENING[when]
    (before,) = proxied_store.append(proxied_store.open(), "before")
    is_writers = of_writer and dialect is MYSQL
    proxied_store.proxy.cut_once(cut, patterns[dialect], of_writer=is_writers)
    journal = proxied_store.open_proxied()
    assert proxied_store.proxy.cuts == 1
    (after,) = proxied_store.append(journal, "after")
    is_lost_late = when == "its writer is set up"  # which begins once ids are reserved
    is_done = (when, cut) == ("it reserves ids", Cut.AFTER_REQUEST)
    reserved = 2 if is_lost_late or is_done else 1
    assert after == before + reserved * PATIENT.id_block


def test_a_journal_that_cannot_be_opened_says_so(proxied_store: ProxiedStore) -> None:
    """A database that stays away is no reason to try for ever."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        proxied_store.proxy.lead_to(taken.getsockname()[1])
        with pytest.raises(StoreUnavailable):
            proxied_store.open_proxied()


def test_a_session_the_server_still_believes_in_is_ended(proxied_store: ProxiedStore) -> None:
    """A transaction left open by a lost connection does not hold its rows against the repeat.

    The server would keep it for a quarter of the lease, here 1,000 s; and a statement it has yet
    to execute could otherwise be carried out after its outcome was judged.
    """
    proxied_store.through_proxy = replace(
        proxied_store.through_proxy, jdbc_lock_expiration=4_000_000
    )
    journal = proxied_store.open_proxied()
    proxied_store.proxy.cut_once(Cut.CLIENT_ONLY, b"COMMIT")
    done: list[int] = []
    unit = Unit(lambda: done.append(1))
    for _ in range(100):
        unit.add_message([QUEUE], payload())
    journal.append_unit(unit)
    proxied_store.loop.run_until(lambda: done, "the unit")
    assert proxied_store.reports[-1].attempts == 2
    assert len(proxied_store.rows()) == 100


def test_a_cut_does_not_get_past_the_fence(proxied_store: ProxiedStore) -> None:
    """A batch that is repeated proves the fence again."""
    journal = proxied_store.open_proxied()
    proxied_store.proxy.cut_once(
        Cut.BEFORE_REQUEST, b"COMMIT", on_cut=lambda: proxied_store.advance_fence(2)
    )
    unit = Unit()
    for _ in range(100):
        unit.add_message([QUEUE], payload())
    journal.append_unit(unit)
    proxied_store.loop.run_until(lambda: proxied_store.failures, "the refusal")
    assert proxied_store.proxy.cuts == 1
    assert isinstance(proxied_store.failures[0], Fenced)
    assert proxied_store.rows() == {}


def test_a_batch_whose_fate_is_learnt_after_the_fence_moved_is_not_confirmed(
    proxied_store: ProxiedStore,
) -> None:
    """Its rows are there for the successor; whether they are as durable as a receipt says, only a
    write of this node could tell, and the successor's fence lets it write no more.
    """
    journal = proxied_store.open_proxied()
    proxied_store.proxy.cut_once(
        Cut.AFTER_REQUEST, b"COMMIT", on_cut=lambda: proxied_store.advance_fence(2)
    )
    done: list[int] = []
    unit = Unit(lambda: done.append(1))
    unit.add_message([QUEUE, OTHER_QUEUE], payload())
    journal.append_unit(unit)
    proxied_store.loop.run_until(lambda: proxied_store.failures, "the refusal")
    assert isinstance(proxied_store.failures[0], Fenced)
    assert done == []
    assert len(proxied_store.rows()) == 3


def test_windows_are_read_again(proxied_store: ProxiedStore) -> None:
    """A window whose connection is cut is asked for again."""
    journal = proxied_store.open_proxied()
    proxied_store.append(journal, "a", "b")
    proxied_store.bodies(journal)
    proxied_store.proxy.cut_once(Cut.AFTER_REQUEST, b"queue_id", of_writer=False)
    assert proxied_store.bodies(journal) == ["a", "b"]
    assert proxied_store.proxy.cuts == 1


def test_a_window_takes_two_round_trips(proxied_store: ProxiedStore) -> None:
    """All queues wait for one another's windows: on a slow link nothing else may be asked."""
    journal = proxied_store.open_proxied()
    proxied_store.append(journal, "a", "b")
    assert proxied_store.bodies(journal) == ["a", "b"]
    with proxied_store.proxy.listening() as heard:
        assert proxied_store.bodies(journal) == ["a", "b"]
    asked = [one for one in heard if b"ORTHIA_ACKS" not in one[1].upper()]
    readers = {connection for connection, request in asked if b"queue_id" in request}
    assert len(readers) == 1
    assert len([request for connection, request in heard if connection in readers]) == 2, heard


class QuietStore(SqlJournalStore):
    """A database that ends the journal's session after four seconds of silence."""

    def __init__(self, server: StoreServer, settings: DatabaseStoreSettings) -> None:
        # MySQL's limit is a quarter of the lease; MariaDB's is the server's own, hours long.
        name = str(settings.jdbc_connection_url.sqlalchemy_url.database)
        url = f"{server.url(name)}?init_command=SET SESSION wait_timeout = 4"
        quiet = replace(
            settings, jdbc_connection_url=DatabaseUrl.parse(url), jdbc_lock_expiration=20_000
        )
        super().__init__(quiet)
        self.reports: list[BatchReport] = []

    def open_listening(self) -> MessageJournal:
        """Open a journal whose batches are reported."""
        journal = self.open()
        journal.register_batch_listener(self.reports.append)
        return journal

    def ask(self, question: str) -> object:
        """Return what the database answers."""
        with self.database.engine.connect() as connection:
            return connection.execute(text(question)).scalar()

    def writers_session(self) -> object:
        """Return the connection that has the mark of the journal's writer; None if none has."""
        mark = fenced_mark("NODE_MANAGER_STORE", "journal", 1)
        name = user_lock_name(self.database.engine.url.database, mark)
        return self.ask(f"SELECT IS_USED_LOCK('{name}')")

    def wait_silent(self) -> None:
        """Wait until the server has ended another session, which began to be silent just now."""
        with closing(self.database.engine.raw_connection()) as other:
            number = other.driver_connection.thread_id()  # type: ignore[union-attr]
            find = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {number}"
            wait_until(lambda: self.ask(find) == 0, what="the server ends a silent session")
            other.invalidate()

    def end_writers_session(self) -> None:
        """End the session of the journal's writer, and wait until it has another."""
        ended = self.writers_session()
        with self.database.engine.connect() as connection:
            connection.exec_driver_sql(f"KILL CONNECTION {ended}")
        wait_until(
            lambda: self.writers_session() not in (None, ended),
            what="the writer has another session",
        )


@pytest.fixture
def quiet_store(server: StoreServer, store_settings: DatabaseStoreSettings) -> Iterator[QuietStore]:
    """Give a database that ends silent sessions."""
    store = QuietStore(server, store_settings)
    yield store
    store.close()


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_a_journal_at_rest_keeps_its_session(quiet_store: QuietStore) -> None:
    """The first message after a pause does not wait for a connection."""
    journal = quiet_store.open_listening()
    attempts: list[int] = []
    while 1 not in attempts and len(attempts) < ROUNDS:
        began = time.monotonic()
        quiet_store.append(journal, "before")
        quiet_store.wait_silent()
        quiet_store.append(journal, "after")
        attempts.append(quiet_store.reports[-1].attempts)
        assert attempts[-1] == 1 or time.monotonic() - began > 6, "nothing stood still"
    assert 1 in attempts


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_a_journal_at_rest_replaces_a_session_that_was_ended(quiet_store: QuietStore) -> None:
    """The next message does not find it out."""
    journal = quiet_store.open_listening()
    attempts: list[int] = []
    while 1 not in attempts and len(attempts) < ROUNDS:
        quiet_store.append(journal, "before")
        quiet_store.end_writers_session()
        began = time.monotonic()
        quiet_store.append(journal, "after")
        attempts.append(quiet_store.reports[-1].attempts)
        assert attempts[-1] == 1 or time.monotonic() - began > 3, "nothing stood still"
    assert 1 in attempts


def test_every_unit_is_there_once_after_the_server_was_killed(
    private_server: ServerProcess,
) -> None:
    """A server killed and restarted in the middle of a load costs no unit and repeats none."""
    store = SqlJournalStore(private_server.settings(private_server.create_database()))
    journal = store.open()
    chance = random.Random(1)
    expected: set[int] = set()
    waiting: set[int] = set()

    def send() -> None:
        seq = 0

        def stored() -> None:
            waiting.discard(seq)
            expected.add(seq)

        seq = journal.append_message(QUEUE, payload("x" * chance.randint(1, 2_000)), stored)
        waiting.add(seq)

    def consume() -> None:
        seq = expected.pop()
        journal.delete([MessageLocation(seq)])

    def load(messages: int) -> None:
        for _ in range(messages):
            send()
            if expected and chance.random() < 0.3:
                consume()
            store.loop.run_until(lambda: len(waiting) < 200, "room")

    try:
        for _ in range(3):
            load(1_000)
            private_server.kill()
            for _ in range(50):
                send()
            private_server.restart()
            load(1_000)
        store.loop.run_until(lambda: not waiting, "all of it")
        store.settle(journal)
        assert not store.failures
        assert set(store.rows()) == expected
    finally:
        store.close()


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_a_mark_that_another_user_took_is_told_with_its_session(
    database: Database, store_settings: DatabaseStoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever logs in may take any user lock, and ending a session of others takes a right."""
    monkeypatch.setattr(sessions, "_END_SECONDS", 0.5)
    name = str(store_settings.jdbc_connection_url.sqlalchemy_url.database)
    users = [f"{name}_{one}" for one in ("node", "stranger")]
    node, stranger = (
        Database.from_settings(replace(store_settings, jdbc_user=one, jdbc_password=Secret("pw")))
        for one in users
    )
    mark = fenced_mark("NODE_MANAGER_STORE", "journal", 7)
    engine = node.dedicated_engine("journal", mark=mark, query_timeout_ms=10_000)
    with database.engine.begin() as connection:
        for one in users:
            connection.exec_driver_sql(f"CREATE USER '{one}'@'%%' IDENTIFIED BY 'pw'")
            connection.exec_driver_sql(f"GRANT INSERT ON {name}.* TO '{one}'@'%%'")
    try:
        with stranger.engine.connect() as other:
            session = other.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
            lock = user_lock_name(name, mark)
            assert other.exec_driver_sql(f"SELECT GET_LOCK('{lock}', 0)").scalar_one() == 1
            told = (
                rf"connection {session} of the database has the user lock {lock}, which .*an admin"
            )
            with pytest.raises(StoreUnavailable, match=told), engine.connect():
                pass
            other.invalidate()
        with database.engine.connect() as other:
            is_free = f"SELECT IS_FREE_LOCK('{lock}')"
            wait_until(lambda: other.exec_driver_sql(is_free).scalar_one() == 1, what="it is free")
        with engine.connect():
            pass
    finally:
        engine.dispose()
        node.dispose()
        stranger.dispose()
        with database.engine.begin() as connection:
            for one in users:
                connection.exec_driver_sql(f"DROP USER '{one}'@'%%'")
