"""What a user does with a client of Python, whichever it is, as main.go has it for go-stomp."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

AWKWARD = "a:b\\c\nd ü"
BEATS_MS = 500


class RefusedError(Exception):
    """The broker's ERROR, or the end of the connection."""


@dataclass(frozen=True)
class Message:
    """A message, and what its client needs to answer it."""

    body: bytes
    headers: dict[str, str]
    frame: Any = field(repr=False)

    @property
    def text(self) -> str:
        """Its body."""
        return self.body.decode()


class Session(Protocol):
    """A connection; whatever can be answered with a receipt waits for it. Raises RefusedError."""

    version: str
    acks_in_transactions: bool
    """An ACK may be part of a transaction."""
    ends_subscriptions: bool
    """An UNSUBSCRIBE may name the durable subscription that ends."""

    def send(self, to: str, body: str | bytes, **headers: str) -> None:
        """Send a message, with headers of any name."""

    def subscribe(self, to: str, ack: Any = "auto", name: str = "", **headers: str) -> None:
        """Subscribe, under the name of the destination or another one."""

    def unsubscribe(self, name: str, **headers: str) -> None:
        """End a subscription."""

    def ack(self, message: Message, **headers: str) -> None:
        """Acknowledge a message."""

    def nack(self, message: Message) -> None:
        """Reject a message."""

    def begin(self, transaction: str) -> None:
        """Begin a transaction."""

    def commit(self, transaction: str) -> None:
        """Commit it."""

    def abort(self, transaction: str) -> None:
        """Leave it."""

    @property
    def waiting(self) -> int:
        """How many messages came that were not asked for yet."""

    def next(self) -> Message:
        """Return the next message of any subscription."""

    def disconnect(self) -> None:
        """Leave in good order."""

    def drop(self) -> None:
        """Be gone without a word: the node may be gone."""


def tell(what: object) -> None:
    """Print a line for the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def seen(message: Message) -> dict[str, object]:
    """Return a message as the test sees it."""
    return {"body": message.text, "redelivered": message.headers.get("redelivered") == "true"}


def bodies(session: Session, count: int) -> list[dict[str, object]]:
    """Return the next messages as the test sees them."""
    return [seen(session.next()) for _ in range(count)]


def refusal(attempt: Callable[[], object]) -> str:
    """Return what an ERROR said."""
    try:
        attempt()
    except RefusedError as error:
        return str(error)
    return ""


def await_takeover() -> None:
    """Wait until the test has killed the node of the first address."""
    tell("takeover")
    sys.stdin.readline()


def soon(milliseconds: int) -> str:
    """Return a moment as ``expires`` says it."""
    return str(time.time_ns() // 1_000_000 + milliseconds)


class Scenarios:
    """What is told, one scenario a run; its name is the method's."""

    def __init__(
        self,
        prefix: str,
        addresses: list[str],
        connect: Callable[..., Session],
        versions: tuple[str, ...],
        awkward_name: str,
    ) -> None:
        """Begin with what each queue's name has, and where the node is and its successor.

        ``awkward_name`` is a header's: not every client escapes names.
        ``connect`` takes an address and ``passcode``, ``version``, ``client_id``, ``beats_ms``.
        """
        self.prefix = prefix
        self.addresses = addresses
        self.first, self.last = addresses[0], addresses[-1]
        self.moves = len(addresses) > 1
        self.connect = connect
        self.all_versions = versions
        self.awkward_name = awkward_name

    def queue(self, name: str) -> str:
        """Return a destination of this client alone."""
        return f"/queue/{self.prefix}-{name}"

    def successor(self, session: Session, **options: Any) -> Session:
        """Return the session, or one with the node that took over, if the test wants that here."""
        if not self.moves:
            return session
        await_takeover()
        session.drop()
        return self.connect(self.last, **options)

    def login(self) -> None:
        """With a wrong passcode, and with a right one."""
        self.successor(self.connect(self.first)).drop()
        tell(refusal(lambda: self.connect(self.last, passcode="wrong")))
        session = self.connect(self.last, beats_ms=BEATS_MS)
        tell(session.version)
        session.disconnect()

    def sent(self) -> None:
        """Bytes, an awkward header, nothing, and a text."""
        session, to = self.connect(self.first), self.queue("sent")
        body = bytes(index % 256 for index in range(256_000))
        session.send(to, body, **{"content-type": "a/b", self.awkward_name: AWKWARD})
        session.send(to, "")
        session.send(to, "text")
        session = self.successor(session)
        session.subscribe(to)
        message = session.next()
        tell(message.body == body)
        tell([message.headers["content-type"], message.headers[self.awkward_name]])
        tell(bodies(session, 2))
        session.disconnect()

    def cumulative(self) -> None:
        """An ACK of those before."""
        session, to = self.connect(self.first), self.queue("cumulative")
        for number in range(5):
            session.send(to, str(number))
        session.subscribe(to, "client")
        messages = [session.next() for _ in range(5)]
        session.ack(messages[2])
        session.unsubscribe(to)
        session = self.successor(session)
        session.subscribe(to, "client-individual")
        tell(bodies(session, 2))
        session.disconnect()

    def nack(self) -> None:
        """Two, and the dead letters."""
        session, to = self.connect(self.first), self.queue("failing")
        session.send(to, "bad", kind=self.prefix)
        session.subscribe(to, "client-individual")
        message = session.next()
        tell(seen(message))
        session.nack(message)
        if self.moves:
            session = self.successor(session)
            session.subscribe(to, "client-individual")
        message = session.next()
        tell(seen(message))
        session.nack(message)
        dead, kind = os.environ["STOMP_DEAD_LETTERS"], f"kind = '{self.prefix}'"
        session.subscribe(dead, "client-individual", selector=kind)
        message = session.next()
        tell([message.text, message.headers["_AMQ_ORIG_QUEUE"]])
        session.ack(message)
        session.disconnect()

    def transaction(self) -> None:
        """One that is aborted, and one that is committed behind what was sent beside it."""
        session, to = self.connect(self.first), self.queue("transacted")
        session.send(to, "first")
        session.subscribe(to, "client-individual")
        first = session.next()
        session.begin("aborted")
        session.send(to, "aborted", transaction="aborted")
        if session.acks_in_transactions:
            session.ack(first, transaction="aborted")
        session.abort("aborted")
        session.begin("committed")
        if session.acks_in_transactions:
            session.ack(first, transaction="committed")
        else:
            session.ack(first)
        session.send(to, "second", transaction="committed")
        session.send(to, "beside")
        session.commit("committed")
        if self.moves:
            session = self.successor(session)
            session.subscribe(to, "client-individual")
        tell(bodies(session, 2))
        session.disconnect()

    def durable(self) -> None:
        """What came meanwhile, what came to nobody, and a name without a client-id."""
        name = {"durable-subscription-name": f"{self.prefix}-report"}
        topic, desk = f"/topic/{self.prefix}-durable", f"{self.prefix}-desk"
        session = self.connect(self.first, client_id=desk)
        session.subscribe(topic, "client-individual", **name)
        session.unsubscribe(topic)
        session.send(topic, "meanwhile")
        if self.moves:
            session = self.successor(session, client_id=desk)
        else:
            session.disconnect()
            session = self.connect(self.last, client_id=desk)
        session.subscribe(topic, "client-individual", **name)
        message = session.next()
        tell(seen(message))
        session.ack(message)
        if session.ends_subscriptions:
            session.unsubscribe(topic, **name)
            session.send(topic, "to nobody")
            session.subscribe(topic, "client-individual", **name)
        session.send(topic, "anew")
        tell(bodies(session, 1))
        session.disconnect()
        session = self.connect(self.last)
        tell(refusal(lambda: session.subscribe(topic, **name)))

    def selector(self) -> None:
        """What was there, what comes, and one that cannot be read."""
        session, to = self.connect(self.first), self.queue("selected")

        def offer(area: str, price: str) -> None:
            session.send(to, f"{area} {price}", area=area, price=price)

        for area, price in (("Asia", "9"), ("Europe", "1"), ("Europe", "3")):
            offer(area, price)
        session = self.successor(session)
        session.subscribe(to, selector="area = 'Europe' AND price > 2.5")
        for area, price in (("Asia", "8"), ("Europe", "4")):
            offer(area, price)
        tell(bodies(session, 2))
        tell(refusal(lambda: session.subscribe(to, name="wrong", selector="area = ")))

    def delay(self) -> None:
        """What is delayed, and what is not."""
        session, to = self.connect(self.first, beats_ms=BEATS_MS), self.queue("delayed")
        began = time.monotonic()
        session.send(to, "later", AMQ_SCHEDULED_DELAY="1500")
        session.send(to, "now")
        tell(int((time.monotonic() - began) * 1_000))
        session = self.successor(session, beats_ms=BEATS_MS)
        session.subscribe(to)
        tell(bodies(session, 2))
        tell(int((time.monotonic() - began) * 1_000))
        session.disconnect()

    def duplicate(self) -> None:
        """An id twice."""
        session, to = self.connect(self.first), self.queue("once")
        session.send(to, "once", _AMQ_DUPL_ID=self.prefix)
        session = self.successor(session)
        session.send(to, "once", _AMQ_DUPL_ID=self.prefix)
        session.send(to, "end")
        session.subscribe(to)
        tell(bodies(session, 2))
        session.disconnect()

    def priority(self) -> None:
        """Four of three priorities."""
        session, to = self.connect(self.first), self.queue("levels")
        for body in ("1 a", "9 b", "4 c", "9 d"):
            session.send(to, body, priority=body[0])
        session = self.successor(session)
        session.subscribe(to)
        tell(bodies(session, 4))
        session.disconnect()

    def group(self) -> None:
        """Which of two subscriptions got which messages of each group."""
        session, to = self.connect(self.first), self.queue("groups")
        for name in ("one", "two"):
            session.subscribe(to, "client-individual", name)
        for number in range(6):
            group = "ab"[number % 2]
            session.send(to, f"{group}{number}", JMSXGroupID=group)
        if self.moves:
            session = self.successor(session)
            for name in ("one", "two"):
                session.subscribe(to, "client-individual", name)
        got: dict[tuple[str, str], list[str]] = {}
        for _ in range(6):
            message = session.next()
            place = message.headers["subscription"], message.text[0]
            got.setdefault(place, []).append(message.text)
            session.ack(message)
        tell(list(got.values()))
        session.disconnect()

    def browse(self) -> None:
        """What a browser is shown, its end, and what a consumer gets."""
        session, to = self.connect(self.first), self.queue("browsed")
        for body in ("first", "second", "third"):
            session.send(to, body)
        session = self.successor(session)
        session.subscribe(to, browser="true")
        tell(bodies(session, 3))
        tell(session.next().headers["browser"])
        session.unsubscribe(to)
        session.subscribe(to)
        tell(bodies(session, 3))
        session.disconnect()

    def versions(self) -> None:
        """An ACK and a NACK of each version: the older ones name the message, not the delivery."""
        for version in self.all_versions:
            session = self.connect(self.first, version=version)
            for body in ("one", "two"):
                session.send(self.queue(f"version-{version}"), body)
            session.disconnect()
        if self.moves:
            await_takeover()
        for version in self.all_versions:
            session, to = self.connect(self.last, version=version), self.queue(f"version-{version}")
            session.subscribe(to, "client-individual")
            session.ack(session.next())
            second = session.next()
            if version != "1.0":
                session.nack(second)
                second = session.next()
            session.ack(second)
            session.unsubscribe(to)
            session.send(to, "three")
            session.subscribe(to)
            tell([session.version, session.next().text])
            session.disconnect()
