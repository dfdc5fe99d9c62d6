"""Traffic of queues: how much, how long it stays, and what could not be delivered.

A journal has only waiting messages; acknowledged ones are gone. So its figures are of the traffic
that is left, its age, and the growth of the backlog. Figures of messages that left their queue come
from the history that journal-retention keeps. Bytes are those of bodies, large ones included.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

COLUMNS: Final = (
    "seq",
    "kind",
    "queue",
    "written_at",
    "timestamp",
    "body_size",
    "headers",
    "corrupt",
)
"""The columns of MESSAGES that these jobs read."""

HISTORY_COLUMNS: Final = ("queue", "written_at", "removed_at", "reason", "body_size")
"""The columns of the history that ``left`` reads."""

_ACCURACY: Final = 10_000
"""The error of a percentile's rank is one in so many."""
_ORIGIN: Final = "_AMQ_ORIG_QUEUE"
"""The header of a message that was dead-lettered or expired, as in Artemis."""


def deliverable(messages: DataFrame) -> DataFrame:
    """Return a row for each message of each queue, with the reason if it cannot be read.

    ``seq, queue, hour, written_at, bytes, origin, corrupt``.
    """
    # A file journal does not record when a row was written, but when the message was accepted.
    written_at = F.coalesce("written_at", "timestamp")
    return messages.where("kind IN ('message', 'reference')").select(
        F.coalesce("queue", F.lit("(not bound)")).alias("queue"),
        F.date_trunc("hour", written_at).alias("hour"),
        written_at.alias("written_at"),
        F.coalesce("body_size", F.lit(0)).alias("bytes"),
        F.element_at("headers", _ORIGIN).alias("origin"),
        "seq",
        "corrupt",
    )


def by_queue(rows: DataFrame, now: Column) -> DataFrame:
    """Return each queue's backlog, sizes, waiting times, and dead letters."""
    waited = (F.unix_micros(now) - F.unix_micros("written_at")).cast("double") / 1_000_000
    return (
        rows.withColumn("waited", waited)
        .groupBy("queue")
        .agg(
            F.count("*").alias("messages"),
            F.sum("bytes").alias("bytes"),
            _percentile("bytes", 0.5).alias("median_bytes"),
            F.max("bytes").alias("largest_bytes"),
            _per_second("written_at"),
            _percentile("waited", 0.5).alias("median_waited_seconds"),
            _percentile("waited", 0.95).alias("p95_waited_seconds"),
            F.max("waited").alias("longest_waited_seconds"),
            F.count("origin").alias("dead_letters"),
        )
        .orderBy("queue")
    )


def by_hour(rows: DataFrame) -> DataFrame:
    """Return the messages of each queue and hour that still wait, and the resulting backlog."""
    so_far = Window.partitionBy("queue").orderBy("hour")
    return (
        rows.groupBy("queue", "hour")
        .agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
        .withColumn("backlog", F.sum("messages").over(so_far))
        .withColumn("per_second", F.col("messages") / 3_600)
        .orderBy("queue", "hour")
    )


def dead_letters(rows: DataFrame) -> DataFrame:
    """Return where dead-lettered and expired messages came from, and where they are now."""
    return (
        rows.where("origin IS NOT NULL")
        .groupBy("origin", "queue")
        .agg(
            F.count("*").alias("messages"),
            F.min("written_at").alias("oldest"),
            F.max("written_at").alias("newest"),
        )
        .orderBy("origin", "queue")
    )


def left(history: DataFrame) -> DataFrame:
    """Return the messages that left each queue for each reason, their rate and age."""
    stayed = F.unix_micros("removed_at") - F.unix_micros("written_at")
    return (
        history.withColumn("seconds", stayed.cast("double") / 1_000_000)
        .groupBy(F.coalesce("queue", F.lit("(not bound)")).alias("queue"), "reason")
        .agg(
            F.count("*").alias("messages"),
            F.sum("body_size").alias("bytes"),
            _per_second("removed_at"),
            _percentile("seconds", 0.5).alias("median_seconds_in_queue"),
            _percentile("seconds", 0.95).alias("p95_seconds_in_queue"),
            F.max("seconds").alias("longest_seconds_in_queue"),
            F.min("removed_at").alias("first"),
            F.max("removed_at").alias("last"),
        )
        .orderBy("queue", "reason")
    )


def _percentile(column: str, share: float) -> Column:
    """Return a value of a group that has ``share`` of its rows below it, give or take 0.01 %.

    An exact one needs all different values of a queue in one task's memory: 8 million of them ended
    it. This takes a summary of bounded size from each task.
    """
    return F.percentile_approx(column, share, _ACCURACY)


def _per_second(moment: str) -> Column:
    """Return the rate of a group's rows from the first ``moment`` to the last; NULL for one."""
    span = F.unix_micros(F.max(moment)) - F.unix_micros(F.min(moment))
    return F.try_divide(F.count("*") * 1_000_000, span).alias("per_second")
