"""Whatever clients do, in any order: the store has what was sent and not acknowledged, no more.

Two connections of any version consume one queue. The model knows what is stored, who holds what,
and what open transactions would change; after every frame store, deliveries and receipts must be
what it says. A receipt for something stored must come after the commit and not before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orthia.broker.protocols.stomp.client_frame import Frame
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import QUEUE, Client, acknowledge

NAMES = st.sampled_from(["t", "u"])
PICK = st.integers(0, 1_000)


@dataclass
class Held:
    """A message a client was delivered and has not acknowledged."""

    text: str
    frame: Frame
    delivery: int
    subscription: int


@dataclass
class Transaction:
    """What a COMMIT would do."""

    sends: list[str] = field(default_factory=list)
    acknowledged: list[Held] = field(default_factory=list)
    rejected: list[Held] = field(default_factory=list)
    is_void: bool = False
    """Whether it acknowledges messages that went back to their queue meanwhile."""

    @property
    def held(self) -> list[Held]:
        """What an ABORT gives back to the client."""
        return self.acknowledged + self.rejected


@dataclass(eq=False)
class Connection:
    """A client and what the model knows of it."""

    client: Client
    version: str
    mode: str | None = None
    prefetch: int = 0
    subscription: int = 0
    held: list[Held] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)

    @property
    def unacknowledged(self) -> list[Held]:
        """What is delivered on the subscription it has now, transactions' share included."""
        taken = [one for work in self.transactions.values() for one in work.held]
        return [one for one in self.held + taken if one.subscription == self.subscription]

    @property
    def may_nack(self) -> bool:
        """Whether it holds something and its version has NACK."""
        return bool(self.held) and self.version != "1.0"

    @property
    def has_credit(self) -> bool:
        """Whether it would take one more."""
        if self.mode is None:
            return False
        return self.mode == "auto" or len(self.held) < self.prefetch


class Sessions(RuleBasedStateMachine):
    """Clients, the broker under them, and the model beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CoreUnderTest(settings("#", max_delivery_attempts=-1), auto_commit=False)
        self.stored: list[str] = []
        self.seen: set[str] = set()
        self.sent = 0
        self.receipts = 0
        self.deliveries = 0
        self.connections = [self._connect("1.2"), self._connect("1.1")]

    # --- what moves the broker

    def _connect(self, version: str) -> Connection:
        return Connection(Client(self.core, version), version)

    def _settle(self) -> None:
        while self.core.journal.waiting:
            self.core.journal.commit()
            self.core.settle()
        for connection in self.connections:
            for frame in connection.client.frames():
                assert frame.command == "MESSAGE", (frame.command, frame.body)
                self._delivered(connection, frame)

    def _delivered(self, connection: Connection, frame: Frame) -> None:
        text = frame.body.decode()
        assert text in self.stored
        assert all(text != one.text for other in self.connections for one in other.unacknowledged)
        assert frame.get(b"redelivered") == ("true" if text in self.seen else "false")
        self.seen.add(text)
        if connection.mode == "auto":
            self.stored.remove(text)
        else:
            assert connection.has_credit
            self.deliveries += 1
            connection.held.append(
                Held(text, frame, self.deliveries, connection.subscription),
            )

    def _receipt(self) -> str:
        self.receipts += 1
        return f"r{self.receipts}"

    def _expect_receipt(self, connection: Connection, receipt: str, *, stores: bool) -> None:
        """Read the RECEIPT: at once, or only after the commit; deliveries may come with it."""
        client, deliveries, answered = connection.client, [], False
        for is_committed in (False, True):
            for frame in client.frames():
                if frame.command != "RECEIPT":
                    deliveries.append(frame)
                    continue
                assert frame.get(b"receipt-id") == receipt
                assert is_committed or not stores
                answered = True
            while not is_committed and self.core.journal.waiting:
                self.core.journal.commit()
                self.core.settle()
        assert answered
        for frame in deliveries:
            assert frame.command == "MESSAGE", (frame.command, frame.body)
            self._delivered(connection, frame)
        self._settle()

    # --- what clients do; each rule picks among the connections that can do it

    def _one(self, pick: int, able: Callable[[Connection], bool] = bool) -> Connection:
        candidates = [one for one in self.connections if able(one)]
        return candidates[pick % len(candidates)]

    @rule(pick=PICK, count=st.integers(1, 4))
    def send(self, pick: int, count: int) -> None:
        """Messages, each with a receipt."""
        connection = self._one(pick)
        for _ in range(count):
            text, receipt = self._text(), self._receipt()
            self.stored.append(text)
            connection.client.send("SEND", text, destination=QUEUE, receipt=receipt)
            self._expect_receipt(connection, receipt, stores=True)

    def _text(self) -> str:
        self.sent += 1
        return f"m{self.sent:04}"

    def _transaction(self, connection: Connection, name: str) -> Transaction:
        if name not in connection.transactions:
            connection.transactions[name] = Transaction()
            connection.client.send("BEGIN", transaction=name)
            self._settle()
        return connection.transactions[name]

    @rule(pick=PICK, name=NAMES)
    def send_in_transaction(self, pick: int, name: str) -> None:
        """A message that is not there before the COMMIT; its receipt is for the frame only."""
        connection = self._one(pick)
        text, receipt = self._text(), self._receipt()
        self._transaction(connection, name).sends.append(text)
        connection.client.send("SEND", text, destination=QUEUE, transaction=name, receipt=receipt)
        self._expect_receipt(connection, receipt, stores=False)

    @precondition(lambda self: any(not one.mode for one in self.connections))
    @rule(
        pick=PICK,
        mode=st.sampled_from(["client", "client-individual", "client", "auto"]),
        prefetch=st.sampled_from([2, 4, 100]),
    )
    def subscribe(self, pick: int, mode: str, prefetch: int) -> None:
        """One subscription for each client."""
        connection = self._one(pick, lambda one: not one.mode)
        connection.mode, connection.prefetch = mode, prefetch
        connection.subscription += 1
        connection.client.send(
            "SUBSCRIBE", destination=QUEUE, id="s", ack=mode, prefetch_count=str(prefetch)
        )
        self._settle()

    def _take(self, connection: Connection, at: int) -> tuple[Held, list[Held]]:
        """Return a message to name and all that this means, which the client holds no more."""
        at %= len(connection.held)
        named = connection.held[at]
        if connection.mode == "client":
            taken, connection.held = connection.held[: at + 1], connection.held[at + 1 :]
        else:
            taken = [connection.held.pop(at)]
        return named, taken

    @precondition(lambda self: any(one.held for one in self.connections))
    @rule(pick=PICK, at=PICK)
    def ack(self, pick: int, at: int) -> None:
        """Of any message held, not the oldest only."""
        connection = self._one(pick, lambda one: bool(one.held))
        named, taken = self._take(connection, at)
        for one in taken:
            self.stored.remove(one.text)
        receipt = self._receipt()
        acknowledge(connection.client, named.frame, receipt=receipt)
        self._expect_receipt(connection, receipt, stores=True)

    @precondition(lambda self: any(one.may_nack for one in self.connections))
    @rule(pick=PICK, at=PICK)
    def nack(self, pick: int, at: int) -> None:
        """It comes again, to whoever has credit."""
        connection = self._one(pick, lambda one: one.may_nack)
        named, _ = self._take(connection, at)
        acknowledge(connection.client, named.frame, "NACK")
        self._settle()

    @precondition(lambda self: any(one.held for one in self.connections))
    @rule(pick=PICK, at=PICK, name=NAMES)
    def ack_in_transaction(self, pick: int, at: int, name: str) -> None:
        """Held by the client still, until the end of the transaction."""
        connection = self._one(pick, lambda one: bool(one.held))
        work = self._transaction(connection, name)
        named, taken = self._take(connection, at)
        work.acknowledged += taken
        acknowledge(connection.client, named.frame, transaction=name)
        self._settle()

    @precondition(lambda self: any(one.may_nack for one in self.connections))
    @rule(pick=PICK, at=PICK, name=NAMES)
    def nack_in_transaction(self, pick: int, at: int, name: str) -> None:
        """The same; it comes again after the COMMIT."""
        connection = self._one(pick, lambda one: one.may_nack)
        work = self._transaction(connection, name)
        named, taken = self._take(connection, at)
        work.rejected += taken
        acknowledge(connection.client, named.frame, "NACK", transaction=name)
        self._settle()

    @precondition(lambda self: any(one.transactions for one in self.connections))
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        """All of it, and a receipt once it is stored; or none, if some of it cannot be."""
        connection = self._one(pick, lambda one: bool(one.transactions))
        name, work = connection.transactions.popitem()
        if work.is_void:
            connection.client.send("COMMIT", transaction=name)
            assert "subscription that was closed" in connection.client.error()
            self.connections[self.connections.index(connection)] = self._connect("1.2")
            self._settle()
            return
        self.stored += work.sends
        for one in work.acknowledged:
            self.stored.remove(one.text)
        receipt = self._receipt()
        connection.client.send("COMMIT", transaction=name, receipt=receipt)
        self._expect_receipt(connection, receipt, stores=True)

    @precondition(lambda self: any(one.transactions for one in self.connections))
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        """None of it: the messages are the client's to acknowledge, in the order they came."""
        connection = self._one(pick, lambda one: bool(one.transactions))
        name = next(iter(connection.transactions))
        connection.held += connection.transactions.pop(name).held
        connection.held.sort(key=lambda one: one.delivery)
        connection.client.send("ABORT", transaction=name)
        self._settle()

    @precondition(lambda self: any(one.mode for one in self.connections))
    @rule(
        pick=PICK,
        how=st.sampled_from(["UNSUBSCRIBE", "lost", "NONSENSE", "DISCONNECT", "ACK"]),
        version=st.sampled_from(["1.0", "1.1", "1.2"]),
    )
    def leave(self, pick: int, how: str, version: str) -> None:
        """However a subscription ends, what it held goes to others; transactions lose it too."""
        connection = self._one(pick, lambda one: one.mode is not None)
        if how == "UNSUBSCRIBE":
            connection.mode = None
            connection.held.clear()
            for work in connection.transactions.values():
                work.is_void = work.is_void or bool(work.acknowledged)
                work.acknowledged.clear()
                work.rejected.clear()
            connection.client.send(how, id="s")
        else:
            if how == "lost":
                connection.client.session.connection_lost()
            else:
                connection.client.send(how)
            assert connection.client.session.is_closed
            self.connections[self.connections.index(connection)] = self._connect(version)
        self._settle()

    # --- what is always so

    @invariant()
    def the_store_has_what_it_should(self) -> None:
        """What a takeover at this moment would find, in the order it was stored."""
        assert self.core.stored_texts() == self.stored

    @invariant()
    @precondition(lambda self: any(one.has_credit for one in self.connections))
    def nothing_waits_for_a_consumer_that_is_there(self) -> None:
        """Each message is with a client as long as one of them takes more."""
        held = [one.text for other in self.connections for one in other.unacknowledged]
        assert sorted(held) == sorted(self.stored)


TestSessions = Sessions.TestCase
TestSessions.__doc__ = "Any sequence of frames leaves store, deliveries and receipts as they must."
TestSessions.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
