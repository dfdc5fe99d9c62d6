"""What a real database's trouble becomes, and what the operator reads."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pymysql
import pytest
from pymysql.constants import COMMAND
from pymysql.err import InternalError, OperationalError
from sqlalchemy import Connection, text
from sqlalchemy.exc import InvalidRequestError

from orthia.config.dialects import Dialect
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import (
    Database,
    DuplicateKey,
    NoRoom,
    PermanentStoreError,
    RefusedForNow,
    StoreError,
    StoreUnavailable,
    TransientStoreError,
    UnknownOutcome,
    classify,
    translate_errors,
    write_transaction,
)
from tests.support.servers import (
    MYSQL_FAMILY,
    PASSWORD,
    SERVER_NAMES,
    ServerProcess,
    StoreServer,
    free_port,
)

SERVERS = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)


@pytest.fixture
def store(database: Database) -> Database:
    """Give a database with two rows."""
    create_two_rows(database)
    return database


def create_two_rows(database: Database) -> None:
    """Create table t with rows 1 and 2."""
    with write_transaction(database.engine, "set up") as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, v INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO t VALUES (1, 0), (2, 0)"))


def connect_error(settings: DatabaseStoreSettings) -> StoreError:
    """Return the error of a first use of the database."""
    database = Database.from_settings(settings)
    try:
        with pytest.raises(StoreError) as caught:
            database.server_now()
    finally:
        database.dispose()
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_a_second_row_with_a_key_is_a_duplicate(store: Database) -> None:
    """A primary key that exists is DuplicateKey, and the text names what was done."""
    with (
        pytest.raises(DuplicateKey, match=r"^store a row: "),
        write_transaction(store.engine, "store a row") as connection,
    ):
        connection.execute(text("INSERT INTO t VALUES (1, 0)"))


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM nowhere", "SELEKT 1", "INSERT INTO t VALUES (3, NULL)"],
    ids=["missing table", "syntax", "null"],
)
def test_what_would_fail_again_is_permanent(store: Database, statement: str) -> None:
    """A statement that is wrong in itself is PermanentStoreError and not a duplicate."""
    with (
        pytest.raises(PermanentStoreError) as caught,
        write_transaction(store.engine, "do") as connection,
    ):
        connection.execute(text(statement))
    assert not isinstance(caught.value, DuplicateKey)


@SERVERS
def test_a_deadlock_is_transient(store: Database) -> None:
    """Of two transactions that lock two rows crosswise, the loser's error says: repeat."""
    barrier = threading.Barrier(2)
    errors: list[StoreError] = []

    def lock(first: int, second: int) -> None:
        try:
            with write_transaction(store.engine, "lock") as connection:
                increment(connection, first)
                barrier.wait(timeout=60)
                increment(connection, second)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=lock, args=rows) for rows in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [TransientStoreError]


def increment(connection: Connection, row: int) -> None:
    """Change a row, which locks it."""
    connection.execute(text("UPDATE t SET v = v + 1 WHERE n = :row"), {"row": row})


def test_a_lock_held_for_too_long_is_unavailable(store: Database) -> None:
    """Waiting for another's lock ends within the query time-out, as StoreUnavailable."""
    impatient = store.dedicated_engine("test", query_timeout_ms=2_500)
    with write_transaction(store.engine, "hold") as holder:
        increment(holder, 1)
        with (
            pytest.raises(StoreUnavailable) as caught,
            write_transaction(impatient, "wait") as connection,
        ):
            increment(connection, 1)
        assert not isinstance(caught.value, UnknownOutcome)


@SERVERS
def test_a_session_that_takes_no_writes_any_more_is_unavailable(store: Database) -> None:
    """The server was made read-only, or a standby: what is written there now may be elsewhere."""
    on_postgresql = store.dialect is Dialect.POSTGRESQL
    which = "CHARACTERISTICS AS TRANSACTION" if on_postgresql else "TRANSACTION"
    with store.engine.connect() as connection:
        connection.execute(text(f"SET SESSION {which} READ ONLY"))
        connection.commit()
        with pytest.raises(RefusedForNow, match=r"(?i)read.only"), translate_errors("write"):
            increment(connection, 1)
        connection.invalidate()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_read_that_turns_into_a_late_write_is_transient(store: Database) -> None:
    """SQLite's stale snapshot, which only a new transaction cures, says: repeat."""

    def write_late() -> None:
        with translate_errors("write late"), store.engine.connect() as reader:
            reader.execute(text("SELECT * FROM t")).all()
            with write_transaction(store.engine, "overtake") as connection:
                increment(connection, 1)
            increment(reader, 1)

    with pytest.raises(TransientStoreError):
        write_late()


def test_what_a_server_that_is_killed_leaves_unknown(private_server: ServerProcess) -> None:
    """A session cut in a transaction is StoreUnavailable, as is a server that is not there.

    A COMMIT to a server that has gone is UnknownOutcome.
    """
    database = Database.from_settings(private_server.settings(private_server.create_database()))

    def write(*, before_commit: bool) -> None:
        with write_transaction(database.engine, "write") as connection:
            increment(connection, 1)
            private_server.kill()
            if not before_commit:
                increment(connection, 2)

    try:
        create_two_rows(database)
        with pytest.raises(StoreUnavailable) as cut:
            write(before_commit=False)
        assert not isinstance(cut.value, UnknownOutcome)
        with pytest.raises(StoreUnavailable, match=r"^read the database's clock: .*refused"):
            database.server_now()
        private_server.restart()
        assert database.server_now() is not None
        with pytest.raises(UnknownOutcome, match=r"^write: "):
            write(before_commit=True)
    finally:
        database.dispose()


@SERVERS
def test_a_session_the_administrator_ends_is_unavailable(store: Database) -> None:
    """A session that was terminated from outside is StoreUnavailable."""
    postgresql = store.engine.dialect.name == "postgresql"
    own_id = "SELECT pg_backend_pid()" if postgresql else "SELECT CONNECTION_ID()"
    end = "SELECT pg_terminate_backend({})" if postgresql else "KILL CONNECTION {}"

    def end_and_read() -> None:
        with (
            translate_errors("read"),
            store.engine.connect() as victim,
            store.engine.connect() as administrator,
        ):
            number = int(victim.execute(text(own_id)).scalar_one())
            administrator.execute(text(end.format(number)))
            victim.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable):
        end_and_read()


@SERVERS
def test_a_connection_that_was_closed_is_unavailable(store: Database) -> None:
    """Though the server was asked nothing: it says no more than that another is to be opened."""
    with store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        with contextlib.closing(driver.cursor()) as cursor:
            driver.close()
            with pytest.raises((psycopg2.Error, pymysql.Error)) as caught:
                cursor.execute("SELECT 1")
        connection.invalidate()
    assert type(classify(caught.value)) is StoreUnavailable


@SERVERS
def test_a_wrong_password_is_permanent_and_not_shown(server: StoreServer) -> None:
    """A refused login will be refused again; the text names the user and no password."""
    wrong = "wröng " + PASSWORD
    error = connect_error(server.settings("nowhere", jdbc_password=Secret(wrong)))
    assert isinstance(error, PermanentStoreError)
    assert "orthia" in str(error)
    assert "; what was tried is ORTHIA_JDBC_PASSWORD if that is set, else jdbc-password" in str(
        error
    )
    assert str(error).count("127.0.0.1") <= 1  # libpq tries twice, and is to be told once
    assert wrong not in "".join(map(str, chain(error)))


def chain(error: BaseException) -> Iterator[str]:
    """Yield the texts of an error and of all that caused it, as a traceback would show them."""
    cause: BaseException | None = error
    while cause is not None:
        yield f"{cause} {cause!r}"
        cause = cause.__cause__ or cause.__context__


@SERVERS
def test_a_missing_database_is_permanent_and_named(server: StoreServer) -> None:
    """A database that was never created is told by name."""
    error = connect_error(server.settings("no_such_database"))
    assert isinstance(error, PermanentStoreError)
    assert "no_such_database" in str(error)


def test_a_missing_certificate_is_permanent() -> None:
    """It will be missing the next time, too: a person has to mend the file or the URL."""
    said = 'root certificate file "/nowhere.pem" does not exist\nEither provide the file, ...'
    error = classify(psycopg2.OperationalError(f"connection failed: {said}\n"))
    assert isinstance(error, PermanentStoreError)
    assert "/nowhere.pem" in str(error)


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_a_driver_that_lost_its_place_has_lost_its_connection(database: Database) -> None:
    """What broke is the conversation, and not what was asked: another one is to be tried."""
    with database.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver._execute_command(COMMAND.COM_QUERY, "SELECT 1")
        driver._next_seq_id = 77
        with pytest.raises(InternalError) as caught:
            driver._read_packet()
    assert type(classify(caught.value)) is StoreUnavailable
    assert type(classify(caught.value, during_commit=True)) is UnknownOutcome
    database.server_now()


@pytest.mark.parametrize(
    "error",
    [
        OperationalError(1044, "Access denied for user 'u'@'h' to database 'd'"),
        OperationalError(1142, "CREATE command denied to user 'u'@'h' for table 'd.t'"),
    ],
)
def test_a_missing_right_names_the_page_about_rights(error: OperationalError) -> None:
    """Whoever set the database up by hand is told where the statements are."""
    assert "`orthia docs databases`" in str(classify(error))


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "no-such-host.invalid"])
def test_an_address_where_nobody_answers_is_unavailable_and_named(scheme: str, host: str) -> None:
    """A port that refuses connections, or a host without an address: it may be tried again."""
    port = free_port()
    url = DatabaseUrl.parse(f"jdbc:{scheme}://{host.format(port=port)}/db")
    settings = DatabaseStoreSettings(url, jdbc_user="orthia", jdbc_password=Secret(PASSWORD))
    error = connect_error(settings)
    assert isinstance(error, StoreUnavailable)
    assert (str(port) if "port" in host else host) in str(error)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1036, RefusedForNow),
        (1047, RefusedForNow),
        (1053, UnknownOutcome),
        (1062, DuplicateKey),
        (1129, RefusedForNow),
        (1146, PermanentStoreError),
        (1213, TransientStoreError),
        (1290, RefusedForNow),
        (1836, RefusedForNow),
        (1927, UnknownOutcome),
        (2013, UnknownOutcome),
        (3032, RefusedForNow),
        (3100, UnknownOutcome),
        (3101, TransientStoreError),
        (3168, RefusedForNow),
        (3169, UnknownOutcome),
        (3796, RefusedForNow),
        (4031, UnknownOutcome),
    ],
)
def test_a_commit_refused_by_mysql_is_judged_by_its_number(
    number: int, kind: type[StoreError]
) -> None:
    """A server or group that will not serve now is unavailable; only a lost answer is unknown."""
    judged = classify(pymysql.OperationalError(number, "told so"), during_commit=True)
    assert type(judged) is kind
    assert f"told so (error {number})" in str(judged)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error writing file '/tmp/MLfd=47' (OS errno 28 - No space left on device)", NoRoom),
        ("Error writing file '/tmp/ML2aX' (Errcode: 28 \"No space left on device\")", NoRoom),
        ("Error writing file '/tmp/MLfd=4' (OS errno 122 - Disk quota exceeded)", NoRoom),
        ("Error writing file '/tmp/28' (OS errno 5 - Input/output error)", RefusedForNow),
        ("Error writing file '/tmp/errno' (Errcode: 128 \"Key was revoked\")", RefusedForNow),
    ],
)
def test_a_temporary_file_that_cannot_be_written_is_judged_by_why(
    said: str, kind: type[StoreError]
) -> None:
    """Without space nothing large is stored, and acknowledgements go on; else it is tried again."""
    assert type(classify(pymysql.OperationalError(3, said))) is kind
    assert type(classify(pymysql.OperationalError(1, said.replace("writing", "creating")))) is kind


def test_an_exhausted_pool_is_unavailable(
    server: StoreServer, store_settings: DatabaseStoreSettings
) -> None:
    """When every connection stays busy the error names the property that allows for more."""
    url = store_settings.jdbc_connection_url
    small = DatabaseStoreSettings(
        url,
        jdbc_user=store_settings.jdbc_user,
        jdbc_password=store_settings.jdbc_password,
        data_source_properties={"maxTotal": "1", "maxWaitMillis": "50"},
    )
    database = Database.from_settings(small)
    with database.engine.connect(), pytest.raises(StoreUnavailable, match="maxTotal"):
        database.server_now()
    database.dispose()


def test_values_are_not_in_the_text(store: Database) -> None:
    """Parameters of a failed statement, which may be secrets, do not appear in the error."""
    with pytest.raises(StoreError) as caught, write_transaction(store.engine, "do") as connection:
        connection.execute(text("SELECT * FROM nowhere WHERE v = :v"), {"v": "s3cret-value"})
    assert "s3cret-value" not in str(caught.value)


def test_other_errors_pass(store: Database) -> None:
    """An exception that is not the database's leaves a transaction as it is, undone."""

    def fail() -> None:
        with write_transaction(store.engine, "do") as connection:
            increment(connection, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT v FROM t WHERE n = 1")).scalar() == 0


def test_a_typed_error_is_told_once(store: Database) -> None:
    """A StoreError that crosses a second translation keeps its text."""
    first = TransientStoreError("told once")
    with pytest.raises(TransientStoreError, match=r"^told once$"), translate_errors("again"):
        raise first
    assert classify(first) is first


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_full_disk_is_told_as_one(database: Database) -> None:
    """An operator reads what to do, not only the name of a code."""
    with database.engine.connect() as connection:
        connection.execute(text("CREATE TABLE t (x BLOB)"))
        connection.execute(text("PRAGMA max_page_count = 5"))
        with (
            pytest.raises(StoreUnavailable, match=r"no room is left on the disk.*SQLITE_FULL"),
            translate_errors("fill"),
        ):
            connection.execute(text("INSERT INTO t VALUES (zeroblob(100000))"))
        connection.rollback()


@pytest.mark.parametrize(
    ("said", "kind"),
    [("This connection is closed", StoreUnavailable), ("a bug of ours", PermanentStoreError)],
)
def test_what_the_pool_says_of_two_lost_connections_is_not_what_it_says_of_misuse(
    said: str, kind: type[StoreError]
) -> None:
    """What is misused is so at the next attempt, too."""
    assert type(classify(InvalidRequestError(said))) is kind
