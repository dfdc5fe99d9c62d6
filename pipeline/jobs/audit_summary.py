"""An audit's results beside faults: transactions in doubt, epochs and gaps, queue contents."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.pipeline.jobs.audit_limits import BindingRow
from orthia.pipeline.jobs.epoch_order import EpochBounds
from orthia.pipeline.jobs.together import Rows
from orthia.pipeline.times import iso, microseconds


def in_doubt(bindings: Sequence[BindingRow]) -> Rows:
    """Return the prepared transactions, the oldest first: ``xid, id, epoch, prepared_at``."""
    found = [one for one in bindings if one.type == "transaction"]
    return [
        {
            "xid": one.name,
            "id": one.id,
            "epoch": one.epoch,
            "prepared_at": iso(None if one.written_at is None else microseconds(one.written_at)),
        }
        for one in sorted(found, key=lambda one: one.id or 0)
    ]


def epochs(bounds: Sequence[EpochBounds]) -> Rows:
    """Return each epoch with the gaps of ``seq`` inside it, and before it from the takeover."""
    found: Rows = []
    before: int | None = None
    for one in sorted(bounds, key=lambda one: (one.epoch is not None, one.epoch or 0)):
        first, last = one.first, one.last
        known = first is not None and last is not None
        found.append(
            {
                "epoch": one.epoch,
                "rows": one.rows,
                "first_seq": first,
                "last_seq": last,
                "first_written_at": iso(one.first_at),
                "last_written_at": iso(one.last_at),
                "missing": (last or 0) - (first or 0) + 1 - one.rows if known else None,
                "gap_before": None
                if before is None or first is None
                else max(0, first - before - 1),
            }
        )
        before = last
    return found


def live_set(messages: DataFrame, bindings: DataFrame) -> DataFrame:
    """Return each queue's messages, bytes, oldest and newest; empty queues, too."""
    bodies = messages.where("kind = 'body'").select(
        F.col("seq").alias("body_at"), F.col("size").alias("body_size")
    )
    rows = (
        messages.where("kind IN ('message', 'reference')")
        .join(bodies, (F.col("kind") == "reference") & (F.col("id") == F.col("body_at")), "left")
        .groupBy("queue_id")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.coalesce("body_size", "size")).alias("bytes"),
            F.min("written_at").alias("oldest"),
            F.max("written_at").alias("newest"),
        )
    )
    queues = bindings.where("type LIKE 'queue%'").select(
        F.col("seq").alias("queue_id"), F.col("name").alias("queue"), "address"
    )
    unbound = F.when(F.col("queue").isNull(), F.col("queue_id"))
    return (
        queues.join(rows, "queue_id", "full")
        .na.fill(0, ["messages", "bytes"])
        .groupBy("queue", "address", unbound)
        .agg(
            F.min("queue_id").alias("queue_id"),  # those of its priorities are younger
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.min("oldest").alias("oldest"),
            F.max("newest").alias("newest"),
        )
        .select("queue", "address", "queue_id", "messages", "bytes", "oldest", "newest")
        .orderBy("queue", "queue_id")
    )
