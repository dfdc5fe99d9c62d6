"""The audit rules for rows of MESSAGES and of the history, on DataFrames.

Each rule returns faults as rows of FAULTS. ``messages`` are rows that ``orthia.audit`` reads.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from orthia.journal.model.integrity import END_OF_TRANSACTION, IN_TRANSACTION
from orthia.pipeline.jobs.audit_limits import Fault, Limits
from orthia.pipeline.jobs.epoch_order import EpochRun, Misplaced, merged, misplaced
from orthia.pipeline.times import EPOCH

FAULTS: Final = StructType(
    [
        StructField("fault", StringType()),
        StructField("table", StringType()),
        StructField("seq", LongType()),
        StructField("id", LongType()),
        StructField("position", LongType()),
        StructField("queue_id", LongType()),
        StructField("epoch", LongType()),
        StructField("detail", StringType()),
    ]
)
_WHOLE: Final = "kind IN ('message', 'reference')"
_MOST_RUNS: Final = 1_000_000
"""The most runs of epochs that are examined: a journal with as many is in no order at all."""
_RUN: Final = "epoch long, first long, last long, rows long"


def fault(
    rows: DataFrame,
    name: Column | str,
    detail: Column | str,
    table: str = "messages",
    *others: str,
) -> DataFrame:
    """Return ``rows`` as faults of one name, with a detail and the columns ``others``."""
    there = set(rows.columns)
    keys = [
        F.col(key) if key in there else F.lit(None).cast("long").alias(key)
        for key in ("seq", "id", "position", "queue_id", "epoch")
    ]
    named = F.lit(name) if isinstance(name, str) else name
    told = F.lit(detail) if isinstance(detail, str) else detail
    return rows.select(
        named.alias("fault"), F.lit(table).alias("table"), *keys, told.alias("detail"), *others
    )


def told(found: Iterable[Fault], like: DataFrame) -> DataFrame:
    """Return faults found on the driver as rows."""
    return like.sparkSession.createDataFrame(list(found), FAULTS)


def of_single_rows(rows: DataFrame, limits: Limits, table: str, *, has_times: bool) -> DataFrame:
    """Return the faults that a row shows alone or against the limits, in one pass over all rows."""
    written = F.col("written_at").cast("string")
    checks: list[tuple[str, Column, Column]] = []
    if limits.epoch is not None:
        detail = F.lit(f"the fence is at {limits.epoch}")
        checks.append(("unfenced-epoch", F.col("epoch") > limits.epoch, detail))
    if limits.reserved is not None:
        detail = F.lit(f"reserved up to {limits.reserved}")
        checks.append(("unreserved-id", F.col("seq") > limits.reserved, detail))
    times = ["written_at"] if has_times else []
    times += ["removed_at"] if table == "history" else []
    for name in times:
        unread = F.lit(f"{name} cannot be read as a time")
        checks.append(("wrong-time", F.col(name).isNull(), unread))
        early = F.format_string(f"{name} is %s, before 1970", F.col(name).cast("string"))
        checks.append(("wrong-time", F.col(name) < F.lit(EPOCH), early))
        if limits.written_at is not None:
            at = F.format_string(f"{name} is %s, which is to come", F.col(name).cast("string"))
            checks.append(("wrong-time", F.col(name) > F.lit(limits.written_at), at))
    if table == "history":
        left = F.format_string("it left its queue at %s", F.col("removed_at").cast("string"))
        detail = F.concat(left, F.lit(" and was written at "), written)
        checks.append(("kept-before-written", F.expr("removed_at < written_at"), detail))
    found = [
        F.when(wrong, F.struct(F.lit(name).alias("fault"), detail.alias("detail")))
        for name, wrong, detail in checks
    ]
    own = F.coalesce("findings", F.array().cast("array<struct<fault:string,detail:string>>"))
    others = F.filter(F.array(*found), lambda one: one.isNotNull()) if found else F.array()
    # Few rows have a fault, and testing for any is cheaper than naming it.
    wrong = [F.col("findings").isNotNull(), *(condition for _, condition, _ in checks)]
    wrong_rows = rows.where(reduce(lambda left, right: left | right, wrong))
    exploded = wrong_rows.withColumn("found", F.explode(F.concat(own, others) if found else own))
    return fault(exploded, F.col("found.fault"), F.col("found.detail"), table)


def unbound_queues(messages: DataFrame, queues: DataFrame) -> DataFrame:
    """Return each unbound queue that has messages, once, at its first message."""
    rows = messages.where(f"{_WHOLE} AND queue_id > 0")
    found = (
        rows.join(F.broadcast(queues.select("queue_id")), "queue_id", "left_anti")
        .groupBy("queue_id")
        .agg(
            F.count("*").alias("rows"),
            F.max("seq").alias("last"),
            F.min("seq").alias("seq"),
            F.min_by("id", "seq").alias("id"),
            F.min_by("epoch", "seq").alias("epoch"),
        )
    )
    detail = F.format_string(
        "no binding of this id; %d messages, seq %d to %d", "rows", "seq", "last"
    )
    return fault(found, "unknown-queue", detail)


def orphaned_references(messages: DataFrame) -> DataFrame:
    """Return references whose body is missing; a corrupt body has a fault of its own."""
    bodies = messages.where("kind = 'body' OR id = seq OR findings IS NOT NULL").select(
        F.col("seq").alias("body_at")
    )
    references = messages.where("kind = 'reference' AND findings IS NULL")
    orphans = references.join(bodies, F.col("id") == F.col("body_at"), "left_anti")
    return fault(orphans, "orphaned-reference", F.format_string("no body at seq %d", "id"))


def orphaned_bodies(messages: DataFrame) -> DataFrame:
    """Return bodies that nothing refers to."""
    # A row with another fault counts, too: it is reported itself, and its body is sound.
    others = messages.where("id <> seq OR kind = 'reference' OR findings IS NOT NULL")
    referred = others.select(F.col("id").alias("at")).union(others.select("body_seq")).distinct()
    bodies = messages.where("kind = 'body' AND findings IS NULL")
    orphans = bodies.join(referred, F.col("seq") == F.col("at"), "left_anti")
    return fault(orphans, "orphaned-body", "no queue refers to it")


def bodies_in_queues(messages: DataFrame) -> DataFrame:
    """Return messages in a queue that references use as their body."""
    referred = messages.where("kind = 'reference' AND findings IS NULL").select(
        F.col("id").alias("at")
    )
    wrong = messages.where("kind = 'message' AND findings IS NULL").join(
        referred.distinct(), F.col("seq") == F.col("at"), "left_semi"
    )
    detail = F.format_string("references share it, and it is in queue %d itself", "queue_id")
    return fault(wrong, "body-in-queue", detail)


def uneven_references(messages: DataFrame) -> DataFrame:
    """Return references whose total differs from that of most references of their body."""
    references = messages.where("kind = 'reference' AND findings IS NULL AND total IS NOT NULL")
    counted = references.groupBy("id", "total").agg(
        F.count("*").alias("rows"),
        F.max("seq").alias("seq"),
        F.max_by("queue_id", "seq").alias("queue_id"),
        F.max_by("epoch", "seq").alias("epoch"),
    )
    order = Window.partitionBy("id").orderBy(F.desc("rows"), "seq")
    wrong = counted.withColumn("place", F.row_number().over(order)).where("place > 1")
    detail = F.format_string("it says its body had %d references, others say otherwise", "total")
    return fault(wrong, "uneven-references", detail)


def duplicates(messages: DataFrame) -> DataFrame:
    """Return ids that several rows have, rows with another fault left out."""
    # A body and its references share an id; kind and queue tell them apart.
    rows = messages.where("kind <> 'other' AND findings IS NULL").withColumn(
        "bucket", F.bitmap_bucket_number("id")
    )
    # Grouping by every id would shuffle every row. A bitmap of 4 KiB for 32,768 ids finds the
    # ranges that have more rows than ids; only these are grouped.
    full = (
        rows.groupBy("bucket")
        .agg(
            F.count("*").alias("rows"),
            F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("id"))).alias("ids"),
        )
        .where("rows > ids")
        .select("bucket")
    )
    suspects = rows.join(F.broadcast(full), "bucket", "left_semi")
    return repeated(suspects, "duplicate-id", "messages", "kind")


def repeated(rows: DataFrame, name: str, table: str, *keys: str) -> DataFrame:
    """Return a fault at the last of the rows that share an id, a queue and ``keys``."""
    found = (
        rows.groupBy("id", "queue_id", *keys)
        .agg(
            F.count("*").alias("rows"),
            F.min("seq").alias("first"),
            F.max("seq").alias("seq"),
            F.max("epoch").alias("epoch"),
        )
        .where("rows > 1")
    )
    detail = F.format_string("%d rows have it, the first at seq %d", "rows", "first")
    return fault(found, name, detail, table)


def transactions(messages: DataFrame) -> DataFrame:
    """Return rows of transactions without an end, and ends without rows."""
    rows = messages.where("tx_id IS NOT NULL")
    ends = rows.where(F.col("record_type").isin(*map(int, END_OF_TRANSACTION)))
    begun = rows.where(F.col("record_type").isin(*map(int, IN_TRANSACTION)))
    unended = begun.join(ends.select("tx_id").distinct(), "tx_id", "left_anti")
    unbegun = ends.join(begun.select("tx_id").distinct(), "tx_id", "left_anti")
    detail = F.format_string("transaction %d", "tx_id")
    return fault(unended, "unfinished-transaction", detail).unionByName(
        fault(unbegun, "end-without-transaction", detail)
    )


# --- addresses


def misaddressed(rows: DataFrame, queues: DataFrame) -> DataFrame:
    """Return messages, and references to a body, of another address than their queue's."""
    bodies = rows.where("kind = 'body'").select(
        F.col("seq").alias("body_at"), F.col("address").alias("of_body")
    )
    references = rows.where("kind = 'reference' AND findings IS NULL").join(
        bodies, F.col("id") == F.col("body_at")
    )
    keys = ("kind", "seq", "id", "queue_id", "epoch")
    addressed = rows.where("kind = 'message'").select(*keys, "address")
    addressed = addressed.unionByName(references.select(*keys, F.col("of_body").alias("address")))
    bound = queues.select("queue_id", "name", F.col("address").alias("bound"))
    # The broker may send a message of its own, a dead letter, to a queue by name.
    return (
        addressed.where("address IS NOT NULL")
        .join(F.broadcast(bound), "queue_id")
        .where("address <> bound AND address <> name")
    )


def wrong_addresses(
    found: DataFrame, rows: DataFrame, table: str
) -> tuple[DataFrame | None, list[Fault]]:
    """Return the faults of the ``misaddressed`` among ``rows``.

    If most messages of a queue are, the fault is the queue's binding; if all references of a body
    are, it is the body; either once.
    """
    by_queue = found.groupBy("queue_id").agg(
        F.count("*").alias("rows"), F.min("address").alias("address"), F.min("bound").alias("bound")
    )
    counted = by_queue.collect()
    if not counted:
        return None, []
    waiting = {
        row["queue_id"]: row["count"]
        for row in rows.where(_WHOLE).groupBy("queue_id").count().collect()
    }
    misbound = [
        row
        for row in counted
        if row["rows"] > 1 and 2 * row["rows"] > waiting.get(row["queue_id"], 0)
    ]
    faults = [
        Fault(
            "wrong-address",
            "bindings",
            row["queue_id"],
            row["queue_id"],
            None,
            row["queue_id"],
            None,
            f"bound to address {row['bound']!r}, and {row['rows']:,} messages are of"
            f" {row['address']!r}",
        )
        for row in misbound
    ]
    rest = found.where(~F.col("queue_id").isin([row["queue_id"] for row in misbound]))
    of_body = Window.partitionBy("id")
    rest = (
        rest.withColumn("shares", F.count("*").over(of_body))
        .withColumn("at", F.when(F.expr("shares > 1"), F.col("id")).otherwise(F.col("seq")))
        .groupBy("at")
        .agg(
            F.min("id").alias("id"),
            F.when(F.max("shares") == 1, F.min("queue_id")).alias("queue_id"),
            F.min("epoch").alias("epoch"),
            F.min("address").alias("address"),
            F.min("bound").alias("bound"),
        )
        .withColumnRenamed("at", "seq")
    )
    detail = F.format_string("its address is '%s', and its queue's is '%s'", "address", "bound")
    return fault(rest, "wrong-address", detail, table), faults


# --- the order of epochs


def out_of_order(rows: DataFrame, limits: Limits) -> DataFrame | None:
    """Return rows of an epoch that was over, or had not begun; None if there are none.

    ``rows`` are ``table, seq, id, queue_id, epoch, written_at`` of all rows that one writer at a
    time has written. Rows whose epoch or time is a fault by itself are left out.
    """
    right = rows.where("epoch > 0 AND seq > 0")
    if limits.epoch is not None:
        right = right.where(F.col("epoch") <= limits.epoch)
    if limits.written_at is not None:
        in_time = F.col("written_at").isNull() | (F.col("written_at") <= F.lit(limits.written_at))
        right = right.where(in_time)
    right = right.withColumn("at", F.unix_micros("written_at"))
    bounds = sorted(
        right.groupBy("epoch").agg(F.min("seq"), F.max("seq"), F.min("at"), F.max("at")).collect()
    )
    found = []
    for key, name in enumerate(("seq", "at")):
        if _overlap([(one[1 + 2 * key], one[2 + 2 * key]) for one in bounds]):
            keyed = right.where(F.col(name).isNotNull())
            runs = merged(EpochRun(*run) for run in _runs(keyed, name))
            found.append(_rows_of(keyed, name, misplaced(runs)))
    if not found:
        return None
    order = Window.partitionBy("table", "seq", "fault").orderBy("detail")
    once = reduce(DataFrame.unionByName, found).withColumn("nth", F.row_number().over(order))
    return once.where("nth = 1").drop("nth")


def _overlap(bounds: list[tuple[Any, Any]]) -> bool:
    """Return whether any row of an epoch comes after a row of a newer one."""
    highest = None
    for first, last in bounds:
        if first is None:
            continue
        if highest is not None and first < highest:
            return True
        highest = last if highest is None else max(highest, last)
    return False


def _runs(rows: DataFrame, key: str) -> list[Any]:
    ordered = (
        rows.select("epoch", F.col(key).alias("at"))
        .repartitionByRange(F.col("at"))
        .sortWithinPartitions("at", "epoch")
    )
    return ordered.mapInArrow(_encoded, _RUN).limit(_MOST_RUNS).collect()


def _encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge adjacent rows of one epoch into one; ``batches`` are in order."""
    schema = pa.schema([(name, pa.int64()) for name in ("epoch", "first", "last", "rows")])
    for batch in batches:
        runs: list[list[int]] = []
        epochs, ats = (batch.column(at).to_pylist() for at in (0, 1))
        for epoch, at in zip(epochs, ats, strict=True):
            if runs and runs[-1][0] == epoch:
                runs[-1][2] = at
                runs[-1][3] += 1
            else:
                runs.append([epoch, at, at, 1])
        columns = [pa.array(values, pa.int64()) for values in zip(*runs, strict=True)]
        if columns:
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows_of(rows: DataFrame, key: str, found: list[Misplaced]) -> DataFrame:
    told = [
        (one.run.epoch, one.run.first, one.run.last, *_misplaced_fault(one, by_time=key == "at"))
        for one in found
    ]
    schema = "run_epoch long, first long, last long, fault string, detail string"
    runs = F.broadcast(rows.sparkSession.createDataFrame(told, schema))
    within = (F.col("epoch") == F.col("run_epoch")) & F.col(key).between(
        F.col("first"), F.col("last")
    )
    marked = rows.join(runs, within)
    return marked.select(
        "fault",
        "table",
        "seq",
        "id",
        F.lit(None).cast("long").alias("position"),
        "queue_id",
        "epoch",
        "detail",
    )


def _misplaced_fault(one: Misplaced, *, by_time: bool) -> tuple[str, str]:
    if one.is_stale:
        last = one.other.first
        where = "the database's time of both" if by_time else f"seq {last}"
        return "stale-epoch", f"epoch {one.other.epoch} had begun already, by {where}"
    where = "the database's time of both" if by_time else f"seq {one.other.last}"
    return "early-epoch", f"epoch {one.other.epoch} went on after it, by {where}"
