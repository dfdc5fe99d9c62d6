"""A non-destructive queue, as STOMP clients see it."""

from dataclasses import replace

import pytest

from orthia.config.address_settings import AddressSettings
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.support import QUEUE, Client, acknowledge, bodies, fill

SHOWN = replace(SETTINGS, address_settings=(AddressSettings("#", default_non_destructive=True),))


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
def test_every_ack_mode_leaves_all_where_it_is(version: str, ack: str) -> None:
    """Each client sees all; so does the same one when it subscribes again, or was lost."""
    core = CoreUnderTest(SHOWN)
    fill(core, "1", "2", "3")
    for _ in range(2):
        client = Client(core, version)
        for _ in range(2):
            client.send("SUBSCRIBE", destination=QUEUE, id="s", ack=ack)
            frames = client.frames()
            assert bodies(frames) == ["1", "2", "3"]
            assert {frame.get(b"redelivered") for frame in frames} == {"false"}
            if ack != "auto":
                acknowledge(client, frames[1])
            client.send("UNSUBSCRIBE", id="s", destination=QUEUE)
        client.session.connection_lost()
    assert core.broker.depths() == {"orders": 3}
    assert core.broker.parts.factory.budget.used == 0


@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
def test_a_transaction_acknowledges_and_nothing_goes(end: str) -> None:
    """Nor with NACK; what it sends comes with its COMMIT."""
    core = CoreUnderTest(SHOWN)
    fill(core, "1", "2")
    client = Client(core)
    client.send(
        "SUBSCRIBE",
        destination=QUEUE,
        id="s",
        ack="client-individual",
        **{"prefetch-count": "2"},
    )
    first, second = client.frames()
    client.send("BEGIN", transaction="t")
    client.send("SEND", "3", destination=QUEUE, transaction="t")
    acknowledge(client, first, transaction="t")
    acknowledge(client, second, "NACK", transaction="t")
    client.send(end, transaction="t", receipt="r")
    core.settle()
    frames = client.frames()
    is_committed = end == "COMMIT"
    assert sorted(frame.command for frame in frames) == ["MESSAGE", "RECEIPT"][1 - is_committed :]
    other = Client(core)
    other.send("SUBSCRIBE", destination=QUEUE, id="s")
    assert bodies(other.frames()) == ["1", "2", "3"][: 2 + is_committed]


def test_a_nack_is_no_attempt() -> None:
    """However often a message is not liked, it stays, and is no dead letter."""
    core = CoreUnderTest(SHOWN)
    fill(core, "1", "2")
    client = Client(core)
    for number in range(12):
        client.send(
            "SUBSCRIBE",
            destination=QUEUE,
            id=str(number),
            ack="client-individual",
            **{"prefetch-count": "1"},
        )
        (frame,) = client.frames()
        acknowledge(client, frame, "NACK")
        assert bodies(client.frames()) == ["2"]
        client.send("UNSUBSCRIBE", id=str(number))
    assert core.broker.depths() == {"orders": 2}


def test_what_is_urgent_is_seen_first() -> None:
    """By consumers as by browsers."""
    core = CoreUnderTest(SHOWN)
    fill(core, "1")
    client = Client(core)
    client.send("SEND", "urgent", destination=QUEUE, priority="9")
    core.settle()
    for headers in ({}, {"browser": "true"}):
        client.send("SUBSCRIBE", destination=QUEUE, id="s", **headers)
        assert bodies(client.frames())[:2] == ["urgent", "1"]
        client.send("UNSUBSCRIBE", id="s")


@pytest.mark.parametrize("again", [QUEUE, f"{QUEUE}::orders"])
def test_a_subscription_that_names_it_twice_is_not_held_up(again: str) -> None:
    """No two MESSAGEs have one ack id: what a client acknowledged would be waited for."""
    core = CoreUnderTest(SHOWN)
    fill(core, "1", "2", "3", "4", "5")
    client = Client(core)
    client.send(
        "SUBSCRIBE",
        destination=f"{QUEUE},{again}",
        id="s",
        ack="client-individual",
        **{"prefetch-count": "2"},
    )
    shown = client.frames()
    for frame in shown:  # to which more are added
        acknowledge(client, frame)
        shown += client.frames()
    assert sorted(bodies(shown)) == ["1", "2", "3", "4", "5"]
