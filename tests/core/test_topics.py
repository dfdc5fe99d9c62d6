"""What subscribers of a topic see."""

from dataclasses import replace

from orthia.config.settings import StompLimits
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, message

TOPIC = "/topic/news"


def test_every_subscriber_gets_a_copy() -> None:
    """Those that are there get it; those that come later do not."""
    core = CoreUnderTest()
    core.send(TOPIC, "before")
    first, second = core.consume(TOPIC), core.consume(TOPIC)
    core.send(TOPIC, "a", "b")
    third = core.consume(TOPIC)
    assert first.texts == second.texts == ["a", "b"]
    assert third.texts == []


def test_a_sender_to_a_topic_is_answered_at_once() -> None:
    """Nothing is stored for a topic without queues, so there is nothing to wait for."""
    core = CoreUnderTest(auto_commit=False)
    stored: list[str] = []
    core.broker.send(ANYONE, TOPIC, message("a"), lambda: stored.append("a"))
    assert stored == ["a"]
    assert core.journal.store.messages == {}


def test_prefetch_holds_messages_back_until_they_are_acknowledged() -> None:
    """A subscriber with credit for one gets the next with its ACK."""
    core = CoreUnderTest()
    subscriber = core.consume(TOPIC, prefetch=1)
    core.send(TOPIC, "a", "b")
    assert subscriber.texts == ["a"]
    subscriber.acknowledge("a")
    assert subscriber.texts == ["a", "b"]


def test_a_subscriber_far_behind_is_told_and_cut_off() -> None:
    """Memory is bounded, and nobody misses messages without knowing."""
    core = CoreUnderTest()
    slow, quick = core.consume(TOPIC), core.consume(TOPIC)
    slow.is_writable = False
    large = "x" * (StompLimits().max_behind_bytes // 8)
    for _ in range(9):
        core.send(TOPIC, large)
    assert len(slow.failures) == 1
    assert "more than max-behind-bytes 8388608 behind" in slow.failures[0]
    assert len(quick.received) == 9
    core.send(TOPIC, "after")
    assert quick.texts[-1] == "after"


def test_a_closed_subscription_gets_nothing_more() -> None:
    """UNSUBSCRIBE ends deliveries."""
    core = CoreUnderTest()
    subscriber = core.consume(TOPIC)
    subscriber.end.close()
    core.send(TOPIC, "a")
    assert subscriber.texts == []


def test_nothing_is_delivered_without_a_valid_lease() -> None:
    """A topic, too, is served by the live node only."""
    core = CoreUnderTest()
    subscriber = core.consume(TOPIC)
    core.lease_valid = False
    core.send(TOPIC, "a")
    assert subscriber.texts == []


def test_what_a_transaction_has_set_aside_goes_with_its_subscriber() -> None:
    """Nothing of it stays in memory once the subscription is closed."""
    core = CoreUnderTest()
    subscriber = core.consume(TOPIC)
    core.send(TOPIC, "a")
    subscriber.end.set_aside(subscriber.take("a"))
    subscriber.end.close()
    assert core.broker._topic_memory.used == 0
    assert subscriber.held == 0


def test_what_a_transaction_puts_back_takes_credit_again() -> None:
    """An ABORT leaves its messages unacknowledged, as they were."""
    limits = StompLimits(max_unacknowledged_bytes=1)
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=limits))
    subscriber = core.consume(TOPIC)
    core.send(TOPIC, "a", "b", "c")
    subscriber.end.set_aside(subscriber.take("a"))
    subscriber.end.resume()
    assert subscriber.texts == ["a", "b"]
    subscriber.end.put_back(subscriber.take("a"))
    subscriber.acknowledge("b")
    assert subscriber.texts == ["a", "b"]
    subscriber.acknowledge("a")
    assert subscriber.texts == ["a", "b", "c"]
