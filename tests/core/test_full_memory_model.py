"""Queues and a topic that share too little memory, against a model of them.

Every bound is so small that it is reached all the time, and left again at any moment: the memory of
messages, the memory of clients, what waits for the store. Nobody may wait for ever for it.
"""

from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from orthia.broker.connections.client_memory import ClientMemory
from orthia.broker.core.api import MessageReference
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.limits import memory as memory_module
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD
from orthia.broker.core.queue import refill as window_module
from orthia.broker.core.queue import selecting_reads
from orthia.config.address_settings import AddressSettings
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, opened

SIZE = MESSAGE_OVERHEAD + len("kind:0\n") + 3
"""What a message counts for: each has a number of three digits for its body."""
KINDS = 4
"""What selectors tell apart; a message is of the kind of its number."""
SMALL_CLAIM = 2 * SIZE
FULL = replace(
    SETTINGS,
    global_max_size=5 * SIZE,
    address_settings=(AddressSettings("#", max_delivery_attempts=-1),),
)
CLIENTS_LIMIT = 6 * SIZE
QUEUES = ("a", "b")
TOPIC = "news"
DATA = st.data()


class Client(FakeConsumer):
    """A consumer that gets nothing while its socket is full, or the memory of all clients."""

    def __init__(
        self, model: "FullMemoryMachine", address: str, prefetch: int, kind: int | None
    ) -> None:
        # One of the topic acknowledges what it gets.
        super().__init__(auto=address == TOPIC)
        self.address = address
        self.prefetch = prefetch
        self.kind = kind
        self.reads = True
        self._model = model

    @property
    def is_writable(self) -> bool:
        """As a session says it."""
        memory = self._model.memory
        return self.reads and (memory.used < memory.limit or memory.refuse(self))

    @is_writable.setter
    def is_writable(self, writable: bool) -> None:
        self.reads = writable

    def wants(self, number: int) -> bool:
        """Return whether its selector, if it has one, matches a message."""
        return self.kind is None or number % KINDS == self.kind

    def resume_deliveries(self) -> None:
        """As a connection does it."""
        if self.reads:
            self.end.resume()

    def holds(self, change: int) -> None:
        """Count it as the memory of clients does."""
        super().holds(change)
        self._model.memory.used += change

    def deliver(self, reference: MessageReference) -> None:
        """Note and judge a delivery."""
        super().deliver(reference)
        self._model.delivered(self, reference)

    def fail(self, reason: str, _kind: Refusal) -> None:
        """Leave: a subscriber of the topic that is too far behind has to."""
        self._model.has_left(self)
        super().fail(reason, _kind)


class FullMemoryMachine(RuleBasedStateMachine):
    """Sends, consumes and waits; the model is what each queue must still have."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CoreUnderTest(FULL)
        self.core.journal = MemoryJournal(
            auto_commit=False, limits=JournalLimits(max_waiting_rows=6)
        )
        self.core.broker = opened(
            Broker(
                FULL,
                self.core.journal,
                lease_valid=lambda: True,
                call_later=self.core._call_later,
                clock=lambda: 0.0,
            )
        )
        self.memory = ClientMemory(CLIENTS_LIMIT, 1)
        self.clients: list[Client] = []
        self.waiting: dict[str, list[int]] = {name: [] for name in QUEUES}
        """What was stored and not acknowledged, in order."""
        self.held: dict[int, Client] = {}
        self.published: dict[Client, int] = {}
        """How many messages a subscriber of the topic was sent."""
        self.others = 0
        """Bytes that other clients hold."""
        self.sent = 100

    def delivered(self, client: Client, reference: MessageReference) -> None:
        """Accept a delivery: of a queue the next in order, and to nobody else."""
        assert client.reads
        if client.address == TOPIC:
            return
        number = int(reference.record.body)
        waiting = self.waiting[client.address]
        assert number == next(one for one in waiting if one not in self.held and client.wants(one))
        self.held[number] = client
        assert self.unanswered(client) <= client.prefetch

    def has_left(self, client: Client) -> None:
        """Forget a client: what it held goes back."""
        self.clients.remove(client)
        self.published.pop(client, None)
        self.held = {number: one for number, one in self.held.items() if one is not client}
        self.memory.forget(client)

    def unanswered(self, client: Client) -> int:
        """Return how many messages of a queue a client holds."""
        return sum(1 for one in self.held.values() if one is client)

    # --- what happens

    @precondition(lambda self: self.sent < 900)
    @rule(address=st.sampled_from(QUEUES), count=st.integers(1, 8), persistent=st.booleans())
    def send(self, address: str, count: int, persistent: bool) -> None:
        """A producer sends to a queue."""
        for _ in range(count):
            self.sent += 1
            self.waiting[address].append(self.sent)
            kind = f"kind:{self.sent % KINDS}\n".encode()
            self.core.send(f"/queue/{address}", str(self.sent), persistent=persistent, headers=kind)

    @precondition(lambda self: self.sent < 900)
    @rule()
    def publish(self) -> None:
        """A producer sends to the topic."""
        self.sent += 1
        for client in self.published:
            self.published[client] += 1
        self.core.send(f"/topic/{TOPIC}", str(self.sent))

    @precondition(lambda self: len(self.clients) < 4)
    @rule(
        address=st.sampled_from((*QUEUES, TOPIC)),
        prefetch=st.integers(1, 8),
        kind=st.none() | st.integers(0, KINDS - 1),
    )
    def subscribe(self, address: str, prefetch: int, kind: int | None) -> None:
        """A consumer comes; one of a queue may want messages of one kind only."""
        is_topic = address == TOPIC
        client = Client(self, address, prefetch, None if is_topic else kind)
        self.clients.append(client)
        if is_topic:
            self.published[client] = 0
        client.subscription = self.core.broker.subscribe(
            ANYONE,
            f"/{'topic' if is_topic else 'queue'}/{address}",
            client,
            prefetch=0 if is_topic else prefetch,
            selector=None if client.kind is None else f"kind = '{client.kind}'",
        )
        client.end.resume()
        self.core.settle()

    @precondition(lambda self: self.held)
    @rule(data=DATA, rejected=st.booleans())
    def answer(self, data: st.DataObject, rejected: bool) -> None:
        """A consumer acknowledges one of its messages, or rejects it."""
        number = data.draw(st.sampled_from(sorted(self.held)))
        client = self.held.pop(number)
        if rejected:
            client.reject(str(number))
        else:
            self.waiting[client.address].remove(number)
            client.acknowledge(str(number))
        self.core.settle()

    @precondition(lambda self: self.clients)
    @rule(data=DATA)
    def lose_client(self, data: st.DataObject) -> None:
        """A consumer's connection is lost."""
        self.lose(data.draw(st.sampled_from(self.clients)))

    def lose(self, client: Client) -> None:
        """End a client's subscription."""
        self.has_left(client)
        client.reads = False
        client.end.close()
        self.core.settle()

    @precondition(lambda self: self.clients)
    @rule(data=DATA, reads=st.booleans())
    def fill_or_drain_a_socket(self, data: st.DataObject, reads: bool) -> None:
        """A client stops reading, or goes on."""
        client = data.draw(st.sampled_from(self.clients))
        client.reads = reads
        client.resume_deliveries()
        self.core.settle()

    @rule(held=st.sampled_from((0, SIZE, CLIENTS_LIMIT)))
    def others_hold(self, held: int) -> None:
        """What other clients make the broker hold changes, and nobody has looked yet."""
        self.memory.used += held - self.others
        self.others = held

    @rule()
    def tick(self) -> None:
        """The server looks after its clients."""
        self.memory.relieve()
        self.core.settle()

    @rule(units=st.integers(1, 8))
    def store(self, units: int) -> None:
        """The store takes some of what waits for it."""
        self.core.journal.commit(min(units, len(self.core.journal.waiting)))
        self.core.settle()

    @rule()
    def rest(self) -> None:
        """After a while in which nobody does anything nobody waits for what is there."""
        for _ in range(20):
            self.core.journal.commit()
            self.core.pass_time(1.0)
            self.tick()
        exhausted = self.core.broker.parts.factory.services.budget.is_exhausted
        for client in self.clients:
            if not client.reads or self.memory.is_full:
                continue
            if client.address == TOPIC:
                assert len(client.received) == self.published[client]
            elif self.unanswered(client) < client.prefetch and (
                client.held < SMALL_CLAIM or not exhausted
            ):
                wanted = filter(client.wants, self.waiting[client.address])
                assert all(one in self.held for one in wanted)
        for name, depth in self.core.broker.depths().items():
            assert depth == len(self.waiting[name])

    def teardown(self) -> None:
        """Whatever happened, it comes to rest; and when all have left, no memory is taken."""
        self.rest()
        for client in list(self.clients):
            self.lose(client)
        assert self.memory.used == self.others
        assert self.core.broker.parts.factory.services.budget.claimed <= self.core.memory_used
        assert self.core.broker.parts.factory.services.budget.lend_window(), (
            "a window that was lent never came back"
        )


def test_nobody_waits_for_ever_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short it lasted that there was none, and whoever freed it."""
    monkeypatch.setattr(memory_module, "SMALL_CLAIM", SMALL_CLAIM)
    monkeypatch.setattr(window_module, "MIN_WINDOW_BYTES", 100)
    monkeypatch.setattr(window_module, "MAX_WINDOW_BYTES", 600)
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 8)
    monkeypatch.setattr(window_module, "LENT_WINDOW_BYTES", 600)
    monkeypatch.setattr(selecting_reads, "_MOST_KEPT_BYTES", SIZE)
    monkeypatch.setattr(selecting_reads, "_THIN", 2)
    run_state_machine_as_test(
        FullMemoryMachine,
        settings=hypothesis_settings(max_examples=200, stateful_step_count=50, deadline=None),
    )
