"""Connections: what every session is set to, whose they are, and where a database may be."""

import os
import pwd
import socket
import struct
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from orthia.config.errors import ConfigurationError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, Dialect, StoreError, UnknownOutcome, write_transaction
from tests.conftest import EVERY_DBMS
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES
from tests.support.waiting import wait_until


def dedicated(database: Database) -> Engine:
    """Return an engine with every limit set."""
    return database.dedicated_engine(
        "test", query_timeout_ms=10_000, idle_in_transaction_ms=3_000, mark="test"
    )


SESSIONS: dict[str, tuple[str, dict[str, object]]] = {
    "postgresql": (
        "SHOW {}",
        {
            "transaction_isolation": "read committed",
            "TimeZone": "UTC",
            "application_name": "orthia test",
            "statement_timeout": "9s",
            "idle_in_transaction_session_timeout": "3s",
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "20000",
            "client_encoding": "UTF8",
        },
    ),
    "mariadb": (
        "SELECT @@SESSION.{}",
        {
            "tx_isolation": "READ-COMMITTED",
            "time_zone": "+00:00",
            "innodb_lock_wait_timeout": 9,
            "max_statement_time": 9.0,
            "idle_transaction_timeout": 3,
            "net_read_timeout": 3,
            "character_set_client": "utf8mb4",
        },
    ),
    "mysql": (
        "SELECT @@SESSION.{}",
        {
            "transaction_isolation": "READ-COMMITTED",
            "time_zone": "+00:00",
            "innodb_lock_wait_timeout": 9,
            "max_execution_time": 9_000,
            "wait_timeout": 3,
            "character_set_client": "utf8mb4",
        },
    ),
    "sqlite": ("PRAGMA {}", {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 10_000}),
}
"""How each DBMS is asked for a setting of a session, and what it says."""


@pytest.mark.parametrize(
    ("server", "dbms"), [(dbms, dbms) for dbms in EVERY_DBMS], indirect=["server"]
)
def test_a_session_is_set_up(database: Database, dbms: str) -> None:
    """With its isolation, zone, name and limits from the start."""
    ask, expected = SESSIONS[dbms]
    with dedicated(database).connect() as connection:
        found = {name: connection.execute(text(ask.format(name))).scalar() for name in expected}
    assert found == expected


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
def test_mysql_refuses_what_does_not_fit(database: Database) -> None:
    """A value too long for its column is an error and not cut, and text may be of any script."""
    with write_transaction(database.engine, "create") as connection:
        connection.execute(text("CREATE TABLE t (v VARCHAR(4)) DEFAULT CHARSET utf8mb4"))
        connection.execute(text("INSERT INTO t VALUES ('日本😀')"))
    with pytest.raises(StoreError), write_transaction(database.engine, "insert") as connection:
        connection.execute(text("INSERT INTO t VALUES ('12345')"))


def test_a_raw_connection_is_set_up_too(database: Database) -> None:
    """The driver's own connection, which the journal uses, comes from the same place."""
    connection = dedicated(database).raw_connection()
    try:
        cursor = connection.cursor()
        if database.dialect is Dialect.SQLITE:
            cursor.execute("PRAGMA synchronous")
            assert cursor.fetchone() == (2,)
        else:
            cursor.execute(
                "SELECT current_setting('TimeZone')"
                if database.dialect is Dialect.POSTGRESQL
                else "SELECT @@SESSION.time_zone"
            )
            assert cursor.fetchone() in [("UTC",), ("+00:00",)]
        cursor.close()
    finally:
        connection.close()


def test_an_exhausted_pool_does_not_starve_a_dedicated_engine(database: Database) -> None:
    """With every shared connection in use, the lease still has its own."""
    engine = dedicated(database)
    busy = [database.engine.connect() for _ in range(8)]
    try:
        with engine.connect() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1
    finally:
        for connection in busy:
            connection.close()


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_connection_that_broke_in_the_pool_is_replaced(database: Database) -> None:
    """A pooled connection the server has closed meanwhile costs no call."""
    own_id, others, end = (
        (
            "SELECT pg_backend_pid()",
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()",
            "SELECT pg_terminate_backend({})",
        )
        if database.dialect is Dialect.POSTGRESQL
        else (
            "SELECT CONNECTION_ID()",
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE()",
            "KILL CONNECTION {}",
        )
    )
    with database.engine.connect() as connection:
        pooled = connection.execute(text(own_id)).scalar_one()
    with dedicated(database).connect() as administrator:
        # PostgreSQL shows a transaction one and the same view of its sessions to the end.
        administrator.execution_options(isolation_level="AUTOCOMMIT")
        administrator.execute(text(end.format(pooled)))
        wait_until(
            lambda: pooled not in administrator.execute(text(others)).scalars().all(),
            what="the session's end",
        )
    assert database.server_now() is not None


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_the_server_ends_a_transaction_that_stands_still(database: Database) -> None:
    """A process that froze in a transaction loses its locks, and cannot commit when it wakes."""
    with write_transaction(database.engine, "create") as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    engine = database.dedicated_engine(
        "frozen", query_timeout_ms=20_000, idle_in_transaction_ms=1_000
    )

    def freeze() -> None:
        with write_transaction(engine, "freeze") as frozen:
            frozen.execute(text("UPDATE t SET n = 2"))
            with write_transaction(database.engine, "take over") as successor:
                successor.execute(text("UPDATE t SET n = 3"))

    with pytest.raises(UnknownOutcome):
        freeze()
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM t")).scalar() == 3


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_write_transaction_excludes_other_writers_from_its_first_read(
    database: Database,
) -> None:
    """What a write transaction reads on SQLite still holds when it writes."""
    impatient = database.dedicated_engine("test", query_timeout_ms=100)
    with write_transaction(database.engine, "first") as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(StoreError), write_transaction(impatient, "second"):
            pass


@pytest.mark.parametrize(
    ("properties", "size", "overflow"),
    [
        ({}, 8, 0),
        ({"maxTotal": "3"}, 3, 0),
        ({"maxTotal": "20", "maxIdle": "4"}, 4, 16),
        ({"maxTotal": "-1"}, 8, -1),
        ({"maxTotal": "5", "maxIdle": "0"}, 1, 4),
    ],
)
def test_the_pool_is_sized_by_the_pool_properties(
    tmp_path: Path, properties: dict[str, str], size: int, overflow: int
) -> None:
    """The properties of Artemis' JDBC pool mean here what they mean there."""
    url = DatabaseUrl.parse(f"jdbc:sqlite:{tmp_path}/db")
    database = Database.from_settings(DatabaseStoreSettings(url, data_source_properties=properties))
    pool = database.engine.pool
    assert isinstance(pool, sqlalchemy.pool.QueuePool)
    assert pool.size() == size
    assert pool._max_overflow == overflow


def test_a_pool_property_that_is_no_number_is_named(tmp_path: Path) -> None:
    """A property that cannot be read is a configuration error that quotes it."""
    url = DatabaseUrl.parse(f"jdbc:sqlite:{tmp_path}/db")
    settings = DatabaseStoreSettings(url, data_source_properties={"maxTotal": "many"})
    with pytest.raises(ConfigurationError, match="maxTotal is 'many'"):
        Database.from_settings(settings)


@pytest.mark.parametrize(
    ("path", "said"),
    [("/missing/db", r"missing/db does not exist; create .*missing"), ("", "is not a file")],
)
def test_an_sqlite_path_that_is_none_is_named(tmp_path: Path, path: str, said: str) -> None:
    """With the directory to create; a directory in the database's place is told apart."""
    url = DatabaseUrl.parse(f"jdbc:sqlite:{tmp_path}{path}")
    with pytest.raises(ConfigurationError, match=said):
        Database.from_settings(DatabaseStoreSettings(url))


def test_an_sqlite_directory_that_is_not_writable_is_named() -> None:
    """A directory in which SQLite cannot create its files is told before the first write."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        settings = DatabaseStoreSettings(DatabaseUrl.parse(f"jdbc:sqlite:{directory}/db"))
        assert f"the directory {directory} of the SQLite database is not writable" in as_nobody(
            lambda: Database.from_settings(settings)
        )


def as_nobody(call: Callable[[], object]) -> str:
    """Return the error of ``call`` for a user with no rights; the superuser may write anywhere."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(pwd.getpwnam("nobody").pw_uid)
            call()
        except ConfigurationError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as text_of_error:
        return text_of_error.read()


def test_a_database_in_memory_is_refused() -> None:
    """A database no second node could see is no store."""
    url = DatabaseUrl(Dialect.SQLITE, sqlalchemy.make_url("sqlite://"))
    with pytest.raises(ConfigurationError, match="in memory"):
        Database.from_settings(DatabaseStoreSettings(url))


def start_up_of(client: socket.socket) -> set[str]:
    """Return what a client of PostgreSQL says of its session as it begins, by name."""
    with client, client.makefile("rb") as read:
        while True:
            (length,) = struct.unpack("!i", read.read(4))
            message = read.read(length - 4)
            if len(message) > 4:  # else it asks for TLS or GSSAPI
                break
            client.sendall(b"N")
    names = message[4:].split(b"\0")[:-2:2]
    return {name.decode() for name in names}


def test_a_pooler_is_told_nothing_that_it_refuses() -> None:
    """PgBouncer takes the settings of a session from nobody before the session is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/d"
        settings = DatabaseStoreSettings(
            jdbc_connection_url=DatabaseUrl.parse(url), jdbc_network_timeout=20_000
        )
        database = Database.from_settings(settings)
        engines = [
            database.engine,
            dedicated(database),
            database.reading_engine(
                "test", query_timeout_ms=20_000, postgresql_settings={"jit": "off"}
            ),
        ]
        for engine in engines:
            with ThreadPoolExecutor(1) as pool:
                said = pool.submit(lambda: start_up_of(server.accept()[0]))
                with pytest.raises(OperationalError):
                    engine.connect()
                assert said.result() == {"user", "database", "client_encoding", "application_name"}
        database.dispose()
