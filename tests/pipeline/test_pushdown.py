"""Conditions on a journal's DataFrame are answered by the database, and stay true."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.config.settings import RoutingType
from orthia.journal import QueueBinding
from orthia.pipeline.pushdown import journal, options_of
from orthia.pipeline.schemas import JOURNAL
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore


def test_what_the_database_can_answer_becomes_an_option(spark: SparkSession) -> None:
    """Whoever writes the condition, as text or as columns, and whichever side the column is on."""
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    cases: list[tuple[Column | str, dict[str, Any]]] = [
        ("seq > 50", {"minSeq": "51"}),
        ("50 > seq", {"maxSeq": "49"}),
        ("seq >= 5 AND seq <= 9 AND seq > 6", {"minSeq": "7", "maxSeq": "9"}),
        ("seq BETWEEN 5 AND 9", {"minSeq": "5", "maxSeq": "9"}),
        ("epoch = 2", {"minEpoch": "2", "maxEpoch": "2"}),
        ("epoch < 1 + 1", {"maxEpoch": "1"}),
        ("queue = 'a' AND size > 5", {"queue": ["a"]}),
        ("queue IN ('a', 'b') AND queue IN ('b', 'c')", {"queue": ["b"]}),
        (F.col("queue").isin("a", "b"), {"queue": ["a", "b"]}),
        (F.col("written_at") >= F.lit(noon), {"since": "2026-01-31T12:00:00+00:00"}),
        ("written_at < '2026-01-31T12:00:00Z'", {"until": "2026-01-31T12:00:00+00:00"}),
        (
            F.col("written_at") <= F.lit(noon),
            {"until": "2026-01-31T12:00:00.000001+00:00"},
        ),
        # None of these says anything that the database could leave out.
        ("seq > 5 OR queue = 'a'", {}),
        ("NOT seq > 5", {}),
        ("seq + 1 > 5", {}),
        ("seq > id", {}),
        ("queue > 'a'", {}),
        ("queue IS NULL", {}),
        ("seq > NULL", {}),
        ("body = 'x' AND corrupt IS NULL", {}),
    ]
    for condition, expected in cases:
        found: dict[str, Any] = options_of(spark, JOURNAL, condition)
        if "queue" in found:
            found["queue"] = json.loads(found["queue"])
        assert found == expected, condition
    with pytest.raises(PySparkException):
        options_of(spark, JOURNAL, "no_such_column > 5")


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_what_is_pushed_down_is_what_is_asked(spark: SparkSession, store: SqlJournalStore) -> None:
    """Each DataFrame has its own conditions, and answers the same whatever was asked before."""
    opened = store.open()
    for queue_id, name in ((QUEUE, "orders"), (OTHER_QUEUE, "audit")):
        opened.add_binding(QueueBinding(queue_id, name, name, RoutingType.ANYCAST))
    first, second, third = store.append(opened, "one", "two", "three")
    (other,) = store.append(opened, "four", queue=OTHER_QUEUE)
    options = {"url": store.settings.jdbc_connection_url.display, "columns": "seq,queue"}

    def seqs(*conditions: Column | str) -> list[int]:
        return sorted(row["seq"] for row in journal(spark, options, *conditions).collect())

    assert seqs(f"seq > {first}", "queue = 'orders'") == [second, third]
    assert seqs(f"queue = 'audit' OR seq = {first}") == [first, other]
    assert seqs("queue = 'nobody'") == []
    older = journal(spark, options, f"seq <= {first}")
    newer = journal(spark, options, f"seq > {first}")
    union = older.union(newer)
    assert sorted(row["seq"] for row in union.collect()) == [first, second, third, other]
    assert older.where("queue = 'audit'").count() == 0
    assert older.count() == 1
    plan = newer._jdf.queryExecution().toString()
    assert "orthia.journal" in plan
