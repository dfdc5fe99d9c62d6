"""Migrations on real databases."""

import gc
import multiprocessing
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text

from orthia import migrations
from orthia.config.names import MAXIMUM_TABLE_NAME_LENGTH
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    Dialect,
    PermanentStoreError,
    fold_table_name,
    write_transaction,
)
from orthia.journal.sql.tables import (
    acks_table,
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
    outbox_table,
    times_table,
)
from orthia.migrations import TableNames
from orthia.nodemanager.locks.reports import API_ROWS, OUTBOX_ROW, REPORT_ROWS
from orthia.nodemanager.tables import failover_log, node_manager_store
from tests.support.schema import mysql_statements

ROWS = [
    (0, None, None, 0, None, "N"),
    *(
        (n, None, None, 0, None, None)
        for n in (*range(1, 5), *REPORT_ROWS.values(), *API_ROWS.values(), OUTBOX_ROW)
    ),
]

# One process imports this module, and the others are forked from it.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def declared(s: DatabaseStoreSettings) -> sa.MetaData:
    """Return the tables as the rooms that use them declare them."""
    dialect = s.jdbc_connection_url.dialect
    metadata = sa.MetaData()
    node_manager_store(metadata, s.node_manager_store_table_name, dialect)
    failover_log(metadata, s.failover_log_table_name, dialect)
    messages_table(metadata, s.message_table_name, dialect)
    bindings_table(metadata, s.bindings_table_name, dialect)
    history_table(metadata, s.message_history_table_name, dialect)
    large_messages_table(metadata, s.large_message_table_name, dialect)
    times_table(metadata, s.message_times_table_name, dialect)
    outbox_table(metadata, s.outbox_table_name, dialect)
    acks_table(metadata, s.acks_table_name, dialect)
    return metadata


def differences(database: Database, s: DatabaseStoreSettings) -> list[Any]:
    """Return how the database differs from what is declared."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": TableNames.from_settings(s).version,
                "compare_type": True,
                # SQLite and MySQL give an expression back in words of their own.
                "compare_server_default": database.dialect is Dialect.POSTGRESQL,
            },
        )
        return list(compare_metadata(context, declared(s)))


def rows(database: Database, s: DatabaseStoreSettings) -> list[tuple[Any, ...]]:
    """Return the rows of the node manager's table."""
    name = TableNames.from_settings(s).node_manager_store
    table = sa.table(
        name,
        *map(
            sa.column,
            ["id", "holder_id", "holder_expiration_time", "holder_token", "node_id", "state"],
        ),
    )
    with database.engine.connect() as connection:
        found = connection.execute(sa.select(table).order_by(table.c.id))
        return [tuple(row) for row in found]


def shape(database: Database) -> dict[str, Any]:
    """Return what the DBMS itself says of every table: columns, defaults, keys and indexes."""
    inspector = sa.inspect(database.engine)
    return {
        name: (
            [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(name)
            ],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(
                (str(index["name"]), index["column_names"], index["unique"])
                for index in inspector.get_indexes(name)
            ),
        )
        for name in inspector.get_table_names()
    }


def test_an_empty_database_gets_the_newest_revision(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """An empty database has no revision before an upgrade and the newest one after it."""
    assert migrations.current(database, store_settings) is None
    done = migrations.upgrade(database, store_settings)
    assert done is not None
    assert (done.from_revision, done.to_revision) == (None, migrations.head())
    assert migrations.current(database, store_settings) == migrations.head()
    assert rows(database, store_settings) == ROWS
    assert migrations.upgrade(database, store_settings) is None, "nothing is left to be done"


def test_the_revisions_are_alembics() -> None:
    """The names of the files, which are looked at without it, say what it finds in them."""
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    known = [script.revision for script in scripts.walk_revisions()]
    assert list(migrations._revisions()) == known[::-1]
    assert migrations.head() == scripts.get_current_head()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_schema_that_is_up_to_date_is_found_so_without_alembic(
    migrated_store: DatabaseStoreSettings,
) -> None:
    """To load it takes long, and a node that takes over does not need it."""
    program = """if True:
        import sys
        import orthia.broker.node.node
        from orthia import migrations
        from orthia.config.settings import DatabaseStoreSettings
        from orthia.config.urls import DatabaseUrl
        from orthia.database import Database
        settings = DatabaseStoreSettings(DatabaseUrl.parse(sys.argv[1]))
        migrations.upgrade(Database.from_settings(settings), settings)
        print("alembic" in sys.modules)
    """
    url = migrated_store.jdbc_connection_url.display
    command = [sys.executable, "-c", program, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_the_migrated_schema_is_the_declared_one(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """What migrations make is what the node manager and the journal declare."""
    assert differences(database, migrated_store) == []


def test_the_comparison_sees_a_difference(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """An index that is gone is noticed: the comparison above compares."""
    name = TableNames.from_settings(migrated_store).messages
    index = fold_table_name(database.dialect, f"{name}_QUEUE_SEQ")
    with write_transaction(database.engine, "drop") as connection:
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        sa.Index(index, table.c.queue_id, table.c.seq).drop(connection)
    assert len(differences(database, migrated_store)) == 1


def test_a_second_upgrade_changes_nothing(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """An upgrade of a database in use keeps its rows."""
    name = TableNames.from_settings(migrated_store).node_manager_store
    table = sa.table(name, sa.column("id"), sa.column("holder_token"))
    with write_transaction(database.engine, "use") as connection:
        connection.execute(sa.update(table).where(table.c.id == 4).values(holder_token=7))
    migrations.upgrade(database, migrated_store)
    assert rows(database, migrated_store)[4][3] == 7


def test_table_names_come_from_the_configuration(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """Two clusters with tables of different names share one database."""
    for prefix in ("First", "Second"):
        s = replace(
            store_settings,
            node_manager_store_table_name=f"{prefix}_NODES",
            failover_log_table_name=f"{prefix}_EVENTS",
            message_table_name=f"{prefix}_JOURNAL".ljust(MAXIMUM_TABLE_NAME_LENGTH, "X"),
            bindings_table_name=f"{prefix}_BINDINGS",
            large_message_table_name=f"{prefix}_BODIES",
            outbox_table_name=f"{prefix}_OUTBOX",
            acks_table_name=f"{prefix}_ACKS",
        )
        migrations.upgrade(database, s)
        assert migrations.current(database, s) == migrations.head()
    names = sa.inspect(database.engine).get_table_names()
    assert len(names) == 20
    assert fold_table_name(database.dialect, "Second_NODES_VERSION") in names


def migrate(s: DatabaseStoreSettings, outcome: Any) -> None:
    """Migrate as a starting node does, and send what came of it."""
    database = Database.from_settings(s)
    outcome.send("ready")
    outcome.recv()
    try:
        migrations.upgrade(database, s)
        outcome.send("migrated")
    except Exception as error:  # noqa: BLE001 - told to the test
        outcome.send(repr(error))
    finally:
        database.dispose()


def test_ten_nodes_may_start_at_once_on_an_empty_database(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """Ten processes that migrate at the same moment all succeed, and one schema is there."""
    pipes, nodes = [], []
    for _ in range(10):
        here, there = _processes.Pipe()
        node = _processes.Process(target=migrate, args=(store_settings, there), daemon=True)
        node.start()
        pipes.append(here)
        nodes.append(node)
    try:
        assert [pipe.recv() for pipe in pipes] == ["ready"] * 10
        for pipe in pipes:
            pipe.send("go")
        assert [pipe.recv() for pipe in pipes] == ["migrated"] * 10
    finally:
        for node in nodes:
            node.join(timeout=30)
            node.kill()
            node.join()
            node.close()
    assert differences(database, store_settings) == []
    assert rows(database, store_settings) == ROWS


class PowerCut(BaseException):
    """The end of a node in the middle of a migration."""


@contextmanager
def cut_after(statements: int) -> Iterator[None]:
    """End the session for good after so many changing statements."""
    executed = 0

    def after(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        nonlocal executed
        executed += statement.split()[0] in ("CREATE", "INSERT")
        if executed > statements:
            # What a killed process leaves behind: a session that ends without a COMMIT.
            connection.invalidate()
            raise PowerCut

    event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield
    finally:
        event.remove(sa.Engine, "after_cursor_execute", after)


@pytest.mark.parametrize("statements", range(0, 15, 2))
def test_a_node_that_dies_in_a_migration_leaves_a_store_that_migrates(
    database: Database,
    store_settings: DatabaseStoreSettings,
    statements: int,
) -> None:
    """Wherever the first migration is cut off, the next node completes it."""
    with cut_after(statements), pytest.raises(PowerCut):
        migrations.upgrade(database, store_settings)
    gc.collect()  # the end of a process closes its connections, wherever it was
    migrations.upgrade(database, store_settings)
    assert differences(database, store_settings) == []
    assert rows(database, store_settings) == ROWS


def test_a_table_of_another_program_is_refused(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """A table of the same name with other columns is named and left alone."""
    name = TableNames.from_settings(store_settings).bindings
    table = sa.Table(name, sa.MetaData(), sa.Column("somebody", sa.Integer))
    table.metadata.create_all(database.engine)
    with pytest.raises(PermanentStoreError, match=f"{name} exists that is not Orthia's: .*somebo"):
        migrations.upgrade(database, store_settings)
    assert sa.inspect(database.engine).get_columns(name)[0]["name"] == "somebody"


_OF_ARTEMIS = {
    "bindings": "id recordType compactCount txId userRecordType variableSize record txDataSize"
    " txData txCheckNoRecords seq",
    "large_messages": "id filename extension data",
    "node_manager_store": "ID HOLDER_ID HOLDER_EXPIRATION_TIME NODE_ID STATE",
}
"""The columns of its tables by what ours of that name are called in ``TableNames``."""


@pytest.mark.parametrize("table", _OF_ARTEMIS)
def test_a_table_of_artemis_is_said_to_be(
    database: Database, store_settings: DatabaseStoreSettings, table: str
) -> None:
    """With what to do, which is not to drop it; it is as it was, and no other table was made."""
    name = getattr(TableNames.from_settings(store_settings), table)
    columns = [sa.Column(one, sa.Integer) for one in _OF_ARTEMIS[table].split()]
    sa.Table(name, sa.MetaData(), *columns).metadata.create_all(database.engine)
    before = sa.inspect(database.engine).get_table_names()
    with pytest.raises(PermanentStoreError) as refused:
        migrations.upgrade(database, store_settings)
    text = str(refused.value)
    assert f"the table {name} is Apache ActiveMQ Artemis'" in text
    assert "leave the tables as they are" in text
    assert "drop" not in text
    assert sa.inspect(database.engine).get_table_names() == before


def test_a_newer_schema_is_refused(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """A revision this version does not know stops a node, with what to do."""
    version = sa.table(TableNames.from_settings(migrated_store).version, sa.column("version_num"))
    with write_transaction(database.engine, "update") as connection:
        connection.execute(sa.update(version).values(version_num="9999"))
    for call in (migrations.check, migrations.upgrade):
        with pytest.raises(migrations.SchemaTooNew, match=r"9999.*upgrade this node"):
            call(database, migrated_store)


def execute(database: Database, script: str) -> None:
    """Do what a DBA does with SQL that was printed."""
    if database.dialect is Dialect.SQLITE:
        with closing(sqlite3.connect(str(database.engine.url.database))) as connection:
            connection.executescript(script)
        return
    whole = database.dialect is Dialect.POSTGRESQL
    with database.engine.connect() as session:
        for statement in [script] if whole else mysql_statements(script):
            session.execute(text(statement.replace(":", r"\:")))
        session.commit()


def test_the_printed_ddl_makes_what_an_upgrade_makes(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """A database that a DBA set up from the printed SQL is the same, and needs no migration."""
    execute(database, migrations.ddl(store_settings))
    printed = shape(database)
    assert differences(database, store_settings) == []
    assert rows(database, store_settings) == ROWS
    assert migrations.current(database, store_settings) == migrations.head()
    for name in printed:
        sa.Table(name, sa.MetaData(), autoload_with=database.engine).drop(database.engine)
    migrations.upgrade(database, store_settings)
    assert shape(database) == printed


def test_the_printed_ddl_takes_an_older_schema_to_this_version(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """A DBA whose nodes may not change tables runs what the new version prints, and no more."""
    whole = shape(database)
    names = TableNames.from_settings(migrated_store)
    for table in (names.message_times, names.outbox, names.acks):
        sa.Table(table, sa.MetaData(), autoload_with=database.engine).drop(database.engine)
    version = sa.table(names.version, sa.column("version_num"))
    with write_transaction(database.engine, "update") as connection:
        connection.execute(sa.update(version).values(version_num="0003"))
    script = migrations.ddl(migrated_store, "0003")
    assert not re.search(rf"TABLE \W?{names.messages}\W", script)
    execute(database, script)
    assert migrations.current(database, migrated_store) == migrations.head()
    assert shape(database) == whole
    assert migrations.damage(database, migrated_store) == []
    assert migrations.ddl(migrated_store, migrations.head()) == ""
    with pytest.raises(ValueError, match="revision 9999 is not known: 0001, "):
        migrations.ddl(migrated_store, "9999")


def test_ddl_connects_nowhere(store_settings: DatabaseStoreSettings) -> None:
    """The SQL is printed for a database that cannot be reached, under the configured names."""
    s = replace(store_settings, message_table_name="OTHER_MESSAGES", jdbc_user="nobody")
    script = migrations.ddl(s)
    assert fold_table_name(s.jdbc_connection_url.dialect, "OTHER_MESSAGES") in script
