"""``consumer``: who consumes from the live node."""

import click

from orthia.broker.cli.connection import close_all, reason_option
from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    node_options,
    question,
    yes_option,
)
from orthia.broker.cli.queue_live import CONSUMERS
from orthia.broker.cli.views import print_many


@click.group(cls=CommandGroup, epilog=example("orthia consumer list --queue orders"))
def consumer() -> None:
    """Look at consumers of the live node, and end them."""


@consumer.command("list", epilog=example("orthia consumer list --queue orders"))
@click.option("--queue", help="Only those of this queue.")
@json_option
@node_options
def list_(node: NodeOptions, *, queue: str | None, as_json: bool) -> None:
    """Show the consumers of all queues and topics."""
    path = ("consumers",) if queue is None else ("queues", queue, "consumers")
    found = node.client.get(*path)["consumers"]
    print_many(found, CONSUMERS, right=("delivering", "settled"), as_json=as_json)


@consumer.command(epilog=example("orthia consumer close 4f2c-17.1 --reason slow"))
@click.argument("consumers", nargs=-1, required=True, metavar="CONSUMER...")
@reason_option
@yes_option
@json_option
@node_options
def close(
    node: NodeOptions, consumers: tuple[str, ...], *, reason: str | None, yes: bool, as_json: bool
) -> None:
    """Disconnect the clients of consumers, by the ids that `orthia consumer list` shows.

    With all that such a client does: no protocol tells it of one consumer alone.
    """
    number = len(consumers)
    these = f"the client of consumer {consumers[0]!r}" if number == 1 else f"{number:,} clients"
    question(f"Disconnect {these}?", yes=yes)
    close_all(node, "consumers", consumers, reason, as_json=as_json)
