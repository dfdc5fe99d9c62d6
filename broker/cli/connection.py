"""``connection``: the clients of the live node."""

from typing import Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    node_options,
    question,
    yes_option,
)
from orthia.broker.cli.paging import all_of, limit_option, search_option, sort_option
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.views import print_many
from orthia.broker.node.exit_codes import ExitCode

_COLUMNS: Final = {
    "connection": "id",
    "from": "address",
    "port": "port",
    "user": "user",
    "client-id": "client-id",
    "acceptor": "acceptor",
    "protocol": "protocol",
    "TLS": "tls",
    "since": "since-ms",
    "consumers": "consumers",
    "received": "received-bytes",
    "sent": "sent-bytes",
    "held": "held-bytes",
}

reason_option: Final = click.option("--reason", help="What the client is told.")


@click.group(cls=CommandGroup, epilog=example("orthia connection list --search 10.0.0.7"))
def connection() -> None:
    """Look at the clients of the live node, and disconnect them."""


@connection.command("list", epilog=example("orthia connection list --sort -held-bytes --limit 10"))
@search_option
@sort_option
@limit_option
@json_option
@node_options
def list_(
    node: NodeOptions, *, search: str | None, sort: str | None, limit: int | None, as_json: bool
) -> None:
    """Show the connections; --search looks at user, client-id, address and id."""
    found = all_of(node, "connections", search=search, sort=sort, limit=limit)
    right = ("port", "consumers", "received", "sent", "held")
    print_many(found, _COLUMNS, right=right, as_json=as_json)


@connection.command(epilog=example("orthia connection close 4f2c-17 --reason maintenance"))
@click.argument("connections", nargs=-1, required=True, metavar="CONNECTION...")
@reason_option
@yes_option
@json_option
@node_options
def close(
    node: NodeOptions,
    connections: tuple[str, ...],
    *,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Disconnect clients, by the ids that `orthia connection list` shows.

    What they had and did not acknowledge goes back to its queues. A client may connect again.
    """
    number = len(connections)
    these = f"client {connections[0]!r}" if number == 1 else f"{number:,} clients"
    question(f"Disconnect {these}?", yes=yes)
    close_all(node, "connections", connections, reason, as_json=as_json)


def close_all(
    node: NodeOptions, kind: str, ids: tuple[str, ...], reason: str | None, *, as_json: bool
) -> None:
    """Close each; exits with 1 if one was not there any more."""
    from orthia.broker.client.management import ManagementRefused

    closed: list[str] = []
    refused: dict[str, str] = {}
    for one in ids:
        try:
            node.client.delete(kind, one, reason=reason)
        except ManagementRefused as error:
            if error.status != _ABSENT:
                raise
            refused[one] = str(error)
        else:
            closed.append(one)
    if as_json:
        print_json({"closed": closed, "refused": refused})
    else:
        for one in closed:
            click.echo(f"closed {one}")
        for why in refused.values():
            click.echo(f"orthia: {why}", err=True)
    if refused:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


_ABSENT: Final = 404
