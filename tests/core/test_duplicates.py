"""Duplicate ids in the core: what is sent twice is there once, and nothing else suffers."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import OutgoingMessage, TransactionWork
from orthia.config.address_settings import AddressSettings
from orthia.journal.memory import MemoryStore
from orthia.journal.model.fields import Fields
from orthia.journal.model.records import UserRecordType
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, message, settings

QUEUE = "/queue/orders"
TOPIC = "/topic/news"


def known_as(text: str, name: str, **what: Any) -> OutgoingMessage:
    """Return a message with a duplicate id."""
    return message(text, **what)._replace(duplicate_id=name)


def send(core: CoreUnderTest, destination: str, *messages: OutgoingMessage) -> int:
    """Send messages; return how many their sender was told are done."""
    done: list[int] = []
    for one in messages:
        core.broker.send(ANYONE, destination, one, lambda: done.append(1))
    core.settle()
    return len(done)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_message_that_is_sent_again_is_there_once(*, persistent: bool) -> None:
    """Its sender has an answer each time; the consumer has one message."""
    core = CoreUnderTest()
    one = known_as("one", "a", persistent=persistent)
    assert send(core, QUEUE, one, one, known_as("two", "b")) == 3
    assert core.consume(QUEUE).texts == ["one", "two"]
    assert core.broker.depths()["orders"] == 2


def test_a_topic_publishes_once() -> None:
    """Where nothing is stored the ids are in memory."""
    core = CoreUnderTest()
    hears = core.consume(TOPIC)
    one = known_as("one", "a")
    assert send(core, TOPIC, one, one, known_as("two", "b")) == 3
    assert hears.texts == ["one", "two"]


def test_a_topic_with_a_queue_publishes_once_what_it_stores_once() -> None:
    """Both get the message, once."""
    core = CoreUnderTest()
    send(core, "/topic/orders", known_as("nobody hears it", "x"))
    core.broker.parts.book.ensure_queues("orders")
    hears = core.consume("/topic/orders")
    one = known_as("one", "a")
    assert send(core, "/topic/orders", one, one) == 2
    assert hears.texts == ["one"]


def test_a_transaction_is_done_without_its_duplicates() -> None:
    """The rest of it is done; its queues and its subscribers get each message once."""
    core = CoreUnderTest()
    hears = core.consume(TOPIC)
    send(core, QUEUE, known_as("one", "a"))
    send(core, TOPIC, known_as("said", "s"))
    done: list[int] = []
    work = TransactionWork(
        [
            (QUEUE, known_as("one again", "a")),
            (QUEUE, known_as("two", "b")),
            (QUEUE, known_as("two again", "b")),
            (QUEUE, message("three")),
            (TOPIC, known_as("said again", "s")),
            (TOPIC, known_as("also said", "t")),
            (TOPIC, known_as("also said again", "t")),
        ]
    )
    core.commit(work, lambda: done.append(1))
    core.settle()
    assert done == [1]
    assert core.consume(QUEUE).texts == ["one", "two", "three"]
    assert hears.texts == ["said", "also said"]


def test_an_address_that_keeps_no_ids_stores_what_it_gets() -> None:
    """``id-cache-size`` 0, of the node or of an address, switches it off."""
    of_all = replace(SETTINGS, id_cache_size=0)
    of_one = settings("orders", id_cache_size=0)
    but_one = replace(of_all, address_settings=(AddressSettings("orders", id_cache_size=9),))
    for options, expected in ((of_all, 2), (of_one, 2), (but_one, 1)):
        core = CoreUnderTest(options)
        one = known_as("one", "a")
        assert send(core, QUEUE, one, one) == 2
        assert len(core.consume(QUEUE).texts) == expected


def test_the_ids_of_an_address_go_with_its_last_queue() -> None:
    """Who sends there again begins anew, and the store has nothing left."""
    core = CoreUnderTest()
    send(core, QUEUE, known_as("one", "a"))
    core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
    core.settle()
    assert core.journal.store.messages == {}
    assert [
        row
        for row in core.journal.store.bindings.values()
        if row.user_record_type == UserRecordType.ID_CACHE
    ] == []
    send(core, QUEUE, known_as("one", "a"))
    assert core.consume(QUEUE).texts == ["one"]


def test_the_ids_stay_while_messages_with_them_are_to_come_to_the_address() -> None:
    """Its queue is gone, and what is delivered later makes another: a resend would double it."""
    now_ms = 1_000_000
    core = CoreUnderTest(store=MemoryStore(clock_ms=lambda: now_ms), time_ms=lambda: now_ms)
    core.broker.start_schedule()
    core.send(QUEUE, "at once")
    core.broker.count_backlogs()
    later = known_as("later", "a", stated=Fields(delivery_ms=now_ms + 1_200_000))
    send(core, QUEUE, later)
    core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
    core.settle()
    for _ in range(24):  # for longer than ids are kept of an address that nobody uses
        now_ms += 30_000
        core.pass_time(30)
    assert send(core, QUEUE, later, known_as("later", "a")) == 2
    now_ms += 600_000
    core.pass_time(600)
    assert core.consume(QUEUE).texts == ["later"]


def test_the_ids_stay_while_it_is_not_known_whether_messages_are_to_come() -> None:
    """A node that has just taken over has not counted what waits."""
    now_ms = 1_000_000
    core = CoreUnderTest(store=MemoryStore(clock_ms=lambda: now_ms), time_ms=lambda: now_ms)
    core.send(QUEUE, "at once")
    later = known_as("later", "a", stated=Fields(delivery_ms=now_ms + 60_000))
    send(core, QUEUE, later)
    store = core.journal.store
    core.broker.stop()
    store.fence_token += 1
    again = CoreUnderTest(store=store, token=store.fence_token, time_ms=lambda: now_ms)
    again.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
    again.settle()
    again.broker.count_backlogs()
    again.broker.start_schedule()
    again.settle()
    assert send(again, QUEUE, later, known_as("later", "a")) == 2
    now_ms += 60_000
    again.pass_time(60)
    assert again.consume(QUEUE).texts == ["later"]


def test_in_memory_the_newest_ids_are_kept() -> None:
    """As many as ``id-cache-size`` says, for each address."""
    core = CoreUnderTest(replace(SETTINGS, id_cache_size=3))
    hears = core.consume(TOPIC)
    send(core, TOPIC, *(known_as(name, name) for name in "abcd"))
    send(core, TOPIC, *(known_as(name, name) for name in "dcba"))
    assert hears.texts == ["a", "b", "c", "d", "a"]


def test_nothing_stored_at_all_and_still_known() -> None:
    """With ``persistence-enabled`` false messages and ids are in memory."""
    core = CoreUnderTest(replace(SETTINGS, persistence_enabled=False))
    one = known_as("one", "a")
    assert send(core, QUEUE, one, one) == 2
    assert core.consume(QUEUE).texts == ["one"]


def test_a_transaction_on_a_node_that_stores_nothing_has_no_duplicates() -> None:
    """Neither of what was sent before, nor twice in itself."""
    core = CoreUnderTest(replace(SETTINGS, persistence_enabled=False))
    one, two = known_as("one", "a"), known_as("two", "b")
    send(core, QUEUE, one)
    done: list[int] = []
    work = TransactionWork([(QUEUE, one), (QUEUE, two), (QUEUE, two)])
    core.commit(work, lambda: done.append(1))
    send(core, QUEUE, two)
    assert (done, core.consume(QUEUE).texts) == ([1], ["one", "two"])


def test_dead_letters_are_not_taken_for_duplicates() -> None:
    """What the broker moves by itself is not looked at."""
    core = CoreUnderTest(settings(max_delivery_attempts=1, dead_letter_address="orders.dead"))
    send(core, "/queue/orders.dead", known_as("one", "a"))
    send(core, QUEUE, known_as("one", "a"))
    core.consume(QUEUE).reject("one")
    core.settle()
    assert core.consume("/queue/orders.dead").texts == ["one", "one"]
