"""Non-destructive queues with very many consumers: none of them holds up the others."""

from dataclasses import dataclass
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.queue import showing
from orthia.broker.core.queue.copying import Onlooker
from orthia.broker.core.selectors import Selector
from orthia.journal.model.message import Message
from tests.core.support import ANYONE, CoreUnderTest, FakeConsumer, message, settings

QUEUE = "/queue/q"
SHOWN = settings("#", default_non_destructive=True)


def numbers(*most: int) -> list[str]:
    """Return texts."""
    return [str(number) for number in range(*most)]


@dataclass(eq=False)
class OneOfMany(FakeConsumer):
    """A consumer of a client that has many."""

    client: object = None

    @property
    def connection(self) -> object:
        """The same for all of them."""
        return self.client


def test_a_client_that_has_many_takes_the_turn_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each of them looks for what is not there: another waits for a window of theirs."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 4)
    core = CoreUnderTest(SHOWN)
    core.send(QUEUE, *numbers(40))
    other, client = FakeConsumer(), object()
    shown: list[int] = []
    read_window = core.journal.read_window

    def read(*asked: Any) -> None:
        shown.append(len(other.received))
        read_window(*asked)

    monkeypatch.setattr(core.journal, "read_window", read)
    many = [OneOfMany(client=client) for _ in range(20)]
    for consumer in (*many, other):
        selector = None if consumer is other else "a = 1"
        consumer.subscription = core.broker.subscribe(
            ANYONE, QUEUE, consumer, prefetch=100, selector=selector
        )
        consumer.end.resume()
    core.settle()
    assert other.texts == numbers(40)
    assert shown.index(40) <= 24
    assert len(shown) >= 200


def test_of_a_long_transaction_few_are_offered_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is put into its queues in one piece: the rest is read from the store."""
    offered: list[int] = []
    came = Onlooker.came

    def offer(onlooker: Onlooker, *given: Any) -> None:
        offered.append(1)
        came(onlooker, *given)

    monkeypatch.setattr(Onlooker, "came", offer)
    core = CoreUnderTest(SHOWN)
    consumers = [core.consume(QUEUE, auto=True) for _ in range(3)]
    core.commit(TransactionWork([(QUEUE, message(one)) for one in numbers(200)]), lambda: None)
    core.settle()
    assert all(consumer.texts == numbers(200) for consumer in consumers)
    assert len(offered) < 3 * 40


def test_selectors_that_take_long_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matched against what comes, or against what was read: the loop has its turns in between."""
    now = [0.0]
    core = CoreUnderTest(SHOWN, clock=lambda: now[0])
    matched = [0]
    matches, turn = Selector.matches, core.turn

    def match(selector: Selector, record: Message) -> bool:
        now[0] += 0.003
        matched[-1] += 1
        return matches(selector, record)

    def next_turn() -> None:
        matched.append(0)
        turn()
        matched.append(0)

    monkeypatch.setattr(Selector, "matches", match)
    monkeypatch.setattr(core, "turn", next_turn)
    core.send(QUEUE, *numbers(40))
    consumers = [core.consume(QUEUE, selector="a IS NULL") for _ in range(40)]
    assert all(consumer.texts == numbers(40) for consumer in consumers)
    sends = [(QUEUE, message(one)) for one in numbers(40, 60)]
    core.commit(TransactionWork(sends), lambda: None)
    core.settle()
    assert all(consumer.texts == numbers(60) for consumer in consumers)
    assert max(matched) <= 8
