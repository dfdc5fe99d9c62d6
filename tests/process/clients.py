"""Clients of a failing-over pair, on stomp-py: a producer that counts receipts, a consumer."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

import stomp
from stomp.exception import StompException
from stomp.utils import Frame

from orthia.broker.client.connection import BrokerAddress, Connection, Login, ServerFrame
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


def take_all(port: int, destination: str, login: Login | None = None) -> list[ServerFrame]:
    """Take everything out of a queue, in order.

    The end is a message that is not stored: nothing depends on how soon messages come.
    """
    taken: list[ServerFrame] = []
    address = BrokerAddress("127.0.0.1", port)
    client = Connection.open(address, login, timeout_seconds=120, heart_beat_ms=0)
    end = {"destination": destination, "persistent": "false", "end": "true", "receipt": "sent"}
    client.send("SEND", end)
    wait_until(lambda: client.exchange(0.1), what="the end is in the queue")
    client.send("SUBSCRIBE", {"id": "1", "destination": destination, "ack": "client-individual"})

    def has_ended() -> bool:
        for frame in client.exchange(0.1):
            assert frame.command == "MESSAGE", frame
            client.send("ACK", {"id": frame.headers["ack"]})
            taken.append(frame)
        return bool(taken) and "end" in taken[-1].headers

    wait_until(has_ended, what="everything is taken")
    client.send("DISCONNECT", {"receipt": "bye"})
    wait_until(lambda: client.exchange(0.1), what="all is acknowledged")
    client.close()
    return taken[:-1]
