"""``failover-log --summary``: what a pair's failover log means, without Spark."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from orthia.broker.cli.pipeline.output import show
from orthia.broker.cli.rendering import print_json
from orthia.broker.node.exit_codes import Unavailable
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.pipeline.history.pairs import Period
from orthia.pipeline.history.rows import Row
from orthia.pipeline.report.tables import shown
from orthia.pipeline.summary import summary
from orthia.pipeline.times import microseconds

_SHOWN: Final = ("availability", "serving", "outages", "doubts")


def print_summary(
    database: Database | None,
    settings: DatabaseStoreSettings | None,
    files: Sequence[Path],
    since: datetime | None,
    planned: Sequence[tuple[datetime, datetime]],
    *,
    as_json: bool,
) -> None:
    """Print who served when, outages, availability and doubts.

    Raises click.UsageError, Unavailable, StoreError, FailoverLogUnreadable.
    """
    now = datetime.now(UTC)
    if since is not None and since >= now:
        raise click.UsageError("--since is not before now: in such a period nothing happened.")
    windows = [(microseconds(begin), microseconds(end)) for begin, end in planned]
    period = Period(None if since is None else microseconds(since), None, windows)
    store = None if database is None or settings is None else (database, settings)
    try:
        tables = summary(store, files, period, now=microseconds(now))
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}") from error
    if as_json:
        print_json(tables)
        return
    _print(tables)


def _print(tables: Mapping[str, Sequence[Row]]) -> None:
    for heading, rows, columns in shown(tables, _SHOWN):
        show(heading, rows, columns)
