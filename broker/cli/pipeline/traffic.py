"""``pipeline traffic``: what waits in the queues, since when, and how it came."""

from datetime import UTC, datetime

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline.options import Source, SparkOptions, input_options, spark_options
from orthia.broker.cli.pipeline.output import collected, show, show_unreadable
from orthia.broker.cli.rendering import print_json


@click.command(
    epilog=example(
        "orthia pipeline traffic --config broker.xml",
        "orthia pipeline traffic --from exported --json",
    )
)
@input_options
@click.option(
    "--history",
    "with_history",
    is_flag=True,
    help="Also what left the queues, how fast and after how long, as journal-retention keeps it.",
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def traffic(source: Source, spark_on: SparkOptions, *, with_history: bool, as_json: bool) -> None:
    """Show rates, sizes, time in queue, backlog by hour and dead letters.

    Of the messages that are in the journal: one that was acknowledged is gone from it, and is told
    of with --history only.
    """
    with source.opened(spark_on) as inputs:
        from pyspark import StorageLevel
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

        from orthia.pipeline.jobs import traffic as job
        from orthia.pipeline.jobs import unreadable

        rows = job.deliverable(inputs.messages(job.COLUMNS)).persist(StorageLevel.DISK_ONLY)
        spark_on.say("reading the journal")
        queues = collected(job.by_queue(rows, F.lit(datetime.now(UTC))))
        hours = collected(job.by_hour(rows))
        letters = collected(job.dead_letters(rows))
        corrupt = rows.where("corrupt IS NOT NULL").count()
        bad = collected(unreadable.listed(rows)) if corrupt else []
        rows.unpersist()
        left = None
        if with_history:
            spark_on.say("reading the history")
            left = collected(job.left(inputs.history(job.HISTORY_COLUMNS)))
    if as_json:
        history = {} if left is None else {"left": left}
        print_json(
            {
                "queues": queues,
                "hours": hours,
                "dead_letters": letters,
                "corrupt": corrupt,
                "corrupt_listed": bad,
                **history,
            }
        )
        return
    show(
        "Queues",
        queues,
        (
            *("queue", "messages", "bytes", "median_bytes", "per_second"),
            *("median_waited_seconds", "longest_waited_seconds", "dead_letters"),
        ),
    )
    show("Hours", hours, ("queue", "hour", "messages", "bytes", "backlog"))
    show("Dead letters", letters, ("origin", "queue", "messages", "oldest", "newest"))
    if left is not None:
        show(
            "Left their queue",
            left,
            (
                *("queue", "reason", "messages", "bytes", "per_second"),
                *("median_seconds_in_queue", "p95_seconds_in_queue", "longest_seconds_in_queue"),
            ),
        )
    show_unreadable(bad, corrupt, "They count, with no bytes")
