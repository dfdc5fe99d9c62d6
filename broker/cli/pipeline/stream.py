"""``pipeline stream``: a journal or a failover log into Parquet as it is written."""

from typing import TYPE_CHECKING, Any

import click

from broker.cli.group import example
from broker.cli.pipeline.options import SparkOptions, reachable, session, spark_options
from broker.cli.rendering import print_json
from broker.cli.settings_options import StoreOptions, store_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TABLES = {"messages": "orthia.journal", "failover-log": "orthia.failover_log"}
_LOOK_SECONDS = 1


@click.command(
    epilog=example(
        "orthia pipeline stream --config broker.xml --to events --checkpoint events.checkpoint",
        "orthia pipeline stream --config broker.xml --table failover-log \\",
        "    --to failovers --checkpoint failovers.checkpoint --available-now",
    )
)
@store_options
@click.option("--to", "target", required=True, metavar="DIRECTORY", help="Where the Parquet goes.")
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIRECTORY",
    help="Where the stream notes how far it is; the same the next time.",
)
@click.option("--table", type=click.Choice(list(_TABLES)), default="messages", show_default=True)
@click.option("--available-now", is_flag=True, help="End when all that is there is written.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds from one micro-batch to the next.",
)
@click.option(
    "--max-rows", type=click.IntRange(1), help="Messages a micro-batch takes.  [default: all]"
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print each micro-batch as a JSON object.")
def stream(
    store: StoreOptions,
    target: str,
    checkpoint: str,
    table: str,
    every: float,
    max_rows: int | None,
    spark_on: SparkOptions,
    *,
    available_now: bool,
    as_json: bool,
) -> None:
    """Write messages or failover events to Parquet as they are committed, each once.

    Through crashes of the stream and takeovers of the pair. A message that was acknowledged before
    the stream saw it is not in it. Read the directory through Spark, never its files one by one.
    """
    if max_rows is not None and table != "messages":
        raise click.UsageError("--max-rows is for --table messages.")
    reference, passwords = reachable(store.resolve())
    with session(spark_on, passwords) as spark:
        from pipeline.jobs.stream import to_parquet

        options = reference.to_options()
        if max_rows is not None:
            options["maxRowsPerBatch"] = str(max_rows)
        frame = spark.readStream.format(_TABLES[table]).options(**options).load()
        query = to_parquet(
            frame, target, checkpoint, every_seconds=None if available_now else every
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
    rows, at = progress["numInputRows"], progress["timestamp"]
    if as_json:
        print_json({"batch": progress["batchId"], "rows": rows, "at": at}, one_line=True)
    else:
        click.echo(f"{at} batch {progress['batchId']}: {rows:,} rows")
