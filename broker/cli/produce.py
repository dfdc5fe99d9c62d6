"""``produce``: numbered messages by hand, and a smoke test by exit code."""

from collections.abc import Callable
from typing import Any, Final

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
from orthia.broker.client.traffic import Producer

_MOST_BYTES: Final = 1024**3
"""As much as a node takes unless it is configured to take more: a body is made in memory."""


@click.command(
    epilog=example(
        "orthia produce --broker node-a:61613 --broker node-b:61613 \\",
        "    --destination /queue/orders --count 10000 --size 1024 --rate 500",
    )
)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(0, _MOST_BYTES),
    default=1024,
    show_default=True,
    help="Bytes of a body.",
)
@click.option("--text", help="Body of every message, instead of --size bytes.")
@click.option("--rate", type=FiniteRange(0.001), help="Messages a second, at most.")
@click.option(
    "--outstanding",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Messages that may wait for their receipt; 1 waits for each.",
)
@click.option(
    "--persistent/--no-persistent", default=True, show_default=True, help="Survive a takeover."
)
@click.option(
    "--duplicate-ids/--no-duplicate-ids",
    default=None,
    help="Give each message a duplicate id, so that one that is sent again is stored once."
    "  [default: duplicate-ids, unless --no-persistent]",
)
@client_options
def produce(
    count: int,
    size: int,
    text: str | None,
    rate: float | None,
    outstanding: int,
    *,
    persistent: bool,
    duplicate_ids: bool | None,
    destination: str,
    as_json: bool,
    **connection: Any,
) -> None:
    """Send numbered messages, each with a receipt, through failovers.

    A message that had no receipt when the connection broke is sent again to the node that serves
    then, which stores it only if no node has. Exit code 0 only if every message has its receipt.
    """
    link = link_to(**connection)
    with progress_of("sent", count, shown=not as_json) as advance:
        producer = Producer(
            link,
            destination,
            body=_bodies(size, text),
            count=count,
            outstanding=outstanding,
            rate=rate,
            persistent=persistent,
            duplicate_ids=persistent if duplicate_ids is None else duplicate_ids,
            on_confirmed=lambda _: advance(1),
        )
        trouble = run_traffic(producer)
    tell_outcome(producer.report, link, "sent", "sent again", trouble, as_json=as_json)


def _bodies(size: int, text: str | None) -> Callable[[int], bytes]:
    """Return what makes the body of message n: ``text``, or ``message n`` padded to ``size``."""
    if text is not None:
        fixed = text.encode()
        return lambda _: fixed
    padding = b"." * size

    def numbered(number: int) -> bytes:
        return (b"message %d " % number + padding)[:size]

    return numbered
