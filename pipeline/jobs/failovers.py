"""What happened to pairs: who held which lock when, how takeovers went, how long nobody served.

Everything is told by the database's clock, which every event carries as its node knew it. A process
that is killed says nothing any more; when it stopped serving is then inferred, in this order:

1. What it said itself: lock released, lease lost, write refused, node stopped.
2. What the node that detected its crash saw: no sign of it for so many milliseconds before.
3. When its lease ran out: the lock was free so many milliseconds before it was taken.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from nodemanager import events

OBTAINED: Final = (events.LiveLockObtained.__name__, events.BackupLockObtained.__name__)
_ACTIVE: Final = (events.LiveActive.__name__, events.BackupActive.__name__)
_STOPPED: Final = events.NodeStopped.__name__
_ENDS: Final = {
    events.LockReleased.__name__: "released",
    events.LeaseLost.__name__: "lost",
    events.FencedWriteRefused.__name__: "fenced",
    _STOPPED: "stopped",
}
"""Events by which a holder itself says that it holds a lock no more, and what they are called."""
_OF_LIVE: Final = (*_ACTIVE, events.FencedWriteRefused.__name__)
"""Events that name a token, and mean that of the live lock."""
_CRASH: Final = events.CrashDetected.__name__
_TIMINGS: Final = events.TakeoverTimings.__name__
_PHASES: Final = ("detection_ms", "fence_ms", "load_ms", "open_ms")

_LATE: Final = {
    events.RenewalSlow.__name__: "duration_ms",
    events.RenewalFailed.__name__: "duration_ms",
    events.RenewalGap.__name__: "gap_ms",
    events.RenewalBeyondExpiration.__name__: "gap_ms",
    events.RenewalNotTriggered.__name__: "late_ms",
    events.RenewalOverrun.__name__: "running_ms",
}
"""Events of renewals that were not as they should be, and the detail that says how bad."""


def timeline(log: DataFrame) -> DataFrame:
    """Return the events of all nodes, each once, with ``at`` and the pair they belong to.

    ``at`` is the database's time; an event from before a node knew that is placed by its own
    clock, but never after the events that followed it on that node. Of the details there is what
    the functions below read, in milliseconds. Cache it: it is read several times.
    """
    of_holder = Window.partitionBy("holder_id")
    in_order = of_holder.orderBy("event_seq", F.col("db_time").asc_nulls_last())
    following = of_holder.orderBy("event_seq").rowsBetween(0, Window.unboundedFollowing)
    # Only what is needed is shuffled, once, and sorted once for all three windows.
    return (
        log.select(
            *("pair", "node_name", "holder_id", "event_seq", "event", "lock", "token"),
            *("db_time", "node_time"),
            _of_events(_LATE).alias("late_ms"),
            _of_events({_CRASH: "watched_ms"}).alias("watched_ms"),
            *(_of_events({_TIMINGS: name}).alias(name) for name in _PHASES),
        )
        .withColumn("before", F.lag("event_seq").over(in_order))
        .where("before IS NULL OR before <> event_seq")
        .drop("before")
        .withColumn("at", F.min(F.coalesce("db_time", "node_time")).over(following))
        # A node's first event may be from before it knew its pair.
        .withColumn("pair", F.coalesce(F.max("pair").over(of_holder), F.lit("unknown")))
    )


def _of_events(details: Mapping[str, str]) -> Column:
    """Return the detail that is told for each of these events; NULL for the others."""
    found = F.lit(None).cast("double")
    for event, name in details.items():
        detail = F.get_json_object("details", f"$.{name}").cast("double")
        found = F.when(F.col("event") == event, detail).otherwise(found)
    return found


def tenures(events_: DataFrame) -> DataFrame:
    """Return who held which lock from when to when, one row a lock and token.

    ``ended_at`` and ``end`` are the holder's own account, ``ended_at`` NULL if it gave none;
    ``until`` is when the lock was certainly no longer its own, NULL while it still is.
    ``serving_at`` is when a live node opened its acceptors.
    """
    event = F.col("event")
    following = (
        Window.partitionBy("holder_id")
        .orderBy("event_seq")
        .rowsBetween(0, Window.unboundedFollowing)
    )
    # What stops a node ends all that it holds; every other end names the lock.
    stopped_at = F.min(F.when(event == _STOPPED, F.col("at"))).over(following)
    end = _ends_called(event)
    held = (
        events_.where(event.isin(*OBTAINED, *_ACTIVE, *_ENDS))
        .withColumn("stopped_at", stopped_at)
        .withColumn("lock", F.when(event.isin(*_OF_LIVE), "live").otherwise(F.col("lock")))
        .groupBy("pair", "lock", "token", "node_name", "holder_id")
        .agg(
            F.min(_at_if(event.isin(*OBTAINED))).alias("since"),
            F.min(_at_if(event.isin(*_ACTIVE))).alias("serving_at"),
            F.min(F.when(end.isNotNull(), F.struct("at", end.alias("end")))).alias("own_end"),
            F.min(F.when(event.isin(*OBTAINED), F.col("stopped_at"))).alias("stopped_at"),
        )
        .where("since IS NOT NULL")
        .withColumn("ended_at", F.least("own_end.at", "stopped_at"))
        .withColumn(
            "end",
            F.when(F.col("own_end.at") <= F.col("ended_at"), F.col("own_end.end")).when(
                F.col("ended_at").isNotNull(), _ENDS[_STOPPED]
            ),
        )
    )
    next_one = Window.partitionBy("pair", "lock").orderBy("token")
    return (
        held.withColumn("next_since", F.lead("since").over(next_one))
        .withColumn("next_holder", F.lead("holder_id").over(next_one))
        .withColumn("until", F.least("ended_at", "next_since"))
        .withColumn("end", F.coalesce("end", F.when(F.col("next_since").isNotNull(), "silent")))
        .select(
            *("pair", "lock", "token", "node_name", "holder_id", "since", "serving_at"),
            *("until", "ended_at", "end", "next_since", "next_holder"),
        )
    )


def _at_if(condition: Column) -> Column:
    return F.when(condition, F.col("at"))


def _ends_called(event: Column) -> Column:
    pairs = [F.lit(text) for pair in _ENDS.items() for text in pair]
    return F.create_map(*pairs)[event]


def overlaps(held: DataFrame) -> DataFrame:
    """Return where a holder still believed in its lock when the next had it.

    ``conflict`` is False for a holder that found out late, after a pause, that its lease was lost:
    its writes were refused meanwhile. True would be two holders that both went on.
    """
    return (
        held.where("ended_at > next_since AND holder_id <> next_holder")
        .withColumn("overlap_ms", _milliseconds("next_since", "ended_at"))
        .withColumn("conflict", F.col("end") == "released")
        .select(
            *("pair", "lock", "token", "node_name", "holder_id", "next_holder"),
            *("next_since", "ended_at", "overlap_ms", "end", "conflict"),
        )
    )


def takeovers(events_: DataFrame, held: DataFrame) -> DataFrame:
    """Return each time a node became live: why, how long every phase took, and the outage.

    ``outage_ms`` runs from the moment the node before stopped serving, as far as the log knows, to
    the acceptors being open; NULL for the first start of a pair and for one that never opened.
    """
    live = _with_predecessor(held)
    timings = events_.where(F.col("event") == _TIMINGS).select("holder_id", "token", *_PHASES)
    known = (
        live.join(timings, ["holder_id", "token"], "left")
        .join(_crashes(events_, live), ["holder_id", "token"], "left")
        .join(_last_signs(events_, live), ["holder_id", "token"], "left")
    )
    said_so = F.col("from_ended_at") <= F.col("since")
    inferred = F.coalesce("seen_gone_at", _minus("since", "detection_ms"), F.col("since"))
    return (
        known.withColumn(
            "cause",
            F.when(F.col("from_holder").isNull(), "first start")
            .when(said_so, F.col("from_end"))
            .when(F.col("seen_gone_at").isNotNull(), "crash detected")
            .otherwise("lease expired"),
        )
        .withColumn(
            "out_since",
            F.when(F.col("from_holder").isNull(), None)
            .when(said_so, F.col("from_ended_at"))
            # It served at least until it said the last thing it said.
            .otherwise(F.greatest(inferred, "last_sign")),
        )
        .withColumn("outage_ms", _milliseconds("out_since", "serving_at"))
        .select(
            *("pair", "token", "node_name", "holder_id", "from_holder", "cause"),
            *("out_since", "since", "serving_at", "outage_ms", *_PHASES),
        )
        .orderBy("pair", "token")
    )


def _with_predecessor(held: DataFrame) -> DataFrame:
    by_token = Window.partitionBy("pair").orderBy("token")
    return held.where("lock = 'live'").select(
        *("pair", "token", "node_name", "holder_id", "since", "serving_at"),
        F.lag("holder_id").over(by_token).alias("from_holder"),
        F.lag("since").over(by_token).alias("from_since"),
        F.lag("ended_at").over(by_token).alias("from_ended_at"),
        F.lag("end").over(by_token).alias("from_end"),
    )


def _crashes(events_: DataFrame, live: DataFrame) -> DataFrame:
    """Return when the node that took over saw its predecessor for the last time, if it did."""
    seen = events_.where(F.col("event") == _CRASH).select(
        F.col("holder_id").alias("by"), F.col("at").alias("crash_at"), "watched_ms"
    )
    of_this = (
        (F.col("holder_id") == F.col("by"))
        & (F.col("crash_at") <= F.col("since"))
        & (F.col("crash_at") >= F.col("from_since"))
    )
    return (
        live.join(seen, of_this)
        .groupBy("holder_id", "token")
        .agg(F.max(_minus("crash_at", "watched_ms")).alias("seen_gone_at"))
    )


def _last_signs(events_: DataFrame, live: DataFrame) -> DataFrame:
    """Return the last thing a predecessor logged before its lock was taken."""
    signs = events_.select(F.col("holder_id").alias("of"), F.col("at").alias("sign_at"))
    before = (F.col("from_holder") == F.col("of")) & (F.col("sign_at") <= F.col("since"))
    return (
        live.join(signs, before)
        .groupBy("holder_id", "token")
        .agg(F.max("sign_at").alias("last_sign"))
    )


def serving(held: DataFrame, taken: DataFrame) -> DataFrame:
    """Return when clients were served: ``pair, node_name, token, serving_at, served_until``.

    ``served_until`` is NULL for the node that serves now.
    """
    by_token = Window.partitionBy("pair").orderBy("token")
    stopped = taken.select("pair", "token", F.lead("out_since").over(by_token).alias("out"))
    return (
        held.where("lock = 'live' AND serving_at IS NOT NULL")
        .join(stopped, ["pair", "token"], "left")
        .withColumn("served_until", F.least("ended_at", "out"))
        .select("pair", "node_name", "holder_id", "token", "serving_at", "served_until")
    )


def availability(
    events_: DataFrame, held: DataFrame, taken: DataFrame, since: Column, until: Column
) -> DataFrame:
    """Return for each pair what part of the period from ``since`` to ``until`` it served.

    A pair's period begins no earlier than its log does.
    """
    extent = events_.groupBy("pair").agg(
        F.greatest(F.min("at"), since).alias("period_from"), until.alias("period_to")
    )
    served = (
        serving(held, taken)
        .join(extent, "pair")
        .withColumn("begin", F.greatest("serving_at", "period_from"))
        .withColumn("end", F.least(F.coalesce("served_until", "period_to"), "period_to"))
        .where("end > begin")
        .groupBy("pair")
        .agg(F.sum(_milliseconds("begin", "end")).alias("served_ms"))
    )
    outages = (
        taken.join(extent, "pair")
        .where("from_holder IS NOT NULL AND since BETWEEN period_from AND period_to")
        .groupBy("pair")
        .agg(
            F.count("*").alias("takeovers"),
            F.max("outage_ms").alias("longest_outage_ms"),
            F.expr("percentile(outage_ms, 0.5)").alias("median_outage_ms"),
        )
    )
    return (
        extent.join(served, "pair", "left")
        .join(outages, "pair", "left")
        .na.fill(0, ["served_ms", "takeovers"])
        .withColumn("period_ms", _milliseconds("period_from", "period_to"))
        .withColumn("availability", F.try_divide("served_ms", "period_ms"))
        .orderBy("pair")
    )


def late_renewals(events_: DataFrame) -> DataFrame:
    """Return for each node and kind how many renewals were late, and by how many milliseconds."""
    return (
        events_.where(F.col("event").isin(*_LATE))
        .groupBy("pair", "node_name", "lock", "event")
        .agg(
            F.count("*").alias("count"),
            F.expr("percentile(late_ms, array(0.5, 0.95, 0.99))").alias("shares"),
            F.max("late_ms").alias("max_ms"),
        )
        .select(
            *("pair", "node_name", "lock", "event", "count"),
            *(
                F.col("shares")[n].alias(name)
                for n, name in enumerate(("p50_ms", "p95_ms", "p99_ms"))
            ),
            "max_ms",
        )
        .orderBy("pair", "node_name", "lock", "event")
    )


def clock_drift(events_: DataFrame) -> DataFrame:
    """Return for each node how far its clock was off the database's, in milliseconds."""
    off = events_.where("db_time IS NOT NULL").withColumn(
        "off_ms", _milliseconds("db_time", "node_time")
    )
    return (
        off.groupBy("pair", "node_name")
        .agg(
            F.min("off_ms").alias("min_ms"),
            F.expr("percentile(off_ms, 0.5)").alias("median_ms"),
            F.max("off_ms").alias("max_ms"),
            F.count_if(F.col("event") == events.ClockDrift.__name__).alias("warnings"),
        )
        .orderBy("pair", "node_name")
    )


def _milliseconds(begin: str, end: str) -> Column:
    difference = F.unix_micros(F.col(end)) - F.unix_micros(F.col(begin))
    return difference.cast("double") / 1000


def _minus(instant: str, milliseconds: str) -> Column:
    micros = F.unix_micros(F.col(instant)) - (F.col(milliseconds) * 1000).cast("long")
    return F.timestamp_micros(micros)
