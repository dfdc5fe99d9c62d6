"""Addresses and their queues: which queue a destination means, and what clients can make."""

from dataclasses import replace

import pytest

from broker.api import DestinationRefused
from broker.core import addresses as addresses_module
from broker.core.destinations import MAX_NAME_LENGTH, Destination, parse
from config.settings import AddressConfiguration, QueueSettings, RoutingType
from tests.core.support import SETTINGS, CoreUnderTest

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
CONFIGURED = replace(
    SETTINGS,
    addresses=(
        AddressConfiguration(
            "orders",
            frozenset({ANYCAST}),
            (QueueSettings("orders.eu", ANYCAST), QueueSettings("orders.us", ANYCAST)),
        ),
        AddressConfiguration("prices", frozenset({MULTICAST}), (QueueSettings("asia", MULTICAST),)),
    ),
)


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("/queue/a", Destination("a", ANYCAST)),
        ("/topic/a", Destination("a", MULTICAST)),
        ("a", Destination("a", None)),
        ("/queue/a/b", Destination("a/b", ANYCAST)),
        ("/queue//topic/a", Destination("/topic/a", ANYCAST)),
        ("/queues/a", Destination("/queues/a", None)),
        ("/queue/größe 2", Destination("größe 2", ANYCAST)),
        ("/topic/" + "x" * MAX_NAME_LENGTH, Destination("x" * MAX_NAME_LENGTH, MULTICAST)),
    ],
)
def test_a_destination_is_a_kind_and_a_name(text: str, destination: Destination) -> None:
    """Only the two prefixes mean something; the rest is the name."""
    assert parse(text) == destination


def test_a_queue_is_consumed_by_its_own_name() -> None:
    """A configured queue may be named otherwise than its address; no second one is made for it."""
    core = CoreUnderTest(CONFIGURED)
    core.send("/queue/orders", "1", "2", "3", "4")
    europe, america = core.consume("/queue/orders.eu"), core.consume("/queue/orders.us")
    assert sorted(europe.texts + america.texts) == ["1", "2", "3", "4"]
    assert len(europe.texts) == len(america.texts) == 2
    assert set(core.broker.queues()) == {"orders.eu", "orders.us", "asia"}
    assert len(core.takeover(CONFIGURED).journal.bindings) == 3


def test_a_queue_of_a_multicast_address_is_consumed_by_its_name() -> None:
    """It holds what was sent to the topic while nobody consumed."""
    core = CoreUnderTest(CONFIGURED)
    core.send("/topic/prices", "a")
    core = core.takeover(CONFIGURED)
    assert core.consume("/queue/asia").texts == ["a"]


def test_sending_to_a_queue_of_another_address_is_refused() -> None:
    """The refusal names the address to send to, and consuming by that name still works."""
    core = CoreUnderTest(CONFIGURED)
    with pytest.raises(DestinationRefused, match=r"'orders\.eu' belongs to address 'orders'"):
        core.send("/queue/orders.eu", "a")
    core.send("orders", "a", "b")
    assert len(core.consume("orders.eu").texts) == 1


def test_a_topics_subscriber_hears_a_message_after_its_queues_have_it() -> None:
    """An address with a queue and a subscriber: nobody gets what is not stored."""
    core = CoreUnderTest(CONFIGURED)
    core.settle()
    core.journal.auto_commit = False
    subscriber = core.consume("/topic/prices")
    core.send("/topic/prices", "a")
    assert subscriber.texts == []
    core.journal.commit()
    core.settle()
    assert subscriber.texts == ["a"]
    assert core.broker.depths()["asia"] == 1


def test_addresses_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that names ever new topics fills no memory; what is used or configured stays."""
    monkeypatch.setattr(addresses_module, "MIN_SWEEP", 20)
    empty = AddressConfiguration("empty", frozenset({MULTICAST}))
    core = CoreUnderTest(replace(CONFIGURED, addresses=(*CONFIGURED.addresses, empty)))
    subscriber = core.consume("/topic/kept")
    for number in range(500):
        core.send(f"/topic/{number}", "a")
        core.consume(f"/topic/left.{number}").end.close()
    addresses = core.broker._addresses._addresses
    assert len(addresses) <= 50
    assert {"orders", "prices", "empty", "kept"} <= set(addresses)
    core.send("/topic/kept", "b")
    assert subscriber.texts == ["b"]
