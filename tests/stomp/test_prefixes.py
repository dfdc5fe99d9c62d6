"""Destinations that begin with a prefix of the acceptor."""

import pytest

from orthia.broker.protocols.prefixes import Prefixes
from orthia.config.settings import AcceptorSettings
from tests.core.support import CoreUnderTest
from tests.stomp.support import Client

PREFIXES = Prefixes.of(
    AcceptorSettings(
        "a",
        "h",
        1,
        anycast_prefixes=("queue/", "jms.queue.", "x"),
        multicast_prefixes=("topic/", "xx"),
    )
)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("prefix", ["queue/", "jms.queue.", "/queue/"])
def test_a_prefix_makes_a_queue_of_the_rest(version: str, prefix: str) -> None:
    """Sent with one and consumed with another it is the same queue, as in Artemis.

    The consumer sees the destination it subscribed to.
    """
    core = CoreUnderTest()
    producer = Client(core, version, prefixes=PREFIXES)
    producer.send("SEND", "hello", destination=f"{prefix}orders")
    assert core.broker.depths() == {"orders": 1}
    consumer = Client(core, version, prefixes=PREFIXES)
    consumer.send("SUBSCRIBE", destination="jms.queue.orders", id="s")
    message = consumer.read()
    assert (message.body, message.get(b"destination")) == (b"hello", "jms.queue.orders")
    consumer.send("UNSUBSCRIBE", destination="jms.queue.orders", id="s")
    assert not consumer.closed


def test_a_multicast_prefix_makes_a_topic_of_the_rest() -> None:
    """Every subscriber hears it, whichever prefix it used; nothing is kept."""
    core = CoreUnderTest()
    clients = [Client(core, prefixes=PREFIXES) for _ in range(2)]
    for client, destination in zip(clients, ("topic/news", "/topic/news"), strict=True):
        client.send("SUBSCRIBE", destination=destination, id="s")
    clients[0].send("SEND", "hello", destination="topic/news")
    assert [client.read().body for client in clients] == [b"hello", b"hello"]
    assert core.broker.depths() == {}


@pytest.mark.parametrize(
    ("destination", "meant"),
    [
        ("xxa", "/topic/a"),
        ("xa", "/queue/a"),
        ("queue/", "/queue/"),
        ("plain", "plain"),
        ("/topic/a", "/topic/a"),
        ("queue/queue/a", "/queue/queue/a"),
    ],
)
def test_the_longest_prefix_counts_once(destination: str, meant: str) -> None:
    """What has none of them is as it was."""
    assert PREFIXES is not None
    assert PREFIXES.of_core(destination) == meant
