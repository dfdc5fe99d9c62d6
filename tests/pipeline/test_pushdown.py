"""What a query wants of a journal's DataFrame is what the database is asked for, and no more."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from orthia.journal import MessageJournal
from orthia.pipeline.sources.file_journal import FileReference
from orthia.pipeline.sources.journal import JournalSource, NarrowedFileReader, NarrowedReader
from orthia.pipeline.sources.journal_rows import Condition
from orthia.pipeline.sources.pushdown import install, taken
from orthia.pipeline.sources.store import PASSWORD_VARIABLE as ORTHIAS_VARIABLE
from orthia.pipeline.sources.store import StoreReference
from tests.cli.conftest import Run, run
from tests.journal.support import (
    OTHER_QUEUE,
    FileJournalStore,
    JournalStore,
    SqlJournalStore,
)
from tests.pipeline.support import with_queues
from tests.support.servers import PASSWORD, url_with_password

pytestmark = pytest.mark.extended

__all__ = ["run"]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SEQ, QUEUE_NAME, WRITTEN = ("seq",), ("queue",), ("written_at",)


def filled(store: JournalStore) -> tuple[MessageJournal, list[int]]:
    """Store three messages in ``orders`` and one in ``audit``; return where they are."""
    journal = with_queues(store)
    seqs = store.append(journal, "one", "two", "three")
    return journal, [*seqs, *store.append(journal, "four", queue=OTHER_QUEUE)]


def test_what_the_database_compares_as_spark_does_is_left_to_it() -> None:
    """Numbers, times and queues with constants; all else stays with Spark."""
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    understood: list[tuple[Filter, Condition]] = [
        (EqualTo(SEQ, 5), Condition("seq", "=", (5,))),
        (EqualNullSafe(("epoch",), 5), Condition("epoch", "=", (5,))),
        (GreaterThan(("id",), 5), Condition("id", ">", (5,))),
        (GreaterThanOrEqual(SEQ, 5), Condition("seq", ">=", (5,))),
        (LessThan(("queue_id",), 5), Condition("queue_id", "<", (5,))),
        (LessThanOrEqual(WRITTEN, elsewhere), Condition("written_at", "<=", (elsewhere,))),
        (GreaterThan(("removed_at",), NOON), Condition("removed_at", ">", (NOON,))),
        (In(SEQ, (5, None, 7)), Condition("seq", "IN", (5, 7))),
        (EqualTo(QUEUE_NAME, "a' OR '1"), Condition("queue", "IN", ("a' OR '1",))),
        (In(QUEUE_NAME, ("a", "b")), Condition("queue", "IN", ("a", "b"))),
        (In(QUEUE_NAME, (None,)), Condition("queue", "IN", ())),
    ]
    for one, condition in understood:
        assert taken([one]) == ([condition], []), one
    others: list[Filter] = [
        GreaterThan(QUEUE_NAME, "a"),  # by whose order?
        EqualNullSafe(QUEUE_NAME, None),
        EqualTo(SEQ, 5.5),
        EqualTo(SEQ, True),
        EqualTo(SEQ, "5; DROP TABLE MESSAGES"),
        In(SEQ, (5, "6")),
        EqualTo(("headers", "seq"), 5),
        EqualTo(("address",), "orders"),
        EqualTo(WRITTEN, NOON.replace(tzinfo=None)),
        # What readers show so is something else in the table.
        LessThanOrEqual(WRITTEN, datetime(9999, 12, 31, tzinfo=UTC)),
        GreaterThan(WRITTEN, datetime(1, 1, 1, tzinfo=UTC)),
        Not(EqualTo(SEQ, 5)),
        IsNotNull(SEQ),
    ]
    for one in others:
        assert taken([one]) == ([], [one]), one
    assert taken([LessThan(WRITTEN, NOON)], has_times=False) == ([], [LessThan(WRITTEN, NOON)])


def seqs_of(reader: DataSourceReader) -> list[int]:
    """Return what a reader reads, task by task."""
    batches: list[Any] = [
        batch for partition in reader.partitions() for batch in reader.read(partition)
    ]
    return sorted(seq for batch in batches for seq in batch.column("seq").to_pylist())


def check_answers(
    narrowed: Callable[[], NarrowedReader | NarrowedFileReader], seqs: list[int], *, times: bool
) -> None:
    """Check what is read for each kind of filter."""
    first, _, third, other = seqs
    year = timedelta(days=365)
    now = datetime.now(UTC)
    answers: list[tuple[list[Filter], list[int]]] = [
        ([GreaterThan(SEQ, first), EqualTo(QUEUE_NAME, "orders")], seqs[1:3]),
        ([LessThanOrEqual(SEQ, first)], [first]),
        ([LessThan(SEQ, first)], []),
        ([In(SEQ, (first, other))], [first, other]),
        ([In(QUEUE_NAME, ("audit", "nobody's"))], [other]),
        ([EqualTo(QUEUE_NAME, "nobody's")], []),
        ([In(QUEUE_NAME, ("audit", "orders")), EqualTo(QUEUE_NAME, "audit")], [other]),
        ([EqualTo(("queue_id",), OTHER_QUEUE)], [other]),
        ([EqualTo(("id",), third)], [third]),
        ([GreaterThanOrEqual(("epoch",), 2**62)], []),
    ]
    if times:
        answers += [
            ([GreaterThan(WRITTEN, now - year), LessThan(WRITTEN, now + year)], seqs),
            ([GreaterThan(WRITTEN, now + year)], []),
        ]
    for filters, expected in answers:
        reader = narrowed()
        assert list(reader.pushFilters(filters)) == []
        assert seqs_of(reader) == expected, filters


def test_every_database_answers_filters(store: SqlJournalStore, reference: StoreReference) -> None:
    """On every DBMS, alone and together."""
    _, seqs = filled(store)
    check_answers(lambda: NarrowedReader(reference, ["seq"]), seqs, times=True)


def test_a_file_journal_answers_filters(tmp_path: Path) -> None:
    """But for those by time."""
    store = FileJournalStore(tmp_path)
    _, seqs = filled(store)
    store.close()
    files = FileReference.of(store.settings)
    check_answers(lambda: NarrowedFileReader(files, ["seq"]), seqs, times=False)


def read_by(frame: DataFrame) -> list[tuple[int, list[str]]]:
    """Run a query; return how many rows, and which columns, each of its scans read."""
    frame.collect()
    java: Any = frame._jdf
    leaves = java.queryExecution().executedPlan().collectLeaves()
    found = []
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        output = leaf.output()
        names = [output.apply(place).name() for place in range(output.size())]
        found.append((leaf.metrics().apply("numOutputRows").value(), names))
    return found


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_query_reads_what_it_wants(spark: SparkSession, store: SqlJournalStore) -> None:
    """Plain filters of plain DataFrames: only their rows, and the columns that are used, are read.

    Whatever was asked before, and in whichever branch of a query.
    """
    journal, (first, second, third, other) = filled(store)
    url = store.settings.jdbc_connection_url.display
    frame = spark.read.format(JournalSource.name()).option("url", url).load()
    orders = frame.filter("queue = 'orders'")
    assert orders.count() == 3
    assert read_by(orders.groupBy().count()) == [(3, ["queue"])]
    assert frame.count() == 4  # not with the filter of the query before
    assert read_by(frame.groupBy().count()) == [(4, ["seq"])]
    older, newer = frame.where(f"seq <= {first}"), frame.where(f"{first} < seq")
    both = older.union(newer).select("seq", "queue")
    assert read_by(both) == [(1, ["seq", "queue"]), (3, ["seq", "queue"])]
    assert sorted(row["seq"] for row in both.collect()) == [first, second, third, other]
    joined = older.alias("a").join(newer.alias("b"), "queue").select("a.seq", "b.seq")
    assert sorted(tuple(row) for row in joined.collect()) == [(first, second), (first, third)]
    # Of what is not understood, and of AND with it, Spark sorts out the rest.
    mixed = frame.where("queue IN ('orders', 'audit') AND size > 0 AND seq + 1 > 0").select("body")
    ((rows, columns),) = read_by(mixed)
    assert (rows, set(columns)) == (4, {"body", "queue", "seq", "size"})
    either = frame.where(f"queue = 'audit' OR seq = {first}").select("seq")
    assert sorted(row["seq"] for row in either.collect()) == [first, other]
    assert frame.where("written_at < '2026-01-01'").count() == 0
    assert frame.where("written_at < timestamp'9999-12-31 12:00:00'").count() == 4
    assert frame.where(frame["queue"].isNull()).count() == 0
    # What was committed since is there, and the rule is in the session once.
    store.append(journal, "five", queue=OTHER_QUEUE)
    assert frame.where("queue = 'audit'").count() == 2
    experimental: Any = spark._jsparkSession.experimental()
    rules = experimental.extraOptimizations().size()
    install(spark, JournalSource.name())
    assert experimental.extraOptimizations().size() == rules == 1


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_spark_of_other_classes_goes_without(
    spark: SparkSession, store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rule that this Spark cannot compile is left out with a warning, and nothing fails."""
    broken = tmp_path / "Broken.java"
    broken.write_text("public class Broken extends org.apache.spark.NoSuchClass {}")
    monkeypatch.setattr("orthia.pipeline.sources.pushdown._SOURCE", broken)
    experimental: Any = spark._jsparkSession.experimental()
    rules = experimental.extraOptimizations()
    setter = getattr(experimental, "extraOptimizations_$eq")
    setter(rules.take(0))
    try:
        install(spark, JournalSource.name())
        assert experimental.extraOptimizations().size() == 0
        filled(store)
        url = store.settings.jdbc_connection_url.display
        frame = spark.read.format(JournalSource.name()).option("url", url).load()
        assert frame.where("queue = 'orders'").count() == 3
    finally:
        setter(rules)


@pytest.mark.usefixtures("spark")
def test_only_a_command_with_filters_has_the_rule_compiled(
    run: Run, store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else waits for a compiler: who uses options, or has a store of some thousand rows."""
    filled(store)
    monkeypatch.setenv(ORTHIAS_VARIABLE, PASSWORD)
    compiled: list[str] = []
    monkeypatch.setattr("orthia.pipeline.session.install", lambda _, name: compiled.append(name))
    url = url_with_password(store.settings)
    replay = ("pipeline", "replay", "--url", url, "--queue", "orders", "-q")
    assert run(*replay).exit_code == 0
    assert compiled == []
    monkeypatch.setattr("orthia.pipeline.sources.sizes.SMALL_ROWS", 0)
    assert run("pipeline", "traffic", "--url", url, "-q").exit_code == 0
    assert compiled == []
    assert run(*replay).exit_code == 0
    assert compiled == [JournalSource.name()]
