"""``pipeline traffic``: what waits in the queues, since when, and how it came."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline.options import (
    Source,
    SparkOptions,
    input_options,
    rows_of,
    spark_options,
)
from orthia.broker.cli.pipeline.output import Rows, show, show_unreadable
from orthia.broker.cli.pipeline.several import answers, pairs_option, read_pairs, tell
from orthia.broker.cli.rendering import print_json

if TYPE_CHECKING:
    from orthia.pipeline.sources.inputs import Inputs


@dataclass(frozen=True)
class _Traffic:
    """What is told of one pair."""

    tables: dict[str, Rows]
    corrupt: int


@click.command(
    epilog=example(
        "orthia pipeline traffic --config broker.xml",
        "orthia pipeline traffic --from exported --json",
        "orthia pipeline traffic --pairs pairs.txt",
    )
)
@click.option(
    "--history",
    "with_history",
    is_flag=True,
    help="Also what left the queues, how fast and after how long, as journal-retention keeps it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pairs_option
@input_options
@spark_options
def traffic(source: Source, spark_on: SparkOptions, *, with_history: bool, as_json: bool) -> None:
    """Show rates, sizes, time in queue, backlog by hour and dead letters.

    Of the messages that are in the journal: one that was acknowledged is gone from it, and is told
    of with --history only. Exit code 69, after the report of all others, if one of --pairs could
    not be read.
    """

    def read(inputs: "Inputs") -> _Traffic:
        return _read(inputs, spark_on, with_history=with_history)

    if source.pairs is not None:
        found = answers(read_pairs(source.pairs), spark_on, lambda _, inputs: read(inputs))
        tell(found, _fields, _print, as_json=as_json)
        return
    with source.opened(spark_on) as inputs:
        told = read(inputs)
    if as_json:
        print_json(_fields(told))
    else:
        _print(told)


def _read(inputs: "Inputs", spark_on: SparkOptions, *, with_history: bool) -> _Traffic:
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

    from orthia.pipeline.jobs import traffic as job
    from orthia.pipeline.jobs import unreadable
    from orthia.pipeline.jobs.together import collected_together

    rows = job.deliverable(inputs.messages(job.COLUMNS)).persist(StorageLevel.DISK_ONLY)
    wanted = {
        "queues": job.by_queue(rows, F.lit(inputs.now())),
        "hours": job.by_hour(rows),
        "dead_letters": job.dead_letters(rows),
        "corrupt": rows.agg(F.count_if(F.col("corrupt").isNotNull()).alias("rows")),
        "corrupt_listed": unreadable.listed(rows),
    }
    if with_history:
        wanted["left"] = job.left(inputs.history(job.HISTORY_COLUMNS))
    spark_on.say("reading the journal and its history" if with_history else "reading the journal")
    try:
        with spark_on.voice.bar_of_rows(inputs, rows_of(inputs, history=with_history)):
            found = collected_together(wanted, in_one_task=inputs.is_small)
    finally:
        rows.unpersist()
    (counted,) = found.pop("corrupt")
    return _Traffic(found, counted["rows"])


def _fields(told: _Traffic) -> dict[str, Any]:
    order = ("queues", "hours", "dead_letters", "corrupt", "corrupt_listed", "left")
    fields: dict[str, Any] = told.tables | {"corrupt": told.corrupt}
    return {name: fields[name] for name in order if name in fields}


def _print(told: _Traffic) -> None:
    found = told.tables
    show(
        "Queues",
        found["queues"],
        (
            *("queue", "messages", "bytes", "median_bytes", "per_second"),
            *("median_waited_seconds", "longest_waited_seconds", "dead_letters"),
        ),
    )
    show("Hours", found["hours"], ("queue", "hour", "messages", "bytes", "backlog"))
    show("Dead letters", found["dead_letters"], ("origin", "queue", "messages", "oldest", "newest"))
    if "left" in found:
        show(
            "Left their queue",
            found["left"],
            (
                *("queue", "reason", "messages", "bytes", "per_second"),
                *("median_seconds_in_queue", "p95_seconds_in_queue", "longest_seconds_in_queue"),
            ),
        )
    show_unreadable(found["corrupt_listed"], told.corrupt, "They count, with no bytes")
