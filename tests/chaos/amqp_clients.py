"""The clients of a run that speak AMQP.

An AMQP client gets a message as it was sent, without the broker's name for the copy. So each time
one is sent it has another message id, a number: that names the copy. Of what a STOMP client sent
the broker makes the message id, of its own name for the copy.
"""

import itertools
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Coordinator,
    Modified,
    Rejected,
    Source,
    TransactionalState,
)
from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    data_prefix,
    decode_body,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    header_of,
    properties_of,
    sections_of,
)
from orthia.broker.protocols.amqp.values import (
    Described,
    Symbol,
    Timestamp,
    ULong,
    Value,
)
from tests.chaos.checker import RESULT_OF
from tests.chaos.clients import (
    CONNECT_SECONDS,
    HEART_BEAT_MS,
    LARGE,
    Client,
    Given,
    body_of,
    group_of,
    lane_of,
    name_of,
    number_of,
)
from tests.chaos.consumers import is_poisoned
from tests.chaos.history import Kind
from tests.chaos.producers import LATE_SECONDS, Manner, Pace
from tests.chaos.subscriptions import TOPIC, subscription_name
from tests.support.amqp import AmqpConnection, Delivery, Lost, Outcome

_ATTEMPTS: Final = itertools.count(2**40)
"""Numbers each message that is sent, of all clients; higher than any that a store counts."""
_SELECTOR: Final = Symbol("apache.org:selector-filter:string")
_SELECTOR_CODE: Final = ULong(0x0000_468C_0000_0004)
_MESSAGES: Final = 3
_PAUSE_SECONDS: Final = 0.2
_ROLLED_BACK: Final = 0.1
"""How many transactions are."""
_LARGE_PROBABILITY: Final = 0.05
"""That of a message of a transaction to be stored outside of the journal."""
_TRANSFER_PAUSE_SECONDS: Final = 0.03
_SUBSCRIPTION: Final = "audit"
_UNSETTLED_STATE: Final = 2
_LEAVES_PROBABILITY: Final = 0.01
_ENDS_PROBABILITY: Final = 0.002
_AWAY_SECONDS: Final = 4.0


@dataclass(frozen=True)
class Message:
    """A message as the checker knows it."""

    name: str
    id: int
    redelivered: bool


def encoded(
    name: str,
    *,
    header: Header | None = None,
    annotations: dict[object, Value] | None = None,
    group: str | None = None,
    application: dict[str, Value] | None = None,
) -> bytes:
    """Return the message of a name, with a message id that no other one has."""
    body = body_of(name)
    return b"".join(
        (
            encode_header(header or Header(durable=True)),
            encode_annotations(annotations) if annotations else b"",
            encode_properties(Properties(message_id=ULong(next(_ATTEMPTS)), group_id=group)),
            encode_application_properties(application) if application else b"",
            data_prefix(len(body)),
            body,
        )
    )


def decoded(payload: bytes) -> Message:
    """Return what a message is; raises AmqpDecodeError."""
    sections = sections_of(payload)
    head = payload[: sections.head]
    value = decode_body(sections, payload[sections.head :]).value
    body = value.encode() if isinstance(value, str) else value
    message_id = properties_of(head, sections).message_id
    if isinstance(message_id, str):
        message_id = int(message_id.removeprefix("ID:"))
    assert isinstance(body, bytes), body
    assert isinstance(message_id, int), message_id
    return Message(name_of(body), int(message_id), header_of(head, sections).delivery_count > 0)


class AmqpClient(Client):
    """A client that speaks AMQP."""

    @override
    def visit(self, port: int) -> bool:
        try:
            connection = AmqpConnection.open(
                port, self.name, timeout_seconds=CONNECT_SECONDS, idle_ms=HEART_BEAT_MS
            )
        except Lost:
            return False
        with closing(connection):
            self.note(Kind.CONNECTED, port=port)
            with suppress(Lost):
                self.work(connection)
            self.note(Kind.LOST)
        return True

    @abstractmethod
    def work(self, connection: AmqpConnection) -> None:
        """Work on a new connection until it is lost (raise Lost) or all is done."""


class AmqpProducer(AmqpClient):
    """Sends numbered messages to a queue, not settled: the broker accepts each.

    After a lost connection it sends again, in order, what was not accepted, with the same
    duplicate ids.
    """

    def __init__(
        self, name: str, queue: str, given: Given, pace: Pace, manner: Manner | None = None
    ) -> None:
        super().__init__(name, given)
        self._queue = queue
        self._pace = pace
        self._manner = manner or Manner()
        self._sent = 0
        self._pending: dict[str, float] = {}
        """When each message that is not accepted is due, of the monotonic clock; 0 is at once."""
        self._asked: dict[int, str] = {}
        self.confirmed = 0
        """How many messages are accepted."""

    @override
    def is_done(self) -> bool:
        return self._abandoned.is_set() or (self._stopping.is_set() and not self._pending)

    @override
    def work(self, connection: AmqpConnection) -> None:
        self._asked = {}
        link, waiting = connection.sender(self._queue), deque(self._pending)
        pause_seconds = self._pace.burst / self._pace.per_second
        next_at = time.monotonic()
        while not self.is_done():
            now = time.monotonic()
            room = self._pace.outstanding - len(self._pending)
            if now >= next_at and room >= self._pace.burst and not self._stopping.is_set():
                next_at = max(next_at + pause_seconds, now - LATE_SECONDS)
                waiting.extend(self._next_name() for _ in range(self._pace.burst))
            while waiting and connection.credit(link) > 0:
                self._send(connection, link, waiting.popleft())
            for event in connection.exchange(min(0.1, pause_seconds)):
                if isinstance(event, Outcome):
                    self._confirm(event)

    def _next_name(self) -> str:
        name = f"{self.name}/{self._sent}"
        self._sent += 1
        delays = self._manner.delays_seconds
        due_at = 0.0 if delays is None else time.monotonic() + self._random.uniform(*delays)
        self._pending[name] = due_at
        return name

    def _send(self, connection: AmqpConnection, link: int, name: str) -> None:
        manner, due_at = self._manner, self._pending[name]
        header, expires_at = Header(durable=True), 0.0
        if manner.lives_seconds is not None:
            lives_seconds = self._random.uniform(*manner.lives_seconds)
            header = Header(durable=True, ttl=int(lives_seconds * 1000))
            expires_at = time.monotonic() + lives_seconds
        application: dict[str, Value] = {}
        if manner.duplicate_ids:
            application["_AMQ_DUPL_ID"] = name
        if manner.lanes:
            application["lane"] = lane_of(name)
        self.note(Kind.SEND, queue=self._queue, body=name, expires_at=expires_at, due_at=due_at)
        message = encoded(
            name,
            header=header,
            annotations=_due(name, due_at) if due_at else None,
            group=group_of(name) if manner.groups else None,
            application=application,
        )
        self._transfer(connection, link, name, message)

    def _transfer(self, connection: AmqpConnection, link: int, name: str, message: bytes) -> None:
        self._asked[connection.send(link, message)] = name

    def _confirm(self, outcome: Outcome) -> None:
        name = self._asked.pop(outcome.id)
        if name not in self._pending:
            return
        del self._pending[name]
        # What a full store rejects is not sent again: it would come behind what was sent later.
        if isinstance(outcome.state, Accepted):
            self.confirmed += 1
            self.note(Kind.RECEIPT, queue=self._queue, body=name)


class AmqpUploader(AmqpProducer):
    """Sends each message over seconds, so that faults strike amid it."""

    @override
    def _transfer(self, connection: AmqpConnection, link: int, name: str, message: bytes) -> None:
        delivery_id, transfers = connection.transfers(link, message)
        self._asked[delivery_id] = name
        for transfer in transfers:
            connection.send_on(transfer)
            if self._abandoned.wait(_TRANSFER_PAUSE_SECONDS):
                break
            for event in connection.exchange(0):
                if isinstance(event, Outcome):
                    self._confirm(event)


def _due(name: str, due_at: float) -> dict[object, Value]:
    """Return the annotation by which a message comes later: one of the two that there are."""
    left_ms = max(1, int((due_at - time.monotonic()) * 1000))
    if number_of(name) % 2:
        return {Symbol("x-opt-delivery-delay"): ULong(left_ms)}
    return {Symbol("x-opt-delivery-time"): Timestamp(int(time.time() * 1000) + left_ms)}


class AmqpTransactionalProducer(AmqpClient):
    """Sends transactions of messages over two queues; commits most and rolls some back.

    One whose commit was not confirmed is left: it happened as a whole, or not at all.
    """

    def __init__(self, name: str, queues: Sequence[str], given: Given) -> None:
        super().__init__(name, given)
        self._queues = list(queues)
        self._transactions = 0
        self._sent = 0
        self.confirmed = 0
        """How many transactions are committed."""

    @override
    def work(self, connection: AmqpConnection) -> None:
        coordinator = connection.sender(Coordinator())
        links = {queue: connection.sender(queue) for queue in self._queues}
        while not self._stopping.is_set():
            self._transactions += 1
            transaction = f"{self.name}-{self._transactions}"
            txn_id = connection.declare(coordinator)
            for _ in range(_MESSAGES):
                queue = self._random.choice(self._queues)
                is_large = self._random.random() < _LARGE_PROBABILITY
                name = f"{f'{LARGE}-' * is_large}{self.name}/{self._sent}"
                self._sent += 1
                self.note(Kind.SEND, queue=queue, body=name, transaction=transaction)
                settled = self._random.random() < 0.5
                state = TransactionalState(txn_id)
                connection.send(links[queue], encoded(name), state, settled=settled)
            if self._random.random() < _ROLLED_BACK:
                self.note(Kind.ABORT, transaction=transaction)
                connection.discharge(coordinator, txn_id, fail=True)
                continue
            self.note(Kind.COMMIT, transaction=transaction)
            if not connection.discharge(coordinator, txn_id):
                self.note(Kind.ABORT, transaction=transaction)
                continue
            self.confirmed += 1
            self.note(Kind.COMMITTED, transaction=transaction)
            connection.exchange(0)
            self._stopping.wait(_PAUSE_SECONDS)


@dataclass(frozen=True)
class AmqpHabits:
    """How a consumer takes messages."""

    prefetch: int = 20
    crash_probability: float = 0.0
    """That of each message to be the last before a crash."""
    release_probability: float = 0.0
    """That of each message to be given back."""
    pause_seconds: float = 0.0
    """How long it rests after each message."""
    rejects: bool = False
    """Whether it rejects some messages, or says that their delivery failed, each time."""
    at_once: int = 1
    """How many messages it accepts by one disposition."""
    settles: bool = False
    """Whether it settles what it accepts itself, and hears no more of it."""
    selector: str = ""


class AmqpConsumer(AmqpClient):
    """Receives a queue and accepts what comes; now and then it crashes."""

    def __init__(
        self, name: str, queue: str, given: Given, habits: AmqpHabits | None = None
    ) -> None:
        super().__init__(name, given)
        self._queue = queue
        self._habits = habits or AmqpHabits()
        self._held: list[tuple[int, int]] = []
        """What it has and did not accept: the message's id and the delivery's."""
        self._asked: dict[int, int] = {}
        """By delivery: the messages that it accepted, and of which nothing came back yet."""

    @override
    def hurry(self) -> None:
        self._habits = replace(
            self._habits, crash_probability=0.0, release_probability=0.0, pause_seconds=0.0
        )

    @override
    def work(self, connection: AmqpConnection) -> None:
        self._held, self._asked = [], {}
        self.begin(connection)
        while not self._stopping.is_set():
            events = connection.exchange(0.2)
            for event in events:
                if isinstance(event, Outcome):
                    self._settled(event)
                    continue
                self.received(connection, event)
                if self._random.random() < self._habits.crash_probability:
                    return
                if self._habits.pause_seconds:
                    self._stopping.wait(self._habits.pause_seconds)
            if self._held and not events:
                self._accept(connection)

    @property
    def source(self) -> str:
        """Return what its messages were sent to, by its name in the history."""
        return self._queue

    def begin(self, connection: AmqpConnection) -> None:
        """Attach to the queue."""
        filters = {}
        if self._habits.selector:
            filters = {_SELECTOR: Described(_SELECTOR_CODE, self._habits.selector)}
        connection.receiver(Source(self._queue, filter=filters), self._habits.prefetch)

    def received(self, connection: AmqpConnection, delivery: Delivery) -> None:
        """Note a message and accept what is due."""
        message = self.note_received(delivery)
        if self._habits.rejects and is_poisoned(message.name):
            is_final = self._random.random() < 0.5
            state = Rejected() if is_final else Modified(delivery_failed=True)
            connection.settle(delivery.id, state=state, settled=True)
        elif self._random.random() < self._habits.release_probability:
            connection.settle(delivery.id, state=RELEASED, settled=True)
        else:
            self._held.append((message.id, delivery.id))
            if len(self._held) >= self._habits.at_once:
                self._accept(connection)

    def note_received(self, delivery: Delivery) -> Message:
        """Note a message and return it."""
        message = decoded(delivery.payload)
        self.note(
            Kind.RECEIVE,
            queue=self.source,
            body=message.name,
            message_id=message.id,
            redelivered=message.redelivered,
        )
        return message

    def _accept(self, connection: AmqpConnection) -> None:
        for message_id, delivery_id in self._held:
            self.note(Kind.ACK, message_id=message_id)
            if not self._habits.settles:
                self._asked[delivery_id] = message_id
        first, last = self._held[0][1], self._held[-1][1]
        connection.settle(first, last, settled=self._habits.settles)
        self._held = []

    def _settled(self, outcome: Outcome) -> None:
        if outcome.id in self._asked and isinstance(outcome.state, Accepted):
            self.note(Kind.ACKED, message_id=self._asked.pop(outcome.id))


class AmqpTransformer(AmqpConsumer):
    """Consumes a queue and sends a result of each message to another, both in one transaction."""

    def __init__(self, name: str, source: str, target: str, given: Given) -> None:
        super().__init__(name, source, given)
        self._target = target
        self._attempts = 0
        self._coordinator = self._link = 0
        self.hurries = False

    @override
    def hurry(self) -> None:
        self.hurries = True

    @override
    def begin(self, connection: AmqpConnection) -> None:
        self._coordinator = connection.sender(Coordinator())
        self._link = connection.sender(self._target)
        super().begin(connection)

    @override
    def received(self, connection: AmqpConnection, delivery: Delivery) -> None:
        message = self.note_received(delivery)
        self._attempts += 1
        transaction = f"{RESULT_OF}{message.id}-{self._attempts}"
        name = f"{RESULT_OF}{self._queue}/{message.id}/{self._attempts}"
        txn_id = connection.declare(self._coordinator)
        is_rolled_back = not self.hurries and self._random.random() < _ROLLED_BACK
        settled = is_rolled_back or self._random.random() < 0.5
        state = TransactionalState(txn_id, ACCEPTED)
        connection.settle(delivery.id, state=state, settled=settled)
        self.note(Kind.SEND, queue=self._target, body=name, transaction=transaction)
        connection.send(self._link, encoded(name), TransactionalState(txn_id), settled=True)
        if is_rolled_back:
            self.note(Kind.ABORT, transaction=transaction)
            connection.discharge(self._coordinator, txn_id, fail=True)
            return
        self.note(Kind.COMMIT, transaction=transaction)
        self.note(Kind.ACK, message_id=message.id)
        if not connection.discharge(self._coordinator, txn_id):
            raise Lost("the commit was refused")
        self.note(Kind.COMMITTED, transaction=transaction)
        self.note(Kind.ACKED, message_id=message.id)


class AmqpDurableSubscriber(AmqpConsumer):
    """Receives a topic by a durable subscription.

    Now and then it leaves, in order or by a crash, and comes back; and now and then it ends its
    subscription, and makes another of the same name.
    """

    def __init__(self, name: str, topic: str, given: Given) -> None:
        super().__init__(name, topic, given)
        self._number = 1
        """Of the subscription it has, counted from its first."""
        self._is_ending = False
        """Whether it asked to end this one, without a word of what came of it."""
        self._leaves = True
        self._link = 0

    @override
    def hurry(self) -> None:
        super().hurry()
        self._leaves = False

    @property
    @override
    def source(self) -> str:
        return subscription_name(self._queue, self.name, self._number)

    @override
    def begin(self, connection: AmqpConnection) -> None:
        if self._is_ending:  # if it is gone already, this makes one, and ends that
            self._link = self._attach(connection, 0)
            self._end(connection)
        self.note(Kind.SUBSCRIBE, queue=self.source)
        self._link = self._attach(connection, self._habits.prefetch)
        self.note(Kind.SUBSCRIBED, queue=self.source)

    def _attach(self, connection: AmqpConnection, prefetch: int) -> int:
        source = Source(
            self._queue.removeprefix(TOPIC),
            durable=_UNSETTLED_STATE,
            expiry_policy=Symbol("never"),
            capabilities=(Symbol("topic"),),
        )
        return connection.receiver(source, prefetch, _SUBSCRIPTION)

    @override
    def received(self, connection: AmqpConnection, delivery: Delivery) -> None:
        if self._is_ending:
            return
        super().received(connection, delivery)
        chance = self._random.random()
        if self._leaves and chance < _ENDS_PROBABILITY:
            self.note(Kind.UNSUBSCRIBE, queue=self.source)
            self._is_ending = True
            self._end(connection)
            raise Lost("ended its subscription")
        if self._leaves and chance < _LEAVES_PROBABILITY:
            if self._random.random() < 0.5:
                connection.detach(self._link, closed=False)
            connection.close()
            self._stopping.wait(self._random.uniform(0, _AWAY_SECONDS))
            raise Lost("left")

    def _end(self, connection: AmqpConnection) -> None:
        connection.detach(self._link, closed=True)
        self._is_ending = False
        self._number += 1
