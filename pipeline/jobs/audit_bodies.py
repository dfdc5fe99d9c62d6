"""The audit rules for large bodies: those that are needed against those that are stored.

A message, each queue's reference to one, the history and transactions in doubt need bodies.
``pieces`` are the rows that ``orthia.audit`` reads from LARGE_MESSAGES or from the
large-messages-directory.
"""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.pipeline.jobs.audit_limits import BindingRow
from orthia.pipeline.jobs.audit_messages import fault
from orthia.pipeline.sources.audit_rows import BODY_FINDINGS, judged_bodies

_NEED = "needed_by string, body long, size long, checksum long, seq long, queue_id long, epoch long"


def needs_of_rows(rows: DataFrame, table: str) -> DataFrame:
    """Return the bodies that rows of MESSAGES or of the history need, a row for each queue."""
    wanted = [F.col(f"large.{one}").alias(one) for one in ("size", "checksum")]
    own = rows.where("kind = 'message' AND large IS NOT NULL").select(
        F.lit(table).alias("needed_by"),
        F.col("large.id").alias("body"),
        *wanted,
        "seq",
        "queue_id",
        "epoch",
    )
    bodies = rows.where("kind = 'body' AND large IS NOT NULL").select(
        F.col("seq").alias("body_at"), F.col("large.id").alias("body"), *wanted
    )
    shares = rows.where("kind = 'reference' AND findings IS NULL").select(
        F.lit(table).alias("needed_by"), F.col("id").alias("body_at"), "seq", "queue_id", "epoch"
    )
    return own.unionByName(shares.join(F.broadcast(bodies), "body_at").drop("body_at"))


def needs_of_transactions(bindings: Iterable[BindingRow], spark: SparkSession) -> DataFrame:
    """Return the bodies that transactions in doubt need."""
    needed = [
        ("bindings", body["id"], body["size"], body["checksum"], one.seq, None, one.epoch)
        for one in bindings
        for body in one.large or ()
    ]
    return spark.createDataFrame(needed, _NEED)


def unlinked(needs: DataFrame, pieces: DataFrame) -> DataFrame:
    """Return the needs without a reference to their body, which clean-up would remove."""
    links = pieces.where("position < 0").select(
        F.col("id").alias("body"), (-F.col("position")).alias("seq")
    )
    missing = needs.join(links, ["body", "seq"], "left_anti").withColumn("id", F.col("body"))
    detail = F.format_string("row (id %d, position -%d) is missing", "body", "seq")
    return _told(missing, "large-body-unlinked", detail)


def damaged(needs: DataFrame, pieces: DataFrame) -> DataFrame:
    """Return the faults of needed bodies, each once for a body."""
    wanted = needs.groupBy("body", "size", "checksum").agg(
        F.min_by("needed_by", "seq").alias("needed_by"),
        F.min_by("epoch", "seq").alias("epoch"),
        F.min("seq").alias("seq"),
    )
    stored = (
        pieces.where("position >= 0")
        .groupBy("id")
        .agg(F.collect_list(F.struct("position", "length", "running")).alias("pieces"))
    )
    bodies = wanted.withColumnRenamed("body", "id").join(stored, "id", "left")
    judged = bodies.select("id", "size", "checksum", "seq", "epoch", "needed_by", "pieces")
    found = judged.mapInArrow(judged_bodies, BODY_FINDINGS)
    return _told(found, F.col("fault"), F.col("detail"))


def unneeded(needs: DataFrame, pieces: DataFrame) -> DataFrame:
    """Return bodies that nothing needs: ``id, epoch, pieces, bytes``."""
    return (
        pieces.where("position >= 0")
        .join(needs.select(F.col("body").alias("id")).distinct(), "id", "left_anti")
        .groupBy("id")
        .agg(
            F.max("epoch").alias("epoch"),
            F.count("*").alias("pieces"),
            F.sum("length").alias("bytes"),
        )
    )


def _told(rows: DataFrame, name: Column | str, detail: Column) -> DataFrame:
    """Return faults with ``needed_by``, which the second check uses."""
    return fault(rows, name, detail, "large", "needed_by")
