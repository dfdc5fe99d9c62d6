"""A store that lost tables or rows: named by whoever meets it, and repaired by ``db upgrade``."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PermanentStoreError, write_transaction
from orthia.migrations import StoreDamaged, TableNames
from orthia.nodemanager.locks.lease import Lock, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.migrations.test_upgrade import ROWS, differences, rows, shape
from tests.support.servers import SERVER_NAMES

Damage = Callable[[sa.Connection, TableNames], None]


def write_bindings(connection: sa.Connection, names: TableNames, epoch: int) -> None:
    """Write a row of BINDINGS as a node under the token ``epoch`` does."""
    table = sa.Table(names.bindings, sa.MetaData(), autoload_with=connection)
    values = {"id": 1, "record_type": 1, "user_record_type": 1, "epoch": epoch, "record": b""}
    connection.execute(sa.insert(table).values(seq=epoch, **values))


def write_message(connection: sa.Connection, names: TableNames, epoch: int) -> None:
    """Write a row of MESSAGES."""
    table = sa.Table(names.messages, sa.MetaData(), autoload_with=connection)
    values = {"id": 1, "record_type": 1, "user_record_type": 1, "epoch": epoch, "record": b""}
    connection.execute(sa.insert(table).values(seq=epoch, **values))


def write_piece(connection: sa.Connection, names: TableNames, epoch: int) -> None:
    """Write a row of LARGE_MESSAGES."""
    table = sa.Table(names.large_messages, sa.MetaData(), autoload_with=connection)
    connection.execute(sa.insert(table).values(id=1, position=0, epoch=epoch, piece=b""))


def write_history(connection: sa.Connection, names: TableNames, epoch: int) -> None:
    """Write a row of the history."""
    table = sa.Table(names.history, sa.MetaData(), autoload_with=connection)
    values = {"id": 1, "queue_id": 1, "reason": "acknowledged", "size": 1, "record": b""}
    at = datetime.now(UTC).replace(tzinfo=None)
    if connection.dialect.name == "sqlite":
        values["written_at"] = at.isoformat() + "Z"
    else:
        values["written_at"] = at
    connection.execute(sa.insert(table).values(seq=epoch, epoch=epoch, **values))


def write_event(connection: sa.Connection, names: TableNames, token: int) -> None:
    """Write an entry of the failover log, of a node whose id is known."""
    table = sa.Table(names.failover_log, sa.MetaData(), autoload_with=connection)
    values = dict.fromkeys(("node_time", "node_name", "holder_id", "role"), "x")
    values |= dict.fromkeys(("code", "level", "event", "detail"), "x")
    connection.execute(
        sa.insert(table).values(node_id="the-node-id", token=token, event_seq=1, **values)
    )


def remove_rows(database: Database, s: DatabaseStoreSettings, *lost: int) -> None:
    """Delete rows of the node manager's table."""
    store = sa.table(TableNames.from_settings(s).node_manager_store, sa.column("id"))
    with write_transaction(database.engine, "damage") as connection:
        connection.execute(sa.delete(store).where(store.c.id.in_(lost)))


def drop(database: Database, *names: str) -> None:
    """Drop tables."""
    for name in names:
        sa.Table(name, sa.MetaData(), autoload_with=database.engine).drop(database.engine)


def opened(database: Database, s: DatabaseStoreSettings) -> SqlNodeManagerStore:
    """Return the store as a node manager uses it."""
    return SqlNodeManagerStore(database, s, database.engine)


@pytest.mark.parametrize("row", range(5))
def test_a_missing_row_is_named_at_a_start_and_put_back_by_a_repair(
    database: Database, migrated_store: DatabaseStoreSettings, row: int
) -> None:
    """The pair of an emptied store stood still for ever: the revision was the newest."""
    remove_rows(database, migrated_store, row)
    with pytest.raises(StoreDamaged, match=rf"row {row} of \w+ \(the .*\) is missing.*db upgrade"):
        migrations.upgrade(database, migrated_store)
    (told,) = migrations.damage(database, migrated_store)
    assert migrations.repair(database, migrated_store) == [told]
    assert rows(database, migrated_store) == ROWS
    migrations.upgrade(database, migrated_store)
    assert migrations.repair(database, migrated_store) == []


def test_every_table_that_is_missing_is_named_and_made_anew(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """As the migrations made it, whichever it is; the rest is left as it was."""
    names = TableNames.from_settings(migrated_store)
    whole = shape(database)
    for name in sorted(set(whole) - {names.version}):
        drop(database, name)
        with pytest.raises(StoreDamaged, match=f"table {name} is missing"):
            migrations.upgrade(database, migrated_store)
        assert f"table {name} is missing" in migrations.repair(database, migrated_store)
        assert shape(database) == whole
        assert differences(database, migrated_store) == []
        assert migrations.damage(database, migrated_store) == []
        assert rows(database, migrated_store) == ROWS


@pytest.mark.parametrize(
    "write", [write_bindings, write_message, write_piece, write_history, write_event]
)
def test_tokens_go_on_above_every_token_ever_used(
    database: Database,
    migrated_store: DatabaseStoreSettings,
    write: Callable[[sa.Connection, TableNames, int], None],
) -> None:
    """Wherever the newest is found, the next node's is greater; the node id is found too."""
    names = TableNames.from_settings(migrated_store)
    with write_transaction(database.engine, "use") as connection:
        write(connection, names, 17)
    drop(database, names.node_manager_store)
    s = replace(migrated_store, jdbc_lock_expiration=50)
    migrations.repair(database, s)
    store = opened(database, s)
    status = store.status()
    assert (status.state, status.fence_token) == (State.NOT_STARTED, 17)
    assert status.node_id == ("the-node-id" if write is write_event else None)
    taken = None
    while taken is None:  # held by nobody, for one expiration
        taken = store.try_acquire(Lock.LIVE, "a", 600_000)
    assert taken.token == 18
    assert store.advance_fence("a", 18)


def test_a_live_lock_that_is_put_back_is_nobodys_for_one_expiration(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """Whoever held it may believe so for as long, and must not meet a successor that delivers."""
    store = opened(database, migrated_store)
    first = store.try_acquire(Lock.LIVE, "a", 600_000)
    assert first is not None
    assert store.advance_fence("a", first.token)
    remove_rows(database, migrated_store, 1)
    migrations.repair(database, replace(migrated_store, jdbc_lock_expiration=600_000))
    live = store.status().live
    assert live.is_held
    assert live.token == first.token
    assert store.try_acquire(Lock.LIVE, "b", 600_000) is None
    assert store.renew(Lock.LIVE, "a", first.token, 600_000) is None


def test_a_repair_beside_a_live_node_leaves_its_lease(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """Rows that are there keep holder and token; a lost state is the live node's."""
    store = opened(database, migrated_store)
    taken = store.try_acquire(Lock.LIVE, "a", 600_000)
    assert taken is not None
    assert store.advance_fence("a", taken.token)
    remove_rows(database, migrated_store, 0, 2, 3)
    assert len(migrations.repair(database, migrated_store)) == 3
    status = store.status()
    assert status.state is State.LIVE
    assert (status.live.holder_id, status.live.token) == ("a", taken.token)
    assert store.renew(Lock.LIVE, "a", taken.token, 600_000) is not None


@pytest.mark.parametrize("write", [write_bindings, write_message])
def test_tokens_older_than_the_journal_are_named_and_raised(
    database: Database,
    migrated_store: DatabaseStoreSettings,
    write: Callable[[sa.Connection, TableNames, int], None],
) -> None:
    """A node manager's table that was restored from an older backup than the journal's."""
    names = TableNames.from_settings(migrated_store)
    with write_transaction(database.engine, "use") as connection:
        write(connection, names, 9)
    told = r"row 1 of .* has token 0.*token 9 already; row 4 of .* has token 0"
    with pytest.raises(StoreDamaged, match=told):
        migrations.upgrade(database, migrated_store)
    assert len(migrations.repair(database, migrated_store)) == 2
    status = opened(database, migrated_store).status()
    assert (status.live.token, status.fence_token) == (9, 9)


@pytest.mark.parametrize(("ahead", "behind"), [(1, 4), (4, 1)])
def test_a_token_that_is_ahead_stays_where_another_is_raised(
    database: Database, migrated_store: DatabaseStoreSettings, ahead: int, behind: int
) -> None:
    """The live lock or the fence, whichever was given out most lately."""
    names = TableNames.from_settings(migrated_store)
    store = sa.table(names.node_manager_store, sa.column("id"), sa.column("holder_token"))
    with write_transaction(database.engine, "use") as connection:
        connection.execute(sa.update(store).where(store.c.id == ahead).values(holder_token=30))
        connection.execute(sa.update(store).where(store.c.id == behind).values(holder_token=5))
        write_bindings(connection, names, 20)
    migrations.repair(database, migrated_store)
    status = opened(database, migrated_store).status()
    found = {1: status.live.token, 4: status.fence_token}
    assert found == {ahead: 30, behind: 20}


def test_a_repair_never_lowers_a_token(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """The fence that is there may be above all that was written."""
    names = TableNames.from_settings(migrated_store)
    store = sa.table(names.node_manager_store, sa.column("id"), sa.column("holder_token"))
    with write_transaction(database.engine, "use") as connection:
        connection.execute(sa.update(store).where(store.c.id == 4).values(holder_token=30))
        write_bindings(connection, names, 20)
    remove_rows(database, migrated_store, 1)
    migrations.repair(database, migrated_store)
    status = opened(database, migrated_store).status()
    assert (status.live.token, status.fence_token) == (30, 30)


def test_all_revisions_once_more_change_nothing(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """What a repair stands on: each revision creates what is absent and leaves the rest alone."""
    names = TableNames.from_settings(migrated_store)
    whole = shape(database)
    drop(database, names.version)
    migrations.upgrade(database, migrated_store)
    assert shape(database) == whole
    assert rows(database, migrated_store) == ROWS


# --- routines of the outbox


_LOST: dict[str, dict[str, str]] = {
    "postgresql": {
        "function orthia_send(text, bytea, jsonb) is missing": (
            "DROP FUNCTION orthia_send(text, bytea, jsonb)"
        ),
        "function orthia_ack(text) is missing": "DROP FUNCTION orthia_ack(text)",
        "trigger orthia_outbox_wake is missing": "DROP TRIGGER orthia_outbox_wake ON orthia_outbox",
        "constraint orthia_outbox_check is missing": (
            "ALTER TABLE orthia_outbox DROP CONSTRAINT orthia_outbox_check"
        ),
        "table orthia_acks has no column acked_at": "ALTER TABLE orthia_acks DROP COLUMN acked_at",
    },
    "mysql": {
        "procedure ORTHIA_SEND is missing": "DROP PROCEDURE ORTHIA_SEND",
        "procedure orthia_ack is missing": "DROP PROCEDURE orthia_ack",
        "constraint ORTHIA_OUTBOX_BODY is missing": (
            "ALTER TABLE ORTHIA_OUTBOX DROP CONSTRAINT ORTHIA_OUTBOX_BODY"
        ),
        "table ORTHIA_OUTBOX has no column created_at": (
            "ALTER TABLE ORTHIA_OUTBOX DROP COLUMN created_at"
        ),
    },
}
_ALTERED: dict[str, dict[str, str | None]] = {
    "postgresql": {
        "function orthia_ack(text) was altered": (
            "CREATE OR REPLACE FUNCTION orthia_ack(message_id text) RETURNS void LANGUAGE plpgsql"
            " SECURITY DEFINER SET search_path = pg_catalog AS 'BEGIN END'"
        ),
        "function orthia_send(text, text, text) was altered": (
            "ALTER FUNCTION orthia_send(text, text, text) SECURITY INVOKER"
        ),
        "function orthia_outbox_check(text, text, bytea) was altered": (
            "CREATE OR REPLACE FUNCTION orthia_outbox_check(destination text, headers text,"
            " body bytea) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END'"
        ),
    },
    "mysql": {
        "procedure orthia_ack was altered": "ALTER PROCEDURE orthia_ack SQL SECURITY INVOKER",
        "procedure ORTHIA_SEND was altered": None,
    },
}
_OTHER_SEND = (
    "CREATE PROCEDURE ORTHIA_SEND (IN destination VARCHAR(1024), IN body LONGBLOB,"
    " IN headers LONGTEXT) MODIFIES SQL DATA SQL SECURITY DEFINER SET @nothing = 1"
)


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_routine_or_constraint_that_is_missing_is_named_and_made_anew(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """Each by itself; a column that applications use is named, and is for a person to restore."""
    for damage, statement in _LOST[database.dialect.value].items():
        with database.engine.begin() as connection:
            connection.execute(sa.text(statement))
        with pytest.raises(StoreDamaged, match=re.escape(damage)):
            migrations.upgrade(database, migrated_store)
        if "column" in damage:
            with pytest.raises(PermanentStoreError, match="its columns are"):
                migrations.repair(database, migrated_store)
        else:
            assert migrations.repair(database, migrated_store) == [damage]
            assert migrations.damage(database, migrated_store) == []


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_routine_that_was_altered_is_named_and_made_anew(
    database: Database, migrated_store: DatabaseStoreSettings
) -> None:
    """A node starts all the same: it uses none of them."""
    assert migrations.altered(database, migrated_store) == []
    for damage, statement in _ALTERED[database.dialect.value].items():
        with database.engine.begin() as connection:
            if statement is None:
                connection.execute(sa.text("DROP PROCEDURE ORTHIA_SEND"))
            connection.execute(sa.text(statement or _OTHER_SEND))
        migrations.upgrade(database, migrated_store)
        assert migrations.altered(database, migrated_store) == [damage]
        assert migrations.repair(database, migrated_store) == [damage]
        assert migrations.altered(database, migrated_store) == []
