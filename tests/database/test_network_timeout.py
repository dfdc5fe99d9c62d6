"""A server that stops answering ends a call within the time-out, whatever the call is."""

import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import Engine, text

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    StoreUnavailable,
    UnknownOutcome,
    translate_errors,
    write_transaction,
)
from tests.support.servers import SERVER_NAMES, ServerProcess

TIMEOUT_MS = 3_000
AMPLE_SECONDS = 60
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


@pytest.fixture
def engine(opened: Database) -> Engine:
    """Give an engine whose one connection is open."""
    engine = opened.dedicated_engine("test", query_timeout_ms=TIMEOUT_MS)
    with write_transaction(engine, "create a table") as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, filling VARCHAR(2000))"))
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


def test_a_query_to_a_paused_server_ends(private_server: ServerProcess, engine: Engine) -> None:
    """A query under way when the server is paused raises StoreUnavailable."""

    def query() -> None:
        with translate_errors("read"), engine.connect() as connection:
            private_server.pause()
            connection.execute(text("SELECT 1"))

    assert isinstance(outcome(query), StoreUnavailable)


def test_a_checkout_from_a_paused_server_ends(
    private_server: ServerProcess, engine: Engine
) -> None:
    """Pinging and replacing a pooled connection of a paused server is bounded too."""
    private_server.pause()

    def checkout() -> None:
        with translate_errors("check out"), engine.connect():
            pass

    assert isinstance(outcome(checkout), StoreUnavailable)


def test_connecting_to_a_paused_server_ends(
    private_server: ServerProcess, opened: Database
) -> None:
    """A first connection to a paused server raises StoreUnavailable."""
    private_server.pause()
    assert isinstance(outcome(opened.server_now), StoreUnavailable)


def test_a_commit_to_a_paused_server_is_of_unknown_outcome(
    private_server: ServerProcess, engine: Engine
) -> None:
    """A COMMIT that gets no answer raises UnknownOutcome."""

    def commit() -> None:
        with write_transaction(engine, "insert") as connection:
            connection.execute(text("INSERT INTO t VALUES (1, 'x')"))
            private_server.pause()

    assert isinstance(outcome(commit), UnknownOutcome)


def test_a_rollback_to_a_paused_server_ends(private_server: ServerProcess, engine: Engine) -> None:
    """Leaving a transaction by an exception does not hang on the ROLLBACK."""

    def roll_back() -> None:
        with write_transaction(engine, "insert") as connection:
            connection.execute(text("INSERT INTO t VALUES (1, 'x')"))
            private_server.pause()
            raise ZeroDivisionError

    assert outcome(roll_back) is not None


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
    engine = opened.dedicated_engine("test", query_timeout_ms=TIMEOUT_MS)
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
    with write_transaction(engine, "insert") as connection:
        connection.execute(text("INSERT INTO t VALUES (1, 'x')"))


def test_closing_connections_of_a_paused_server_ends(
    private_server: ServerProcess, opened: Database, engine: Engine
) -> None:
    """dispose() does not wait for a server that says nothing."""
    opened.server_now()
    private_server.pause()
    assert outcome(opened.dispose) is None


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_the_server_gives_up_first_and_the_connection_stays(database: Database) -> None:
    """A statement over its time is ended by a server that answers, and the session goes on."""
    engine = database.dedicated_engine("test", query_timeout_ms=4_000)
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
        before = connection.execute(text(own_id)).scalar()
        with pytest.raises(StoreUnavailable), translate_errors("sleep"):
            connection.execute(text(sleep))
        connection.rollback()
        assert connection.execute(text(own_id)).scalar() == before


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_calls_within_their_time_are_left_alone(database: Database) -> None:
    """Many calls, together longer than the time-out and each shorter, all succeed."""
    engine = database.dedicated_engine("test", query_timeout_ms=7_000)
    started = time.monotonic()
    with engine.connect() as connection:
        while time.monotonic() - started < 8:
            connection.execute(text("SELECT pg_sleep(0.05)"))


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_closed_connections_leave_no_descriptor(database: Database) -> None:
    """Opening and closing connections, in order or by the collector, leaks no descriptor."""
    database.server_now()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        engine = database.dedicated_engine("test", query_timeout_ms=2_000)
        with engine.connect() as connection:
            if number % 2:
                connection.detach()
        engine.dispose()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_one_thread_watches_every_connection(database: Database) -> None:
    """However many connections there are, one thread of the process cuts their calls."""
    for _ in range(5):
        with database.dedicated_engine("test", query_timeout_ms=2_000).connect() as connection:
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
        fresh = Database.from_settings(store_settings)
        engine = fresh.dedicated_engine("test", query_timeout_ms=1_000)
        try:
            with engine.connect() as connection:
                connection.execute(text("SET statement_timeout = '4s'"))
                connection.execute(text("SELECT pg_sleep(60)"))
        except psycopg2.Error:
            os._exit(2)
        except Exception:  # noqa: BLE001 - the exit code is the answer
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_named_cursor_is_refused(database: Database) -> None:
    """A server-side cursor, whose fetches nothing would bound, is refused and not left to hang."""
    with database.engine.connect() as connection, pytest.raises(Exception, match="time-out"):
        connection.execution_options(stream_results=True).execute(text("SELECT 1"))
