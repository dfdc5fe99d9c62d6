"""The account of a pair as rows of tables, for programs, people and the page."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orthia.nodemanager import events
from orthia.pipeline.history.account import Account
from orthia.pipeline.history.doubts import Doubt, Overlap
from orthia.pipeline.history.lives import Life
from orthia.pipeline.history.outages import Outage, Takeover
from orthia.pipeline.history.tenures import PHASES, Tenure
from orthia.pipeline.times import iso

Row = dict[str, Any]
TABLES: Final = (
    "availability",
    "outages",
    "takeovers",
    "tenures",
    "serving",
    "overlaps",
    "doubts",
    "late_renewals",
    "clock_drift",
)
_LATE: Final = {
    events.RenewalSlow.__name__: "duration_ms",
    events.RenewalFailed.__name__: "duration_ms",
    events.RenewalGap.__name__: "gap_ms",
    events.RenewalBeyondExpiration.__name__: "gap_ms",
    events.RenewalNotTriggered.__name__: "late_ms",
    events.RenewalOverrun.__name__: "running_ms",
}
"""Events of late or failed renewals, and the detail that measures each."""
_DRIFT: Final = events.ClockDrift.__name__


def rows_of(pair: str, account: Account, lives: Sequence[Life]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of every table, each with the name of its table."""
    begin, end = account.begin, account.end
    yield "availability", {"pair": pair, **_availability(account)}
    for outage in account.outages:
        planned = account.is_planned(outage)
        yield "outages", {"pair": pair, **_outage(outage), "planned": planned}
    for taken in account.takeovers:
        if begin <= taken.tenure.since <= end or _is_within(taken.tenure, begin, end):
            yield "takeovers", {"pair": pair, **_takeover(taken)}
    for tenure, until in sorted(_ended(account.tenures), key=lambda one: one[0].since):
        if tenure.since <= end and (until is None or until >= begin):
            yield "tenures", {"pair": pair, **_tenure(tenure, until)}
    for row in _serving(account):
        yield "serving", {"pair": pair, **row}
    for overlap in _overlaps_within(account):
        yield "overlaps", {"pair": pair, **_overlap(overlap)}
    for doubt in _doubts_within(account):
        found = {"kind": doubt.kind, "at": iso(doubt.at), "node_name": doubt.node}
        yield "doubts", {"pair": pair, **found, "what": doubt.what}
    for row in _late_renewals(lives, begin, end):
        yield "late_renewals", {"pair": pair, **row}
    for row in _clock_drift(lives, begin, end):
        yield "clock_drift", {"pair": pair, **row}


def unread(pair: str, error: str) -> Row:
    """Return the row of a pair that could not be read."""
    nothing = dict.fromkeys(
        (
            *("now", "availability", "availability_most", "period_from", "period_to"),
            *("out_ms", "out_least_ms", "planned_ms", "planned_least_ms"),
            *("outages", "planned_outages", "takeovers"),
            *("longest_outage_ms", "median_outage_ms", "overlaps", "doubts"),
        )
    )
    return {"pair": pair, **nothing, "error": error}


def _availability(account: Account) -> Row:
    least, most = account.availability or (None, None)
    planned: list[Outage] = []
    others: list[Outage] = []
    for one in account.outages:
        (planned if account.is_planned(one) else others).append(one)
    known = [one for one in others if one.is_known]
    lengths = sorted(one.most_us / 1_000 for one in known)
    now = f"served by {account.serving}" if account.serving is not None else "unknown"
    if any(one.is_known and one.is_open for one in planned):
        now = "stopped"
    if any(one.is_open for one in known):
        now = "OUT"
    return {
        "now": now,
        "availability": least,
        "availability_most": most,
        "period_from": iso(account.begin),
        "period_to": iso(account.end),
        "out_ms": account.out_most_us / 1_000,
        "out_least_ms": account.out_least_us / 1_000,
        "planned_ms": account.planned_most_us / 1_000,
        "planned_least_ms": account.planned_least_us / 1_000,
        "outages": len(known),
        "planned_outages": len(planned),
        "takeovers": sum(
            1
            for one in account.takeovers
            if one.begin is not None and account.begin <= one.tenure.since <= account.end
        ),
        "longest_outage_ms": max(lengths, default=None),
        "median_outage_ms": percentile(lengths, 0.5),
        "overlaps": sum(1 for one in _overlaps_within(account) if one.is_conflict),
        "doubts": sum(1 for _ in _doubts_within(account)),
        "error": None,
    }


def _overlaps_within(account: Account) -> Iterator[Overlap]:
    for one in account.overlaps:
        if one.until >= account.begin and one.following.since <= account.end:
            yield one


def _doubts_within(account: Account) -> Iterator[Doubt]:
    yield from (one for one in account.doubts if one.is_within(account.begin, account.end))


def _overlap(overlap: Overlap) -> Row:
    one, following = overlap.tenure, overlap.following
    return {
        "lock": one.lock,
        "token": one.token,
        "node_name": one.node,
        "holder_id": one.holder,
        "next_holder": following.holder,
        "next_since": iso(following.since),
        "ended_at": iso(overlap.until),
        "end": one.end,
        "overlap_ms": (overlap.until - following.since) / 1_000,
        "evidence": overlap.evidence,
        "conflict": overlap.is_conflict,
    }


def _outage(one: Outage) -> Row:
    return {
        "began": iso(one.begin.lo),
        "began_by": iso(one.begin.hi),
        "ended": None if one.is_open else iso(one.end.hi),
        "until": iso(one.end.hi),
        "out_ms": one.most_us / 1_000,
        "out_least_ms": one.least_us / 1_000,
        "open": one.is_open,
        "known": one.is_known,
        "cause": one.cause,
        "from_node": None if one.before is None else one.before.node,
        "to_node": None if one.after is None else one.after.node,
    }


def _takeover(taken: Takeover) -> Row:
    tenure, begin, opened = taken.tenure, taken.begin, taken.tenure.serving
    most = least = None
    if begin is not None and opened is not None:
        most = max(0, opened.hi - begin.lo) / 1_000
        least = max(0, opened.lo - begin.hi) / 1_000
    return {
        "token": tenure.token,
        "node_name": tenure.node,
        "holder_id": tenure.holder,
        "from_holder": tenure.former if taken.before is None else taken.before.holder,
        "cause": taken.cause,
        "out_since": None if begin is None else iso(begin.lo),
        "out_by": None if begin is None else iso(begin.hi),
        "since": iso(tenure.since),
        "serving_at": None if opened is None else iso(opened.hi),
        "outage_ms": most,
        "outage_least_ms": least,
        **{name: tenure.phases.get(name) for name in PHASES},
    }


def _tenure(tenure: Tenure, until: int | None) -> Row:
    ended = tenure.ended
    end = tenure.end
    if until is not None and (ended is None or ended.hi > until):
        end = "silent" if ended is None else end
    return {
        "lock": tenure.lock,
        "token": tenure.token,
        "node_name": tenure.node,
        "holder_id": tenure.holder,
        "since": iso(tenure.since),
        "serving_at": None if tenure.serving is None else iso(tenure.serving.hi),
        "until": iso(until),
        "ended_at": None if ended is None else iso(ended.hi),
        "end": end,
    }


def _ended(tenures: Sequence[Tenure]) -> Iterator[tuple[Tenure, int | None]]:
    """Yield each tenure and when it certainly no longer held the lock; None while it holds it."""
    next_since: dict[str, int] = {}
    for tenure in sorted(tenures, key=lambda one: (one.token, one.since), reverse=True):
        known = [] if tenure.ended is None else [tenure.ended.hi]
        later = next_since.get(tenure.lock)
        known += [] if later is None else [later]
        next_since[tenure.lock] = tenure.since if later is None else min(tenure.since, later)
        yield tenure, min(known, default=None)


def _is_within(tenure: Tenure, begin: int, end: int) -> bool:
    return tenure.serving is not None and begin <= tenure.serving.hi <= end


def _serving(account: Account) -> Iterator[Row]:
    """Yield who served from when to when, up to the earliest end of each service."""
    live = [one for one in account.takeovers if one.tenure.serving is not None]
    for number, one in enumerate(live):
        opened, tenure = one.tenure.serving, one.tenure
        following = live[number + 1].begin if number + 1 < len(live) else None
        ended = following.lo if following is not None else None
        if number + 1 == len(live):
            ended = next((out.begin.lo for out in account.outages if out.is_open), None)
        if opened is None or opened.hi > account.end:
            continue
        if ended is not None and ended < account.begin:
            continue
        yield {
            "node_name": tenure.node,
            "holder_id": tenure.holder,
            "token": tenure.token,
            "serving_at": iso(opened.hi),
            "served_until": iso(None if ended is None else max(ended, opened.hi)),
        }


def _late_renewals(lives: Sequence[Life], begin: int, end: int) -> Iterator[Row]:
    found: Mapping[tuple[str, str, str], list[float]] = defaultdict(list)
    for life in lives:
        for one in life.events:
            name = _LATE.get(one.event)
            if name is not None and begin <= one.at <= end:
                late = life.millis(one, name)
                values = found[life.node, one.lock or "", one.event]
                values.append(0.0 if late is None else late / 1_000)
    for (node, lock, event), values in sorted(found.items()):
        values.sort()
        yield {
            "node_name": node,
            "lock": lock,
            "event": event,
            "count": len(values),
            "p50_ms": percentile(values, 0.5),
            "p95_ms": percentile(values, 0.95),
            "p99_ms": percentile(values, 0.99),
            "max_ms": values[-1],
        }


def _clock_drift(lives: Sequence[Life], begin: int, end: int) -> Iterator[Row]:
    off: Mapping[str, list[float]] = defaultdict(list)
    warnings: Mapping[str, list[int]] = defaultdict(list)
    for life in lives:
        values = off[life.node]
        for one in life.events:
            if one.is_placed and begin <= one.at <= end:
                values.append((one.node_at - one.at) / 1_000)
                if one.event == _DRIFT:
                    warnings[life.node].append(one.seq)
    for node, values in sorted(off.items()):
        if values:
            values.sort()
            yield {
                "node_name": node,
                "min_ms": values[0],
                "max_ms": values[-1],
                "median_ms": percentile(values, 0.5),
                "warnings": len(warnings[node]),
            }


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which ``share`` of them lie, interpolated; None if there are none."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
