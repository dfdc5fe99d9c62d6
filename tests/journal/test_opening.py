"""Opening a journal leaves no transaction open while what was read is worked through."""

import re

import pytest
from sqlalchemy import Connection, event, text

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
