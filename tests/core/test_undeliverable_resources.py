"""A queue of dead letters, and one of what expired, for each address: Artemis' resources."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.errors import DestinationRefused, LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.encoding import headers_map
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import ClientLimits, Settings
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, declared

_ON: dict[str, Any] = {
    "auto_create_dead_letter_resources": True,
    "auto_create_expiry_resources": True,
    "max_delivery_attempts": 1,
}


def _with(*more: AddressSettings, **options: Any) -> Settings:
    """Return settings of all addresses, and of some more."""
    return replace(SETTINGS, address_settings=(AddressSettings("#", **{**_ON, **options}), *more))


def _reject(core: CoreUnderTest, destination: str, text: str) -> None:
    core.send(destination, text)
    consumer = core.consume(destination)
    consumer.reject(text)
    core.settle()
    consumer.end.close()


def test_dead_letters_of_each_address_have_a_queue_of_their_own() -> None:
    """It is of the dead-letter address, and found by its name; no other queue is made."""
    core = CoreUnderTest(_with())
    for name, text in (("a", "1"), ("b", "2"), ("a", "3")):
        _reject(core, f"/queue/{name}", text)
    queues = core.broker.queues()
    assert set(queues) == {"a", "b", "DLQ.a", "DLQ.b"}
    assert {queues[name].address for name in ("DLQ.a", "DLQ.b")} == {"DLQ"}
    assert core.consume("DLQ.a").texts == ["1", "3"]
    assert core.consume("DLQ::DLQ.b").texts == ["2"]


def test_it_does_what_its_address_says() -> None:
    """Whatever the broker makes is as what clients make there."""
    defaults: dict[str, Any] = {"default_ring_size": 2, "default_max_consumers": 1}
    core = CoreUnderTest(_with(AddressSettings("DLQ", **defaults)))
    for text in "abc":
        _reject(core, "/queue/a", text)
    assert core.consume("DLQ.a").texts == ["b", "c"]
    with pytest.raises(LimitExceeded, match="max-consumers 1"):
        core.consume("DLQ.a")


def test_what_expires_has_one_too() -> None:
    """With prefix and suffix as they are set, each from the most specific match."""
    core = CoreUnderTest(_with(AddressSettings("b", expiry_queue_suffix=".late")))
    for name in ("a", "b"):
        core.send(f"/queue/{name}", name, expires_ms=1)
        assert core.consume(f"/queue/{name}").texts == []
    assert core.consume("EXP.a").texts == ["a"]
    (late,) = core.consume("EXP.b.late").received
    assert headers_map(late.record.head)["_AMQ_ORIG_ADDRESS"] == "b"
    assert core.broker.queues()["EXP.a"].address == "ExpiryQueue"


def test_the_other_queues_of_the_address_get_it_too() -> None:
    """As in Artemis: a declared queue gets all, one with a filter what it asks for."""
    both = frozenset(RoutingType)
    filtered = QueueSettings(
        "of b", RoutingType.MULTICAST, options={"filter": "_AMQ_ORIG_QUEUE='b'"}
    )
    declared = (QueueSettings("DLQ", RoutingType.ANYCAST), filtered)
    options = replace(_with(), addresses=(AddressConfiguration("DLQ", both, declared),))
    core = CoreUnderTest(options)
    _reject(core, "/queue/a", "1")
    _reject(core, "/queue/b", "2")
    found = {name: core.consume(name).texts for name in ("DLQ.a", "DLQ.b", "of b")}
    assert found == {"DLQ.a": ["1"], "DLQ.b": ["2"], "of b": ["2"]}
    assert core.consume("/queue/DLQ").texts == ["1", "2"]
    # Their own queue is taken to be theirs after a takeover, too.
    successor = core.takeover(options)
    _reject(successor, "/queue/a", "3")
    assert "3" in successor.consume("DLQ.a").texts


def test_an_address_without_its_own_goes_past_those_of_others() -> None:
    """What nobody takes at a MULTICAST address gets a queue, and is not others'."""
    own = AddressSettings("a", auto_create_dead_letter_resources=True)
    core = CoreUnderTest(_with(own, auto_create_dead_letter_resources=False))
    _reject(core, "/queue/a", "1")
    _reject(core, "/queue/b", "2")
    assert core.consume("DLQ.a").texts == ["1"]
    assert core.consume("DLQ").texts == ["2"]


@pytest.mark.parametrize("destination", ["/queue/{}", "mine::{}", "/topic/mine::{}"])
def test_no_client_makes_a_queue_of_such_a_name(destination: str) -> None:
    """Nor by a suffix: what the broker puts there would be its own."""
    core = CoreUnderTest(_with(AddressSettings("b", dead_letter_queue_suffix=".dead")))
    for name in ("DLQ.a", "EXP.a", "DLQ.b.dead"):
        with pytest.raises(DestinationRefused, match="called as those that the broker makes"):
            core.consume(destination.format(name))
    core.consume(destination.format("DLQ."))  # of no address
    off = CoreUnderTest()
    off.consume(destination.format("DLQ.a"))


def test_a_queue_that_a_client_made_before_gets_none_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was made when no such queues were: the message goes where it went before. It is told."""
    before = CoreUnderTest()
    before.consume("mine::DLQ.a")
    core = before.takeover(_with())
    _reject(core, "/queue/a", "1")
    _reject(core, "/queue/a", "2")
    assert core.consume("mine::DLQ.a").texts == []
    assert core.consume("/queue/DLQ").texts == ["1", "2"]
    assert caplog.text.count("'DLQ.a' of address 'mine' that was not created for that") == 1


def test_they_count_as_queues_of_whoever_made_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """No client fills the node with them; beyond the limit one queue has what is left."""
    configured = declared("DLQ", "DLQ")
    limits = ClientLimits(max_queues=4)
    core = CoreUnderTest(replace(_with(), stomp_limits=limits, addresses=(configured,)))
    _reject(core, "/queue/a", "1")
    _reject(core, "/queue/b", "2")
    _reject(core, "/queue/b", "3")
    assert set(core.broker.queues()) == {"DLQ", "a", "DLQ.a", "b"}
    assert core.consume("/queue/DLQ").texts == ["1", "2", "3"]
    assert caplog.text.count("max-queues 4 already: 'DLQ.b' is one more") == 1


def test_a_temporary_queue_has_none() -> None:
    """It is gone with its connection, and its dead letters' queue would not be."""
    core = CoreUnderTest(_with())
    client = Principal("t", frozenset(), unrestricted=True)
    name = core.broker.create_temporary(client, RoutingType.ANYCAST, "t")
    core.send(name, "late", expires_ms=1)
    consumer = FakeConsumer()
    core.broker.subscribe(client, name, consumer, prefetch=1).resume()
    core.settle()
    assert core.consume("/queue/ExpiryQueue").texts == ["late"]
    assert not any(one.startswith("EXP.") for one in core.broker.queues())
