"""A pair beside a session of somebody else that keeps rows of MESSAGES locked."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from orthia.broker.client.connection import BrokerAddress, Connection
from orthia.config.urls import DatabaseUrl
from tests.conftest import Servers
from tests.process.nodes import Cluster, cluster
from tests.support.servers import url_with_password
from tests.support.waiting import wait_until

LOCKED = "/queue/locked"
RECEIPT = "receipt"


class Client:
    """A client that waits for receipts."""

    def __init__(self, port: int) -> None:
        address = BrokerAddress("127.0.0.1", port)
        self._connection = Connection.open(address, timeout_seconds=120, heart_beat_ms=0)
        self._numbers = itertools.count()
        self.received: list[str] = []
        """The ids by which messages are acknowledged."""
        self.receipts: set[str] = set()

    def send(self, command: str, body: bytes = b"", **headers: str) -> str:
        """Send a frame; return its receipt."""
        receipt = f"r{next(self._numbers)}"
        self._connection.send(command, headers | {RECEIPT: receipt}, body)
        self.look()  # it is on its way only then
        return receipt

    def look(self) -> None:
        """Take what there is."""
        for frame in self._connection.exchange(0.05):
            if frame.command == "MESSAGE":
                self.received.append(frame.headers["ack"])
            elif frame.command == "RECEIPT":
                self.receipts.add(frame.headers["receipt-id"])

    def wait(self, receipt: str) -> None:
        """Wait for a receipt."""

        def came() -> bool:
            self.look()
            return receipt in self.receipts

        wait_until(came, what=f"{receipt} comes")

    def do(self, command: str, body: bytes = b"", **headers: str) -> None:
        """Send a frame and wait for its receipt."""
        self.wait(self.send(command, body, **headers))

    def subscribe(self, destination: str, count: int) -> list[str]:
        """Subscribe and wait for so many messages."""
        headers = {"destination": destination, "id": destination, "ack": "client-individual"}
        self.do("SUBSCRIBE", b"", **headers)
        before = len(self.received)

        def came() -> bool:
            self.look()
            return len(self.received) >= before + count or len(self.received) >= count

        wait_until(came, what=f"{count} messages of {destination}")
        return self.received[-count:]

    def close(self) -> None:
        """Go."""
        self._connection.close()


@pytest.fixture
def nodes(shared_servers: Servers, tmp_path: Path) -> Iterator[Cluster]:
    """Give nodes on PostgreSQL."""
    server = shared_servers("postgresql")
    name = server.create_database()
    with cluster(url_with_password(server.settings(name)), tmp_path) as made:
        yield made
    server.drop_database(name)


def test_a_foreign_lock_ends_nobody(nodes: Cluster) -> None:
    """An acknowledgement waits for an uncommitted DELETE; all else goes on, and it is named."""
    live, backup = nodes.pair()
    consumer, witness = Client(live.port), Client(live.port)
    for number in range(3):
        consumer.do("SEND", b"%d" % number, destination=LOCKED)
    acks = consumer.subscribe(LOCKED, 3)
    url = DatabaseUrl.parse(live.url).sqlalchemy_url
    gui = psycopg2.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        application_name="some GUI",
    )
    cursor = gui.cursor()
    cursor.execute("DELETE FROM messages")
    assert cursor.rowcount == 3
    waiting = [consumer.send("ACK", id=ack) for ack in acks]
    # To the same queue and to another, and from that one.
    witness.do("SEND", b"same", destination=LOCKED)
    witness.do("SEND", b"other", destination="/queue/other")
    (ack,) = witness.subscribe("/queue/other", 1)
    witness.do("ACK", id=ack)
    live.wait_log("rows of the journal are locked by session")
    assert f"session {gui.get_backend_pid()} (user " in live.log
    assert "application some GUI" in live.log
    consumer.look()
    assert not consumer.receipts.intersection(waiting)
    gui.rollback()
    for receipt in waiting:
        consumer.wait(receipt)
    live.wait_log("no other session locks rows of the journal any longer")
    cursor.execute("SELECT COUNT(*) FROM messages")
    assert cursor.fetchone() == (1,)
    gui.close()
    assert live.is_running
    assert backup.is_running
    assert "AMQ222010" not in live.log
    consumer.close()
    witness.close()


def test_what_is_put_aside_comes_again_after_a_takeover(nodes: Cluster) -> None:
    """Nobody was told that it is acknowledged; and the next node is not ended either."""
    live, backup = nodes.pair()
    consumer = Client(live.port)
    consumer.do("SEND", b"1", destination=LOCKED)
    (ack,) = consumer.subscribe(LOCKED, 1)
    url = DatabaseUrl.parse(live.url).sqlalchemy_url
    gui = psycopg2.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
    )
    gui.cursor().execute("SELECT * FROM messages FOR UPDATE")
    waiting = consumer.send("ACK", id=ack)
    live.wait_log("rows of the journal are locked by session")
    consumer.look()
    assert waiting not in consumer.receipts
    live.kill()
    consumer.close()
    backup.wait_serving()
    again = Client(backup.port)
    (ack,) = again.subscribe(LOCKED, 1)
    waiting = again.send("ACK", id=ack)
    again.do("SEND", b"2", destination="/queue/other")
    assert waiting not in again.receipts
    gui.rollback()
    gui.close()
    again.wait(waiting)
    again.close()
    assert backup.is_running
