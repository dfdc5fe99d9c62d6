"""Messages of a higher priority first: in memory and paged, and whatever else a queue does."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.queue import refill as window_module
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.memory import MemoryStore
from orthia.journal.model.codec import QueueBinding, decode_queue_binding, encode_queue_binding
from tests.core.support import (
    ANYONE,
    SETTINGS,
    CoreUnderTest,
    FakeConsumer,
    anyone,
    declared,
    message,
    settings,
)

QUEUE = "/queue/orders"
PAGED = settings(max_size_messages=3)
BOTH = pytest.mark.parametrize("options", [SETTINGS, PAGED], ids=["in-memory", "paged"])
PRIORITIES = "4904739"


def test_each_priority_of_a_queue_counts_as_a_queue() -> None:
    """Of whoever had the queue created, also after a takeover, until it is deleted."""
    options = replace(SETTINGS, stomp_limits=ClientLimits(max_queues=4))
    core = CoreUnderTest(options)
    send(core, "4904")
    told = "the broker has max-queues 4 already: what keeps messages of priority 7 of queue"
    send(core, "4", "/queue/other")
    for _ in range(2):
        with pytest.raises(LimitExceeded, match=told):
            send(core, "7")
        work = TransactionWork([(QUEUE, message("7", priority=7))], {}, {})
        with pytest.raises(LimitExceeded, match=told):
            list(core.broker.commit(ANYONE, work, lambda: None))
        send(core, "409")
        with pytest.raises(LimitExceeded, match="max-queues"):
            send(core, "4", "/queue/third")
        core = core.takeover(options)
    core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
    core.settle()
    send(core, "490", "/queue/third")
    with pytest.raises(LimitExceeded, match="max-queues"):
        send(core, "7", "/queue/third")


def test_what_the_broker_moves_is_not_refused_for_its_priority() -> None:
    """A dead letter is in its queue, and that counts from then on."""
    options = replace(
        settings("orders", max_delivery_attempts=1, dead_letter_address="DLQ"),
        stomp_limits=ClientLimits(max_queues=3),
    )
    core = CoreUnderTest(options)
    send(core, "4", "/queue/DLQ")
    send(core, "9")
    consumer = core.consume(QUEUE)
    consumer.reject(*consumer.texts)
    core.settle()
    assert core.broker.depths() == {"DLQ": 2, "orders": 0}
    assert core.consume("/queue/DLQ").texts == ["9-0", "4-0"]
    with pytest.raises(LimitExceeded, match="max-queues 3 already"):
        send(core, "8", "/queue/DLQ")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every backlog be of many windows."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 4)


def send(core: CoreUnderTest, priorities: str, destination: str = QUEUE, **options: Any) -> None:
    """Send messages of these priorities, each called by its own and its number."""
    for number, priority in enumerate(priorities):
        core.send(destination, f"{priority}-{number}", priority=int(priority), **options)


def in_order(priorities: str) -> list[str]:
    """Return what ``send`` sends as it is to be delivered."""
    texts = [f"{priority}-{number}" for number, priority in enumerate(priorities)]
    return sorted(texts, key=lambda text: -int(text[0]))


@BOTH
def test_a_higher_priority_is_delivered_first(options: Settings) -> None:
    """And those of one in the order in which they came."""
    core = CoreUnderTest(options)
    send(core, PRIORITIES * 5)
    assert core.broker.depths()["orders"] == 35
    consumer = core.consume(QUEUE)
    assert consumer.texts == in_order(PRIORITIES * 5)
    consumer.acknowledge(*consumer.texts)
    core.settle()
    assert core.broker.depths()["orders"] == 0
    assert not core.journal.store.messages


@BOTH
@pytest.mark.parametrize("left", ["000", "009", "3", "99"])
def test_a_consumer_that_came_before_the_counts_gets_what_there_is(
    options: Settings, left: str
) -> None:
    """Also where the queue has nothing of a priority that it would deliver first."""
    core = CoreUnderTest(options)
    send(core, left)
    successor = core.takeover(options)
    consumer = successor.consume(QUEUE)
    successor.counted()
    assert consumer.texts == in_order(left)


@BOTH
def test_dead_letters_keep_their_priority(options: Settings) -> None:
    """And so does what has expired."""
    core = CoreUnderTest(
        replace(
            options,
            address_settings=(
                AddressSettings("#", max_delivery_attempts=1),
                *options.address_settings,
            ),
        )
    )
    send(core, "4199")
    consumer = core.consume(QUEUE)
    consumer.reject(*consumer.texts)
    core.settle()
    assert core.consume("/queue/DLQ").texts == ["9-2", "9-3", "4-0", "1-1"]


def test_what_has_expired_keeps_its_priority_and_is_found_in_the_table() -> None:
    """Nobody consumes."""
    now = 1_000
    core = CoreUnderTest(PAGED, store=MemoryStore(clock_ms=lambda: now), time_ms=lambda: now)
    send(core, PRIORITIES * 2, expires_ms=2_000)
    core.broker.start_schedule()
    now = 3_000
    core.pass_time(60)
    assert core.broker.depths()["orders"] == 0
    assert core.consume("/queue/ExpiryQueue").texts == in_order(PRIORITIES * 2)


@BOTH
def test_a_queue_is_deleted_with_all_of_them(options: Settings) -> None:
    """And with what says that it had them."""
    core = CoreUnderTest(options)
    send(core, PRIORITIES * 3)
    gone: list[int] = []
    core.broker.delete_queue(ANYONE, "orders", gone.append, force=True)
    core.settle()
    assert gone == [21]
    assert not core.journal.store.messages
    assert not [row for row in core.journal.store.bindings.values() if row.user_record_type == 21]


@BOTH
def test_of_a_ring_the_oldest_of_the_lowest_goes(options: Settings) -> None:
    """Whether somebody consumes or not."""
    core = CoreUnderTest(with_options(options, ring_size=5))
    send(core, PRIORITIES * 3)
    assert core.broker.depths()["orders"] == 5
    wanted = [text for text in in_order(PRIORITIES * 3) if text[0] == "9"][-5:]
    assert core.consume(QUEUE, prefetch=5).texts == wanted
    send(core, "1234567")
    assert core.broker.depths()["orders"] == 10
    assert core.consume(QUEUE).texts == ["7-6", "6-5", "5-4", "4-3", "3-2"]


def with_options(options: Settings, **said: Any) -> Settings:
    """Return settings with a queue that has options."""
    kind = RoutingType.ANYCAST
    queue = QueueSettings("orders", kind, options=said)
    configured = declared("orders", queue, kind=kind)
    return replace(options, addresses=(configured,))


def test_subscribers_of_a_topic_that_wait_get_the_higher_first() -> None:
    """Those of one priority in order; and of what they have nothing is overtaken."""
    core = CoreUnderTest()
    consumer = core.consume("/topic/news", prefetch=2)
    send(core, "4" + PRIORITIES, "/topic/news")
    wanted = ["4-0", "4-1", *in_order("4" + PRIORITIES)]
    wanted = [one for n, one in enumerate(wanted) if one not in wanted[:n]]
    late = core.consume("/topic/news", prefetch=1)
    send(core, "19", "/topic/news")
    for _ in range(12):
        consumer.acknowledge(*consumer.texts[-2:])
        late.acknowledge(*late.texts[-1:])
        core.settle()
    assert late.texts == ["1-0", "9-1"]
    assert [one for one in consumer.texts if one not in ("1-0", "9-1")] == wanted
    assert consumer.texts[-1] == "0-3"


@BOTH
def test_a_temporary_queue_keeps_them_in_order(options: Settings) -> None:
    """And leaves nothing behind."""
    core = CoreUnderTest(options)
    owner = anyone()
    name = core.broker.create_temporary(owner, RoutingType.ANYCAST, "mine")
    send(core, PRIORITIES * 2, name)
    consumer = FakeConsumer()
    consumer.subscription = core.broker.subscribe(owner, name, consumer, prefetch=0)
    consumer.end.resume()
    core.settle()
    assert consumer.texts == in_order(PRIORITIES * 2)
    consumer.end.close()
    core.broker.end_temporaries(owner)
    core.settle()
    assert not core.journal.store.messages
    successor = core.takeover(options).counted()
    assert not [
        row for row in successor.journal.store.bindings.values() if row.user_record_type == 21
    ]


def test_an_older_node_refuses_what_says_of_them() -> None:
    """It knows no queue binding above version 2."""
    binding = QueueBinding(7, "orders", "orders", RoutingType.ANYCAST, priority=9)
    data = encode_queue_binding(binding)
    assert data[0] == 3
    assert decode_queue_binding(data, 7) == binding


def test_a_queue_without_priorities_has_nothing_of_it() -> None:
    """No binding more, and the plain machine."""
    core = CoreUnderTest(PAGED)
    core.send(QUEUE, *map(str, range(20)))
    queue = core.broker.queues()["orders"]
    assert list(queue.log.ids) == [queue.id]
    consumer = core.consume(QUEUE)
    assert queue.selecting is None
    assert consumer.texts == [str(n) for n in range(20)]
