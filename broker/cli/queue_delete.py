"""``queue delete``: by the API of the live node, or by STOMP as any client with the rights."""

import json
from http import HTTPStatus
from typing import Final

import click

from orthia.broker.cli.client_options import link_to
from orthia.broker.cli.group import example
from orthia.broker.cli.managing import NodeOptions, json_option, node_options, question, yes_option
from orthia.broker.cli.node_options import HostPort
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.rendering import print_json
from orthia.broker.client.connection import (
    BrokerAddress,
    BrokerRefused,
    Connection,
    ConnectionLost,
)
from orthia.broker.client.failover import FailoverLink
from orthia.broker.node.exit_codes import ExitCode

_MANAGEMENT: Final = "activemq.management"
_ABSENT: Final = "there is no queue"
_DESTINATION_PREFIX: Final = "/queue/"
_WAIT_SECONDS: Final = 1.0


@click.command("delete", epilog=example("orthia queue delete old.orders --config broker.xml"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also with messages, which are gone, and consumers.")
@yes_option
@json_option
@click.option(
    "--broker",
    "brokers",
    type=HostPort(with_tls=True),
    multiple=True,
    help="Ask by STOMP instead, without a question, where a node accepts clients; give both nodes"
    " of a pair. By TLS: ssl://HOST:PORT?trustStorePath=FILE.",
)
@click.option(
    "--reconnect-timeout",
    type=FiniteRange(0),
    default=60.0,
    show_default=True,
    help="With --broker: seconds to look for a node that serves, at the start and after a loss.",
)
@node_options
def delete(
    names: tuple[str, ...],
    node: NodeOptions,
    brokers: tuple[BrokerAddress, ...],
    reconnect_timeout: float,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete queues, through the live node.

    A queue with messages or consumers stays, unless forced; a configured one has to be taken out of
    broker.xml first. The user needs the permissions manage on activemq.management, and
    deleteDurableQueue and deleteAddress on the queue's address. Exit code 1 if any queue stays.
    """
    deleting: _ByApi | _Deleting
    if brokers:
        if node.is_given:
            raise click.UsageError("Say where to ask: --broker, or --management or --config.")
        link = link_to(brokers, node.user, node.password, reconnect_timeout)
        deleting = _Deleting(link, force=force)
    else:
        deleting = _ByApi(node, force=force)
        if force and not yes:
            deleting.count(names)
            question(deleting.question(), yes=False)
    for name in names:
        deleting.delete(name)
        if not as_json:
            click.echo(deleting.said(name), err=name in deleting.refused)
    deleting.close()
    if as_json:
        print_json({"deleted": deleting.deleted, "refused": deleting.refused})
    if deleting.refused:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


class _ByApi:
    """Deletes one queue after the other by the API of the live node."""

    def __init__(self, node: NodeOptions, *, force: bool) -> None:
        self._node = node
        self._force = force
        self._counted: dict[str, tuple[int, int]] = {}
        self.deleted: dict[str, int | None] = {}
        """By name how many messages went with it."""
        self.refused: dict[str, str] = {}
        """By name why it stays."""

    def count(self, names: tuple[str, ...]) -> None:
        """Find out what the queues have; raises ManagementError, as for one that is not there."""
        for name in names:
            view = self._node.client.get("queues", name)
            self._counted[name] = (view["messages"], view["consumers"])

    def question(self) -> str:
        """Return what is asked before queues are deleted with what they have."""
        messages = sum(one for one, _ in self._counted.values())
        consumers = sum(one for _, one in self._counted.values())
        number = len(self._counted)
        what = f"queue {next(iter(self._counted))!r}" if number == 1 else f"{number:,} queues"
        return f"Delete {what} with {_messages(messages)} and {_messages(consumers, 'consumer')}?"

    def delete(self, name: str) -> None:
        """Delete a queue; raises ManagementError."""
        from orthia.broker.client.management import ManagementRefused

        try:
            self.deleted[name] = self._node.client.delete(
                "queues", name, force=self._force or None
            )["deleted"]
        except ManagementRefused as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                raise
            self.refused[name] = f"{error}{_the_name_meant(name, str(error))}"

    def close(self) -> None:
        """Nothing is open between two requests."""

    def said(self, name: str) -> str:
        """Return what became of a queue, for a person."""
        if name in self.refused:
            return f"{name}: {self.refused[name]}"
        return f"{name}: deleted, with {_messages(self.deleted[name] or 0)}"


def _messages(number: int, noun: str = "message") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
        return f"{name}: deleted, with {_messages(messages)}"
