"""``pipeline audit``: does a journal hold together?"""

from typing import TYPE_CHECKING, Any, Final

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
from orthia.broker.cli.pipeline.several import answers, pairs_option, read_pairs, tell
from orthia.broker.cli.rendering import print_json
from orthia.broker.node.exit_codes import ExitCode

if TYPE_CHECKING:
    from orthia.pipeline.jobs.audit import Audit
    from orthia.pipeline.sources.inputs import Inputs

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
@pairs_option
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
    something went on meanwhile is looked at once more. If one of --pairs could not be read, the
    exit code is 69, after the report of all others.
    """

    def check(inputs: "Inputs") -> "Audit":
        from orthia.pipeline.jobs import audit as job

        spark_on.say("reading the journal")
        with spark_on.voice.bar_of_rows(inputs, rows_of(inputs, history=with_history)):
            found = job.examined(
                inputs, records=records, bodies=bodies, history=with_history, listed=_LISTED
            )
        spark_on.say(f"checked {sum(epoch['rows'] for epoch in found.epochs):,} rows")
        return found

    if source.pairs is not None:
        told = answers(read_pairs(source.pairs), spark_on, lambda _, inputs: check(inputs))
        tell(told, _fields, _print, as_json=as_json)
        is_sound = not any(one.answer.counts for one in told if one.answer is not None)
    else:
        with source.opened(spark_on) as inputs:
            found = check(inputs)
        if as_json:
            print_json(_fields(found))
        else:
            _print(found)
        is_sound = not found.counts
    if not is_sound:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def _fields(found: "Audit") -> dict[str, Any]:
    return {
        "sound": not found.counts,
        "faults": found.counts,
        "listed": _listed(found),
        "queues": found.queues,
        "epochs": found.epochs,
        "in_doubt": found.in_doubt,
        "unneeded_bodies": found.unneeded,
    }


def _listed(found: "Audit") -> Rows:
    return [one._asdict() for one in found.listed]


def _print(found: "Audit") -> None:
    from orthia.pipeline.jobs.audit import FAULTS, HISTORY_FAULTS

    meanings = FAULTS | HISTORY_FAULTS
    listed = _listed(found)
    show("Queues", found.queues, ("queue", "address", "messages", "bytes", "oldest"))
    show(
        "Epochs",
        found.epochs,
        ("epoch", "rows", "first_seq", "last_seq", "missing", "gap_before", "first_written_at"),
    )
    if found.in_doubt:
        show(
            "Transactions in doubt: prepared, and no fault; `orthia data transactions` ends them",
            found.in_doubt,
            ("xid", "id", "epoch", "prepared_at"),
        )
    if found.unneeded:
        show(
            "Large bodies that no message needs now, and no fault: of uploads under way, or left by"
            " a node that died, to be removed by the next",
            found.unneeded,
            ("id", "epoch", "pieces", "bytes"),
        )
    if not found.counts:
        click.echo("The journal is sound.")
        return
    faults = [
        {"fault": name, "rows": count, "meaning": meanings[name]}
        for name, count in found.counts.items()
    ]
    show("Faults", sorted(faults, key=lambda row: row["fault"]), ("fault", "rows", "meaning"))
    show(
        f"The first {min(_SHOWN, len(listed))} of them",
        listed[:_SHOWN],
        ("fault", "table", "seq", "id", "position", "queue_id", "epoch", "detail"),
    )
