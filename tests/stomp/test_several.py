"""Destinations that name several, as in Classic."""

from pathlib import Path

import pytest

from tests.core.support import CoreUnderTest
from tests.stomp.support import Client, acknowledge, bodies
from tests.stomp.test_large_messages import LONG, Node
from tests.stomp.test_large_messages import Client as LargeClient

BOTH = "/queue/a,/topic/b"


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_message_goes_to_all(*, in_transaction: bool) -> None:
    """In one unit, with one RECEIPT."""
    core = CoreUnderTest()
    subscriber = core.consume("/topic/b")
    client = Client(core)
    transaction = {"transaction": "t"} if in_transaction else {}
    client.send("BEGIN", transaction="t")
    destination = f"{BOTH},/queue/c,/temp-queue/own"
    client.send("SEND", "1", destination=destination, receipt="r", x="y", **transaction)
    client.send("COMMIT", transaction="t")
    assert client.commands() == ["RECEIPT"]
    assert subscriber.texts == ["1"]
    for name in ("a", "c"):
        (reference,) = core.consume(f"/queue/{name}").received
        assert (reference.record.address, reference.record.head) == (name, b"x:y\n")
    client.send("SUBSCRIBE", destination="/temp-queue/own", id="s")
    assert bodies(client.frames()) == ["1"]


def test_all_or_none() -> None:
    """Where one of them is refused, none gets it."""
    core = CoreUnderTest()
    core.send("/topic/x::b", "1")
    client = Client(core)
    client.send("SEND", "2", destination="/queue/a,/queue/b")
    assert "queue 'b' belongs to address 'x'" in client.error()
    assert core.consume("/queue/a").texts == []


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
def test_a_frame_names_few(command: str) -> None:
    """A header has room for thousands, for which all would be done in one piece."""
    core = CoreUnderTest()
    client = Client(core)
    client.send(command, destination=",".join(f"/queue/{n}" for n in range(64)), id="s")
    assert len(core.broker.queues()) == 64
    client.send(command, destination=",".join(f"/queue/{n}" for n in range(65)), id="t")
    assert "names 64 destinations at most, and this 65" in client.error()
    assert len(core.broker.queues()) == 64


def test_a_comma_alone_is_part_of_a_name() -> None:
    """As in Artemis."""
    core = CoreUnderTest()
    for destination in ("/queue/a,b", "c,d", "/queue/e,/f"):
        Client(core).send("SEND", "1", destination=destination)
    assert sorted(core.broker.queues()) == ["a,b", "c,d", "e,/f"]


def test_a_large_message_goes_to_one(tmp_path: Path) -> None:
    """Its body is stored for one message."""
    node = Node(tmp_path)
    client = LargeClient(node)
    client.session.receive(
        f"SEND\ndestination:{BOTH}\ncontent-length:{len(LONG)}\n\n{LONG}\0".encode()
    )
    assert b"a large message goes to one destination" in client.next("ERROR").body
    node.wait_no_bodies()
    node.store.close()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
def test_a_subscription_gets_all(version: str, ack: str) -> None:
    """Each MESSAGE with its destination; what is acknowledged is gone, what is not comes back."""
    core = CoreUnderTest()
    client = Client(core, version)
    destination = f"{BOTH},/queue/c"
    client.send("SUBSCRIBE", destination=destination, id="s", ack=ack)
    core.send("/queue/a", "1")
    core.send("/topic/b", "2")
    core.send("/queue/c", "3", "4")
    frames = client.frames()
    assert [(one.get(b"destination"), one.body) for one in frames] == [
        ("/queue/a", b"1"),
        ("/topic/b", b"2"),
        ("/queue/c", b"3"),
        ("/queue/c", b"4"),
    ]
    left = {"auto": [], "client": ["4"], "client-individual": ["1", "4"]}[ack]
    if ack == "client-individual":
        acknowledge(client, frames[1])
    if ack != "auto":
        acknowledge(client, frames[2], receipt="r")
        assert client.commands() == ["RECEIPT"]
    client.session.connection_lost()
    back = [*core.consume("/queue/a").texts, *core.consume("/queue/c").texts]
    assert back == left


def test_answers_in_a_transaction() -> None:
    """ABORT puts them back, COMMIT does them together, NACK delivers again."""
    core = CoreUnderTest()
    client = Client(core)
    client.send("SUBSCRIBE", destination="/queue/a,/queue/b", id="s", ack="client-individual")
    core.send("/queue/a", "1")
    core.send("/queue/b", "2", "3")
    first, second, third = client.frames()
    for end in ("ABORT", "COMMIT"):
        client.send("BEGIN", transaction="t")
        acknowledge(client, first, transaction="t")
        acknowledge(client, second, transaction="t")
        acknowledge(client, third, "NACK", transaction="t")
        client.send(end, transaction="t", receipt=end)
        frames = client.frames()
        assert [one.get(b"receipt-id") for one in frames if one.command == "RECEIPT"] == [end]
    assert bodies(frames) == ["3"]
    client.send("UNSUBSCRIBE", id="s")
    assert core.consume("/queue/a").texts == []
    assert core.consume("/queue/b").texts == ["3"]


def test_a_subscription_that_is_refused_leaves_nothing() -> None:
    """The consumers that were made before are gone."""
    core = CoreUnderTest()
    core.send("/topic/x::b", "1")
    client = Client(core)
    client.send("SUBSCRIBE", destination="/queue/a,/topic/c,x::y", id="literal")
    client.send("SUBSCRIBE", destination="/queue/a,/queue/x::b", id="s")
    assert "is MULTICAST; ANYCAST was asked for" in client.error()
    assert core.broker.queues()["a"].consumers == 0


def test_two_subscriptions_to_one_topic_have_ids_of_their_own() -> None:
    """Each gets a copy, with its own subscription and ack ids."""
    core = CoreUnderTest()
    client = Client(core)
    for ident in ("1", "2"):
        client.send("SUBSCRIBE", destination="/topic/t", id=ident, ack="client-individual")
    core.send("/topic/t", "x")
    frames = client.frames()
    assert sorted(one.get(b"subscription") or "" for one in frames) == ["1", "2"]
    assert len({one.get(b"ack") for one in frames}) == 2
    for frame in frames:
        acknowledge(client, frame, receipt="r")
    assert client.commands() == ["RECEIPT", "RECEIPT"]


@pytest.mark.parametrize("destination", ["/queue/a", "/queue/a,/queue/b"])
def test_what_went_back_with_its_subscription_is_not_acknowledged(destination: str) -> None:
    """The COMMIT is refused by name, for several destinations as for one; it is delivered again."""
    core = CoreUnderTest()
    core.send("/queue/a", "1")
    client = Client(core)
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client-individual")
    (message,) = client.frames()
    client.send("BEGIN", transaction="t")
    acknowledge(client, message, transaction="t")
    client.send("UNSUBSCRIBE", id="s")
    client.send("COMMIT", transaction="t", receipt="r")
    assert "acknowledges messages of a subscription that was closed" in client.error()
    assert core.consume("/queue/a").texts == ["1"]
