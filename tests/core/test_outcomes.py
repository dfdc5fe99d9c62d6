"""What becomes of a delivered message that is neither acknowledged nor a failed attempt."""

from dataclasses import replace

import pytest

from orthia.config.address_settings import RoutingType
from tests.core.support import (
    ANYONE,
    CoreUnderTest,
    FakeBrowser,
    FakeConsumer,
    declared,
    settings,
    texts,
)

QUEUE = "/queue/orders"
DEAD = "/queue/dead"


def core(**more: object) -> CoreUnderTest:
    """Return a core with a dead-letter address."""
    options = settings("orders", dead_letter_address="dead", **more)
    return CoreUnderTest(replace(options, addresses=(declared("dead", "dead"),)))


def test_what_is_released_comes_again_in_its_place_and_without_an_attempt() -> None:
    """However often: it never becomes a dead letter."""
    under_test = core(max_delivery_attempts=1)
    under_test.send(QUEUE, "a", "b")
    consumer = under_test.consume(QUEUE, prefetch=1)
    released: list[str] = []
    for _ in range(3):
        consumer.end.release(consumer.take("a"), lambda: released.append("a"))
        under_test.settle()
    assert released == ["a"] * 3
    assert consumer.texts == ["a"] * 4
    assert consumer.is_flagged("a")
    assert consumer.take("a")[0].attempts == 0
    assert under_test.consume(DEAD).texts == []


@pytest.mark.parametrize("most", [-1, 10])
def test_a_dead_letter_is_one_at_once(most: int) -> None:
    """However many attempts there may be; who asked is told once that is stored."""
    under_test = core(max_delivery_attempts=most)
    under_test.send(QUEUE, "a", "b")
    consumer = under_test.consume(QUEUE)
    told: list[str] = []
    consumer.end.dead_letter(consumer.take("a"), lambda: told.append("stored"))
    under_test.settle()
    assert told == ["stored"]
    assert under_test.consume(DEAD).texts == ["a"]
    assert consumer.texts == ["a", "b"]
    assert sorted(under_test.stored_texts()) == ["a", "b"]


def test_a_dead_letter_is_not_stored_before_it_is_said_to_be() -> None:
    """Nothing is told while its move is on its way."""
    options = settings("orders", dead_letter_address="dead")
    under_test = CoreUnderTest(
        replace(options, addresses=(declared("dead", "dead"),)), auto_commit=False
    )
    under_test.send(QUEUE, "a")
    under_test.store_all()
    consumer = under_test.consume(QUEUE)
    told: list[str] = []
    consumer.end.dead_letter(consumer.take("a"), lambda: told.append("stored"))
    under_test.settle()
    assert told == []
    under_test.store_all()
    assert told == ["stored"]


@pytest.mark.parametrize("selector", [None, "n = 1"])
def test_a_consumer_has_all_once_nothing_is_looked_for(selector: str | None) -> None:
    """Of what is in memory and what is in the store only, with a selector and without."""
    store = core()
    store.send(QUEUE, *"abc")
    successor = store.takeover()
    consumer = FakeConsumer()
    end = successor.broker.subscribe(ANYONE, QUEUE, consumer, prefetch=0, selector=selector)
    consumer.subscription = end
    end.resume()
    looking = [end.is_looking]
    successor.counted()
    successor.pass_time(1)
    looking.append(end.is_looking)
    assert looking == [True, False]
    assert consumer.texts == ([] if selector else ["a", "b", "c"])
    end.close()
    looking.append(end.is_looking)
    assert looking == [True, False, False]


def test_a_browser_is_looking_until_it_has_seen_all() -> None:
    """It has read the queue then."""
    under_test = core()
    under_test.send(QUEUE, *"abc")
    browser = FakeBrowser()
    end = under_test.broker.browse(ANYONE, QUEUE, browser, prefetch=0)
    browser.subscription = end
    end.resume()
    under_test.settle()
    assert not end.is_looking
    assert texts(browser.received) == ["a", "b", "c"]
    assert browser.is_over


def test_a_paused_queue_is_not_looked_through() -> None:
    """Nobody waits for what does not come."""
    under_test = core()
    under_test.send(QUEUE, "a")
    under_test.broker.queues()["orders"].pause(is_paused=True)
    consumer = under_test.consume(QUEUE)
    assert not consumer.end.is_looking
    assert consumer.texts == []


def test_a_subscriber_of_a_topic_has_all_at_once() -> None:
    """What is given back there is gone, whatever is said of it."""
    under_test = CoreUnderTest()
    consumer = under_test.consume("/topic/news")
    under_test.send("/topic/news", "a", "b")
    assert not consumer.end.is_looking
    told: list[str] = []
    consumer.end.release(consumer.take("a"), lambda: told.append("a"))
    consumer.end.dead_letter(consumer.take("b"), lambda: told.append("b"))
    assert told == ["a", "b"]
    assert consumer.texts == ["a", "b"]


def test_one_of_several_temporary_destinations_ends_alone() -> None:
    """Its name is of nothing then; the others stay."""
    under_test = CoreUnderTest()
    broker = under_test.broker
    kept, ended = (
        broker.create_temporary(ANYONE, RoutingType.ANYCAST, name) for name in ("kept", "ended")
    )
    consumer = under_test.consume(ended)
    broker.end_temporary(ANYONE, ended)
    broker.end_temporary(ANYONE, ended)
    under_test.settle()
    assert consumer.failures
    under_test.send(ended, "dropped")
    under_test.send(kept, "taken")
    assert under_test.consume(kept).texts == ["taken"]
    broker.end_temporaries(ANYONE)
