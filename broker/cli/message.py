"""``message``: single messages at the live node."""

from pathlib import Path

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    node_options,
    question,
    yes_option,
)
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import PAIR
from orthia.broker.cli.views import print_one, print_outcome, shown
from orthia.broker.cli.watching import no_wait_option, run_job


@click.group(
    cls=CommandGroup,
    epilog=example("orthia message show DLQ 4711"),
    meant={
        "list": "`orthia queue browse QUEUE` shows its messages",
        "browse": "`orthia queue browse QUEUE` shows its messages",
        "move": "`orthia queue move QUEUE TARGET --id MESSAGE` moves one",
        "copy": "`orthia queue copy QUEUE TARGET --id MESSAGE` copies one",
        "retry": "`orthia queue retry QUEUE --id MESSAGE` sends one back",
    },
)
def message() -> None:
    """Look at a message, delete it, or send one."""


@message.command(epilog=example("orthia message show DLQ 4711 --config broker.xml"))
@click.argument("queue")
@click.argument("message", type=int)
@json_option
@node_options
def show(node: NodeOptions, queue: str, message: int, *, as_json: bool) -> None:
    """Show a MESSAGE of a QUEUE, by the id that `orthia queue browse` shows.

    With its headers and its body, unless that has more than 1 MiB.
    """
    found = node.client.get("queues", queue, "messages", message)
    if as_json:
        print_json(found)
        return
    rest = dict(found)
    properties, body = rest.pop("properties"), rest.pop("body")
    print_one(rest, as_json=False)
    if properties:
        click.echo()
        print_one(properties, as_json=False)
    click.echo()
    if body is None:
        click.echo(f"(the body has {found['body-size']:,} bytes and is not shown)", err=True)
    else:
        click.echo(shown("body", body))


@message.command(epilog=example("orthia message delete DLQ 4711 --config broker.xml"))
@click.argument("queue")
@click.argument("messages", nargs=-1, required=True, type=int, metavar="MESSAGE...")
@yes_option
@no_wait_option
@json_option
@node_options
def delete(
    node: NodeOptions,
    queue: str,
    messages: tuple[int, ...],
    *,
    yes: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Delete messages of a QUEUE by their ids.

    If one is not there any more, none is deleted. One that a consumer has is left; then the exit
    code is 1.
    """
    number = len(set(messages))
    these = "1 message" if number == 1 else f"{number:,} messages"
    question(f"Delete {these} of queue {queue!r}?", yes=yes)
    body = {"kind": "delete", "ids": list(messages)}
    run_job(node, "queues", queue, "jobs", body=body, no_wait=no_wait, as_json=as_json)


@message.command(epilog=example("orthia message send /queue/orders --body hello -P colour=red"))
@click.argument("destination")
@click.option("--body", help="Its text.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
    help="A file with its body; - is standard input.",
)
@click.option("--property", "-P", "given", type=PAIR, multiple=True, help="A header; repeatable.")
@click.option("--content-type", help="What the body is, such as application/json.")
@click.option("--priority", type=click.IntRange(0, 9), help="4 if not given.")
@click.option("--non-durable", is_flag=True, help="In memory only.")
@json_option
@node_options
def send(
    node: NodeOptions,
    destination: str,
    given: tuple[tuple[str, str], ...],
    *,
    body: str | None,
    file: Path | None,
    content_type: str | None,
    priority: int | None,
    non_durable: bool,
    as_json: bool,
) -> None:
    """Send a message to a DESTINATION: /queue/NAME, /topic/NAME or the name of an address."""
    if (body is None) == (file is None):
        raise click.UsageError("Say what the body is: --body TEXT or --file FILE.")
    data = None if file is None else _read(file)
    found = node.client.post(
        "messages",
        body={
            "destination": destination,
            "body": body,
            "body-base64": data,
            "properties": dict(given) or None,
            "content-type": content_type,
            "priority": priority,
            "durable": not non_durable,
        },
    )
    print_outcome(found, f"sent to {destination}", as_json=as_json)


def _read(file: Path) -> str:
    import base64

    with click.open_file(str(file), "rb") as opened:
        return base64.b64encode(opened.read()).decode()
