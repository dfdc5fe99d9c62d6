"""``failover-log``: what happened to the pair, on all nodes, in one timeline."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from orthia.broker.cli.durations import Since, planned_option
from orthia.broker.cli.group import example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.rendering import echo_json
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.node.exit_codes import Unavailable
from orthia.config.store_settings import DatabaseStoreSettings

if TYPE_CHECKING:
    # Loaded where a log is read: --help reads none.
    from orthia.database import Database
    from orthia.nodemanager.failover_log import Entry

_OVERLAP: Final = 200
"""Rows read again at each look: a row may be committed after one with a higher id."""
_LOOK_SECONDS: Final = 1.0
_COLOURS: Final = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


@click.command(
    "failover-log",
    epilog=example(
        "orthia failover-log --config broker.xml --since 10m --follow",
        "orthia failover-log node-a.jsonl node-b.jsonl",
        "orthia failover-log --config broker.xml --since 30d --summary",
    ),
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@store_options
@click.option("--since", type=Since(), help="10m, 1h30m, 2d ago; or 2026-01-31T12:00.")
@click.option("--follow", is_flag=True, help="Go on with what happens next, until Ctrl-C.")
@click.option(
    "--summary",
    "as_summary",
    is_flag=True,
    help="Show who served when, outages with their range and cause, availability and doubts.",
)
@planned_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line; with --summary one."
)
def failover_log(
    files: tuple[Path, ...],
    store: StoreOptions,
    since: datetime | None,
    planned: tuple[tuple[datetime, datetime], ...],
    *,
    follow: bool,
    as_summary: bool,
    as_json: bool,
) -> None:
    """Print the failover events of all nodes, oldest first, by the database's clock.

    They come from the database, or from the FILES that nodes wrote, or from both: each event is
    shown once.

    With --summary, what they mean: what `orthia pipeline failovers` tells of one pair, without
    Spark.
    """
    if as_summary and follow:
        raise click.UsageError("--summary tells of what has happened: it cannot --follow.")
    if planned and not as_summary:
        raise click.UsageError("--planned is for the --summary.")
    settings = None
    if store.is_given or not files:
        settings = store.resolve(
            instead="name the files that nodes wrote into their failover-log-directory:"
            " `orthia failover-log FILE...`",
            of_locks=True,
        )
    with ExitStack() as stack:
        database = stack.enter_context(opened(settings)) if settings is not None else None
        if as_summary:
            from orthia.broker.cli.failover_summary import print_summary

            print_summary(database, settings, files, since, planned, as_json=as_json)
            return
        timeline = _Timeline(files, database, settings, since)
        try:
            for entry in timeline.entries(follow=follow):
                _print(entry, as_json=as_json)
        except KeyboardInterrupt:
            return


class _Timeline:
    """The merged logs, each event given out once."""

    def __init__(
        self,
        files: Iterable[Path],
        database: "Database | None",
        settings: DatabaseStoreSettings | None,
        since: datetime | None,
    ) -> None:
        self._files = list(files)
        self._database = database
        self._settings = settings
        self._since = since
        self._last_id = 0
        self._shown: set[tuple[str, int]] = set()

    def entries(self, *, follow: bool) -> "Iterator[Entry]":
        """Yield what there is, and with ``follow`` what comes, waiting out an outage.

        Raises Unavailable when a file cannot be read, StoreError.
        """
        from orthia.database import StoreUnavailable

        yield from self._new()
        while follow:
            time.sleep(_LOOK_SECONDS)
            try:
                yield from self._new()
            except StoreUnavailable as error:
                click.echo(f"orthia: {error}", err=True)

    def _new(self) -> "Iterator[Entry]":
        from orthia.nodemanager.merge import merge

        for entry in merge(self._read_files(), self._read_table()):
            key = (entry.holder_id, entry.event_seq)
            if key not in self._shown and (self._since is None or when(entry) >= self._since):
                self._shown.add(key)
                yield entry

    def _read_files(self) -> "list[Entry]":
        from orthia.nodemanager.merge import read_files

        try:
            return read_files(self._files)
        except OSError as error:
            raise Unavailable(f"{error.filename}: {error.strerror}") from error

    def _read_table(self) -> "list[Entry]":
        from orthia.nodemanager.merge import read_table

        if self._database is None or self._settings is None:
            return []
        found, self._last_id = read_table(
            self._database,
            self._settings,
            after_id=max(0, self._last_id - _OVERLAP),
            since=self._since,
        )
        return found


def when(entry: "Entry") -> datetime:
    """Return the time by which an entry stands in the timeline."""
    return entry.db_time or entry.node_time


def _print(entry: "Entry", *, as_json: bool) -> None:
    if as_json:
        echo_json(entry.to_json())
        return
    at = when(entry).astimezone(UTC)
    line = (
        f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z {entry.code:<9}"
        f" {entry.node_name:<10} {entry.role:<6} {' '.join(entry.message.split())}"
    )
    # A path that is no UTF-8 may be in any reason, and the terminal takes UTF-8 only.
    printable = line.encode(errors="backslashreplace").decode()
    click.echo(click.style(printable, fg=_COLOURS.get(entry.level)))
