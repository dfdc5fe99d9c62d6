"""An audit's results beside faults: transactions in doubt, epochs and gaps, queue contents."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it


def in_doubt(bindings: DataFrame) -> DataFrame:
    """Return the prepared transactions, the oldest first: ``xid, id, epoch, prepared_at``."""
    return (
        bindings.where("type = 'transaction'")
        .select(F.col("name").alias("xid"), "id", "epoch", F.col("written_at").alias("prepared_at"))
        .orderBy("id")
    )


def epoch_bounds(messages: DataFrame) -> DataFrame:
    """Return the rows of each epoch: their number, first and last by seq and by time."""
    return messages.groupBy("epoch").agg(
        F.count("*").alias("rows"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("written_at").alias("first_written_at"),
        F.max("written_at").alias("last_written_at"),
    )


def epochs(messages: DataFrame) -> DataFrame:
    """Return each epoch with the gaps of ``seq`` inside it, and before it from the takeover."""
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
