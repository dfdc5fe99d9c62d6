"""``pipeline stream``: a journal, its history or a failover log into files as it is written."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from orthia.broker.cli.durations import Since
from orthia.broker.cli.group import example
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.pipeline.directories import Directory
from orthia.broker.cli.pipeline.options import SparkOptions, reachable, session, spark_options
from orthia.broker.cli.pipeline.stream_bounds import StreamBounds, stream_bounds
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import StoreOptions, store_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TABLES = {
    "messages": "orthia.journal",
    "history": "orthia.journal",
    "failover-log": "orthia.failover_log",
}
_FORMATS = ("parquet", "delta")
_SCHEMAS = ("orthia", "kafka")
_LOOK_SECONDS = 1


@click.command(
    epilog=example(
        "orthia pipeline stream --config broker.xml --to events --checkpoint events.checkpoint",
        "orthia pipeline stream --config broker.xml --table history \\",
        "    --to passed --checkpoint passed.checkpoint --available-now",
        "orthia pipeline stream --config broker.xml --table failover-log \\",
        "    --to failovers --checkpoint failovers.checkpoint --available-now",
    )
)
@click.option(
    "--to",
    "target",
    required=True,
    type=Directory(),
    metavar="DIRECTORY",
    help="Where the files go.",
)
@click.option(
    "--checkpoint",
    required=True,
    type=Directory(),
    metavar="DIRECTORY",
    help="Where the stream notes how far it is; the same the next time.",
)
@click.option("--table", type=click.Choice(list(_TABLES)), default="messages", show_default=True)
@click.option("--queue", "queues", multiple=True, help="Only this queue; repeatable.")
@click.option(
    "--since",
    type=Since(),
    help="Only messages written then or later, by the database's clock; 1d, or 2026-01-31T12:00.",
)
@click.option(
    "--until",
    type=Since(),
    help="Only messages written before; what is left is the next run's. With --available-now.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="parquet",
    show_default=True,
    help="For delta give Spark its package by --conf.",
)
@click.option(
    "--on-pruned",
    type=click.Choice(["fail", "continue"]),
    default="fail",
    show_default=True,
    help="What to do when the history was pruned before the stream had read it.",
)
@click.option("--available-now", is_flag=True, help="End when all that is there is written.")
@click.option(
    "--every",
    type=FiniteRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds from one micro-batch to the next.",
)
@click.option(
    "--schema",
    type=click.Choice(_SCHEMAS),
    default="orthia",
    show_default=True,
    help="The columns; kafka: those of Spark's source for Kafka (key, value, topic, ...).",
)
@stream_bounds
@click.option("--json", "as_json", is_flag=True, help="Print each micro-batch as a JSON object.")
@store_options
@spark_options
def stream(
    store: StoreOptions,
    target: str,
    checkpoint: str,
    table: str,
    queues: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    every: float,
    schema: str,
    bounds: StreamBounds,
    form: str,
    on_pruned: str,
    spark_on: SparkOptions,
    *,
    available_now: bool,
    as_json: bool,
) -> None:
    """Write messages, the history or failover events to files as they are committed, each once.

    Through crashes of the stream and takeovers of the pair. Of messages that wait: one that was
    acknowledged before the stream saw it is not in it. The history, which journal-retention keeps,
    has every message that left its queue, in the order of leaving, with reason and times. Read a
    directory of Parquet through Spark, never its files one by one.

    With --available-now a scheduler can run it: each run begins exactly where the last one ended,
    which --checkpoint knows. A message that cannot be read is written as it is stored, with the
    reason in the column corrupt, and told of.
    """
    bounds.check(has_bytes=table != "failover-log", available_now=available_now)
    if schema != "orthia" and table == "failover-log":
        raise click.UsageError("--schema is for --table messages and history.")
    of_messages = {"--queue": queues, "--since": since, "--until": until}
    for name, value in of_messages.items():
        if value and table != "messages":
            raise click.UsageError(f"{name} is for --table messages.")
    if until is not None and not available_now:
        raise click.UsageError("--until needs --available-now: else the stream has no end.")
    if on_pruned != "fail" and table != "history":
        raise click.UsageError("--on-pruned is for --table history.")
    reference, passwords = reachable(store.resolve())
    with session(spark_on, passwords) as spark:
        from orthia.pipeline.jobs.checkpoint import Purpose, claim
        from orthia.pipeline.jobs.stream import to_directory
        from orthia.pipeline.jobs.watermark import Selection
        from orthia.pipeline.session import register_sources

        register_sources(spark)
        claim(spark, checkpoint, Purpose(table, queues, target, form, schema))
        options = reference.to_options() | Selection(queues, since, until).options()
        options |= bounds.to_options()
        if schema != "orthia":
            options["schema"] = schema
        if table == "history":
            options |= {"table": "history", "onPruned": on_pruned}
        frame = spark.readStream.format(_TABLES[table]).options(**options).load()
        query = to_directory(
            frame, target, checkpoint, every_seconds=None if available_now else every, form=form
        )
        spark_on.say(f"writing {table} to {target}; Ctrl-C stops")
        try:
            _follow(query, as_json=as_json)
        except KeyboardInterrupt:
            query.stop()


def _follow(query: "StreamingQuery", *, as_json: bool) -> None:
    """Print each micro-batch that had rows until the stream ends; raises what ended it."""
    shown = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_LOOK_SECONDS))
        for progress in query.recentProgress:
            if progress["batchId"] > shown and progress["numInputRows"]:
                shown = progress["batchId"]
                _print(progress, as_json=as_json)


def _print(progress: Any, *, as_json: bool) -> None:
    from orthia.pipeline.jobs.stream import unreadable_in

    rows, at = progress["numInputRows"], progress["timestamp"]
    corrupt = unreadable_in(progress)
    if as_json:
        shown = {"batch": progress["batchId"], "rows": rows, "at": at, "corrupt": corrupt}
        print_json(shown, one_line=True)
    else:
        of_them = f", {corrupt:,} of them cannot be read: see the column corrupt" if corrupt else ""
        click.echo(f"{at} batch {progress['batchId']}: {rows:,} rows{of_them}")
