"""Last value queues on the journals there are, in memory, paged and taken over."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orthia.broker.core.broker import Broker
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from orthia.journal.windows import Window
from tests.core.support import ANYONE, SETTINGS, FakeConsumer, message
from tests.journal.conftest import store as store
from tests.journal.support import JournalStore

QUEUE = "/queue/prices"


def _options(most: int, *, is_last_value: bool = True) -> Settings:
    """Return settings with which so many messages of a queue are in memory."""
    setting = AddressSettings(
        "#", max_size_messages=most, default_last_value_queue=is_last_value or None
    )
    return replace(SETTINGS, address_settings=(setting,))


class Node:
    """A core on a store's next token."""

    def __init__(self, store: JournalStore, token: int, options: Settings) -> None:
        store.advance_fence(token)
        self.store = store
        self.token = token
        self.options = options
        self.journal = store.open(token)
        self.broker = Broker(
            options, self.journal, lease_valid=lambda: True, call_later=self._call_later
        )
        self.broker.count_backlogs()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if not seconds:
            self.store.loop.post(callback)

    def send(self, *texts: str) -> None:
        """Send messages, of which the first letter is the value, and wait until all are stored."""
        stored: list[int] = []
        for text in texts:
            sent = message(text, headers=f"_AMQ_LVQ_NAME:{text[0]}\n".encode())
            self.broker.send(ANYONE, QUEUE, sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(texts), "all are stored")

    def consume(self, count: int, *, prefetch: int = 0) -> FakeConsumer:
        """Subscribe and wait for ``count`` messages."""
        consumer = FakeConsumer()
        consumer.subscription = self.broker.subscribe(ANYONE, QUEUE, consumer, prefetch=prefetch)
        consumer.end.resume()
        self.store.loop.run_until(
            lambda: len(consumer.received) >= count, f"{count} messages received"
        )
        return consumer

    def acknowledge(self, consumer: FakeConsumer, *texts: str) -> None:
        """Acknowledge messages and wait until that is stored."""
        done: list[int] = []
        consumer.acknowledge(*texts, done=lambda: done.append(1))
        self.store.loop.run_until(lambda: bool(done), "the acknowledgement")

    def stored(self) -> list[str]:
        """Return what the store has of the queue, in order."""
        behind: list[int] = []
        self.journal.delete((), lambda: behind.append(1))
        self.store.loop.run_until(lambda: bool(behind), "what was appended before")
        found: list[Window] = []

        def read(window: object) -> None:
            assert isinstance(window, Window)
            found.append(window)

        queue = self.broker.queues()["prices"]
        up_to = self.journal.last_committed_seq
        self.journal.read_window(queue.id, 0, up_to, 10_000, 2**30, read)
        self.store.loop.run_until(lambda: bool(found), "the rows of the queue")
        return [one.record.body.decode() for one in found[0].messages]

    def take_over(self, options: Settings | None = None) -> "Node":
        """Return the next live node; of this one nothing more reaches the store."""
        self.journal.close(drain=False)
        return Node(self.store, self.token + 1, options or self.options)


@pytest.mark.parametrize("most", [0, 3, -1])
def test_the_newest_of_each_value_is_kept_and_delivered(store: JournalStore, most: int) -> None:
    """In the store, too, also of what one batch stores and the next node replaces."""
    node = Node(store, 2, _options(most))
    node.send(*(f"{'abcdefgh'[n % 8]}{n}" for n in range(400)))
    newest = [f"{'abcdefgh'[n % 8]}{n}" for n in range(392, 400)]
    assert node.stored() == newest
    assert node.broker.depths()["prices"] == 8
    node = node.take_over()
    node.send("c400", "a401")
    newest = [*newest[1:2], *newest[3:], "c400", "a401"]
    consumer = node.consume(8)
    assert consumer.texts == newest
    assert node.stored() == newest
    node.acknowledge(consumer, *newest[:5])
    node.send("c402")
    node = node.take_over()
    consumer = node.consume(3)
    # What a consumer had when its node ended is replaced as anything else.
    assert consumer.texts == ["h399", "a401", "c402"]
    node.acknowledge(consumer, *consumer.texts)
    assert node.broker.depths()["prices"] == 0
    assert node.stored() == []


def test_a_queue_that_becomes_one_of_last_values_has_the_newest_alone(store: JournalStore) -> None:
    """What is in a queue that its file makes one of last values is looked through once."""
    node = Node(store, 2, _options(-1, is_last_value=False))
    node.send(*(f"{'abc'[n % 3]}{n}" for n in range(2_500)))
    declared = AddressConfiguration(
        "prices", frozenset({RoutingType.ANYCAST}), (QueueSettings("prices", RoutingType.ANYCAST),)
    )
    node = node.take_over(replace(_options(10), addresses=(declared,)))
    node.send("b9999")
    consumer = node.consume(3)
    assert consumer.texts == ["c2498", "a2499", "b9999"]
    node.acknowledge(consumer, "a2499")
    assert node.stored() == ["c2498", "b9999"]
    assert node.broker.depths()["prices"] == 2


def test_a_duplicate_leaves_what_is_newer(store: JournalStore) -> None:
    """What it would have replaced stays in the store, where the message itself is not stored."""
    node = Node(store, 2, _options(0))
    stored: list[int] = []
    for text, known_as in (("a1", "x"), ("a2", "y"), ("a1", "x"), ("b1", "z"), ("a1", "x")):
        sent = message(text, headers=f"_AMQ_LVQ_NAME:{text[0]}\n".encode())
        sent = sent._replace(duplicate_id=known_as)
        node.broker.send(ANYONE, QUEUE, sent, lambda: stored.append(1))
    store.loop.run_until(lambda: len(stored) == 5, "all are answered")
    assert node.stored() == ["a2", "b1"]
    node = node.take_over()
    assert node.consume(2).texts == ["a2", "b1"]
    assert node.broker.depths()["prices"] == 2
