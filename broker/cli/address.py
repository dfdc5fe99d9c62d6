"""``address``: the addresses of the live node."""

from typing import Any, Final

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
from orthia.broker.cli.views import print_many, print_one, print_outcome
from orthia.broker.cli.watching import no_wait_option, run_job

_COLUMNS: Final = {
    "address": "name",
    "types": "routing-types",
    "queues": "queues",
    "messages": "messages",
    "bytes": "bytes",
    "subscribers": "subscribers",
    "paused": "paused",
}


@click.group(
    cls=CommandGroup,
    epilog=example("orthia address list --config broker.xml"),
    meant={
        "stat": "`orthia address list` shows them all, `orthia address show ADDRESS` one",
        "update": "`orthia address create` gives an address another type; its settings are in"
        " broker.xml",
    },
)
def address() -> None:
    """Look at the addresses of the live node, create, pause, purge and delete them."""


@address.command("list", epilog=example("orthia address list --search orders"))
@search_option
@sort_option
@limit_option
@json_option
@node_options
def list_(
    node: NodeOptions, *, search: str | None, sort: str | None, limit: int | None, as_json: bool
) -> None:
    """Show the addresses."""
    found = all_of(node, "addresses", search=search, sort=sort, limit=limit)
    print_many(found, _COLUMNS, right=("messages", "bytes", "subscribers"), as_json=as_json)


@address.command(epilog=example("orthia address show orders --settings"))
@click.argument("address")
@click.option("--settings", is_flag=True, help="Also the settings in effect.")
@json_option
@node_options
def show(node: NodeOptions, address: str, *, settings: bool, as_json: bool) -> None:
    """Show an ADDRESS: its queues, what it holds and what limits it."""
    found: dict[str, Any] = node.client.get("addresses", address)
    if settings:
        found = {**found, "settings": node.client.get("addresses", address, "settings")}
    shown = dict(found)
    in_effect = shown.pop("settings", {})
    if as_json:
        print_json(found)
        return
    print_one(shown, as_json=False)
    if settings:
        click.echo()
        print_one(in_effect, as_json=False)


@address.command(epilog=example("orthia address create orders --routing-type anycast"))
@click.argument("address")
@click.option(
    "--routing-type",
    type=click.Choice(["anycast", "multicast"], case_sensitive=False),
    required=True,
    help="The type of its queues.",
)
@json_option
@node_options
def create(node: NodeOptions, address: str, *, routing_type: str, as_json: bool) -> None:
    """Create an ADDRESS."""
    found = node.client.post("addresses", body={"name": address, "routing-type": routing_type})
    sentence = f"created address {address!r}, {shown_types(found)}"
    print_outcome(found, sentence, as_json=as_json)


def shown_types(found: dict[str, Any]) -> str:
    """Return the types of an address as people read them."""
    return " and ".join(one.lower() for one in found["routing-types"])


@address.command(epilog=example("orthia address delete orders"))
@click.argument("address")
@json_option
@node_options
def delete(node: NodeOptions, address: str, *, as_json: bool) -> None:
    """Delete an ADDRESS that has no queue and so no message."""
    found = node.client.delete("addresses", address)
    print_outcome(found, f"deleted address {address!r}", as_json=as_json)


@address.command(epilog=example("orthia address purge orders"))
@click.argument("address")
@yes_option
@no_wait_option
@json_option
@node_options
def purge(node: NodeOptions, address: str, *, yes: bool, no_wait: bool, as_json: bool) -> None:
    """Delete all messages of all queues of an ADDRESS, but those that consumers have."""
    found = node.client.get("addresses", address)
    number, queues = found["messages"], len(found["queues"])
    question(
        f"Delete all messages of address {address!r}, {number:,} in {queues:,}"
        f" queue{'' if queues == 1 else 's'} at this moment?",
        yes=yes,
    )
    run_job(node, "addresses", address, "purge", no_wait=no_wait, as_json=as_json)


@address.command(epilog=example("orthia address pause orders"))
@click.argument("address")
@click.option("--until-restart", is_flag=True, help="Not after a restart or a takeover any more.")
@json_option
@node_options
def pause(node: NodeOptions, address: str, *, until_restart: bool, as_json: bool) -> None:
    """Deliver nothing from the queues of an ADDRESS until it is resumed; sends go on."""
    found = node.client.post("addresses", address, "pause", body={"persist": not until_restart})
    sentence = f"address {address!r} is paused, with {found['messages']:,} messages"
    print_outcome(found, sentence, as_json=as_json)


@address.command(epilog=example("orthia address resume orders"))
@click.argument("address")
@json_option
@node_options
def resume(node: NodeOptions, address: str, *, as_json: bool) -> None:
    """Deliver from the queues of an ADDRESS again, but for those paused by themselves."""
    found = node.client.post("addresses", address, "resume")
    sentence = f"address {address!r} is resumed, with {found['messages']:,} messages"
    print_outcome(found, sentence, as_json=as_json)
