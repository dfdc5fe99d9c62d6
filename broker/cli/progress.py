"""How far a command is that takes a while: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

PLAIN_SECONDS: Final = 5.0
"""Between two lines where there is no terminal: a log of a night is not to drown in them."""
Advance = Callable[[int], None]
"""Takes how many more are done."""


@contextmanager
def progress_of(verb: str, count: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """Give a function that advances what is told on standard error; of ``count``, if that is known.

    ``verb`` says what is done, as in "sent 5 of 10". Nothing is told unless ``shown``: the output
    would be torn apart, or is for a program.
    """
    if not shown:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar(verb, count) as advance:
            yield advance
    else:
        yield PlainLines(verb, count).advance


@contextmanager
def _bar(verb: str, count: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(verb, total=count)
        yield lambda steps: progress.advance(task, steps)


class PlainLines:
    """A line every ``PLAIN_SECONDS``, as long as anything is done."""

    def __init__(
        self, verb: str, count: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._verb = verb
        self._of = "" if count is None else f" of {count:,}"
        self._clock = clock
        self._began = self._told_at = clock()
        self._done = self._told = 0

    def advance(self, steps: int) -> None:
        """Note that so many more are done, and tell it if it is time."""
        self._done += steps
        now = self._clock()
        passed = now - self._told_at
        if passed < PLAIN_SECONDS:
            return
        rate = (self._done - self._told) / passed
        far = f"{self._verb} {self._done:,}{self._of} in {now - self._began:.0f} s"
        click.echo(f"{far}: {rate:,.0f}/s now", err=True)
        self._told_at, self._told = now, self._done
