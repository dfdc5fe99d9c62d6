"""Last values, as a STOMP client says them."""

from dataclasses import replace

from orthia.config.address_settings import AddressSettings
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.support import Client

PRICES, OWN = "/queue/prices", "/queue/own"


def test_the_header_says_what_a_message_replaces() -> None:
    """``_AMQ_LVQ_NAME``, or the one that the queue names; the receiver sees it."""
    own = AddressSettings("own", default_last_value_key="stock")
    every = AddressSettings("#", default_last_value_queue=True)
    core = CoreUnderTest(replace(SETTINGS, address_settings=(own, every)))
    client = Client(core)
    for body, name in (("1", "a"), ("2", "b"), ("3", "a")):
        client.say("SEND", {"destination": PRICES, "_AMQ_LVQ_NAME": name}, body)
        client.say("SEND", {"destination": OWN, "stock": name, "_AMQ_LVQ_NAME": "x"}, body)
    for destination in (PRICES, OWN):
        client.send("SUBSCRIBE", destination=destination, id=destination)
    got = client.frames()
    assert [frame.body for frame in got] == [b"2", b"3", b"2", b"3"]
    assert [frame.get(b"_AMQ_LVQ_NAME") for frame in got] == ["b", "a", "x", "x"]
