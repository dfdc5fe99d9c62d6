"""Tells a person how far a job is: in words, and on a terminal with a bar of the rows read."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orthia.pipeline.sources.inputs import Inputs

_LOOK_SECONDS: Final = 0.5


@dataclass
class Voice:
    """What is said on standard error; a bar that is shown says it beside itself."""

    quiet: bool
    _said: str = ""
    _beside: Callable[[str], None] | None = None

    def say(self, text: str) -> None:
        """Say what is being done."""
        if self.quiet:
            return
        self._said = text
        if self._beside is not None:
            self._beside(text)
        else:
            click.echo(f"orthia: {text}", err=True)

    @contextmanager
    def bar_of_rows(self, inputs: "Inputs", rows: int | None) -> Iterator[None]:
        """Show the rows that tasks have read, of about ``rows``, if somebody is there to see it.

        Of small tables, which take a moment, Spark does not know how many have been read.
        """
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        before = rows_read(inputs.spark) if inputs.counts_rows else 0
        columns = (
            TextColumn("orthia: {task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
        )
        done = threading.Event()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            total = rows if inputs.counts_rows else None
            task = progress.add_task(self._said, total=total, told="")

            def follow() -> None:
                while inputs.counts_rows and not done.wait(_LOOK_SECONDS):
                    read = rows_read(inputs.spark) - before
                    of = "" if rows is None else f" of {'about ' if read < rows else ''}{rows:,}"
                    progress.update(task, completed=read, told=f"{read:,}{of} rows read")

            watch = threading.Thread(target=follow, name="orthia-rows", daemon=True)
            watch.start()
            self._beside = lambda text: progress.update(task, description=text)
            try:
                yield
            finally:
                self._beside = None
                done.set()
                watch.join()


def rows_read(spark: "SparkSession") -> int:
    """Return how many rows all tasks of the session have read from tables so far."""
    context = spark.sparkContext
    jvm: Any = context._jvm  # noqa: SLF001 - Python is told of tasks only
    java: Any = context._jsc  # noqa: SLF001
    gateway: Any = context._gateway  # noqa: SLF001
    none = jvm.java.util.ArrayList()
    quantiles = gateway.new_array(jvm.double, 0)
    stages = java.sc().statusStore().stageList(None, False, False, quantiles, none)  # noqa: FBT003
    return sum(stages.apply(number).inputRecords() for number in range(stages.size()))
