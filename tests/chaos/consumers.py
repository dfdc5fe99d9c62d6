"""The clients of a run that receive, and one that receives and sends in transactions."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orthia.broker.client.connection import Connection, ServerFrame
from tests.chaos.checker import RESULT_OF
from tests.chaos.clients import Given, StompClient, body_of, name_of
from tests.chaos.history import Kind

PREFETCH = 20
CUMULATIVE = 5
"""A cumulative acknowledgement is sent for so many messages."""
_POISONED = 8
"""Every so many-th message of a queue that is rejected is rejected each time."""
_SWEPT_AT_ONCE = 250
_QUIET_SECONDS = 0.4
_ORIGINAL = "_AMQ_ORIG_QUEUE"


@dataclass(frozen=True)
class Habits:
    """How a consumer takes messages."""

    ack: str = "client-individual"
    prefetch: int = PREFETCH
    crash_probability: float = 0.0
    """That of each message to be the last before a crash."""
    moved: str = ""
    """What became of all messages of its queue, before they came to it."""
    pause_seconds: float = 0.0
    """How long it rests after each message."""
    rejects: bool = False
    """Whether it sends some messages back, each time."""
    selector: str = ""


class Consumer(StompClient):
    """Receives one queue and acknowledges with receipts; now and then it crashes."""

    def __init__(
        self,
        name: str,
        queue: str,
        given: Given,
        habits: Habits | None = None,
    ) -> None:
        super().__init__(name, given)
        self._queue = queue
        self._habits = habits or Habits()
        self._unacknowledged: list[tuple[int, str]] = []
        self._asked: dict[str, list[int]] = {}

    def hurry(self) -> None:
        """Crash no more and rest no more: its queue is to become empty."""
        self._habits = replace(self._habits, crash_probability=0.0, pause_seconds=0.0)

    def work(self, connection: Connection) -> None:
        """Receive until stopped, lost, or crashed."""
        self._unacknowledged, self._asked = [], {}
        self.subscribe(connection, "1", self._queue)
        while not self._stopping.is_set():
            frames = connection.exchange(0.2)
            for frame in frames:
                if frame.command == "RECEIPT":
                    self._acknowledged(frame)
                    continue
                self.received(connection, frame)
                if self._random.random() < self._habits.crash_probability:
                    return
                if self._habits.pause_seconds:
                    self._stopping.wait(self._habits.pause_seconds)
            if self._unacknowledged and not frames:
                self._acknowledge(connection)

    def subscribe(self, connection: Connection, identity: str, queue: str) -> None:
        """Subscribe to a queue."""
        headers = {"id": identity, "destination": queue, "ack": self._habits.ack}
        headers["prefetch-count"] = str(self._habits.prefetch)
        if self._habits.selector:
            headers["selector"] = self._habits.selector
        connection.send("SUBSCRIBE", headers | self.subscribe_headers())

    def subscribe_headers(self) -> dict[str, str]:
        """Return what else a SUBSCRIBE says."""
        return {}

    def received(self, connection: Connection, frame: ServerFrame) -> None:
        """Note a message and acknowledge what is due."""
        message_id = self.note_received(frame)
        if self._habits.rejects and is_poisoned(name_of(frame.body)):
            connection.send("NACK", {"id": frame.headers["ack"]})
            return
        self._unacknowledged.append((message_id, frame.headers["ack"]))
        individually = self._habits.ack == "client-individual"
        if individually or len(self._unacknowledged) >= CUMULATIVE:
            self._acknowledge(connection)

    def note_received(self, frame: ServerFrame) -> int:
        """Note a message and return its id."""
        message_id = int(frame.headers["message-id"])
        self.note(
            Kind.RECEIVE,
            queue=self.source(frame),
            body=name_of(frame.body),
            message_id=message_id,
            redelivered=frame.headers.get("redelivered") == "true",
            moved=self._habits.moved,
        )
        return message_id

    def source(self, frame: ServerFrame) -> str:
        """Return what a message was sent to, by its name in the history."""
        is_moved = bool(self._habits.moved)
        queue = frame.headers.get(_ORIGINAL, "") if is_moved else frame.headers["destination"]
        return queue.removeprefix("/queue/")

    def _acknowledge(self, connection: Connection) -> None:
        receipt = f"ack-{self._unacknowledged[-1][0]}"
        self._asked[receipt] = [message_id for message_id, _ in self._unacknowledged]
        for message_id in self._asked[receipt]:
            self.note(Kind.ACK, message_id=message_id)
        connection.send("ACK", {"id": self._unacknowledged[-1][1], "receipt": receipt})
        self._unacknowledged = []

    def _acknowledged(self, frame: ServerFrame) -> None:
        for message_id in self._asked.pop(frame.headers["receipt-id"]):
            self.note(Kind.ACKED, message_id=message_id)


class Sweeper(Consumer):
    """Receives very many queues, some hundreds at a time."""

    def __init__(self, name: str, queues: Sequence[str], given: Given) -> None:
        super().__init__(name, "", given, Habits(prefetch=5))
        self._every = list(queues)
        self._begin = 0

    def work(self, connection: Connection) -> None:
        """Subscribe to some, take what there is, and go on to the next, round and round."""
        self._unacknowledged, self._asked = [], {}
        while not self._stopping.is_set():
            some = self._every[self._begin : self._begin + _SWEPT_AT_ONCE]
            for number, queue in enumerate(some):
                self.subscribe(connection, str(number), queue)
            quiet_at = time.monotonic() + _QUIET_SECONDS
            while time.monotonic() < quiet_at and not self._stopping.is_set():
                for frame in connection.exchange(0.1):
                    quiet_at = time.monotonic() + _QUIET_SECONDS
                    if frame.command == "RECEIPT":
                        self._acknowledged(frame)
                    else:
                        self.received(connection, frame)
            for number, _ in enumerate(some):
                connection.send("UNSUBSCRIBE", {"id": str(number)})
            self._begin = (self._begin + _SWEPT_AT_ONCE) % len(self._every)


class Transformer(Consumer):
    """Consumes a queue and sends a result of each message to another, both in one transaction."""

    def __init__(self, source: str, target: str, given: Given) -> None:
        super().__init__("transformer", source, given)
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
        self.note(Kind.ACK, message_id=message_id)
        self._committing[transaction] = message_id
        connection.send("COMMIT", {"receipt": transaction, **inside})

    def _acknowledged(self, frame: ServerFrame) -> None:
        transaction = frame.headers["receipt-id"]
        self.note(Kind.COMMITTED, transaction=transaction)
        self.note(Kind.ACKED, message_id=self._committing.pop(transaction))


class Subscriber(StompClient):
    """Receives a topic; now and then it crashes."""

    def __init__(
        self,
        name: str,
        topic: str,
        given: Given,
        crash_probability: float,
    ) -> None:
        super().__init__(name, given)
        self._topic = topic
        self._crash_probability = crash_probability
        self._connections = itertools.count(1)

    def work(self, connection: Connection) -> None:
        """Receive until stopped, lost, or crashed."""
        here = f"{self.name}.{next(self._connections)}"
        connection.send("SUBSCRIBE", {"id": "1", "destination": self._topic, "ack": "auto"})
        while not self._stopping.is_set():
            for frame in connection.exchange(0.2):
                body = name_of(frame.body)
                self.note(Kind.HEARD, queue=self._topic, body=body, transaction=here)
                if self._random.random() < self._crash_probability:
                    return


def is_poisoned(name: str) -> bool:
    """Return whether a message is one that consumers send back each time."""
    number = name.rpartition("/")[2]
    return number.isdecimal() and int(number) % _POISONED == 0
