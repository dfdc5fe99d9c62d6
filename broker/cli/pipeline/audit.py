"""``pipeline audit``: does a journal hold together?"""

from typing import Final

import click

from broker.cli.group import example
from broker.cli.pipeline.options import Source, SparkOptions, input_options, spark_options
from broker.cli.pipeline.output import Rows, collected, show
from broker.cli.rendering import print_json
from broker.exit_codes import ExitCode

_SHOWN: Final = 20
_LISTED: Final = 1_000


@click.command(
    epilog=example(
        "orthia pipeline audit --config broker.xml", "orthia pipeline audit --from exported --json"
    )
)
@input_options
@click.option(
    "--records/--no-records",
    default=True,
    show_default=True,
    help="Read and check every record, too; without, only their places and epochs.",
)
@click.option(
    "--history", "with_history", is_flag=True, help="Also check what journal-retention keeps."
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(
    source: Source, spark_on: SparkOptions, *, records: bool, with_history: bool, as_json: bool
) -> None:
    """Check a journal: orphans, duplicates, two writers, unfinished transactions, and more.

    Exit code 1 if anything is wrong. It may be run on a pair that serves: a message and its
    references are always read at one instant.
    """
    with source.opened(spark_on) as inputs:
        from pyspark import StorageLevel

        from pipeline.jobs import audit as job

        history = None
        if with_history:
            # Read whole before the journal is: see the job.
            history = inputs.history(job.HISTORY_COLUMNS).persist(StorageLevel.DISK_ONLY)
            spark_on.say("reading the history")
            history.count()
        columns = [*job.COLUMNS, *(["corrupt"] if records else [])]
        # On disk: read once, and no larger in memory for a larger journal.
        messages = inputs.messages(columns).persist(StorageLevel.DISK_ONLY)
        bindings = inputs.bindings().cache()
        spark_on.say("reading the journal")
        epochs = collected(job.epochs(messages))
        spark_on.say(f"checking {sum(epoch['rows'] for epoch in epochs):,} rows")
        faults = job.faults(messages, bindings, inputs.node_manager())
        if history is not None:
            faults = faults.unionByName(job.history_faults(history, messages))
        faults = faults.cache()
        counts = {row["fault"]: row["count"] for row in faults.groupBy("fault").count().collect()}
        listed = collected(faults.orderBy("fault", "seq").limit(_LISTED))
        queues = collected(job.live_set(messages, bindings))
        in_doubt = collected(job.in_doubt(bindings))
        messages.unpersist()
        bindings.unpersist()
        faults.unpersist()
        if history is not None:
            history.unpersist()
    if as_json:
        print_json(
            {
                "sound": not counts,
                "faults": counts,
                "listed": listed,
                "queues": queues,
                "epochs": epochs,
                "in_doubt": in_doubt,
            }
        )
    else:
        _print(job.FAULTS | job.HISTORY_FAULTS, counts, listed, queues, epochs, in_doubt)
    if counts:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def _print(
    meanings: dict[str, str],
    counts: dict[str, int],
    listed: Rows,
    queues: Rows,
    epochs: Rows,
    in_doubt: Rows,
) -> None:
    show("Queues", queues, ("queue", "address", "messages", "bytes", "oldest"))
    show(
        "Epochs",
        epochs,
        ("epoch", "rows", "first_seq", "last_seq", "missing", "gap_before", "first_written_at"),
    )
    if in_doubt:
        show(
            "Transactions in doubt: prepared, and no fault; `orthia data transactions` ends them",
            in_doubt,
            ("xid", "id", "epoch", "prepared_at"),
        )
    if not counts:
        click.echo("The journal is sound.")
        return
    found = [
        {"fault": name, "rows": count, "meaning": meanings[name]} for name, count in counts.items()
    ]
    show("Faults", sorted(found, key=lambda row: row["fault"]), ("fault", "rows", "meaning"))
    show(
        f"The first {min(_SHOWN, len(listed))} of them",
        listed[:_SHOWN],
        ("fault", "seq", "id", "queue_id", "epoch", "detail"),
    )
