"""Non-destructive queues on the journals there are, read by windows, replaced and taken over."""

from dataclasses import replace

import pytest

from orthia.broker.core.queue import showing
from orthia.config.address_settings import AddressSettings
from orthia.config.settings import Settings
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS, message
from tests.journal.conftest import store as store
from tests.journal.support import JournalStore


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have queues be of several windows."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 30)


def _options(*, is_last_value: bool) -> Settings:
    setting = AddressSettings(
        "#", default_non_destructive=True, default_last_value_queue=is_last_value
    )
    return replace(SETTINGS, address_settings=(setting,))


def _send(node: StoredNode, *texts: str) -> None:
    """Send messages, of which the first letter is the value; every second one need not be kept."""
    node.send_all(
        [
            message(
                text,
                headers=f"_AMQ_LVQ_NAME:{text[0]}\n".encode(),
                persistent=bool(index % 2),
            )
            for index, text in enumerate(texts)
        ]
    )


def test_each_consumer_sees_all_also_after_a_takeover(store: JournalStore) -> None:
    """Whatever was acknowledged; what comes meanwhile is in its place."""
    node = StoredNode(store, 2, _options(is_last_value=False), "news")
    texts = [str(number) for number in range(100)]
    _send(node, *texts)
    auto, slow = node.consume(100, auto=True), node.consume(5, prefetch=5)
    assert auto.texts == texts
    node.acknowledge(slow, *texts[:5])
    _send(node, "new")
    node.wait_for(auto, 101)
    slow.auto = True
    node.acknowledge(slow, *texts[5:10])
    node.wait_for(slow, 101)
    assert auto.texts == slow.texts == node.stored() == [*texts, "new"]
    node = node.take_over()
    _send(node, "newer")
    again = node.consume(102, prefetch=7, auto=True)
    assert again.texts == node.stored() == [*texts, "new", "newer"]
    assert node.broker.depths()["news"] == 102
    assert not any(one.redelivered for one in again.received)


def test_the_newest_of_each_value_is_there_for_everybody(store: JournalStore) -> None:
    """A table of values: acknowledged, replaced, and taken over."""
    node = StoredNode(store, 2, _options(is_last_value=True), "prices")
    _send(node, *(f"{'abcdefgh'[n % 8]}{n}" for n in range(200)))
    newest = [f"{'abcdefgh'[n % 8]}{n}" for n in range(192, 200)]
    consumer = node.consume(8, auto=True)
    assert consumer.texts == newest
    _send(node, "c200")
    node.wait_for(consumer, 9)
    newest = [*newest[:2], *newest[3:], "c200"]
    assert node.stored() == node.consume(8).texts == newest
    node = node.take_over()
    _send(node, "a201")
    newest = [*newest[1:], "a201"]
    assert node.consume(8, auto=True).texts == node.stored() == newest
    assert node.broker.depths()["prices"] == 8
