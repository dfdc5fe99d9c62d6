"""``pipeline failovers``: what happened to pairs, as tables, JSON, a page and a picture."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from broker.cli.durations import Since
from broker.cli.group import example
from broker.cli.pipeline.options import (
    SparkOptions,
    reachable,
    require_spark,
    session,
    spark_options,
)
from broker.cli.pipeline.output import Rows, collected, show
from broker.cli.rendering import print_json
from broker.cli.settings_options import PAIR, StoreOptions, store_options
from broker.exit_codes import Unavailable
from config import load
from config.settings import DatabaseStoreSettings
from config.urls import DatabaseUrl
from pipeline.store import PASSWORD_VARIABLE, StoreReference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.chart import Chart

_TABLES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "availability": (
        "Availability",
        ("pair", "availability", "takeovers", "longest_outage_ms", "median_outage_ms"),
    ),
    "takeovers": (
        "Takeovers",
        (
            *("pair", "serving_at", "token", "node_name", "cause", "outage_ms"),
            *("detection_ms", "fence_ms", "load_ms", "open_ms"),
        ),
    ),
    "tenures": ("Who held what", ("pair", "lock", "token", "node_name", "since", "until", "end")),
    "overlaps": (
        "Overlaps",
        ("pair", "lock", "token", "node_name", "next_since", "overlap_ms", "conflict"),
    ),
    "late_renewals": (
        "Late renewals",
        ("pair", "node_name", "lock", "event", "count", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    ),
    "clock_drift": (
        "Clocks, milliseconds off the database's",
        ("pair", "node_name", "min_ms", "median_ms", "max_ms", "warnings"),
    ),
}
"""What is shown: the heading and columns of each table."""


@click.command(
    epilog=example(
        "orthia pipeline failovers --config broker.xml --html report.html",
        "orthia pipeline failovers logs/ --since 30d --json",
        "orthia pipeline failovers --pair eu=eu/broker.xml --pair us=us/broker.xml --png out.png",
    )
)
@click.argument("paths", nargs=-1)
@store_options
@click.option(
    "--pair",
    "pairs",
    type=PAIR,
    multiple=True,
    metavar="NAME=STORE",
    help="One of several pairs: its name, and its broker.xml or URL; repeatable.",
)
@click.option("--since", type=Since(), help="Begin of the period; 30d, or 2026-01-31T12:00.")
@click.option(
    "--until",
    type=Since(),
    help="End of the period.  [default: now; of files alone the last event]",
)
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a report there.")
@click.option("--png", "png_file", type=click.Path(path_type=Path), help="Write the chart there.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def failovers(
    paths: tuple[str, ...],
    store: StoreOptions,
    pairs: tuple[tuple[str, str], ...],
    since: datetime | None,
    until: datetime | None,
    html_file: Path | None,
    png_file: Path | None,
    spark_on: SparkOptions,
    *,
    as_json: bool,
) -> None:
    """Show who served when, every takeover's phases and outage, late renewals, drift, availability.

    From the failover logs of any number of pairs: of the store --config or --url names, of every
    --pair, and of PATHS: files, directories or patterns of failover-*.jsonl.
    """
    if not (paths or pairs or store.is_given):
        raise click.UsageError("Say where the failover logs are: --config, --url, --pair or PATHS.")
    require_spark()
    stores, passwords = _stores(store, pairs)
    with session(spark_on, passwords) as spark:
        from pipeline.errors import BadOption
        from pipeline.failover_source import find_files
        from pipeline.jobs import failovers as job

        try:
            files = [str(path.absolute()) for path in find_files(",".join(paths))] if paths else []
        except BadOption as error:
            raise Unavailable(str(error)) from error
        spark_on.say("reading the failover logs")
        if until is None and (stores or not files):
            until = datetime.now(UTC)
        tables = _analysed(job, _log(spark, stores, files), since, until)
    if html_file is not None or png_file is not None:
        _draw(tables, html_file, png_file)
    if as_json:
        print_json(tables)
        return
    for name, (heading, columns) in _TABLES.items():
        show(heading, [_with_percent(row) for row in tables[name]], columns)


def _stores(
    store: StoreOptions, pairs: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str | None, StoreReference]], dict[str, str]]:
    """Return every store to read, by the name of its pair, and the passwords by variable."""
    named: list[tuple[str | None, DatabaseStoreSettings]] = []
    if store.is_given:
        named.append((None, store.resolve(of_locks=True)))
    named += [(name, _settings(text)) for name, text in pairs]
    stores: list[tuple[str | None, StoreReference]] = []
    passwords: dict[str, str] = {}
    for number, (name, settings) in enumerate(named):
        reference, secret = reachable(settings, f"{PASSWORD_VARIABLE}_{number}")
        stores.append((name, reference))
        passwords |= secret
    return stores, passwords


def _settings(text: str) -> DatabaseStoreSettings:
    path = Path(text)
    if path.suffix == ".xml" or path.is_file():
        return load(path).database_store
    return DatabaseStoreSettings(DatabaseUrl.parse(text).relative_to(Path.cwd()))


def _log(
    spark: "SparkSession", stores: Sequence[tuple[str | None, StoreReference]], files: Sequence[str]
) -> "DataFrame":
    frames = []
    for name, reference in stores:
        reader = spark.read.format("orthia.failover_log").options(**reference.to_options())
        frames.append((reader if name is None else reader.option("pair", name)).load())
    if files:
        frames.append(spark.read.format("orthia.failover_log").load(",".join(files)))
    together = frames[0]
    for frame in frames[1:]:
        together = together.unionByName(frame)
    return together


def _analysed(
    job: Any, log: "DataFrame", since: datetime | None, until: datetime | None
) -> dict[str, Rows]:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

    begin = F.lit(since or datetime.min.replace(year=1970, tzinfo=UTC))
    events = job.timeline(log).cache()
    if until is None:
        # Files say nothing of what came after them.
        (last,) = events.agg(F.max("at")).collect()
        until = last[0] or datetime.now(UTC)
    end = F.lit(until)
    events = events.where(F.col("at") <= end)
    held = job.tenures(events).cache()
    taken = job.takeovers(events, held).cache()
    recent = events.where(F.col("at") >= begin)
    frames = {
        "availability": job.availability(events, held, taken, begin, end),
        "takeovers": taken.where(F.col("since") >= begin),
        "tenures": held.where(F.coalesce("until", end) >= begin).orderBy("pair", "since"),
        "serving": job.serving(held, taken).orderBy("pair", "token"),
        "overlaps": job.overlaps(held).where(F.col("ended_at") >= begin),
        "late_renewals": job.late_renewals(recent),
        "clock_drift": job.clock_drift(recent),
    }
    tables = {name: collected(frame) for name, frame in frames.items()}
    for frame in (events, held, taken):
        frame.unpersist()
    return tables


def _with_percent(row: dict[str, Any]) -> dict[str, Any]:
    share = row.get("availability")
    return row if share is None else {**row, "availability": f"{share:.4%}"}


def _draw(tables: Mapping[str, Rows], html_file: Path | None, png_file: Path | None) -> None:
    from pipeline import chart

    drawn = _chart(tables)
    shown = [
        (heading, [{key: _with_percent(row)[key] for key in columns} for row in tables[name]])
        for name, (heading, columns) in _TABLES.items()
    ]
    try:
        if html_file is not None:
            html_file.write_text(chart.html(drawn, shown), encoding="utf-8")
        if png_file is not None:
            chart.png(drawn, png_file)
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}") from error


def _chart(tables: Mapping[str, Rows]) -> "Chart":
    from pipeline.chart import Chart, PairHistory, Segment

    now = datetime.now(UTC)
    pairs = {
        row["pair"]: PairHistory(row["pair"], row["availability"], row["takeovers"])
        for row in tables["availability"]
    }
    begins = [_time(row["period_from"]) for row in tables["availability"]]
    ends = [_time(row["period_to"]) for row in tables["availability"]]
    begin, end = min(begins, default=now), max(ends, default=now)
    for row in tables["serving"]:
        since, until = _time(row["serving_at"]), _time(row["served_until"] or end.isoformat())
        if until >= begin:
            until_text = row["served_until"] or "now"
            note = f"{row['node_name']} served {row['serving_at']} to {until_text}"
            segment = Segment(since, until, row["node_name"], f"{note}, token {row['token']}")
            pairs[row["pair"]].served.append(segment)
    for row in tables["takeovers"]:
        if row["out_since"] is not None and row["serving_at"] is not None:
            note = f"nobody served for {row['outage_ms'] / 1000:.3f} s, until {row['serving_at']}"
            note += f": {row['node_name']} took over ({row['cause']})"
            since, until = _time(row["out_since"]), _time(row["serving_at"])
            pairs[row["pair"]].outages.append(Segment(since, until, row["node_name"], note))
    return Chart(begin, end, list(pairs.values()))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
