"""``consume``: what is in a queue or topic, acknowledged, and a smoke test by exit code."""

import sys
from typing import Any

import click

from orthia.broker.cli.client_options import (
    client_options,
    link_to,
    progress_of,
    run_traffic,
    tell_outcome,
)
from orthia.broker.cli.group import example
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.rendering import visible
from orthia.broker.client.connection import (
    ServerFrame,
)
from orthia.broker.client.traffic import Consumer


@click.command(
    epilog=example("orthia consume --destination /queue/orders --count 10000 --timeout 30")
)
@click.option("--count", type=click.IntRange(1), help="Messages to wait for.  [default: no end]")
@click.option(
    "--timeout",
    type=FiniteRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds without a message after which to stop.",
)
@click.option(
    "--ack",
    type=click.Choice(["client-individual", "client", "auto"]),
    default="client-individual",
    show_default=True,
    help="With auto the broker forgets each message as it sends it, also those beyond --count.",
)
@click.option(
    "--print",
    "print_bodies",
    is_flag=True,
    help="Print each body on a line; on a terminal, control characters as escapes.",
)
@client_options
def consume(
    count: int | None,
    timeout: float,
    ack: str,
    *,
    print_bodies: bool,
    destination: str,
    as_json: bool,
    **connection: Any,
) -> None:
    """Receive messages and acknowledge each, through failovers.

    Exit code 0 only if --count messages came and their acknowledgements are stored.
    """
    if print_bodies and as_json:
        raise click.UsageError("--print and --json both write to standard output; give one of them")
    link = link_to(**connection)
    with progress_of("received", count) as advance:

        def received(frame: ServerFrame) -> None:
            advance(1)
            if not print_bodies:
                return
            # A terminal obeys what is in a message; a file or a program has it byte for byte.
            to_terminal = sys.stdout.isatty()
            click.echo(visible(frame.body.decode(errors="replace")) if to_terminal else frame.body)

        consumer = Consumer(
            link,
            destination,
            count=count,
            idle_timeout_seconds=timeout,
            ack=ack,
            on_message=received,
        )
        trouble = run_traffic(consumer)
    tell_outcome(consumer.report, link, "received", "received again", trouble, as_json=as_json)
