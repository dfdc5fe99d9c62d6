"""A unit that the store does not take, though it takes others, holds nobody else up."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

import orthia.journal.sql.postgresql
from orthia.config.dialects import Dialect
from orthia.config.errors import OrthiaError
from orthia.config.urls import DatabaseUrl
from orthia.database import (
    Database,
    PermanentStoreError,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from orthia.journal import Unit
from orthia.journal.engine.batch import batch_of
from orthia.journal.errors import StoreFull
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.unit import AppendedMessage
from tests.conftest import Servers
from tests.journal.scripted import (
    POISON,
    ScriptedStore,
    message,
    poison,
    write,
)
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.support.servers import ServerProcess

EVERY_KIND = [StoreUnavailable("lost"), UnknownOutcome("lost"), PermanentStoreError("no such")]


@pytest.mark.parametrize("error", EVERY_KIND, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", [0, 1, 50, 99])
def test_one_unit_is_refused_and_the_others_are_stored_in_order(
    error: StoreError, place: int
) -> None:
    """Whatever its place in the batch, and however the store says that it does not take it."""
    store = ScriptedStore(poison(error))
    payloads = [b"x"] * 100
    payloads[place] = POISON
    outcome = write(store, *(message(seq, data=data) for seq, data in enumerate(payloads, 1)))
    assert outcome.failures == []
    kinds = ["refused" if one == POISON else "stored" for one in payloads]
    assert outcome.told == list(zip(kinds, range(1, 101), strict=True))
    assert store.stored == [seq for seq in range(1, 101) if seq != place + 1]
    # Two halvings for each power of two, three attempts at most each: it ends.
    assert store.calls.count("store") < 100


def test_a_unit_that_outweighs_all_others_is_looked_at_first() -> None:
    """It is what no link carries in time; to halve the others meanwhile would cost minutes."""
    items = [AppendedMessage(seq, QUEUE, b"x" * 10, None) for seq in range(1, 101)]
    items[40] = AppendedMessage(41, QUEUE, b"x" * 5_000, None)
    sizes = [len(part.items) for part in batch_of(items).split()]
    assert sizes == [40, 1, 59]
    assert [len(part.items) for part in batch_of(items[:5]).split()] == [2, 3]
    assert [len(part.items) for part in batch_of(items[40:42]).split()] == [1, 1]


# --- on each DBMS

TRIGGERS = {
    Dialect.POSTGRESQL: [
        "CREATE FUNCTION refuse_poison() RETURNS trigger AS $$ BEGIN"
        " IF position('poison'::bytea IN NEW.record) > 0 THEN"
        " RAISE EXCEPTION 'it is poison' USING ERRCODE = '{}'; END IF; RETURN NEW;"
        " END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER refuse_poison BEFORE INSERT ON messages"
        " FOR EACH ROW EXECUTE FUNCTION refuse_poison()",
    ],
    Dialect.MYSQL: [
        "CREATE TRIGGER refuse_poison BEFORE INSERT ON MESSAGES FOR EACH ROW"
        " IF LOCATE('poison', NEW.record) > 0 THEN SIGNAL SQLSTATE '45000'"
        " SET MYSQL_ERRNO = {}, MESSAGE_TEXT = 'it is poison'; END IF",
    ],
    Dialect.SQLITE: [
        "CREATE TRIGGER refuse_poison BEFORE INSERT ON MESSAGES"
        " WHEN instr(NEW.record, CAST('poison' AS BLOB)) > 0"
        " BEGIN SELECT RAISE(ABORT, 'it is poison'); END",
    ],
}
CODES = {
    "refused for good": {Dialect.POSTGRESQL: "P0001", Dialect.MYSQL: "1644"},
    "again and again": {Dialect.POSTGRESQL: "57014", Dialect.MYSQL: "1317"},
}


def refuse_poison(store: SqlJournalStore, how: str) -> None:
    """Have the database refuse records with that word in them."""
    dialect = store.database.dialect
    with store.database.engine.begin() as connection:
        for statement in TRIGGERS[dialect]:
            code = CODES[how].get(dialect, "")
            connection.exec_driver_sql(statement.replace("{}", code))


@pytest.mark.parametrize("how", list(CODES))
def test_a_poisonous_unit_is_refused_by_each_dbms(sql_store: SqlJournalStore, how: str) -> None:
    """Alone or among others, a message or a transaction; nothing of it is stored."""
    journal = sql_store.open()
    refuse_poison(sql_store, how)
    told: list[str] = []

    def unit(name: str, *texts: str) -> Unit:
        made = Unit(lambda: told.append(name))
        made.refused = lambda error: told.append(f"{name} refused: {error}")
        for one in texts:
            made.add_message([QUEUE, OTHER_QUEUE], payload(one))
        return made

    for number in range(30):
        name = f"message {number}"
        body = "poison" if number == 17 else name
        journal.append_message(
            QUEUE, payload(body), partial(told.append, name), _telling(told, name)
        )
    journal.append_unit(unit("good", "a", "b"))
    journal.append_unit(unit("bad", "c", "poison"))
    journal.append_message(QUEUE, payload("last"), lambda: told.append("last"), None)
    sql_store.loop.run_until(lambda: "last" in told, "all of it", timeout_seconds=120)
    expected = [f"message {number}" for number in range(30)]
    assert [one.split(" refused")[0] for one in told] == [*expected, "good", "bad", "last"]
    refused = [one for one in told if "refused" in one]
    assert [one.split(" refused")[0] for one in refused] == ["message 17", "bad"]
    assert all("it is poison" in one for one in refused)
    kept = [text for text in expected if text != "message 17"]
    assert sql_store.bodies(journal) == [*kept, "a", "b", "last"]
    assert not any(seq < 0 for seq in sql_store.rows())
    assert sql_store.failures == []
    assert (journal.intake._rows, journal.intake._bytes) == (0, 0)


DISK_FULL = {Dialect.POSTGRESQL: "53100", Dialect.MYSQL: "1114"}


@contextlib.contextmanager
def nearly_full(store: SqlJournalStore) -> Iterator[None]:
    """Have no room in the database for messages, though there is some for a probe."""
    dialect = store.database.dialect
    with store.database.engine.begin() as connection:
        for statement in TRIGGERS[dialect]:
            connection.exec_driver_sql(statement.replace("{}", DISK_FULL[dialect]))
    yield
    of_table = " ON messages" if dialect is Dialect.POSTGRESQL else ""
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER refuse_poison{of_table}")


def test_what_a_nearly_full_disk_does_not_take_is_refused_for_want_of_room(
    sql_store: SqlJournalStore,
) -> None:
    """A probe finds a place where a message does not: it is not said to be the message's fault."""
    if sql_store.database.dialect not in DISK_FULL:
        pytest.skip("no trigger of SQLite can say so")
    opened = sql_store.open()
    told: list[str] = []
    full: list[OrthiaError | None] = []
    opened.register_full_listener(full.append)
    (kept,) = sql_store.append(opened, "kept")
    with nearly_full(sql_store):
        refused = _telling(told, "message")
        opened.append_message(QUEUE, payload("poison"), partial(told.append, "stored"), refused)
        opened.delete([MessageLocation(kept)], partial(told.append, "deleted"))
        sql_store.loop.run_until(lambda: len(told) == 2, "both answers")
    assert "no room left" in told[0]
    assert told[1] == "deleted"
    sql_store.loop.run_until(lambda: full[-1] is None, "there is room again")
    assert isinstance(full[0], StoreFull)
    opened.append_message(QUEUE, payload("poison"), partial(told.append, "stored"), refused)
    sql_store.loop.run_until(lambda: told[2:] == ["stored"], "it is stored")
    assert sql_store.failures == []


def _telling(told: list[str], name: str) -> Callable[[OrthiaError], None]:
    return lambda error: told.append(f"{name} refused: {error}")


# --- a slow link


class SlowLink:
    """A link that carries so many bytes a second to the server."""

    def __init__(self, server_port: int, bytes_per_second: int) -> None:
        self._server_port = server_port
        self._rate = bytes_per_second
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            # Small buffers: what is under way is on the link, and not in a kernel.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._open += [client, server]
            for source, target, rate in ((client, server, self._rate), (server, client, None)):
                forward = partial(self._forward, source, target, rate)
                threading.Thread(target=forward, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, rate: int | None) -> None:
        try:
            while data := source.recv(8_192):
                if rate is not None:
                    time.sleep(len(data) / rate)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def close(self) -> None:
        """Close every connection."""
        for end in self._open:
            end.close()


@pytest.fixture
def slow(shared_servers: Servers) -> Iterator[SqlJournalStore]:
    """Give a store that is reached by a slow link, with a time-out of 7 s."""
    server: ServerProcess = shared_servers("postgresql")
    name = server.create_database()
    store = SqlJournalStore(server.settings(name))
    link = SlowLink(server.port, 500_000)
    url = server.url(name).replace(f":{server.port}/", f":{link.port}/")
    store.settings = replace(
        store.settings,
        jdbc_connection_url=DatabaseUrl.parse(url),
        jdbc_network_timeout=7_000,
    )
    direct, store.database = store.database, Database.from_settings(store.settings)
    yield store
    store.close()
    direct.dispose()
    link.close()
    server.drop_database(name)


def test_a_transaction_of_any_size_is_stored_over_a_slow_link(
    slow: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of it has the time-out; all of it takes twice as long."""
    monkeypatch.setattr(orthia.journal.sql.postgresql, "COPY_STATEMENT_BYTES", 100_000)
    opened = slow.open()
    done: list[int] = []
    unit = Unit(lambda: done.append(1))
    for _ in range(600):
        unit.add_message([QUEUE], b"x" * 10_000)
    began = time.monotonic()
    opened.append_unit(unit)
    slow.loop.run_until(lambda: done or slow.failures, "the end of it", timeout_seconds=300)
    assert done
    assert time.monotonic() - began > 7
    assert slow.failures == []
