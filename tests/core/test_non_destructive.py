"""Non-destructive queues: each consumer sees every message, and takes none."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import LimitExceeded, QueueInUse
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue import showing
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from orthia.journal.memory import MemoryStore
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, declared, message
from tests.core.support import settings as settings_of

QUEUE = "/queue/q"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every queue be of many windows."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 4)


def with_queue(*, kind: RoutingType = RoutingType.ANYCAST, **options: Any) -> Settings:
    """Return settings that declare the queue, with more options than that."""
    options = {"non_destructive": True, **options}
    queue = QueueSettings("q", kind, options=options)
    return replace(SETTINGS, addresses=(declared("q", queue, kind=kind),))


SHOWN = with_queue()


def numbers(*most: int) -> list[str]:
    """Return texts."""
    return [str(number) for number in range(*most)]


def test_each_consumer_sees_all_and_what_comes_later() -> None:
    """Whatever it or another acknowledges; in the order of the queue."""
    core = CoreUnderTest(SHOWN)
    core.send(QUEUE, *numbers(10))
    first = core.consume(QUEUE)
    assert first.texts == numbers(10)
    first.acknowledge(*numbers(10))
    auto = core.consume(QUEUE, auto=True)
    core.send(QUEUE, "10", "11")
    late = core.consume(QUEUE)
    core.send(QUEUE, "12")
    for consumer in (first, auto, late):
        assert consumer.texts == numbers(13)
        assert not any(one.redelivered for one in consumer.received)
    assert core.broker.depths() == {"q": 13}
    assert len(core.journal.store.messages) == 13


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_is_given_back_was_no_attempt(is_lost: bool) -> None:
    """However often: it is not shown again, gives credit, and is no dead letter."""
    core = CoreUnderTest(
        replace(SHOWN, address_settings=(AddressSettings("#", max_delivery_attempts=1),))
    )
    core.send(QUEUE, "1", "2")
    for _ in range(3):
        consumer = core.consume(QUEUE, prefetch=1)
        assert consumer.texts == ["1"]
        if is_lost:
            consumer.end.close(attempted=consumer.received)
        else:
            consumer.reject("1")
            core.settle()
            assert consumer.texts == ["1", "2"]
        assert not consumer.received[0].redelivered
    assert core.broker.depths() == {"q": 2}
    assert core.broker.counters().dead_lettered == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_transaction_takes_nothing(is_committed: bool) -> None:
    """What it sends is shown once it is committed; what it acknowledges or rejects stays."""
    core = CoreUnderTest(SHOWN)
    core.send(QUEUE, "1", "2")
    consumer = core.consume(QUEUE, prefetch=2)
    first, second = consumer.take("1", "2")
    consumer.end.set_aside([first, second])
    work = TransactionWork([(QUEUE, message("3"))])
    work.acknowledgements[consumer.end] = [first]
    work.rejections[consumer.end] = [second]
    if is_committed:
        core.commit(work, lambda: None)
        core.settle()
        assert consumer.texts == ["1", "2", "3"]
    else:
        consumer.end.put_back([first, second])
        consumer.acknowledge("1", "2")
        core.send(QUEUE, "3")
        assert consumer.texts == ["1", "2", "3"]
    assert core.consume(QUEUE).texts == ["1", "2", "3"]
    consumer.end.close()
    assert core.broker.depths() == {"q": 3}


def test_one_that_is_exclusive_is_shown_to_one_at_a_time() -> None:
    """And to the next one from the head on."""
    core = CoreUnderTest(with_queue(exclusive=True))
    core.send(QUEUE, "1")
    first, second = core.consume(QUEUE, auto=True), core.consume(QUEUE, selector="a IS NULL")
    core.send(QUEUE, "2")
    assert (first.texts, second.texts) == (["1", "2"], [])
    first.end.close()
    core.settle()
    assert second.texts == ["1", "2"]
    core.send(QUEUE, "3")
    assert second.texts == ["1", "2", "3"]


def test_there_may_have_to_be_enough_consumers_and_not_too_many() -> None:
    """``consumers-before-dispatch`` and ``max-consumers`` count them as elsewhere."""
    other = AddressSettings("other", default_non_destructive=True, default_max_consumers=1)
    waiting = with_queue(consumers_before_dispatch=2)
    core = CoreUnderTest(replace(waiting, address_settings=(other,)))
    core.send(QUEUE, "1")
    first = core.consume(QUEUE)
    core.send(QUEUE, "2")
    assert first.texts == []
    second = core.consume(QUEUE)
    assert first.texts == second.texts == ["1", "2"]
    core.consume("/queue/other")
    with pytest.raises(LimitExceeded, match="max-consumers 1"):
        core.consume("/queue/other")


def test_a_ring_keeps_the_newest_and_what_expires_leaves_it() -> None:
    """What was read for a consumer is not shown once it is gone."""
    now = [1_000]
    store = MemoryStore(clock_ms=lambda: now[0])
    settings = replace(with_queue(ring_size=4), message_expiry_scan_period=1_000)
    core = CoreUnderTest(settings, store=store, time_ms=lambda: now[0])
    core.broker.start_schedule()
    core.send(QUEUE, *numbers(3))
    core.send(QUEUE, "old", expires_ms=2_000)
    consumer = core.consume(QUEUE, prefetch=1, selector="a IS NULL")
    assert consumer.texts == ["0"]
    now[0] = 3_000
    core.pass_time(2)
    assert core.broker.depths()["q"] == 3
    core.send(QUEUE, *numbers(10, 15), priority=4)
    core.pass_time(1)
    assert core.broker.depths()["q"] == 4
    assert core.consume(QUEUE).texts == numbers(11, 15)
    consumer.acknowledge("0")
    core.settle()
    assert consumer.texts == ["0", "11"]
    successor = core.takeover(settings)
    successor.broker.count_backlogs()
    successor.pass_time(1)
    successor.send(QUEUE, "15", priority=9)
    successor.pass_time(1)
    assert successor.consume(QUEUE).texts == ["15", "12", "13", "14"]
    assert len(store.messages) == 5


def test_it_may_be_purged_when_nobody_is_left() -> None:
    """With consumers it keeps what they acknowledge, and without it is empty."""
    core = CoreUnderTest(with_queue(purge_on_no_consumers=True))
    core.send(QUEUE, "0")
    first, second = core.consume(QUEUE, auto=True), core.consume(QUEUE)
    core.send(QUEUE, *numbers(1, 9))
    first.end.close()
    core.pass_time(1)
    assert core.broker.depths() == {"q": 8}
    second.end.close()
    core.pass_time(1)
    assert core.broker.depths() == {"q": 0}
    assert not core.journal.store.messages
    assert core.broker.queues()["q"].use.messages == 0


def test_groups_are_not_kept_together() -> None:
    """Each consumer sees them whole."""
    core = CoreUnderTest(SHOWN)
    consumers = [core.consume(QUEUE, prefetch=1), core.consume(QUEUE)]
    core.send(QUEUE, *numbers(4), headers=b"JMSXGroupID:g\n")
    assert consumers[1].texts == numbers(4)
    consumers[0].acknowledge("0")
    core.settle()
    assert consumers[0].texts == ["0", "1"]


def test_queues_of_a_topic_may_be_so() -> None:
    """One that is declared, and durable subscriptions where the address' default says it."""
    settings = replace(
        with_queue(kind=RoutingType.MULTICAST),
        address_settings=(AddressSettings("q", default_non_destructive=True),),
    )
    core = CoreUnderTest(settings)
    principal = Principal("me", frozenset(), unrestricted=True, client_id="me")
    shown: list[list[str]] = []
    for text in ("1", "2"):
        consumer = FakeConsumer(auto=True)
        consumer.subscription = core.broker.subscribe(
            principal, "/topic/q", consumer, prefetch=1, durable="mine"
        )
        consumer.end.resume()
        core.send("/topic/q", text)
        shown.append(consumer.texts)
        consumer.end.close()
    assert shown == [["1"], ["1", "2"]]
    assert core.consume("/topic/q::q").texts == ["1", "2"]
    assert core.broker.depths() == {"q": 2, "me.mine": 2}


def test_a_queue_that_was_another_kind_has_what_was_in_it() -> None:
    """And going back, consumers take it."""
    core = CoreUnderTest()
    core.send(QUEUE, *numbers(4))
    successor = core.takeover(SHOWN)
    assert successor.consume(QUEUE, auto=True).texts == numbers(4)
    again = successor.takeover(with_queue(non_destructive=False))
    assert again.consume(QUEUE, auto=True).texts == numbers(4)
    again.settle()
    assert not again.journal.store.messages


def test_its_consumers_are_ended_with_it() -> None:
    """A queue that is deleted has their messages no more."""
    core = CoreUnderTest(settings_of("#", default_non_destructive=True))
    core.send(QUEUE, *numbers(9))
    consumer = core.consume(QUEUE, prefetch=1)
    with pytest.raises(QueueInUse, match="1 consumers and 9 messages"):
        core.broker.delete_queue(ANYONE, "q", lambda _: None, force=False)
    gone: list[int] = []
    core.broker.delete_queue(ANYONE, "q", gone.append, force=True)
    core.settle()
    assert gone == [9]
    assert consumer.failures == ["queue 'q' is deleted"]
    assert core.memory_used == 0


def test_what_waits_for_a_lease_is_shown_when_it_is_valid_again() -> None:
    """Nothing is delivered without one, and nothing is left out."""
    core = CoreUnderTest(SHOWN)
    consumer = core.consume(QUEUE)
    core.lease_valid = False
    core.send(QUEUE, *numbers(3))
    assert consumer.texts == []
    core.lease_valid = True
    core.broker.go_on()
    core.settle()
    assert consumer.texts == numbers(3)


def test_what_cannot_be_read_is_told_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """The others are shown, and its row stays."""
    core = CoreUnderTest(SHOWN)
    core.send(QUEUE, *numbers(6))
    stored = core.journal.store.messages
    second = sorted(stored)[1]
    row, epoch = stored[second]
    stored[second] = (row._replace(record=b"junk"), epoch)
    assert core.consume(QUEUE).texts == ["0", "2", "3", "4", "5"]
    assert "its row stays in the table" in caplog.text
    assert len(stored) == 6
