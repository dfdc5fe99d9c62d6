"""``pipeline export``: a pair's tables as files that other programs read."""

from pathlib import Path

import click

from broker.cli.group import example
from broker.cli.pipeline.options import SparkOptions, inputs_of, spark_options, store_of
from broker.cli.pipeline.output import collected, show
from broker.cli.rendering import print_json
from broker.cli.settings_options import StoreOptions, store_options
from broker.exit_codes import Unavailable

_FORMATS = ("parquet", "json", "csv")


@click.command(
    epilog=example(
        "orthia pipeline export --config broker.xml --to exported",
        "orthia pipeline export --config broker.xml --to exported --queue orders --format json",
    )
)
@store_options
@click.option("--to", "target", required=True, metavar="DIRECTORY", help="It must not exist.")
@click.option(
    "--format", "format_", type=click.Choice(_FORMATS), default="parquet", show_default=True
)
@click.option("--queue", "queues", multiple=True, help="Only this queue; repeatable.")
@click.option("--history", "with_history", is_flag=True, help="Also what journal-retention keeps.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def export(
    store: StoreOptions,
    target: str,
    format_: str,
    queues: tuple[str, ...],
    spark_on: SparkOptions,
    *,
    with_history: bool,
    as_json: bool,
) -> None:
    """Write messages, bindings, failover log and locks to files, messages by day and queue.

    The other commands read the Parquet with --from. Bodies are base64 in JSON and CSV.
    """
    if "://" not in target and Path(target).exists():
        raise Unavailable(f"{target} exists already: nothing was written")
    with inputs_of(store_of(store), spark_on) as inputs:
        from pipeline.jobs import export as job
        from pipeline.reading import ExportInputs

        if with_history:
            # First: a message that leaves its queue meanwhile is then in neither, never in both.
            spark_on.say("writing the history")
            kept = job.exported(inputs.history(conditions=job.of_queues(queues)), "removed_at")
            partitioned = job.writer(kept, format_).partitionBy(*job.PARTITIONED_BY)
            partitioned.save(f"{target}/history")
        spark_on.say("writing messages")
        messages = job.exported(inputs.messages(conditions=job.of_queues(queues)))
        partitioned = job.writer(messages, format_).partitionBy(*job.PARTITIONED_BY)
        partitioned.save(f"{target}/messages")
        spark_on.say("writing bindings, failover log and locks")
        small = {
            "bindings": inputs.bindings(),
            "failover_log": inputs.failover_log(),
            "node_manager": inputs.node_manager(),
        }
        for name, frame in small.items():
            job.writer(frame, format_).save(f"{target}/{name}")
        rows, left = [], []
        if format_ == "parquet":
            written = ExportInputs(messages.sparkSession, target)
            rows = collected(job.summary(written.messages()))
            left = collected(job.summary(written.history())) if with_history else []
    if as_json:
        history = {"history": left} if with_history else {}
        print_json({"directory": target, "format": format_, "messages": rows, **history})
    elif format_ == "parquet":
        columns = ("day", "queue", "messages", "body_bytes")
        show(f"Written to {target}", rows, columns)
        if with_history:
            show("Of the history", left, columns)
    else:
        click.echo(f"written to {target}")
