"""What the live node shows, for people: one thing as names and values, many as a table."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from orthia.broker.cli.rendering import print_json, print_table, visible

View = Mapping[str, Any]
"""An object of the API."""
_TIME: Final = "-ms"
_IS_TIME: Final = frozenset(
    {"oldest-ms", "since-ms", "until-ms", "timestamp-ms", "expires-ms", "due-ms", "prepared-ms"}
)
_IN_CAPITALS: Final = frozenset({"routing-type", "routing-types"})


def shown(name: str, value: object) -> str:
    """Return a member of a view as people read it."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _IS_TIME and isinstance(value, int):
        if not value:
            return "never"
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, int):
        return str(value) if name in ("id", "port", "last-seq") else f"{value:,}"
    if isinstance(value, list):
        return ", ".join(shown(name, one) for one in value)
    if isinstance(value, Mapping) and set(value) == {"hex"}:
        return f"0x{value['hex']}"
    if isinstance(value, Mapping):
        return visible("; ".join(f"{key}={shown('', one)}" for key, one in value.items()))
    return visible(str(value).lower() if name in _IN_CAPITALS else str(value))


def print_one(view: View, *, as_json: bool) -> None:
    """Print one view: a member a line."""
    if as_json:
        print_json(view)
        return
    lines = {name.removesuffix(_TIME): shown(name, value) for name, value in view.items()}
    width = max(map(len, lines), default=0)
    for name, text in lines.items():
        if text:
            click.echo(f"{name.ljust(width)}  {text}")


def print_outcome(view: View, sentence: object, *, as_json: bool) -> None:
    """Print what a command has done: as a ``sentence``, or as the API told it."""
    if as_json:
        print_json(view)
    else:
        click.echo(sentence)


def print_many(
    views: Sequence[View],
    columns: Mapping[str, str],
    *,
    right: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Print a table; ``columns`` has the member for each heading, ``right`` those of numbers."""
    if as_json:
        print_json(views)
        return
    headings = tuple(columns)
    print_table(
        headings,
        (
            tuple(
                shown(member, view.get(member)).replace("\n", "\\n") for member in columns.values()
            )
            for view in views
        ),
        right=[headings.index(one) for one in right],
    )
