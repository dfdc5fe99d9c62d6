"""What a queue does that is configured with more than a name: rings, purges, one consumer."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.errors import DestinationRefused
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from orthia.journal.errors import StoreFull
from tests.core.support import SETTINGS, Clock, CoreUnderTest, declared, settings

ANYCAST = RoutingType.ANYCAST
QUEUE = "/queue/q"


def with_queue(*, durable: bool = True, user: str | None = None, **options: Any) -> Settings:
    """Return settings that declare the queue with options."""
    queue = QueueSettings("q", ANYCAST, durable=durable, user=user, options=options)
    return replace(SETTINGS, addresses=(declared("q", queue),))


def paged(settings: Settings, messages: int) -> Settings:
    """Return settings with which few messages of a queue are in memory."""
    few = AddressSettings("q", max_size_messages=messages)
    return replace(settings, address_settings=(few, *settings.address_settings))


# --- ring-size


@pytest.mark.parametrize(
    "settings", [with_queue(ring_size=3), settings(default_ring_size=3)], ids=["queue", "default"]
)
def test_a_ring_keeps_the_newest(settings: Settings) -> None:
    """Of what is not delivered; in the store, too, and after a takeover."""
    core = CoreUnderTest(settings)
    core.send(QUEUE, "1", "2", "3", "4", "5")
    assert core.broker.depths()["q"] == 3
    assert len(core.journal.store.messages) == 3
    consumer = core.consume(QUEUE, prefetch=2)
    assert consumer.texts == ["3", "4"]
    core.send(QUEUE, "6", "7", "8", "9")
    assert core.broker.depths()["q"] == 5
    consumer.acknowledge("3", "4")
    assert consumer.texts == ["3", "4", "7", "8"]
    successor = core.takeover(settings)
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert successor.consume(QUEUE).texts == ["7", "8", "9"]


@pytest.mark.parametrize("in_memory", [1, 100])
def test_a_ring_that_has_become_smaller_is_so_after_a_takeover(in_memory: int) -> None:
    """Though nobody sends to it, nor consumes from it."""
    core = CoreUnderTest(paged(with_queue(ring_size=5), in_memory))
    core.send(QUEUE, "1", "2", "3", "4", "5")
    successor = core.takeover(paged(with_queue(ring_size=2), in_memory))
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert successor.broker.depths()["q"] == 2
    assert len(successor.journal.store.messages) == 2


# --- purge-on-no-consumers


@pytest.mark.parametrize(
    "settings",
    [
        with_queue(purge_on_no_consumers=True),
        settings(default_purge_on_no_consumers=True),
        paged(with_queue(purge_on_no_consumers=True), 2),
    ],
    ids=["queue", "default", "paged"],
)
def test_a_queue_without_consumers_is_emptied(settings: Settings) -> None:
    """And takes nothing until somebody consumes again."""
    core = CoreUnderTest(settings)
    consumer = core.consume(QUEUE, prefetch=1)
    core.send(QUEUE, *map(str, range(20)))
    assert consumer.texts == ["0"]
    assert core.broker.depths()["q"] == 20
    consumer.end.close()
    core.pass_time(1)
    core.pass_time(1)
    assert core.broker.depths()["q"] == 0
    assert not core.journal.store.messages
    core.send(QUEUE, "nobody is there")
    again = core.consume(QUEUE)
    core.send(QUEUE, "new")
    assert again.texts == ["new"]


def slow_to_return(settings: Settings, messages: int) -> Settings:
    """Return settings with which what was rejected waits for a minute."""
    few = AddressSettings("q", max_size_messages=messages, redelivery_delay=60_000)
    return replace(settings, address_settings=(few, *settings.address_settings))


PURGED = with_queue(purge_on_no_consumers=True)


@pytest.mark.parametrize("priority", [4, 9])
@pytest.mark.parametrize("delayed", [False, True])
def test_many_are_deleted_some_at_a_time(priority: int, delayed: bool) -> None:
    """Whoever else wants the loop has a turn between; and of what is looked for nothing twice."""
    core = CoreUnderTest(slow_to_return(PURGED, 10_000))
    consumer = core.consume(QUEUE, prefetch=1_000 if delayed else 1)
    core.send(QUEUE, "first", priority=priority)
    core.send(QUEUE, *map(str, range(2_000)))
    if delayed:
        consumer.reject(*consumer.texts)
    deleted: list[int] = []
    core.journal.register_batch_listener(lambda batch: deleted.append(batch.deletes))
    windows = core.count_windows()
    consumer.end.close()
    for _ in range(3):
        core.pass_time(1)
    assert core.broker.depths()["q"] == 0
    assert sum(deleted) == 2_001
    assert max(deleted) <= 128
    assert len(windows) <= 1
    assert not core.journal.store.messages


# --- exclusive


@pytest.mark.parametrize(
    "settings",
    [with_queue(exclusive=True), settings(default_exclusive_queue=True)],
    ids=["queue", "default"],
)
def test_one_consumer_gets_all(settings: Settings) -> None:
    """In order; the one that came next takes over, with what the first had not acknowledged."""
    core = CoreUnderTest(settings)
    first, second, third = (core.consume(QUEUE, prefetch=3) for _ in range(3))
    core.send(QUEUE, *map(str, range(6)))
    assert (first.texts, second.texts, third.texts) == (["0", "1", "2"], [], [])
    first.acknowledge("0")
    assert first.texts == ["0", "1", "2", "3"]
    third.end.close()
    first.end.close()
    core.settle()
    assert second.texts == ["1", "2", "3"]
    second.acknowledge("1", "2", "3")
    assert second.texts == ["1", "2", "3", "4", "5"]


# --- consumers-before-dispatch, delay-before-dispatch


def test_or_for_a_while() -> None:
    """Counted from the first consumer; one that left does not count for the next."""
    core = CoreUnderTest(
        settings(default_consumers_before_dispatch=2, default_delay_before_dispatch=5_000)
    )
    core.send(QUEUE, "1")
    left = core.consume(QUEUE)
    core.pass_time(4)
    left.end.close()
    consumer = core.consume(QUEUE)
    core.pass_time(4)
    assert consumer.texts == []
    core.pass_time(2)
    assert consumer.texts == ["1"]


def test_selectors_and_options() -> None:
    """A queue that is emptied forgets what was read for a selector; a ring has none."""
    core = CoreUnderTest(paged(with_queue(purge_on_no_consumers=True), 4))
    consumer = core.consume(QUEUE, selector="colour = 'red'")
    for number in range(20):
        colour = b"colour:red\n" if number % 5 == 4 else b"colour:blue\n"
        core.send(QUEUE, str(number), headers=colour)
    core.pass_time(1)
    assert consumer.texts == ["4", "9", "14", "19"]
    consumer.acknowledge("9")
    consumer.end.close()
    core.pass_time(1)
    core.pass_time(1)
    assert core.broker.depths()["q"] == 0
    assert not core.journal.store.messages
    for options in ({"ring_size": 3}, {"exclusive": True}):
        with pytest.raises(DestinationRefused, match="taken from the front alone"):
            CoreUnderTest(with_queue(**options)).consume(QUEUE, selector="a = 1")


# --- enabled, durable, user, filter


def test_a_queue_that_is_not_enabled_takes_nothing() -> None:
    """What it has is consumed."""
    core = CoreUnderTest(with_queue())
    core.send(QUEUE, "1")
    successor = core.takeover(with_queue(enabled=False))
    successor.send(QUEUE, "2")
    assert successor.consume(QUEUE).texts == ["1"]


def test_what_is_in_a_queue_that_is_not_durable_ends_with_its_node() -> None:
    """The queue is there again, at once and empty; what was paged is deleted."""
    settings = paged(with_queue(durable=False), 2)
    core = CoreUnderTest(settings)
    core.send(QUEUE, *map(str, range(5)))
    assert len(core.journal.store.messages) == 3
    successor = core.takeover(settings)
    successor.send(QUEUE, "new")
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert not successor.journal.store.messages
    assert successor.consume(QUEUE).texts == ["new"]
    third = successor.takeover(settings)
    third.broker.count_backlogs()
    third.pass_time(1)
    assert list(third.broker.queues()) == ["q"]
    assert len(third.journal.store.bindings) == 1


def test_a_filter_says_what_comes_in() -> None:
    """Of two queues of an address each gets what it wants; what nobody wants is dropped."""
    queues = tuple(
        QueueSettings(name, ANYCAST, options={"filter": f"colour = '{name}'"})
        for name in ("red", "blue")
    )
    settings = replace(SETTINGS, addresses=(declared("a", *queues),))
    core = CoreUnderTest(settings)
    for colour in ("red", "blue", "red", "green"):
        core.send("/queue/a", colour, headers=f"colour:{colour}\n".encode())
    assert core.consume("red").texts == ["red", "red"]
    assert core.consume("blue").texts == ["blue"]
    assert not [one for one in core.stored_texts() if one == "green"]


def test_a_queue_counts_as_its_users() -> None:
    """For max-queues-per-user."""
    limits = replace(SETTINGS.stomp_limits, max_queues_per_user=1)
    core = CoreUnderTest(replace(with_queue(user="ada"), stomp_limits=limits))
    assert core.broker.queues()["q"].user == "ada"


def test_what_the_file_says_counts() -> None:
    """Also of a queue that was stored otherwise."""
    core = CoreUnderTest(with_queue(ring_size=2))
    core.send(QUEUE, "1", "2", "3")
    successor = core.takeover(with_queue())
    successor.send(QUEUE, "4", "5")
    assert successor.consume(QUEUE).texts == ["2", "3", "4", "5"]


# --- what is expired out of the middle


@pytest.mark.parametrize("in_memory", [100, 4])
@pytest.mark.parametrize("expired", ["2", "5"])
def test_a_ring_stays_one_when_messages_expire_out_of_it(expired: str, in_memory: int) -> None:
    """It keeps the newest, also while what expired was in the middle of its memory or its table."""
    clock = Clock(paged(with_queue(ring_size=6), in_memory))
    core = clock.core
    consumer = core.consume(QUEUE, prefetch=1)
    for text in map(str, range(7)):
        core.send(QUEUE, text, expires_ms=clock.ms() + 10 if text == expired else 0)
    core.journal.auto_commit = False
    core.send(QUEUE, "7", "8", "9")  # on their way while it leaves
    clock.pass_ms(31_000)
    core.journal.commit()
    core.settle()
    core.journal.auto_commit = True
    core.journal.commit()
    core.pass_time(1)
    assert core.broker.depths()["q"] <= 7
    consumer.end.close()
    core.settle()
    assert core.broker.depths()["q"] <= 6
    received = core.consume(QUEUE, auto=True).texts
    core.pass_time(1)
    assert received[-5:] == [text for text in "3456789" if text != expired][-5:]
    assert expired not in received
    assert core.broker.depths()["q"] == 0


def test_all_that_expired_at_the_front_of_a_ring_goes_at_once() -> None:
    """Though nobody consumes; what expired behind another waits for its turn."""
    clock = Clock(with_queue(ring_size=10))
    core = clock.core
    core.send(QUEUE, "1", "2", "3", expires_ms=clock.ms() + 500)
    core.send(QUEUE, "stays")
    core.send(QUEUE, "behind", expires_ms=clock.ms() + 500)
    clock.pass_ms(31_000)
    assert core.broker.depths()["q"] == 2
    consumer = core.consume(QUEUE, auto=True)
    assert consumer.texts == ["stays"]
    assert core.broker.depths()["q"] == 0
    assert core.consume("/queue/ExpiryQueue").texts == ["1", "2", "3", "behind"]


@pytest.mark.parametrize("is_moved", [True, False])
def test_what_expired_amid_a_ring_is_there_once_though_the_rest_went_to_the_table(
    *, is_moved: bool
) -> None:
    """Another queue needed the memory, before the store had taken it out, or had refused to."""
    clock = Clock(with_queue(ring_size=10))
    core = clock.core
    core.send(QUEUE, "a")
    core.send(QUEUE, "x", expires_ms=clock.ms() + 500)
    core.send(QUEUE, "b")
    core.journal.auto_commit = False
    clock.pass_ms(31_000)
    core.broker.parts.factory.services.budget.make_room(1 << 50)
    consumer = core.consume(QUEUE, auto=True)
    core.journal.auto_commit = True
    while core.journal.waiting:
        if core.journal.waiting[0].refused is not None and not is_moved:
            core.journal.refuse(StoreFull("no room"))
            is_moved = True
        else:
            core.journal.commit(1)
        core.settle()
    clock.pass_ms(40_000)
    assert consumer.texts == ["a", "b"]
    assert core.consume("/queue/ExpiryQueue").texts == ["x"]
    assert core.broker.depths()["q"] == 0
    use = core.broker.queues()["q"].use
    assert (use.used, use.messages) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"default_ring_size": 2}, ["d", "e"]),
        ({"default_last_value_queue": True}, ["e"]),
        ({"default_max_consumers": 1}, ["a", "b", "c", "d", "e"]),
    ],
)
def test_a_queue_that_the_broker_makes_does_what_its_address_says(
    settings: dict[str, Any], left: list[str]
) -> None:
    """For dead letters: whether they or a client came first makes no difference."""
    given = (
        AddressSettings("DLQ", **settings),
        AddressSettings("#", max_delivery_attempts=1, dead_letter_address="DLQ"),
    )
    core = CoreUnderTest(replace(SETTINGS, address_settings=given))
    for text in "abcde":
        core.send(QUEUE, text, headers=b"_AMQ_LVQ_NAME:one\n")
    core.consume(QUEUE).reject(*"abcde")
    core.settle()
    assert core.consume("/queue/DLQ").texts == left
    most = settings.get("default_max_consumers")
    assert core.broker.queues()["DLQ"].max_consumers == most
    successor = core.takeover(replace(SETTINGS, address_settings=given)).counted()
    assert successor.consume("/queue/DLQ").texts == left


@pytest.mark.parametrize(
    ("options", "is_told"),
    [({"ring_size": 5}, True), ({"ring_size": 5, "exclusive": True}, False), ({}, False)],
)
def test_the_log_says_that_a_ring_keeps_no_groups_together(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    """Once for a queue, with the first message that says a group."""
    core = CoreUnderTest(with_queue(**options))
    core.send(QUEUE, "plain")
    assert caplog.records == []
    core.send(QUEUE, "1", "2", headers=b"JMSXGroupID:g\n")
    told = [one.getMessage() for one in caplog.records]
    assert [one.startswith("queue q has ring-size, so that") for one in told] == [True] * is_told


def test_no_queue_is_made_of_which_settings_say_what_cannot_be() -> None:
    """By nobody: a client is refused by name, and a dead letter stays where it is."""
    conflict = AddressSettings("DLQ", default_last_value_queue=True, default_ring_size=2)
    plain = AddressSettings("#", max_delivery_attempts=1, dead_letter_address="DLQ")
    core = CoreUnderTest(replace(SETTINGS, address_settings=(conflict, plain)))
    with pytest.raises(DestinationRefused, match="of its address, is a last value queue and a"):
        core.consume("/queue/DLQ")
    core.send(QUEUE, "a")
    core.consume(QUEUE).reject("a")
    core.settle()
    assert core.broker.depths() == {"q": 1}
