"""Message groups: one consumer at a time has a group, paged or not, whoever comes and goes."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.limits.memory import GroupMemory
from orthia.broker.core.queue import refill as window_module
from orthia.broker.core.queue.groups import GROUP_OVERHEAD
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, declared, settings

QUEUE = "/queue/orders"
PAGED = settings(max_size_messages=3)
BOTH = pytest.mark.parametrize("options", [SETTINGS, PAGED], ids=["in-memory", "paged"])


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every backlog be of many windows."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 4)


def send(core: CoreUnderTest, *texts: str, header: str = "JMSXGroupID") -> None:
    """Send messages, each of the group that its first letter names; ``-`` is of none."""
    for text in texts:
        head = "" if text[0] == "-" else f"{header}:{text[0]}\n"
        closes = f"{header.replace('ID', 'Seq')}:-1\n" if text.endswith("!") else ""
        core.send(QUEUE, text, headers=(head + closes).encode())


def groups_of(consumer: FakeConsumer) -> set[str]:
    """Return which groups a consumer got messages of."""
    return {text[0] for text in consumer.texts} - {"-"}


def queue_options(core: CoreUnderTest, **options: Any) -> None:
    """Have the queue be one with options."""
    core.send(QUEUE)
    core.consume(QUEUE).end.close()
    core.settle()
    queue = core.broker.queues()["orders"]
    queue.options = QueueOptions(**options)
    queue._may_group = queue.options.has_groups


@BOTH
@pytest.mark.parametrize("header", ["JMSXGroupID", "_AMQ_GROUP_ID"])
@pytest.mark.parametrize("consumers_first", [True, False])
def test_a_group_goes_to_one_consumer_in_order(
    options: Settings, header: str, consumers_first: bool
) -> None:
    """Whoever is first; what is of no group goes to anybody."""
    core = CoreUnderTest(options)
    texts = [f"{'abc-'[n % 4]}{n}" for n in range(40)]
    if not consumers_first:
        send(core, *texts, header=header)
    consumers = [core.consume(QUEUE, prefetch=2) for _ in range(3)]
    if consumers_first:
        send(core, *texts, header=header)
    for _ in range(60):
        for consumer in consumers:
            for text in consumer.texts[-2:]:
                consumer.acknowledge(text)
            core.settle()
    everything = [text for consumer in consumers for text in consumer.texts]
    assert sorted(everything) == sorted(texts)
    owned = [groups_of(consumer) for consumer in consumers]
    assert sum(len(one) for one in owned) == 3
    for consumer in consumers:
        order = [texts.index(text) for text in consumer.texts]
        assert order == sorted(order)
    assert core.broker.depths()["orders"] == 0


@BOTH
def test_a_group_that_is_closed_goes_to_anybody_once_all_is_acknowledged(options: Settings) -> None:
    """Never to two at once."""
    core = CoreUnderTest(options)
    first = core.consume(QUEUE, prefetch=2)
    send(core, "a1", "a2!", "a3", "a4")
    second = core.consume(QUEUE, prefetch=10)
    assert (first.texts, second.texts) == (["a1", "a2!"], [])
    first.acknowledge("a1")
    core.settle()
    first.is_writable = False
    assert not second.received
    first.acknowledge("a2!")
    core.settle()
    assert second.texts == ["a3", "a4"]


@BOTH
@pytest.mark.parametrize("pauses", [False, True])
def test_groups_are_given_out_anew_when_that_is_wanted(options: Settings, pauses: bool) -> None:
    """And what the old consumer has is waited for; with a pause, by all."""
    core = CoreUnderTest(options)
    queue_options(core, group_rebalance=True, group_rebalance_pause_dispatch=pauses)
    first = core.consume(QUEUE, prefetch=4)
    send(core, "a1", "b1", "a2", "b2", "a3", "b3", "-4")
    second = core.consume(QUEUE, prefetch=4)
    first.is_writable = False
    core.settle()
    first.acknowledge("a1", "a2")
    core.settle()
    assert second.texts == ([] if pauses else ["-4", "a3"])
    first.acknowledge("b1", "b2")
    core.settle()
    assert sorted(second.texts) == ["-4", "a3", "b3"]


def test_buckets_bound_how_many_groups_there_are() -> None:
    """One bucket has all groups go together; none has no groups."""
    for buckets, most in ((1, 1), (0, 3)):
        core = CoreUnderTest()
        queue_options(core, group_buckets=buckets)
        consumers = [core.consume(QUEUE) for _ in range(3)]
        send(core, *(f"{'abcdef'[n % 6]}{n}" for n in range(12)))
        assert sum(1 for one in consumers if one.received) == most


@BOTH
def test_the_first_message_of_a_group_to_a_consumer_is_marked(options: Settings) -> None:
    """To each consumer that gets the group, and in no store."""
    core = CoreUnderTest(options)
    queue_options(core, group_first_key="first-of-group")
    first = core.consume(QUEUE, prefetch=10)
    send(core, "a1", "a2", "b1", "-2")

    def marked(consumer: FakeConsumer) -> list[str]:
        return [
            one.record.body.decode()
            for one in consumer.received
            if "first-of-group" in one.record.properties()
        ]

    assert marked(first) == ["a1", "b1"]
    first.acknowledge("a1")
    first.end.close()
    second = core.consume(QUEUE)
    assert second.texts == ["a2", "b1", "-2"]
    assert marked(second) == ["a2", "b1"]
    second.end.close()
    core.settle()
    consumer = core.consume(QUEUE)
    consumer.acknowledge(*consumer.texts)
    core.settle()
    assert core.broker.depths()["orders"] == 0
    assert core.broker.store_use.used == 0


def test_a_queue_gives_out_groups_as_broker_xml_says() -> None:
    """By the queue's own settings, or by its address' defaults for those that clients create."""
    configured = declared(
        "declared", QueueSettings("declared", RoutingType.ANYCAST, options={"group_buckets": 1})
    )
    core = CoreUnderTest(
        replace(
            SETTINGS,
            addresses=(configured,),
            address_settings=(AddressSettings("created", default_group_buckets=1),),
        )
    )
    for destination, most in (("/queue/declared", 1), ("/queue/created", 1), (QUEUE, 3)):
        consumers = [core.consume(destination) for _ in range(3)]
        for number in range(9):
            core.send(destination, str(number), headers=f"JMSXGroupID:{number}\n".encode())
        assert sum(1 for one in consumers if one.received) == most


def send_named(core: CoreUnderTest, name: str, text: str, queue: str = QUEUE) -> None:
    """Send a message of the group of that name."""
    core.send(queue, text, headers=f"JMSXGroupID:{name}\n".encode())


def groups_memory(core: CoreUnderTest) -> GroupMemory:
    """Return what counts the groups of all queues."""
    return core.broker.parts.factory.services.budget.groups


def test_long_names_are_told_apart_and_not_kept() -> None:
    """Two that differ in the last of 60,000 characters are two groups; each counts as a short one.

    What is counted goes when nobody has the groups any more.
    """
    core = CoreUnderTest()
    consumers = [core.consume(QUEUE, prefetch=100) for _ in range(2)]
    long = "é" * 60_000
    for number, name in enumerate(("a", "b", "a", "b", "a")):
        send_named(core, long + name, f"{name}{number}")
    assert sorted(one.texts for one in consumers) == [["a0", "a2", "a4"], ["b1", "b3"]]
    assert groups_memory(core).used == 2 * GROUP_OVERHEAD
    for number in range(20):
        send_named(core, f"{long}{number}", "x")
    assert groups_memory(core).used == 22 * GROUP_OVERHEAD
    for consumer in consumers:
        consumer.end.close()
    core.settle()
    assert groups_memory(core).used == 0


@pytest.mark.parametrize("options", [{}, {"group_rebalance": True}])
def test_what_groups_count_for_goes_with_them(options: dict[str, Any]) -> None:
    """When one is closed, when they are given out anew, and when their consumer leaves."""
    core = CoreUnderTest()
    queue_options(core, **options)
    first = core.consume(QUEUE, auto=True)
    send(core, "a1", "b1", "c1", "a2")
    assert groups_memory(core).used == 3 * (GROUP_OVERHEAD + 1)
    send(core, "a3!", "z!")
    assert groups_memory(core).used == 2 * (GROUP_OVERHEAD + 1)
    second = core.consume(QUEUE, auto=True)
    assert groups_memory(core).used == (0 if options else 2 * (GROUP_OVERHEAD + 1))
    send(core, "b2", "c2", "d1")
    assert groups_memory(core).used == 3 * (GROUP_OVERHEAD + 1)
    for consumer in (first, second):
        consumer.end.close()
    core.settle()
    assert groups_memory(core).used == 0


def test_beyond_the_limit_of_all_queues_the_one_with_most_groups_forgets_one() -> None:
    """So another queue's groups stay where they are; what somebody has is forgotten by nobody."""
    core = CoreUnderTest()
    large = [core.consume("/queue/large", auto=True) for _ in range(2)]
    small = [core.consume("/queue/small", prefetch=100) for _ in range(2)]
    for number in range(30):
        send_named(core, f"{number:02}", "x", "/queue/large")
    memory = groups_memory(core)
    memory.limit = memory.used
    for number in range(10):
        send_named(core, f"{number:02}", f"{number}", "/queue/small")
    assert memory.used == memory.limit
    for number in range(10):
        send_named(core, f"{number:02}", f"{number}", "/queue/small")
    assert [len(set(one.texts)) for one in small] == [5, 5]
    assert sum(len(one.texts) for one in small) == 20
    memory.limit = 0
    send_named(core, "new", "new", "/queue/small")
    send_named(core, "00", "0", "/queue/small")
    assert sum(one.texts.count("0") in (0, 3) for one in small) == 2
    assert sum(len(one.received) for one in large) == 30
