"""The routine by which applications acknowledge, as they meet it: by SQL alone."""

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, text
from sqlalchemy.dialects.mysql.base import MySQLDialect

from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect
from orthia.journal.model.records import UserRecordType
from orthia.migrations import TableNames
from tests.database.test_pooling import PGBOUNCER, pgbouncer
from tests.support.servers import PASSWORD, SERVER_NAMES, StoreServer, url_with_password
from tests.support.waiting import wait_until

SERVERS = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
HELD, BODY, OTHER, CACHED = 5, 6, 7, 8
"""Messages of a queue, the body that several queues share, and a duplicate id."""


@pytest.fixture
def engine(database: Database, migrated_store: DatabaseStoreSettings) -> Iterator[Engine]:
    """Give an application's engine on a store with two messages, and a table of its own."""
    assert migrations.damage(database, migrated_store) == []
    # PyMySQL encodes a password as Latin-1.
    is_mysql = database.dialect is Dialect.MYSQL
    password = {"password": PASSWORD.encode()} if is_mysql else {}
    engine = sa.create_engine(url_with_password(migrated_store), connect_args=password)
    names = TableNames.from_settings(migrated_store)
    quote = engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        for seq, kind, queue_id in (
            (HELD, 31, 1),
            (BODY, 31, None),
            (OTHER, 32, 1),
            (CACHED, int(UserRecordType.DUPLICATE_ID), 1),
        ):
            connection.execute(
                text(
                    f"INSERT INTO {quote(names.messages)} (seq, id, record_type,"
                    " user_record_type, queue_id, epoch, record)"
                    " VALUES (:seq, :seq, 11, :kind, :queue_id, 1, '')"
                ),
                {"seq": seq, "kind": kind, "queue_id": queue_id},
            )
        connection.execute(text("CREATE TABLE effects (message_id BIGINT)"))
    yield engine
    engine.dispose()


def acknowledge(connection: Connection, message_id: object, name: str = "orthia_ack") -> None:
    """Do what an application does: its effect, and the acknowledgement."""
    call = "SELECT" if connection.dialect.name == "postgresql" else "CALL"
    connection.execute(text("INSERT INTO effects VALUES (0)"))
    connection.execute(text(f"{call} {name}(:id)"), {"id": message_id})


def effects(engine: Engine) -> int:
    """Return how many effects are committed."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT COUNT(*) FROM effects")).scalar_one())


def is_waiting(engine: Engine) -> bool:
    """Return whether a session waits for a lock of another."""
    with engine.connect() as connection:
        if isinstance(connection.dialect, MySQLDialect) and connection.dialect.is_mariadb:
            # What InnoDB shows of locks is not made anew while it is asked for again and again.
            asked = (
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
                " WHERE command = 'Query' AND id <> CONNECTION_ID() AND time_ms > 100"
            )
        elif engine.dialect.name == "postgresql":
            asked = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        else:
            asked = "SELECT COUNT(*) FROM performance_schema.data_lock_waits"
        return bool(connection.execute(text(asked)).scalar_one())


@SERVERS
def test_a_malformed_id_is_refused_by_name(engine: Engine) -> None:
    """The call fails, says what it got and what it expects, and nothing is committed."""
    for message_id in ("", "0", "05", "-5", "5.0", "five", " 5", "9" * 19, "5" * 300, None):
        with (
            pytest.raises(sa.exc.DBAPIError, match=r"is no message id; expected the message-id"),
            engine.begin() as connection,
        ):
            acknowledge(connection, message_id)
    assert effects(engine) == 0


@SERVERS
@pytest.mark.parametrize("message_id", [BODY, CACHED, 99])
def test_what_is_in_no_queue_is_refused(engine: Engine, message_id: int) -> None:
    """So whoever still holds a delivery of a message that is gone fails, however late."""
    with (
        pytest.raises(sa.exc.IntegrityError, match=rf"message {message_id} is in no queue"),
        engine.begin() as connection,
    ):
        acknowledge(connection, str(message_id))
    assert effects(engine) == 0


@SERVERS
def test_a_second_processing_fails_with_all_its_effects(engine: Engine) -> None:
    """Also where the application goes on after the error, and commits."""
    with engine.begin() as connection:
        acknowledge(connection, str(HELD))
    with engine.connect() as connection:
        acknowledge(connection, str(OTHER))
        with pytest.raises(sa.exc.IntegrityError, match=f"message {HELD} was acknowledged before"):
            acknowledge(connection, str(HELD))
        connection.commit()
    assert effects(engine) == 1
    with engine.begin() as connection:
        acknowledge(connection, str(OTHER))
    assert effects(engine) == 2, "what was rolled back can be done again"


@SERVERS
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_at_once_one_commits(engine: Engine, *, commits: bool) -> None:
    """The second waits for the first, and fails only if that commits."""
    with ThreadPoolExecutor(1) as thread, engine.connect() as first:
        acknowledge(first, str(HELD))

        def second() -> None:
            with engine.begin() as connection:
                acknowledge(connection, str(HELD))

        waiting = thread.submit(second)
        wait_until(lambda: is_waiting(engine), what="the second waits")
        (first.commit if commits else first.rollback)()
        error = waiting.exception(60)
    assert isinstance(error, sa.exc.IntegrityError if commits else type(None))
    assert effects(engine) == 1


@SERVERS
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_message_that_goes_meanwhile_is_not_acknowledged(engine: Engine, level: str) -> None:
    """A transaction whose snapshot still has the message fails all the same."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM effects")).scalar_one() == 0
        table = "messages" if engine.dialect.name == "postgresql" else "MESSAGES"
        with engine.begin() as node:
            node.execute(text(f"DELETE FROM {table} WHERE seq = {HELD}"))
        with pytest.raises(sa.exc.DBAPIError, match=r"is in no queue|could not serialize"):
            acknowledge(connection, str(HELD))
    assert effects(engine) == 0


@SERVERS
def test_nobody_removes_a_message_that_is_being_acknowledged(engine: Engine) -> None:
    """A delete of its row waits for the application's transaction."""
    table = "messages" if engine.dialect.name == "postgresql" else "MESSAGES"
    with ThreadPoolExecutor(1) as thread, engine.connect() as application:
        acknowledge(application, str(HELD))

        def remove() -> None:
            with engine.begin() as node:
                node.execute(text(f"DELETE FROM {table} WHERE seq = {HELD}"))

        removal = thread.submit(remove)
        wait_until(lambda: is_waiting(engine), what="the delete waits")
        application.commit()
        removal.result(60)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_tables_of_the_session_do_not_stand_for_the_brokers(engine: Engine) -> None:
    """An application may make temporary ones of the same names, in which any message is."""
    with engine.connect() as connection:
        for table in ("messages", "orthia_acks"):
            connection.execute(text(f"CREATE TEMPORARY TABLE {table} (LIKE public.{table})"))
        row = "SELECT 99, 99, 11, 31, NULL, 1, 1, now(), ''::bytea"
        connection.execute(text(f"INSERT INTO messages {row}"))
        with pytest.raises(sa.exc.IntegrityError, match="message 99 is in no queue"):
            acknowledge(connection, "99")


@SERVERS
def test_each_broker_of_a_database_has_its_own(
    engine: Engine, database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """A routine is named after the table, and acknowledges messages of its own broker only."""
    parts = ("acks", "outbox", "message", "bindings", "large_message", "node_manager_store")
    tables: dict[str, Any] = {
        f"{part}_table_name": f"SECOND_{part}" for part in (*parts, "failover_log")
    }
    second = replace(migrated_store, **tables)
    migrations.upgrade(database, second)
    names = TableNames.from_settings(second)
    assert names.ack_routine == "second_ack"
    with engine.connect() as connection, pytest.raises(sa.exc.IntegrityError, match="in no queue"):
        acknowledge(connection, str(HELD), "second_ack")
    with engine.begin() as connection:
        acknowledge(connection, str(HELD))


@SERVERS
@pytest.mark.parametrize("granted", [True, False])
def test_a_role_needs_the_routine_and_nothing_else(
    engine: Engine, server: StoreServer, *, granted: bool
) -> None:
    """Without that right the call is refused by the routine's name."""
    user = f"app_{server.__class__.__name__[:3]}_{granted}".lower()
    is_postgresql = engine.dialect.name == "postgresql"
    with engine.begin() as connection:
        database = engine.url.database
        if is_postgresql:
            made = [f"CREATE ROLE {user} LOGIN PASSWORD 'secret'"]
            rights = [f"GRANT INSERT, SELECT ON effects TO {user}"]
            right = f"GRANT EXECUTE ON FUNCTION orthia_ack(text) TO {user}"
            ended = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
        else:
            made = [f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'"]
            rights = [f"GRANT INSERT, SELECT ON {database}.effects TO '{user}'@'%'"]
            right = f"GRANT EXECUTE ON PROCEDURE {database}.orthia_ack TO '{user}'@'%'"
            ended = [f"DROP USER '{user}'@'%'"]
        for statement in (*made, *rights, *([right] if granted else [])):
            connection.execute(text(statement))
    application = sa.create_engine(engine.url.set(username=user, password="secret"))
    try:
        with application.connect() as connection:
            if granted:
                acknowledge(connection, str(HELD))
                connection.commit()
                assert effects(engine) == 1
            else:
                with pytest.raises(sa.exc.DBAPIError, match=r"denied.*orthia_ack"):
                    acknowledge(connection, str(HELD))
    finally:
        application.dispose()
        with engine.begin() as connection:
            for statement in ended:
                connection.execute(text(statement))


@pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer: apt-get install pgbouncer")
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_an_application_acknowledges_through_a_pooler_of_transactions(
    engine: Engine, migrated_store: DatabaseStoreSettings
) -> None:
    """Each of its transactions in any session; the second processing waits, and fails."""
    directory = Path(tempfile.mkdtemp(prefix="orthia-pgbouncer-"))  # which nobody may enter
    try:
        with (
            pgbouncer(directory, migrated_store, "transaction") as pooled,
            ThreadPoolExecutor(1) as thread,
        ):

            def second() -> None:
                with pooled.engine.begin() as connection:
                    acknowledge(connection, str(HELD))

            with pooled.engine.connect() as first:
                acknowledge(first, str(HELD))
                with pooled.engine.begin() as other:
                    acknowledge(other, str(OTHER))
                waiting = thread.submit(second)
                wait_until(lambda: is_waiting(engine), what="the second waits")
                first.commit()
                error = waiting.exception(60)
        assert isinstance(error, sa.exc.IntegrityError)
        assert effects(engine) == 2
    finally:
        shutil.rmtree(directory)
