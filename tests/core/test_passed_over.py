"""What stays in the table and nobody is to get: a row in doubt, or one that cannot be read."""

from dataclasses import replace

import pytest

from orthia.broker.core.errors import QueueInUse
from orthia.broker.core.queue import refill as window_module
from orthia.config.address_settings import AddressSettings
from orthia.config.settings import Settings
from orthia.journal import Unit
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, message
from tests.core.test_deletion import delete
from tests.core.test_queue_options import with_queue

QUEUE = "/queue/q"
PURGED = with_queue(purge_on_no_consumers=True)
RING = with_queue(ring_size=2)
EITHER = pytest.mark.parametrize("how", ["doubt", "corrupt"])


def spoil(core: CoreUnderTest, consumer: FakeConsumer, how: str, *texts: str) -> None:
    """Have a transaction in doubt take messages of ``consumer``, or make them unreadable."""
    references = consumer.take(*texts)
    stored = core.journal.store.messages
    unit = Unit()
    for reference in references:
        assert reference.location is not None
        unit.delete(reference.location)
        row, epoch = stored[reference.seq]
        if how == "corrupt":
            stored[reference.seq] = (row._replace(record=row.record[:3]), epoch)
    if how == "doubt":
        XaTransactions(core.journal).prepare(Xid(1, b"global", b"branch"), unit)
        core.settle()


def spoilt(how: str, settings: Settings, messages: int, *texts: str) -> CoreUnderTest:
    """Return a node that took over so many messages, of which ``texts`` are spoilt."""
    core = CoreUnderTest(settings)
    consumer = core.consume(QUEUE)
    core.send(QUEUE, *map(str, range(messages)))
    spoil(core, consumer, how, *texts)
    return core.takeover(settings)


def assert_left(core: CoreUnderTest, stored: int, *, deletes: bool = False) -> None:
    """Assert that nothing waits, that so much is stored, and counts until the queue is deleted."""
    queue = core.broker.queues()["q"]
    assert len(core.journal.store.messages) == stored
    assert (queue.depth, queue.use.messages) == (0, stored)
    if not deletes:
        return
    with pytest.raises(QueueInUse, match="messages that cannot be read"):
        delete(core, "q")
    delete(core, "q", force=True)
    assert (queue.use.messages, queue.use.used, queue.use.total.used) == (0, 0, 0)


@EITHER
@pytest.mark.parametrize("selector", [None, "TRUE"], ids=["plain", "selector"])
@pytest.mark.parametrize("first", ["counted", "read"])
@pytest.mark.parametrize("window", [2, 1_000])
def test_it_is_not_counted_once_it_was_passed(
    how: str, selector: str | None, first: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the queue was counted before, and however many consumers pass it."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", window)
    core = spoilt(how, SETTINGS, 8, "0", "3", "4", "7")
    if first == "counted":
        core.broker.count_backlogs()
        core.pass_time(1)
        assert core.broker.depths()["q"] == 8
    held = core.consume(QUEUE, prefetch=2, selector=selector)
    rest = core.consume(QUEUE, selector=selector)
    core.broker.count_backlogs()
    core.pass_time(1)
    assert sorted(held.texts + rest.texts) == ["1", "2", "5", "6"]
    assert core.broker.depths()["q"] == 4
    for consumer in (held, rest):
        consumer.acknowledge(*consumer.texts)
    core.settle()
    assert_left(core, 4, deletes=how == "corrupt")


@EITHER
def test_with_priorities_it_is_not_counted_either(how: str) -> None:
    """Each has a stretch of its own."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "0", "1", "2")
    core.send(QUEUE, "high0", "high1", "high2", priority=9)
    spoil(core, consumer, how, "1", "high0", "high2")
    successor = core.takeover()
    successor.broker.count_backlogs()
    last = successor.consume(QUEUE)
    successor.pass_time(1)
    assert last.texts == ["high1", "0", "2"]
    last.acknowledge(*last.texts)
    successor.settle()
    assert_left(successor, len(successor.journal.store.messages), deletes=how == "corrupt")


@EITHER
def test_a_purge_ends_with_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read for ever, at the database's speed."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 4)
    core = spoilt(how, PURGED, 12, "2", "9", "10")
    windows = core.count_windows()
    consumer = core.consume(QUEUE, prefetch=1)
    core.broker.count_backlogs()
    core.pass_time(1)
    for text in ("0", "1", "3", "4", "5"):
        consumer.acknowledge(text)
        core.settle()
    consumer.end.close()
    core.pass_time(1)
    assert len(windows) < 12
    assert_left(core, 3)


@EITHER
def test_no_message_of_a_ring_goes_for_it(how: str) -> None:
    """What is new was deleted in its place."""
    core = spoilt(how, RING, 2, "0", "1")
    windows = core.count_windows()
    core.broker.count_backlogs()
    core.pass_time(1)
    core.consume(QUEUE, prefetch=1).end.close()
    core.pass_time(1)
    core.send(QUEUE, "a", "b", "c")
    core.pass_time(1)
    assert len(windows) < 6
    assert core.consume(QUEUE).texts == ["b", "c"]
    assert len(core.journal.store.messages) == 4


@EITHER
def test_a_ring_that_a_node_takes_over_is_made_as_short_as_it_may_be(how: str) -> None:
    """Without it: two that can be delivered are left."""
    core = spoilt(how, replace(RING, addresses=SETTINGS.addresses), 6, "0", "2")
    ring = core.takeover(RING)
    windows = ring.count_windows()
    ring.broker.count_backlogs()
    ring.pass_time(1)
    assert len(windows) < 6
    assert ring.broker.depths()["q"] == 2
    assert ring.consume(QUEUE).texts == ["4", "5"]


@EITHER
@pytest.mark.parametrize("reads", [False, True])
def test_last_values_are_counted_without_it(how: str, reads: bool) -> None:
    """Of three values one is spoilt; another message of its value comes later."""
    settings = replace(
        SETTINGS, address_settings=(AddressSettings("q", default_last_value_queue=True),)
    )
    core = CoreUnderTest(settings)
    consumer = core.consume(QUEUE)
    for text in ("a", "b", "c"):
        headers = f"_AMQ_LVQ_NAME:{text}\n".encode()
        core.broker.send(ANYONE, QUEUE, message(text, headers=headers), None)
    core.settle()
    spoil(core, consumer, how, "b")
    successor = core.takeover(settings)
    if reads:
        successor.consume(QUEUE, prefetch=1).end.close()
    successor.broker.count_backlogs()
    successor.pass_time(1)
    last = successor.consume(QUEUE)
    successor.pass_time(1)
    assert last.texts == ["a", "c"]
    last.acknowledge("a", "c")
    successor.settle()
    assert_left(successor, len(successor.journal.store.messages), deletes=how == "corrupt")
