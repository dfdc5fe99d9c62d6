"""What a queue does that is configured with more than a name: rings, purges, one consumer."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import DestinationRefused
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from orthia.journal import Unit
from orthia.journal.errors import StoreFull
from orthia.journal.memory import MemoryStore
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.support import SETTINGS, CoreUnderTest, message

ANYCAST = RoutingType.ANYCAST
QUEUE = "/queue/q"


def with_queue(*, durable: bool = True, user: str | None = None, **options: Any) -> Settings:
    """Return settings that declare the queue with options."""
    queue = QueueSettings("q", ANYCAST, durable=durable, user=user, options=options)
    return replace(SETTINGS, addresses=(AddressConfiguration("q", frozenset({ANYCAST}), (queue,)),))


def by_default(**defaults: Any) -> Settings:
    """Return settings of addresses."""
    return replace(SETTINGS, address_settings=(AddressSettings("#", **defaults),))


def paged(settings: Settings, messages: int) -> Settings:
    """Return settings with which few messages of a queue are in memory."""
    few = AddressSettings("q", max_size_messages=messages)
    return replace(settings, address_settings=(few, *settings.address_settings))


# --- ring-size


@pytest.mark.parametrize(
    "settings", [with_queue(ring_size=3), by_default(default_ring_size=3)], ids=["queue", "default"]
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


def test_a_ring_is_bounded_in_the_table_too() -> None:
    """What is not in memory is read to be deleted; order and counts stay."""
    settings = paged(with_queue(ring_size=10), 4)
    core = CoreUnderTest(settings)
    core.send(QUEUE, *map(str, range(50)))
    core.pass_time(1)
    assert core.broker.depths()["q"] == 10
    assert len(core.journal.store.messages) == 10
    successor = core.takeover(paged(with_queue(ring_size=7), 4))
    successor.broker.count_backlogs()
    successor.pass_time(1)
    successor.send(QUEUE, "new")
    successor.pass_time(1)
    assert len(successor.journal.store.messages) == 7
    consumer = successor.consume(QUEUE, auto=True)
    successor.pass_time(1)
    assert consumer.texts == [*map(str, range(44, 50)), "new"]
    assert not successor.journal.store.messages


def test_a_ring_of_a_transaction_and_of_what_is_given_back() -> None:
    """What comes back is the oldest, and goes first when there is one too many."""
    core = CoreUnderTest(with_queue(ring_size=2))
    core.send(QUEUE, "1", "2")
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "3")
    consumer.end.close()
    core.settle()
    assert core.broker.depths()["q"] == 2
    core.send(QUEUE, "4")
    assert core.broker.depths()["q"] == 2
    assert core.consume(QUEUE).texts == ["3", "4"]


@pytest.mark.parametrize("priority", [4, 9])
def test_a_ring_gives_again_what_a_consumer_rejects(priority: int) -> None:
    """It is not deleted for those behind it, as long as somebody takes it again."""
    core = CoreUnderTest(with_queue(ring_size=2))
    consumer = core.consume(QUEUE, prefetch=1)
    core.send(QUEUE, "1", "2", "3", priority=priority)
    consumer.reject("1")
    core.settle()
    assert consumer.texts == ["1", "1"]
    assert core.broker.depths()["q"] == 3
    consumer.end.close()
    core.settle()
    assert core.broker.depths()["q"] == 2
    assert core.consume(QUEUE).texts == ["2", "3"]


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("priority", [4, 9])
def test_a_ring_holds_nothing_that_a_consumer_takes(size: int, priority: int) -> None:
    """However many come together: what it may hold is beside those that consumers have."""
    core = CoreUnderTest(with_queue(ring_size=size))
    consumer = core.consume(QUEUE, prefetch=6)
    core.send(QUEUE, "1", priority=priority)
    sent = [message(str(number), priority=priority) for number in range(10, 20)]
    core.commit(TransactionWork([(QUEUE, one) for one in sent]), lambda: None)
    core.settle()
    assert consumer.texts == ["1", *(str(number) for number in range(10, 15))]
    assert core.broker.depths()["q"] == 6 + size
    consumer.acknowledge(*consumer.texts)
    core.settle()
    assert consumer.texts[6:] == ["18", "19"][2 - size :]


# --- purge-on-no-consumers


@pytest.mark.parametrize(
    "settings",
    [
        with_queue(purge_on_no_consumers=True),
        by_default(default_purge_on_no_consumers=True),
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


def colours(core: CoreUnderTest, *numbered: str) -> None:
    """Send messages, each of the colour that its name begins with."""
    for text in numbered:
        core.send(QUEUE, text, headers=f"colour:{text.rstrip('0123456789')}\n".encode())


def slow_to_return(settings: Settings, messages: int) -> Settings:
    """Return settings with which what was rejected waits for a minute."""
    few = AddressSettings("q", max_size_messages=messages, redelivery_delay=60_000)
    return replace(settings, address_settings=(few, *settings.address_settings))


PURGED = with_queue(purge_on_no_consumers=True)


@pytest.mark.parametrize("selector", ["colour = 'red'", None])
@pytest.mark.parametrize("headers", [b"", b"JMSXGroupID:g\n"], ids=["plain", "grouped"])
def test_a_queue_is_emptied_while_acknowledgements_are_on_their_way(
    selector: str | None, headers: bytes
) -> None:
    """What was taken out of the middle is not counted twice, and nothing later is passed over."""
    core = CoreUnderTest(paged(PURGED, 2))
    other = core.consume(QUEUE, selector="colour = 'none'")
    core.send(QUEUE, "first", headers=headers)
    colours(core, "blue1", "blue2", "blue3", "red4", "blue5", "red6", "blue7")
    red = core.consume(QUEUE, selector=selector)
    core.journal.auto_commit = False
    red.acknowledge(*red.texts)
    red.end.close()
    other.end.close()
    core.pass_time(1)
    core.journal.commit()
    core.journal.auto_commit = True
    for _ in range(3):
        core.settle()
        core.pass_time(1)
    queue = core.broker.queues()["q"]
    assert (queue.depth, queue.use.messages, queue.use.used) == (0, 0, 0)
    assert not core.journal.store.messages
    core.consume(QUEUE, selector="colour = 'none'")
    colours(core, "blue1", "blue2", "blue3", "red4", "blue5", "red6", "red7", "red8")
    assert core.consume(QUEUE, selector="colour = 'red'").texts == ["red4", "red6", "red7", "red8"]
    assert core.consume(QUEUE).texts == ["blue1", "blue2", "blue3", "blue5"]


@pytest.mark.parametrize("selector", ["colour = 'red'", None])
@pytest.mark.parametrize("in_memory", [2, 100])
def test_what_waits_for_its_redelivery_is_deleted_too(selector: str | None, in_memory: int) -> None:
    """At once, with one look at the table, and nobody gets it when its time comes."""
    core = CoreUnderTest(slow_to_return(PURGED, in_memory))
    other = core.consume(QUEUE, selector="colour = 'none'")
    colours(core, "blue1", "blue2", "blue3", "red4", "blue5")
    red = core.consume(QUEUE, selector=selector)
    red.reject("red4")
    windows = core.count_windows()
    red.end.close()
    other.end.close()
    core.pass_time(1)
    assert len(windows) <= 3
    queue = core.broker.queues()["q"]
    assert (queue.depth, queue.use.messages, queue.log.in_memory) == (0, 0, 0)
    assert not core.journal.store.messages
    assert core.broker.parts.factory.budget.used == 0
    again = core.consume(QUEUE)
    core.pass_time(70)
    assert not again.texts


@pytest.mark.parametrize("size", [1, 2])
def test_a_ring_does_without_what_a_transaction_in_doubt_has_taken(size: int) -> None:
    """It stays in the store, is looked for once, and no new message goes for it."""
    options = with_queue(ring_size=size)
    core = CoreUnderTest(options)
    consumer = core.consume(QUEUE)
    core.send(QUEUE, *map(str, range(6)))
    unit = Unit()
    for reference in consumer.take("0", "3"):
        assert reference.location is not None
        unit.delete(reference.location)
    XaTransactions(core.journal).prepare(Xid(1, b"global", b"branch"), unit)
    core.settle()
    successor = core.takeover(options)
    windows = successor.count_windows()
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert len(windows) <= 6
    assert successor.broker.depths()["q"] == size
    assert successor.stored_texts() == ["1", "2", "4", "5"][4 - size :]
    successor.send(QUEUE, "6", "7")
    successor.pass_time(1)
    assert successor.consume(QUEUE).texts == ["6", "7"][2 - size :]


def test_nothing_is_remembered_of_what_was_purged() -> None:
    """Also while too few consumers are there for any delivery."""
    options = with_queue(purge_on_no_consumers=True, consumers_before_dispatch=2)
    core = CoreUnderTest(paged(options, 2))
    one, other = core.consume(QUEUE), core.consume(QUEUE)
    core.send(QUEUE, "high", priority=9)
    one.end.close()
    other.end.close()
    for _ in range(3):
        early = core.consume(QUEUE)
        core.send(QUEUE, *map(str, range(2_000)))
        early.end.close()
        core.pass_time(1)
        queue = core.broker.queues()["q"]
        assert queue.depth == 0
        assert queue.selecting is None or not any(lane.taken for lane in queue.selecting._lanes)


@pytest.mark.parametrize("priority", [4, 9])
def test_who_follows_the_one_consumer_gets_what_waits(priority: int) -> None:
    """Also where the one before had none, as its socket was full."""
    core = CoreUnderTest(with_queue(exclusive=True))
    first = core.consume(QUEUE)
    second = core.consume(QUEUE)
    first.is_writable = False
    core.send(QUEUE, "1", priority=priority)
    core.send(QUEUE, "2")
    first.end.close()
    core.settle()
    assert second.texts == ["1", "2"]


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


@pytest.mark.parametrize("priorities", [(4, 4, 4), (4, 9, 9), (9, 9, 4)])
def test_a_ring_counts_what_waits_for_its_redelivery(priorities: tuple[int, ...]) -> None:
    """It goes when it is the oldest of the lowest priority; nothing is looked for in vain."""
    core = CoreUnderTest(slow_to_return(with_queue(ring_size=2), 100))
    consumer = core.consume(QUEUE, prefetch=2)
    for number, priority in enumerate(priorities[:2]):
        core.send(QUEUE, str(number), priority=priority)
    consumer.reject("0", "1")
    consumer.end.close()
    windows = core.count_windows()
    core.send(QUEUE, "2", priority=priorities[2])
    core.pass_time(1)
    assert not windows
    assert core.broker.depths()["q"] == 2
    kept = core.consume(QUEUE)
    core.pass_time(70)
    assert sorted(kept.texts) == (["0", "1"] if priorities == (9, 9, 4) else ["1", "2"])
    assert not [text for text in core.stored_texts() if text not in kept.texts]


# --- exclusive


@pytest.mark.parametrize(
    "settings",
    [with_queue(exclusive=True), by_default(default_exclusive_queue=True)],
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


def test_groups_do_not_change_who_gets_all() -> None:
    """With one consumer they are together anyway."""
    core = CoreUnderTest(with_queue(exclusive=True))
    first, second = core.consume(QUEUE), core.consume(QUEUE)
    for number in range(6):
        group = f"JMSXGroupID:g{number % 3}\n".encode()
        core.send(QUEUE, str(number), headers=group)
    assert first.texts == [*map(str, range(6))]
    assert second.texts == []


# --- consumers-before-dispatch, delay-before-dispatch


def test_the_first_message_waits_for_consumers() -> None:
    """And anew after the last has left."""
    core = CoreUnderTest(with_queue(consumers_before_dispatch=2))
    for _ in range(2):
        core.send(QUEUE, "1", "2")
        first = core.consume(QUEUE, prefetch=1, auto=True)
        core.pass_time(3600)
        assert first.texts == []
        second = core.consume(QUEUE, prefetch=1, auto=True)
        core.settle()
        assert sorted(first.texts + second.texts) == ["1", "2"]
        first.end.close()
        core.send(QUEUE, "3")
        assert second.texts[-1] == "3"
        second.end.close()


def test_or_for_a_while() -> None:
    """Counted from the first consumer; one that left does not count for the next."""
    core = CoreUnderTest(
        by_default(default_consumers_before_dispatch=2, default_delay_before_dispatch=5_000)
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
    settings = replace(
        SETTINGS, addresses=(AddressConfiguration("a", frozenset({ANYCAST}), queues),)
    )
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


class _Clock:
    now_ms = 1_700_049_600_000


@pytest.mark.parametrize("expired", ["1", "2"])
def test_an_exclusive_queue_stays_exclusive_when_messages_expire(expired: str) -> None:
    """Wherever they were: one consumer gets all, before and after."""
    clock = _Clock()
    core = CoreUnderTest(
        with_queue(exclusive=True),
        store=MemoryStore(clock_ms=lambda: clock.now_ms),
        time_ms=lambda: clock.now_ms,
    )
    core.broker.start_schedule()
    for text in ("1", "2", "3"):
        core.send(QUEUE, text, expires_ms=clock.now_ms + 10 if text == expired else 0)
    clock.now_ms += 1_000
    core.pass_time(31)
    left = [text for text in ("1", "2", "3") if text != expired]
    assert core.broker.depths()["q"] == 2
    first = core.consume(QUEUE)
    second = core.consume(QUEUE)
    core.send(QUEUE, "4", "5", "6", "7")
    assert (first.texts, second.texts) == ([*left, "4", "5", "6", "7"], [])


@pytest.mark.parametrize("in_memory", [100, 4])
@pytest.mark.parametrize("expired", ["2", "5"])
def test_a_ring_stays_one_when_messages_expire_out_of_it(expired: str, in_memory: int) -> None:
    """It keeps the newest, also while what expired was in the middle of its memory or its table."""
    clock = _Clock()
    core = CoreUnderTest(
        paged(with_queue(ring_size=6), in_memory),
        store=MemoryStore(clock_ms=lambda: clock.now_ms),
        time_ms=lambda: clock.now_ms,
    )
    core.broker.start_schedule()
    consumer = core.consume(QUEUE, prefetch=1)
    for text in map(str, range(7)):
        core.send(QUEUE, text, expires_ms=clock.now_ms + 10 if text == expired else 0)
    core.journal.auto_commit = False
    core.send(QUEUE, "7", "8", "9")  # on their way while it leaves
    clock.now_ms += 1_000
    core.pass_time(31)
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
    clock = _Clock()
    core = CoreUnderTest(
        with_queue(ring_size=10),
        store=MemoryStore(clock_ms=lambda: clock.now_ms),
        time_ms=lambda: clock.now_ms,
    )
    core.broker.start_schedule()
    core.send(QUEUE, "1", "2", "3", expires_ms=clock.now_ms + 500)
    core.send(QUEUE, "stays")
    core.send(QUEUE, "behind", expires_ms=clock.now_ms + 500)
    clock.now_ms += 31_000
    core.pass_time(31)
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
    clock = _Clock()
    core = CoreUnderTest(
        with_queue(ring_size=10),
        store=MemoryStore(clock_ms=lambda: clock.now_ms),
        time_ms=lambda: clock.now_ms,
    )
    core.broker.start_schedule()
    core.send(QUEUE, "a")
    core.send(QUEUE, "x", expires_ms=clock.now_ms + 500)
    core.send(QUEUE, "b")
    core.journal.auto_commit = False
    clock.now_ms += 31_000
    core.pass_time(31)
    core.broker.parts.factory.budget.make_room(1 << 50)
    consumer = core.consume(QUEUE, auto=True)
    core.journal.auto_commit = True
    while core.journal.waiting:
        if core.journal.waiting[0].refused is not None and not is_moved:
            core.journal.refuse(StoreFull("no room"))
            is_moved = True
        else:
            core.journal.commit(1)
        core.settle()
    for _ in range(40):
        clock.now_ms += 1_000
        core.pass_time(1)
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
    successor = core.takeover(replace(SETTINGS, address_settings=given))
    successor.broker.count_backlogs()
    successor.settle()
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
