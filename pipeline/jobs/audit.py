"""Does a journal hold together? Each fault is a row; a sound journal has none.

The rules, each of which a sound Orthia keeps:

1. A reference has its body, and a body has a reference left.
2. What a message consists of is found by its id: a message's and a body's is its own ``seq``, no
   two have the same.
3. ``seq`` is given out by one fenced writer at a time: where a newer epoch (fencing token) has
   begun, no row of an older one follows, neither by ``seq`` nor by the database's clock, and no
   epoch is newer than the fence.
4. No ``seq`` is above the ids that were reserved.
5. A transaction that has rows has a row that ends it.
6. Every queue that has messages is bound, and every record can be read.
7. A message that left its queue is in the history, or is not: it does not wait there any more, and
   it is kept once.

A transaction in doubt, which is prepared and waits for its manager's word, is no fault: it is a row
of BINDINGS with all it would do, and has no rows of MESSAGES. ``in_doubt`` lists them.

Gaps are no faults: an acknowledged message's row is deleted, ids are spent on queues and on what is
not persistent, and a takeover leaves out the rest of a reserved block. ``epochs`` tells them.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

COLUMNS: Final = (
    *("seq", "id", "kind", "record_type", "tx_id", "queue_id"),
    *("epoch", "written_at", "size"),
)
"""What an audit reads of MESSAGES; with ``corrupt``, which decodes, records are checked too."""

HISTORY_COLUMNS: Final = ("seq", "id", "queue_id", "epoch", "written_at", "removed_at")
"""What an audit reads of the history."""

FAULTS: Final = {
    "orphaned-reference": "a reference whose body is missing",
    "orphaned-body": "a body without a reference",
    "duplicate-id": "an id that several messages, or several rows of one queue, have",
    "wrong-id": "a message whose id is not its seq",
    "stale-epoch": "a row of an older epoch after a newer one had begun: two writers",
    "unfenced-epoch": "a row of an epoch newer than the fence",
    "unreserved-id": "a seq above the ids that were reserved",
    "unfinished-transaction": "a transaction without commit or rollback",
    "unknown-queue": "a message of a queue that is not bound",
    "corrupt-record": "a message that cannot be read",
    "corrupt-binding": "a queue or address that cannot be read",
}
"""Every fault of a journal by its name, and what it means."""

HISTORY_FAULTS: Final = {
    "kept-and-waiting": "a message of the history that is still in its queue",
    "kept-twice": "a message that left one queue twice, as the history has it",
    "kept-before-written": "a message that left its queue before it was written",
}
"""The same of a history."""

_IN_TRANSACTION: Final = (13, 14, 15, 17)
_END_OF_TRANSACTION: Final = (18, 19)
"""Artemis' JournalImpl: records of a transaction, and its COMMIT and ROLLBACK records."""


def faults(
    messages: DataFrame, bindings: DataFrame, node_manager: DataFrame | None = None
) -> DataFrame:
    """Return every fault as ``fault, seq, id, queue_id, epoch, detail``.

    ``messages`` has COLUMNS; it is read several times, so cache it if it comes from a database.
    Without ``node_manager`` epochs are not compared with the fence.
    """
    corrupt_bindings = bindings.where("corrupt IS NOT NULL").withColumn(
        "queue_id", F.lit(None).cast("long")
    )
    found = (
        _of_one_row(messages, bindings, node_manager),
        _orphaned_references(messages),
        _orphaned_bodies(messages),
        _duplicates(messages),
        _unfinished(messages),
        _fault(corrupt_bindings, "corrupt-binding", F.col("corrupt")),
    )
    return reduce(DataFrame.unionByName, found)


def history_faults(history: DataFrame, messages: DataFrame) -> DataFrame:
    """Return every fault of the history, in the columns of ``faults``.

    ``history`` has HISTORY_COLUMNS and must have been read before ``messages`` was: a message that
    leaves its queue in between is then in neither.
    """
    waiting = messages.where("kind IN ('message', 'reference')").select("seq")
    both = history.join(waiting, "seq", "left_semi")
    repeated = (
        history.groupBy("id", "queue_id")
        .agg(F.count("*").alias("rows"), F.max("seq").alias("seq"), F.max("epoch").alias("epoch"))
        .where("rows > 1")
    )
    left = F.col("removed_at").cast("string")
    found = (
        _fault(both, "kept-and-waiting", F.format_string("it left at %s", left)),
        _fault(repeated, "kept-twice", F.format_string("%d rows have it", "rows")),
        _fault(
            history.where("removed_at < written_at"),
            "kept-before-written",
            F.format_string("it left at %s", left),
        ),
    )
    return reduce(DataFrame.unionByName, found)


def _fault(rows: DataFrame, name: str, detail: Column) -> DataFrame:
    return rows.select(
        F.lit(name).alias("fault"), "seq", "id", "queue_id", "epoch", detail.alias("detail")
    )


def _orphaned_references(messages: DataFrame) -> DataFrame:
    bodies = messages.where("kind = 'body'").select(F.col("seq").alias("body_seq"))
    references = messages.where("kind = 'reference'")
    orphans = references.join(bodies, F.col("id") == F.col("body_seq"), "left_anti")
    return _fault(orphans, "orphaned-reference", F.format_string("no body at seq %d", "id"))


def _orphaned_bodies(messages: DataFrame) -> DataFrame:
    referred = messages.where("kind = 'reference'").select(F.col("id").alias("body_seq"))
    bodies = messages.where("kind = 'body'")
    orphans = bodies.join(referred, F.col("seq") == F.col("body_seq"), "left_anti")
    return _fault(orphans, "orphaned-body", F.lit("no queue refers to it"))


def _duplicates(messages: DataFrame) -> DataFrame:
    # A body and its references share an id; the queue tells them apart.
    rows = messages.where("kind <> 'other'").withColumn("bucket", F.bitmap_bucket_number("id"))
    # Grouping every id would move every row. A bitmap of 4 KiB for 32,768 ids tells where it is
    # worth it: where there are more rows than ids.
    crowded = (
        rows.groupBy("bucket")
        .agg(
            F.count("*").alias("rows"),
            F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("id"))).alias("ids"),
        )
        .where("rows > ids")
        .select("bucket")
    )
    repeated = (
        rows.join(F.broadcast(crowded), "bucket", "left_semi")
        .groupBy("id", "queue_id")
        .agg(F.count("*").alias("rows"), F.max("seq").alias("seq"), F.max("epoch").alias("epoch"))
        .where("rows > 1")
    )
    return _fault(repeated, "duplicate-id", F.format_string("%d rows have it", "rows"))


def _unfinished(messages: DataFrame) -> DataFrame:
    rows = messages.where("tx_id IS NOT NULL")
    ended = rows.where(F.col("record_type").isin(*_END_OF_TRANSACTION)).select("tx_id").distinct()
    begun = rows.where(F.col("record_type").isin(*_IN_TRANSACTION))
    open_ones = begun.join(ended, "tx_id", "left_anti")
    return _fault(open_ones, "unfinished-transaction", F.format_string("transaction %d", "tx_id"))


def in_doubt(bindings: DataFrame) -> DataFrame:
    """Return the prepared transactions, the oldest first: ``xid, id, epoch, prepared_at``."""
    return (
        bindings.where("type = 'transaction'")
        .select(F.col("name").alias("xid"), "id", "epoch", F.col("written_at").alias("prepared_at"))
        .orderBy("id")
    )


def _of_one_row(
    messages: DataFrame, bindings: DataFrame, node_manager: DataFrame | None
) -> DataFrame:
    """Return what a row shows by itself, beside a few limits: found in one pass over all rows."""
    reserved = bindings.where("type = 'counter'").agg(F.max("id").alias("reserved"))
    bound = bindings.where("type = 'queue'").select(
        F.col("seq").alias("queue_id"), F.expr("true").alias("is_bound")
    )
    rows = (
        messages.join(F.broadcast(_epoch_limits(messages)), "epoch", "left")
        .join(F.broadcast(bound), "queue_id", "left")
        .crossJoin(F.broadcast(reserved))
        .crossJoin(F.broadcast(_fence(messages, node_manager)))
    )
    if "corrupt" not in rows.columns:
        rows = rows.withColumn("corrupt", F.lit(None).cast("string"))
    checks = [
        F.when(F.expr(wrong), F.struct(F.lit(name).alias("fault"), detail.alias("detail")))
        for name, wrong, detail in _checks()
    ]
    faulty = F.filter(F.array(*checks), lambda one: one.isNotNull())
    # Few rows have a fault, and to look for one is cheaper than to tell which.
    wrong_somehow = " OR ".join(f"({wrong})" for _, wrong, _ in _checks())
    return (
        rows.where(wrong_somehow)
        .withColumn("fault", F.explode(faulty))
        .select("fault.fault", "seq", "id", "queue_id", "epoch", "fault.detail")
    )


def _checks() -> list[tuple[str, str, Column]]:
    """Return the faults a single row can have: name, condition, and what is told of it."""
    began = F.col("next_written_at").cast("string")
    return [
        (
            "stale-epoch",
            "seq > next_seq OR written_at > next_written_at",
            F.format_string("a newer epoch began at seq %d, %s", "next_seq", began),
        ),
        ("unfenced-epoch", "epoch > fence", F.format_string("the fence is at %d", "fence")),
        ("unreserved-id", "seq > reserved", F.format_string("reserved up to %d", "reserved")),
        (
            "unknown-queue",
            "queue_id IS NOT NULL AND is_bound IS NULL",
            F.lit("no binding of this id"),
        ),
        (
            "wrong-id",
            "kind IN ('message', 'body') AND id <> seq",
            F.lit("a message's id is its seq"),
        ),
        # A reference without its body is told as such.
        ("corrupt-record", "corrupt IS NOT NULL AND kind <> 'reference'", F.col("corrupt")),
    ]


def _epoch_limits(messages: DataFrame) -> DataFrame:
    """Return for each epoch where, and when, the first of the newer ones began."""
    newer = Window.orderBy(F.col("epoch").desc()).rowsBetween(
        Window.unboundedPreceding, Window.currentRow - 1
    )
    return epoch_bounds(messages).select(
        "epoch",
        F.min("first_seq").over(newer).alias("next_seq"),
        F.min("first_written_at").over(newer).alias("next_written_at"),
    )


def _fence(messages: DataFrame, node_manager: DataFrame | None) -> DataFrame:
    if node_manager is not None:
        return node_manager.agg(F.max("fence_token").alias("fence"))
    return messages.sparkSession.range(1).select(F.lit(None).cast("long").alias("fence"))


def epoch_bounds(messages: DataFrame) -> DataFrame:
    """Return what there is of each epoch: rows, first and last by seq and by time."""
    return messages.groupBy("epoch").agg(
        F.count("*").alias("rows"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("written_at").alias("first_written_at"),
        F.max("written_at").alias("last_written_at"),
    )


def epochs(messages: DataFrame) -> DataFrame:
    """Return each epoch with the gaps of ``seq``: inside of it, and before it by the takeover."""
    before = F.lag("last_seq").over(Window.orderBy("epoch"))
    return (
        epoch_bounds(messages)
        .withColumn("missing", F.expr("last_seq - first_seq + 1 - rows"))
        .withColumn(
            "gap_before",
            F.when(before.isNotNull(), F.greatest(F.lit(0), F.col("first_seq") - before - 1)),
        )
        .orderBy("epoch")
    )


def live_set(messages: DataFrame, bindings: DataFrame) -> DataFrame:
    """Return what waits in each queue: messages, bytes, oldest and newest; also empty queues."""
    bodies = messages.where("kind = 'body'").select(
        F.col("seq").alias("body_seq"), F.col("size").alias("body_size")
    )
    rows = (
        messages.where("kind IN ('message', 'reference')")
        .join(bodies, (F.col("kind") == "reference") & (F.col("id") == F.col("body_seq")), "left")
        .groupBy("queue_id")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.coalesce("body_size", "size")).alias("bytes"),
            F.min("written_at").alias("oldest"),
            F.max("written_at").alias("newest"),
        )
    )
    queues = bindings.where("type = 'queue'").select(
        F.col("seq").alias("queue_id"), F.col("name").alias("queue"), "address"
    )
    return (
        queues.join(rows, "queue_id", "full")
        .na.fill(0, ["messages", "bytes"])
        .select("queue", "address", "queue_id", "messages", "bytes", "oldest", "newest")
        .orderBy("queue", "queue_id")
    )
