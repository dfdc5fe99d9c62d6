"""The rows of ``pipeline failovers`` for people: as tables, and as a chart."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from orthia.pipeline.report.chart import Chart, Kind, OutageSegment, PairHistory, ServiceSegment

Row = dict[str, Any]
Rows = Sequence[Row]

TABLES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "availability": (
        "Availability",
        (
            *("pair", "now", "availability", "outages", "longest_outage", "planned"),
            *("takeovers", "doubts"),
        ),
    ),
    "serving": ("Who served", ("pair", "node_name", "token", "serving_at", "served_until")),
    "outages": ("Outages", ("pair", "began", "ended", "out", "cause", "from_node", "to_node")),
    "takeovers": (
        "Takeovers",
        (
            *("pair", "serving_at", "token", "node_name", "cause", "outage"),
            *("detection_ms", "fence_ms", "load_ms", "open_ms"),
        ),
    ),
    "tenures": ("Who held what", ("pair", "lock", "token", "node_name", "since", "until", "end")),
    "overlaps": (
        "Overlaps",
        (
            *("pair", "lock", "token", "node_name", "next_since", "overlap_ms", "evidence"),
            "conflict",
        ),
    ),
    "doubts": ("Doubts: what the log lacks, or what cannot be", ("pair", "kind", "at", "what")),
    "late_renewals": (
        "Late renewals",
        ("pair", "node_name", "lock", "event", "count", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    ),
    "clock_drift": (
        "Clocks, milliseconds off the database's",
        ("pair", "node_name", "min_ms", "median_ms", "max_ms", "warnings"),
    ),
}
"""The heading and columns of each table."""

REPORT: Final = tuple(name for name in TABLES if name != "serving")
"""The tables of a whole report: who served is in that of who held what."""


def shown(
    tables: Mapping[str, Rows], names: Sequence[str] = REPORT
) -> Iterator[tuple[str, list[Row], Sequence[str]]]:
    """Yield heading, rows and columns of each table that is named."""
    for name in names:
        heading, columns = TABLES[name]
        rows = [_for_people(row) for row in tables[name]]
        yield heading, [{column: row[column] for column in columns} for row in rows], columns


def unread(tables: Mapping[str, Rows]) -> list[Row]:
    """Return the pairs that could not be read, and why."""
    failed = [row for row in tables["availability"] if row["error"] is not None]
    return [{"pair": row["pair"], "error": row["error"]} for row in failed]


def on_page(tables: Mapping[str, Rows]) -> list[tuple[str, list[Row]]]:
    """Return headings and rows for the page, pairs that were not read included."""
    found = [(heading, rows) for heading, rows, _ in shown(tables)]
    failed = unread(tables)
    return [("Not in the report", failed), *found] if failed else found


def _for_people(row: Row) -> Row:
    found = dict(row)
    if "availability_most" in row:
        found["availability"] = share(row["availability"], row["availability_most"])
        found["longest_outage"] = seconds(row["longest_outage_ms"])
        if row["planned_outages"]:
            found["planned"] = seconds(row["planned_ms"], row["planned_least_ms"])
        else:
            found["planned"] = None
        found["now"] = "not read" if row["period_from"] is None else row["now"]
    elif "cause" in row and "began" in row:
        found["out"] = seconds(row["out_ms"], row["out_least_ms"])
        if row["ended"] is None:
            found["ended"] = "STILL OUT" if row["known"] else "unknown"
        if row["planned"]:
            found["cause"] = f"planned: {row['cause']}"
            found["ended"] = row["ended"] or "stopped"
    elif "outage_ms" in row:
        found["outage"] = seconds(row["outage_ms"], row["outage_least_ms"])
    return found


def share(least: float | None, most: float | None) -> str | None:
    """Return an availability in percent, as a range where it is one."""
    if least is None or most is None:
        return None
    low, high = f"{_floor(least):.4%}", f"{_floor(most):.4%}"
    return high if low == high else f"{low[:-1]} to {high}"


def _floor(availability: float) -> float:
    """Return it rounded down, so that only a full availability shows as 100 %."""
    return int(availability * 1_000_000 + 1e-6) / 1_000_000


_MINUTES_MS: Final = 100_000
"""The duration above which hundredths of a second are left out."""


def seconds(most_ms: float | None, least_ms: float | None = None) -> str | None:
    """Return a duration in seconds, as a range where it is one."""
    if most_ms is None:
        return None
    digits = 2 if most_ms < _MINUTES_MS else 0
    high = f"{most_ms / 1_000:,.{digits}f}"
    low = high if least_ms is None else f"{least_ms / 1_000:,.{digits}f}"
    return f"{high} s" if low == high else f"{low} to {high} s"


def chart_of(tables: Mapping[str, Rows]) -> Chart:
    """Return the chart of the tables."""
    now = datetime.now(UTC)
    pairs = {row["pair"]: _pair(row) for row in tables["availability"]}
    read = [row for row in tables["availability"] if row["period_from"] is not None]
    begin = min((_time(row["period_from"]) for row in read), default=now)
    end = max((_time(row["period_to"]) for row in read), default=now)
    for row in tables["serving"]:
        since, until = _time(row["serving_at"]), _time(row["served_until"] or end.isoformat())
        until_text = row["served_until"] or "now"
        note = f"{row['node_name']} served {row['serving_at']} to {until_text}"
        segment = ServiceSegment(since, until, row["node_name"], f"{note}, token {row['token']}")
        pairs[row["pair"]].served.append(segment)
    for row in tables["outages"]:
        pairs[row["pair"]].outages += _outages(row)
    return Chart(begin, end, list(pairs.values()))


def _pair(row: Row) -> PairHistory:
    is_read = row["period_from"] is not None
    note = "could not be read"
    if is_read:
        told = [share(row["availability"], row["availability_most"]) or ""]
        told.append(_counted(row["outages"], "outage"))
        if row["outages"]:
            told[-1] += f", out {seconds(row['out_ms'], row['out_least_ms'])}"
        if row["planned_outages"]:
            told.append(f"planned {seconds(row['planned_ms'], row['planned_least_ms'])}")
        told.append(_counted(row["takeovers"], "takeover"))
        note = " · ".join(told)
        if row["now"] == "OUT":
            note = f"OUT NOW · {note}"
    return PairHistory(
        name=row["pair"],
        note=note,
        is_out=row["now"] == "OUT",
        is_read=is_read,
        out_seconds=(row["out_ms"] or 0.0) / 1_000,
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _outages(row: Row) -> Iterator[OutageSegment]:
    began, began_by = _time(row["began"]), _time(row["began_by"])
    until = _time(row["until"])
    long = seconds(row["out_ms"], row["out_least_ms"])
    if not row["known"]:
        note = f"{row['cause']}: nobody served for {long}, from {row['began']}"
        yield OutageSegment(began, until, Kind.UNKNOWN, note)
        return
    note = f"nobody served for {long}, from {row['began']}"
    if row["began_by"] != row["began"]:
        note += f" or as late as {row['began_by']}"
    ended = "and nobody does yet" if row["ended"] is None else f"until {row['ended']}"
    took = "" if row["to_node"] is None else f": {row['to_node']} took over"
    note = f"{note} {ended}{took} ({row['cause']})"
    if row["planned"]:
        yield OutageSegment(began, until, Kind.PLANNED, f"planned: {note}")
        return
    if began_by > began:
        yield OutageSegment(began, min(began_by, until), Kind.MAYBE, note)
    yield OutageSegment(min(began_by, until), until, Kind.OUT, note)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
