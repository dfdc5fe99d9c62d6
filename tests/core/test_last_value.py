"""Last value queues: the newest message of each value replaces the one before it."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import LimitExceeded
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.addresses import AddressResolver, options_of
from orthia.config.settings import Settings
from orthia.journal.errors import UnitRefused
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, anyone, declared, message, settings

QUEUE = "/queue/prices"
LAST = settings("prices", default_last_value_queue=True)


def send(core: CoreUnderTest, *values: str, destination: str = QUEUE, **options: Any) -> None:
    """Send messages, each a value and what follows it as a text: ``a1`` is of value a."""
    for value in values:
        headers = b"" if value[0] == "-" else f"_AMQ_LVQ_NAME:{value[0]}\n".encode()
        core.broker.send(ANYONE, destination, message(value, headers=headers, **options), None)
    core.settle()


def depth(core: CoreUnderTest) -> int:
    """Return how many messages the queue says it has."""
    return core.broker.depths()["prices"]


def rows(core: CoreUnderTest) -> int:
    """Return how many messages the store has."""
    return len(core.journal.store.messages)


def take_over(core: CoreUnderTest, options: Settings = LAST) -> CoreUnderTest:
    """Return the next live node, which knows its backlog."""
    return core.takeover(options).counted()


def test_the_newest_of_a_value_replaces_the_one_before_it() -> None:
    """In the store, too, and for others it has no bearing; those without a value are kept."""
    core = CoreUnderTest(LAST)
    send(core, "a1", "b1", "-1", "a2", "-2", "a3")
    assert (depth(core), rows(core)) == (4, 4)
    assert core.consume(QUEUE).texts == ["b1", "-1", "-2", "a3"]


def test_it_does_so_in_the_transaction_that_stores_the_newer_one() -> None:
    """Before its commit the older one is stored, and after it is not."""
    core = CoreUnderTest(LAST, auto_commit=False)
    core.consume("/queue/other")
    core.journal.commit()
    send(core, "a1")
    core.journal.commit()
    before = len(core.journal.waiting)
    send(core, "a2")
    assert len(core.journal.waiting) == before + 1
    assert rows(core) == 1
    core.journal.commit()
    assert rows(core) == 1
    core.settle()
    assert core.consume(QUEUE).texts == ["a2"]


def test_what_a_consumer_has_stays_with_it() -> None:
    """Acknowledged the newer one counts; the older one is not deleted under its consumer."""
    core = CoreUnderTest(LAST)
    send(core, "a1")
    consumer = core.consume(QUEUE, prefetch=1)
    send(core, "a2")
    assert rows(core) == 2
    consumer.acknowledge("a1")
    core.settle()
    assert consumer.texts == ["a1", "a2"]
    assert rows(core) == 1


@pytest.mark.parametrize("is_followed", [False, True])
def test_what_the_store_refuses_replaces_nothing(is_followed: bool) -> None:
    """The one before it counts, until there is one that is stored."""
    core = CoreUnderTest(LAST, auto_commit=False)
    send(core, "a0")
    core.journal.commit()
    core.settle()
    for text in ("a1", "a2") if is_followed else ("a1",):
        sent = message(text, headers=b"_AMQ_LVQ_NAME:a\n")
        core.broker.send(anyone(), QUEUE, sent, None)
    core.journal.refuse(UnitRefused("no"))
    core.journal.auto_commit = True
    core.journal.commit()
    core.settle()
    assert (depth(core), rows(core)) == (1, 1)
    assert core.consume(QUEUE, prefetch=1).texts == (["a2"] if is_followed else ["a0"])
    send(core, "a3")
    send(core, "a4")
    assert depth(core) == 2  # one is with the consumer


@pytest.mark.parametrize("most", [0, -1])
def test_the_next_node_knows_what_is_newest(most: int) -> None:
    """It takes messages before it does, and delivers none; what was replaced it deletes."""
    options = replace(
        LAST,
        address_settings=(
            AddressSettings("prices", default_last_value_queue=True, max_size_messages=most),
        ),
    )
    before = CoreUnderTest(SETTINGS)
    send(before, "a1", "b1", "a2", "-1", "c1")
    configured = declared("prices", "prices")
    options = replace(options, addresses=(configured,))
    core = before.takeover(options)
    consumer = core.consume(QUEUE)
    send(core, "c2")
    assert consumer.texts == []
    core.counted()
    assert consumer.texts == ["b1", "a2", "-1", "c2"]
    assert (depth(core), rows(core)) == (4, 4)
    send(core, "b2")
    assert consumer.texts[-1] == "b2"
    core = take_over(core, options)
    assert core.consume(QUEUE).texts == ["a2", "-1", "c2", "b2"]
    assert (depth(core), rows(core)) == (4, 4)


def test_there_are_only_so_many_values() -> None:
    """One more is refused by name; a newer one of those there are is not."""
    core = CoreUnderTest(LAST)
    core.broker.parts.context.values.most = 2
    send(core, "a1", "b1")
    with pytest.raises(LimitExceeded, match="have 2 values already: queue 'prices'"):
        send(core, "c1")
    send(core, "a2")
    consumer = core.consume(QUEUE)
    assert consumer.texts == ["b1", "a2"]
    consumer.acknowledge("b1")
    core.settle()
    send(core, "c1")
    assert consumer.texts == ["b1", "a2", "c1"]


@pytest.mark.parametrize(
    ("given", "settings", "key"),
    [
        ({}, {}, None),
        ({"last_value": True}, {}, "_AMQ_LVQ_NAME"),
        ({"last_value_key": "id"}, {}, "id"),
        ({"last_value": False}, {"default_last_value_queue": True}, None),
        ({}, {"last_value_queue": True}, "_AMQ_LVQ_NAME"),
        ({}, {"default_last_value_key": "id"}, "id"),
        ({"last_value_key": "own"}, {"default_last_value_key": "id"}, "own"),
    ],
)
def test_which_queues_are_of_last_values(
    given: dict[str, Any], settings: dict[str, Any], key: str | None
) -> None:
    """As their own settings say, or those of their address."""
    options = replace(SETTINGS, address_settings=(AddressSettings("#", **settings),))
    assert options_of(AddressResolver(options).resolve("a"), given).last_value_key == key


def test_what_a_refused_commit_acknowledged_counts_if_what_came_behind_it_is_refused_too() -> None:
    """Otherwise nobody would have the last value any more."""
    core = CoreUnderTest(LAST)
    send(core, "a1")
    consumer = core.consume(QUEUE, prefetch=1)
    core.consume("/queue/other")
    core.journal.auto_commit = False
    references = consumer.take("a1")
    consumer.end.set_aside(references)
    work = TransactionWork([("/queue/other", message("other"))])
    work.acknowledgements[consumer.end] = references
    core.commit(work, lambda: None)
    core.broker.send(anyone(), QUEUE, message("a2", headers=b"_AMQ_LVQ_NAME:a\n"), None)
    core.journal.refuse(UnitRefused("no"))
    core.journal.refuse(UnitRefused("no"))
    core.journal.auto_commit = True
    core.journal.commit()
    core.settle()
    assert (depth(core), rows(core)) == (1, 1)
    consumer.end.close()
    assert core.consume(QUEUE).texts == ["a1"]


@pytest.mark.parametrize(
    "commits", [[["a1", "a2"]], [["a2", "a1"]], [["a1"], ["a2"]], [["a2"], ["a1"]]]
)
@pytest.mark.parametrize("prefetch", [1, 10])
def test_of_what_refused_commits_acknowledged_the_newest_counts(
    commits: list[list[str]], prefetch: int
) -> None:
    """A consumer had both: the older one stays with whom it was delivered to when it is replaced.

    Whichever comes back first, and whether anybody has it by then.
    """
    core = CoreUnderTest(LAST)
    send(core, "a1")
    first = core.consume(QUEUE, prefetch=1)
    send(core, "a2")
    second = core.consume(QUEUE, prefetch=1)
    consumers = {"a1": first, "a2": second}
    other = core.consume(QUEUE, prefetch=prefetch)
    core.journal.auto_commit = False
    for values in commits:
        work = TransactionWork([("/queue/other", message("other"))])
        for value in values:
            consumer = consumers[value]
            references = consumer.take(value)
            consumer.end.set_aside(references)
            work.acknowledgements[consumer.end] = references
        core.commit(work, lambda: None)
    for consumer in consumers.values():
        consumer.is_writable = False
    while core.journal.waiting:
        if core.journal.waiting[0].refused is not None:
            core.journal.refuse(UnitRefused("no"))
        else:
            core.journal.commit(1)
        core.settle()
    core.journal.auto_commit = True
    core.settle()
    for consumer in (first, second, other):
        consumer.end.close()
    core.settle()
    assert (depth(core), rows(core)) == (1, 1)
    assert take_over(core).consume(QUEUE).texts == ["a2"]


def test_what_it_had_of_other_priorities_is_delivered_when_its_kind_is_changed() -> None:
    """And its values replace one another whatever their priorities."""

    def of_kind(*, last_value: bool) -> Settings:
        options = {"last_value": last_value}
        queue = QueueSettings("prices", RoutingType.ANYCAST, options=options)
        address = declared("prices", queue)
        return replace(SETTINGS, addresses=(address,))

    core = CoreUnderTest(of_kind(last_value=False))
    send(core, "-1", priority=9)
    send(core, "-2")
    successor = take_over(core, of_kind(last_value=True))
    consumer = successor.consume(QUEUE)
    assert consumer.texts == ["-1", "-2"]
    send(successor, "a1", priority=9)
    assert consumer.texts == ["-1", "-2", "a1"]
    consumer.acknowledge("-1", "-2")
    consumer.end.close()
    send(successor, "a2", priority=9)
    assert successor.consume(QUEUE).texts == ["a2"]
    assert (depth(successor), rows(successor)) == (1, 1)


@pytest.mark.parametrize("together", [True, False])
def test_a_queue_that_goes_while_values_are_on_their_way_counts_each_once(
    *, together: bool
) -> None:
    """What is counted of an address, and of the store, is what there is."""
    core = CoreUnderTest(LAST)
    send(core, "a0")
    core.journal.auto_commit = False
    texts = [(QUEUE, message(text, headers=b"_AMQ_LVQ_NAME:a\n")) for text in ("a1", "a2", "a3")]
    if together:
        core.commit(TransactionWork(texts), lambda: None)
    else:
        for _, one in texts:
            core.broker.send(ANYONE, QUEUE, one, None)
    use = core.broker.queues()["prices"].use
    gone: list[int] = []
    core.broker.delete_queue(ANYONE, "prices", gone.append, force=True)
    core.store_all()
    assert gone
    assert (use.used, use.messages, core.broker.store_use.used) == (0, 0, 0)
    assert rows(core) == 0


def test_what_is_rejected_while_a_newer_one_is_on_its_way_waits_as_ever() -> None:
    """The store may be slow: its attempts count, and its delay, and only the store has none."""
    options = settings(
        "prices", default_last_value_queue=True, max_delivery_attempts=3, redelivery_delay=1_000
    )
    core = CoreUnderTest(options)
    send(core, "a1")
    core.journal.auto_commit = False
    core.broker.send(anyone(), QUEUE, message("a2", headers=b"_AMQ_LVQ_NAME:a\n"), None)
    consumer = core.consume(QUEUE, prefetch=1)
    for attempt in (1, 2):
        assert len(consumer.received) == attempt
        consumer.reject("a1")
        core.settle()
        assert len(consumer.received) == attempt, "not before its delay"
        assert consumer.received[-1].attempts == attempt
        core.pass_time(1)
    core.journal.refuse(UnitRefused("no"))
    core.settle()
    core.journal.auto_commit = True
    core.journal.commit()
    consumer.reject("a1")
    core.settle()
    assert core.consume("/queue/DLQ").texts == ["a1"]


def test_a_queue_that_goes_counts_once_what_was_replaced_while_a_consumer_had_it() -> None:
    """It comes back with its consumer, and its row goes with the others."""
    core = CoreUnderTest(LAST)
    send(core, "a1")
    consumer = core.consume(QUEUE, prefetch=1)
    send(core, "a2", "b1")
    use = core.broker.queues()["prices"].use
    core.journal.auto_commit = False
    gone: list[int] = []
    core.broker.delete_queue(ANYONE, "prices", gone.append, force=True)
    consumer.end.close()
    core.store_all()
    assert gone == [3]
    assert (use.used, use.messages, core.broker.store_use.used) == (0, 0, 0)
    assert rows(core) == 0
