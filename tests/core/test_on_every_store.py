"""The core on the journals there are: threads, SQL and files, paged and taken over.

What a queue does is tested on the in-memory journal; this is that nothing of it depends on that.
"""

from dataclasses import replace

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.queue import showing
from orthia.broker.core.upkeep.reaper import IDS_KEPT_MS
from orthia.config.address_settings import (
    RoutingType,
)
from tests.core.stored_node import StoredNode
from tests.core.support import ANYONE, declared, message, settings
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store as store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.support import JournalStore, SqlJournalStore
from tests.journal.test_moments import times_of

PAGED = settings(max_size_messages=50)
VALUE = "_AMQ_LVQ_NAME"


@pytest.fixture
def node(store: JournalStore) -> StoredNode:
    """Give a node on an empty store, with little of a queue in memory."""
    return StoredNode(store, PAGED)


# --- what is read on, in order


def numbered(first: int, last: int) -> list[str]:
    """Return the texts ``first`` to ``last``."""
    return [str(number) for number in range(first, last + 1)]


def test_a_backlog_is_consumed_in_order_across_windows_and_nodes(node: StoredNode) -> None:
    """What one node acknowledged does not come back; the rest comes in order, flagged."""
    node.send(*numbered(1, 2_500))
    first = node.consume(20, prefetch=20)
    for number in range(1, 1_301):
        node.wait_for(first, number)
        first.end.acknowledge((first.received[number - 1],), None)
    node.store.settle(node.journal)
    assert first.texts == numbered(1, len(first.texts))
    node = node.take_over()
    node.send("new")
    second = node.consume(1_201)
    assert second.texts == [*numbered(1_301, 2_500), "new"]
    assert [one.redelivered for one in second.received] == [True] * 1_200 + [False]


def test_selectors_find_what_they_match_in_a_paged_backlog(node: StoredNode) -> None:
    """And leave the rest, through a takeover."""
    texts = [f"{kind}{number}" for number, kind in enumerate("abbbcbbbbb" * 120 + "z")]
    node.send_headers("kind", *texts)
    assert node.consume(1, selector="kind = 'z'").texts == ["z1200"]
    some = node.consume(10, selector="kind = 'a'", prefetch=10)
    of_a = [text for text in texts if text[0] == "a"]
    assert some.texts == of_a[:10]
    node.acknowledge(some, *some.texts[:6])
    node = node.take_over()
    again = node.consume(115, selector="kind IN ('a', 'z')")
    assert again.texts == [*of_a[6:], "z1200"]
    assert [one.redelivered for one in again.received] == [True] * 115
    node.acknowledge(again)
    rest = node.consume(1_080)
    assert rest.texts == [text for text in texts if text[0] in "bc"]
    node.acknowledge(rest)
    assert node.depth() == 0


def test_groups_stay_together_in_a_paged_backlog(node: StoredNode) -> None:
    """Through a takeover, and when a consumer goes."""
    node.send_headers("JMSXGroupID", *(f"{'abcde'[n % 5]}{n}" for n in range(600)))
    node = node.take_over()
    consumers = [node.consume(0, prefetch=7) for _ in range(3)]
    gone = consumers[1]

    def is_done() -> bool:
        for one in consumers:
            taken = [text for text in one.texts[-7:] if text not in acknowledged]
            acknowledged.update(taken)
            if taken:
                one.acknowledge(*taken)
        return len(acknowledged) >= most

    acknowledged: set[str] = set()
    most = 200
    node.store.loop.run_until(is_done, "some")
    owned = [{text[0] for text in one.texts} for one in consumers]
    assert sum(len(one) for one in owned) == len(set.union(*owned))
    consumers.remove(gone)
    gone.end.close()
    most = 600
    node.store.loop.run_until(is_done, "all")
    for group in "abcde":
        texts = [text for one in (gone, *consumers) for text in one.texts if text[0] == group]
        seen = list(dict.fromkeys(int(text[1:]) for text in texts))
        assert seen == sorted(seen)
        assert len(seen) == 120


def test_a_higher_priority_is_first_in_a_paged_backlog(node: StoredNode) -> None:
    """Through a takeover, with a selector and without; and the counts have all of them."""

    def by_priority(texts: list[str]) -> list[str]:
        return sorted(texts, key=lambda text: -int(text[0]))

    texts = [f"{one}-{number}" for number, one in enumerate("4499440944997" * 100)]
    node.send_all(
        [
            message(text, priority=int(text[0]), headers=f"parity:{number % 2}\n".encode())
            for number, text in enumerate(texts)
        ]
    )
    wanted = by_priority(texts)
    first = node.consume(150, prefetch=150)
    assert first.texts == wanted[:150]
    node.acknowledge(first, *wanted[:120])
    node = node.take_over()
    high = [one for one in wanted[120:] if one[0] > "4" and int(one.partition("-")[2]) % 2 == 0]
    even = node.consume(len(high), selector="parity = '0' AND AMQPriority > 4")
    assert even.texts == high
    even.end.close()
    node.send("8-0", priority=8)
    rest = by_priority([*wanted[120:], "8-0"])
    again = node.consume(len(rest))
    assert again.texts == rest
    node.acknowledge(again)
    assert node.depth() == 0


# --- what is stored together, and goes together

PRICES = declared("prices", "asia", "europe", kind=RoutingType.MULTICAST)
TWO_QUEUES = replace(PAGED, addresses=(PRICES,))


def test_a_transaction_is_there_whole_or_not_at_all(store: JournalStore) -> None:
    """Sends to several queues and an acknowledgement are one commit."""
    node = StoredNode(store, TWO_QUEUES)
    node.send("order")
    consumer = node.consume(1, prefetch=1)
    consumer.end.set_aside(consumer.received)
    work = TransactionWork(
        [("/topic/prices", message("price")), ("/queue/answers", message("answer"))],
        {consumer.end: list(consumer.received)},
    )
    committed: list[int] = []
    list(node.broker.commit(ANYONE, work, lambda: committed.append(1)))
    node.store.loop.run_until(lambda: committed, "the commit")
    node = node.take_over()
    for queue, text in (("asia", "price"), ("europe", "price"), ("answers", "answer")):
        assert node.consume(1, prefetch=1, destination=f"/queue/{queue}").texts == [text]
    assert node.depth() == 0


def test_a_message_of_several_queues_leaves_no_row_behind(store: JournalStore) -> None:
    """Once each queue has acknowledged it, its shared body is gone too."""
    node = StoredNode(store, TWO_QUEUES)
    node.send(*numbered(1, 120), destination="/topic/prices")
    node = node.take_over()
    for queue, rows_before in (("asia", 360), ("europe", 240)):
        consumer = node.consume(120, destination=f"/queue/{queue}")
        assert consumer.texts == numbered(1, 120)
        assert len(store.rows()) == rows_before
        node.acknowledge(consumer)
    assert store.rows() == {}


def test_a_node_whose_fence_is_passed_delivers_and_confirms_nothing(node: StoredNode) -> None:
    """Its journal fails; what it was sent is nowhere, and what it had is its successor's."""
    node.send("stored")
    consumer = node.consume(0, prefetch=1, destination="/queue/late")
    successor = StoredNode(node.store, PAGED, token=node.token + 1)
    told: list[int] = []
    node.broker.send(ANYONE, "/queue/late", message("late"), lambda: told.append(1))
    node.store.loop.run_until(lambda: node.store.failures, "the fence refused")
    assert (told, consumer.texts) == ([], [])
    assert successor.consume(1, prefetch=1).texts == ["stored"]


def test_attempts_go_with_a_deleted_queue(sql_store: SqlJournalStore) -> None:
    """Also those that this node stored after it had looked whether there are any."""
    node = StoredNode(sql_store, PAGED, token=1)
    node.send(*numbered(1, 60))
    consumer = node.consume(60)
    consumer.end.close(attempted=consumer.received)
    sql_store.loop.run_until(lambda: len(times_of(sql_store)) == 60, "attempts are stored")
    ended: list[int] = []
    node.broker.delete_queue(ANYONE, "orders", ended.append, force=True)
    sql_store.loop.run_until(lambda: ended, "the queue is deleted")
    assert (ended, times_of(sql_store)) == ([60], set())


# --- last values, and queues that take nothing out


@pytest.mark.parametrize("most", [0, 3, -1])
def test_the_newest_of_each_value_is_kept_and_delivered(store: JournalStore, most: int) -> None:
    """In the store, too, also of what one batch stores and the next node replaces."""
    options = settings(max_size_messages=most, default_last_value_queue=True)
    node = StoredNode(store, options)
    node.send_headers(VALUE, *(f"{'abcdefgh'[n % 8]}{n}" for n in range(400)))
    newest = [f"{'abcdefgh'[n % 8]}{n}" for n in range(392, 400)]
    assert node.stored() == newest
    assert node.depth() == 8
    node = node.take_over()
    node.send_headers(VALUE, "c400", "a401")
    newest = [*newest[1:2], *newest[3:], "c400", "a401"]
    consumer = node.consume(8)
    assert consumer.texts == node.stored() == newest
    node.acknowledge(consumer, *newest[:5])
    node.send_headers(VALUE, "c402")
    node = node.take_over()
    consumer = node.consume(3)
    # What a consumer had when its node ended is replaced as anything else.
    assert consumer.texts == ["h399", "a401", "c402"]
    node.acknowledge(consumer)
    assert node.depth() == 0
    assert node.stored() == []


def test_a_queue_that_becomes_one_of_last_values_has_the_newest_alone(store: JournalStore) -> None:
    """What is in a queue that its file makes one of last values is looked through once."""
    node = StoredNode(store, settings())
    node.send_headers(VALUE, *(f"{'abc'[n % 3]}{n}" for n in range(2_500)))
    options = settings(max_size_messages=10, default_last_value_queue=True)
    configured = declared("orders", "orders")
    node = node.take_over(replace(options, addresses=(configured,)))
    node.send_headers(VALUE, "b9999")
    consumer = node.consume(3)
    assert consumer.texts == ["c2498", "a2499", "b9999"]
    node.acknowledge(consumer, "a2499")
    assert node.stored() == ["c2498", "b9999"]
    assert node.depth() == 2


def test_a_duplicate_leaves_what_is_newer(store: JournalStore) -> None:
    """What it would have replaced stays in the store, where the message itself is not stored."""
    node = StoredNode(store, settings(max_size_messages=0, default_last_value_queue=True))
    for text, known_as in (("a1", "x"), ("a2", "y"), ("a1", "x"), ("b1", "z"), ("a1", "x")):
        sent = message(text, headers=f"{VALUE}:{text[0]}\n".encode())
        node.send_all([sent._replace(duplicate_id=known_as)])
    assert node.stored() == ["a2", "b1"]
    node = node.take_over()
    assert node.consume(2).texts == ["a2", "b1"]
    assert node.depth() == 2


@pytest.mark.parametrize("has_values", [False, True])
def test_each_consumer_sees_all_also_after_a_takeover(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch, *, has_values: bool
) -> None:
    """Whatever was acknowledged; what comes meanwhile is in its place, or replaces what it may."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 30)
    options = settings(default_non_destructive=True, default_last_value_queue=has_values)
    node = StoredNode(store, options)
    texts = [f"{'abcdefgh'[n % 8]}{n}" for n in range(200)]
    node.send_headers(VALUE, *texts)
    there = texts[-8:] if has_values else texts
    quick, slow = node.consume(len(there), auto=True), node.consume(5, prefetch=5)
    assert quick.texts == node.stored() == there
    node.acknowledge(slow)
    node.send_headers(VALUE, "c200")
    node.wait_for(quick, len(there) + 1)
    there = [*(one for one in there if not has_values or one[0] != "c"), "c200"]
    assert quick.texts[-1] == "c200"
    assert node.stored() == node.consume(len(there)).texts == there
    node = node.take_over()
    node.send_headers(VALUE, "a201")
    there = [*(one for one in there if not has_values or one[0] != "a"), "a201"]
    again = node.consume(len(there), prefetch=7, auto=True)
    assert again.texts == node.stored() == there
    assert node.depth() == len(there)
    assert not any(one.redelivered for one in again.received)


# --- what nobody needs any more


def test_an_unused_queue_goes_with_its_duplicate_ids_when_they_are_old(
    store: JournalStore,
) -> None:
    """What a node before the last knew is known until it goes, and nothing is left then."""

    def use(node: StoredNode, *texts: str, left: int) -> None:
        node.send_all([message(text)._replace(duplicate_id=text) for text in texts])
        consumer = node.consume(left)
        assert consumer.texts == [*texts][len(texts) - left :]
        node.acknowledge(consumer)
        consumer.end.close()

    def look(node: StoredNode, times: int) -> list[str]:
        for _ in range(times):
            node.pass_time(30)
            # Behind what a look asks of the reader and the writer, in their turns.
            for _ in range(2):
                store.window(node.journal)
                store.settle(node.journal)
        return [*node.broker.queues()]

    looks = IDS_KEPT_MS // 30_000
    node = StoredNode(store, settings(auto_delete_queues=True))
    use(node, "1", left=1)
    assert look(node, looks) == ["orders"]
    node = node.take_over()
    use(node, "1", "2", left=1)
    assert look(node, looks) == ["orders"]
    assert look(node, 2) == []
    assert store.rows() == {}
    use(node, "1", left=1)
    assert [*node.take_over().broker.queues()] == ["orders"]
