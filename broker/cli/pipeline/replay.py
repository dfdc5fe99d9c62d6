"""``pipeline replay``: messages of a journal or an export are sent again."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from orthia.broker.cli.client_options import broker_options, link_to
from orthia.broker.cli.durations import Since
from orthia.broker.cli.group import example
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.pipeline.options import Source, SparkOptions, input_options, spark_options
from orthia.broker.cli.pipeline.output import Rows, collected, show, show_unreadable
from orthia.broker.cli.rendering import print_json
from orthia.broker.client.checkpoint import Checkpoint, default_checkpoint
from orthia.broker.client.replay import LargePieces, Replay, ReplayMessage, ReplayReport
from orthia.broker.core.destinations import REPLAYS
from orthia.journal.model.message import LargeBody
from orthia.journal.model.records import RemovalReason
from orthia.pipeline.errors import WrongInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from orthia.pipeline.sources.bodies import BodyReader
    from orthia.pipeline.sources.inputs import Inputs

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@click.command(
    epilog=example(
        "orthia pipeline replay --from exported --queue DLQ --to-origin",
        "orthia pipeline replay --from exported --queue DLQ --to-origin --send \\",
        "    --name incident-42 --broker node-a:61613 --broker node-b:61613 --rate 200",
        "orthia pipeline replay --config broker.xml --history --queue orders \\",
        "    --where \"removed_at >= '2026-01-31T12:00:00Z'\" --to /queue/again",
    )
)
@click.option(
    "--history",
    "from_history",
    is_flag=True,
    help="Messages that left their queue, as journal-retention keeps them, and not those that"
    " wait.",
)
@click.option(
    "--reason",
    "reasons",
    type=click.Choice([one.value for one in RemovalReason]),
    multiple=True,
    help="Left their queue for this reason; repeatable. With --history.",
)
@click.option("--queue", "queues", multiple=True, help="Messages of this queue; repeatable.")
@click.option("--address", "addresses", multiple=True, help="Sent to this address; repeatable.")
@click.option("--id", "ids", type=int, multiple=True, help="The message of this id; repeatable.")
@click.option("--since", type=Since(), help="Stored since then; 10m, 2d, or 2026-01-31T12:00.")
@click.option("--until", type=Since(), help="Stored before then.")
@click.option(
    "--where",
    help="A condition in Spark SQL on the columns of orthia.journal, as"
    " \"properties['customer'] = '42' AND size < 1000\".",
)
@click.option("--to", "destination", help="Send there, as /queue/NAME.  [default: its address]")
@click.option("--to-origin", is_flag=True, help="Send dead letters where they were first sent to.")
@click.option("--send", is_flag=True, help="Do it; without, only what would be sent is shown.")
@click.option("--name", help="Names this replay: the same name goes on where it was. With --send.")
@click.option(
    "--checkpoint",
    "checkpoint_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What proves how far this replay is, made by its first run; keep it until the last."
    "  [default: ~/.local/state/orthia/replay/NAME.secret]",
)
@click.option("--rate", type=FiniteRange(0.001), help="Messages a second, at most.")
@click.option(
    "--chunk",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Messages of one transaction.",
)
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@input_options
@spark_options
def replay(
    source: Source,
    reasons: tuple[str, ...],
    queues: tuple[str, ...],
    addresses: tuple[str, ...],
    ids: tuple[int, ...],
    since: datetime | None,
    until: datetime | None,
    where: str | None,
    destination: str | None,
    name: str | None,
    checkpoint_file: Path | None,
    rate: float | None,
    chunk: int,
    spark_on: SparkOptions,
    *,
    from_history: bool,
    to_origin: bool,
    send: bool,
    as_json: bool,
    **connection: Any,
) -> None:
    """Send messages again, each exactly once, through a live broker: to their address or another.

    A dry run unless --send is given. How far it is, is kept in a queue of the broker itself,
    orthia.replay.NAME, in the same transactions as the messages: after a crash of the sender or a
    takeover the same command goes on, and nothing is sent twice. A file, --checkpoint, proves that
    what is in that queue is this replay's own.

    Of the history, what was itself sent by a replay is left out.
    """
    if send and (name is None or not _NAME.fullmatch(name)):
        raise click.UsageError("--send needs --name, of letters, digits, '.', '_' and '-'.")
    if destination is not None and to_origin:
        raise click.UsageError("Give --to or --to-origin, not both.")
    if reasons and not from_history:
        raise click.UsageError("--reason needs --history: what waits has not left its queue.")
    with source.opened(spark_on) as inputs:
        from pyspark import StorageLevel

        if source.settings is not None and not inputs.is_small:
            from orthia.pipeline.session import answer_filters

            answer_filters(inputs.spark)
        from orthia.pipeline.jobs import replay as job
        from orthia.pipeline.jobs import unreadable

        listed = {"queue": queues, "id": ids, "reason": reasons}
        of_keys = list(_of_keys(listed, since, until))
        narrowed = _candidates(inputs, of_keys, addresses, where, from_history=from_history)
        # On disk: a journal that is sent into must not grow under the replay's eyes.
        chosen = narrowed.persist(StorageLevel.DISK_ONLY)
        rows = job.selected(chosen, to_origin=to_origin)
        found = job.addressed(rows, inputs.bindings(), destination)
        spark_on.say("selecting messages")
        summary = collected(job.summary(found))
        corrupt = chosen.where("corrupt IS NOT NULL").count()
        bad = collected(unreadable.listed(chosen)) if corrupt else []
        report = None
        if send:
            total = sum(row["messages"] for row in summary)
            with (
                _bodies(source, inputs, summary) as bodies,
                _progress(total, quiet=spark_on.voice.quiet) as advance,
            ):
                engine = Replay(
                    link_to(**connection),
                    str(name),
                    lambda through: _messages(found, through, bodies),
                    checkpoint=Checkpoint(
                        checkpoint_file or default_checkpoint(str(name)), str(name)
                    ),
                    rate=rate,
                    chunk=chunk,
                    on_sent=advance,
                    say=lambda text: click.echo(text, err=True),
                )
                report = engine.run()
        chosen.unpersist()
    _print(summary, report, bad, corrupt, as_json=as_json)


@contextmanager
def _bodies(source: Source, inputs: "Inputs", summary: Rows) -> Iterator["BodyReader | None"]:
    """Give what reads large bodies, if any is to be sent; raises WrongInput."""
    if not any(row["large"] for row in summary):
        yield None
        return
    with source.body_reader(inputs) as reader:
        yield reader


def _of_keys(
    listed: Mapping[str, tuple[object, ...]], since: datetime | None, until: datetime | None
) -> Iterator["Column"]:
    """Yield conditions on what is stored of a message beside its record."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

    for name, values in listed.items():
        if values:
            yield F.col(name).isin(*values)
    if since is not None:
        yield F.col("written_at") >= F.lit(since)
    if until is not None:
        yield F.col("written_at") < F.lit(until)


def _of_records(addresses: tuple[str, ...], where: str | None) -> Iterator["Column"]:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

    yield ~F.col("address").startswith(f"{REPLAYS}.")
    if addresses:
        yield F.col("address").isin(*addresses)
    if where is not None:
        yield F.expr(where)


def _candidates(
    inputs: "Inputs",
    of_keys: "list[Column]",
    addresses: tuple[str, ...],
    where: str | None,
    *,
    from_history: bool,
) -> "DataFrame":
    from pyspark.errors import PySparkException

    from orthia.pipeline.jobs import replay as job

    try:
        conditions = list(_of_records(addresses, where))
        found = (
            job.first_sent(inputs.history(job.HISTORY_COLUMNS))
            if from_history
            else inputs.messages(job.COLUMNS)
        )
        return job.candidates(found, *conditions, of_keys=of_keys)
    except PySparkException as error:
        if where is None:
            raise
        reason = str(error).splitlines()[0]
        raise click.UsageError(f"--where is not understood: {reason}") from error


def _messages(
    found: "DataFrame", through: int, bodies: "BodyReader | None"
) -> Iterable[ReplayMessage]:
    for row in found.where(f"place > {through:d}").orderBy("place").toLocalIterator():
        large = _large(row, bodies) if row["large"] else None
        body = bytes(row["body"]) if large is None else b""
        yield ReplayMessage(row["place"], row["destination"], dict(row["headers"]), body, large)


def _large(row: "Row", bodies: "BodyReader | None") -> LargePieces:
    if bodies is None or row["large_id"] is None:
        raise WrongInput(
            f"message {row['place']} is a large one, whose body an older Orthia did not export:"
            " leave it out with --where 'NOT large', or export again"
        )
    body = LargeBody(row["large_id"], row["body_size"], row["large_crc32"])
    return LargePieces(body.size, partial(bodies.pieces, body))


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    console = Console(file=sys.stderr)
    columns = ("sent", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("sent", total=total)
        yield lambda count: bar.advance(task, count)


def _print(
    summary: Rows, report: ReplayReport | None, bad: Rows, corrupt: int, *, as_json: bool
) -> None:
    total = sum(row["messages"] for row in summary)
    if as_json:
        sent = None if report is None else vars(report)
        print_json(
            {
                "selected": summary,
                "messages": total,
                "sent": sent,
                "corrupt": corrupt,
                "corrupt_listed": bad,
            }
        )
        return
    show("Selected", summary, ("destination", "messages", "body_bytes", "large", "first", "last"))
    show_unreadable(bad, corrupt, "They are left out")
    if report is None:
        click.echo("A dry run: nothing was sent. Add --send and --name to send.")
    else:
        before = total - report.sent
        already = f"; {before:,} were sent before" if before else ""
        click.echo(f"sent {report.sent:,} in {report.elapsed_seconds:.1f} s{already}")
