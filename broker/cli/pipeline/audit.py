"""``pipeline audit``: does a journal hold together?"""

from typing import Final

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline.options import (
    Source,
    SparkOptions,
    input_options,
    rows_of,
    spark_options,
)
from orthia.broker.cli.pipeline.output import Rows, show
from orthia.broker.cli.rendering import print_json
from orthia.broker.node.exit_codes import ExitCode

_SHOWN: Final = 20
_LISTED: Final = 1_000


@click.command(
    epilog=example(
        "orthia pipeline audit --config broker.xml", "orthia pipeline audit --from exported --json"
    )
)
@click.option(
    "--records/--no-records",
    default=True,
    show_default=True,
    help="Read and check every record, too; without, only their places and epochs.",
)
@click.option(
    "--bodies/--no-bodies",
    default=True,
    show_default=True,
    help="Read and check large bodies, too; without, only which pieces there are.",
)
@click.option(
    "--history", "with_history", is_flag=True, help="Also check what journal-retention keeps."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@input_options
@spark_options
def audit(
    source: Source,
    spark_on: SparkOptions,
    *,
    records: bool,
    bodies: bool,
    with_history: bool,
    as_json: bool,
) -> None:
    """Check a journal: what cannot be read, is missing, doubled, misplaced, or of two writers.

    Exit code 1 if anything is wrong. It may be run on a pair that serves: what looks wrong because
    something went on meanwhile is looked at once more.
    """
    with source.opened(spark_on) as inputs:
        from orthia.pipeline.jobs import audit as job

        spark_on.say("reading the journal")
        with spark_on.voice.bar_of_rows(inputs.spark, rows_of(inputs, history=with_history)):
            found = job.examined(
                inputs, records=records, bodies=bodies, history=with_history, listed=_LISTED
            )
        spark_on.say(f"checked {sum(epoch['rows'] for epoch in found.epochs):,} rows")
    counts = found.counts
    listed: Rows = [one._asdict() for one in found.listed]
    queues, epochs = found.queues, found.epochs
    in_doubt, unneeded = found.in_doubt, found.unneeded
    if as_json:
        print_json(
            {
                "sound": not counts,
                "faults": counts,
                "listed": listed,
                "queues": queues,
                "epochs": epochs,
                "in_doubt": in_doubt,
                "unneeded_bodies": unneeded,
            }
        )
    else:
        _print(job.FAULTS | job.HISTORY_FAULTS, counts, listed, queues, epochs, in_doubt, unneeded)
    if counts:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def _print(
    meanings: dict[str, str],
    counts: dict[str, int],
    listed: Rows,
    queues: Rows,
    epochs: Rows,
    in_doubt: Rows,
    unneeded: Rows,
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
    if unneeded:
        show(
            "Large bodies that no message needs now, and no fault: of uploads under way, or left by"
            " a node that died, to be removed by the next",
            unneeded,
            ("id", "epoch", "pieces", "bytes"),
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
        ("fault", "table", "seq", "id", "position", "queue_id", "epoch", "detail"),
    )
