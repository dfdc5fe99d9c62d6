"""Large messages to clients of AMQP: streamed from a journal of files, a piece at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from orthia.broker.core.api import Done
from orthia.broker.protocols.amqp.frames import encode_frame
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SETTLED,
    UNSETTLED,
    Detach,
    Disposition,
    Flow,
    Transfer,
    encode_performative,
)
from orthia.journal.engine.abc import PIECE_BYTES
from tests.amqp.support import WINDOW, Client, Received
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.test_large_messages import LONG, Node
from tests.stomp.test_large_messages import Client as StompClient


class LargeNode(Node):
    """A node as clients of AMQP see a core."""

    def settle(self) -> None:
        """Run what is due."""
        self.store.loop.run_posted()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LargeNode]:
    """Give a node whose queue has a large message that came by STOMP."""
    node = LargeNode(tmp_path, SETTINGS)
    try:
        StompClient(node).send_stored(LONG, kind="x")
        yield node
    finally:
        node.store.close()


def amqp(node: LargeNode, **said: object) -> Client:
    """Return a client of AMQP."""
    return Client(cast("CoreUnderTest", node), **said)  # type: ignore[arg-type]


def next_message(node: LargeNode, client: Client) -> Received:
    """Wait for a whole message, the only one to come."""
    found: list[tuple[Transfer, bytes]] = []

    def came() -> bool:
        found.extend((said, data) for said, data in client.came() if isinstance(said, Transfer))
        return bool(found) and not found[-1][0].more

    node.wait(came, "a whole message")
    return Received(found[0][0], b"".join(data for _, data in found))


@pytest.mark.parametrize("frame_size", [1_048_576, 4_096])
def test_a_large_message_arrives_whole_and_its_body_goes_when_it_is_accepted(
    node: LargeNode, frame_size: int
) -> None:
    """In frames of the client's size, whatever the pieces of the store are."""
    client = amqp(node, max_frame_size=frame_size)
    client.receiver("orders", 1)
    message = next_message(node, client)
    assert message.text == LONG
    assert message.application_properties == {"kind": "x"}
    assert len(node.bodies) == 1
    client.settle(message)
    node.wait_no_bodies()


def test_a_large_message_that_is_sent_settled_is_gone_once_it_is_written(node: LargeNode) -> None:
    """Not before."""
    client = amqp(node)
    client.receiver("orders", 1, snd_settle_mode=SETTLED)
    assert next_message(node, client).text == LONG
    node.wait_no_bodies()


def test_a_client_that_does_not_read_holds_a_piece(node: LargeNode) -> None:
    """The next is read when it takes more."""
    client = amqp(node)
    client.flow(client.receiver("orders"), 1)
    client.connection.set_writable(writable=False)
    node.wait(lambda: client.total > PIECE_BYTES, "the first piece")
    for _ in range(20):
        node.settle()
    assert client.total < 3 * PIECE_BYTES
    client.connection.set_writable(writable=True)
    assert next_message(node, client).text == LONG


def test_a_drain_is_answered_behind_what_follows_a_large_message(node: LargeNode) -> None:
    """Not while that is written: there is more for the credit."""
    StompClient(node).send_stored("small")
    looks: list[Done] = []
    node.broker.call_later = lambda _, look: looks.append(look)
    client = amqp(node)
    receiver = client.receiver("orders")
    client.flow(receiver, 5, drain=True)
    found: list[object] = []

    def came() -> bool:
        found.extend(client.all())
        return sum(isinstance(one, Transfer) and not one.more for one in found) == 2

    node.wait(came, "both messages")
    assert {type(one) for one in found} == {Transfer}
    while looks:
        looks.pop()()
    assert client.take(Flow).drain


@pytest.mark.parametrize("mode", [UNSETTLED, SETTLED])
@pytest.mark.parametrize("how", ["detach", "lose"])
def test_a_message_that_was_being_written_comes_again(node: LargeNode, how: str, mode: int) -> None:
    """When its link or its connection ends amid its body, whoever was to settle it."""
    client = amqp(node)
    receiver = client.receiver("orders", snd_settle_mode=mode)
    client.flow(receiver, 1)
    client.connection.set_writable(writable=False)
    if how == "detach":
        client.say(Detach(receiver, closed=True))
    else:
        client.connection.connection_lost()
    other = amqp(node)
    other.receiver("orders", 1)
    message = next_message(node, other)
    assert message.text == LONG
    assert message.header.delivery_count == 1
    other.say(Disposition(RECEIVER, message.id, settled=True, state=ACCEPTED))
    node.wait_no_bodies()


def test_a_body_that_is_not_what_was_stored_is_not_delivered(node: LargeNode) -> None:
    """The delivery is aborted, and counts as an attempt that failed."""
    (stored,) = node.store.settings.large_messages_directory.rglob("*.msg")
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(data)
    client = amqp(node)
    client.receiver("orders", 1)
    found: list[Transfer] = []

    def aborted() -> bool:
        found.extend(said for said in client.all() if isinstance(said, Transfer))
        return any(one.aborted for one in found)

    node.wait(aborted, "the end of the delivery")
    assert not client.closed


def test_an_aborted_delivery_waits_for_the_window_of_its_session(node: LargeNode) -> None:
    """As every transfer; it goes back to its queue at once."""
    (stored,) = node.store.settings.large_messages_directory.rglob("*.msg")
    stored.unlink()
    client = amqp(node)
    receiver = client.receiver("orders")
    said = Flow(0, 2, 0, WINDOW, receiver, 0, 1), Flow(1, 0, 0, WINDOW)
    client.send_bytes(b"".join(encode_frame(encode_performative(one)) for one in said))
    node.wait(lambda: not client.connection.unacknowledged, "the message is given back")
    assert not client.take(Transfer).aborted
    client.say(Flow(1, 5, 0, WINDOW))
    assert client.take(Transfer).aborted
