"""``scheduled``: what is to be delivered later, of the live node, or of the store."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    live_options,
    node_options,
    or_of_store,
    question,
    yes_option,
)
from orthia.broker.cli.opening import opened
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.cli.views import print_many
from orthia.broker.node.exit_codes import ExitCode

if TYPE_CHECKING:
    from orthia.journal.sql.scheduled import ScheduledMessage

_MOST: Final = 1_000
_OF_A_PAGE: Final = 500
_COLUMNS: Final = {
    "message": "id",
    "due": "due-ms",
    "destination": "destination",
    "queue": "queue",
    "recurring": "recurring",
    "bytes": "size",
}


@click.group(cls=CommandGroup, epilog=example("orthia scheduled list --config broker.xml"))
def scheduled() -> None:
    """Look at messages that are to be delivered later, and cancel them."""


@scheduled.command("list", epilog=example("orthia scheduled list orders --config broker.xml"))
@click.argument("queue", required=False)
@store_options
@live_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_MOST,
    show_default=True,
    help="How many messages are shown at most.",
)
@click.option("--store", "from_store", is_flag=True, help="What the database has, in any case.")
@json_option
def list_(
    node: NodeOptions,
    store: StoreOptions,
    queue: str | None,
    *,
    limit: int,
    from_store: bool,
    as_json: bool,
) -> None:
    """Show messages that are to be delivered later, the earliest first.

    Of all destinations, or of those that go to one QUEUE. If no live node answers, or with --store,
    the database is read, where QUEUE is the one that they wait in, such as
    orthia.scheduled.anycast.NAME.
    """
    node = node.of_store(store)
    found = None if from_store else or_of_store(node, lambda: _pages(node, queue, limit))
    if found is not None:
        print_many(found, _COLUMNS, right=("message", "bytes"), as_json=as_json)
        return
    from orthia.journal.sql.scheduled import list_scheduled

    settings = store.resolve(
        instead="see `orthia data print`, and `orthia scheduled list` while its node is live"
    )
    with opened(settings) as database:
        stored = list_scheduled(database, settings, queue, limit)
    if as_json:
        print_json([_as_dict(one) for one in stored])
        return
    print_table(("message", "due", "queue", "address"), (_row(one) for one in stored), right=(0,))


def _pages(node: NodeOptions, queue: str | None, limit: int) -> list[dict[str, Any]]:
    path = ("scheduled",) if queue is None else ("queues", queue, "scheduled")
    found: list[dict[str, Any]] = []
    after: str | None = None
    while len(found) < limit:
        most = min(limit - len(found), _OF_A_PAGE)
        page = node.client.get(*path, after=after, limit=most)
        found += page["messages"]
        after = page["next"]
        if after is None:
            break
    return found


def _as_dict(one: "ScheduledMessage") -> dict[str, object]:
    return {
        "message": one.seq,
        "due": one.due.isoformat(),
        "queue": one.queue and one.queue.name,
        "address": one.queue and one.queue.address,
    }


def _row(one: "ScheduledMessage") -> tuple[object, ...]:
    names = ("(unknown)", "") if one.queue is None else (one.queue.name, one.queue.address)
    return one.seq, f"{one.due:%Y-%m-%d %H:%M:%S}Z", *names


@scheduled.command("cancel", epilog=example("orthia scheduled cancel 4711 --config broker.xml"))
@click.argument("messages", nargs=-1, required=True, type=int, metavar="MESSAGE...")
@yes_option
@json_option
@node_options
def cancel(node: NodeOptions, messages: tuple[int, ...], *, yes: bool, as_json: bool) -> None:
    """Delete messages that are to be delivered later, through the live node.

    MESSAGE is as `orthia scheduled list` shows it. Exit code 1 if any is not there any more: it was
    delivered, or somebody cancelled it.
    """
    from orthia.broker.client.management import ManagementRefused

    these = "1 message that is" if len(messages) == 1 else f"{len(messages):,} messages that are"
    question(f"Delete {these} to be delivered later?", yes=yes)
    cancelled: list[int] = []
    absent: list[int] = []
    for one in messages:
        try:
            node.client.delete("scheduled", one)
        except ManagementRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            absent.append(one)
        else:
            cancelled.append(one)
    if as_json:
        print_json({"cancelled": cancelled, "absent": absent})
    else:
        click.echo(f"cancelled {len(cancelled):,} of {len(messages):,}")
        for one in absent:
            click.echo(f"message {one} is not to be delivered later", err=True)
    if absent:
        click.get_current_context().exit(ExitCode.INCOMPLETE)
