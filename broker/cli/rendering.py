"""Tables for people, JSON for programs; plain text wherever the output is not a terminal."""

import json
import sys
from collections.abc import Iterable, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_json(value: object, *, one_line: bool = False) -> None:
    """Print ``value`` as JSON: one line for what is followed line by line, else indented."""
    click.echo(json.dumps(value, indent=None if one_line else 2, default=str, ensure_ascii=False))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """Print a table; ``right`` are the columns of numbers.

    On a terminal it fits the window; elsewhere columns are separated by two blanks and nothing is
    cut, so that `grep` and `awk` can read it.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(headings, cells, right)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def _print_plain(headings: Sequence[str], cells: list[list[str]], right: Sequence[int]) -> None:
    lines = [list(headings), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        padded = (
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        click.echo("  ".join(padded).rstrip())


def in_words(seconds: float | None) -> str:
    """Return an expiry as ``in 12.3 s`` or ``expired 3.1 s ago``; nothing for None."""
    if seconds is None:
        return ""
    return f"in {seconds:.1f} s" if seconds > 0 else f"expired {-seconds:.1f} s ago"
