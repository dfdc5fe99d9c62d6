"""The core on the journal it has in production: threads, SQL, and a store that outlives the node.

What a queue does is tested on the in-memory journal; this is that nothing of it depends on that.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.broker import Broker
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.journal.journal import MessageJournal
from tests.core.support import ANYONE, SETTINGS, FakeConsumer, message, opened
from tests.journal.support import SqlJournalStore
from tests.support.servers import SqliteServer

QUEUE = "/queue/orders"
OPTIONS = replace(
    SETTINGS,
    address_settings=(AddressSettings("#", max_size_messages=50),),
    addresses=(
        AddressConfiguration(
            "prices",
            frozenset({RoutingType.MULTICAST}),
            (
                QueueSettings("asia", RoutingType.MULTICAST),
                QueueSettings("europe", RoutingType.MULTICAST),
            ),
        ),
    ),
)


class Node:
    """A core on the store's next token."""

    def __init__(self, store: SqlJournalStore, token: int) -> None:
        store.advance_fence(token)
        self.store = store
        self.token = token
        self.journal: MessageJournal = store.open(token)
        self.broker = opened(
            Broker(
                OPTIONS,
                self.journal,
                lease_valid=lambda: True,
                call_later=self._call_later,
            )
        )

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if not seconds:
            self.store.loop.post(callback)

    def send(self, destination: str, *texts: str) -> None:
        """Send and wait for the last to be stored."""
        stored: list[int] = []
        for text in texts:
            self.broker.send(ANYONE, destination, message(text), lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(texts), "all are stored")

    def consume(self, destination: str, *, prefetch: int, count: int) -> FakeConsumer:
        """Subscribe and wait for ``count`` messages."""
        consumer = FakeConsumer()
        consumer.subscription = self.broker.subscribe(
            ANYONE, destination, consumer, prefetch=prefetch
        )
        consumer.end.resume()
        self.wait(consumer, count)
        return consumer

    def wait(self, consumer: FakeConsumer, count: int) -> None:
        """Wait until a consumer has received ``count`` messages in all."""
        self.store.loop.run_until(
            lambda: len(consumer.received) >= count, f"{count} messages received"
        )

    def die(self) -> "Node":
        """Return the next live node; of this one nothing more reaches the store."""
        self.journal.close(drain=False)
        return Node(self.store, self.token + 1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Give a node on an empty SQLite file."""
    server = SqliteServer(tmp_path)
    store = SqlJournalStore(server.settings(server.create_database()))
    yield Node(store, 2)
    store.close()


def numbered(first: int, last: int) -> list[str]:
    """Return the texts ``first`` to ``last``."""
    return [str(number) for number in range(first, last + 1)]


def test_a_backlog_is_consumed_in_order_across_windows_and_nodes(node: Node) -> None:
    """What one node acknowledged does not come back; the rest comes in order, flagged."""
    node.send(QUEUE, *numbered(1, 2_500))
    first = node.consume(QUEUE, prefetch=20, count=20)
    for number in range(1, 1_301):
        node.wait(first, number)
        first.end.acknowledge((first.received[number - 1],), None)
    node.store.settle(node.journal)
    assert first.texts == numbered(1, len(first.texts))
    successor = node.die()
    successor.send(QUEUE, "new")
    second = successor.consume(QUEUE, prefetch=0, count=1_201)
    assert second.texts == [*numbered(1_301, 2_500), "new"]
    assert [one.redelivered for one in second.received] == [True] * 1_200 + [False]


def test_a_transaction_is_there_whole_or_not_at_all(node: Node) -> None:
    """Sends to several queues and an acknowledgement are one commit."""
    node.send(QUEUE, "order")
    consumer = node.consume(QUEUE, prefetch=1, count=1)
    consumer.end.set_aside(consumer.received)
    work = TransactionWork(
        [("/topic/prices", message("price")), ("/queue/answers", message("answer"))],
        {consumer.end: list(consumer.received)},
    )
    committed: list[int] = []
    list(node.broker.commit(ANYONE, work, lambda: committed.append(1)))
    node.store.loop.run_until(lambda: committed, "the commit")
    successor = node.die()
    for queue, text in (("asia", "price"), ("europe", "price"), ("answers", "answer")):
        assert successor.consume(f"/queue/{queue}", prefetch=1, count=1).texts == [text]
    successor.broker.count_backlogs()
    orders = successor.broker.queues()["orders"]
    successor.store.loop.run_until(lambda: orders.is_counted, "the count")
    assert successor.broker.depths()["orders"] == 0


def test_a_message_of_several_queues_leaves_no_row_behind(node: Node) -> None:
    """Once each queue has acknowledged it, its shared body is gone too."""
    node.send("/topic/prices", *numbered(1, 120))
    node = node.die()
    for queue in ("asia", "europe"):
        consumer = node.consume(f"/queue/{queue}", prefetch=0, count=120)
        assert consumer.texts == numbered(1, 120)
        assert len(node.store.rows()) == (360 if queue == "asia" else 240)
        consumer.end.acknowledge(consumer.received, None)
        node.store.settle(node.journal)
    assert node.store.rows() == {}


def test_a_node_whose_fence_is_passed_delivers_and_confirms_nothing(node: Node) -> None:
    """Its journal fails; what it was sent is nowhere, and what it had is its successor's."""
    node.send(QUEUE, "stored")
    consumer = node.consume("/queue/late", prefetch=1, count=0)
    successor = Node(node.store, node.token + 1)
    told: list[int] = []
    node.broker.send(ANYONE, "/queue/late", message("late"), lambda: told.append(1))
    node.store.loop.run_until(lambda: node.store.failures, "the fence refused")
    assert (told, consumer.texts) == ([], [])
    assert successor.consume(QUEUE, prefetch=1, count=1).texts == ["stored"]
