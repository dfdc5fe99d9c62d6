"""The commands of ``queue`` that ask the live node."""

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    node_options,
    question,
    yes_option,
)
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.views import print_many, print_one, print_outcome
from orthia.broker.cli.watching import no_wait_option, run_job

MESSAGES_OF_A_PAGE: Final = 500
COLUMNS: Final = {
    "message": "id",
    "priority": "priority",
    "accepted": "timestamp-ms",
    "bytes": "size",
    "attempts": "attempts",
    "delivering": "delivering",
    "returns": "returns",
    "from queue": "origin-queue",
    "body": "body",
}
_Command = TypeVar("_Command", bound=Callable[..., Any])
_selector_option = click.option("--selector", help="Only messages that it matches.")
_ids_option = click.option(
    "--id", "ids", type=int, multiple=True, help="Only the message with this id; repeatable."
)


def _job_options(command: _Command) -> _Command:
    """Give ``command`` the options of a job on chosen messages."""
    decorated: Any = node_options(command)
    for option in (json_option, no_wait_option, _ids_option, _selector_option):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def _chosen(selector: str | None, ids: tuple[int, ...]) -> dict[str, object]:
    return {"selector": selector, "ids": list(ids) or None}


@click.command(epilog=example("orthia queue show orders --config broker.xml"))
@click.argument("queue")
@json_option
@node_options
def show(node: NodeOptions, queue: str, *, as_json: bool) -> None:
    """Show a QUEUE of the live node, and who consumes from it."""
    found = node.client.get("queues", queue)
    consumers = node.client.get("queues", queue, "consumers")["consumers"]
    if as_json:
        print_json({**found, "consumers-of": consumers})
        return
    print_one(found, as_json=False)
    if consumers:
        click.echo()
        print_many(consumers, CONSUMERS, right=("delivering", "settled"))


CONSUMERS: Final = {
    "consumer": "id",
    "connection": "connection",
    "user": "user",
    "client-id": "client-id",
    "queue": "queue",
    "address": "address",
    "selector": "selector",
    "delivering": "delivering",
    "settled": "settled",
    "writable": "writable",
}


_max_consumers: Final = click.option(
    "--max-consumers", type=int, help="How many may consume; -1 any number."
)
_filter: Final = click.option(
    "--filter", help="A selector: it gets only messages that this matches."
)
_options: Final = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option by its name in broker.xml, such as last-value-key=sku; repeatable.",
)


@click.command(
    epilog=example("orthia queue create orders --config broker.xml --option exclusive=true")
)
@click.argument("queue")
@click.option("--address", help="The address it belongs to.  [default: the queue's name]")
@click.option(
    "--routing-type",
    type=click.Choice(["anycast", "multicast"], case_sensitive=False),
    help="How messages reach it.  [default: as its address says]",
)
@click.option("--non-durable", is_flag=True, help="It ends with the node.")
@_max_consumers
@_filter
@_options
@json_option
@node_options
def create(
    node: NodeOptions,
    queue: str,
    options: tuple[str, ...],
    *,
    address: str | None,
    routing_type: str | None,
    non_durable: bool,
    max_consumers: int | None,
    filter: str | None,  # noqa: A002 - the option's name
    as_json: bool,
) -> None:
    """Create a QUEUE at the live node."""
    found = node.client.post(
        "queues",
        body={
            "name": queue,
            "address": address,
            "routing-type": routing_type,
            "durable": not non_durable,
            "max-consumers": max_consumers,
            "options": _given(options, filter),
        },
    )
    kind = found["routing-type"].lower()
    sentence = f"created queue {queue!r} of address {found['address']!r}, {kind}"
    print_outcome(found, sentence, as_json=as_json)


@click.command(epilog=example("orthia queue update orders --config broker.xml --max-consumers 4"))
@click.argument("queue")
@_max_consumers
@_filter
@_options
@json_option
@node_options
def update(
    node: NodeOptions,
    queue: str,
    options: tuple[str, ...],
    *,
    max_consumers: int | None,
    filter: str | None,  # noqa: A002 - the option's name
    as_json: bool,
) -> None:
    """Change options of a QUEUE at once, through the live node; an empty text is none.

    One that broker.xml declares is changed there: nodes notice it by themselves.
    """
    given = _given(options, filter)
    if given is None and max_consumers is None:
        raise click.UsageError("Say what to change: --max-consumers, --filter or --option.")
    found = node.client.patch(
        "queues", queue, body={"max-consumers": max_consumers, "options": given}
    )
    print_outcome(found, f"changed queue {queue!r}", as_json=as_json)


def _given(options: tuple[str, ...], selector: str | None) -> dict[str, Any] | None:
    """Return the options that are given; None if there are none."""
    given = dict(map(_option, options))
    if selector is not None:
        given["filter"] = selector
    return given or None


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--option {text!r} is not NAME=VALUE.")
    try:
        found = json.loads(value)
    except ValueError:
        found = value
    return name, found if isinstance(found, bool | int) else value


@click.command(epilog=example("orthia queue purge orders --config broker.xml"))
@click.argument("queue")
@yes_option
@no_wait_option
@json_option
@node_options
def purge(node: NodeOptions, queue: str, *, yes: bool, no_wait: bool, as_json: bool) -> None:
    """Delete all messages of a QUEUE, but those that consumers have; the queue stays.

    Messages that come while it runs stay, too. Exit code 1 if any message was left.
    """
    number = node.client.get("queues", queue, "count")["messages"]
    question(f"Delete all messages of queue {queue!r}, {number:,} at this moment?", yes=yes)
    run_job(node, "queues", queue, "jobs", body={"kind": "purge"}, no_wait=no_wait, as_json=as_json)


@click.command(
    epilog=example("orthia queue browse orders --selector \"colour = 'red'\" --bodies 1000")
)
@click.argument("queue")
@_selector_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How many messages are shown at most.",
)
@click.option("--after", help="Go on where another browse ended, which said so.")
@click.option(
    "--bodies",
    type=click.IntRange(0),
    default=0,
    metavar="BYTES",
    help="Show bodies of up to so many bytes.",
)
@json_option
@node_options
def browse(
    node: NodeOptions,
    queue: str,
    *,
    selector: str | None,
    limit: int,
    after: str | None,
    bodies: int,
    as_json: bool,
) -> None:
    """Show the first messages of a QUEUE, which stay where they are.

    `orthia message show` shows all of one.
    """
    found: list[dict[str, Any]] = []
    while True:
        page = node.client.get(
            "queues",
            queue,
            "messages",
            selector=selector,
            after=after,
            limit=min(limit - len(found), MESSAGES_OF_A_PAGE),
            body_bytes=bodies,
        )
        found += page["messages"]
        after = page["next"]
        if after is None or len(found) >= limit:
            break
    if as_json:
        print_json({"messages": found, "next": after})
        return
    columns = {name: one for name, one in COLUMNS.items() if bodies or name != "body"}
    print_many(found, columns, right=("message", "priority", "bytes", "attempts", "returns"))
    if after is not None:
        click.echo(f"there may be more: add --after {after}", err=True)


@click.command(epilog=example("orthia queue move orders parked --selector \"kind = 'bad'\""))
@click.argument("queue")
@click.argument("target")
@_job_options
def move(
    node: NodeOptions,
    queue: str,
    target: str,
    ids: tuple[int, ...],
    *,
    selector: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Move messages of a QUEUE to the queue TARGET; all, but those that consumers have.

    Each step is stored as a whole: nothing is lost or doubled, whatever happens.
    """
    body = {"kind": "move", "target": target, **_chosen(selector, ids)}
    run_job(node, "queues", queue, "jobs", body=body, no_wait=no_wait, as_json=as_json)


@click.command(epilog=example("orthia queue copy orders audit --id 4711"))
@click.argument("queue")
@click.argument("target")
@_job_options
def copy(
    node: NodeOptions,
    queue: str,
    target: str,
    ids: tuple[int, ...],
    *,
    selector: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Copy messages of a QUEUE to the queue TARGET."""
    body = {"kind": "copy", "target": target, **_chosen(selector, ids)}
    run_job(node, "queues", queue, "jobs", body=body, no_wait=no_wait, as_json=as_json)


@click.command(epilog=example("orthia queue retry DLQ --config broker.xml"))
@click.argument("queue")
@_job_options
def retry(
    node: NodeOptions,
    queue: str,
    ids: tuple[int, ...],
    *,
    selector: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Send messages of a QUEUE, such as DLQ, back to where each came from.

    `queue browse` counts how often each one returned. Those that do not say where they came from,
    or whose queue is gone, are left; then the exit code is 1.
    """
    body = {"kind": "retry", **_chosen(selector, ids)}
    run_job(node, "queues", queue, "jobs", body=body, no_wait=no_wait, as_json=as_json)


@click.command(epilog=example("orthia queue pause orders --config broker.xml"))
@click.argument("queue")
@click.option("--until-restart", is_flag=True, help="Not after a restart or a takeover any more.")
@json_option
@node_options
def pause(node: NodeOptions, queue: str, *, until_restart: bool, as_json: bool) -> None:
    """Deliver nothing from a QUEUE until it is resumed; sends go on."""
    found = node.client.post("queues", queue, "pause", body={"persist": not until_restart})
    sentence = f"queue {queue!r} is paused, with {found['messages']:,} messages"
    print_outcome(found, sentence, as_json=as_json)


@click.command(epilog=example("orthia queue resume orders --config broker.xml"))
@click.argument("queue")
@json_option
@node_options
def resume(node: NodeOptions, queue: str, *, as_json: bool) -> None:
    """Deliver from a QUEUE again."""
    found = node.client.post("queues", queue, "resume")
    if as_json:
        print_json(found)
    elif found["paused"]:
        click.echo(f"queue {queue!r} is resumed, and waits for its address, which is paused")
    else:
        click.echo(f"queue {queue!r} is resumed, with {found['messages']:,} messages")


@click.command(epilog=example("orthia queue detach orders --config broker.xml"))
@click.argument("queue")
@json_option
@node_options
def detach(node: NodeOptions, queue: str, *, as_json: bool) -> None:
    """Let consumers have a QUEUE again that a stream of the pipeline read.

    They get all that the stream has not acknowledged, though it may have written some of it: detach
    a stream that is over for good, after a last run of it.
    """
    found = node.client.delete("queues", queue, "stream")
    sentence = f"stream {found['id']!r} of user {found['user']!r} reads queue {queue!r} no more"
    print_outcome(found, sentence, as_json=as_json)


COMMANDS: Final = (show, create, update, purge, browse, move, copy, retry, pause, resume, detach)
