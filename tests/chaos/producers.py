"""The clients of a run that send."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from orthia.broker.client.connection import Connection, ConnectionLost, ServerFrame
from tests.chaos.clients import Given, StompClient, body_of, group_of, lane_of, number_of
from tests.chaos.history import Kind

TRANSACTION_MESSAGES = 3
_TRANSACTION_PAUSE_SECONDS = 0.2
LATE_SECONDS = 1.0
"""A producer that was held up catches up for so long and no longer."""


@dataclass(frozen=True)
class Pace:
    """How a producer sends."""

    per_second: float
    outstanding: int = 20
    """Messages sent and not yet confirmed, at most."""
    burst: int = 1
    """Messages sent at once."""


@dataclass(frozen=True)
class Manner:
    """What a producer asks for with each message."""

    lives_seconds: tuple[float, float] | None = None
    """For how long it is not expired, from least to most."""
    delays_seconds: tuple[float, float] | None = None
    """How much later it is delivered, from least to most."""
    duplicate_ids: bool = False
    """Whether it is stored once, however often it is sent."""
    groups: bool = False
    """Whether it is of a group."""
    lanes: bool = False
    """Whether it says what selectors look at."""


@dataclass(slots=True)
class _Pending:
    """A message that is not confirmed."""

    queue: str
    headers: dict[str, str]
    due_at: float


class Producer(StompClient):
    """Sends numbered messages with receipts to one queue or to many in turn.

    After a lost connection it sends again, in order, what was not confirmed.
    """

    def __init__(
        self,
        name: str,
        queues: Sequence[str],
        given: Given,
        pace: Pace,
        manner: Manner | None = None,
    ) -> None:
        super().__init__(name, given)
        self._queues = list(queues)
        self._pace = pace
        self._manner = manner or Manner()
        self._sent = 0
        self._pending: dict[str, _Pending] = {}
        self.confirmed = 0
        """How many messages have their receipt."""

    def is_done(self) -> bool:
        """Tell whether it is stopped and everything sent is confirmed."""
        return self._abandoned.is_set() or (self._stopping.is_set() and not self._pending)

    def work(self, connection: Connection) -> None:
        """Send again what is pending, then new messages."""
        for name, pending in list(self._pending.items()):
            self._send(connection, name, pending)
        pause_seconds = self._pace.burst / self._pace.per_second
        next_at = time.monotonic()
        while not self.is_done():
            now = time.monotonic()
            room = self._pace.outstanding - len(self._pending)
            if now >= next_at and room >= self._pace.burst and not self._stopping.is_set():
                next_at = max(next_at + pause_seconds, now - LATE_SECONDS)
                for _ in range(self._pace.burst):
                    self._send_next(connection)
            for frame in connection.exchange(min(0.1, pause_seconds)):
                self._confirm(frame)

    def _send_next(self, connection: Connection) -> None:
        name = f"{self.name}/{self._sent}"
        queue = self._queues[self._sent % len(self._queues)]
        self._sent += 1
        pending = self._pending[name] = self._asking(name, queue)
        self._send(connection, name, pending)

    def _asking(self, name: str, queue: str) -> _Pending:
        """Return what a message asks for each time it is sent."""
        headers = {"destination": queue, "receipt": name, "persistent": "true"}
        manner, due_at = self._manner, 0.0
        if manner.duplicate_ids:
            headers["_AMQ_DUPL_ID"] = name
        if manner.groups:
            headers["JMSXGroupID"] = group_of(name)
        if manner.lanes:
            headers["lane"] = str(lane_of(name))
        if manner.delays_seconds is not None:
            delay_seconds = self._random.uniform(*manner.delays_seconds)
            due_at = time.monotonic() + delay_seconds
            if number_of(name) % 2:
                headers["AMQ_SCHEDULED_DELAY"] = str(int(delay_seconds * 1000))
            else:
                headers["AMQ_SCHEDULED_TIME"] = str(int((time.time() + delay_seconds) * 1000))
        return _Pending(queue, headers, due_at)

    def _send(self, connection: Connection, name: str, pending: _Pending) -> None:
        headers, expires_at = pending.headers, 0.0
        if self._manner.lives_seconds is not None:
            lives_seconds = self._random.uniform(*self._manner.lives_seconds)
            # In this order: what is between them makes nothing come late.
            headers = headers | {"expires": str(int((time.time() + lives_seconds) * 1000))}
            expires_at = time.monotonic() + lives_seconds
        self.note(
            Kind.SEND, queue=pending.queue, body=name, expires_at=expires_at, due_at=pending.due_at
        )
        connection.send("SEND", headers, body_of(name))

    def _confirm(self, frame: ServerFrame) -> None:
        name = frame.headers["receipt-id"]
        pending = self._pending.pop(name, None)
        if pending is not None:
            self.confirmed += 1
            self.note(Kind.RECEIPT, queue=pending.queue, body=name)


class TransactionalProducer(StompClient):
    """Sends transactions of messages over two queues; commits most and aborts some.

    One whose commit was not confirmed is left: it happened as a whole, or not at all.
    """

    def __init__(self, queues: Sequence[str], given: Given) -> None:
        super().__init__("transactional", given)
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
            self._stopping.wait(_TRANSACTION_PAUSE_SECONDS)

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


class Publisher(StompClient):
    """Sends to a topic. What is not confirmed when the connection is lost is not sent again.

    Messages are numbered anew on each connection: within one a subscriber misses none.
    """

    def __init__(self, topic: str, given: Given, per_second: float) -> None:
        super().__init__(f"publisher-{topic.rpartition('/')[2]}", given)
        self._topic = topic
        self._period_seconds = 1 / per_second
        self._connections = 0
        self.confirmed = 0
        """How many messages have their receipt."""

    def work(self, connection: Connection) -> None:
        """Send until stopped or lost."""
        self._connections += 1
        number = 0
        while not self._stopping.is_set():
            name = f"{self.name}.{self._connections}/{number}"
            number += 1
            self.note(Kind.PUBLISH, queue=self._topic, body=name)
            headers = {"destination": self._topic, "receipt": name}
            connection.send("SEND", headers, body_of(name))
            next_at = time.monotonic() + self._period_seconds
            while (left := next_at - time.monotonic()) > 0:
                self.confirmed += len(connection.exchange(left))
