"""Opening a journal leaves no transaction open while what was read is worked through."""

import re

import pytest
from sqlalchemy import Connection, QueuePool, event, text

from orthia.database import StoreUnavailable
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.journal import batch_store
from tests.journal.support import SqlJournalStore

_STATE = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_bindings_are_read_outside_of_a_transaction(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session that stands still in one; very many bindings take a while."""
    states: list[str] = []

    def look(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if re.search(r"FROM \"?bindings", statement, re.IGNORECASE):
            pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            with sql_store.database.engine.connect() as other:
                states.append(str(other.execute(_STATE, {"pid": pid}).scalar_one()))

    dedicated = sql_store.database.dedicated_engine

    def watched(*arguments: object, **options: object) -> object:
        engine = dedicated(*arguments, **options)  # type: ignore[arg-type]
        event.listen(engine, "after_cursor_execute", look)
        return engine

    monkeypatch.setattr(sql_store.database, "dedicated_engine", watched)
    sql_store.append(sql_store.open(), "x")
    assert states == ["idle"]


def test_a_writer_that_cannot_be_set_up_leaves_its_connection_to_the_next_attempt(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That reads the bindings first: of the pool, which has room for one, it would wait in vain."""
    engine = fenced_engine(sql_store.database, sql_store.settings, "journal", 1)
    store = batch_store(sql_store.database, sql_store.settings, engine, 1)

    def lost(_connection: object) -> None:
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(store, "_use", lost)
    with pytest.raises(StoreUnavailable):
        store.connect()
    assert isinstance(engine.pool, QueuePool)
    assert engine.pool.checkedout() == 0
