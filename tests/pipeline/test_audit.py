"""The rules of an audit, on rows of any kind; what is found in real stores is in test_audit_faults.

Decisions are pure and are tested without Spark.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.large_check import StoredPiece, judge_body
from orthia.pipeline.jobs import audit, audit_messages, audit_summary, audit_tally
from orthia.pipeline.jobs.audit_limits import (
    BindingRow,
    Limits,
    Lock,
    binding_faults,
    epoch_limit,
    id_limit,
)
from orthia.pipeline.jobs.epoch_order import EpochRun, merged, misplaced
from orthia.pipeline.sources.audit_rows import MESSAGES
from orthia.pipeline.sources.schemas import BINDINGS

pytestmark = pytest.mark.extended

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SECOND_EPOCH = 1_000_001
NO_LIMITS = Limits(None, None, None)

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
    return dict.fromkeys(MESSAGES.fieldNames()) | values | changes


def sound() -> list[Row]:
    """Return a journal of two epochs, with a message of two queues and gaps by acknowledgements."""
    rows = [row(seq) for seq in (5, 6, 9, 10, SECOND_EPOCH, SECOND_EPOCH + 3)]
    rows.append(row(20, "body"))
    rows += [row(20 + n, "reference", id=20, queue_id=n, size=40) for n in (1, 2)]
    return rows


def messages(spark: SparkSession, rows: list[Row]) -> Any:
    """Return rows as ``orthia.audit`` gives them."""
    return spark.createDataFrame(rows, MESSAGES)


def bound(seq: int, kind: str = "queue", **changes: Any) -> BindingRow:
    """Return a row of BINDINGS."""
    row = BindingRow(seq, seq, kind, f"{kind}-{seq}", "address", 1, NOON, (), (), (), ())
    return replace(row, **changes)


# --- transactions


def test_a_transaction_needs_its_end_and_its_beginning(spark: SparkSession) -> None:
    """Whatever it does, and however it ends: by a commit or a rollback of its own."""
    rows, expected = sound(), set()
    for tx_id, (kind, end) in enumerate(product((13, 14, 15, 17), (None, 18, 19)), 1):
        seq = 30 + 2 * tx_id
        rows.append(row(seq, "other", record_type=kind, tx_id=tx_id, queue_id=None))
        if end is None:
            expected.add(("unfinished-transaction", seq))
        else:
            rows.append(row(seq + 1, "other", record_type=end, tx_id=tx_id, queue_id=None))
    for seq, end in ((90, 18), (91, 19)):
        rows.append(row(seq, "other", record_type=end, tx_id=seq, queue_id=None))
        expected.add(("end-without-transaction", seq))
    found = audit_messages.transactions(messages(spark, rows)).collect()
    assert {(one["fault"], one["seq"]) for one in found} == expected


# --- the order of epochs


def order(spark: SparkSession, *others: Row, limits: Limits = NO_LIMITS) -> set[tuple[str, int]]:
    """Return what is out of order among sound rows and others."""
    rows = audit._written(messages(spark, [*sound(), *others]), "messages")
    found = audit_messages.out_of_order(rows, limits)
    return set() if found is None else {(one["fault"], one["seq"]) for one in found.collect()}


def test_a_row_above_the_fence_or_of_the_future_puts_no_other_out_of_order(
    spark: SparkSession,
) -> None:
    """It is told as what it is; the rows after it are right."""
    rows = [row(7, epoch=9), row(8, written_at=NOON + timedelta(days=2))]
    assert order(spark, *rows, limits=Limits(2, None, NOON + timedelta(days=1))) == set()


@pytest.mark.parametrize(
    ("epochs", "wrong"),
    [
        ("1111222", ""),
        ("1112122", "4"),
        ("1121112", "2"),
        ("11122221", "7"),
        ("12", ""),
        ("21", "1"),
    ],
)
def test_the_fewest_rows_are_named(epochs: str, wrong: str) -> None:
    """Of as many on both sides the older epoch's: what it wrote when it was over."""
    runs = merged(EpochRun(int(epoch), at, at, 1) for at, epoch in enumerate(epochs))
    named = [at for one in misplaced(runs) for at in range(one.run.first, one.run.last + 1)]
    assert "".join(map(str, named)) == wrong


@given(st.lists(st.integers(1, 4), max_size=9))
def test_what_is_left_is_in_order_and_nothing_less_would_do(epochs: list[int]) -> None:
    """As many are named as are above the longest sequence that never goes down."""
    named = misplaced(merged(EpochRun(epoch, at, at, 1) for at, epoch in enumerate(epochs)))
    wrong = {at for one in named for at in range(one.run.first, one.run.last + 1)}
    left = [epoch for at, epoch in enumerate(epochs) if at not in wrong]
    assert left == sorted(left)
    longest: list[int] = []
    for at, epoch in enumerate(epochs):
        before = [longest[i] for i in range(at) if epochs[i] <= epoch]
        longest.append(1 + max(before, default=0))
    assert len(left) == max(longest, default=0)
    assert all(
        one.other.epoch > one.run.epoch if one.is_stale else one.other.epoch < one.run.epoch
        for one in named
    )


# --- limits


def test_a_fence_is_doubted_only_if_more_speaks_against_it() -> None:
    """One row above it is wrong; the counter and what was stored since are right."""
    opened = bound(0, "counter", epoch=7)
    assert epoch_limit(Lock(7, 7, None), opened, [6, 7, 99]) == (7, [])
    assert epoch_limit(Lock(7, 7, None), replace(opened, epoch=99), [6, 7]) == (7, [])
    assert epoch_limit(Lock(None, None, None), opened, [9]) == (None, [])
    for lock, epochs in ((Lock(3, 3, None), [6, 7]), (Lock(3, 7, None), [])):
        limit, (fault,) = epoch_limit(lock, opened, epochs)
        assert (limit, fault.fault, fault.seq) == (7, "fence-behind", 4)


def test_a_counter_is_doubted_only_if_most_rows_are_above_it() -> None:
    """Else a row above it is what is wrong; without rows none is needed."""
    counter = bound(0, "counter", id=100)
    assert id_limit(counter, 1, 9, is_used=True) == (100, [])
    assert id_limit(None, 0, 0, is_used=False) == (None, [])
    for row_, above, fault in ((counter, 9, "low-counter"), (None, 0, "missing-counter")):
        limit, (found,) = id_limit(row_, above, 1, is_used=True)
        assert (limit, found.fault, found.seq) == (None, fault, 0)


def test_bindings_of_one_name_are_told_at_the_later_one() -> None:
    """Of one kind: a queue may be called as an address is."""
    rows = [bound(7, name="a"), bound(9, name="a"), bound(8, "address", name="a")]
    found = binding_faults(rows, Limits(1, 8, NOON))
    assert [(one.fault, one.seq) for one in found] == [
        ("unreserved-id", 9),
        ("duplicate-binding", 9),
    ]
    late = bound(5, epoch=2, written_at=NOON + timedelta(seconds=1))
    told = binding_faults([late], Limits(1, 8, NOON))
    assert [one.fault for one in told] == ["unfenced-epoch", "wrong-time"]


# --- bodies


def piece(position: int, length: int = PIECE_BYTES, **changes: Any) -> StoredPiece:
    """Return a piece whose body's checksum is 5 up to it."""
    return StoredPiece(position, length, 5)._replace(**changes)


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([piece(0), piece(1, 10)], []),
        ([piece(0), piece(1, 10, running=None)], []),
        ([], [(None, "large-body-missing")]),
        ([piece(1, 10)], [(0, "large-piece-missing")]),
        ([piece(0)], [(1, "large-piece-missing")]),
        ([piece(0, 9), piece(1, 10)], [(0, "large-piece-size")]),
        ([piece(0), piece(1, 10), piece(2, 1)], [(2, "large-piece-surplus")]),
        ([piece(0), piece(1, 10, running=6)], [(None, "large-body-corrupt")]),
    ],
)
def test_a_body_is_compared_with_what_its_message_says(
    pieces: list[StoredPiece], found: list[tuple[int | None, str]]
) -> None:
    """Size, pieces and checksum; what is not read is not compared."""
    told = judge_body(PIECE_BYTES + 10, 5, pieces)
    assert [(position, finding.fault) for position, finding in told] == found


# --- what is told beside faults


def test_epochs_tell_their_gaps(spark: SparkSession) -> None:
    """What is missing inside an epoch, and what the takeover left out."""
    shown = audit_summary.epochs(audit._read(messages(spark, sound())).bounds)
    assert [
        (one["epoch"], one["rows"], one["first_seq"], one["missing"], one["gap_before"])
        for one in shown
    ] == [(1, 7, 5, 11, None), (2, 2, SECOND_EPOCH, 2, SECOND_EPOCH - 23)]


def test_the_live_set_counts_each_queue(spark: SparkSession) -> None:
    """A reference counts with the size of its body; a transaction in doubt is told of by itself."""
    rows = [
        {"seq": 1, "id": 1, "type": "queue", "name": "orders", "address": "orders", "epoch": 1},
        {"seq": 2, "id": 2, "type": "queue", "name": "audit", "address": "audit", "epoch": 1},
        {"seq": 30, "id": 30, "type": "transaction", "name": "1:ab:cd", "epoch": 2},
    ]
    bindings = spark.createDataFrame(rows, BINDINGS)
    shown = audit_summary.live_set(messages(spark, sound()), bindings).collect()
    assert [(one["queue"], one["messages"], one["bytes"]) for one in shown] == [
        ("audit", 1, 100),
        ("orders", 7, 700),
    ]
    in_doubt = audit_summary.in_doubt([bound(30, "transaction", name="1:ab:cd"), bound(1)])
    assert [(one["xid"], one["prepared_at"]) for one in in_doubt] == [
        ("1:ab:cd", "2026-01-31T12:00:00.000Z")
    ]


def test_the_first_faults_are_kept_by_seq_and_those_without_one_before_them() -> None:
    """Of each name as many as are listed, from all batches; nothing is said on standard error."""
    batches = [
        pa.RecordBatch.from_pylist(
            [{"fault": "wrong-id", "is_suspect": False, "seq": seq} for seq in seqs],
            schema=pa.schema(
                [("fault", pa.string()), ("is_suspect", pa.bool_()), ("seq", pa.int64())]
            ),
        )
        for seqs in ([9, -4, 7], [1, None, 8])
    ]
    (told,) = audit_tally.tally(batches, listed=3, suspects=1)
    kept = json.loads(told.column("row")[0].as_py())
    assert [one["seq"] for one in kept["first"]] == [None, -4, 1]
    assert kept["rows"] == 6
