"""``pipeline failovers``: what happened to pairs, as tables, JSON, a page and a picture."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orthia.broker.cli.durations import Since, planned_option
from orthia.broker.cli.group import example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.pipeline.options import (
    SparkOptions,
    session,
    spark_options,
)
from orthia.broker.cli.pipeline.output import Rows, show
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import PAIR, StoreOptions, store_options
from orthia.broker.node.exit_codes import ExitCode, Unavailable
from orthia.config import load
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.pipeline.errors import OutputFailed
from orthia.pipeline.requirements import require_extra
from orthia.pipeline.sources.store import PASSWORD_VARIABLE, StoreReference
from orthia.pipeline.times import microseconds

if TYPE_CHECKING:
    from orthia.pipeline.sources.failover_parts import StoreLog


@click.command(
    epilog=example(
        "orthia pipeline failovers --config broker.xml --html report.html",
        "orthia pipeline failovers logs/ --since 30d --json",
        "orthia pipeline failovers --pair eu=eu/broker.xml --pair us=us/broker.xml --png out.png",
    )
)
@click.argument("paths", nargs=-1)
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
    help="End of the period, if that is earlier than now; of files alone, than the last event.",
)
@planned_option
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a report there.")
@click.option("--png", "png_file", type=click.Path(path_type=Path), help="Write the chart there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@spark_options
def failovers(
    paths: tuple[str, ...],
    store: StoreOptions,
    pairs: tuple[tuple[str, str], ...],
    since: datetime | None,
    until: datetime | None,
    planned: tuple[tuple[datetime, datetime], ...],
    html_file: Path | None,
    png_file: Path | None,
    spark_on: SparkOptions,
    *,
    as_json: bool,
) -> None:
    """Show who served when, every outage and takeover, availability, late renewals, drift.

    From the failover logs of any number of pairs: of the store --config or --url names, of every
    --pair, and of PATHS: files, directories or patterns of failover-*.jsonl. What a store says of
    its locks now tells whether an outage goes on. After an orderly stop, and while a node hands
    over, nobody serves as planned: that is told apart, and does not lower availability. Exit code
    69, after the report of all others, if a pair could not be read.
    """
    if not (paths or pairs or store.is_given):
        raise click.UsageError("Say where the failover logs are: --config, --url, --pair or PATHS.")
    _check_period(since, until)
    require_extra()
    files = _files(paths)
    spark_on.say("asking the stores")
    stores, passwords = _stores(store, pairs)
    if stores and not files and all(one.error is not None for one in stores):
        raise Unavailable("; ".join(str(one.error) for one in stores))
    with session(spark_on, passwords) as spark:
        from orthia.pipeline.history.pairs import Period
        from orthia.pipeline.jobs.failovers import analyse

        spark_on.say("reading the failover logs")
        windows = [(microseconds(begin), microseconds(end)) for begin, end in planned]
        period = Period(_microseconds(since), _microseconds(until), windows)
        now = microseconds(datetime.now(UTC))
        tables = analyse(spark, stores, files, period, now=now)
    if html_file is not None or png_file is not None:
        _draw(tables, html_file, png_file)
    if as_json:
        print_json(tables)
    else:
        from orthia.pipeline.report.tables import shown

        for heading, rows, columns in shown(tables):
            show(heading, rows, columns)
    _end_if_unread(tables["availability"])


def _check_period(since: datetime | None, until: datetime | None) -> None:
    """Raise UsageError for a period in which nothing can have happened."""
    now = datetime.now(UTC)
    end = now if until is None else min(until, now)
    if since is not None and since >= end:
        what = "--until" if end == until else "now"
        raise click.UsageError(f"--since is not before {what}: in such a period nothing happened.")


def _end_if_unread(rows: Rows) -> None:
    """Say which pairs could not be read, after the report of the others, and end with 69."""
    failed = [row for row in rows if row["error"] is not None]
    for row in failed:
        click.echo(f"orthia: {row['pair']} is not in the report: {row['error']}", err=True)
    if failed:
        click.get_current_context().exit(ExitCode.UNAVAILABLE)


def _files(paths: tuple[str, ...]) -> list[str]:
    from orthia.pipeline.errors import BadOption
    from orthia.pipeline.sources.failover_files import find_files

    try:
        return [str(path.absolute()) for path in find_files(",".join(paths))] if paths else []
    except BadOption as error:
        raise Unavailable(str(error)) from error


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else microseconds(at)


def _stores(
    store: StoreOptions, pairs: Sequence[tuple[str, str]]
) -> tuple[list["StoreLog"], dict[str, str]]:
    """Return what every store says, and the passwords for the workers by variable."""
    from orthia.pipeline.sources.failover_parts import NamedStore, StoreLog, ask_all

    asked: list[NamedStore] = []
    failed: list[StoreLog] = []
    passwords: dict[str, str] = {}

    def add(name: str | None, settings: DatabaseStoreSettings) -> None:
        variable = f"{PASSWORD_VARIABLE}_{len(asked)}"
        reference, password = StoreReference.of(settings, variable)
        asked.append(NamedStore(name, settings, reference))
        if password is not None:
            passwords[variable] = password

    if store.is_given:
        add(None, store.resolve(of_locks=True))
    for name, text in pairs:
        try:
            add(name, _settings(text))
        except OrthiaError as error:
            failed.append(StoreLog(name, error=str(error)))
    return [*ask_all(asked, opened), *failed], passwords


def _settings(text: str) -> DatabaseStoreSettings:
    path = Path(text)
    if path.suffix == ".xml" or path.is_file():
        return load(path).database_store
    return DatabaseStoreSettings(DatabaseUrl.parse(text).relative_to(Path.cwd()))


def _draw(tables: Mapping[str, Rows], html_file: Path | None, png_file: Path | None) -> None:
    """Write the page and the picture: both, or neither, and never a part of one."""
    from orthia.pipeline.jobs.outputs import whole_file
    from orthia.pipeline.report.tables import chart_of, on_page

    chart = chart_of(tables)
    try:
        with ExitStack() as written:
            if html_file is not None:
                from orthia.pipeline.report.page import html

                page = html(chart, on_page(tables))
                new = written.enter_context(whole_file(html_file))
                new.write_text(page, encoding="utf-8")
            if png_file is not None:
                from orthia.pipeline.report.picture import png

                png(chart, written.enter_context(whole_file(png_file)))
    except OSError as error:
        raise OutputFailed(f"{error.filename}: {error.strerror}: nothing was written") from error
