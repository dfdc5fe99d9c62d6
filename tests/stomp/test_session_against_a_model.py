"""Whatever clients do, in any order: the store has what was sent and not acknowledged, no more.

Two connections of any version consume one queue. The model knows what is stored, who holds what,
and what open transactions would change; after every frame store, deliveries and receipts must be
what it says. A receipt for something stored must come after the commit and not before.
"""

from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.stomp.parser import Frame
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import QUEUE, Client, acknowledge

WHICH = st.integers(0, 1)
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

    @property
    def held(self) -> list[Held]:
        """What an ABORT gives back to the client."""
        return self.acknowledged + self.rejected


@dataclass
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
    def has_credit(self) -> bool:
        """Whether it would take one more."""
        if self.mode is None:
            return False
        return self.mode == "auto" or len(self.unacknowledged) < self.prefetch


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

    # --- what clients do

    @rule(which=WHICH)
    def send(self, which: int) -> None:
        """A message with a receipt."""
        text, receipt = self._text(), self._receipt()
        self.stored.append(text)
        client = self.connections[which].client
        client.send("SEND", text, destination=QUEUE, receipt=receipt)
        self._expect_receipt(self.connections[which], receipt, stores=True)

    def _text(self) -> str:
        self.sent += 1
        return f"m{self.sent:04}"

    @rule(which=WHICH, name=NAMES)
    def begin(self, which: int, name: str) -> None:
        """A transaction."""
        connection = self.connections[which]
        if name not in connection.transactions:
            connection.transactions[name] = Transaction()
            connection.client.send("BEGIN", transaction=name)
            self._settle()

    @rule(which=WHICH, name=NAMES)
    def send_in_transaction(self, which: int, name: str) -> None:
        """A message that is not there before the COMMIT; its receipt is for the frame only."""
        connection = self.connections[which]
        if name in connection.transactions:
            text, receipt = self._text(), self._receipt()
            connection.transactions[name].sends.append(text)
            connection.client.send(
                "SEND", text, destination=QUEUE, transaction=name, receipt=receipt
            )
            self._expect_receipt(connection, receipt, stores=False)

    @rule(
        which=WHICH,
        mode=st.sampled_from(["auto", "client", "client-individual"]),
        prefetch=st.sampled_from([1, 2, 100]),
    )
    def subscribe(self, which: int, mode: str, prefetch: int) -> None:
        """One subscription for each client."""
        connection = self.connections[which]
        if connection.mode is None:
            connection.mode, connection.prefetch = mode, prefetch
            connection.subscription += 1
            connection.client.send(
                "SUBSCRIBE", destination=QUEUE, id="s", ack=mode, prefetch_count=str(prefetch)
            )
            self._settle()

    @rule(which=WHICH)
    def unsubscribe(self, which: int) -> None:
        """What it held goes to others; transactions know it no more."""
        connection = self.connections[which]
        if connection.mode is not None:
            connection.mode = None
            connection.held.clear()
            for work in connection.transactions.values():
                work.acknowledged.clear()
                work.rejected.clear()
            connection.client.send("UNSUBSCRIBE", id="s")
            self._settle()

    def _take(self, connection: Connection, pick: int) -> tuple[Held, list[Held]]:
        """Return a message to name and all that this means, which the client holds no more."""
        at = pick % len(connection.held)
        named = connection.held[at]
        if connection.mode == "client":
            taken, connection.held = connection.held[: at + 1], connection.held[at + 1 :]
        else:
            taken = [connection.held.pop(at)]
        return named, taken

    @rule(which=WHICH, pick=PICK)
    def ack(self, which: int, pick: int) -> None:
        """Of any message held, not the oldest only."""
        connection = self.connections[which]
        if connection.held:
            named, taken = self._take(connection, pick)
            for one in taken:
                self.stored.remove(one.text)
            receipt = self._receipt()
            acknowledge(connection.client, named.frame, receipt=receipt)
            self._expect_receipt(connection, receipt, stores=True)

    @rule(which=WHICH, pick=PICK)
    def nack(self, which: int, pick: int) -> None:
        """It comes again, to whoever has credit."""
        connection = self.connections[which]
        if connection.held and connection.version != "1.0":
            named, _ = self._take(connection, pick)
            acknowledge(connection.client, named.frame, "NACK")
            self._settle()

    @rule(which=WHICH, pick=PICK, name=NAMES, command=st.sampled_from(["ACK", "NACK"]))
    def ack_in_transaction(self, which: int, pick: int, name: str, command: str) -> None:
        """Held by the client still, until the end of the transaction."""
        connection = self.connections[which]
        work = connection.transactions.get(name)
        if work is None or not connection.held or (command, connection.version) == ("NACK", "1.0"):
            return
        named, taken = self._take(connection, pick)
        (work.acknowledged if command == "ACK" else work.rejected).extend(taken)
        acknowledge(connection.client, named.frame, command, transaction=name)
        self._settle()

    @rule(which=WHICH, name=NAMES)
    def commit(self, which: int, name: str) -> None:
        """All of it, and a receipt once it is stored."""
        connection = self.connections[which]
        work = connection.transactions.pop(name, None)
        if work is not None:
            self.stored += work.sends
            for one in work.acknowledged:
                self.stored.remove(one.text)
            receipt = self._receipt()
            connection.client.send("COMMIT", transaction=name, receipt=receipt)
            self._expect_receipt(connection, receipt, stores=True)

    @rule(which=WHICH, name=NAMES)
    def abort(self, which: int, name: str) -> None:
        """None of it: the messages are the client's to acknowledge, in the order they came."""
        connection = self.connections[which]
        work = connection.transactions.pop(name, None)
        if work is not None:
            connection.held += work.held
            connection.held.sort(key=lambda one: one.delivery)
            connection.client.send("ABORT", transaction=name)
            self._settle()

    @rule(
        which=WHICH,
        how=st.sampled_from(["lost", "NONSENSE", "DISCONNECT", "ACK"]),
        version=st.sampled_from(["1.0", "1.1", "1.2"]),
    )
    def reconnect(self, which: int, how: str, version: str) -> None:
        """However a connection ends, it leaves nothing behind but what it held."""
        connection = self.connections[which]
        if how == "lost":
            connection.client.session.connection_lost()
        else:
            connection.client.send(how)
        assert connection.client.session.is_closed
        self.connections[which] = self._connect(version)
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
TestSessions.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
