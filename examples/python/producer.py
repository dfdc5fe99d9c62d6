"""Send orders to whichever node of a pair serves, and survive a takeover.

    python producer.py [COUNT [HOST:PORT ...]]

An order is stored once its RECEIPT has come. Without a RECEIPT the producer connects to the other
node and sends the order again; by its duplicate id the broker stores it once. STOMP_LOGIN and
STOMP_PASSCODE are the login, where one is wanted.
"""

import os
import queue
import sys
import time
import uuid
from contextlib import suppress

import stomp
from stomp.exception import StompException
from stomp.utils import Frame

QUEUE = "/queue/orders"
NODES = ["127.0.0.1:61613", "127.0.0.1:61614"]
PAUSE_SECONDS = 0.02
"""Between two orders, to leave time for killing a node."""
LOST = ""
"""Stands for the end of a connection among the ids of receipts."""


class Answers(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """What the broker answers on one connection; a thread of stomp.py calls these methods."""

    def __init__(self) -> None:
        self.queue: queue.Queue[str | Exception] = queue.Queue()

    def on_receipt(self, frame: Frame) -> None:
        """Note that a message is stored."""
        self.queue.put(frame.headers["receipt-id"])

    def on_error(self, frame: Frame) -> None:
        """Note that the broker refuses what it was asked for; it ends the connection."""
        self.queue.put(PermissionError(frame.headers.get("message")))

    def on_disconnected(self) -> None:
        """Note that the node is gone."""
        self.queue.put(LOST)

    def wait_for(self, receipt: str) -> bool:
        """Wait for ``receipt``; False if the connection is lost. Raises what the broker refused."""
        while True:
            answer = self.queue.get()
            if isinstance(answer, Exception):
                raise answer
            if answer in (receipt, LOST):
                return answer == receipt


class Producer:
    """Sends messages one by one, each until a node has stored it."""

    def __init__(self, nodes: list[str]) -> None:
        pairs = [node.rsplit(":", 1) for node in nodes]
        self._nodes = [(host, int(port)) for host, port in pairs]
        self._connect()

    def _connect(self) -> None:
        """Connect to the node that serves; a node that waits has no port open."""
        while True:
            self._answers = Answers()
            self._connection = stomp.Connection12(
                self._nodes,
                reconnect_attempts_max=-1,  # stomp.py tries one node after the other for ever
                reconnect_sleep_max=1,
                heartbeats=(10_000, 10_000),  # else a host that is lost is noticed late
            )
            self._connection.set_listener("answers", self._answers)
            try:
                self._connection.connect(
                    os.environ.get("STOMP_LOGIN"), os.environ.get("STOMP_PASSCODE"), wait=True
                )
            except (StompException, OSError, AttributeError):
                self._answers.wait_for("nothing")  # raises why, if the broker refused the login
                self._nodes.append(self._nodes.pop(0))  # a proxy may answer for a node that waits
                time.sleep(0.5)
                continue
            print("connected", flush=True)
            return

    def send(self, body: str, duplicate_id: str) -> None:
        """Return once ``body`` is stored."""
        while True:
            headers = {"_AMQ_DUPL_ID": duplicate_id}
            # Where the connection ends during the call, stomp.py may forget its socket amid it.
            with suppress(StompException, OSError, AttributeError):
                self._connection.send(QUEUE, body, receipt=duplicate_id, headers=headers)
            if self._answers.wait_for(duplicate_id):
                return
            print("the connection is lost", flush=True)
            self._connect()

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


def main(count: str = "1000", *nodes: str) -> None:
    """Send ``count`` orders."""
    run = uuid.uuid4()  # the ids of another run are others
    producer = Producer([*nodes] or NODES)
    for number in range(int(count)):
        producer.send(f"order {number}", f"{run}-{number}")
        print(f"stored order {number}", flush=True)
        time.sleep(PAUSE_SECONDS)
    producer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
