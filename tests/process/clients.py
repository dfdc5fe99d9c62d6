"""Clients of a failing-over pair: a producer and a consumer of stomp.py, and one step by step."""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import stomp
from stomp.exception import StompException
from stomp.utils import Frame

from orthia.broker.client.connection import BrokerAddress, Connection, Login, ServerFrame
from tests.process.nodes import NodeProcess, wait_any_serving
from tests.support.waiting import wait_until

OUTSTANDING = 50

QUEUE = "/queue/orders"


def connect(ports: Sequence[int], listener: stomp.ConnectionListener) -> stomp.Connection12:
    """Connect to whichever of the ports answers; raises StompException if none does."""
    connection = stomp.Connection12(
        [("127.0.0.1", port) for port in ports],
        reconnect_sleep_initial=0.1,
        reconnect_sleep_increase=0,
        reconnect_attempts_max=3,
        timeout=10,
    )
    connection.set_listener("test", listener)
    connection.connect(wait=True)
    return connection


class Producer(threading.Thread, stomp.ConnectionListener):  # type: ignore[misc] # has no types
    """Sends numbered persistent messages for ever, and notes which of them got a receipt.

    After a lost connection it goes to the other node and sends again what was not receipted, as an
    application must; so a message may be there twice, and none may be missing. It takes all of the
    processor that it gets, unless it is to pause after each. Its numbers begin with ``first``: what
    an earlier producer sent is told from what it sends only where they are not the same.
    """

    def __init__(
        self, ports: Sequence[int], destination: str, *, pause_seconds: float = 0, first: int = 0
    ) -> None:
        super().__init__(daemon=True)
        self.ports = ports
        self.destination = destination
        self._pause_seconds = pause_seconds
        self.receipted: set[int] = set()
        self._next = first
        self._pending: dict[int, None] = {}
        self._changed = threading.Condition()
        self._lost = threading.Event()
        self._stopping = threading.Event()

    def on_receipt(self, frame: Frame) -> None:
        """Note a receipt."""
        receipt = frame.headers["receipt-id"]
        if not receipt.isdecimal():
            return  # the one stomp.py asks for when it disconnects
        with self._changed:
            number = int(receipt)
            self.receipted.add(number)
            self._pending.pop(number, None)
            self._changed.notify_all()

    def on_disconnected(self) -> None:
        """Note that the node is gone."""
        with self._changed:
            self._lost.set()
            self._changed.notify_all()

    def run(self) -> None:
        """Send, through failovers, until ``finish``."""
        while not self._stopping.is_set():
            try:
                self._lost.clear()
                connection = connect(self.ports, self)
                self._send_until_lost(connection)
                if not self._lost.is_set():
                    connection.disconnect()
            except (StompException, OSError, AttributeError):
                # stomp.py's own thread forgets the socket amid a call when the node closes it.
                self._stopping.wait(0.05)

    def _send_until_lost(self, connection: stomp.Connection12) -> None:
        for number in list(self._pending):
            self._send(connection, number)
        while not (self._lost.is_set() or (self._stopping.is_set() and not self._pending)):
            with self._changed:
                full = len(self._pending) >= OUTSTANDING or self._stopping.is_set()
                if full:
                    self._changed.wait(0.2)
                    continue
                number = self._next
                self._next += 1
                self._pending[number] = None
            self._send(connection, number)
            if self._pause_seconds:
                self._stopping.wait(self._pause_seconds)

    def _send(self, connection: stomp.Connection12, number: int) -> None:
        connection.send(
            self.destination, f"message {number}", receipt=str(number), persistent="true"
        )

    def wait_receipts(self, count: int) -> None:
        """Wait until ``count`` more messages have their receipt."""
        wanted = len(self.receipted) + count
        wait_until(
            lambda: len(self.receipted) >= wanted,
            what=f"the producer has {count} more receipts",
        )

    def finish(self) -> set[int]:
        """Stop sending and return the numbers of all messages with a receipt."""
        self._stopping.set()
        self.join(120)
        assert not self.is_alive(), "the producer did not stop"
        return set(self.receipted)

    def __enter__(self) -> "Producer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()


class Consumer(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    """Collects the messages of a queue, acknowledging each as it comes."""

    def __init__(self, port: int, destination: str, *, acknowledge: bool = True) -> None:
        self.received: Counter[int] = Counter()
        self.order: list[int] = []
        self.redelivered: set[int] = set()
        self.errors: list[str] = []
        self._acknowledge = acknowledge
        self.connection = connect([port], self)
        self.connection.subscribe(
            destination, id="1", ack="client-individual", headers={"prefetch-count": "10000"}
        )

    def on_message(self, frame: Frame) -> None:
        """Acknowledge and note a message."""
        if self._acknowledge:
            self.connection.ack(frame.headers["ack"])
        # Only now: whoever waits for the last message may disconnect as soon as it is noted.
        number = int(str(frame.body).split()[1])
        if frame.headers.get("redelivered") == "true":
            self.redelivered.add(number)
        self.order.append(number)
        self.received[number] += 1

    def on_error(self, frame: Frame) -> None:
        """Note an ERROR frame."""
        self.errors.append(f"{frame.headers} {frame.body}")

    def wait_for(self, condition: Callable[["Consumer"], bool], what: str) -> "Consumer":
        """Wait until ``condition`` of this consumer holds."""
        wait_until(lambda: condition(self), what=what)
        return self

    def close(self) -> None:
        """Disconnect once all acknowledgements are stored."""
        self.connection.disconnect(receipt="bye")  # without one stomp.py does not wait


def receive_all(port: int, destination: str, expected: set[int]) -> Consumer:
    """Consume until everything ``expected`` was received; fails with what is missing."""
    consumer = Consumer(port, destination)
    try:
        consumer.wait_for(
            lambda c: expected <= c.received.keys(),
            f"all {len(expected)} receipted messages are received",
        )
    except AssertionError as error:
        missing = sorted(expected - consumer.received.keys())
        raise AssertionError(f"{error}; {len(missing)} missing, first {missing[:10]}") from None
    finally:
        consumer.close()
    return consumer


def _named(headers: dict[str, str]) -> dict[str, str]:
    """Return a frame's headers: those that begin like a constant are named as they are."""
    return {
        name if name[0] == "_" or name[0].isupper() else name.replace("_", "-"): value
        for name, value in headers.items()
    }


@contextlib.contextmanager
def served_through_it(*nodes: NodeProcess) -> Iterator[Producer]:
    """Send messages to whichever of the nodes serves, before, during and after the block.

    What happens in it may delay them, and lose none: who serves in the end delivers all.
    """
    with Producer([node.port for node in nodes], QUEUE) as producer:
        producer.wait_receipts(20)
        yield producer
        producer.wait_receipts(20)
        receipted = producer.finish()
    receive_all(wait_any_serving(nodes).port, QUEUE, receipted)


class Client:
    """A client of one node, which waits for the receipt of each thing that it says.

    Headers are keywords with underscores for dashes; a plain name is that of a queue.
    """

    def __init__(
        self,
        node: NodeProcess | int,
        client_id: str | None = None,
        login: Login | None = None,
    ) -> None:
        """Log in at a node, or at a port."""
        address = BrokerAddress("127.0.0.1", node if isinstance(node, int) else node.port)
        # Without heart-beats: it is silent while another client is looked at.
        self.connection = Connection.open(
            address, login, client_id=client_id, timeout_seconds=120, heart_beat_ms=0
        )
        self.receipts: set[str] = set()
        self.messages: list[ServerFrame] = []
        """Those that came and that nobody has taken out yet."""
        self._numbers = itertools.count(1)

    def hear(self) -> list[ServerFrame]:
        """Take what came; return the messages."""
        for frame in self.connection.exchange(0.05):
            if frame.command == "RECEIPT":
                self.receipts.add(frame.headers["receipt-id"])
            elif frame.command == "MESSAGE":
                self.messages.append(frame)
        return self.messages

    def write(self, command: str, body: str | bytes = b"", **headers: str) -> str:
        """Send a frame; return the receipt that it asks for."""
        receipt = f"r{next(self._numbers)}"
        data = body.encode() if isinstance(body, str) else body
        self.connection.send(command, {**_named(headers), "receipt": receipt}, data)
        self.hear()  # it is on its way only then
        return receipt

    def has(self, *receipts: str) -> bool:
        """Return whether all of these receipts came."""
        if not self.receipts.issuperset(receipts):
            self.hear()
        return self.receipts.issuperset(receipts)

    def answered(self, *receipts: str) -> None:
        """Wait for receipts."""
        wait_until(lambda: self.has(*receipts), what=f"the receipts {receipts}")

    def do(self, command: str, body: str | bytes = b"", **headers: str) -> None:
        """Send a frame and wait until it is done; raises BrokerRefused."""
        self.answered(self.write(command, body, **headers))

    def send(self, to: str, *bodies: str | bytes, **headers: str) -> None:
        """Send messages, and wait until all are stored; raises BrokerRefused."""
        to = destination(to)
        self.answered(*[self.write("SEND", body, destination=to, **headers) for body in bodies])

    def subscribe(self, to: str, **headers: str) -> None:
        """Subscribe under the name of the destination; by default each message is answered."""
        said = {"id": to, "destination": destination(to), "ack": "client-individual"}
        self.do("SUBSCRIBE", **{**said, **headers})

    def waits(self, count: int) -> list[ServerFrame]:
        """Wait until so many messages are here, and return all."""
        wait_until(lambda: len(self.hear()) >= count, what=f"{count} messages")
        return self.messages

    def holds(self, count: int, to: str, **headers: str) -> list[str]:
        """Subscribe, wait for so many messages, and return their bodies; they are not answered."""
        self.messages.clear()
        self.subscribe(to, **headers)
        return [frame.body.decode() for frame in self.waits(count)]

    def acknowledges(self, count: int = 1) -> None:
        """Acknowledge the first messages of those that are here."""
        frames = [self.messages.pop(0) for _ in range(count)]
        self.answered(*[self.write("ACK", id=frame.headers["ack"]) for frame in frames])

    def rejects(self) -> None:
        """Wait for a message and reject it."""
        self.waits(1)
        self.do("NACK", id=self.messages.pop().headers["ack"])

    def takes(self, count: int, to: str, **headers: str) -> list[str]:
        """Take so many messages, acknowledge them, and no more are there; return their bodies."""
        self.messages.clear()
        self.subscribe(to, **headers)
        answers: list[str] = []

        def have_come() -> bool:
            self.hear()
            new = self.messages[len(answers) :]
            answers.extend(self.write("ACK", id=frame.headers["ack"]) for frame in new)
            return len(answers) >= count

        wait_until(have_come, what=f"{count} messages of {to}")
        self.answered(*answers)
        self.do("UNSUBSCRIBE", id=to)
        return [frame.body.decode() for frame in self.messages]

    def browses(self, queue: str) -> list[str]:
        """Look through a queue until its end is told; return the bodies of what it has."""
        self.messages.clear()
        self.subscribe(queue, browser="true")
        wait_until(
            lambda: any(frame.headers.get("browser") == "end" for frame in self.hear()),
            what=f"the end of {queue}",
        )
        self.do("UNSUBSCRIBE", id=queue)
        *shown, end = self.messages
        assert end.headers.get("browser") == "end", "something came after the end"
        return [frame.body.decode() for frame in shown]

    def close(self) -> None:
        """Be gone without a word."""
        self.connection.close()


def destination(to: str) -> str:
    """Return a destination: a plain name is that of a queue."""
    return to if to.startswith("/") else f"/queue/{to}"


@contextlib.contextmanager
def connecting() -> Iterator[Callable[..., Client]]:
    """Give what makes a client, which the end of the block closes."""
    with contextlib.ExitStack() as closing:

        def made(node: NodeProcess, client_id: str | None = None) -> Client:
            client = Client(node, client_id)
            closing.callback(client.close)
            return client

        yield made


def take_all(port: int, to: str, login: Login | None = None) -> list[ServerFrame]:
    """Take everything out of a queue, in order.

    The end is a message that is not stored: nothing depends on how soon messages come.
    """
    client = Client(port, login=login)
    client.send(to, "", persistent="false", end="true")
    client.subscribe(to)
    taken = 0

    def has_ended() -> bool:
        nonlocal taken
        client.hear()
        while taken < len(client.messages):  # more come while one is acknowledged
            client.write("ACK", id=client.messages[taken].headers["ack"])
            taken += 1
        return any("end" in frame.headers for frame in client.messages)

    wait_until(has_ended, what="everything is taken")
    client.do("DISCONNECT")
    client.close()
    return client.messages[:-1]
