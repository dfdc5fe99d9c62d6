"""A stopped pair's store moves from one database to the next, and everything arrives."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, insert, select, update

from orthia import migrations
from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import (
    DatabaseStoreSettings,
    RetentionSettings,
)
from orthia.database import Database
from orthia.journal import MessageLocation, QueueBinding
from orthia.journal.model.message import encode_message
from orthia.journal.model.unit import Unit
from orthia.journal.sql.tables import (
    acks_table,
    bindings_table,
    messages_table,
    outbox_table,
    times_table,
)
from orthia.nodemanager import State
from orthia.nodemanager.errors import StoreInUse
from orthia.nodemanager.failover_log import FailoverLogTable
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from orthia.pipeline.errors import MigrationFailed, MigrationRefused
from orthia.pipeline.jobs.copying import copied
from orthia.pipeline.jobs.migrate import migrate
from orthia.pipeline.sources.schemas import RAW
from orthia.pipeline.sources.store import Endpoint, StoreReference
from tests.cli.test_failover_log import entry
from tests.conftest import Servers
from tests.journal.large_support import DATA, put, read, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload, record
from tests.pipeline.conftest import PASSWORD_VARIABLE
from tests.support.servers import PASSWORD, SqliteServer, StoreServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

LATE = 4_102_444_800_001
"""In the year 2100."""
NODE_ID = "613cdfeb-50cc-4af2-876d-d71814b9dc6f"


def end(settings: DatabaseStoreSettings) -> Endpoint:
    """Return a store as one end of a migration."""
    return Endpoint(settings, StoreReference.of(settings, PASSWORD_VARIABLE)[0])


@pytest.fixture
def old(tmp_path: Path) -> Iterator[DatabaseStoreSettings]:
    """Give the SQLite store of a stopped pair that has lived."""
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    opened = SqlJournalStore(replace(settings, journal_retention=RetentionSettings(7)))
    opened.advance_fence(7)
    journal = opened.open(token=7)
    for queue_id, name in ((QUEUE, "orders"), (OTHER_QUEUE, "prüfung")):
        journal.add_binding(QueueBinding(queue_id, name, "shop", RoutingType.MULTICAST))
    seqs = opened.append(journal, *[f"body {number} £" for number in range(2_500)])
    journal.delete([MessageLocation(seq) for seq in seqs[-400:]])
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    unit.add_message([QUEUE], encode_message(record("late")._replace(expires_ms=LATE)))
    journal.append_unit(unit)
    put(opened, journal, upload(opened, journal), (OTHER_QUEUE,))
    table = FailoverLogTable(opened.database, settings)
    for number in range(1, 4):
        table.insert(entry("a", number, number))
    metadata, dialect = MetaData(), opened.database.dialect
    with opened.database.engine.begin() as connection:
        outbox = outbox_table(metadata, settings.outbox_table_name, dialect)
        sent = [{"destination": "orders", "body": f"by SQL {one}".encode()} for one in range(3)]
        connection.execute(insert(outbox), sent)
        acks = acks_table(metadata, settings.acks_table_name, dialect)
        connection.execute(insert(acks), [{"message_id": seqs[0]}])
        rows = node_manager_store(MetaData(), "NODE_MANAGER_STORE", opened.database.dialect)
        values: dict[int, dict[str, object]] = {
            0: {"state": "P"},
            1: {"holder_token": 9},
            3: {"node_id": NODE_ID},
        }
        for number, change in values.items():
            connection.execute(update(rows).where(rows.c.id == number).values(change))
    opened.close()
    yield settings

    def nobody_is_connected() -> bool:
        # What a thread gave back to a pool that was closed goes when the pool is collected.
        gc.collect()
        return not server.connections(str(settings.jdbc_connection_url.sqlite_path))

    wait_until(nobody_is_connected, what="the end of leaked connections")


@pytest.fixture
def servers(shared_servers: Servers, monkeypatch: pytest.MonkeyPatch) -> dict[str, StoreServer]:
    """Give PostgreSQL and MariaDB."""
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    return {dbms: shared_servers(dbms) for dbms in ("postgresql", "mariadb")}


def test_a_store_moves_through_every_dbms_and_serves_there(
    spark: SparkSession, old: DatabaseStoreSettings, servers: dict[str, StoreServer]
) -> None:
    """SQLite to PostgreSQL to MariaDB: rows, bindings, log, state, node id and tokens."""
    names = {dbms: server.create_database() for dbms, server in servers.items()}
    second, third = (servers[dbms].settings(name) for dbms, name in names.items())
    first_step = migrate(spark, end(old), end(second))
    second_step = migrate(spark, end(second), end(third), partitions=3)
    assert [(one.table, one.rows) for one in first_step] == [
        ("MESSAGES", 2_105),
        ("MESSAGES_HISTORY", 400),
        ("BINDINGS", 3),
        ("FAILOVER_LOG", 3),
        ("MESSAGE_TIMES", 1),
        ("ORTHIA_OUTBOX", 3),
        ("ORTHIA_ACKS", 1),
        ("LARGE_MESSAGES", 4),
    ]
    assert second_step == first_step
    database = Database.from_settings(third)
    status = SqlNodeManagerStore(database, third, database.engine).status()
    assert (status.state, status.node_id) == (State.PAUSED, NODE_ID)
    assert (status.live.token, status.fence_token) == (9, 7)
    with database.engine.connect() as connection:
        outbox = outbox_table(MetaData(), "ORTHIA_OUTBOX", database.dialect)
        sent = connection.execute(select(outbox.c.body).order_by(outbox.c.id)).scalars()
        assert [bytes(one) for one in sent] == [b"by SQL 0", b"by SQL 1", b"by SQL 2"]
        times = times_table(MetaData(), "MESSAGES_TIMES", database.dialect)
        assert list(connection.execute(select(times.c.at_ms)).scalars()) == [LATE]
    moved = SqlJournalStore(third)
    moved.advance_fence(10)
    journal = moved.open(token=10)
    assert {one.name for one in journal.bindings if isinstance(one, QueueBinding)} == {
        "orders",
        "prüfung",
    }
    bodies = moved.bodies(journal)
    # The first one was acknowledged by SQL, which no node has seen yet.
    assert (len(bodies), bodies[0]) == (1_000, "body 1 £")
    small, large = moved.window(journal, OTHER_QUEUE).messages
    assert small.record.body == b"both"
    assert large.record.large is not None
    assert read(moved, journal, large.record.large) == DATA
    moved.close()
    database.dispose()
    for dbms, name in names.items():
        servers[dbms].drop_database(name)


def test_a_held_lease_is_refused(
    spark: SparkSession, old: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """While a node holds a lock of the old store nothing is copied, and the holder is named."""
    database = Database.from_settings(old)
    store = SqlNodeManagerStore(database, old, database.engine)
    assert store.try_acquire(Lock.BACKUP, "node-b@host", 60_000) is not None
    target = SqliteServer(tmp_path).settings("new.sqlite")
    with pytest.raises(StoreInUse, match=r"node-b@host holds the backup lock.*stop both"):
        migrate(spark, end(old), end(target))
    database.dispose()
    path = target.jdbc_connection_url.sqlite_path
    assert path is not None
    assert not path.exists()


def test_a_store_that_is_not_empty_is_refused(
    spark: SparkSession, old: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """A migration never writes among other rows."""
    target = SqliteServer(tmp_path).settings("new.sqlite")
    database = Database.from_settings(target)
    migrations.upgrade(database, target)
    FailoverLogTable(database, target).insert(entry("b", 1, 1))
    database.dispose()
    with pytest.raises(MigrationRefused, match="FAILOVER_LOG"):
        migrate(spark, end(old), end(target))


def test_a_store_that_was_copied_in_part_is_refused_as_one(
    spark: SparkSession, old: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """Its rows are newer than its tokens, which come last: that is no damage to be repaired."""
    target = SqliteServer(tmp_path).settings("new.sqlite")
    database = Database.from_settings(target)
    migrations.upgrade(database, target)
    table = bindings_table(MetaData(), "BINDINGS", database.dialect)
    kinds = {"record_type": 1, "user_record_type": 1, "record": b""}
    with database.engine.begin() as connection:
        connection.execute(table.insert().values(seq=1, id=1, epoch=7, **kinds))
    database.dispose()
    with pytest.raises(MigrationRefused, match=r"not empty \(BINDINGS\)"):
        migrate(spark, end(old), end(target))


def test_a_node_that_starts_meanwhile_makes_it_fail(
    spark: SparkSession, old: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """A lock taken and given back while rows were copied does not go unnoticed."""
    target = SqliteServer(tmp_path).settings("new.sqlite")

    def start_a_node(what: str) -> None:
        if "bindings" in what:
            database = Database.from_settings(old)
            store = SqlNodeManagerStore(database, old, database.engine)
            taken = store.try_acquire(Lock.LIVE, "node-a@host", 60_000)
            assert taken is not None
            store.release(Lock.LIVE, "node-a@host", taken.token)
            database.dispose()

    with pytest.raises(MigrationFailed, match="a node of the old store started"):
        migrate(spark, end(old), end(target), say=start_a_node)
    database = Database.from_settings(target)
    assert SqlNodeManagerStore(database, target, database.engine).status().node_id is None
    database.dispose()


def test_a_repeated_task_replaces_what_it_wrote(
    spark: SparkSession, old: DatabaseStoreSettings, store_settings: DatabaseStoreSettings
) -> None:
    """Rows that an attempt left behind are neither doubled nor kept: on every DBMS."""
    database = Database.from_settings(store_settings)
    migrations.upgrade(database, store_settings)
    source, target = (StoreReference.of(one, PASSWORD_VARIABLE)[0] for one in (old, store_settings))
    table = messages_table(MetaData(), store_settings.message_table_name, database.dialect)
    for _ in range(2):
        assert copied(spark, source, target, RAW, messages_table, history=False) == 2_105
        with database.engine.begin() as connection:
            records = list(
                connection.execute(select(table.c.record).order_by(table.c.seq)).scalars()
            )
            assert len(records) == 2_105
            assert b"body 0 " in bytes(records[0])
            connection.execute(update(table).values(record=b"of another attempt"))
    database.dispose()
