"""``consume``: what is in a queue or topic, acknowledged, and a smoke test by exit code."""

import sys
from typing import Any

import click

from orthia.broker.cli.client_options import (
    client_options,
    link_to,
    run_traffic,
    tell_outcome,
)
from orthia.broker.cli.group import example
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.progress import progress_of
from orthia.broker.cli.rendering import visible
from orthia.broker.client.connection import (
    ServerFrame,
)
from orthia.broker.client.traffic import Consumer


@click.command(
    epilog=example(
        "orthia consume --destination /queue/orders --count 10000 --timeout 30",
        "orthia consume --destination /queue/orders --selector \"colour = 'red'\" --print",
    )
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
@click.option(
    "--selector",
    help="Take those messages only of which it is true, as \"colour = 'red' AND size > 3\".",
)
@client_options
def consume(
    count: int | None,
    timeout: float,
    ack: str,
    selector: str | None,
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
    # A terminal shows either the bodies or how many there were.
    told = not (as_json or (print_bodies and sys.stdout.isatty()))
    with progress_of("received", count, shown=told) as advance:

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
            selector=selector,
            on_message=received,
        )
        trouble = run_traffic(consumer)
    tell_outcome(consumer.report, link, "received", "received again", trouble, as_json=as_json)
