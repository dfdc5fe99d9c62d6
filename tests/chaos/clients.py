"""The clients of a run: producers, consumers, and one that does both in transactions.

Each runs on a thread of its own, goes to whichever node serves, and notes all it does.
"""

import random
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing, suppress

from broker.client import (
    BrokerAddress,
    BrokerRefused,
    Connection,
    ConnectionLost,
    ServerFrame,
)
from tests.chaos.checker import RESULT_OF
from tests.chaos.history import History, Kind, Operation

HEART_BEAT_MS = 500
CONNECT_SECONDS = 1.5
RETRY_SECONDS = 0.1
OUTSTANDING = 20
"""Messages sent and not yet confirmed."""
PREFETCH = 20
CUMULATIVE = 5
"""A cumulative acknowledgement is sent for so many messages."""
MAX_PADDING_BYTES = 4_096
TRANSACTION_MESSAGES = 3


def body_of(name: str) -> bytes:
    """Return the whole body of the message ``name``: the name and a padding of its own."""
    seed = zlib.crc32(name.encode())
    size = seed % MAX_PADDING_BYTES if seed % 7 == 0 else seed % 200
    return f"{name} ".encode() + bytes([97 + seed % 26]) * size


def name_of(body: bytes) -> str:
    """Return the name of the message whose body this is, or one that nobody has ever sent."""
    name = body.partition(b" ")[0].decode(errors="replace")
    return name if body == body_of(name) else f"corrupt/{body[:60]!r}"


class Client(threading.Thread, ABC):
    """Connects, works until the connection is lost, and connects again."""

    def __init__(self, name: str, ports: Sequence[int], history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._ports = list(ports)
        self._history = history
        self._random = random.Random(f"{seed} {name}")
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self.failure: Exception | None = None
        """What ended the client before its time."""

    def note(self, kind: Kind, **what: object) -> None:
        """Add an operation to the history."""
        self._history.add(Operation(kind, self.name, **what))  # type: ignore[arg-type]

    def stop(self) -> None:
        """Have the client end as soon as nothing is left for it to do."""
        self._stopping.set()

    def abandon(self) -> None:
        """Have the client end at once."""
        self._abandoned.set()
        self._stopping.set()

    def run(self) -> None:
        """Work until stopped."""
        try:
            while not self.is_done():
                self._work_once()
        except Exception as error:  # noqa: BLE001 - it is told with the result of the run
            self.failure = error

    def is_done(self) -> bool:
        """Tell whether a stopped client has nothing left to do."""
        return self._stopping.is_set()

    def _work_once(self) -> None:
        port = self._ports[0]
        try:
            connection = Connection.open(
                BrokerAddress("127.0.0.1", port),
                timeout_seconds=CONNECT_SECONDS,
                heart_beat_ms=HEART_BEAT_MS,
            )
        except (ConnectionLost, BrokerRefused):
            self._ports = [*self._ports[1:], port]
            self._stopping.wait(RETRY_SECONDS)
            return
        with closing(connection):
            self.note(Kind.CONNECTED, port=port)
            with suppress(ConnectionLost, BrokerRefused):
                self.work(connection)
            self.note(Kind.LOST)

    @abstractmethod
    def work(self, connection: Connection) -> None:
        """Work on a new connection until it is lost (raise ConnectionLost) or all is done."""


class Producer(Client):
    """Sends numbered messages with receipts to one queue, at a steady rate.

    After a lost connection it sends again, in order, what was not confirmed.
    """

    def __init__(
        self,
        queue: str,
        ports: Sequence[int],
        history: History,
        seed: int,
        per_second: float,
    ) -> None:
        super().__init__(f"producer-{queue}", ports, history, seed)
        self._queue = queue
        self._period_seconds = 1 / per_second
        self._sent = 0
        self._pending: dict[str, None] = {}
        self.confirmed = 0
        """How many messages have their receipt."""

    def is_done(self) -> bool:
        """Tell whether it is stopped and everything sent is confirmed."""
        return self._abandoned.is_set() or (self._stopping.is_set() and not self._pending)

    def work(self, connection: Connection) -> None:
        """Send again what is pending, then new messages."""
        for name in list(self._pending):
            self._send(connection, name)
        next_at = time.monotonic()
        while not self.is_done():
            now = time.monotonic()
            if now >= next_at and len(self._pending) < OUTSTANDING and not self._stopping.is_set():
                next_at = max(next_at + self._period_seconds, now - 1)
                name = f"{self.name}/{self._sent}"
                self._sent += 1
                self._pending[name] = None
                self._send(connection, name)
            for frame in connection.exchange(min(0.1, self._period_seconds)):
                self._confirm(frame)

    def _send(self, connection: Connection, name: str) -> None:
        self.note(Kind.SEND, queue=self._queue, body=name)
        headers = {"destination": self._queue, "receipt": name, "persistent": "true"}
        connection.send("SEND", headers, body_of(name))

    def _confirm(self, frame: ServerFrame) -> None:
        name = frame.headers["receipt-id"]
        if name in self._pending:
            del self._pending[name]
            self.confirmed += 1
        self.note(Kind.RECEIPT, queue=self._queue, body=name)


class TransactionalProducer(Client):
    """Sends transactions of messages over two queues; commits most and aborts some.

    One whose commit was not confirmed is left: it happened as a whole, or not at all.
    """

    def __init__(
        self, queues: Sequence[str], ports: Sequence[int], history: History, seed: int
    ) -> None:
        super().__init__("transactional", ports, history, seed)
        self._queues = list(queues)
        self._transactions = 0
        self._sent = 0
        self.confirmed = 0
        """How many transactions are committed."""

    def work(self, connection: Connection) -> None:
        """Do one transaction after the other."""
        while not self._stopping.is_set():
            self._transactions += 1
            transaction = f"t{self._transactions}"
            connection.send("BEGIN", {"transaction": transaction})
            for _ in range(TRANSACTION_MESSAGES):
                self._send(connection, transaction)
            if self._random.random() < 0.1:
                self.note(Kind.ABORT, transaction=transaction)
                self._end(connection, "ABORT", transaction)
                continue
            self.note(Kind.COMMIT, transaction=transaction)
            self._end(connection, "COMMIT", transaction)
            self.confirmed += 1
            self.note(Kind.COMMITTED, transaction=transaction)
            self._stopping.wait(0.1)

    def _send(self, connection: Connection, transaction: str) -> None:
        queue = self._random.choice(self._queues)
        name = f"{self.name}/{self._sent}"
        self._sent += 1
        self.note(Kind.SEND, queue=queue, body=name, transaction=transaction)
        headers = {"destination": queue, "transaction": transaction, "persistent": "true"}
        connection.send("SEND", headers, body_of(name))

    def _end(self, connection: Connection, command: str, transaction: str) -> None:
        connection.send(command, {"transaction": transaction, "receipt": transaction})
        while not any(frame.command == "RECEIPT" for frame in connection.exchange(0.5)):
            if self._abandoned.is_set():
                raise ConnectionLost("abandoned")


class Consumer(Client):
    """Receives one queue and acknowledges with receipts; now and then it crashes."""

    def __init__(
        self,
        name: str,
        queue: str,
        ports: Sequence[int],
        history: History,
        seed: int,
        *,
        ack: str = "client-individual",
        crash_probability: float = 0.0,
    ) -> None:
        """``crash_probability`` is that of each message to be the last before a crash."""
        super().__init__(name, ports, history, seed)
        self._queue = queue
        self._ack = ack
        self._crash_probability = crash_probability
        self._unacknowledged: list[tuple[int, str]] = []
        self._asked: dict[str, list[int]] = {}

    def work(self, connection: Connection) -> None:
        """Receive until stopped, lost, or crashed."""
        self._unacknowledged, self._asked = [], {}
        subscribe = {"id": "1", "destination": self._queue, "ack": self._ack}
        connection.send("SUBSCRIBE", subscribe | {"prefetch-count": str(PREFETCH)})
        while not self._stopping.is_set():
            frames = connection.exchange(0.2)
            for frame in frames:
                if frame.command == "RECEIPT":
                    self._acknowledged(frame)
                    continue
                self.received(connection, frame)
                if self._random.random() < self._crash_probability:
                    return
            if self._unacknowledged and not frames:
                self._acknowledge(connection)

    def received(self, connection: Connection, frame: ServerFrame) -> None:
        """Note a message and acknowledge what is due."""
        message_id = self.note_received(frame)
        self._unacknowledged.append((message_id, frame.headers["ack"]))
        if self._ack == "client-individual" or len(self._unacknowledged) >= CUMULATIVE:
            self._acknowledge(connection)

    def note_received(self, frame: ServerFrame) -> int:
        """Note a message and return its id."""
        message_id = int(frame.headers["message-id"])
        self.note(
            Kind.RECEIVE,
            queue=self._queue,
            body=name_of(frame.body),
            message_id=message_id,
            redelivered=frame.headers.get("redelivered") == "true",
        )
        return message_id

    def _acknowledge(self, connection: Connection) -> None:
        receipt = f"ack-{self._unacknowledged[-1][0]}"
        self._asked[receipt] = [message_id for message_id, _ in self._unacknowledged]
        connection.send("ACK", {"id": self._unacknowledged[-1][1], "receipt": receipt})
        self._unacknowledged = []

    def _acknowledged(self, frame: ServerFrame) -> None:
        for message_id in self._asked.pop(frame.headers["receipt-id"]):
            self.note(Kind.ACKED, message_id=message_id)


class Transformer(Consumer):
    """Consumes a queue and sends a result of each message to another, both in one transaction."""

    def __init__(
        self, source: str, target: str, ports: Sequence[int], history: History, seed: int
    ) -> None:
        super().__init__("transformer", source, ports, history, seed)
        self._target = target
        self._attempts = 0
        self._committing: dict[str, int] = {}

    def received(self, connection: Connection, frame: ServerFrame) -> None:
        """Acknowledge the message and send its result, together."""
        message_id = self.note_received(frame)
        self._attempts += 1
        transaction = f"{RESULT_OF}{message_id}-{self._attempts}"
        name = f"{RESULT_OF}{self._queue}/{message_id}/{self._attempts}"
        inside = {"transaction": transaction}
        connection.send("BEGIN", inside)
        connection.send("ACK", {"id": frame.headers["ack"], **inside})
        self.note(Kind.SEND, queue=self._target, body=name, transaction=transaction)
        result = {"destination": self._target, "persistent": "true", **inside}
        connection.send("SEND", result, body_of(name))
        self.note(Kind.COMMIT, transaction=transaction)
        self._committing[transaction] = message_id
        connection.send("COMMIT", {"receipt": transaction, **inside})

    def _acknowledged(self, frame: ServerFrame) -> None:
        transaction = frame.headers["receipt-id"]
        self.note(Kind.COMMITTED, transaction=transaction)
        self.note(Kind.ACKED, message_id=self._committing.pop(transaction))
