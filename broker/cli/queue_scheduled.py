"""``queue scheduled`` and ``queue cancel``: what is to be delivered later."""

import json
from typing import TYPE_CHECKING, Any, Final

import click

from orthia.broker.cli.client_options import broker_options, link_to
from orthia.broker.cli.group import example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.client.connection import BrokerRefused, Connection, ConnectionLost
from orthia.broker.node.exit_codes import ExitCode

if TYPE_CHECKING:
    from orthia.journal.sql.scheduled import ScheduledMessage

_MANAGEMENT: Final = "activemq.management"
_WAIT_SECONDS: Final = 1.0
_MOST: Final = 1_000


@click.command(epilog=example("orthia queue scheduled --config broker.xml"))
@click.argument("queue", required=False)
@store_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_MOST,
    show_default=True,
    help="How many messages are shown at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def scheduled(store: StoreOptions, queue: str | None, *, limit: int, as_json: bool) -> None:
    """Show messages that are to be delivered later, the earliest first, according to the database.

    Of all destinations, or of one QUEUE as `orthia queue list` names it, such as
    orthia.scheduled.anycast.NAME.
    """
    from orthia.journal.sql.scheduled import list_scheduled

    settings = store.resolve(
        instead="see `orthia data print`, and the metric orthia_queue_messages of the live node"
    )
    with opened(settings) as database:
        found = list_scheduled(database, settings, queue, limit)
    if as_json:
        print_json([_as_dict(one) for one in found])
        return
    print_table(("message", "due", "queue", "address"), (_row(one) for one in found), right=(0,))


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


@click.command(
    epilog=example("orthia queue cancel orthia.scheduled.anycast.orders 4711 --broker node-a:61613")
)
@click.argument("queue")
@click.argument("messages", nargs=-1, required=True, type=int, metavar="MESSAGE...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@broker_options
def cancel(queue: str, messages: tuple[int, ...], *, as_json: bool, **connection: Any) -> None:
    """Delete messages of a QUEUE that are to be delivered later, through the node that serves.

    QUEUE and MESSAGE are as `orthia queue scheduled` shows them; `orthia queue delete --force`
    cancels all of a queue. The user needs the permission manage on activemq.management. Exit code 1
    if any message is not there any more: it was delivered, or somebody cancelled it.
    """
    link = link_to(**connection)
    cancelled: list[int] = []
    absent: list[int] = []
    client: Connection | None = None
    for seq in messages:
        while True:
            client = client or link.connect()
            try:
                count = _ask(client, queue, seq)
            except ConnectionLost as error:
                client.close()
                client = None
                link.lost(error, len(cancelled))
                continue
            except BrokerRefused as error:
                client.close()
                raise click.ClickException(str(error)) from None
            (cancelled if count else absent).append(seq)
            break
    if client is not None:
        client.close()
    if as_json:
        print_json({"cancelled": cancelled, "absent": absent})
    else:
        click.echo(f"cancelled {len(cancelled):,} of {len(messages):,}")
        for seq in absent:
            click.echo(f"message {seq} is not in queue {queue}", err=True)
    if absent:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def _ask(client: Connection, queue: str, seq: int) -> int:
    headers = {
        "destination": _MANAGEMENT,
        "_AMQ_ResourceName": f"queue.{queue}",
        "_AMQ_OperationName": "removeMessage",
        "receipt": str(seq),
    }
    client.send("SEND", headers, json.dumps([seq]).encode())
    while True:
        for frame in client.exchange(_WAIT_SECONDS):
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == str(seq):
                return int(frame.headers.get("deleted-messages", "0"))
