"""Consumers that do not want every message, on the journals there are, paged and taken over."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orthia.broker.core.broker import Broker
from orthia.config.address_settings import AddressSettings
from tests.core.support import ANYONE, SETTINGS, FakeConsumer, message, opened
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store as store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.support import JournalStore, SqlJournalStore
from tests.journal.test_moments import times_of

QUEUE = "/queue/orders"
OPTIONS = replace(SETTINGS, address_settings=(AddressSettings("#", max_size_messages=50),))


class Node:
    """A core on a store's next token."""

    def __init__(self, store: JournalStore, token: int) -> None:
        store.advance_fence(token)
        self.store = store
        self.token = token
        self.journal = store.open(token)
        self.broker = opened(
            Broker(OPTIONS, self.journal, lease_valid=lambda: True, call_later=self._call_later)
        )
        self.broker.count_backlogs()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if not seconds:
            self.store.loop.post(callback)

    def send(self, kinds: str) -> None:
        """Send messages of these kinds, numbered from 0, and wait until they are stored."""
        stored: list[int] = []
        for number, kind in enumerate(kinds):
            sent = message(f"{kind}{number}", headers=f"kind:{kind}\n".encode())
            self.broker.send(ANYONE, QUEUE, sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(kinds), "all are stored")

    def send_priorities(self, priorities: str) -> None:
        """Send messages of these priorities, numbered from 0, and wait until they are stored."""
        stored: list[int] = []
        for number, priority in enumerate(priorities):
            sent = message(
                f"{priority}-{number}",
                headers=f"parity:{number % 2}\n".encode(),
                priority=int(priority),
            )
            self.broker.send(ANYONE, QUEUE, sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(priorities), "all are stored")

    def send_groups(self, count: int) -> None:
        """Send messages of five groups in turn, and wait until they are stored."""
        stored: list[int] = []
        for number in range(count):
            group = "abcde"[number % 5]
            sent = message(f"{group}{number}", headers=f"JMSXGroupID:{group}\n".encode())
            self.broker.send(ANYONE, QUEUE, sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == count, "all are stored")

    def consume(self, selector: str | None, count: int, *, prefetch: int = 0) -> FakeConsumer:
        """Subscribe and wait for ``count`` messages."""
        consumer = FakeConsumer()
        consumer.subscription = self.broker.subscribe(
            ANYONE, QUEUE, consumer, prefetch=prefetch, selector=selector
        )
        consumer.end.resume()
        self.wait(consumer, count)
        return consumer

    def wait(self, consumer: FakeConsumer, count: int) -> None:
        """Wait until a consumer has received ``count`` messages in all."""
        self.store.loop.run_until(
            lambda: len(consumer.received) >= count, f"{count} messages received"
        )

    def acknowledge(self, consumer: FakeConsumer, *texts: str) -> None:
        """Acknowledge messages and wait until that is stored."""
        done: list[int] = []
        consumer.acknowledge(*texts, done=lambda: done.append(1))
        self.store.loop.run_until(lambda: bool(done), "the acknowledgement")

    def take_over(self) -> "Node":
        """Return the next live node; of this one nothing more reaches the store."""
        self.journal.close(drain=False)
        return Node(self.store, self.token + 1)


@pytest.fixture
def node(store: JournalStore) -> Node:
    """Give a node on an empty store."""
    return Node(store, 2)


def of_kind(kinds: str, kind: str) -> list[str]:
    """Return the texts of a kind."""
    return [f"{one}{number}" for number, one in enumerate(kinds) if one == kind]


def test_selectors_find_what_they_match_in_a_paged_backlog(node: Node) -> None:
    """And leave the rest, through a takeover."""
    kinds = "".join("abbbcbbbbb"[n % 10] for n in range(1_200)) + "z"
    node.send(kinds)
    far = node.consume("kind = 'z'", 1)
    assert far.texts == ["z1200"]
    some = node.consume("kind = 'a'", 10, prefetch=10)
    assert some.texts == of_kind(kinds, "a")[:10]
    node.acknowledge(some, *some.texts[:6])
    successor = node.take_over()
    again = successor.consume("kind IN ('a', 'z')", 115)
    assert again.texts == [*of_kind(kinds, "a")[6:], "z1200"]
    assert [one.redelivered for one in again.received] == [True] * 115
    successor.acknowledge(again, *again.texts)
    rest = successor.consume(None, 1_080)
    assert rest.texts == [text for text in _all(kinds) if text[0] in "bc"]
    successor.acknowledge(rest, *rest.texts)
    assert successor.broker.depths()["orders"] == 0


def _all(kinds: str) -> list[str]:
    return [f"{kind}{number}" for number, kind in enumerate(kinds)]


def test_groups_stay_together_in_a_paged_backlog(node: Node) -> None:
    """Through a takeover, and when a consumer goes."""
    node.send_groups(600)
    node = node.take_over()
    consumers = [node.consume(None, 0, prefetch=7) for _ in range(3)]
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
    assert not owned[0] & owned[1]
    assert not owned[0] & owned[2]
    assert not owned[1] & owned[2]
    consumers.remove(gone)
    gone.end.close()
    most = 600
    node.store.loop.run_until(is_done, "all")
    for group in "abcde":
        order = [
            int(text[1:]) for one in (gone, *consumers) for text in one.texts if text[0] == group
        ]
        seen = list(dict.fromkeys(order))
        assert seen == sorted(seen)
        assert len(seen) == 120


def test_a_higher_priority_is_first_in_a_paged_backlog(node: Node) -> None:
    """Through a takeover, with a selector and without; and the counts have all of them."""
    priorities = "4499440944997" * 100
    node.send_priorities(priorities)
    texts = [f"{one}-{number}" for number, one in enumerate(priorities)]
    wanted = _by_priority(texts)
    first = node.consume(None, 150, prefetch=150)
    assert first.texts == wanted[:150]
    node.acknowledge(first, *wanted[:120])
    successor = node.take_over()
    high = [one for one in wanted[120:] if one[0] > "4" and int(one.partition("-")[2]) % 2 == 0]
    even = successor.consume("parity = '0' AND AMQPriority > 4", len(high))
    assert even.texts == high
    even.end.close()
    successor.send_priorities("8")
    rest = _by_priority([*wanted[120:], "8-0"])
    again = successor.consume(None, len(rest))
    assert again.texts == rest
    successor.acknowledge(again, *again.texts)
    assert successor.broker.depths()["orders"] == 0


def _by_priority(texts: list[str]) -> list[str]:
    return sorted(texts, key=lambda text: -int(text[0]))


def test_attempts_go_with_a_deleted_queue(sql_store: SqlJournalStore) -> None:
    """Also those that this node stored after it had looked whether there are any."""
    node = Node(sql_store, 1)
    node.send("a" * 60)
    consumer = node.consume(None, 60)
    consumer.end.close(attempted=consumer.received)
    sql_store.settle(node.journal)
    assert len(times_of(sql_store)) == 60
    ended: list[int] = []
    node.broker.delete_queue(ANYONE, "orders", ended.append, force=True)
    sql_store.loop.run_until(lambda: ended, "the queue is deleted")
    assert (ended, times_of(sql_store)) == ([60], set())
