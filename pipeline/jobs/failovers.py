"""The history of pairs: who held which lock when, how takeovers went, how long nobody served.

Spark distributes, ``orthia.pipeline.history`` decides: tasks read the logs as chapters, Spark
groups those of a pair, and one task makes its account.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.pipeline.history.account import account_of
from orthia.pipeline.history.lives import Life, life_of
from orthia.pipeline.history.outages import LiveLock
from orthia.pipeline.history.rows import TABLES, Row, rows_of, unread
from orthia.pipeline.sources.failover_chapters import chapters, collector_at_rest, events_in
from orthia.pipeline.sources.failover_parts import StoreLog, file_parts

_UNKNOWN: Final = "unknown"
_RESULT: Final = "name string, row string"


@dataclass(frozen=True)
class Period:
    """The requested period, in microseconds since 1970 UTC; None is as far as is known."""

    since: int | None = None
    until: int | None = None

    def end(self, known: int) -> int:
        """Return its end, not later than ``known``, the last moment anything is known of."""
        return known if self.until is None else min(self.until, known)


def analyse(
    spark: SparkSession,
    stores: Sequence[StoreLog],
    files: Sequence[str] = (),
    period: Period = Period(),
    *,
    now: int,
) -> dict[str, list[Row]]:
    """Return the rows of every table, by its name (``TABLES``).

    The account of a store's pair ends at its database's present time, that of a pair with files
    only at ``now``; with files alone every account ends with the last event of all; or at the end
    of ``period``, if that is earlier. A pair that cannot be read has a row in ``availability`` with
    its error.
    """
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    parts = [part for store in stores for part in store.parts] + file_parts(files)
    failed = {store.name: store.error for store in stores if store.error is not None}
    if parts:
        read = chapters(spark, parts).cache()
        try:
            seen = _look(read)
            failed |= seen.errors
            until = now if stores or seen.last_at is None else seen.last_at
            accounts = _accounts(_named(read, stores, seen), stores, period, until)
            for row in accounts.collect():
                tables[row["name"]].append(json.loads(row["row"]))
        finally:
            read.unpersist()
    told = {row["pair"] for row in tables["availability"]}
    for store in stores:
        if store.live_lock is not None and store.name not in told:
            for name, empty in _without_events(store, store.live_lock, period):
                tables[name].append(empty)
            told.add(store.name)
    for name, error in failed.items():
        if name in told:
            _note_error(tables["availability"], name, error)
        else:
            tables["availability"].append(unread(name, error))
    tables["availability"].sort(key=_importance)
    tables["outages"].sort(key=lambda row: (not row["open"], not row["known"], -row["out_ms"]))
    return tables


def _without_events(
    store: StoreLog, live_lock: LiveLock, period: Period
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a pair whose log is empty, so that the report lists it."""
    account = account_of([], live_lock, period.since, period.end(live_lock.now))
    return rows_of(store.name, account, [])


def _importance(row: Row) -> tuple[bool, bool, float, str]:
    """Sort key: pairs that are out, then those that could not be read, then by outages."""
    return (row["now"] != "OUT", row["error"] is None, -(row["out_ms"] or 0.0), row["pair"])


def _note_error(rows: Sequence[Row], name: str, error: str) -> None:
    for row in rows:
        if row["pair"] == name:
            row["error"] = error


@dataclass(frozen=True)
class _ChapterTotals:
    """Totals over all chapters."""

    last_at: int | None
    """The time of the last event."""
    errors: Mapping[str, str]
    has_unnamed: bool
    """Whether some chapters do not name their pair."""


def _look(read: DataFrame) -> _ChapterTotals:
    """Read the chapters in one pass, and return their totals."""
    failed = F.col("error").isNotNull()
    unnamed = F.coalesce("pair", "node_id").isNull() & ~failed
    (row,) = read.agg(
        F.max("last_at").alias("last_at"),
        F.collect_list(F.when(failed, F.struct("pair", "error"))).alias("errors"),
        F.count_if(unnamed).alias("unnamed"),
    ).collect()
    errors = {one["pair"] or _UNKNOWN: one["error"] for one in row["errors"]}
    return _ChapterTotals(row["last_at"], errors, row["unnamed"] > 0)


def _named(read: DataFrame, stores: Sequence[StoreLog], seen: _ChapterTotals) -> DataFrame:
    """Return the chapters with the pair each belongs to.

    A pair has the name it was given, wherever its events were read, else its node id. A node's
    first events may precede its node id: they go with the rest of its life.
    """
    found = read.where("error IS NULL").withColumn("pair", F.coalesce("pair", "node_id"))
    called = {one.node_id: one.name for one in stores if one.node_id not in (None, one.name)}
    if called:
        rows = list(called.items())
        names = found.sparkSession.createDataFrame(rows, "pair string, called string")
        found = found.join(F.broadcast(names), "pair", "left").withColumn(
            "pair", F.coalesce("called", "pair")
        )
    if seen.has_unnamed:
        known = found.where("pair IS NOT NULL").groupBy("holder").agg(F.max("pair").alias("known"))
        found = found.join(F.broadcast(known), "holder", "left").withColumn(
            "pair", F.coalesce("pair", "known", F.lit(_UNKNOWN))
        )
    return found.select("pair", "holder", "node", "events")


def _accounts(
    found: DataFrame, stores: Sequence[StoreLog], period: Period, until: int
) -> DataFrame:
    live_locks = {one.name: one.live_lock for one in stores if one.live_lock is not None}
    return found.groupBy("pair").applyInArrow(_teller(live_locks, period, until), _RESULT)


def _teller(
    live_locks: Mapping[str, LiveLock], period: Period, until: int
) -> Callable[[pa.Table], pa.Table]:
    def tell(group: pa.Table) -> pa.Table:
        pair = group.column("pair")[0].as_py()
        live_lock = live_locks.get(pair)
        end = period.end(until if live_lock is None else live_lock.now)
        with collector_at_rest():
            lives = list(_lives(group))
            account = account_of(lives, live_lock, period.since, end)
            rows = list(rows_of(pair, account, lives))
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
