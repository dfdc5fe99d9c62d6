"""Windows over a large backlog: which index they walk, and that it is no further than they go."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from orthia.config.dialects import Dialect
from orthia.journal import QueuePlace, Unit
from orthia.journal.model.windows import BEGINNING
from orthia.journal.sql.inspect import list_queues
from orthia.journal.sql.tables import queue_index_name
from tests.journal.support import ALWAYS, OTHER_QUEUE, QUEUE, SqlJournalStore, payload

_EXPLAIN = {
    Dialect.POSTGRESQL: "EXPLAIN",
    Dialect.MYSQL: "EXPLAIN",
    Dialect.SQLITE: "EXPLAIN QUERY PLAN",
}
_STATISTICS = {
    Dialect.POSTGRESQL: "ANALYZE messages",
    Dialect.MYSQL: "ANALYZE TABLE MESSAGES",
    Dialect.SQLITE: "ANALYZE",
}

WASTEFUL = (
    "seq scan",
    "scan messages",
    "filesort",
    "temp b-tree",
    "sort key",
    "bitmap",
    "pkey on messages  ",
    "jit",
)
"""What plans say that read more of a table than they return, or compile what runs for no time."""
GROUPING = ("filesort", "temp b-tree")


@contextmanager
def explained_walks(store: SqlJournalStore, how: str) -> Iterator[list[tuple[str, Any]]]:
    """Record the walks through queues, and what the database says of each in its own session."""
    walks: list[tuple[str, Any]] = []

    def explain(
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: object,
        executemany: bool,
    ) -> None:
        is_walk = all(part in statement for part in ("queue_id", "WHERE", "ORDER BY"))
        if not is_walk or "ORTHIA_ACKS" in statement.upper():
            return  # or it looks for what applications acknowledged, by an index of its own
        with closing(connection.connection.cursor()) as other:
            if store.database.dialect is Dialect.POSTGRESQL:
                other.execute("SET jit_above_cost = 0")
            other.execute(f"{how} {statement}", parameters)
            walks.append((statement, other.fetchall()))

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        yield walks
    finally:
        event.remove(Engine, "before_cursor_execute", explain)


@pytest.mark.parametrize("analysed", [False, True])
def test_every_read_walks_the_queues_index(sql_store: SqlJournalStore, analysed: bool) -> None:
    """Windows, counts and listings find a queue by (queue_id, seq), bodies by their key.

    With the statistics of a grown table and with those of an empty one: a planner must not be
    led to read the whole table, or to sort it.
    """
    journal = sql_store.open()
    unit = Unit()
    for _ in range(2_000):
        unit.add_message([QUEUE], payload("x" * 500))
    for _ in range(50):
        unit.add_message([QUEUE, OTHER_QUEUE], payload("x" * 500))
    journal.append_unit(unit)
    sql_store.settle(journal)
    if analysed:
        with sql_store.database.engine.begin() as connection:
            connection.execute(text(_STATISTICS[sql_store.database.dialect]))
    with explained_walks(sql_store, _EXPLAIN[sql_store.database.dialect]) as walks:
        sql_store.window(journal, QUEUE, after=100, max_messages=100)
        sql_store.window(journal, OTHER_QUEUE, max_messages=100)
        sql_store.count(journal, BEGINNING, ALWAYS, 1_000)
        sql_store.count(journal, QueuePlace(QUEUE, 100), ALWAYS, 1_000)
        list_queues(sql_store.database, sql_store.settings)
    index = queue_index_name("MESSAGES", sql_store.database.dialect).lower()
    assert len(walks) >= 8
    for statement, rows in walks:
        plan = "\n".join(" ".join(map(str, row)) for row in rows).lower()
        assert index in plan, plan
        # What is grouped is what the walk came to its limit with: to sort that is no waste.
        allowed = GROUPING if "GROUP BY" in statement else ()
        for wasteful in WASTEFUL:
            assert wasteful in allowed or wasteful not in plan, plan


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_window_costs_the_same_before_any_backlog(sql_store: SqlJournalStore) -> None:
    """PostgreSQL walks no further than the window goes, though it has the whole queue behind it."""
    journal = sql_store.open()
    unit = Unit()
    for _ in range(20_000):
        unit.add_message([QUEUE], payload("x" * 500))
    journal.append_unit(unit)
    sql_store.settle(journal)
    with explained_walks(sql_store, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)") as walks:
        window = sql_store.window(journal, QUEUE, after=100, max_messages=10)
        few = sql_store.window(journal, QUEUE, after=100, max_messages=1_000, max_bytes=6_000)
    assert (len(window.messages), window.exhausted) == (10, False)
    assert (len(few.messages), few.exhausted) == (10, False)
    assert len(walks) >= 4
    for statement, (((answer,),),) in walks:
        pages = answer["Plan"]["Shared Hit Blocks"] + answer["Plan"]["Shared Read Blocks"]
        assert pages < 20, f"{pages} pages: {statement}"
