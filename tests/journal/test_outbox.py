"""What is read of the outbox, and in which order, on every DBMS."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from orthia.broker.core.destinations import parse
from orthia.broker.protocols.stomp.headers import HEADERS, Rule
from orthia.config.outbox import (
    KNOWN_HEADERS,
    MAX_BODY_BYTES,
    MAX_DESTINATION_LENGTH,
    MAX_HEADERS_BYTES,
    READ_BODY_BYTES,
    READ_HEADERS,
    REFUSED_HEADERS,
    RESERVED_PREFIXES,
    send_function,
)
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect, write_transaction
from orthia.journal.engine.abc import Outbox
from orthia.journal.sql.mysql_outbox import (
    GRACE_SECONDS,
    MOST_HOLES,
    Hole,
    holes_between,
    kept,
    without,
)
from orthia.journal.sql.outbox import PostgresqlOutbox, open_outbox
from orthia.journal.sql.outbox_session import SWEEP_SECONDS
from orthia.migrations import TableNames
from tests.database.test_pooling import PGBOUNCER, pgbouncer
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES
from tests.support.waiting import wait_until

SERVERS = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
"""Where several transactions write at a time."""


class Application:
    """An application with sessions of its own, and the reader of what it sends."""

    def __init__(self, s: DatabaseStoreSettings, database: Database) -> None:
        self.now = 0.0
        self.table = TableNames.from_settings(s).outbox
        self.dialect = database.dialect
        self._own = Database.from_settings(s)
        self.engine = self._own.engine
        self.reader: Outbox = open_outbox(database, s, notify=False, clock=lambda: self.now)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Give a session; what is not committed is rolled back."""
        with self.engine.connect() as connection:
            yield connection

    def insert(self, session: Connection, *bodies: str) -> None:
        """Send messages in the session's transaction."""
        insert = text(f"INSERT INTO {self.table} (destination, body) VALUES ('q', :body)")
        for body in bodies:
            session.execute(insert, {"body": body.encode()})

    def commit(self, *bodies: str) -> None:
        """Send messages in a transaction."""
        with self.session() as session:
            self.insert(session, *bodies)
            session.commit()

    def reads(self, limit: int = 100, max_bytes: int = 1_000_000) -> str:
        """Return the bodies of the next rows, joined."""
        return "".join(row.body.decode() for row in self.reader.next_rows(limit, max_bytes))

    def close(self) -> None:
        """Close everything."""
        self.reader.close()
        self._own.dispose()


@pytest.fixture
def application(migrated_store: DatabaseStoreSettings, database: Database) -> Iterator[Application]:
    """Give an application on an empty store of every DBMS."""
    made = Application(migrated_store, database)
    yield made
    made.close()


def test_rows_come_once_in_the_order_of_their_inserts(application: Application) -> None:
    """Whatever their number, and however they are read; a rolled back one never comes."""
    assert application.reads() == ""
    application.commit("a", "b", "c")
    with application.session() as session:
        application.insert(session, "x")
    application.commit("d")
    assert application.reads(limit=2) == "ab"
    assert application.reads(limit=2) == "cd"
    assert application.reads() == ""
    application.commit("e")
    assert application.reads() == "e"


def test_what_is_too_long_is_not_read_into_memory(application: Application) -> None:
    """Where no constraint refused it; those behind it come in the same look."""
    table, body = application.table, "c" * (READ_BODY_BYTES + 1)
    long = {"body": body, "headers": "h" * (READ_HEADERS + 5), "to": "d" * 5_000}
    is_sqlite = application.dialect is Dialect.SQLITE
    with application.session() as session:
        if is_sqlite:
            session.execute(text("PRAGMA ignore_check_constraints = ON"))
        elif application.dialect is Dialect.POSTGRESQL:
            session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {table}_check"))
        else:
            for one in ("headers", "body"):
                session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {table}_{one}"))
        insert = f"INSERT INTO {table} (destination, headers, body) VALUES "
        session.execute(text(insert + "('q', NULL, :body)"), {"body": body.encode()})
        session.execute(text(insert + "('q', :headers, 'b')"), {"headers": long["headers"]})
        if is_sqlite:
            session.execute(text(insert + "(:to, NULL, :body)"), long)
        session.commit()
    application.commit("d")
    rows = [row for _ in range(4) for row in application.reader.next_rows(100, 10_000_000)]
    first, second, *third, last = rows
    assert (first.body, first.unread_bytes) == (b"", READ_BODY_BYTES + 1)
    assert (second.body, second.unread_bytes) == (b"b", 0)
    assert len(second.headers or "") == READ_HEADERS
    assert [(len(row.destination), row.unread_bytes) for row in third] == (
        [(MAX_DESTINATION_LENGTH + 1, READ_BODY_BYTES + 1)] if is_sqlite else []
    )
    assert last.body == b"d"


def test_a_window_is_bounded_by_bytes(application: Application) -> None:
    """There is always the first row, and no more than asked for after it."""
    application.commit("a" * 100, "b" * 10, "c" * 10, "d")
    assert application.reads(max_bytes=50) == "a" * 100
    assert application.reads(max_bytes=20) == "b" * 10 + "c" * 10
    assert application.reads() == "d"


@SERVERS
def test_an_open_transaction_holds_nobody_up_and_comes_when_it_commits(
    application: Application,
) -> None:
    """It is not skipped, though later rows were read long before."""
    with application.session() as slow, application.session() as slower:
        application.insert(slower, "z")
        application.insert(slow, "s", "t")
        for body in "abc":
            application.commit(body)
            assert application.reads() == body
        application.insert(slow, "u")
        application.commit("d")
        assert application.reads() == "d"
        slow.commit()
        application.commit("e")
        assert application.reads() == "stue"
        slower.commit()
        assert application.reads() == "z"
        assert application.reads() == ""


@SERVERS
@pytest.mark.parametrize("is_read_between", [False, True])
def test_transactions_that_wait_for_each_other_come_in_the_order_of_their_commits(
    application: Application,
    is_read_between: bool,
) -> None:
    """Also where the second one began first, and others are open."""
    with (
        application.session() as long,
        application.session() as first,
        application.session() as second,
    ):
        application.insert(long, "x")
        second.execute(text("SELECT 1"))
        application.insert(second, "w")  # of another aggregate
        application.insert(first, "a", "b")
        if is_read_between:
            assert application.reads() == ""
        first.commit()
        application.insert(second, "c")
        second.commit()
        assert application.reads() == "wabc"


@SERVERS
def test_a_late_commit_does_not_come_amid_rows_that_are_read_in_windows(
    application: Application,
) -> None:
    """A window shows what was committed when the first of its kind was read, or less."""
    with application.session() as late:
        application.insert(late, "l")
        application.commit("a", "b", "c")
        assert application.reads(limit=2) == "ab"
        late.commit()
        assert sorted(application.reads() + application.reads()) == ["c", "l"]
        assert application.reads() == ""


@SERVERS
def test_what_is_sent_after_a_late_commit_does_not_overtake_it_amid_windows(
    application: Application,
) -> None:
    """Both were open when the first window was read, and the second one sent after the commit."""
    with application.session() as first, application.session() as second:
        application.insert(second, "s")
        application.insert(first, "m")
        application.commit("a", "b")
        application.reads(limit=1)
        first.commit()
        application.insert(second, "l")
        second.commit()
        rest = application.reads() + application.reads()
        assert sorted(rest) == ["b", "l", "m", "s"]
        assert rest.index("m") < rest.index("l")


@SERVERS
def test_rows_that_are_sent_are_not_walked_over_again(application: Application) -> None:
    """A snapshot that somebody holds keeps them in the table; the reader is behind them."""
    with application.session() as holder:
        holder.execute(text(f"SELECT COUNT(*) FROM {application.table}"))
        application.commit("a", "b")
        assert application.reads() == "ab"
        with application.session() as relay:
            relay.execute(text(f"DELETE FROM {application.table}"))
            relay.commit()
        application.commit("c")
        assert application.reads() == "c"


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_rows_are_looked_up_though_the_table_was_empty_when_it_was_analyzed(
    application: Application,
) -> None:
    """As it is most of the time: its statistics say that any index finds a row at once."""
    table = application.table.strip('"')
    read = text(
        "SELECT SUM(idx_blks_hit + idx_blks_read + idx_tup_read) FROM pg_statio_user_indexes"
        " JOIN pg_stat_user_indexes AS rows USING (indexrelid) WHERE rows.relname = :table"
    )
    lives = text("SELECT COUNT(*) FROM pg_stat_activity WHERE pid = :pid")
    rows = "SELECT 'q', 'x' FROM generate_series(1, 10000)"
    fill = text(f"INSERT INTO {table} (destination, body) {rows}")

    def asked(statement: TextClause, **values: object) -> int:
        with application.session() as session:
            return int(session.execute(statement, values).scalar_one())

    with application.session() as session:
        session.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
        session.execute(fill)
        session.execute(text(f"DELETE FROM {table}"))
        session.commit()
        session.execute(text(f"ANALYZE {table}"))
        session.execute(fill)
        session.commit()
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    application.engine.dispose()
    wait_until(lambda: not asked(lives, pid=pid))  # and has told what it has read
    before = asked(read, table=table)
    assert len(application.reader.next_rows(200, 1_000_000)) == 200
    assert len(application.reader.next_rows(200, 1_000_000)) == 200
    application.reader.close()  # its session tells now what it has read
    wait_until(lambda: asked(read, table=table) > before + 10_000)  # all ids, once
    assert asked(read, table=table) - before < 20_000


def test_all_that_is_there_comes_again_after_a_start_over(application: Application) -> None:
    """As for the node that takes over."""
    application.commit("a", "b")
    assert application.reads() == "ab"
    application.reader.start_over()
    assert application.reads() == "ab"


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_row_of_another_servers_past_is_found(application: Application) -> None:
    """A dump brings rows whose transactions are yet to come here."""
    application.commit("a")
    assert application.reads() == "a"
    with application.session() as session:
        application.insert(session, "r")
        session.execute(text(f"UPDATE {application.table} SET txid = 1 << 40 WHERE body = 'r'"))
        session.commit()
    assert application.reads() == ""
    application.now += SWEEP_SECONDS
    assert "r" in application.reads()


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_what_comes_into_a_forgotten_hole_is_found(application: Application) -> None:
    """A row whose id was given out long before."""
    application.commit("a", "b")
    with application.session() as session:
        application.insert(session, "gone")
    application.commit("c")
    assert application.reads() == "abc"
    for _ in range(2):
        application.now += GRACE_SECONDS
        assert application.reads() == ""
    with application.session() as session:
        session.execute(
            text(f"INSERT INTO {application.table} (id, destination, body) VALUES (3, 'q', 'l')")
        )
        session.commit()
    assert application.reads() == ""
    application.now += SWEEP_SECONDS
    assert "l" in application.reads()


def test_holes_are_what_was_not_met() -> None:
    """Between ids, without those met later, and forgotten when they are old and empty."""
    holes = holes_between(2, [3, 5, 9], 0.0)
    assert holes == [Hole(4, 4, 0.0), Hole(6, 8, 0.0)]
    holes = without(holes, [4, 7])
    assert holes == [Hole(6, 6, 0.0), Hole(8, 8, 0.0)]
    assert kept(holes, [], GRACE_SECONDS - 1) == holes
    assert kept(holes, [8], GRACE_SECONDS) == [Hole(8, 8, 0.0)]


def test_of_too_many_holes_those_of_open_transactions_stay() -> None:
    """And those behind the last row that was looked at, of which nobody knows."""
    young = [Hole(one, one, GRACE_SECONDS) for one in range(10, 2 * MOST_HOLES + 10, 2)]
    left = kept([Hole(1, 2, 0.0), *young], [2], GRACE_SECONDS)
    assert left == [Hole(1, 2, 0.0), *young[1:]]
    holes = [Hole(1, 2, 0.0), Hole(5, 5, 0.0), Hole(9, 9, 0.0)]
    assert kept(holes, [2, 7], GRACE_SECONDS, looked_to=7) == [holes[0], holes[2]]


_ODD_VALUES = [
    ("sqlite", "body", "3.5", b"3.5"),
    ("sqlite", "body", "-1", b"-1"),
    ("sqlite", "body", "1000000000000", b"1000000000000"),
    ("sqlite", "body", "CAST(x'ff' AS TEXT)", "\ufffd".encode()),
    ("sqlite", "destination", "CAST(x'ff' AS TEXT)", b""),
    ("sqlite", "destination", "x'71'", b""),
    ("sqlite", "created_at", "'never'", b""),
    ("postgresql", "created_at", "'infinity'", b""),
    ("mariadb", "created_at", "'0000-00-00'", b""),
]


@pytest.mark.parametrize(("server", "column", "value", "body"), _ODD_VALUES, indirect=["server"])
def test_a_value_that_nobody_expects_stops_no_row(
    application: Application, column: str, value: str, body: bytes
) -> None:
    """Whatever the database lets an application put into the table can be read."""
    row = {"destination": "'q'", "body": "''", column: value}
    names, values = ", ".join(row), ", ".join(row.values())
    with application.session() as session:
        if application.dialect is Dialect.MYSQL:
            session.execute(text("SET SESSION sql_mode = ''"))
        session.execute(text(f"INSERT INTO {application.table} ({names}) VALUES ({values})"))
        session.commit()
    application.commit("next")
    first, following = application.reader.next_rows(10, 1_000)
    assert (first.body, following.body) == (body, b"next")
    assert first.created_ms > 0
    assert isinstance(first.destination, str)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_commit_wakes_a_reader_that_sleeps(
    migrated_store: DatabaseStoreSettings, database: Database, application: Application
) -> None:
    """And one whose row was inserted while it was awake keeps it from falling asleep."""
    reader = PostgresqlOutbox(database, migrated_store, notify=True, asleep_seconds=600.0)
    stopping = threading.Event()
    rest = partial(reader.rest, 1e-9, stopping)
    doze = partial(reader.rest, 1.0, stopping)
    try:
        assert reader.next_rows(10, 1_000) == []
        with application.session() as session:
            application.insert(session, "a")
            assert not reader._falls_asleep()
            session.commit()
        assert [row.body for row in reader.next_rows(10, 1_000)] == [b"a"]
        assert reader.next_rows(10, 1_000) == []
        doze()
        assert reader.next_rows(10, 1_000) == []
        with application.session() as session:
            application.insert(session, "b")
            committing = threading.Thread(target=session.commit)
            committing.start()
            rest()  # until it is notified
            committing.join()
        assert [row.body for row in reader.next_rows(10, 1_000)] == [b"b"]
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("destination", ""),
        ("destination", "/queue/"),
        ("destination", " q"),
        ("headers", "no JSON"),
        ("headers", "[]"),
        ("headers", '"text"'),
        pytest.param("body", b"x" * (MAX_BODY_BYTES + 1), id="body-too-long"),
        pytest.param("headers", f'{{"a":"{"x" * MAX_HEADERS_BYTES}"}}', id="headers-too-long"),
        ("body", None),
        ("destination", None),
    ],
)
def test_a_malformed_row_fails_in_the_applications_transaction(
    application: Application, column: str, value: object
) -> None:
    """Whoever inserts it is told, by the database."""
    row = {"destination": "q", "headers": None, "body": b"", column: value}
    insert = f"INSERT INTO {application.table} (destination, headers, body)"
    with application.session() as session, pytest.raises(DBAPIError):
        session.execute(text(f"{insert} VALUES (:destination, :headers, :body)"), row)


@SERVERS
@pytest.mark.parametrize("headers", [None, "{}", '{"_AMQ_DUPL_ID": "1"}'])
@pytest.mark.parametrize("destination", ["/queue", "/topic/a", "a b", "/queue/a::b"])
def test_a_destination_is_taken_whatever_the_headers_are(
    application: Application, destination: str, headers: str | None
) -> None:
    """Each is one that a SEND may have, too."""
    parse(destination)
    insert = f"INSERT INTO {application.table} (destination, headers, body)"
    row = {"destination": destination, "headers": headers, "body": b""}
    with application.session() as session:
        session.execute(text(f"{insert} VALUES (:destination, :headers, :body)"), row)


_HEADERS = {
    '{"priority": 7, "a": true, "JMSXGroupID": "g", "_AMQ_DUPL_ID": "1"}': True,
    '{"JMSXDeliveryCount": 1}': False,
    '{"_AMQ_UNKNOWN": "x"}': False,
    '{"message-id": "1"}': False,
    '{"transaction": "t"}': False,
}


@SERVERS
@pytest.mark.parametrize(("headers", "is_taken"), _HEADERS.items())
def test_reserved_names_are_refused_at_the_call(
    application: Application,
    headers: str,
    is_taken: bool,
) -> None:
    """By the function as by an INSERT."""
    name = send_function(application.table)
    call = "SELECT" if application.dialect is Dialect.POSTGRESQL else "CALL"
    insert = f"INSERT INTO {application.table} (destination, body, headers) VALUES"
    for statement in (f"{call} {name}", insert):
        with application.session() as session:
            send = partial(
                session.execute,
                text(f"{statement}('q', :body, :headers)"),
                {"headers": headers, "body": b"x"},
            )
            if is_taken:
                send()
            else:
                with pytest.raises(DBAPIError):
                    send()


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("NULL::text, 'x'", 'null value in column "destination"'),
        ("'q', NULL::text", 'null value in column "body"'),
        ("'/queue/', 'x'", "'/queue/': expected /queue/NAME"),
        ("'/temp-queue/a', 'x'", "expected /queue/NAME"),
        ("repeat('q', 256), 'x'", "expected /queue/NAME"),
        ("'/queue/a,/queue/', 'x'", "expected /queue/NAME"),
        ("'q', 'x', '{'", "invalid input syntax for type json"),
        ("'q', 'x', '[]'::jsonb", "expected a JSON object"),
        ("'q', 'x', '{\"JMSXUserID\": 1}'::jsonb", "header 'JMSXUserID'"),
        ("'q', 'x', '{\"a\": [1]}'", "header 'a'"),
        ("'q', repeat('x', 1048577)", "has 1048577 bytes"),
        ("'q', 'x', json_build_object('a', repeat('x', 1048577))::text", "headers: have 10485"),
    ],
)
def test_the_function_tells_what_is_wrong(
    application: Application, arguments: str, told: str
) -> None:
    """In the transaction of who calls it."""
    call = text(f"SELECT orthia_send({arguments})".replace(":", r"\:"))
    with application.session() as session, pytest.raises(DBAPIError) as refused:
        session.execute(call)
    assert told in str(refused.value.orig)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_functions_of_who_inserts_let_no_long_body_pass(application: Application) -> None:
    """The check of the table finds functions and operators as the inserting session does."""
    own = (
        "CREATE SCHEMA own",
        "CREATE FUNCTION own.octet_length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION own.f(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
        "CREATE OPERATOR own.> (LEFTARG = integer, RIGHTARG = integer, FUNCTION = own.f)",
        "SET LOCAL search_path = own, pg_catalog, public",
    )
    with application.session() as session:
        for statement in own:
            session.execute(text(statement))
        with pytest.raises(DBAPIError, match="expected at most 1048576"):
            application.insert(session, "x" * 1_048_577)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_the_function_sends_texts_and_bytes(application: Application) -> None:
    """With headers as a text, as jsonb, or without."""
    with application.session() as session:
        for arguments in (
            "'/queue/a', 'text'",
            "'/topic/a', 'bytes'::bytea, '{}'",
            "'/queue/a,/topic/b', 'more', '{\"k\": 1}'::jsonb",
            "'a::b', '\\x00'::bytea, jsonb_build_object('k', 1)",
        ):
            session.execute(text(f"SELECT orthia_send({arguments})".replace(":", r"\:")))
        session.commit()
    rows = application.reader.next_rows(10, 1_000)
    assert [row.body for row in rows] == [b"text", b"bytes", b"more", b"\0"]
    assert [row.headers for row in rows] == [None, "{}", '{"k": 1}', '{"k": 1}']


def test_the_names_of_headers_are_those_of_a_send() -> None:
    """What the tables' constraints say is what the table of STOMP's headers says."""
    of_send = [one for one in HEADERS if "SEND" in one.frames]
    reserved = {one.name for one in of_send if one.name.startswith(RESERVED_PREFIXES)}
    acts = {one.name for one in of_send if one.rule in (Rule.ACTS, Rule.PASSES)}
    removed = {one.name for one in of_send if one.rule is Rule.REMOVED}
    assert set(KNOWN_HEADERS) == reserved & acts
    no_place = {"destination", "content-length", "receipt", "transaction"}
    assert set(REFUSED_HEADERS) == (removed - reserved) | no_place


@pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer: apt-get install pgbouncer")
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_an_application_sends_through_a_pooler_of_transactions(
    migrated_store: DatabaseStoreSettings, database: Database
) -> None:
    """Each of its transactions in any session; one wakes a reader that sleeps."""
    directory = Path(tempfile.mkdtemp(prefix="orthia-pgbouncer-"))  # which nobody may enter
    reader = PostgresqlOutbox(database, migrated_store, notify=True, asleep_seconds=600.0)
    try:
        with pgbouncer(directory, migrated_store, "transaction") as pooled:
            assert reader.next_rows(10, 1_000) == []
            reader.rest(1.0, threading.Event())
            assert reader.next_rows(10, 1_000) == []
            for body in "abc":
                with write_transaction(pooled.engine, "send") as session:
                    session.execute(text(f"SELECT orthia_send('q', '{body}')"))
            reader.rest(1e-9, threading.Event())
            assert [row.body for row in reader.next_rows(10, 1_000)] == [b"a", b"b", b"c"]
    finally:
        reader.close()
        shutil.rmtree(directory)
