"""An audit finds every fault that is injected, and none in a sound journal."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs import audit
from pipeline.schemas import BINDINGS, JOURNAL, NODE_MANAGER, subset

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SECOND_EPOCH = 1_000_001

Row = dict[str, Any]


def row(seq: int, kind: str = "message", **changes: Any) -> Row:
    """Return a row of MESSAGES, written so many seconds after noon."""
    values: Row = {
        "seq": seq,
        "id": seq,
        "kind": kind,
        "record_type": 11,
        "queue_id": None if kind == "body" else 1,
        "epoch": 1 if seq < SECOND_EPOCH else 2,
        "written_at": NOON + timedelta(seconds=seq / 1000),
        "size": 100,
    }
    return values | changes


def sound() -> list[Row]:
    """Return a journal of two epochs, with a message of two queues and gaps by acknowledgements."""
    rows = [row(seq) for seq in (5, 6, 9, 10, SECOND_EPOCH, SECOND_EPOCH + 3)]
    rows.append(row(20, "body"))
    rows += [row(20 + n, "reference", id=20, queue_id=n, size=40) for n in (1, 2)]
    return rows


def bound(*, corrupt: bool = False) -> list[Row]:
    """Return the bindings of queues 1 and 2, and the counter."""
    rows = [
        {"seq": 0, "id": 2_000_000, "type": "counter", "epoch": 2, "written_at": NOON},
        {"seq": 1, "id": 1, "type": "queue", "name": "orders", "address": "orders", "epoch": 1},
        {"seq": 2, "id": 2, "type": "queue", "name": "audit", "address": "audit", "epoch": 1},
    ]
    if corrupt:
        rows.append({"seq": 3, "id": 3, "type": "other", "epoch": 1, "corrupt": "no JSON"})
    return rows


INJECTED = {
    "orphaned-reference": [row(31, "reference", id=30)],
    "orphaned-body": [row(40, "body")],
    "duplicate-id": [row(50), row(50)],
    "wrong-id": [row(60, id=61)],
    "stale-epoch": [row(SECOND_EPOCH + 10, epoch=1)],
    "unfenced-epoch": [row(1_900_000, epoch=3)],
    "unreserved-id": [row(2_000_001, epoch=3)],
    "unfinished-transaction": [row(70, record_type=13, tx_id=7), row(71, record_type=13, tx_id=8)],
    "unknown-queue": [row(80, queue_id=99)],
    "corrupt-record": [row(90, corrupt="its checksum does not match")],
}
ENDED = [row(72, "other", record_type=18, tx_id=8, queue_id=None)]


def messages(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """Return rows as ``orthia.journal`` gives them."""
    return spark.createDataFrame(rows, subset(JOURNAL, ",".join([*audit.COLUMNS, "corrupt"])))


@pytest.fixture(scope="module")
def node_manager(spark: SparkSession) -> DataFrame:
    """Give a pair whose fence is at 2."""
    return spark.createDataFrame([{"lock": "live", "fence_token": 2}], NODE_MANAGER)


def test_a_sound_journal_has_no_faults(spark: SparkSession, node_manager: DataFrame) -> None:
    """Gaps are none, and a transaction in doubt is none, which is listed by its xid."""
    prepared = {"seq": 30, "id": 30, "type": "transaction", "name": "1:ab:cd", "epoch": 2}
    bindings = spark.createDataFrame([*bound(), prepared], BINDINGS)
    found = audit.faults(messages(spark, sound()), bindings, node_manager).collect()
    assert found == []
    in_doubt = [(one["xid"], one["epoch"]) for one in audit.in_doubt(bindings).collect()]
    assert in_doubt == [("1:ab:cd", 2)]


def test_every_injected_fault_is_found(spark: SparkSession, node_manager: DataFrame) -> None:
    """Each fault is told at the row it was injected at, and nowhere else."""
    rows = sound() + ENDED + [one for injected in INJECTED.values() for one in injected]
    bindings = spark.createDataFrame(bound(corrupt=True), BINDINGS)
    found = audit.faults(messages(spark, rows), bindings, node_manager).collect()
    assert {(one["fault"], one["seq"]) for one in found} == {
        *((name, injected[0]["seq"]) for name, injected in INJECTED.items()),
        ("corrupt-binding", 3),
        ("unfenced-epoch", 2_000_001),
    }
    assert set(audit.FAULTS) == {one["fault"] for one in found}
    assert all(one["detail"] for one in found)


def test_a_row_written_late_by_the_clock_is_stale(spark: SparkSession) -> None:
    """A row of the old epoch that was stored after the new one began is two writers' work."""
    rows = [*sound(), row(11, written_at=NOON + timedelta(hours=2))]
    bindings = spark.createDataFrame(bound(), BINDINGS)
    found = audit.faults(messages(spark, rows), bindings).collect()
    assert [(one["fault"], one["seq"]) for one in found] == [("stale-epoch", 11)]


def test_a_row_written_late_by_its_seq_is_stale(spark: SparkSession) -> None:
    """Also if the clock, which was set back, says that it came before the new epoch's first."""
    rows = [*sound(), row(SECOND_EPOCH + 10, epoch=1, written_at=NOON + timedelta(seconds=1))]
    bindings = spark.createDataFrame(bound(), BINDINGS)
    found = audit.faults(messages(spark, rows), bindings).collect()
    assert [(one["fault"], one["seq"]) for one in found] == [("stale-epoch", SECOND_EPOCH + 10)]


@pytest.mark.parametrize("record_type", [13, 14, 15, 17])
@pytest.mark.parametrize(("end", "is_fault"), [(None, True), (18, False), (19, False)])
def test_a_transaction_needs_its_end(
    spark: SparkSession, record_type: int, end: int | None, *, is_fault: bool
) -> None:
    """Whatever it does, and however it ends: by a commit or a rollback of its own."""
    rows = [*sound(), row(70, "other", record_type=record_type, tx_id=7, queue_id=None)]
    rows.append(row(71, "other", record_type=18, tx_id=8, queue_id=None))
    if end is not None:
        rows.append(row(72, "other", record_type=end, tx_id=7, queue_id=None))
    bindings = spark.createDataFrame(bound(), BINDINGS)
    found = audit.faults(messages(spark, rows), bindings).collect()
    expected = [("unfinished-transaction", 70)] if is_fault else []
    assert [(one["fault"], one["seq"]) for one in found] == expected


def test_epochs_tell_their_gaps(spark: SparkSession) -> None:
    """What is missing inside an epoch, and what the takeover left out."""
    shown = audit.epochs(messages(spark, sound())).collect()
    assert [
        (one["epoch"], one["rows"], one["first_seq"], one["missing"], one["gap_before"])
        for one in shown
    ] == [(1, 7, 5, 11, None), (2, 2, SECOND_EPOCH, 2, SECOND_EPOCH - 23)]


def test_the_live_set_counts_each_queue(spark: SparkSession) -> None:
    """A reference counts with the size of its body."""
    bindings = spark.createDataFrame(bound(), BINDINGS)
    shown = audit.live_set(messages(spark, sound()), bindings).collect()
    assert [(one["queue"], one["messages"], one["bytes"]) for one in shown] == [
        ("audit", 1, 100),
        ("orders", 7, 700),
    ]
