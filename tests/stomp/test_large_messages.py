"""What a client sees of large messages: sessions on a real core and a journal of files."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.connections.client_memory import ClientMemory
from orthia.broker.core.broker import Broker
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.states import State
from orthia.config.address_settings import AddressFullPolicy, DivertSettings
from orthia.config.settings import ClientLimits, Settings
from orthia.database import StoreUnavailable
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.errors import JournalClosed, JournalError, LargeBodyError
from orthia.journal.file.bodies import list_bodies
from tests.core.support import SETTINGS, opened, settings
from tests.journal.support import FileJournalStore, threads_of
from tests.stomp.support import PASSCODE, SocketDouble, secured
from tests.support.waiting import wait_until

QUEUE = "/queue/orders"
LIMITS = ClientLimits(min_large_message_size=1_000)
LONG = "long" * PIECE_BYTES
"""A body of four pieces."""


class Node:
    """A core on a journal of files, without sockets."""

    def __init__(self, directory: Path, options: Settings = SETTINGS) -> None:
        self.store = FileJournalStore(directory)
        self.journal = self.store.open()
        self.broker = opened(
            Broker(
                options,
                self.journal,
                lease_valid=lambda: True,
                call_later=lambda _, callback: self.store.loop.post(callback),
                clock=lambda: 0.0,
            )
        )

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Run the loop until something is so."""
        self.store.loop.run_until(condition, what)

    @property
    def bodies(self) -> list[int]:
        """The bodies that are stored."""
        return list_bodies(self.store.settings.large_messages_directory)

    def wait_no_bodies(self) -> None:
        """Wait until every body is removed."""

        def none_left() -> bool:
            self.store.loop.run_posted()
            return not self.bodies

        wait_until(none_left, what="no body is left")


class Client:
    """A client whose socket the test drains as it likes."""

    def __init__(
        self, node: Node, *, clock: Callable[[], float] = lambda: 0.0, **connect: str
    ) -> None:
        self.node = node
        self.written = b""
        self.total = 0
        self.closed = False
        self.waited = 0
        self.reads = True
        self.memory = ClientMemory(1_000, 1)
        self.session = StompConnection(
            node.broker,
            StompOptions(LIMITS),
            SocketDouble(
                node.broker,
                self._write,
                self._close,
                waited=self._waited,
                has_room=self._may_take,
            ),
            clock,
        )
        self._parser = FrameParser(ClientLimits())
        self._receipts = itertools.count()
        self.send("CONNECT", accept_version="1.2", host="h", **connect)
        self.next("CONNECTED")

    def _write(self, data: bytes) -> int:
        assert not self.closed, "written after it was closed"
        self.written += data
        self.total += len(data)
        if not self.reads:
            self.session.set_writable(writable=False)
        return self.total

    def _close(self) -> None:
        self.closed = True

    def _waited(self) -> None:
        self.waited += 1

    def _may_take(self) -> bool:
        return not self.memory.is_full or self.memory.refuse(self)

    def resume_deliveries(self) -> None:
        """Go on: there is memory."""
        self.session.set_writable(writable=self.reads)

    def send(self, command: str, body: str = "", **headers: str) -> None:
        """Send a frame; header names have underscores for dashes."""
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        self.session.receive(f"{command}\n{lines}\n{body}\0".encode())

    def send_stored(self, body: str, destination: str = QUEUE, **headers: str) -> None:
        """Send a message and wait for its receipt."""
        receipt = f"r{next(self._receipts)}"
        self.send("SEND", body, destination=destination, receipt=receipt, **headers)
        assert self.next("RECEIPT").get(b"receipt-id") == receipt

    def frames(self) -> list[Frame]:
        """Return what came whole since the last time."""
        data, self.written = self.written, b""
        return list(self._parser.feed(data))

    def next(self, command: str) -> Frame:
        """Wait for a frame, the only one to come."""
        found: list[Frame] = []

        def came() -> bool:
            found.extend(self.frames())
            return bool(found)

        self.node.wait(came, command)
        (frame,) = found
        assert frame.command == command, frame.body
        return frame

    def subscribe(self, destination: str = QUEUE, ack: str = "client-individual") -> None:
        """Subscribe."""
        self.send("SUBSCRIBE", destination=destination, id="s", ack=ack)

    def stall(self) -> None:
        """Take only what is on its way."""
        self.reads = False

    def wait_head(self) -> None:
        """Wait for the head of a large message."""
        self.node.wait(lambda: b"content-length:" in self.written, "the head")

    def drain(self) -> None:
        """Take everything again."""
        self.reads = True
        self.memory = ClientMemory(1_000, 1)
        self.session.set_writable(writable=True)


Nodes = Callable[[Settings], Node]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Give what makes a node of a test's own settings, on the test's one directory."""
    with ExitStack() as made:

        def make(options: Settings) -> Node:
            node = Node(tmp_path, options)
            made.callback(node.store.close)
            return node

        yield make


@pytest.fixture
def node(nodes: Nodes) -> Node:
    """Give a node."""
    return nodes(SETTINGS)


def test_a_large_message_arrives_whole_and_its_body_goes_with_the_ack(node: Node) -> None:
    """Headers and body are as they were sent; once it is acknowledged, nothing is left of it."""
    Client(node).send_stored(LONG, kind="x")
    consumer = Client(node)
    consumer.subscribe()
    message = consumer.next("MESSAGE")
    assert message.body.decode() == LONG
    assert (message.get(b"kind"), message.get(b"redelivered")) == ("x", "false")
    assert len(node.bodies) == 1
    consumer.send("ACK", id=message.get(b"ack") or "", receipt="done")
    consumer.next("RECEIPT")
    node.wait_no_bodies()


def test_what_a_browser_has_read_is_shown_though_it_is_taken_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body stays until the browser has it, and then goes."""
    others = Client(node)
    others.send_stored(LONG)
    consumer, browser = Client(node), Client(node)
    consumer.subscribe()
    message = consumer.next("MESSAGE")
    read_window: Callable[..., None] = node.journal.read_window
    late: list[Callable[[], None]] = []

    def read_and_answer_later(*asked: Any) -> None:
        *place, done = asked
        read_window(*place, lambda window: late.append(lambda: done(window)))

    monkeypatch.setattr(node.journal, "read_window", read_and_answer_later)
    browser.send("SUBSCRIBE", destination=QUEUE, id="s", browser="true")
    node.wait(lambda: late, "the browser's window")
    consumer.send("ACK", id=message.get(b"ack") or "", receipt="done")
    consumer.next("RECEIPT")
    for _ in range(2):  # after which the thread has done what it was asked before
        others.send_stored(LONG, destination="/queue/others")
    late.pop()()
    node.wait(lambda: browser.closed or b"browser:end" in browser.written, "all is shown")
    assert [frame.body.decode() for frame in browser.frames()] == [LONG, ""]
    others.subscribe("/queue/others", ack="auto")
    node.wait_no_bodies()


def test_nothing_is_written_inside_a_body(node: Node) -> None:
    """Receipts and heart-beats wait for its end, and come in their order."""
    Client(node).send_stored(LONG)
    consumer = Client(node, heart_beat="1,1")
    consumer.stall()
    consumer.subscribe()
    consumer.wait_head()
    for receipt in ("first", "second"):
        consumer.send("SEND", "small", destination="/queue/other", receipt=receipt)
    other = Client(node)
    other.send_stored("behind it", destination="/queue/other")
    consumer.session.tick(1.0)
    consumer.drain()
    node.wait(lambda: b"second" in consumer.written, "the receipts")
    message, *receipts = consumer.frames()
    assert message.body.decode() == LONG
    assert [one.get(b"receipt-id") for one in receipts] == ["first", "second"]


def test_a_client_that_does_not_read_holds_a_piece(node: Node) -> None:
    """The body is read on only as the client takes it."""
    Client(node).send_stored(LONG)
    consumer = Client(node)
    consumer.stall()
    consumer.subscribe()
    node.wait(lambda: len(consumer.written) > 100, "a piece")
    other = Client(node)
    other.send_stored(LONG, destination="/queue/other")
    other.subscribe("/queue/other")
    other.next("MESSAGE")  # its pieces are read in turn with those of the first
    assert len(consumer.written) < 2 * PIECE_BYTES
    assert consumer.session.held < 2 * PIECE_BYTES
    consumer.drain()
    node.wait(lambda: consumer.written.endswith(b"\0"), "the rest")
    assert consumer.frames()[0].body.decode() == LONG


def test_a_body_that_waits_for_memory_goes_on_however_soon_there_is_some(node: Node) -> None:
    """What filled it may be gone before the server looks at its clients the next time."""
    sender, receiver = Client(node), Client(node)
    sender.send_stored(LONG)
    receiver.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client-individual")
    receiver.memory.used = receiver.memory.limit
    node.wait(lambda: len(receiver.written) > PIECE_BYTES, what="a piece is written")
    receiver.memory.used = 0
    receiver.memory.relieve()
    assert receiver.next("MESSAGE").body.decode() == LONG


def test_a_sender_is_not_read_from_while_the_store_is_behind(node: Node) -> None:
    """What waits is bounded; ``waited`` says when to read on."""
    producer = Client(node)
    head = f"SEND\ndestination:{QUEUE}\ncontent-length:{len(LONG) * 2}\nreceipt:r\n\n"
    producer.session.receive(head.encode())
    states = [producer.session.is_waiting]
    producer.session.receive(LONG.encode())
    states.append(producer.session.is_waiting)
    assert producer.session.sent >= len(LONG)
    node.wait(lambda: producer.waited, "room again")
    states.append(producer.session.is_waiting)
    assert states == [False, True, False]
    producer.session.receive(LONG.encode() + b"\0")
    producer.next("RECEIPT")
    assert producer.session.sent < PIECE_BYTES


def test_a_sender_that_leaves_leaves_nothing(node: Node) -> None:
    """Half a body is removed when its client is gone."""
    producer = Client(node)
    producer.session.receive(f"SEND\ndestination:{QUEUE}\n\n{LONG}".encode())
    node.wait(lambda: node.bodies, "some of the body is stored")
    producer.session.connection_lost()
    node.wait_no_bodies()
    assert node.broker.depths() == {"orders": 0}


def test_who_may_not_send_learns_it_at_the_head(nodes: Nodes) -> None:
    """Not one byte of the body is taken."""
    node = nodes(secured({"ada": "readers"}, {"#": {"readers": "consume"}}))
    producer = Client(node, login="ada", passcode=PASSCODE)
    producer.session.receive(
        f"SEND\ndestination:{QUEUE}\ncontent-length:5000\nreceipt:mine\n\n".encode()
    )
    (error,) = producer.frames()
    assert (error.command, error.get(b"receipt-id")) == ("ERROR", "mine")
    assert producer.closed
    assert node.bodies == []


@pytest.mark.parametrize("ends", ["COMMIT", "ABORT", "lost"])
def test_a_transaction_sends_its_large_messages_or_none(node: Node, ends: str) -> None:
    """COMMIT delivers them; ABORT and a lost connection remove the bodies."""
    producer = Client(node)
    producer.send("BEGIN", transaction="t")
    producer.send_stored(LONG, transaction="t")
    producer.send_stored("small", transaction="t")
    assert len(node.bodies) == 1
    if ends == "lost":
        producer.session.connection_lost()
    else:
        producer.send(ends, transaction="t", receipt="ended")
        producer.next("RECEIPT")
    if ends != "COMMIT":
        node.wait_no_bodies()
        return
    consumer = Client(node)
    consumer.subscribe(ack="auto")
    node.wait(lambda: consumer.written.endswith(b"small\0"), "both")
    assert [frame.body.decode() for frame in consumer.frames()] == [LONG, "small"]
    node.wait_no_bodies()


@pytest.mark.parametrize("how", ["DISCONNECT", "UNSUBSCRIBE"])
@pytest.mark.parametrize("queue", ["plain", "priorities", "last value", "selector"])
def test_a_client_that_leaves_amid_a_body_has_the_message(
    nodes: Nodes, how: str, queue: str
) -> None:
    """With ack:auto it gets the whole, it and nobody else; and what follows in its place."""
    is_last_value = queue == "last value"
    node = nodes(settings("orders", default_last_value_key="key" if is_last_value else None))
    sender = Client(node)
    sender.send_stored(LONG, priority="7" if queue == "priorities" else "4", key="a")
    sender.send_stored("next", priority="1" if queue == "priorities" else "4")
    consumer = Client(node)
    consumer.stall()
    selector = {"selector": "colour IS NULL"} if queue == "selector" else {}
    consumer.send("SUBSCRIBE", destination=QUEUE, id="s", ack="auto", **selector)
    consumer.wait_head()
    consumer.send("SUBSCRIBE", destination="/queue/other", id="o", ack="auto")
    consumer.send(how, receipt="bye", **({} if how == "DISCONNECT" else {"id": "s"}))
    sender.send_stored("other", "/queue/other")
    consumer.drain()
    expected = [(LONG, None), ("", "bye"), ("other", None)][: 2 if how == "DISCONNECT" else 3]
    came: list[tuple[str, str | None]] = []

    def all_came() -> bool:
        came.extend((one.body.decode(), one.get(b"receipt-id")) for one in consumer.frames())
        return len(came) == len(expected)

    node.wait(all_came, "all that is sent to who leaves")
    assert came == expected
    assert consumer.closed is (how == "DISCONNECT")
    another = Client(node)
    another.subscribe(ack="auto")
    message = another.next("MESSAGE")
    assert (message.body.decode(), message.get(b"redelivered")) == ("next", "false")
    node.wait_no_bodies()


@pytest.mark.parametrize("how", ["DISCONNECT", "UNSUBSCRIBE"])
def test_who_leaves_amid_a_body_gives_back_and_acknowledges_at_once(node: Node, how: str) -> None:
    """The body may wait for the memory of just that."""
    sender, client = Client(node), Client(node)
    sender.send_stored("kept", "/queue/others")
    sender.send_stored(LONG)
    client.send("SUBSCRIBE", destination="/queue/others", id="o", ack="client-individual")
    kept = client.next("MESSAGE")
    client.stall()
    client.subscribe(ack="auto")
    client.wait_head()
    if how == "DISCONNECT":
        client.send("DISCONNECT", receipt="bye")
        other = Client(node)
        other.subscribe("/queue/others")
        assert other.next("MESSAGE").body == b"kept"
    else:
        client.send("UNSUBSCRIBE", id="s", receipt="bye")
        client.send("ACK", id=kept.get(b"ack") or "")
        sender.send_stored("behind it", "/queue/more")
        assert node.broker.depths()["others"] == 0
    client.drain()
    node.wait(lambda: client.closed or b"receipt-id:bye" in client.written, "the end")
    assert client.frames()[0].body.decode() == LONG


def test_a_body_stays_whose_message_moves_while_it_is_replaced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit that replaces it is stored before the one that makes it a dead letter."""
    options = {"max_delivery_attempts": 1, "dead_letter_address": "DLQ"}
    node = nodes(settings("orders", default_last_value_key="key", **options))
    sender, consumer = Client(node), Client(node)
    sender.send_stored(LONG, key="x")
    store = threads_of(node.journal).writer._store
    stores, may_store = threading.Semaphore(0), threading.Semaphore(0)
    store_batch = store.store

    def store_when_told(batch: Any) -> Any:
        stores.release()
        assert may_store.acquire(timeout=60)
        return store_batch(batch)

    monkeypatch.setattr(store, "store", store_when_told)
    sender.send("SEND", "new", destination=QUEUE, key="x", receipt="r")
    assert stores.acquire(timeout=60)
    consumer.subscribe()
    message = consumer.next("MESSAGE")
    assert message.body.decode() == LONG
    consumer.send("NACK", id=message.get(b"ack") or "")
    may_store.release()
    sender.next("RECEIPT")
    for count in (2, 3):  # after which the thread has done what it was asked before
        Client(node).send("SEND", LONG, destination="/queue/others")
        node.wait(lambda count=count: len(node.bodies) >= count, "another body")  # type: ignore[misc]
    for _ in range(100):
        may_store.release()
    reader = Client(node)
    reader.subscribe("/queue/DLQ", ack="auto")
    node.wait(lambda: reader.closed or reader.written.endswith(b"\0"), "the dead letter")
    assert [frame.body.decode() for frame in reader.frames()] == [LONG]


@pytest.mark.parametrize("transaction", [{}, {"transaction": "t"}])
@pytest.mark.parametrize("durable", [False, True])
def test_bodies_that_subscribers_of_a_topic_have_yet_to_read_are_bounded(
    nodes: Nodes, transaction: dict[str, str], *, durable: bool
) -> None:
    """Else a sender fills the store for one that does not read; once that is gone there is room."""
    node = nodes(replace(SETTINGS, max_store_bytes=3 * len(LONG) + 10_000))
    slow, sender = Client(node), Client(node)
    slow.subscribe("/topic/news")
    slow.stall()
    second = Client(node)
    second.subscribe("/topic/#", ack="auto")
    second.stall()
    quick = Client(node, client_id="me")
    if durable:
        name = {"durable_subscription_name": "mine"}
        quick.send("SUBSCRIBE", destination="/topic/news", id="q", ack="auto", **name)

    def send() -> None:
        if transaction:
            sender.send("BEGIN", **transaction)
            sender.send_stored(LONG, "/topic/news", **transaction)
            sender.send("COMMIT", receipt="c", **transaction)
            sender.next("RECEIPT")
        else:
            sender.send_stored(LONG, "/topic/news")

    for _ in range(3):
        send()
        if durable:
            assert quick.next("MESSAGE").body.decode() == LONG
    wait_until(lambda: not node.store.loop.run_posted(), what="all is stored")
    refused = Client(node)
    refused.send("SEND", LONG, destination="/topic/news")
    assert b"max-store-bytes" in refused.next("ERROR").body
    for one in (slow, second):
        one.session.connection_lost()
    node.wait_no_bodies()
    assert node.broker.store_use.used == 0
    send()


def test_a_damaged_body_is_never_a_whole_message(node: Node) -> None:
    """The client is cut off before its end, and the message stays."""
    Client(node).send_stored(LONG)
    (body_id,) = node.bodies
    path = node.store.settings.large_messages_directory / f"{body_id}.msg"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    consumer = Client(node)
    consumer.subscribe()
    node.wait(lambda: consumer.closed, "the connection is cut")
    assert b"ERROR" not in consumer.written
    assert consumer.frames() == []
    path.write_bytes(whole)
    again = Client(node)
    again.subscribe()
    message = again.next("MESSAGE")
    assert (message.body.decode(), message.get(b"redelivered")) == (LONG, "true")


def test_a_delivery_whose_body_cannot_be_read_was_in_vain(nodes: Nodes) -> None:
    """So a message whose body stays damaged ends no client after client."""
    node = nodes(settings(max_delivery_attempts=1, dead_letter_address="DLQ"))
    Client(node).send_stored(LONG)
    (body_id,) = node.bodies
    (node.store.settings.large_messages_directory / f"{body_id}.msg").write_bytes(b"?")
    consumer = Client(node)
    consumer.subscribe()
    node.wait(lambda: consumer.closed, "the connection is cut")
    node.wait(lambda: node.broker.depths().get("DLQ") == 1, "it is a dead letter")


def test_a_topic_needs_the_body_until_its_last_subscriber_has_it(node: Node) -> None:
    """Subscribers without a queue share it; the slow one still gets it whole."""
    fast, slow = Client(node), Client(node)
    for client in (fast, slow):
        client.subscribe("/topic/news", ack="client-individual")
    slow.stall()
    Client(node).send_stored(LONG, destination="/topic/news")
    message = fast.next("MESSAGE")
    fast.send("ACK", id=message.get(b"ack") or "")
    Client(node).send_stored("unread", destination="/topic/nobody")
    assert len(node.bodies) == 1
    slow.drain()
    last = slow.next("MESSAGE")
    assert last.body.decode() == LONG
    slow.send("ACK", id=last.get(b"ack") or "")
    node.wait_no_bodies()


def test_a_dead_letter_is_delivered_whole(nodes: Nodes) -> None:
    """Moved to another queue, it has the same body; dropped, it leaves none."""
    options = settings(max_delivery_attempts=1, dead_letter_address="DLQ")
    node = nodes(options)
    Client(node).send_stored(LONG)
    consumer = Client(node)
    consumer.subscribe()
    consumer.send("NACK", id=consumer.next("MESSAGE").get(b"ack") or "")
    node.wait(lambda: node.broker.depths().get("DLQ") == 1, "it is a dead letter")
    consumer.send("UNSUBSCRIBE", id="s")
    consumer.subscribe("/queue/DLQ", ack="auto")
    message = consumer.next("MESSAGE")
    assert message.body.decode() == LONG
    assert message.get(b"_AMQ_ORIG_QUEUE") == "orders"
    node.wait_no_bodies()


def test_a_body_that_cannot_be_stored_ends_its_sender_alone(node: Node) -> None:
    """It gets an ERROR that says why; others go on, and so does it once the disk is well."""
    directory = node.store.settings.large_messages_directory
    directory.rmdir()
    witness = Client(node)
    producer = Client(node)
    producer.send("SEND", LONG, destination=QUEUE, receipt="mine")
    error = producer.next("ERROR")
    assert "could not be stored: cannot write" in (error.get(b"message") or "")
    assert error.get(b"receipt-id") == "mine"
    assert producer.closed
    witness.send_stored("small")
    directory.mkdir()
    witness.send_stored(LONG)
    assert node.store.failures == []


@pytest.mark.parametrize("error", [JournalClosed, LargeBodyError])
def test_a_node_that_stops_amid_a_body_says_nothing(node: Node, error: type[JournalError]) -> None:
    """An ERROR says that the client did wrong; it is to send the message to the next node."""
    producer = Client(node)
    producer.send("SEND", LONG, destination=QUEUE, receipt="mine")
    under_way = producer.session._uploads.under_way
    assert under_way is not None
    under_way.upload.done(error("the store is not there, and this node stops"))
    node.wait(lambda: producer.closed, "its connection is closed")
    assert producer.frames() == []


@pytest.mark.parametrize("policy", [AddressFullPolicy.DROP, AddressFullPolicy.FAIL])
def test_an_address_has_room_for_a_body_of_more_than_half_of_it(
    nodes: Nodes, policy: AddressFullPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """What came of the body counts once, and not again as the message."""
    most = len(LONG) * 3 // 2
    node = nodes(settings(address_full_policy=policy, max_size_bytes=most))
    Client(node).send_stored(LONG)
    assert node.broker.depths() == {"orders": 1}
    assert "is dropped" not in caplog.text


def test_who_sends_large_messages_waits_for_room(nodes: Nodes) -> None:
    """BLOCK holds each after what it sent last, as it does with others."""
    node = nodes(settings(address_full_policy=AddressFullPolicy.BLOCK, max_size_messages=1))
    client = Client(node)
    for number in range(3):
        client.send("SEND", LONG, destination=QUEUE, receipt=f"r{number}")
    client.next("RECEIPT")
    Client(node).send_stored(LONG, "/queue/other")
    Client(node).send_stored(LONG, "/queue/another")
    assert client.session.is_waiting
    assert node.broker.depths()["orders"] == 1
    consumer = Client(node)
    consumer.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client-individual")
    for number in range(3):
        message = consumer.next("MESSAGE")
        consumer.send("ACK", id=message.get(b"ack") or "")
        if number < 2:
            client.next("RECEIPT")
    node.wait(lambda: node.broker.depths()["orders"] == 0, "all is consumed")


@pytest.mark.parametrize("how", ["wildcards", "divert"])
def test_a_body_has_to_find_room_wherever_its_message_is_kept(nodes: Nodes, how: str) -> None:
    """It counts there whole: it was uploaded to the address that it was sent to."""
    diverts = (DivertSettings("d", "news.eu", "copies"),) if how == "divert" else ()
    policy = {"address_full_policy": AddressFullPolicy.DROP, "max_size_bytes": 1_000}
    node = nodes(
        replace(settings("news.#" if not diverts else "copies", **policy), diverts=diverts)
    )
    kept = {"copies": 0, "news.eu": 1} if diverts else {"kept": 0}
    if not diverts:
        Client(node).subscribe("/topic/news.*::kept")
    Client(node).send_stored(LONG, "/queue/news.eu" if diverts else "/topic/news.eu")
    assert node.broker.depths() == kept


def test_a_browser_whose_read_failed_keeps_no_body(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again, and the body goes with its message."""
    Client(node).send_stored(LONG)
    read_window: Callable[..., None] = node.journal.read_window
    failing = iter([StoreUnavailable("the database is not reachable")])

    def read_or_fail(*asked: Any) -> None:
        *place, done = asked
        error = next(failing, None)
        if error is None:
            read_window(*place, done)
        else:
            node.store.loop.post(lambda: done(error))

    monkeypatch.setattr(node.journal, "read_window", read_or_fail)
    browser = Client(node)
    browser.send("SUBSCRIBE", destination=QUEUE, id="s", browser="true")
    node.wait(lambda: b"browser:end" in browser.written, "all is shown")
    assert next(failing, None) is None
    Client(node).subscribe(ack="auto")
    node.wait_no_bodies()


def test_a_client_may_leave_when_its_large_message_waits_for_many_selectors(node: Node) -> None:
    """Its body is stored: the message is sent, and goes with the last that gets it."""
    for number in range(10):
        subscriber = Client(node, client_id=f"c{number}")
        name = {"durable-subscription-name": "d", "selector": f"n <> {number + 100}"}
        subscriber.send("SUBSCRIBE", destination="/topic/news", id="s", receipt="r", **name)
        subscriber.next("RECEIPT")
        subscriber.send("DISCONNECT")
    sender = Client(node)
    sender.send("SEND", LONG, destination="/topic/news", n="1")
    assert sender.session.state is State.STORING
    node.wait(lambda: sender.session.state is State.CONNECTED, "the body is stored")
    assert sender.session.is_waiting, "it is not sent yet"
    sender.session.connection_lost()
    node.wait(lambda: {*node.broker.depths().values()} == {1}, "everybody has it")
