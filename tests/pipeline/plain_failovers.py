"""What ``pipeline.jobs.failovers`` says of tenures and takeovers, said again in plain loops."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from nodemanager.failover_log import Entry

_ENDS = {
    "LockReleased": "released",
    "LeaseLost": "lost",
    "FencedWriteRefused": "fenced",
    "NodeStopped": "stopped",
}
Row = dict[str, Any]


def tenures(log: Sequence[Entry]) -> list[Row]:
    """Return who held which lock: one row for each time a lock was obtained."""
    found = []
    for own in _by_holder(log).values():
        for position, entry in enumerate(own):
            if entry.event in ("LiveLockObtained", "BackupLockObtained"):
                found.append(_tenure(entry, own[position:]))
    by_lock: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(found, key=lambda row: row["token"]):
        by_lock[row["pair"], row["lock"]].append(row)
    for rows in by_lock.values():
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            row["next_since"] = following and following["since"]
            row["next_holder"] = following and following["holder_id"]
            known = [at for at in (row["ended_at"], row["next_since"]) if at is not None]
            row["until"] = min(known, default=None)
            if row["end"] is None and following is not None:
                row["end"] = "silent"
    return found


def _tenure(obtained: Entry, later: Sequence[Entry]) -> Row:
    ends = [
        (entry.db_time, _ENDS[entry.event])
        for entry in later
        if entry.db_time is not None
        and (
            entry.event == "NodeStopped"
            or (
                entry.event in _ENDS
                and (_lock(entry), entry.token) == (obtained.lock, obtained.token)
            )
        )
    ]
    ended_at, end = min(ends) if ends else (None, None)
    serving = [
        entry.db_time
        for entry in later
        if entry.db_time is not None
        and entry.event in ("LiveActive", "BackupActive")
        and ("live", entry.token) == (obtained.lock, obtained.token)
    ]
    return {
        "pair": obtained.node_id,
        "lock": obtained.lock,
        "token": obtained.token,
        "node_name": obtained.node_name,
        "holder_id": obtained.holder_id,
        "since": obtained.db_time,
        "serving_at": min(serving, default=None),
        "ended_at": ended_at,
        "end": end,
    }


def _lock(entry: Entry) -> str | None:
    return "live" if entry.event == "FencedWriteRefused" else entry.lock


def takeovers(log: Sequence[Entry]) -> list[Row]:
    """Return each time a node became live, with the cause and the begin of the outage."""
    by_holder = _by_holder(log)
    live: dict[str | None, list[Row]] = defaultdict(list)
    for row in tenures(log):
        if row["lock"] == "live":
            live[row["pair"]].append(row)
    return [
        _takeover(before, row, by_holder)
        for rows in live.values()
        for before, row in _pairs(sorted(rows, key=lambda row: row["token"]))
    ]


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row | None, Row]]:
    yield from zip([None, *rows], rows, strict=False)


def _takeover(before: Row | None, row: Row, by_holder: dict[str, list[Entry]]) -> Row:
    since: datetime = row["since"]
    own = by_holder[row["holder_id"]]
    timings = [e for e in own if e.event == "TakeoverTimings" and e.token == row["token"]]
    phases = {
        name: timings[0].details[name] if timings else None
        for name in ("detection_ms", "fence_ms", "load_ms", "open_ms")
    }
    said = {"pair": row["pair"], "token": row["token"], "serving_at": row["serving_at"], **phases}
    if before is None:
        return said | {"cause": "first start", "out_since": None, "outage_ms": None}
    gone = [
        _minus(e.db_time, e.details["watched_ms"])
        for e in own
        if e.event == "CrashDetected" and e.db_time and before["since"] <= e.db_time <= since
    ]
    signs = [e.db_time for e in by_holder[before["holder_id"]] if e.db_time and e.db_time <= since]
    if before["ended_at"] is not None and before["ended_at"] <= since:
        cause, out = before["end"], before["ended_at"]
    elif gone:
        cause, out = "crash detected", max([*gone, *signs])
    else:
        inferred = _minus(since, phases["detection_ms"] or 0.0)
        cause, out = "lease expired", max([inferred, *signs])
    outage = None if row["serving_at"] is None else row["serving_at"] - out
    outage_ms = None if outage is None else outage / timedelta(milliseconds=1)
    return said | {"cause": cause, "out_since": out, "outage_ms": outage_ms}


def _minus(at: datetime | None, milliseconds: float) -> datetime:
    assert at is not None
    return at - timedelta(microseconds=int(milliseconds * 1000))


def _by_holder(log: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in log:
        found[entry.holder_id].append(entry)
    return found
