"""What earlier nodes left is counted: of any number of queues, beside the work of clients."""

import heapq
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.queue import refill as window_module
from orthia.broker.core.upkeep import backlog as backlog_module
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.memory import MemoryJournal, MemoryStore
from orthia.journal.model.codec import QueueBinding
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import QueuePlace
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, declared, message
from tests.journal.support import payload

QUEUES = 50_000


def left_behind(queues: int, *, messages: Callable[[int], int]) -> MemoryStore:
    """Return a store with queues, each with so many messages, that another node wrote."""
    journal = MemoryJournal(MemoryStore(), auto_commit=False)
    body = payload("x")
    unit = Unit()
    for number in range(queues):
        queue_id = journal.next_id()
        name = f"queue.{number}"
        unit.add_binding(QueueBinding(queue_id, name, name, RoutingType.ANYCAST))
        for _ in range(messages(number)):
            unit.add_message([queue_id], body)
    journal.append_unit(unit)
    journal.commit()
    journal.store.fence_token = 2
    return journal.store


@pytest.mark.parametrize("messages", [0, 1, 2], ids=["idle", "one message each", "two each"])
def test_any_number_of_queues_is_counted(messages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there may be, with few questions, and with room for others in between."""
    store = left_behind(QUEUES, messages=lambda number: messages * (number % 2))
    core = CoreUnderTest(store=store, token=2)
    asked: list[object] = []
    count = core.journal.count

    def counting(*arguments: object) -> None:
        asked.append(arguments)
        count(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(core.journal, "count", counting)
    core.broker.count_backlogs()
    turns = 0
    while core.journal.run_posted() or (core._timers and core._timers[0][0] <= core.now):
        turns += 1
        if core._timers and core._timers[0][0] <= core.now:
            heapq.heappop(core._timers)[2]()
    depths = core.broker.depths()
    assert len(depths) == QUEUES
    assert all(depths[f"queue.{number}"] == messages * (number % 2) for number in range(QUEUES))
    assert len(asked) <= 1 + messages * QUEUES // 2 // backlog_module.COUNT_STEP + 1
    assert turns >= QUEUES // backlog_module.SLICE


def test_any_number_of_queues_that_are_consumed_before_is_counted() -> None:
    """Their consumers were quicker than the count: there is nothing left to ask."""
    queues = 2_000  # the journal in memory looks through all its messages for each window
    core = CoreUnderTest(store=left_behind(queues, messages=lambda number: number % 2), token=2)
    for number in range(queues):
        core.consume(f"/queue/queue.{number}")
    core.broker.count_backlogs()
    core.pass_time(1.0)
    assert list(core.broker.depths().values()) == [number % 2 for number in range(queues)]


def test_any_number_of_configured_queues_is_made_and_counted() -> None:
    """On the first start there is nothing to count of any of them."""
    names = [f"queue.{number}" for number in range(5_000)]
    options = replace(
        SETTINGS,
        addresses=tuple(declared(name, name) for name in names),
    )
    core = CoreUnderTest(options)
    core.counted()
    assert core.broker.depths() == dict.fromkeys(names, 0)


def test_an_idle_queue_keeps_what_comes_in_memory_once_it_is_counted() -> None:
    """Nothing has to be read from the store to deliver what was sent after the takeover."""
    core = CoreUnderTest(store=left_behind(3, messages=lambda _: 0), token=2)
    queue = core.broker.queues()["queue.1"]
    core.counted()
    core.send("/queue/queue.1", "a")
    assert queue.log.in_memory == 1


@pytest.mark.parametrize("stored", [1, 7, 40, 41])
@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_queue_that_is_consumed_while_it_is_counted_has_the_right_depth(
    stored: int, acknowledged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is read, and deleted, between a question and its answer."""
    monkeypatch.setattr(backlog_module, "COUNT_STEP", 5)
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 3)
    store = left_behind(3, messages=lambda _: stored)
    core = CoreUnderTest(store=store, token=2)
    core.broker.count_backlogs()
    consumer = FakeConsumer(auto=acknowledged)
    consumer.subscription = core.broker.subscribe(ANYONE, "/queue/queue.1", consumer, prefetch=30)
    consumer.end.resume()
    core.broker.send(ANYONE, "/queue/queue.1", message("new"), None)
    for _ in range(100):
        core.pass_time(1.0)
    total = stored + 1
    delivered = total if acknowledged else min(total, 30)
    assert len(consumer.received) == delivered
    left = 0 if acknowledged else total
    assert core.broker.depths() == {"queue.0": stored, "queue.1": left, "queue.2": stored}
    queue = core.broker.queues()["queue.1"]
    assert queue.uncounted_after is None


def test_a_count_that_fails_holds_no_consumer_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said that depths are too low; what is there is delivered."""
    monkeypatch.setattr(backlog_module, "COUNT_STEP", 5)
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 3)
    core = CoreUnderTest(store=left_behind(1, messages=lambda _: 40), token=2)
    journal = core.journal
    asked: list[Callable[[OrthiaError], None]] = []
    count = journal.count

    def fails_later(*arguments: object) -> None:
        if asked:
            asked.append(arguments[-1])  # type: ignore[arg-type]
        else:
            asked.append(lambda _: None)
            count(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "count", fails_later)
    core.broker.count_backlogs()
    consumer = FakeConsumer(auto=True)
    consumer.subscription = core.broker.subscribe(ANYONE, "/queue/queue.0", consumer, prefetch=0)
    consumer.end.resume()
    core.settle()
    with caplog.at_level(logging.WARNING):
        while len(asked) > 1:
            asked.pop()(OrthiaError("the disk is full"))
            core.pass_time(1.0)
    assert len(consumer.received) == 40
    assert "the disk is full" in caplog.text


def test_a_count_of_one_queue_that_fails_holds_no_consumer_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was read from meanwhile, and reads nothing while it is asked for again: then it does."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 3)
    core = CoreUnderTest(store=left_behind(1, messages=lambda _: 40), token=2)
    count = core.journal.count
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(core.journal, "count", lambda *arguments: asked.append(arguments))
    core.broker.count_backlogs()
    consumer = core.consume("/queue/queue.0", prefetch=2)
    count(*asked.pop())
    core.settle()
    core.pass_time(1.0)
    (again,) = asked
    with caplog.at_level(logging.WARNING):
        again[-1](OrthiaError("the disk is full"))
    for _ in range(40):
        core.settle()
        consumer.acknowledge("x")
    assert len(consumer.received) == 40
    assert "the disk is full" in caplog.text
    assert len(asked) == 1


@pytest.mark.parametrize("stored", [4, 5, 6, 10, 12])
def test_nothing_is_counted_twice(stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever an answer ends: each stretch of queues that nobody reads is asked for once."""
    monkeypatch.setattr(backlog_module, "COUNT_STEP", 5)
    core = CoreUnderTest(store=left_behind(4, messages=lambda _: stored), token=2)
    count = core.journal.count
    asked: list[QueuePlace] = []

    def noted(after: QueuePlace, *arguments: Any) -> None:
        asked.append(after)
        count(after, *arguments)

    monkeypatch.setattr(core.journal, "count", noted)
    core.counted()
    core.pass_time(1.0)
    assert core.broker.depths() == {f"queue.{number}": stored for number in range(4)}
    assert asked == sorted(set(asked))


def test_a_queue_is_not_asked_for_again_while_a_window_of_it_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody could say what of it is in the window; nor is that read a second time."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 3)
    core = CoreUnderTest(store=left_behind(1, messages=lambda _: 10), token=2)
    count, read = core.journal.count, core.journal.read_window
    asked: list[tuple[Any, ...]] = []
    windows: list[tuple[Any, ...]] = []
    monkeypatch.setattr(core.journal, "count", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(core.journal, "read_window", lambda *arguments: windows.append(arguments))
    core.broker.count_backlogs()
    consumer = core.consume("/queue/queue.0")
    read(*windows.pop())
    core.settle()
    assert len(windows) == 1
    count(*asked.pop())
    core.pass_time(1.0)
    assert asked == []
    read(*windows.pop())
    core.pass_time(1.0)
    monkeypatch.undo()
    for again in asked:
        count(*again)
    for window in windows:
        read(*window)
    core.pass_time(1.0)
    sequence = [one.seq for one in consumer.received]
    assert len(sequence) == 10
    assert sequence == sorted(set(sequence))
    assert core.broker.depths() == {"queue.0": 10}


def test_a_node_that_stops_counts_no_further() -> None:
    """What is left of its slices is not taken."""
    core = CoreUnderTest(store=left_behind(5_000, messages=lambda _: 0), token=2)
    core.broker.count_backlogs()
    core.journal.run_posted()
    core.broker.stop()
    core.pass_time(1.0)
    assert sum(queue.log.cursor.is_paged for queue in core.broker.queues().values()) > 0
