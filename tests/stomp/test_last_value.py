"""Last values, as a STOMP client says them."""

from dataclasses import replace

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.config.address_settings import AddressSettings
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.support import Client

PRICES = "/queue/prices"


def _send(client: Client, destination: str, body: str, *headers: str) -> None:
    lines = "".join(f"{one}\n" for one in headers)
    client.session.receive(f"SEND\ndestination:{destination}\n{lines}\n{body}\0".encode())
    client.core.settle()


def _messages(client: Client) -> list[Frame]:
    return [frame for frame in client.frames() if frame.command == "MESSAGE"]


def test_the_header_says_what_a_message_replaces() -> None:
    """``_AMQ_LVQ_NAME``, or the one that the queue names; the receiver sees it."""
    own = AddressSettings("own", default_last_value_key="stock")
    every = AddressSettings("#", default_last_value_queue=True)
    core = CoreUnderTest(replace(SETTINGS, address_settings=(own, every)))
    client = Client(core)
    for body, name in (("1", "a"), ("2", "b"), ("3", "a")):
        _send(client, PRICES, body, f"_AMQ_LVQ_NAME:{name}")
        _send(client, "/queue/own", body, f"stock:{name}", "_AMQ_LVQ_NAME:x")
    for destination in (PRICES, "/queue/own"):
        client.send("SUBSCRIBE", destination=destination, id=destination)
    core.settle()
    got = _messages(client)
    assert [frame.body for frame in got] == [b"2", b"3", b"2", b"3"]
    assert [frame.get(b"_AMQ_LVQ_NAME") for frame in got] == ["b", "a", "x", "x"]
