"""The history of pairs: who held which lock when, how takeovers went, how long nobody served.

Spark distributes, ``orthia.pipeline.history`` decides: tasks read the logs as chapters, Spark
groups those of a pair, and one task makes its account. Three jobs at most, however many pairs:
the chapters, their names where these are not their own, and the accounts.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.pipeline.history.lives import Life, life_of
from orthia.pipeline.history.pairs import (
    UNKNOWN,
    WHOLE,
    ChapterKey,
    KnownPair,
    PairNames,
    Period,
    Tables,
    account_rows,
    tables_of,
)
from orthia.pipeline.history.rows import Row
from orthia.pipeline.sources.failover_chapters import chapters, events_in
from orthia.pipeline.sources.failover_events import collector_at_rest
from orthia.pipeline.sources.failover_parts import StoreLog, file_parts

_RESULT: Final = "name string, row string"


def analyse(
    spark: SparkSession,
    stores: Sequence[StoreLog],
    files: Sequence[str] = (),
    period: Period = WHOLE,
    *,
    now: int,
) -> Tables:
    """Return the rows of every table, by its name (``TABLES``).

    The account of a store's pair ends at its database's present time, that of a pair with files
    only at ``now``; with files alone every account ends with the last event of all; or at the end
    of ``period``, if that is earlier. A pair that cannot be read has a row in ``availability`` with
    its error.
    """
    parts = [part for store in stores for part in store.parts] + file_parts(files)
    if not parts:
        return tables_of([], stores, {}, period)
    read = chapters(spark, parts).cache()
    try:
        found = read.select("pair", "node_id", "holder", "last_at", "error").collect()
        errors = {row["pair"] or UNKNOWN: row["error"] for row in found if row["error"] is not None}
        told = [row for row in found if row["error"] is None]
        keys = {ChapterKey(row["pair"], row["node_id"], row["holder"]) for row in told}
        until = now if stores or not told else max(row["last_at"] for row in told)
        accounts = _accounts(read, keys, stores, period, until)
        return tables_of(accounts, stores, errors, period)
    finally:
        read.unpersist()


def _accounts(
    read: DataFrame, keys: set[ChapterKey], stores: Sequence[StoreLog], period: Period, until: int
) -> Iterator[tuple[str, Row]]:
    names = PairNames(keys, stores)
    pairs = {names.of(key) for key in keys}
    spark = read.sparkSession
    found = read.where("error IS NULL").withColumn("said", F.coalesce("pair", "node_id"))
    others = {(key.said, key.holder, names.of(key)) for key in keys if names.of(key) != key.said}
    if others:
        renamed = spark.createDataFrame(sorted(others, key=repr), "s string, h string, name string")
        same = F.col("said").eqNullSafe(F.col("s")) & (F.col("holder") == F.col("h"))
        found = found.join(F.broadcast(renamed), same, "left")
    name = F.coalesce("name", "said") if others else F.col("said")
    named = found.select(name.alias("pair"), "holder", "node", "events")
    tasks = min(len(pairs), spark.sparkContext.defaultParallelism)
    placed = named.repartition(tasks, "pair") if tasks > 1 else named.coalesce(1)
    grouped = placed.groupBy("pair").applyInArrow(_teller(stores, period, until), _RESULT)
    for row in grouped.collect():
        yield row["name"], json.loads(row["row"])


def _teller(
    stores: Sequence[KnownPair], period: Period, until: int
) -> Callable[[pa.Table], pa.Table]:
    def tell(group: pa.Table) -> pa.Table:
        with collector_at_rest():
            lives = list(_lives(group))
            pair = group.column("pair")[0].as_py()
            rows = account_rows(pair, lives, stores, period, until)
        return pa.table(
            {
                "name": pa.array([name for name, _ in rows], pa.string()),
                "row": pa.array([json.dumps(row) for _, row in rows], pa.string()),
            }
        )

    return tell


def _lives(group: pa.Table) -> Iterator[Life]:
    by_holder: dict[str, tuple[str, list[bytes]]] = {}
    columns = (group.column(name).to_pylist() for name in ("holder", "node", "events"))
    for holder, node, packed in zip(*columns, strict=True):
        by_holder.setdefault(holder, (node, []))[1].append(packed)
    for holder, (node, found) in sorted(by_holder.items()):
        yield life_of(holder, node, (one for chapter in found for one in events_in(chapter)))
