"""What a client can have the broker do by a SEND to the management address."""

from typing import Any

import pytest

from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client

REQUEST = {
    "destination": "activemq.management",
    "_AMQ_ResourceName": "broker",
    "_AMQ_OperationName": "destroyQueue",
}


def request(client: Client, body: str, **headers: Any) -> None:
    """Send a management request."""
    lines = "".join(f"{name}:{value}\n" for name, value in (REQUEST | headers).items() if value)
    client.session.receive(f"SEND\n{lines}\n{body}\0".encode())
    client.core.settle()


@pytest.mark.parametrize("destination", ["activemq.management", "/queue/activemq.management"])
def test_a_receipt_says_how_many_messages_went(destination: str) -> None:
    """Once all is done; what the client does next is not concerned."""
    client = Client(CoreUnderTest())
    client.core.send(QUEUE, "a", "b")
    request(client, '["orders", true]', receipt="r", destination=destination)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("RECEIPT", "r")
    assert frame.get(b"deleted-messages") == "2"
    assert not client.core.broker.queues()
    client.core.send(QUEUE, "c")
    client.core.consume(QUEUE, auto=True).end.close()
    client.core.settle()
    request(client, '["orders"]')
    assert not client.frames()
    client.send("DISCONNECT", receipt="bye")
    assert client.read().get(b"receipt-id") == "bye"
    assert not client.core.broker.queues()


@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        ('["orders"]', {}, "by force only"),
        ('["nothing"]', {}, "no queue 'nothing'"),
        ("orders", {}, "expected a JSON array"),
        ('["orders", "yes"]', {}, "expected a JSON array"),
        ('["orders", true, true]', {}, "expected a JSON array"),
        ("[" * 100_000, {}, "expected a JSON array"),
        ('["orders"]', {"_AMQ_OperationName": "createQueue"}, "no operation 'createQueue'"),
        ('["orders"]', {"_AMQ_OperationName": ""}, "_AMQ_OperationName"),
        ('["orders"]', {"reply-to": "/queue/answers"}, "not at reply-to"),
        ('["orders"]', {"transaction": "t"}, "cannot be in a transaction"),
    ],
)
def test_what_is_not_done_is_refused(body: str, headers: dict[str, str], told: str) -> None:
    """With what would be, and nothing is deleted."""
    client = Client(CoreUnderTest())
    client.core.send(QUEUE, "a")
    client.send("BEGIN", transaction="t")
    request(client, body, receipt="r", **headers)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r")
    assert told in frame.body.decode()
    assert client.core.broker.depths() == {"orders": 1}
