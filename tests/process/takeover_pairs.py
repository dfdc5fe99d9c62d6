"""What tests of features over a takeover share: pairs on each store, and a client of receipts."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress, Connection, ServerFrame
from tests.conftest import EVERY_DBMS, Servers
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import NodeProcess
from tests.support.servers import SqliteServer
from tests.support.waiting import wait_until

STORES = [*EVERY_DBMS, "files"]
PLACES = {"in memory": "", "paged": "<max-size-messages>2</max-size-messages>"}
"""Settings of addresses with which queues are in memory, or beyond two messages in the store."""
Pair = tuple[NodeProcess, NodeProcess]


@contextlib.contextmanager
def pair_on(place: str, core: str, servers: Servers, directory: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup, on one of ``STORES``."""
    if place == "files":
        of_store = "<journal-type>NIO</journal-type>"
    else:
        server = SqliteServer(directory) if place == "sqlite" else servers(place)
        settings = server.settings(server.create_database())
        of_store = store(directory, settings, "lease", files=False)
    with file_cluster(directory, of_store + core) as nodes:
        yield nodes.pair()


@pytest.fixture(params=STORES)
def pair(
    request: pytest.FixtureRequest, core: str, shared_servers: Servers, tmp_path: Path
) -> Iterator[Pair]:
    """Give a live node that serves and its backup, with what the module's ``core`` says."""
    with pair_on(request.param, core, shared_servers, tmp_path) as nodes:
        yield nodes


class Client:
    """A client of one node that waits for its receipts."""

    def __init__(self, node: NodeProcess, client_id: str | None = None) -> None:
        address = BrokerAddress("127.0.0.1", node.port)
        # Without heart-beats: it is silent while another client is looked at.
        self._connection = Connection.open(
            address, client_id=client_id, timeout_seconds=120, heart_beat_ms=0
        )
        self.receipts = 0
        self.messages: list[ServerFrame] = []

    def hear(self) -> list[ServerFrame]:
        """Return the messages that came and that nobody has taken out yet."""
        for frame in self._connection.exchange(0.05):
            self.receipts += frame.command == "RECEIPT"
            if frame.command == "MESSAGE":
                self.messages.append(frame)
        return self.messages

    def rejects(self, queue: str) -> None:
        """Reject the next message of a queue."""
        wait_until(self.hear, what=f"a message of {queue}")
        self.says("NACK", {"id": self.messages.pop().headers["ack"]})

    def says(self, command: str, headers: dict[str, str], body: str = "") -> None:
        """Send a frame, with headers of any name, and wait until it is done."""
        before = self.receipts
        self._connection.send(command, {**headers, "receipt": command}, body.encode())

        def is_done() -> bool:
            self.hear()
            return self.receipts > before

        wait_until(is_done, what=f"the receipt of {command}")

    def sends(self, queue: str, body: str, **headers: str) -> None:
        """Send a message with headers that are named as they are."""
        destination = queue if queue.startswith("/") else f"/queue/{queue}"
        self.says("SEND", {"destination": destination, **headers}, body)

    def takes(self, count: int, queue: str, **headers: str) -> list[str]:
        """Take so many messages, acknowledge them, and no more are there; return them."""
        self.messages.clear()
        destination = queue if queue.startswith("/") else f"/queue/{queue}"
        said = {"id": queue, "destination": destination, "ack": "client-individual", **headers}
        self.says("SUBSCRIBE", said)
        answered = 0

        def have_come() -> bool:
            nonlocal answered
            self.hear()
            for frame in self.messages[answered:]:
                self._connection.send("ACK", {"id": frame.headers["ack"]})
                answered += 1
            return answered >= count

        wait_until(have_come, what=f"{count} messages of {queue}")
        self.says("UNSUBSCRIBE", {"id": queue})
        return [frame.body.decode() for frame in self.messages]

    def writes(self, command: str, headers: dict[str, str], body: str = "") -> None:
        """Send a frame, and do not wait until it is done."""
        self._connection.send(command, headers, body.encode())
        self.hear()

    def holds(self, count: int, queue: str, **headers: str) -> list[str]:
        """Have so many messages of a queue, not acknowledged; return their bodies."""
        self.messages.clear()
        destination = queue if queue.startswith("/") else f"/queue/{queue}"
        said = {"id": queue, "destination": destination, "ack": "client-individual"}
        self.says("SUBSCRIBE", {**said, **{n.replace("_", "-"): v for n, v in headers.items()}})
        wait_until(lambda: len(self.hear()) >= count, what=f"{count} messages of {queue}")
        return [frame.body.decode() for frame in self.messages]

    def acknowledges(self, count: int) -> None:
        """Acknowledge the first messages of those that are there."""
        for _ in range(count):
            self.says("ACK", {"id": self.messages.pop(0).headers["ack"]})

    def browses(self, queue: str) -> list[str]:
        """Look through a queue until its end is told; return the bodies of what it has."""
        self.messages.clear()
        said = {"id": queue, "destination": f"/queue/{queue}", "browser": "true"}
        self.says("SUBSCRIBE", said)

        def has_ended() -> bool:
            return any(frame.headers.get("browser") == "end" for frame in self.hear())

        wait_until(has_ended, what=f"the end of {queue}")
        self.says("UNSUBSCRIBE", {"id": queue})
        *shown, end = self.messages
        assert end.headers.get("browser") == "end", "something came after the end"
        return [frame.body.decode() for frame in shown]

    def close(self) -> None:
        """Be gone without a word."""
        self._connection.close()


@contextlib.contextmanager
def connecting() -> Iterator[Callable[..., Client]]:
    """Give what makes a client, which the end of the block closes."""
    with contextlib.ExitStack() as closing:

        def made(node: NodeProcess, client_id: str | None = None) -> Client:
            client = Client(node, client_id)
            closing.callback(client.close)
            return client

        yield made
