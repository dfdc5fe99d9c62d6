"""A queue that is emptied when its last consumer leaves, against a model of it.

Messages are taken out of the middle, by selectors, groups and priorities; what is acknowledged,
sent and deleted is committed later; what is rejected comes back after a pause. Whatever overlaps,
nothing is counted twice and nothing is passed over.
"""

from dataclasses import replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue import refill as window_module
from orthia.broker.core.queue import taken as taken_module
from orthia.config.address_settings import AddressSettings
from tests.core.support import ANYONE, CoreUnderTest, FakeConsumer
from tests.core.test_queue_options import QUEUE, with_queue

EMPTIED = replace(
    with_queue(purge_on_no_consumers=True),
    address_settings=(
        AddressSettings("q", max_size_messages=3, redelivery_delay=2_000, max_delivery_attempts=-1),
    ),
)
COLOURS = ("red", "blue")
DATA = st.data()


class Client(FakeConsumer):
    """A consumer of one colour, or of both."""

    def __init__(self, model: "EmptiedQueueMachine", colour: str | None) -> None:
        super().__init__()
        self.colour = colour
        self.unanswered: list[MessageReference] = []
        self._model = model

    def deliver(self, reference: MessageReference) -> None:
        """Note and judge a delivery."""
        number = int(reference.record.body)
        assert self._model.colours[number] in (self.colour, *COLOURS * (self.colour is None))
        assert number in self._model.waiting, "it was acknowledged, or somebody has it"
        self._model.waiting.remove(number)
        self.unanswered.append(reference)


class EmptiedQueueMachine(RuleBasedStateMachine):
    """Sends, consumes and leaves; the model is what is still to be delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CoreUnderTest(EMPTIED, auto_commit=False)
        self.clients: list[Client] = []
        self.colours: dict[int, str] = {}
        self.waiting: set[int] = set()
        self.may_be_deleted: set[int] = set()
        """Those of ``waiting`` that were there when nobody consumed."""

    @rule(
        colours=st.lists(st.sampled_from(COLOURS), min_size=1, max_size=6),
        grouped=st.sampled_from((False, False, False, True)),
        priority=st.sampled_from((4, 4, 4, 9)),
    )
    def send(self, colours: list[str], grouped: bool, priority: int) -> None:
        """A producer sends some."""
        for colour in colours:
            number = len(self.colours)
            self.colours[number] = colour
            self.waiting.add(number)
            if not self.clients:
                self.may_be_deleted.add(number)
            group = f"JMSXGroupID:{colour}\n" if grouped else ""
            headers = f"colour:{colour}\n{group}".encode()
            self.core.send(QUEUE, str(number), headers=headers, priority=priority)

    @precondition(lambda self: len(self.clients) < 3)
    @rule(colour=st.none() | st.sampled_from(COLOURS))
    def subscribe(self, colour: str | None) -> None:
        """A consumer comes."""
        client = Client(self, colour)
        self.clients.append(client)
        client.subscription = self.core.broker.subscribe(
            ANYONE,
            QUEUE,
            client,
            prefetch=100,
            selector=None if colour is None else f"colour = '{colour}'",
        )
        client.end.resume()
        self.core.settle()

    @precondition(lambda self: any(one.unanswered for one in self.clients))
    @rule(data=DATA, rejected=st.booleans())
    def answer(self, data: st.DataObject, rejected: bool) -> None:
        """A consumer acknowledges some of its messages, or rejects them."""
        client = data.draw(st.sampled_from([one for one in self.clients if one.unanswered]))
        first = data.draw(st.integers(0, len(client.unanswered) - 1))
        references = client.unanswered[first:]
        del client.unanswered[first:]
        if rejected:
            self.waiting.update(int(one.record.body) for one in references)
            client.end.reject(references, None)
        else:
            client.end.acknowledge(references, None)
        self.core.settle()

    @precondition(lambda self: self.clients)
    @rule()
    def leave_together(self) -> None:
        """Nobody consumes any more."""
        for client in list(self.clients):
            self.lose(client)
        self.tick(0)

    @precondition(lambda self: self.clients)
    @rule(data=DATA)
    def leave(self, data: st.DataObject) -> None:
        """A consumer leaves; what it has goes back."""
        self.lose(data.draw(st.sampled_from(self.clients)))

    def lose(self, client: Client) -> None:
        """End a consumer's subscription."""
        self.clients.remove(client)
        self.waiting.update(int(one.record.body) for one in client.unanswered)
        client.is_writable = False
        client.end.close()
        if not self.clients:
            self.may_be_deleted |= self.waiting
        self.core.settle()

    @rule(units=st.integers(1, 4))
    def store(self, units: int) -> None:
        """The store commits some of what waits for it."""
        self.core.journal.commit(min(units, len(self.core.journal.waiting)))
        self.core.settle()

    @rule(milliseconds=st.sampled_from((0, 1, 1_500)))
    def tick(self, milliseconds: int) -> None:
        """Time passes."""
        self.core.pass_time(milliseconds / 1_000)

    @rule()
    def rest(self) -> None:
        """After a while what is counted is there, and everybody has what they want."""
        for _ in range(30):
            self.core.journal.commit()
            self.core.pass_time(0.5)
        queue = self.core.broker.queues().get("q")
        assert queue is not None
        stored = len(self.core.journal.store.messages)
        assert queue.depth == queue.use.messages == stored
        wanted = self.waiting - self.may_be_deleted
        for client in self.clients:
            assert not [n for n in wanted if client.colour in (None, self.colours[n])]
        if not self.clients:
            assert not stored
            assert self.core.broker.parts.factory.budget.used == 0
            self.waiting.clear()
        held = sum(len(one.unanswered) for one in self.clients)
        assert stored <= held + len(self.waiting)

    def teardown(self) -> None:
        """Whatever happened, it comes to rest; and when all have left, nothing is there."""
        self.rest()
        for client in list(self.clients):
            self.lose(client)
        self.rest()


@pytest.mark.parametrize("sweep_at", [1, 1_024])
def test_a_queue_that_is_emptied_counts_right(
    sweep_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And delivers to who comes next all that was sent since."""
    monkeypatch.setattr(taken_module, "_SWEEP_AT", sweep_at)
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 3)
    run_state_machine_as_test(
        EmptiedQueueMachine,
        settings=hypothesis_settings(max_examples=300, stateful_step_count=30, deadline=None),
    )
