"""Whose turn it is, and what a queue does when its journal fails it."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from orthia.broker.core.api import MessageReference
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.reader import RETRY_MS
from orthia.config.errors import OrthiaError
from orthia.config.settings import Settings
from tests.core.support import ANYONE, CoreUnderTest, FakeConsumer, settings

QUEUE = "/queue/orders"
PAGED = settings(max_size_messages=4)


class CountingConsumer:
    """Counts how often it is asked whether it takes more."""

    def __init__(self) -> None:
        self.asked = 0
        self.received: list[MessageReference] = []

    @property
    def connection(self) -> object:
        """A client of its own."""
        return self

    @property
    def principal(self) -> Principal:
        """Anyone."""
        return ANYONE

    @property
    def is_writable(self) -> bool:
        """Whether it takes more: never."""
        self.asked += 1
        return False

    def deliver(self, reference: MessageReference) -> None:
        """Note a delivery."""
        self.received.append(reference)

    def holds(self, change: int) -> None:
        """Note nothing."""

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Note nothing."""

    def fail(self, reason: str, _kind: Refusal) -> None:
        """Never called for a queue."""
        raise AssertionError(reason)


def test_those_that_cannot_take_more_are_not_asked_for_each_message() -> None:
    """A queue with many blocked consumers costs the others nothing."""
    core = CoreUnderTest()
    blocked = [CountingConsumer() for _ in range(50)]
    for consumer in blocked:
        core.broker.subscribe(ANYONE, QUEUE, consumer, prefetch=10)
    quick = core.consume(QUEUE, auto=True)
    core.send(QUEUE, *map(str, range(200)))
    assert len(quick.texts) == 200
    assert sum(consumer.asked for consumer in blocked) == len(blocked)


@pytest.mark.parametrize("how", ["acknowledge", "reject", "resume"])
def test_one_that_could_not_take_more_gets_its_turn_back(how: str) -> None:
    """Whatever frees it: credit by an ACK or a NACK, or a socket that drained."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE, prefetch=1)
    consumer.is_writable = how != "resume"
    core.send(QUEUE, "a", "b")
    if how == "acknowledge":
        consumer.acknowledge("a")
        assert consumer.texts == ["a", "b"]
    elif how == "reject":
        consumer.reject("a")
        assert consumer.texts == ["a", "a"]
    else:
        assert consumer.texts == []
        consumer.is_writable = True
        consumer.end.resume()
        assert consumer.texts == ["a"]


def test_a_closed_consumer_gets_no_turn() -> None:
    """Not even when it answers after its end."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a")
    consumer.end.close()
    consumer.acknowledge("a")
    consumer.end.resume()
    core.send(QUEUE, "b")
    assert consumer.texts == ["a"]
    assert core.consume(QUEUE).texts == ["a", "b"]


@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_what_a_closed_subscription_was_needs_no_collector(destination: str) -> None:
    """Very many may come and go before it looks for cycles."""
    core = CoreUnderTest()
    core.send(QUEUE, "a")
    gc.collect()
    gc.disable()
    try:
        consumer = core.consume(destination)
        core.send(destination, "b")
        assert consumer.received
        consumer.end.close()
        core.settle()
        left = weakref.ref(consumer)
        del consumer
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "selector"),
    [
        (PAGED, None),
        (PAGED, "kind IS NULL"),
        (settings(default_non_destructive=True), None),
        (settings(default_last_value_queue=True), None),
    ],
    ids=["from the head", "by a selector", "as copies", "last values"],
)
def test_a_window_that_could_not_be_read_is_asked_for_again(
    options: Settings,
    selector: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a queue reads for: it does not stand still for one failed read."""
    core = CoreUnderTest(options)
    core.send(QUEUE, *map(str, range(20)))
    core = core.takeover(options)
    with monkeypatch.context() as broken:
        asked: list[Any] = []
        broken.setattr(core.journal, "read_window", lambda *arguments: asked.append(arguments[-1]))
        core.broker.count_backlogs()
        consumer = core.consume(QUEUE, selector=selector)
        for answer in asked:
            answer(OrthiaError("a disk is full"))
    assert consumer.texts == []
    told = "queue 'orders': reading the store failed: a disk is full; retrying in 1 s"
    assert told in caplog.messages
    core.pass_time(RETRY_MS / 1000)
    assert consumer.texts == [str(number) for number in range(20)]


def test_a_corrupt_record_is_reported_and_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The messages behind it are delivered; its row is left for a person to look at."""
    core = CoreUnderTest()
    core.send(QUEUE, "a", "b", "c")
    seq = sorted(core.journal.store.messages)[1]
    row, epoch = core.journal.store.messages[seq]
    core.journal.store.messages[seq] = (row._replace(record=b"\xff"), epoch)
    successor = core.takeover()
    assert successor.consume(QUEUE).texts == ["a", "c"]
    assert "its row stays in the table" in caplog.text
    assert seq in successor.journal.store.messages


@pytest.mark.parametrize("leaves", ["closes", "comes"])
def test_clients_of_a_paged_queue_come_and_go_after_the_journal_is_closed(leaves: str) -> None:
    """A node that ends reads no window, and no callback of the loop breaks for it."""
    core = CoreUnderTest(PAGED)
    core.send(QUEUE, *map(str, range(20)))
    first = FakeConsumer()
    first.subscription = core.broker.subscribe(ANYONE, QUEUE, first, prefetch=1)
    second = FakeConsumer()
    second.subscription = core.broker.subscribe(ANYONE, QUEUE, second, prefetch=1)
    core.journal.close(drain=False)
    if leaves == "closes":
        first.end.close()
    else:
        second.end.resume()
    assert core.broker.queues()["orders"].depth == 20


def test_counting_ends_with_the_journal() -> None:
    """A backlog that is being counted when the journal closes is left uncounted."""
    core = CoreUnderTest()
    core.send(QUEUE, "a")
    successor = core.takeover()
    successor.journal.close(drain=False)
    successor.broker.count_backlogs()
    assert successor.broker.depths() == {"orders": 0}


def test_a_window_that_comes_after_the_last_consumer_left_loses_nothing() -> None:
    """What was being read for it waits for the next."""
    core = CoreUnderTest(PAGED)
    core.send(QUEUE, *map(str, range(20)))
    first = FakeConsumer()
    first.subscription = core.broker.subscribe(ANYONE, QUEUE, first, prefetch=2)
    first.end.resume()
    first.end.close()
    core.settle()
    assert core.consume(QUEUE).texts == [str(number) for number in range(20)]
