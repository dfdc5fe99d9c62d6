"""SEND with a group."""

import pytest

from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client, bodies


@pytest.mark.parametrize("header", ["JMSXGroupID", "_AMQ_GROUP_ID"])
def test_a_group_goes_to_one_subscription_with_its_headers(header: str) -> None:
    """Another connection's subscription gets the other group."""
    core = CoreUnderTest()
    clients = [Client(core), Client(core)]
    for one in clients:
        one.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client-individual")
    sender = Client(core)
    for number in range(6):
        group = "ab"[number % 2]
        sender.say("SEND", {"destination": QUEUE, header: group}, f"{group}{number}")
    received = [one.frames() for one in clients]
    assert [bodies(frames) for frames in received] == [["a0", "a2", "a4"], ["b1", "b3", "b5"]]
    assert {frame.get(header.encode()) for frame in received[0]} == {"a"}
