"""A queue against a model of it: random clients, tiny windows, restarts, over and over."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orthia.broker.core.api import MessageReference, TransactionWork
from orthia.broker.core.queue import refill as window_module
from orthia.config.address_settings import AddressSettings
from orthia.config.errors import OrthiaError
from orthia.journal.errors import StoreFull, UnitRefused
from orthia.journal.model.message import decode_message
from tests.core.support import (
    ANYONE,
    SETTINGS,
    CoreUnderTest,
    FakeConsumer,
    anyone,
    message,
)

QUEUE = "/queue/orders"
TINY = replace(
    SETTINGS,
    address_settings=(AddressSettings("#", max_size_messages=4, max_delivery_attempts=-1),),
)
DATA = st.data()
KINDS = "abc"
"""What messages say of themselves, one after the other at random."""
SELECTORS: dict[str | None, str] = {
    None: KINDS,
    "kind = 'a'": "a",
    "kind <> 'a'": "bc",
    "kind IN ('a', 'b')": "ab",
    "kind = 'd'": "",
}
"""And which of them a selector matches."""


REASONS = st.sampled_from([UnitRefused("for the model"), StoreFull("for the model")])
"""Why the store refuses a unit: it is poison, or there is no room."""


def unexpected() -> None:
    """Fail: what was refused is said to be done."""
    raise AssertionError("it was refused")


@dataclass
class ModelConsumer(FakeConsumer):
    """A consumer whose deliveries are judged as they come."""

    judge: Callable[["ModelConsumer", MessageReference], None] = lambda *_: None
    prefetch: int = 1
    kinds: str = KINDS
    """What it is to get."""

    def deliver(self, reference: MessageReference) -> None:
        """Note and judge a delivery."""
        super().deliver(reference)
        self.judge(self, reference)


class QueueMachine(RuleBasedStateMachine):
    """Sends, consumes, loses and restarts; the model is the list of what must still be there."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CoreUnderTest(TINY)
        self.consumers: list[ModelConsumer] = []
        self.waiting: list[int] = []
        """What was stored and not acknowledged, in order."""
        self.held: dict[int, ModelConsumer] = {}
        """Who was delivered a message and has not answered."""
        self.maybe_seen: set[int] = set()
        self.returned: set[int] = set()
        """What lost consumers held, or rejected: in memory until it is acknowledged."""
        self.volatile: set[int] = set()
        self.sent = 0
        self.kinds: dict[int, str] = {}
        self.priorities: dict[int, int] = {}
        self.groups: dict[int, str] = {}
        """Of those messages that are of one."""
        self.owners: dict[str, ModelConsumer] = {}

    def judge(self, consumer: ModelConsumer, reference: MessageReference) -> None:
        """Accept a delivery: the next in order, to nobody else, flagged if it may be known."""
        number = int(reference.record.body)
        assert number == next(self.wanted_by(consumer))
        assert reference.redelivered is (number in self.maybe_seen)
        self.held[number] = consumer
        if number in self.groups:
            self.owners[self.groups[number]] = consumer
        self.maybe_seen.add(number)
        assert self.unanswered(consumer) <= consumer.prefetch
        assert consumer.is_writable

    def wanted_by(self, consumer: ModelConsumer) -> Iterator[int]:
        """Yield what a consumer wants, and may have, and nobody has; in order."""
        for number in self.in_order(self.waiting):
            owner = self.owners.get(self.groups.get(number, ""), consumer)
            is_wanted = number not in self.held and self.kinds[number] in consumer.kinds
            if is_wanted and owner is consumer:
                yield number

    def in_order(self, numbers: Iterable[int]) -> list[int]:
        """Put what is in order of arrival into that of delivery."""
        return sorted(numbers, key=lambda one: -self.priorities[one])

    def unanswered(self, consumer: ModelConsumer) -> int:
        """Return how many messages a consumer holds."""
        return sum(1 for one in self.held.values() if one is consumer)

    # --- what happens

    @rule(
        kinds=st.text(KINDS, min_size=1, max_size=12),
        persistent=st.booleans(),
        group=st.sampled_from(["", "", "", "g", "h"]),
        priority=st.sampled_from([4, 4, 4, 9, 0]),
    )
    def send(self, kinds: str, persistent: bool, group: str, priority: int) -> None:
        """A producer sends."""
        for kind in kinds:
            self.sent += 1
            self.kinds[self.sent] = kind
            self.priorities[self.sent] = priority
            self.waiting.append(self.sent)
            if not persistent:
                self.volatile.add(self.sent)
            headers = f"kind:{kind}\n".encode()
            if group:
                self.groups[self.sent] = group
                headers += f"JMSXGroupID:{group}\n".encode()
            said = {"persistent": persistent, "headers": headers, "priority": priority}
            self.core.send(QUEUE, str(self.sent), **said)

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(prefetch=st.integers(1, 6), selector=st.sampled_from([None, *SELECTORS]))
    def subscribe(self, prefetch: int, selector: str | None) -> None:
        """A consumer comes."""
        kinds = SELECTORS[selector]
        consumer = ModelConsumer(judge=self.judge, prefetch=prefetch, kinds=kinds)
        self.consumers.append(consumer)
        consumer.subscription = self.core.broker.subscribe(
            ANYONE, QUEUE, consumer, prefetch=prefetch, selector=selector
        )
        consumer.end.resume()
        self.core.settle()

    @precondition(lambda self: self.held)
    @rule(data=DATA, rejected=st.booleans())
    def answer(self, data: st.DataObject, rejected: bool) -> None:
        """A consumer acknowledges one of its messages, or rejects it."""
        number = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held.pop(number)
        if rejected:
            self.returned.add(number)
            consumer.reject(str(number))
        else:
            self.returned.discard(number)
            self.waiting.remove(number)
            consumer.acknowledge(str(number))
        self.core.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=DATA, failed=st.booleans())
    def lose_consumer(self, data: st.DataObject, failed: bool) -> None:
        """A consumer leaves, or its connection is lost."""
        self.lose(data.draw(st.sampled_from(self.consumers)), failed=failed)

    def lose(self, consumer: ModelConsumer, *, failed: bool = False) -> None:
        """What a consumer held goes back, and its groups may go to others."""
        self.consumers.remove(consumer)
        self.returned.update(number for number, one in self.held.items() if one is consumer)
        self.held = {number: one for number, one in self.held.items() if one is not consumer}
        self.owners = {name: one for name, one in self.owners.items() if one is not consumer}
        consumer.end.close(attempted=consumer.received if failed else ())
        self.core.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=DATA, writable=st.booleans())
    def fill_or_drain_a_socket(self, data: st.DataObject, writable: bool) -> None:
        """A client stops reading, or goes on."""
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.is_writable = writable
        if writable:
            consumer.end.resume()
        self.core.settle()

    def refuse(self, act: Callable[[], object], reason: OrthiaError) -> None:
        """Have the store refuse the last unit of a client that ``act`` leads to, and no other."""
        journal = self.core.journal
        self.core.settle()
        journal.auto_commit = False
        act()
        its_own = [n for n, one in enumerate(journal.waiting) if one.refused is not None]
        if its_own:
            journal.commit(its_own[-1])
            journal.refuse(reason)
        journal.auto_commit = True
        self.core.settle()

    @rule(priority=st.sampled_from([4, 4, 9, 0]), reason=REASONS, expires=st.booleans())
    def send_in_vain(self, priority: int, reason: OrthiaError, expires: bool) -> None:
        """The store refuses what a producer sends, who is told; nothing of it is left."""
        told: list[OrthiaError] = []
        poison = message("0", priority=priority, expires_ms=2**52 if expires else 0)
        self.refuse(
            lambda: self.core.broker.send(
                anyone(), QUEUE, poison, None, lambda error, _: told.append(error)
            ),
            reason,
        )
        assert told == [reason]

    @precondition(lambda self: self.held)
    @rule(data=DATA, reason=REASONS)
    def commit_in_vain(self, data: st.DataObject, reason: OrthiaError) -> None:
        """The store refuses a transaction, which ends its client; what it held comes again."""
        consumer = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        its_own = sorted(number for number, one in self.held.items() if one is consumer)
        work = TransactionWork([(QUEUE, message("0")), (QUEUE, message("0", priority=9))])
        for number in data.draw(st.sets(st.sampled_from(its_own), min_size=1)):
            settles = data.draw(st.sampled_from([work.acknowledgements, work.rejections]))
            consumer.end.set_aside(consumer.take(str(number)))
            settles.setdefault(consumer.end, []).extend(consumer.take(str(number)))
        told: list[OrthiaError] = []

        def refused(error: OrthiaError, _: object) -> None:
            told.append(error)
            self.lose(consumer)

        steps = self.core.broker.commit(anyone(), work, unexpected, refused)
        self.refuse(lambda: self.core.broker.slices.run(steps), reason)
        assert told == [reason]

    @precondition(lambda self: self.held)
    @rule(data=DATA, reason=REASONS)
    def reject_in_vain(self, data: st.DataObject, reason: OrthiaError) -> None:
        """The store refuses to count a rejection: the message comes again all the same."""
        number = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held.pop(number)
        self.returned.add(number)
        self.refuse(lambda: consumer.reject(str(number)), reason)

    @rule(size=st.integers(1, 5_000))
    def shed(self, size: int) -> None:
        """Another queue needs memory."""
        queue = self.core.broker.queues().get("orders")
        if queue is not None:
            queue.shed(size)

    @rule()
    def take_over(self) -> None:
        """The node is gone; the next one opens the same store."""
        stored = {
            int(decode_message(row.record, row.seq).body)
            for row, _ in self.core.journal.store.messages.values()
        }
        self.core = self.core.takeover(TINY)
        self.core.broker.count_backlogs()
        self.core.settle()
        self.consumers.clear()
        self.held.clear()
        self.returned.clear()
        self.owners.clear()
        # Only what was not persistent may be missing, and only if there was memory for it.
        assert {one for one in self.waiting if one not in self.volatile} <= stored
        assert stored <= set(self.waiting)
        self.waiting = [one for one in self.waiting if one in stored]
        self.maybe_seen.update(self.waiting)

    # --- what always holds

    @invariant()
    def nothing_is_stuck(self) -> None:
        """A consumer with room holds back only if there is nothing for it."""
        for one in self.consumers:
            if one.is_writable and self.unanswered(one) < one.prefetch:
                assert not list(self.wanted_by(one))

    @invariant()
    def depth_is_right(self) -> None:
        """The queue counts what is there, wherever it is."""
        if self.waiting:
            assert self.core.broker.depths()["orders"] == len(self.waiting)

    @invariant()
    def what_counts_is_what_is_there(self) -> None:
        """Against the limits of the address, whatever was refused meanwhile."""
        queues = self.core.broker.queues()
        if "orders" in queues:
            use = queues["orders"].use
            # What is to come there later counts, too.
            there = sum(one.depth for one in queues.values() if one.use is use)
            assert use.messages == there
            assert (use.used == 0) is (there == 0)
        assert not any(one.in_flight or one.undecided for one in queues.values())

    @invariant()
    def memory_is_bounded(self) -> None:
        """In memory are at most the limit, one window more, and what consumers held or hold."""
        queue = self.core.broker.queues().get("orders")
        most = 4 + window_module.WINDOW_MESSAGES + len(self.returned | self.held.keys())
        assert queue is None or queue.log.in_memory <= most
        assert queue is None or (queue.log.in_memory == 0) is (queue.log.bytes_in_memory == 0)


@pytest.mark.parametrize("window_messages", [3, window_module.WINDOW_MESSAGES])
def test_a_queue_does_what_its_model_says(
    window_messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows of the usual size, and of so few messages that most end within the queue."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", window_messages)
    run_state_machine_as_test(
        QueueMachine,
        settings=hypothesis_settings(max_examples=150, stateful_step_count=60, deadline=None),
    )
