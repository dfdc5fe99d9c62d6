"""Rows of DataFrames for people and for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orthia.broker.cli.rendering import print_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]


def collected(frame: "DataFrame") -> Rows:
    """Return the rows, times as ISO text in UTC: a naive local time would lie."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
    from pyspark.sql.types import TimestampType

    from orthia.pipeline.jobs.together import ISO

    times = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    in_utc = {name: F.date_format(name, ISO) for name in times}
    return [row.asDict() for row in frame.withColumns(in_utc).collect()]


def show(heading: str, rows: Rows, columns: Sequence[str], *, empty: str = "none") -> None:
    """Print some columns of rows as a table under a heading."""
    click.echo(click.style(heading, bold=True))
    if not rows:
        click.echo(f"  {empty}\n")
        return
    numbers = [
        position
        for position, name in enumerate(columns)
        if any(isinstance(row[name], int | float) for row in rows)
    ]
    print_table(
        [name.replace("_", " ") for name in columns],
        ([_shown(row[name]) for name in columns] for row in rows),
        right=numbers,
    )
    click.echo()


def show_unreadable(listed: Rows, count: int, what_of_them: str) -> None:
    """Tell of messages that cannot be read, if there are any: how many, which, and what of them."""
    if not count:
        return
    more = f", the first {len(listed)}" if count > len(listed) else ""
    show(f"Messages that cannot be read: {count:,}{more}", listed, ("seq", "queue", "corrupt"))
    click.echo(f"{what_of_them}; `orthia pipeline audit` says more.")


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value
