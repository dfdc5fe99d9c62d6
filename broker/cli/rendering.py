"""Tables for people, JSON for programs; plain text wherever the output is not a terminal."""

import json
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from orthia.config.characters import is_unicode


def print_json(value: object, *, one_line: bool = False) -> None:
    """Print ``value`` as JSON: one line for what is followed line by line, else indented."""
    indent = None if one_line else 2
    echo_json(json.dumps(value, indent=indent, default=str, ensure_ascii=False))


def echo_json(text: str) -> None:
    """Print JSON, with its own escapes for what the encoding of the output may lack."""
    if not is_unicode(sys.stdout.encoding):
        text = _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    click.echo(text)


_BEYOND_ASCII: Final = re.compile("[^\\x00-\\x7f]+")


def visible(text: str) -> str:
    """Return ``text`` with escapes in place of what a terminal obeys; line ends and tabs stay.

    Control characters move the cursor, rename windows and answer for the user; format characters
    turn the direction of writing round.
    """
    return "".join(
        one if one in "\n\t" or unicodedata.category(one) not in _OBEYED else _escape(one)
        for one in text
    )


_OBEYED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def _escape(character: str) -> str:
    return (
        character.encode("ascii", "backslashreplace").decode()
        if character > "\x7f"
        else (f"\\x{ord(character):02x}")
    )


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """Print a table; ``right`` are the columns of numbers.

    Nothing is cut or broken: a name is to be copied. Elsewhere than on a terminal columns are
    separated by two blanks, so that `grep` and `awk` can read it; on a terminal that is too narrow
    a few rows are shown a cell a line, and many as elsewhere.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(headings, cells, right)
        return
    # Loaded on a terminal only: it takes as long as all else that a small command does.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    if table.__rich_measure__(console, console.options.update(max_width=_ANY_WIDTH)).maximum <= (
        console.width
    ):
        console.print(table)
    elif len(cells) <= _FEW_ROWS:
        _print_records(headings, cells)
    else:
        _print_plain(headings, cells, right)


_ANY_WIDTH: Final = 100_000
_FEW_ROWS: Final = 12


def _print_records(headings: Sequence[str], cells: list[list[str]]) -> None:
    width = max(map(len, headings))
    for number, row in enumerate(cells):
        if number:
            click.echo()
        for heading, cell in zip(headings, row, strict=True):
            if cell:
                click.echo(f"{heading.ljust(width)}  {cell}")


def program() -> str:
    """Return how to type this very program, for a command that is printed to be copied."""
    typed = sys.argv[0]
    if Path(typed).name == "orthia":
        found = shutil.which("orthia")
        same = found is not None and Path(found).resolve() == Path(typed).resolve()
        return "orthia" if same else shlex.quote(typed)
    if Path(typed).parts[-3:] == ("broker", "cli", "__main__.py"):
        return f"{shlex.quote(sys.executable)} -m orthia.broker.cli"
    return "orthia"


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
