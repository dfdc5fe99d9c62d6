"""A client whose message finds no room sends it and what followed again: all is there in order.

The journal is a real one, whose writer the test holds up and whose store it fills.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orthia.broker.core.broker import Broker
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.settings import ClientLimits
from orthia.database import NoRoom
from orthia.journal.engine.batch import Batch
from tests.core.support import SETTINGS, opened
from tests.journal.support import FileJournalStore, JournalStore, SqlJournalStore, threads_of
from tests.stomp.support import SocketDouble
from tests.support.servers import SqliteServer
from tests.support.waiting import wait_until

QUEUE = "/queue/orders"
LIMITS = replace(ClientLimits(), min_large_message_size=1_000)


class Node:
    """A core on a real journal, whose store takes nothing at first and is slow to say so."""

    def __init__(self, store: JournalStore) -> None:
        self.loop = store.loop
        journal = store.open()
        self.journal = journal
        self.broker = opened(
            Broker(SETTINGS, journal, lease_valid=lambda: True, call_later=self._call_later)
        )
        self.is_full = False
        self.goes_on = threading.Event()
        self.refused = 0
        self.bound = 0
        writes = threads_of(journal).writer._store
        self._take = writes.store
        writes.store = self._store  # type: ignore[method-assign]

    def _store(self, batch: Batch) -> None:
        if self.is_full and (batch.messages or batch.rows or batch.binding_rows):
            assert self.goes_on.wait(60)
            self.is_full = False  # there is room again, as soon as one was refused
            self.refused += 1
            raise NoRoom("disk full")
        self._take(batch)
        self.bound += len(batch.binding_rows)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if not seconds:
            self.loop.post(callback)


class Client:
    """A client that sends what it likes, and reads what came."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frames: list[Frame] = []
        self.bound: list[int] = []
        """How many queues the store had when each RECEIPT came."""
        self._parser = FrameParser(ClientLimits())
        self.session = StompConnection(
            node.broker,
            StompOptions(LIMITS),
            SocketDouble(node.broker, self._write),
            lambda: 0.0,
        )
        self.send("CONNECT", accept_version="1.2", host="h")
        self._parser.version = Version.V1_2

    def _write(self, data: bytes) -> int:
        frames = list(self._parser.feed(data))
        self.frames += frames
        self.bound += [self.node.bound for frame in frames if frame.command == "RECEIPT"]
        return len(data)

    def send(self, command: str, body: str = "", **headers: str) -> None:
        """Send a frame; header names have underscores for dashes."""
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        self.session.receive(f"{command}\n{lines}\n{body}\0".encode())

    def send_all(self) -> None:
        """Send messages of every kind, none of which waits for the one before."""
        self.send("SEND", "first", destination=QUEUE, receipt="first")
        self.send("SEND", "second", destination=QUEUE, receipt="second")
        self.send("SEND", "third", destination=QUEUE, persistent="false")
        self.send("BEGIN", transaction="t")
        self.send("SEND", "fourth", destination=QUEUE, transaction="t")
        self.send("COMMIT", transaction="t", receipt="fourth")
        self.send("SEND", "fifth".ljust(5_000), destination=QUEUE, receipt="fifth")
        self.send("SEND", "sixth", destination=QUEUE, receipt="sixth")

    def answers(self) -> list[str]:
        """Return the receipts that came, and what an ERROR names."""
        return [
            f"{frame.command} {frame.get(b'receipt-id')}"
            for frame in self.frames
            if frame.command in ("RECEIPT", "ERROR")
        ]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Run the loop until something is true."""
        self.node.loop.run_until(condition, what)


@pytest.fixture(params=["file", "sqlite"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """Give a node on an empty store."""
    store: JournalStore
    if request.param == "file":
        store = FileJournalStore(tmp_path)
    else:
        server = SqliteServer(tmp_path)
        store = SqlJournalStore(server.settings(server.create_database()))
    yield Node(store)
    store.close()


NAMES = ["first", "second", "third", "fourth", "fifth", "sixth"]


def test_what_is_sent_again_after_a_refusal_is_there_once_and_in_order(node: Node) -> None:
    """The first finds no room, and what follows it would."""
    client = Client(node)
    client.send("SEND", "before", destination=QUEUE, receipt="before")
    client.wait(lambda: client.answers() == ["RECEIPT before"], "the queue is there")
    node.is_full = True
    client.send_all()
    # The large one comes to the journal too, while the writer is at the first.
    client.wait(lambda: node.journal.intake._rows >= 5, "all but the last are on their way")
    node.goes_on.set()
    client.wait(lambda: client.session.is_closed, "the client is refused")
    assert client.answers() == ["RECEIPT before", "ERROR first"]
    assert "no room left" in client.frames[-1].body.decode()
    client.wait(lambda: not node.journal.intake._rows, "everything is answered")
    assert node.refused == 1
    assert node.broker.depths() == {"orders": 1}
    client.wait(lambda: not node.broker.store_use.is_closed, "there is room again")
    again = Client(node)
    again.send_all()
    again.wait(lambda: "RECEIPT sixth" in again.answers(), "all is stored")
    consumer = Client(node)
    consumer.send("SUBSCRIBE", destination=QUEUE, id="s", ack="auto")

    def received() -> list[str]:
        return [
            frame.body.decode().strip() for frame in consumer.frames if frame.command == "MESSAGE"
        ]

    consumer.wait(lambda: len(received()) >= 7, "all are delivered")
    assert received() == ["before", *NAMES]
    wait_until(lambda: node.loop.run_posted() == 0, what="nothing is left to do")
    assert len(received()) == 7


def test_whoever_subscribes_hears_of_it_once_there_was_room_for_the_queue(node: Node) -> None:
    """Others are answered meanwhile; a queue that is not stored a successor would not have."""
    client, other = Client(node), Client(node)
    node.is_full = True
    client.send("SUBSCRIBE", destination=QUEUE, id="s", receipt="bound")
    client.send("SUBSCRIBE", destination="/queue/another", id="t", receipt="bound, too")
    other.send("SEND", "x", destination="/topic/nobody-hears", receipt="other")
    client.wait(lambda: node.journal.intake._rows >= 2, "the queues are on their way")
    node.goes_on.set()
    client.wait(lambda: len(client.answers()) == 2, "both are stored")
    assert client.answers() == ["RECEIPT bound", "RECEIPT bound, too"]
    assert client.bound[-1] == 2
    assert min(client.bound) >= 1
    assert other.answers() == ["RECEIPT other"]
    assert node.refused == 1
