"""Take orders from whichever node of a pair serves, and survive a takeover.

    python consumer.py [HOST:PORT ...]

An order is acknowledged after it is worked on. An order that was not yet acknowledged when a node
died comes again from the other one, so the consumer must recognise it. Ctrl-C ends it. STOMP_LOGIN
and STOMP_PASSCODE are the login, where one is wanted.
"""

import os
import queue
import sys
import time
from contextlib import suppress

import stomp
from stomp.exception import StompException
from stomp.utils import Frame

QUEUE = "/queue/orders"
NODES = ["127.0.0.1:61613", "127.0.0.1:61614"]


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """What comes on one connection; a thread of stomp.py calls these methods."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Frame | Exception] = queue.Queue()

    def on_message(self, frame: Frame) -> None:
        """Keep a message until it is worked on."""
        self._queue.put(frame)

    def on_error(self, frame: Frame) -> None:
        """Note that the broker refuses what it was asked for; it ends the connection."""
        self._queue.put(PermissionError(frame.headers.get("message")))

    def on_disconnected(self) -> None:
        """Note that the node is gone."""
        self._queue.put(ConnectionError("the connection is lost"))

    def next_message(self) -> Frame:
        """Wait for a message. Raises ConnectionError, or PermissionError if the broker refused."""
        came = self._queue.get()
        if isinstance(came, Exception):
            raise came
        return came


def connect(nodes: list[tuple[str, int]], inbox: Inbox) -> stomp.Connection12:
    """Connect to the node that serves, and subscribe.

    Raises ConnectionError if the node ends meanwhile, PermissionError if it refuses the login.
    """
    connection = stomp.Connection12(
        nodes,
        reconnect_attempts_max=-1,  # stomp.py tries one node after the other for ever
        reconnect_sleep_max=1,
        heartbeats=(10_000, 10_000),  # else a host that is lost is noticed late
    )
    connection.set_listener("inbox", inbox)
    try:
        login = os.environ.get("STOMP_LOGIN"), os.environ.get("STOMP_PASSCODE")
        connection.connect(*login, wait=True)
        connection.subscribe(QUEUE, "orders", "client-individual")
    except (StompException, OSError, AttributeError):
        while True:
            inbox.next_message()  # until it raises why
    print("connected", flush=True)
    return connection


def work(nodes: list[tuple[str, int]], done: set[str]) -> None:
    """Work on orders until the connection is lost, which is a ConnectionError."""
    inbox = Inbox()
    connection = connect(nodes, inbox)
    while True:
        message = inbox.next_message()
        order = str(message.body)
        if order in done:
            print(f"again {order}", flush=True)
        else:
            done.add(order)
            print(f"got {order}", flush=True)  # the work on the order goes here
        with suppress(StompException, OSError, AttributeError):  # then the next call says so
            connection.ack(message.headers["ack"])


def main(*addresses: str) -> None:
    """Work on orders until Ctrl-C."""
    pairs = [address.rsplit(":", 1) for address in addresses or NODES]
    nodes = [(host, int(port)) for host, port in pairs]
    done: set[str] = set()  # a real consumer keeps it where it keeps what comes of its work
    while True:
        try:
            work(nodes, done)
        except ConnectionError as error:
            print(error, flush=True)
            nodes.append(nodes.pop(0))  # a proxy may answer for a node that waits
            time.sleep(0.5)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
