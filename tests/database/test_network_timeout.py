"""A server that stops answering ends a call within the time-out, whatever the call is."""

import errno
import io
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    StoreUnavailable,
    UnknownOutcome,
    translate_errors,
    write_transaction,
)
from tests.support.servers import SERVER_NAMES, ServerProcess

pytestmark = pytest.mark.extended

TIMEOUT_MS = 3_000
AMPLE_SECONDS = 120
"""What no bounded call takes on the slowest machine, and what a hanging one surely takes."""


@pytest.fixture
def name(private_server: ServerProcess) -> str:
    """Give an empty database of the private server."""
    return private_server.create_database()


@pytest.fixture
def opened(private_server: ServerProcess, name: str) -> Iterator[Database]:
    """Give that database with a short network time-out."""
    settings = private_server.settings(name, jdbc_network_timeout=TIMEOUT_MS)
    opened = Database.from_settings(settings)
    yield opened
    private_server.resume()
    opened.dispose()


def unless_cut(call: Callable[[], object]) -> None:
    """Do what a server answers, anew where the machine stood still for as long as it may take."""
    for _ in range(10):
        called = time.monotonic()
        try:
            call()
        except StoreUnavailable:
            # The server itself gives up a little earlier, and libpq counts whole seconds.
            assert time.monotonic() - called > 0.6 * TIMEOUT_MS / 1000
        else:
            return
    pytest.fail("it is never answered")


@pytest.fixture
def engine(private_server: ServerProcess, name: str, opened: Database) -> Engine:
    """Give an engine whose one connection is open, and a table."""
    patient = Database.from_settings(private_server.settings(name))
    with write_transaction(patient.engine, "create a table") as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, filling VARCHAR(2000))"))
    patient.dispose()
    engine = opened.dedicated_engine("test", query_timeout_ms=TIMEOUT_MS)

    unless_cut(lambda: check_out(engine))
    return engine


def outcome(call: Callable[[], object]) -> BaseException | None:
    """Return what ``call`` raises, failing when it does not end in an ample time."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(AMPLE_SECONDS)
    assert ended, "the call hangs"
    return ended[0]


def pause_amid(server: ServerProcess, engine: Engine, then: Callable[[], object]) -> object:
    """Change a row, pause the server, do ``then`` and end; return what is raised."""
    paused = threading.Event()
    raised: list[BaseException | None] = []

    def insert_and_pause() -> None:
        with write_transaction(engine, "insert") as connection:
            connection.execute(text("DELETE FROM t"))
            server.pause()
            paused.set()
            then()

    def attempt() -> None:
        raised.append(outcome(insert_and_pause))
        if raised[-1] is not None and not paused.is_set():
            raise raised[-1]

    unless_cut(attempt)
    return raised[-1]


def check_out(engine: Engine) -> None:
    """Ping the pooled connection, and replace it."""
    with translate_errors("check out"), engine.connect():
        pass


@pytest.mark.parametrize("call", ["query", "check out", "connect"])
def test_a_call_to_a_paused_server_ends(
    private_server: ServerProcess, opened: Database, engine: Engine, call: str
) -> None:
    """Whether it is under way when the server is paused, or begins then."""

    def query() -> None:
        with translate_errors("read"), engine.connect() as connection:
            private_server.pause()
            connection.execute(text("SELECT 1"))

    if call == "query":
        assert isinstance(outcome(query), StoreUnavailable)
        return
    private_server.pause()
    begins = opened.server_now if call == "connect" else lambda: check_out(engine)
    assert isinstance(outcome(begins), StoreUnavailable)


def test_the_end_of_a_transaction_of_a_paused_server_ends(
    private_server: ServerProcess, engine: Engine
) -> None:
    """A COMMIT without an answer is of unknown outcome; a ROLLBACK does not hang either."""
    assert isinstance(pause_amid(private_server, engine, lambda: None), UnknownOutcome)
    private_server.resume()

    def fail() -> None:
        raise ZeroDivisionError

    assert pause_amid(private_server, engine, fail) is not None


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_copy_to_a_paused_server_ends(private_server: ServerProcess, engine: Engine) -> None:
    """A COPY whose server is paused half way, with the socket's buffers full, ends."""

    class PausingFile(io.StringIO):
        rows = 0

        def read(self, size: int | None = -1) -> str:  # noqa: ARG002 - the signature is IO's
            self.rows += 1
            if self.rows == 100:
                private_server.pause()
            return f"{self.rows}\t{'x' * 1900}\n" if self.rows < 100_000 else ""

    def copy() -> None:
        with translate_errors("copy"):
            connection = engine.raw_connection()
            try:
                connection.cursor().copy_expert("COPY t FROM STDIN", PausingFile())
            finally:
                connection.close()

    assert isinstance(outcome(copy), StoreUnavailable)


def _no_more_descriptors(_: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_connection_that_gets_no_time_out_is_none(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many files open as may be, the database cannot be reached; it is no other error."""
    monkeypatch.setattr(os, "dup", _no_more_descriptors)
    engine = opened.dedicated_engine("test", query_timeout_ms=60_000)
    with pytest.raises(StoreUnavailable, match="Too many open files"), translate_errors("connect"):
        engine.connect()
    monkeypatch.undo()
    with engine.connect():
        pass


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_call_ends_without_another_descriptor(
    private_server: ServerProcess, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time-out needs nothing that may be used up when it is wanted."""

    def query() -> None:
        with translate_errors("read"), engine.connect() as connection:
            private_server.pause()
            monkeypatch.setattr(os, "dup", _no_more_descriptors)
            connection.execute(text("SELECT 1"))

    assert isinstance(outcome(query), StoreUnavailable)


def test_the_engine_recovers_with_the_server(private_server: ServerProcess, engine: Engine) -> None:
    """After a cut call the same engine works as soon as the server goes on."""
    private_server.pause()
    assert outcome(engine.connect) is not None
    private_server.resume()
    numbers = itertools.count()

    def insert() -> None:
        with write_transaction(engine, "insert") as connection:
            connection.execute(text(f"INSERT INTO t VALUES ({next(numbers)}, 'x')"))

    unless_cut(insert)


def test_closing_connections_of_a_paused_server_ends(
    private_server: ServerProcess, opened: Database, engine: Engine
) -> None:
    """dispose() does not wait for a server that says nothing."""
    unless_cut(opened.server_now)
    private_server.pause()
    assert outcome(opened.dispose) is None


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_the_server_gives_up_first_and_the_connection_stays(database: Database) -> None:
    """A statement over its time is ended by a server that answers, and the session goes on."""
    engine = database.dedicated_engine("test", query_timeout_ms=600_000)
    own_id, sleep = (
        ("SELECT pg_backend_pid()", "SELECT pg_sleep(60)")
        if engine.dialect.name == "postgresql"
        else (
            "SELECT CONNECTION_ID()",
            "SELECT COUNT(*) FROM information_schema.collations a, information_schema.collations b,"
            " information_schema.collations c, information_schema.collations d WHERE RAND() > 2",
        )
    )
    with engine.connect() as connection:
        # Of the engine's own limits the second comes too soon for a machine that stands still.
        if engine.dialect.name == "postgresql":
            limit = "SET statement_timeout = 3000"
        elif engine.dialect.is_mariadb:  # type: ignore[attr-defined]
            limit = "SET SESSION max_statement_time = 3"
        else:
            limit = "SET SESSION max_execution_time = 3000"
        connection.execute(text(limit))
        connection.commit()
        before = connection.execute(text(own_id)).scalar()
        with pytest.raises(StoreUnavailable), translate_errors("sleep"):
            connection.execute(text(sleep))
        connection.rollback()
        assert connection.execute(text(own_id)).scalar() == before


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_calls_within_their_time_are_left_alone(database: Database) -> None:
    """Many calls, together longer than the time-out and each shorter, all succeed."""
    engine = database.dedicated_engine("test", query_timeout_ms=7_000)
    while True:
        called = time.monotonic()
        try:
            with engine.connect() as connection:
                called = started = time.monotonic()
                while called - started < 8:
                    connection.execute(text("SELECT pg_sleep(0.05)"))
                    called = time.monotonic()
        except DBAPIError:
            # Cut, as it should be, where the machine stood still during one call.
            assert time.monotonic() - called > 5
        else:
            break


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_closed_connections_leave_no_descriptor(database: Database) -> None:
    """Opening and closing connections, in order or by the collector, leaks no descriptor."""
    database.server_now()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        engine = database.dedicated_engine("test", query_timeout_ms=20_000)
        with engine.connect() as connection:
            if number % 2:
                connection.detach()
        engine.dispose()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_one_thread_watches_every_connection(database: Database) -> None:
    """However many connections there are, one thread of the process cuts their calls."""
    for _ in range(5):
        with database.dedicated_engine("test", query_timeout_ms=20_000).connect() as connection:
            connection.execute(text("SELECT 1"))
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("database-network-timeout") == 1


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_forked_child_has_its_own_watcher(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """The time-out works in a child process that was forked from one that used it."""
    database.server_now()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)  # which ends a child that nobody watches
        fresh = Database.from_settings(store_settings)
        engine = fresh.dedicated_engine("test", query_timeout_ms=1_000)
        while True:
            try:
                with engine.connect() as connection:
                    connection.execute(text("SET statement_timeout = '4s'"))
                    connection.execute(text("SELECT pg_sleep(60)"))
            except psycopg2.Error:
                os._exit(2)
            except Exception as error:  # noqa: BLE001 - the exit code is the answer
                # Where the machine stood still it may be another, and the server's own comes first.
                if "connection cut" in str(error):
                    os._exit(0)
            else:
                os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_named_cursor_is_refused(database: Database) -> None:
    """A server-side cursor, whose fetches nothing would bound, is refused and not left to hang."""
    with database.engine.connect() as connection, pytest.raises(Exception, match="time-out"):
        connection.execution_options(stream_results=True).execute(text("SELECT 1"))
