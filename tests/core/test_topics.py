"""What subscribers of a topic see."""

import gc
import itertools
from dataclasses import replace
from functools import partial

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.topics.volatile import VolatileQueue
from orthia.config.address_settings import RoutingType
from orthia.config.queues import QueueOptions
from orthia.config.settings import ClientLimits
from orthia.journal.errors import StoreFull
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, anyone, message

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


def test_nothing_of_a_subscriber_that_left_waits_for_the_collector() -> None:
    """Clients may come and go faster than cycles are looked for."""

    def queues() -> int:
        return sum(type(one) is VolatileQueue for one in gc.get_objects())

    core = CoreUnderTest()
    gc.collect()
    gc.disable()
    try:
        before = queues()
        subscriber = core.consume(TOPIC)
        subscriber.end.close()
        subscriber.subscription = None
        assert queues() == before
    finally:
        gc.enable()


def test_a_subscriber_far_behind_is_told_and_cut_off() -> None:
    """Memory is bounded, and nobody misses messages without knowing."""
    core = CoreUnderTest()
    slow, quick = core.consume(TOPIC), core.consume(TOPIC)
    slow.is_writable = False
    large = "x" * (ClientLimits().max_behind_bytes // 8)
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


def test_what_a_transaction_has_set_aside_goes_with_its_subscriber() -> None:
    """Nothing of it stays in memory once the subscription is closed."""
    core = CoreUnderTest()
    subscriber = core.consume(TOPIC)
    core.send(TOPIC, "a")
    subscriber.end.set_aside(subscriber.take("a"))
    subscriber.end.close()
    assert core.broker.parts.factory.topic_memory.used == 0
    assert subscriber.held == 0


def test_what_a_transaction_puts_back_takes_credit_again() -> None:
    """An ABORT leaves its messages unacknowledged, as they were."""
    limits = ClientLimits(max_unacknowledged_bytes=1)
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


@pytest.mark.parametrize("how", ["selector", "transaction", "deleted"])
def test_a_topic_is_heard_in_the_order_it_was_sent(how: str) -> None:
    """What is stored is published behind its commit; what is not stored does not overtake it."""
    core = CoreUnderTest(auto_commit=False)
    named = "/topic/news::kept"
    if how == "selector":
        core.broker.parts.book.create_queue(
            "kept",
            "news",
            RoutingType.MULTICAST,
            auto_created=False,
            options=QueueOptions(filter="AMQPriority > 4"),
        )
    else:
        core.consume(named).end.close()
    subscriber = core.consume(TOPIC, auto=True)
    core.journal.commit()
    core.settle()
    stored: list[str] = []
    if how == "transaction":
        work = TransactionWork([(TOPIC, message("1", priority=9))])
        core.commit(work, lambda: stored.append("1"))
    else:
        core.broker.send(ANYONE, TOPIC, message("1", priority=9), lambda: stored.append("1"))
    if how != "selector":
        core.broker.delete_queue(ANYONE, "kept", lambda _: None, force=True)
    for text in "23":
        core.broker.send(ANYONE, TOPIC, message(text, priority=1), partial(stored.append, text))
    core.settle()
    assert (subscriber.texts, stored) == ([], [])
    core.store_all()
    assert subscriber.texts == stored == ["1", "2", "3"]
    core.broker.send(ANYONE, TOPIC, message("4", priority=1), partial(stored.append, "4"))
    assert subscriber.texts[-1] == stored[-1] == "4", "with nothing on its way it is at once"


def test_a_message_that_is_refused_holds_nobody_back_for_good() -> None:
    """The next one goes through the journal, and those behind it are as before."""
    core = CoreUnderTest(auto_commit=False)
    core.consume("/topic/news::kept").end.close()
    subscriber = core.consume(TOPIC, auto=True)
    core.journal.commit()
    core.settle()
    core.broker.send(anyone(), TOPIC, message("1"), None)
    core.journal.refuse(StoreFull("no room"))
    core.settle()
    core.broker.delete_queue(ANYONE, "kept", lambda _: None, force=True)
    core.broker.send(ANYONE, TOPIC, message("2"), None)
    core.store_all()
    core.broker.send(ANYONE, TOPIC, message("3"), None)
    assert subscriber.texts == ["2", "3"]


def test_a_transaction_of_more_than_subscribers_may_hold_ends_nobody_that_keeps_up() -> None:
    """What is on its way to all of them is not yet held by any."""
    steps = itertools.count()
    core = CoreUnderTest(
        replace(SETTINGS, global_max_size=20_000), clock=lambda: next(steps) / 1_000
    )
    quick = [core.consume(TOPIC, auto=True) for _ in range(200)]
    slow = core.consume(TOPIC)
    work = TransactionWork([(TOPIC, message("m" * 400)) for _ in range(40)])
    core.commit(work, lambda: None)
    core.settle()
    assert {len(one.received) for one in quick} == {40}
    assert [one.failures for one in quick] == [[]] * 200
    assert "acknowledge or read faster" in slow.failures[0]


def test_a_topic_is_up_to_date_once_what_a_transaction_sent_is_published() -> None:
    """What comes behind it is with subscribers at once: the store is not asked for it."""
    core = CoreUnderTest(auto_commit=False)
    subscriber = core.consume(TOPIC, auto=True)
    core.commit(TransactionWork([(TOPIC, message("1"))]), lambda: None)
    core.store_all()
    core.broker.send(ANYONE, TOPIC, message("2"), None)
    assert subscriber.texts == ["1", "2"]
    assert not core.journal.waiting


def test_of_several_topics_none_is_overtaken() -> None:
    """A message that wildcards hear, too, comes behind what is on its way to only some of them."""
    core = CoreUnderTest(auto_commit=False)
    core.consume("/topic/news.*::kept").end.close()
    every = core.consume("/topic/news.*", auto=True)
    core.journal.commit()
    core.settle()
    core.broker.send(ANYONE, "/topic/news.*", message("1"), None)
    core.broker.delete_queue(ANYONE, "kept", lambda _: None, force=True)
    core.consume("/topic/news.eu")
    core.broker.send(ANYONE, "/topic/news.eu", message("2"), None)
    core.settle()
    assert every.texts == []
    core.store_all()
    assert every.texts == ["1", "2"]
