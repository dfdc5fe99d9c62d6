"""What the clients of a queue see: order, sharing, redelivery, windows, limits."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import DestinationRefused, LimitExceeded, NotLive
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.protocols.stomp.encoding import headers_map
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.fields import Fields, Property
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, declared, message, opened, settings

QUEUE = "/queue/orders"


def numbered(first: int, last: int) -> list[str]:
    """Return the texts ``first`` to ``last``."""
    return [str(number) for number in range(first, last + 1)]


def test_messages_arrive_in_the_order_they_were_sent() -> None:
    """One consumer receives a queue's messages in order, those sent before and after it came."""
    core = CoreUnderTest()
    core.send(QUEUE, *numbered(1, 3))
    consumer = core.consume(QUEUE)
    core.send(QUEUE, *numbered(4, 6))
    assert consumer.texts == numbered(1, 6)


def test_a_message_is_delivered_only_once_it_is_stored() -> None:
    """Neither the consumer nor the sender hears of a message before its commit."""
    core = CoreUnderTest(auto_commit=False)
    consumer = core.consume(QUEUE)
    stored: list[str] = []
    core.broker.send(ANYONE, QUEUE, message("a"), lambda: stored.append("a"))
    core.settle()
    assert (consumer.texts, stored) == ([], [])
    core.journal.commit()
    core.settle()
    assert (consumer.texts, stored) == (["a"], ["a"])


@pytest.mark.parametrize("selector", [None, "kind = 'a'"])
def test_a_full_journal_delivers_no_backlog_to_who_acknowledges_at_once(
    selector: str | None,
) -> None:
    """What it delivers is deleted, and others wait to be stored behind that; a message passes."""
    journal = MemoryJournal(limits=JournalLimits(max_waiting_rows=300))
    core = CoreUnderTest(journal=journal)
    core.send(QUEUE, *map(str, range(2_000)), headers=b"kind:a\n")
    other = core.consume("/queue/other", auto=True)
    core.send("/queue/other", "before", headers=b"kind:a\n")
    journal.auto_commit = False
    consumer = core.consume(QUEUE, auto=True, selector=selector)
    for _ in range(20):
        core.settle()
        consumer.end.resume()
    assert journal.is_full
    assert 300 <= len(consumer.received) < 300 + 2 * AT_ONCE
    core.broker.send(ANYONE, "/queue/other", message("x"), None)
    while len(consumer.received) < 2_000:
        journal.commit()
        core.settle()
        assert len(journal.waiting) < 300 + 2 * AT_ONCE
    assert other.texts == ["before", "x"]
    assert consumer.texts == [*map(str, range(2_000))]


def test_a_failed_journal_confirms_and_delivers_nothing() -> None:
    """What was not stored when the store was lost is neither receipted nor delivered."""
    core = CoreUnderTest(auto_commit=False)
    consumer = core.consume(QUEUE)
    stored: list[str] = []
    core.broker.send(ANYONE, QUEUE, message("a"), lambda: stored.append("a"))
    core.journal.store.fence_token = 2
    core.journal.commit()
    core.settle()
    assert (consumer.texts, stored) == ([], [])


def test_nothing_is_delivered_without_a_valid_lease() -> None:
    """While the lease is in doubt messages wait; they go out when it is valid again."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.lease_valid = False
    core.send(QUEUE, "a")
    assert consumer.texts == []
    core.lease_valid = True
    core.broker.go_on()
    assert consumer.texts == ["a"]


def test_competing_consumers_share_a_queue() -> None:
    """Each message goes to one consumer, in turn."""
    core = CoreUnderTest()
    first, second = core.consume(QUEUE), core.consume(QUEUE)
    core.send(QUEUE, *numbered(1, 10))
    assert sorted(first.texts + second.texts, key=int) == numbered(1, 10)
    assert len(first.texts) == len(second.texts) == 5


def test_prefetch_bounds_what_is_unacknowledged() -> None:
    """A consumer holds at most its prefetch; each acknowledgement brings the next message."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE, prefetch=2)
    core.send(QUEUE, *numbered(1, 4))
    assert consumer.texts == ["1", "2"]
    consumer.acknowledge("1")
    assert consumer.texts == ["1", "2", "3"]


def test_unacknowledged_messages_go_back_in_their_place() -> None:
    """What a lost consumer held is delivered to the next before newer ones, flagged redelivered."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE, prefetch=3)
    core.send(QUEUE, *numbered(1, 5))
    consumer.acknowledge("2")
    consumer.end.close()
    successor = core.consume(QUEUE)
    assert successor.texts == ["1", "3", "4", "5"]
    assert [successor.is_flagged(text) for text in successor.texts] == [True, True, True, False]


def test_an_acknowledged_message_is_gone_for_ever() -> None:
    """After the commit of an acknowledgement no restart brings the message back."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.send(QUEUE, *numbered(1, 3))
    done: list[str] = []
    consumer.acknowledge("2", done=lambda: done.append("2"))
    core.settle()
    assert done == ["2"]
    assert core.stored_texts() == ["1", "3"]


def test_acknowledging_twice_does_no_harm() -> None:
    """A second acknowledgement of the same delivery changes no count and deletes nothing."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE, prefetch=2)
    core.send(QUEUE, *numbered(1, 5))
    consumer.acknowledge("1")
    consumer.acknowledge("1")
    assert core.broker.depths()["orders"] == 4
    assert consumer.texts == ["1", "2", "3"]


def test_after_a_takeover_unacknowledged_messages_are_flagged() -> None:
    """The next live node delivers what is left, in order, all flagged: they may have been seen."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.send(QUEUE, *numbered(1, 5))
    consumer.acknowledge("1", "3")
    core.settle()
    successor = core.takeover()
    successor.send(QUEUE, "new")
    again = successor.consume(QUEUE)
    assert again.texts == ["2", "4", "5", "new"]
    assert [again.is_flagged(text) for text in again.texts] == [True, True, True, False]


def test_too_many_failed_deliveries_go_to_the_dead_letter_address() -> None:
    """After max-delivery-attempts the message is in the dead-letter queue, and says whence."""
    core = CoreUnderTest(settings("orders", max_delivery_attempts=3, dead_letter_address="DLQ"))
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a", headers=b"colour:red\n")
    for _ in range(3):
        consumer.reject("a")
    core.settle()
    assert consumer.texts == ["a", "a", "a"]
    dead = core.consume("/queue/DLQ")
    assert dead.texts == ["a"]
    headers = headers_map(dead.received[0].record.head)
    assert headers["colour"] == "red"
    assert headers["_AMQ_ORIG_ADDRESS"] == "orders"
    assert headers["_AMQ_ORIG_QUEUE"] == "orders"
    assert core.stored_texts() == ["a"]


@pytest.mark.parametrize("unlimited", [-1, 0])
def test_a_message_may_be_delivered_without_end(unlimited: int) -> None:
    """With max-delivery-attempts of -1 or 0 it comes again after more than the default of ten."""
    core = CoreUnderTest(
        settings("orders", max_delivery_attempts=unlimited, dead_letter_address="DLQ")
    )
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a")
    for _ in range(12):
        consumer.reject("a")
    core.settle()
    assert consumer.texts == ["a"] * 13
    assert core.consume("/queue/DLQ").texts == []


@pytest.mark.parametrize("names", [("audit", "alarm"), ()])
def test_a_dead_letter_address_stays_the_type_it_is(names: tuple[str, ...]) -> None:
    """Each queue of a MULTICAST address gets it; one without a queue gets one of that type."""
    queues = tuple(QueueSettings(name, RoutingType.MULTICAST) for name in names)
    options = replace(
        settings("orders", max_delivery_attempts=1, dead_letter_address="dead"),
        addresses=(declared("dead", *queues, kind=RoutingType.MULTICAST),),
    )
    core = CoreUnderTest(options)
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a")
    consumer.reject("a")
    core.settle()
    for name in names or ("dead",):
        assert core.consume(f"/queue/{name}").texts == ["a"]
        assert core.broker.queues()[name].routing_type is RoutingType.MULTICAST
    with pytest.raises(DestinationRefused, match="configured as MULTICAST"):
        core.send("/queue/dead", "b")
    successor = core.takeover(options)
    assert set(names or ("dead",)) <= set(successor.broker.queues())


def test_without_a_dead_letter_address_the_message_goes_to_the_default_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is deleted for want of a setting; the log says where it went, once for a queue."""
    core = CoreUnderTest(settings(max_delivery_attempts=1))
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a", "b")
    consumer.reject("a")
    consumer.reject("b")
    core.settle()
    assert core.consume("/queue/DLQ").texts == ["a", "b"]
    assert caplog.text.count("is moved to dead-letter-address DLQ (the default)") == 1


@pytest.mark.parametrize("how", ["expired", "rejected"])
def test_an_empty_address_drops_the_message(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """That it is dropped is an explicit setting, and the log names it."""
    core = CoreUnderTest(
        settings(max_delivery_attempts=1, dead_letter_address="", expiry_address="")
    )
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a", expires_ms=1 if how == "expired" else 0)
    if how == "rejected":
        consumer.reject("a")
    core.settle()
    assert core.stored_texts() == []
    element = "expiry-address" if how == "expired" else "dead-letter-address"
    assert f"dropped, as the empty {element} says" in caplog.text


def test_a_dead_letter_stays_in_whichever_queue_its_address_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A queue of the dead-letter address need not have its name."""
    letters = declared("DLQ", "letters")
    options = replace(settings(max_delivery_attempts=1), addresses=(letters,))
    core = CoreUnderTest(options)
    orders = core.consume(QUEUE)
    core.send(QUEUE, "a")
    orders.reject("a")
    core.settle()
    consumer = core.consume("/queue/letters")
    assert consumer.texts == ["a"]
    seq = consumer.received[-1].seq
    consumer.reject("a")
    core.settle()
    core.pass_time(11)
    assert [one.seq for one in consumer.received] == [seq, seq]
    assert "stays: the queue is its own dead-letter-address" in caplog.text


def test_a_node_that_stops_leaves_its_dead_letters_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What clients give back as they leave is stored where it is, and no error of the stop."""
    options = settings(max_delivery_attempts=1)
    core = CoreUnderTest(options)
    consumer = core.consume(QUEUE)
    core.send(QUEUE, "a")
    core.broker.stop()
    consumer.reject("a")
    consumer.end.close()
    core.settle()
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    core = core.takeover(options)
    assert core.consume(QUEUE).texts == ["a"]


def test_a_message_that_is_moved_twice_says_where_it_was_last() -> None:
    """As its client sent them, and each of the headers of the broker once."""
    core = CoreUnderTest(
        replace(
            SETTINGS,
            address_settings=(
                AddressSettings("orders", expiry_address="late"),
                AddressSettings("late", max_delivery_attempts=1, dead_letter_address="DLQ"),
            ),
        )
    )
    core.send(QUEUE, "a", expires_ms=1, headers=b"colour:red\nexpires:1\n")
    core.consume(QUEUE)
    late = core.consume("/queue/late")
    late.reject("a")
    core.settle()
    (dead,) = core.consume("/queue/DLQ").received
    assert sorted(dead.record.head.splitlines()) == [
        b"_AMQ_ORIG_ADDRESS:late",
        f"_AMQ_ORIG_MESSAGE_ID:{late.received[0].seq}".encode(),
        b"_AMQ_ORIG_QUEUE:late",
        b"colour:red",
    ]


def test_a_message_of_no_protocol_is_moved_with_all_it_says() -> None:
    """Through the store, and from one queue into another."""
    core = CoreUnderTest(settings("orders", expiry_address="late"))
    said = Fields(group="g", properties={"n": 1})
    core.send(QUEUE, "a", expires_ms=1, stated=said)
    (seq,) = core.journal.store.messages
    core.consume(QUEUE)
    (late,) = core.consume("/queue/late").received
    moved: dict[str, Property] = {
        "n": 1,
        "_AMQ_ORIG_ADDRESS": "orders",
        "_AMQ_ORIG_QUEUE": "orders",
        "_AMQ_ORIG_MESSAGE_ID": str(seq),
        "_AMQ_ACTUAL_EXPIRY": "1",
    }
    assert late.record.fields() == said._replace(properties=moved)
    assert late.record.expires_ms == 0


@pytest.mark.parametrize("name", ["a:b", "a\\b", "a\\cb", "a\\nb", ":\\:"])
def test_a_dead_letter_names_its_origin_whatever_that_is_called(name: str) -> None:
    """In a STOMP header a colon and a backslash are escaped: whoever reads it gets the name."""
    core = CoreUnderTest(settings(name, max_delivery_attempts=1, dead_letter_address="DLQ"))
    consumer = core.consume(f"/queue/{name}")
    core.send(f"/queue/{name}", "a")
    consumer.reject("a")
    core.settle()
    (dead,) = core.consume("/queue/DLQ").received
    (frame,) = FrameParser(ClientLimits()).feed(b"MESSAGE\n" + dead.record.head + b"\n\0")
    assert frame.get(b"_AMQ_ORIG_ADDRESS") == name
    assert frame.get(b"_AMQ_ORIG_QUEUE") == name


def test_a_dead_letter_that_cannot_be_moved_stays(caplog: pytest.LogCaptureFixture) -> None:
    """With where it came from it would be longer than the store takes."""
    core = CoreUnderTest(settings(max_delivery_attempts=1))
    core.send(QUEUE, "x" * 900)
    core.broker.stop()
    core.journal = MemoryJournal(core.journal.store, max_record_bytes=950)
    again = CoreUnderTest(settings(max_delivery_attempts=1), journal=core.journal)
    consumer = again.consume(QUEUE)
    consumer.reject("x" * 900)
    assert "cannot be moved to DLQ" in caplog.text
    again.pass_time(11)
    assert consumer.texts == ["x" * 900, "x" * 900]


def test_only_what_was_attempted_waits_for_its_redelivery() -> None:
    """What a lost consumer had beside it goes to the next one at once."""
    core = CoreUnderTest(settings(redelivery_delay=5_000))
    core.send(QUEUE, "a", "b")
    first = core.consume(QUEUE)
    first.end.close(attempted=first.take("a"))
    second = core.consume(QUEUE)
    assert second.texts == ["b"]
    core.pass_time(6)
    assert second.texts == ["b", "a"]


def test_messages_expire_by_the_clock_the_core_is_given() -> None:
    """The database's: what this node's own clock shows does not matter, nor does its setting."""
    now_ms = 1_000
    core = CoreUnderTest(time_ms=lambda: now_ms)
    core.send(QUEUE, "a", "b", expires_ms=2_000)
    consumer = core.consume(QUEUE, prefetch=1)
    assert consumer.texts == ["a"]
    assert consumer.received[0].record.timestamp_ms == 1_000
    now_ms = 2_000
    consumer.acknowledge("a")
    assert consumer.texts == ["a"]


def test_an_expired_message_is_not_delivered() -> None:
    """It goes to the expiry address, where it does not expire again."""
    core = CoreUnderTest(settings("orders", expiry_address="expired"))
    core.send(QUEUE, "old", expires_ms=1)
    core.send(QUEUE, "fresh", expires_ms=2**52)
    assert core.consume(QUEUE).texts == ["fresh"]
    core.settle()
    assert core.consume("/queue/expired").texts == ["old"]
    assert "old" in core.stored_texts()


@pytest.mark.parametrize("limit", [{"max_size_bytes": 10_000}])
def test_a_long_queue_is_read_from_the_table_in_order(limit: dict[str, Any]) -> None:
    """Beyond max-size messages are in the table only; the consumer notices nothing of it."""
    core = CoreUnderTest(settings(**limit))
    core.send(QUEUE, *numbered(1, 3_000))
    queue = core.broker.queues()["orders"]
    assert queue.log.cursor.is_paged
    assert queue.log.in_memory <= 20
    assert queue.depth == 3_000
    consumer = core.consume(QUEUE, prefetch=5)
    core.send(QUEUE, *numbered(3_001, 3_100))
    while consumer.received[-1].record.body != b"3100":
        consumer.acknowledge(consumer.texts[-1])
        core.settle()
    assert consumer.texts == numbered(1, 3_100)
    assert not any(consumer.is_flagged(text) for text in consumer.texts)


def test_memory_full_of_one_queue_does_not_starve_another() -> None:
    """A queue nobody consumes leaves its messages to the table when another needs the memory."""
    core = CoreUnderTest(Settings(**{**vars(SETTINGS), "global_max_size": 1_000_000}))
    core.send("/queue/idle", *numbered(1, 1_500))
    idle = core.broker.queues()["idle"]
    before = idle.log.in_memory
    core.send(QUEUE, *numbered(1, 500))
    consumer = core.consume(QUEUE)
    assert consumer.texts == numbered(1, 500)
    assert idle.log.in_memory < before
    assert idle.depth == 1_500
    consumer.acknowledge(*consumer.texts)
    core.settle()
    assert core.consume("/queue/idle", prefetch=2_000).texts == numbered(1, 1_500)
    assert core.broker.depths() == {"idle": 1_500, "orders": 0}


def test_a_message_that_is_not_persistent_is_lost_with_the_node_only() -> None:
    """persistent:false keeps the order with persistent ones, and is not stored."""
    core = CoreUnderTest()
    core.send(QUEUE, "stored")
    core.send(QUEUE, "volatile", persistent=False)
    core.send(QUEUE, "stored too")
    assert core.stored_texts() == ["stored", "stored too"]
    assert core.consume(QUEUE).texts == ["stored", "volatile", "stored too"]


def test_a_message_that_is_not_persistent_does_not_overtake() -> None:
    """Sent while a persistent one is on its way to the store, it waits its turn."""
    core = CoreUnderTest(auto_commit=False)
    consumer = core.consume(QUEUE)
    core.broker.send(ANYONE, QUEUE, message("first"), None)
    core.broker.send(ANYONE, QUEUE, message("second", persistent=False), None)
    core.settle()
    core.journal.commit()
    core.settle()
    assert consumer.texts == ["first", "second"]


def test_a_stopped_core_refuses_and_delivers_nothing() -> None:
    """After stop() every request says to connect to the other node."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    core.broker.stop()
    with pytest.raises(NotLive, match="connect to the other node"):
        core.send(QUEUE, "a")
    with pytest.raises(NotLive):
        core.consume(QUEUE)
    assert consumer.texts == []


def test_a_closed_journal_refuses_with_a_reason() -> None:
    """Whatever needs the journal says so as a refusal, not as an accident."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    topic = core.consume("/topic/news")
    core.send(QUEUE, "a")
    core.journal.close(drain=False)
    for destination, persistent in ((QUEUE, True), (QUEUE, False), ("/topic/news", True)):
        with pytest.raises(NotLive):
            core.broker.send(ANYONE, destination, message("b", persistent=persistent), None)
    with pytest.raises(NotLive):
        consumer.acknowledge("a", done=lambda: None)
    consumer.end.close()
    assert topic.texts == []


def test_a_message_the_store_cannot_take_is_refused() -> None:
    """It is refused before anything is stored, naming both sizes; the queue goes on."""
    core = CoreUnderTest()
    core.journal = MemoryJournal(core.journal.store, max_record_bytes=1_000)
    core.broker = opened(
        Broker(SETTINGS, core.journal, lease_valid=lambda: True, call_later=lambda *_: None)
    )
    with pytest.raises(LimitExceeded, match="1000"):
        core.send(QUEUE, "x" * 2_000)
    core.send(QUEUE, "small")
    assert core.consume(QUEUE).texts == ["small"]


def test_auto_create_can_be_switched_off() -> None:
    """Without auto-create-queues or -addresses an unknown destination is refused, with why."""
    core = CoreUnderTest(settings(auto_create_addresses=False))
    with pytest.raises(DestinationRefused, match="auto-create-addresses is false"):
        core.send(QUEUE, "a")
    core = CoreUnderTest(settings(auto_create_queues=False))
    with pytest.raises(DestinationRefused, match="auto-create-queues is false"):
        core.send(QUEUE, "a")


@pytest.mark.parametrize("name", ["/queue/", "", "/queue/ x", "/queue/a\x00b", "x" * 256])
def test_a_destination_that_is_no_name_is_refused(name: str) -> None:
    """The refusal says what a destination looks like."""
    with pytest.raises(DestinationRefused, match="expected /queue/NAME"):
        CoreUnderTest().send(name, "a")
