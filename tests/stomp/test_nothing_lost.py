"""The edges of a session where a message could be lost, or a mistake end more than it should."""

from dataclasses import replace

import pytest

from orthia.config.settings import ClientLimits
from orthia.journal.memory import MemoryJournal
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import QUEUE, Client, acknowledge, bodies, fill

FEW = ClientLimits(max_unacknowledged_bytes=10_000)

# --- what an acknowledgement reaches


def test_aborts_in_any_order_keep_the_order_of_deliveries() -> None:
    """Two transactions that each took a part give it back to its place."""
    core = CoreUnderTest()
    fill(core, "a", "b", "c", "d")
    client = Client(core)
    frames = client.subscribe("client")
    for name, frame in (("t", frames[1]), ("u", frames[2])):
        client.send("BEGIN", transaction=name)
        acknowledge(client, frame, transaction=name)
    client.send("ABORT", transaction="t")
    client.send("ABORT", transaction="u")
    acknowledge(client, frames[1])
    assert core.stored_texts() == ["c", "d"]


@pytest.mark.parametrize(
    ("version", "headers", "complaint"),
    [
        ("1.0", {"message_id": "999"}, "message 999 is not waiting"),
        ("1.0", {"message_id": "abc"}, "message-id 'abc' is not one this broker gave"),
        ("1.0", {}, "ACK has no message-id header"),
        ("1.1", {"message_id": "999", "subscription": "s"}, "message 999 is not waiting"),
        ("1.1", {"message_id": "1", "subscription": "x"}, "has no subscription 'x'"),
        ("1.1", {"message_id": "1"}, "ACK has no subscription header"),
        ("1.1", {"subscription": "s"}, "ACK has no message-id header"),
        ("1.1", {"message_id": "9" * 5_000, "subscription": "s"}, "not one this broker gave"),
        ("1.2", {}, "ACK has no id header"),
        (
            "1.2",
            {"message_id": "1", "subscription": "s"},
            "ACK has no id header; expected the value of the MESSAGE's ack header",
        ),
        ("1.2", {"id": "7"}, "gave; expected the value of the MESSAGE's ack header"),
        ("1.2", {"id": "x-y"}, "not one this broker gave"),
        ("1.2", {"id": "9-1"}, "the subscription of ack id '9-1' is closed"),
        ("1.2", {"id": "1-999"}, "message 999 is not waiting for an acknowledgement"),
        ("1.2", {"id": "1-" + "9" * 5_000}, "not one this broker gave"),
        ("1.2", {"id": "9" * 5_000 + "-1"}, "not one this broker gave"),
        ("1.2", {"id": "\u0661-\u0661"}, "not one this broker gave"),
    ],
)
def test_an_ack_that_names_nothing_is_refused_in_each_version(
    version: str, headers: dict[str, str], complaint: str
) -> None:
    """What was delivered stays in the store, and goes to others."""
    core = CoreUnderTest()
    fill(core, "a")
    client = Client(core, version)
    client.subscribe("client")
    client.send("ACK", **headers)
    assert complaint in client.error()
    assert core.stored_texts() == ["a"]
    assert bodies(Client(core).subscribe()) == ["a"]


def test_a_second_ack_of_a_message_is_refused() -> None:
    """And takes no other message with it."""
    core = CoreUnderTest()
    fill(core, "a", "b")
    client = Client(core)
    frames = client.subscribe("client")
    acknowledge(client, frames[0])
    acknowledge(client, frames[0])
    assert "it was acknowledged before" in client.error()
    assert core.stored_texts() == ["b"]


@pytest.mark.parametrize("destination", [QUEUE, "/topic/t"])
def test_a_client_that_never_acknowledges_holds_a_bounded_number_of_bytes(destination: str) -> None:
    """Whatever its prefetch; each acknowledgement is room for more, and nothing is left out."""
    core = CoreUnderTest(replace(settings("orders", max_size_bytes=10_000), stomp_limits=FEW))
    client = Client(core)
    many = {"prefetch-count": "10000"}
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client", **many)
    core.send(destination, *("x" * 3_000 for number in range(30)))
    frames = client.frames()
    assert 1 <= len(frames) <= 4
    received = len(frames)
    while frames:
        acknowledge(client, frames[-1])
        core.settle()
        frames = client.frames()
        received += len(frames)
    assert received == 30
    assert core.stored_texts() == []


# --- transactions


def test_a_refused_commit_does_nothing_of_its_transaction() -> None:
    """One send that cannot be, and neither the other nor the acknowledgement is; the ERROR says so.

    The message it acknowledged goes to others.
    """
    core = CoreUnderTest(journal=MemoryJournal(max_record_bytes=1_000))
    fill(core, "a")
    client = Client(core)
    (frame,) = client.subscribe()
    client.send("BEGIN", transaction="t")
    acknowledge(client, frame, transaction="t")
    client.send("SEND", "good", destination="/queue/good", transaction="t")
    client.send("SEND", "x" * 2_000, destination="/queue/good", transaction="t")
    client.send("COMMIT", transaction="t", receipt="r")
    refusal = client.read()
    assert refusal.command == "ERROR"
    assert refusal.get(b"receipt-id") == "r"
    assert b"1000" in refusal.body
    assert core.stored_texts() == ["a"]
    assert bodies(Client(core).subscribe()) == ["a"]


# --- the end of a connection


def test_nothing_is_delivered_while_disconnecting() -> None:
    """With ack auto a delivery would delete what the client does not read any more."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    client.subscribe("auto")
    client.send("SEND", "a", destination=QUEUE)
    client.send("DISCONNECT", receipt="bye")
    core.journal.commit()
    core.settle()
    assert client.commands() == ["RECEIPT"]
    assert core.stored_texts() == ["a"]


def test_what_goes_back_does_not_come_to_another_subscription_of_the_same_end() -> None:
    """A connection that ends is no consumer, whichever of its subscriptions is closed first."""
    for how in ("DISCONNECT", "NONSENSE"):
        core = CoreUnderTest()
        fill(core, "a", "b")
        client = Client(core)
        client.subscribe("client", prefetch_count="2")
        client.send("SUBSCRIBE", destination=QUEUE, id="greedy", ack="auto")
        client.send(how)
        assert core.stored_texts() == ["a", "b"]


def test_heart_beats_go_on_while_disconnecting() -> None:
    """A slow store is no reason for the client to think that the broker is gone."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core, heart_beat="0,1000")
    client.send("SEND", "a", destination=QUEUE)
    client.send("DISCONNECT", receipt="bye")
    client.session.tick(1.0)
    assert client.written == b"\n"


def test_a_disconnect_without_receipt_still_closes() -> None:
    """Once all before it is stored; its open transactions are dropped."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    client.send("BEGIN", transaction="t")
    client.send("SEND", "dropped", destination=QUEUE, transaction="t")
    client.send("SEND", "kept", destination=QUEUE)
    client.send("DISCONNECT")
    assert not client.session.is_closed
    core.journal.commit()
    core.settle()
    assert client.closed
    assert client.frames() == []
    assert core.stored_texts() == ["kept"]


def test_connections_end_quietly_on_a_closed_journal() -> None:
    """A node that is ending closes its journal first: what is unacknowledged stays in its store.

    Whatever gives a message back, moves it or reads the queue on must bear that.
    """
    core = CoreUnderTest(settings("orders", max_size_bytes=2_000, max_delivery_attempts=1))
    fill(core, *("x" * 900 for _ in range(5)))
    client, other = Client(core), Client(core)
    client.subscribe("client", prefetch_count="1")
    client.send("SUBSCRIBE", destination="/queue/second", id="second")
    other.subscribe("auto")
    left = len(core.successor_store().messages)
    other.session.set_writable(writable=False)
    fill(core, *("z" * 900 for _ in range(5)))
    core.journal.close(drain=False)
    client.session.connection_lost()
    other.session.set_writable(writable=True)
    other.session.connection_lost()
    assert len(core.successor_store().messages) == left + 5
    assert all(not queue.consumers for queue in core.broker.queues().values())


# --- errors


def test_an_error_names_the_receipt_as_the_client_wrote_it() -> None:
    """Unescaped once and escaped once: a client finds the frame it belongs to."""
    client = Client(CoreUnderTest())
    client.send("ABORT", transaction="t", receipt="a\\cb\\\\c")
    frame = client.read()
    assert frame.raw[b"receipt-id"] == b"a\\cb\\\\c"
    assert frame.get(b"receipt-id") == "a:b\\c"


def test_a_client_without_a_common_version_learns_them() -> None:
    """In the version header, as the specification has it; a connected client is not told."""
    client = Client(CoreUnderTest(), None)
    client.send("CONNECT", accept_version="2.1")
    frame = client.read()
    assert frame.get(b"version") == "1.0,1.1,1.2"
    assert b"supported 1.0, 1.1, 1.2" in frame.body
    client = Client(CoreUnderTest())
    client.send("NONSENSE")
    assert client.read().get(b"version") is None


def test_a_send_at_a_node_whose_journal_is_closed_gets_no_receipt() -> None:
    """The connection ends, as it does when the node is killed: the client sends it again."""
    core = CoreUnderTest()
    client = Client(core)
    core.journal.close(drain=False)
    client.send("SEND", "a", destination=QUEUE, receipt="r")
    assert client.commands() == []
    assert client.closed


def test_frames_before_a_malformed_one_count() -> None:
    """They were whole; the malformed one and what follows it do not."""
    core = CoreUnderTest()
    client = Client(core)
    send = b"SEND\ndestination:/queue/orders\n"
    client.session.receive(send + b"\na\0" + send + b"no colon\n\nb\0" + send + b"\nc\0")
    core.settle()
    assert "has no colon" in client.error()
    assert core.stored_texts() == ["a"]


# --- what the receipt of a SUBSCRIBE means

SUBSCRIBES = {
    "a durable subscription": {
        "destination": "/topic/news",
        "durable_subscription_name": "desk",
    },
    "a queue of a topic": {"destination": "/topic/news::desk"},
    "a queue": {"destination": "/queue/new"},
    "several": {"destination": "/queue/new,/queue/other"},
}


@pytest.mark.parametrize("headers", SUBSCRIBES.values(), ids=SUBSCRIBES)
def test_the_receipt_of_a_subscribe_means_that_its_queue_is_stored(headers: dict[str, str]) -> None:
    """A node that ends before leaves nothing, and has said nothing."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core, client_id="c")
    client.send("SUBSCRIBE", id="s", receipt="r", **headers)
    assert client.commands() == []
    assert core.journal.store.bindings == {}
    another = Client(core, client_id="d")
    another.send("SUBSCRIBE", id="s", destination=headers["destination"].split(",")[0], receipt="r")
    core.journal.commit()
    core.settle()
    assert client.commands() == ["RECEIPT"]
    assert another.commands() == ["RECEIPT"]
    assert core.journal.store.bindings
    another.send("SUBSCRIBE", id="t", receipt="s", destination=headers["destination"])
    assert another.commands() == ["RECEIPT"], "what is there is not waited for"


def test_a_disconnect_waits_for_the_queue_of_a_subscribe() -> None:
    """Its RECEIPT says that all before it is done."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core, client_id="c")
    client.send("SUBSCRIBE", id="s", **SUBSCRIBES["a durable subscription"])
    client.send("DISCONNECT", receipt="end")
    assert client.commands() == []
    core.journal.commit()
    core.settle()
    assert client.commands() == ["RECEIPT"]
