"""Last value queues on the journals there are, in memory, paged and taken over."""

from dataclasses import replace

import pytest

from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from tests.core.stored_node import StoredNode
from tests.core.support import ANYONE, SETTINGS, message
from tests.journal.conftest import store as store
from tests.journal.support import JournalStore

QUEUE = "/queue/prices"


def _options(most: int, *, is_last_value: bool = True) -> Settings:
    """Return settings with which so many messages of a queue are in memory."""
    setting = AddressSettings(
        "#", max_size_messages=most, default_last_value_queue=is_last_value or None
    )
    return replace(SETTINGS, address_settings=(setting,))


class Node(StoredNode):
    """A core with a queue of last values."""

    def send(self, *texts: str) -> None:
        """Send messages, of which the first letter is the value, and wait until all are stored."""
        self.send_all(
            [message(text, headers=f"_AMQ_LVQ_NAME:{text[0]}\n".encode()) for text in texts]
        )


def _node(store: JournalStore, options: Settings) -> Node:
    return Node(store, 2, options, "prices")


@pytest.mark.parametrize("most", [0, 3, -1])
def test_the_newest_of_each_value_is_kept_and_delivered(store: JournalStore, most: int) -> None:
    """In the store, too, also of what one batch stores and the next node replaces."""
    node = _node(store, _options(most))
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
    node = _node(store, _options(-1, is_last_value=False))
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
    node = _node(store, _options(0))
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
