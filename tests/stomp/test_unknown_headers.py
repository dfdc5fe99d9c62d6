"""Headers that nobody knows, of frames that ask for something: the log of the node names them."""

import logging

import pytest

from orthia.broker.protocols.stomp.unknown_headers import UnknownHeaders
from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client, fill


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Give what the log has of warnings."""
    caplog.set_level(logging.WARNING, logger="orthia.broker")
    return caplog


def receive(client: Client, frame: str) -> None:
    """Have a client send a frame as it is written."""
    client.session.receive(frame.encode())
    client.core.settle()


def test_each_is_told_once_by_its_name(told: pytest.LogCaptureFixture) -> None:
    """And what is asked for beside it is done."""
    core = CoreUnderTest()
    fill(core, "a")
    client = Client(core, durable="true")
    subscribe = (
        f"SUBSCRIBE\nid:%s\ndestination:{QUEUE}\nack:client\nSelektor:a = 1\nfilter:b = 1\n\n\0"
    )
    receive(client, subscribe % 1)
    (frame,) = client.frames()
    receive(client, f"NACK\nid:{frame.get(b'ack')}\nrequeue:false\n\n\0")
    (frame,) = client.frames()
    assert frame.get(b"redelivered") == "true"
    receive(client, subscribe % 2)
    receive(client, "UNSUBSCRIBE\nid:1\nif-unused:true\n\n\0")
    assert not client.closed
    assert [record.getMessage().partition(", which")[0] for record in told.records] == [
        "ignoring the header 'durable' of a client's CONNECT",
        "ignoring the header 'Selektor' of a client's SUBSCRIBE",
        "ignoring the header 'filter' of a client's SUBSCRIBE",
        "ignoring the header 'requeue' of a client's NACK",
        "ignoring the header 'if-unused' of a client's UNSUBSCRIBE",
    ]
    assert "did it mean selector?" in told.records[1].getMessage()


def test_what_is_known_is_not_told(told: pytest.LogCaptureFixture) -> None:
    """Also what clients write into each frame of theirs."""
    client = Client(CoreUnderTest(), login="a", passcode="b", heart_beat="0,0", request_id="1")
    client.subscribe(receipt="r", selector="a = 1", content_type="text/plain", content_length="0")
    receive(client, f"SEND\ndestination:{QUEUE}\ncolour:red\n\n\0")
    assert not client.closed
    assert not told.records


def test_so_many_are_told_that_a_log_can_bear(told: pytest.LogCaptureFixture) -> None:
    """A client may make up any number, of any length."""
    headers = UnknownHeaders()
    headers.look("SUBSCRIBE", [b"x" * 1_000 + b"%d" % number for number in range(9)])
    assert len(told.records) == 1
    for number in range(1_000):
        headers.look("SUBSCRIBE", [b"%d" % number, b"id"])
    headers.look("CONNECT", [b"durable"])
    assert len(told.records) == 64 + 1
    assert len(max((record.getMessage() for record in told.records), key=len)) < 400
