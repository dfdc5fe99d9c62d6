"""What a client may still say of messages that its application acknowledged in the database."""

import pytest

from tests.core.support import CoreUnderTest
from tests.stomp.support import Client, acknowledge, bodies, fill

QUEUE = "orders"


def settle(core: CoreUnderTest, *texts: str) -> None:
    """Have the core hear of a commit that acknowledges messages."""
    (subscription,) = core.broker.queues()[QUEUE].subscriptions
    subscription.settle_delivered(
        {one.seq for one in subscription.held() if one.record.body.decode() in texts}
    )


@pytest.mark.parametrize(
    ("version", "command"),
    [("1.0", "ACK"), ("1.1", "ACK"), ("1.1", "NACK"), ("1.2", "ACK"), ("1.2", "NACK")],
)
def test_an_answer_to_a_settled_message_changes_nothing(version: str, command: str) -> None:
    """Neither is it an error, nor does the message come back; its credit is back already."""
    core = CoreUnderTest()
    fill(core, *"abc")
    client = Client(core, version)
    frames = client.subscribe(**{"prefetch-count": "2"})
    assert bodies(frames) == ["a", "b"]
    settle(core, "a")
    assert bodies(client.frames()) == ["c"]
    acknowledge(client, frames[0], command, receipt="again")
    assert client.commands() == ["RECEIPT"]
    assert core.broker.queues()[QUEUE].depth == 2


def test_a_cumulative_answer_may_name_a_settled_message() -> None:
    """It means what was delivered before it, too, and nothing that came later."""
    core = CoreUnderTest()
    fill(core, *"abcd")
    client = Client(core)
    frames = client.subscribe("client")
    settle(core, "b", "c")
    acknowledge(client, frames[1], receipt="up to b")
    assert client.commands() == ["RECEIPT"]
    assert core.broker.queues()[QUEUE].depth == 1, "a is acknowledged by it, d is not"
    acknowledge(client, frames[3], receipt="up to d")
    assert client.commands() == ["RECEIPT"]
    assert core.broker.queues()[QUEUE].depth == 0


def test_what_was_never_delivered_is_still_an_error() -> None:
    """Only what an application may have acknowledged is passed over."""
    core = CoreUnderTest()
    fill(core, *"ab")
    client = Client(core)
    frames = client.subscribe()
    settle(core, "a")
    (subscription,) = core.broker.queues()[QUEUE].subscriptions
    assert subscription.delivering == 1
    client.send("ACK", id=(frames[1].get(b"ack") or "").replace("-", "-9"))
    assert "is not waiting for an acknowledgement" in client.error()
