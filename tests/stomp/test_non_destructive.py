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
    assert core.broker.parts.factory.services.budget.used == 0


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
