"""``queue delete``: asks the node that serves, as any client with the rights could."""

import json
from typing import Any, Final

import click

from orthia.broker.cli.client_options import broker_options, link_to
from orthia.broker.cli.group import example
from orthia.broker.cli.rendering import print_json
from orthia.broker.client.connection import BrokerRefused, Connection, ConnectionLost
from orthia.broker.client.failover import FailoverLink
from orthia.broker.node.exit_codes import ExitCode

_MANAGEMENT: Final = "activemq.management"
_ABSENT: Final = "there is no queue"
_DESTINATION_PREFIX: Final = "/queue/"
_WAIT_SECONDS: Final = 1.0


@click.command(
    "delete",
    epilog=example(
        "orthia queue delete old.orders --broker node-a:61613 --broker node-b:61613 --user admin"
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also with messages, which are gone, and consumers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@broker_options
def delete(names: tuple[str, ...], *, force: bool, as_json: bool, **connection: Any) -> None:
    """Delete queues, through the node that serves; survives a takeover.

    A queue with messages or consumers stays, unless forced; a configured one has to be taken out of
    broker.xml first. The user needs the permissions manage on activemq.management, and
    deleteDurableQueue and deleteAddress on the queue's address. Exit code 1 if any queue stays.
    """
    deleting = _Deleting(link_to(**connection), force=force)
    for name in names:
        deleting.delete(name)
        if not as_json:
            click.echo(deleting.said(name), err=name in deleting.refused)
    deleting.close()
    if as_json:
        print_json({"deleted": deleting.deleted, "refused": deleting.refused})
    if deleting.refused:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


def _the_name_meant(name: str, refusal: str) -> str:
    """Return what to add where a destination was given for a queue's name."""
    bare = name.removeprefix(_DESTINATION_PREFIX)
    if bare == name or _ABSENT not in refusal:
        return ""
    return f"; the queue of the destination {name} is named {bare}"


class _Deleting:
    """Deletes one queue after the other; an ERROR ends a connection, and the next one is opened."""

    def __init__(self, link: FailoverLink, *, force: bool) -> None:
        self._link = link
        self._force = force
        self._connection: Connection | None = None
        self.deleted: dict[str, int | None] = {}
        """By name how many messages went with it; None if that was not heard."""
        self.refused: dict[str, str] = {}
        """By name why it stays."""

    def delete(self, name: str) -> None:
        """Delete a queue, asking again after a takeover; raises ClientError."""
        asked_before = False
        while True:
            if self._connection is None:
                self._connection = self._link.connect()
            try:
                self.deleted[name] = self._ask(self._connection, name)
            except BrokerRefused as error:
                self.close()
                if asked_before and _ABSENT in str(error):
                    self.deleted[name] = None  # by the node that went before it could say so
                else:
                    self.refused[name] = f"{error}{_the_name_meant(name, str(error))}"
            except ConnectionLost as error:
                self.close()
                self._link.lost(error, len(self.deleted))
                asked_before = True
                continue
            return

    def _ask(self, connection: Connection, name: str) -> int:
        headers = {
            "destination": _MANAGEMENT,
            "_AMQ_ResourceName": "broker",
            "_AMQ_OperationName": "destroyQueue",
            "receipt": name,
        }
        connection.send("SEND", headers, json.dumps([name, self._force]).encode())
        while True:
            for frame in connection.exchange(_WAIT_SECONDS):
                if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == name:
                    return int(frame.headers.get("deleted-messages", "0"))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def said(self, name: str) -> str:
        """Return what became of a queue, for a person."""
        if name in self.refused:
            return f"{name}: {self.refused[name]}"
        messages = self.deleted[name]
        if messages is None:
            return (
                f"{name}: deleted; the node that did it is gone, and did not say how much was in it"
            )
        return f"{name}: deleted, with {messages:,} message{'' if messages == 1 else 's'}"
