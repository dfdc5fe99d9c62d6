"""Limits of what the store holds: who sends is refused, whoever takes messages out never is."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import BrokerError, NoRoomInStore, QuotaExceeded
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD
from orthia.broker.core.limits.quota import (
    StoreUse,
)
from orthia.config.address_settings import (
    AddressFullPolicy,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, declared, message, settings

EACH = MESSAGE_OVERHEAD + 1
"""What a message of one character counts for."""


def limited(messages: int = 3) -> Settings:
    """Return settings in which each address holds so many messages of one character."""
    return settings(page_limit_bytes=messages * EACH)


def used(core: CoreUnderTest) -> int:
    """Return what the whole store is counted to hold."""
    return core.broker.store_use.used


def refusal(core: CoreUnderTest, destination: str, text: str = "x", **options: Any) -> str:
    """Return why a message is refused."""
    with pytest.raises(QuotaExceeded) as refused:
        core.broker.send(ANYONE, destination, message(text, **options), None)
    core.settle()
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"page_limit_bytes": 3 * EACH}, f"page-limit-bytes {3 * EACH}"),
        ({"page_limit_messages": 3}, "page-limit-messages 3"),
        (
            {"max_size_bytes": 3 * EACH, "address_full_policy": AddressFullPolicy.FAIL},
            f"max-size-bytes {3 * EACH}",
        ),
        (
            {"max_size_messages": 3, "address_full_policy": AddressFullPolicy.FAIL},
            "max-size-messages 3",
        ),
    ],
)
@pytest.mark.parametrize("persistent", [True, False])
def test_an_address_holds_what_it_may_and_no_more(
    options: dict[str, Any], limit: str, persistent: bool
) -> None:
    """The refusal names address, limit and what is there; another address takes messages."""
    core = CoreUnderTest(settings(**options))
    core.send("/queue/orders", "a", "b", "c", persistent=persistent)
    text = refusal(core, "/queue/orders", persistent=persistent)
    assert "'orders'" in text
    assert limit in text
    assert (f"holds {3 * EACH} bytes" if "bytes" in limit else "holds 3 messages") in text
    core.send("/queue/others", "a")
    assert core.broker.depths()["orders"] == 3
    assert used(core) == 4 * EACH
    assert core.broker.parts.book.known["orders"].use.fill == 1


def test_a_limit_of_memory_alone_refuses_nothing() -> None:
    """With PAGE, which is the default, what exceeds max-size-bytes is in the store only."""
    core = CoreUnderTest(settings(max_size_bytes=EACH, max_size_messages=1))
    core.send("/queue/orders", *"abcdef")
    assert core.broker.depths()["orders"] == 6
    assert core.broker.parts.book.known["orders"].use.fill is None


def test_the_whole_store_has_a_limit_too() -> None:
    """Whichever addresses it is spread over."""
    core = CoreUnderTest(replace(SETTINGS, max_store_bytes=3 * EACH))
    core.send("/queue/a", "x")
    core.send("/queue/b", "x", "x")
    text = refusal(core, "/queue/c")
    assert f"max-store-bytes {3 * EACH}" in text
    assert f"hold {3 * EACH}:" in text


def test_a_message_counts_before_it_is_stored() -> None:
    """Else a burst could pass the limit while the store is busy."""
    core = CoreUnderTest(limited(3), auto_commit=False)
    core.send("/queue/orders", "a", "b", "c")
    refusal(core, "/queue/orders")


def test_a_transaction_is_refused_as_a_whole() -> None:
    """Nothing of it is stored or counted, and what it acknowledges is still there."""
    core = CoreUnderTest(limited(3))
    core.send("/queue/orders", "a")
    consumer = core.consume("/queue/orders")
    references = consumer.take("a")
    consumer.end.set_aside(references)
    work = TransactionWork(
        sends=[("/queue/orders", message(one)) for one in "bcd"],
        acknowledgements={consumer.end: references},
    )
    with pytest.raises(QuotaExceeded):
        core.commit(work, lambda: None)
    core.settle()
    assert used(core) == EACH
    consumer.end.close()
    assert core.consume("/queue/orders").texts == ["a"]
    small = TransactionWork(sends=[("/queue/orders", message(one)) for one in "bc"])
    core.commit(small, lambda: None)
    core.settle()
    assert used(core) == 3 * EACH


def test_dead_letters_and_expired_messages_are_never_refused() -> None:
    """Their addresses take them above every limit, and who sends there is refused."""
    options = settings("orders", max_delivery_attempts=1, page_limit_messages=-1).address_settings
    nothing = settings(page_limit_messages=0).address_settings
    core = CoreUnderTest(
        replace(SETTINGS, address_settings=(*options, *nothing), max_store_bytes=2 * EACH)
    )
    core.send("/queue/orders", "a")
    core.send("/queue/orders", "b", expires_ms=1)
    consumer = core.consume("/queue/orders")
    consumer.reject("a")
    core.settle()
    depths = core.broker.depths()
    assert (depths["orders"], depths["DLQ"], depths["ExpiryQueue"]) == (0, 1, 1)
    assert used(core) > 2 * EACH
    refusal(core, "/queue/orders")
    for name in ("DLQ", "ExpiryQueue"):
        core.consume(f"/queue/{name}", auto=True)
    core.settle()
    assert used(core) == 0


def test_each_queue_of_a_topic_counts() -> None:
    """A message is refused before one of the queues has it."""
    queues = tuple(QueueSettings(name, RoutingType.MULTICAST) for name in ("one", "two"))
    news = declared("news", *queues, kind=RoutingType.MULTICAST)
    core = CoreUnderTest(replace(limited(3), addresses=(news,)))
    core.send("/topic/news", "a")
    refusal(core, "/topic/news")
    assert [core.broker.depths()[name] for name in ("one", "two")] == [1, 1]
    core.consume("one", auto=True)
    core.settle()
    core.send("/topic/news", "b")
    assert [core.broker.depths()[name] for name in ("one", "two")] == [0, 2]


def test_a_topic_without_queues_holds_nothing() -> None:
    """Its subscribers hear any number of messages."""
    core = CoreUnderTest(limited(3))
    consumer = core.consume("/topic/news")
    core.send("/topic/news", *"abcdefgh")
    assert consumer.texts == list("abcdefgh")
    assert used(core) == 0


@pytest.mark.parametrize("consumed_first", [False, True])
def test_what_an_earlier_node_left_counts(consumed_first: bool) -> None:
    """After a takeover it is counted in the background, or as it is read, and each once."""
    before = CoreUnderTest()
    before.send("/queue/orders", *"abcde")
    before.journal.store.fence_token = 2
    core = CoreUnderTest(limited(6), store=before.journal.store, token=2)
    consumer = core.consume("/queue/orders") if consumed_first else None
    core.counted()
    core.pass_time(1.0)
    assert used(core) == 5 * EACH
    core.send("/queue/orders", "f")
    refusal(core, "/queue/orders")
    consumer = consumer or core.consume("/queue/orders")
    consumer.acknowledge(*"abcdef")
    core.settle()
    assert used(core) == 0


def test_a_closed_store_takes_nothing_and_gives_everything() -> None:
    """While the disk is nearly full: sends are refused with the reason, consumers go on."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a", "b")
    core.broker.store_use.close("disk", "The disk is full.")
    core.broker.store_use.close("database", "The database is full.")
    work = TransactionWork(sends=[("/queue/orders", message("c"))])
    with pytest.raises(NoRoomInStore, match="The disk is full"):
        core.broker.send(ANYONE, "/queue/orders", message("c"), None)
    with pytest.raises(NoRoomInStore, match="The disk is full"):
        core.broker.check_send(ANYONE, "/queue/orders")
    with pytest.raises(NoRoomInStore, match="The disk is full"):
        core.commit(work, lambda: None)
    consumer = core.consume("/queue/orders")
    consumer.acknowledge("a", "b")
    core.settle()
    core.broker.store_use.reopen("disk")
    with pytest.raises(BrokerError, match="The database is full"):
        core.send("/queue/orders", "c")
    core.broker.store_use.reopen("database")
    core.send("/queue/orders", "c")
    assert consumer.texts == ["a", "b", "c"]


def test_a_consumer_of_a_new_queue_is_not_refused_for_what_others_hold() -> None:
    """One who listens to several queues could make no room otherwise; who sends is refused."""
    core = CoreUnderTest(replace(SETTINGS, max_store_bytes=3 * EACH))
    core.send("/queue/orders", "a", "b", "c")
    core.broker.store_use.add(1)  # dead letters, what a node of a higher limit left
    text = refusal(core, "/queue/new")
    assert f"hold {3 * EACH + 1}: messages are refused" in text
    new = core.consume("/queue/new")
    orders = core.consume("/queue/orders")
    orders.acknowledge("a", "b", "c")
    core.settle()
    core.send("/queue/new", "d")
    assert new.texts == ["d"]


def test_what_an_address_would_take_that_drops_is_refused_where_the_store_is_full() -> None:
    """The limit of the store is nobody's to drop for."""
    dropping = settings(address_full_policy=AddressFullPolicy.DROP, max_size_messages=5)
    core = CoreUnderTest(replace(dropping, max_store_bytes=2 * EACH))
    core.send("/queue/a", "1", "2")
    assert "max-store-bytes" in refusal(core, "/queue/a")
    assert "max-store-bytes" in refusal(core, "/queue/b")
    assert (core.broker.depths()["a"], used(core)) == (2, 2 * EACH)


def test_the_store_says_what_refuses_messages() -> None:
    """The limit as long as what it refused last would be refused again; a full disk before it."""
    total = StoreUse(100)
    total.add(95)
    said = [total.refused_by]
    with pytest.raises(QuotaExceeded):
        total.refuse_if_full(10)
    said.append(total.refused_by)
    total.close("disk", "the disk is full")
    said.append(total.refused_by)
    total.reopen("disk")
    total.add(-5)
    said.append(total.refused_by)
    assert said == [None, "max-store-bytes", "disk", None]


def test_a_message_that_never_fits_does_not_fill_the_store() -> None:
    """It is refused by an empty store, too."""
    total = StoreUse(100)
    with pytest.raises(QuotaExceeded):
        total.refuse_if_full(101)
    assert total.refused_by is None
