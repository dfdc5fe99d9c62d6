"""Destinations of every sort on a pair of real processes, with stomp.py, on every store.

What is to last lasts through the crash of the live node, paged as it is; what is a connection's own
is there again under the same name when its client is.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import stomp
from stomp.utils import Frame

from orthia.config.store_settings import JournalType
from tests.conftest import EVERY_DBMS, Servers
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import NodeProcess
from tests.support.servers import SqliteServer

pytestmark = pytest.mark.extended

MANY = 200
RING = 20
CORE = f"""
<diverts><divert name="audit"><address>orders.#</address>
<forwarding-address>audit</forwarding-address><filter string="number &gt;= 100"/></divert></diverts>
<addresses>
<address name="last"><anycast><queue name="last" ring-size="{RING}"/></anycast></address>
<address name="one"><anycast><queue name="one" exclusive="true"/></anycast></address>
<address name="briefly"><anycast><queue name="briefly"><durable>false</durable></queue></anycast>
</address></addresses>
<address-settings><address-setting match="#"><max-size-messages>15</max-size-messages>
</address-setting></address-settings>
"""

Pair = tuple[NodeProcess, NodeProcess]


@pytest.fixture(params=[*EVERY_DBMS, JournalType.NIO], ids=str)
def pair(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup."""
    place, core = request.param, CORE
    if place is not JournalType.NIO:
        server = SqliteServer(tmp_path) if place == "sqlite" else shared_servers(place)
        core += store(tmp_path, server.settings(server.create_database()), "lease")
    with file_cluster(tmp_path, core) as nodes:
        yield nodes.pair()


class Client(stomp.ConnectionListener):  # type: ignore[misc] # has no types
    """A connection, and what it got."""

    def __init__(self, port: int, client_id: str | None = None) -> None:
        self.frames: list[Frame] = []
        self.receipts: set[str] = set()
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._numbers = 0
        self.connection = stomp.Connection12([("127.0.0.1", port)], reconnect_attempts_max=1)
        self.connection.set_listener("test", self)
        headers = {} if client_id is None else {"client-id": client_id}
        self.connection.connect(wait=True, headers=headers)

    def on_message(self, frame: Frame) -> None:
        """Note a message."""
        self._note(lambda: self.frames.append(frame))

    def on_receipt(self, frame: Frame) -> None:
        """Note a receipt."""
        self._note(lambda: self.receipts.add(frame.headers["receipt-id"]))

    def on_error(self, frame: Frame) -> None:
        """Note an ERROR."""
        self._note(lambda: self.errors.append(frame.body))

    def _note(self, what: Callable[[], None]) -> None:
        with self._changed:
            what()
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something was received."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.errors) or condition(), 120), what
        assert not self.errors

    def receipt(self) -> str:
        """Return an id for a receipt."""
        self._numbers += 1
        return f"r{self._numbers}"

    def answered(self, receipt: str) -> None:
        """Wait for a receipt."""
        self.wait(lambda: receipt in self.receipts, f"no receipt {receipt}")

    def subscribe(self, destination: str, ident: str = "s", **headers: str) -> None:
        """Subscribe, and wait until that is done."""
        receipt = self.receipt()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.subscribe(destination, ident, "auto", {"receipt": receipt, **given})
        self.answered(receipt)

    def send(self, destination: str, *bodies: str, **headers: str) -> None:
        """Send messages, and wait until they are stored."""
        receipts = [self.receipt() for _ in bodies]
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for receipt, body in zip(receipts, bodies, strict=True):
            self.connection.send(
                destination, body, headers={"receipt": receipt, "number": body, **given}
            )
        self.wait(lambda: self.receipts.issuperset(receipts), f"not all sent to {destination}")

    def bodies(self, count: int) -> list[str]:
        """Return the bodies of the first ``count`` messages, when they are here."""
        self.wait(lambda: len(self.frames) >= count, f"{len(self.frames)} of {count} messages")
        return [frame.body for frame in self.frames]


@contextmanager
def client(node: NodeProcess, client_id: str | None = None) -> Iterator[Client]:
    """Give a client of a node, disconnected in the end."""
    one = Client(node.port, client_id)
    try:
        yield one
    finally:
        one.connection.disconnect()


def ask_and_answer(node: NodeProcess) -> str:
    """Have one client ask another through a temporary queue; return where it was answered."""
    with client(node) as asking, client(node) as answering:
        asking.subscribe("/temp-queue/answers")
        answering.subscribe("/queue/requests")
        asking.send("/queue/requests", node.name, reply_to="/temp-queue/answers")

        def asked() -> list[str]:
            # A request whose acknowledgement was not stored when its node died comes again.
            frames = [one for one in answering.frames if one.body == node.name]
            return [str(one.headers["reply-to"]) for one in frames]

        answering.wait(lambda: bool(asked()), "the request")
        (where,) = asked()
        answering.send(where, "2")
        assert asking.bodies(1) == ["2"]
        assert asking.frames[0].headers["destination"] == "/temp-queue/answers"
        return where


def test_destinations_outlive_their_node(pair: Pair) -> None:
    """Durable subscriptions with wildcards and selectors, diverts, rings; not what is temporary."""
    live, backup = pair
    numbers = [str(number) for number in range(MANY)]
    durable = {"durable_subscription_name": "every", "selector": "number < 150"}
    with client(live, "me") as subscriber:
        subscriber.subscribe("/topic/news.#", **durable)
    with client(live) as sender:
        for name in ("topic/news.eu", "queue/orders.eu", "queue/last", "queue/briefly"):
            sender.send(f"/{name}", *numbers)
    where = ask_and_answer(live)
    live.kill()
    backup.wait_serving()

    with client(backup, "me") as subscriber:
        subscriber.subscribe("/topic/news.#", **durable)
        assert subscriber.bodies(150) == numbers[:150]
        assert {one.headers["destination"] for one in subscriber.frames} == {"/topic/news.eu"}
        with client(backup) as sender:
            sender.send("/topic/news.new", "7")
        assert subscriber.bodies(151)[150] == "7"
        receipt = subscriber.receipt()
        subscriber.connection.unsubscribe(
            "s", **{"durable-subscription-name": "every", "receipt": receipt}
        )
        subscriber.answered(receipt)
        subscriber.subscribe("/topic/news.#", "t", durable_subscription_name="every")
        assert len(subscriber.frames) == 151
    for name, expected in (
        ("orders.eu", numbers),
        ("audit", numbers[100:]),
        ("last", numbers[-RING:]),
    ):
        with client(backup) as consumer:
            consumer.subscribe(f"/queue/{name}")
            assert consumer.bodies(len(expected)) == expected
            if name == "audit":
                origins = {one.headers["_AMQ_ORIG_ADDRESS"] for one in consumer.frames}
                assert origins == {"orders.eu"}
    with client(backup) as sender:
        sender.send(where, "to nobody")
        sender.send("/queue/briefly", "new")
        with client(backup) as consumer:
            consumer.subscribe("briefly::briefly")
            assert consumer.bodies(1) == ["new"]
    ask_and_answer(backup)
    with client(backup) as first, client(backup) as second, client(backup) as sender:
        first.subscribe("/queue/one")
        second.subscribe("/queue/one")
        sender.send("/queue/one", *numbers)
        assert first.bodies(MANY) == numbers
        assert not second.frames
