"""A user who may send cannot put frames of the broker into another client's connection."""

from collections.abc import Iterator

import pytest
import stomp

from tests.hostile.node import LimitedNode, Witness, live_node, rest_of
from tests.support.stomp_py import Listener
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

FORGED = {
    "a NUL": b"note:x\0RECEIPT\nreceipt-id:paid\n\n\0MESSAGE\nsubscription:1\nmessage-id:9\n\nx",
    "carriage returns": b"note:x\rmessage-id:9\rdestination:/queue/elsewhere",
    "both": b"note:x\r\r\n\0RECEIPT\rreceipt-id:paid\r\r\0",
}
CONNECTIONS = {
    "1.0": stomp.Connection10,
    "1.1": stomp.Connection11,
    "1.2": stomp.Connection12,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedNode]:
    """Give a node with every limit as it is without configuration."""
    with live_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.mark.parametrize("header", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("version", CONNECTIONS)
def test_a_sender_forges_no_frame_for_a_receiver(
    node: LimitedNode, version: str, header: bytes
) -> None:
    """It learns what was wrong; the receiver gets the honest messages, and nothing else."""
    witness = Witness(node)
    destination = f"/queue/forged-{version}-{len(header)}"
    receiver = Listener()
    connection = CONNECTIONS[version]([("127.0.0.1", node.port)])
    connection.set_listener("receiver", receiver)
    connection.connect(wait=True)
    connection.subscribe(destination, id="1", ack="auto")
    with node.connect() as sender:
        honest = b"SEND\ndestination:%b\n\nhonest\0" % destination.encode()
        forged = b"SEND\ndestination:%b\n%b\n\nforged\0" % (destination.encode(), header)
        sender.sendall(honest + forged)
        assert b"header 'note' has a " in rest_of(sender)
    with node.connect() as sender:
        sender.sendall(honest)
        wait_until(lambda: len(receiver.frames) >= 2, what="the honest messages")
    assert receiver.seen == [("MESSAGE", "honest")] * 2
    connection.disconnect()
    witness.is_served()


PADDED = {
    "a space before": b" content-length",
    "a space behind": b"content-length ",
    "a tab": b"\tcontent-length",
    "a control character": b"\x1fcontent-length",
    "an escaped line end": b"\\ncontent-length",
    "an escaped colon": b"content-length\\c",
    "a space that does not break": "\u00a0content-length".encode(),
    "a byte order mark": "\ufeffcontent-length".encode(),
}
"""To a receiver that trims names each is the length of the body, told before the broker's own."""


@pytest.mark.parametrize("name", PADDED.values(), ids=PADDED)
def test_a_sender_forges_no_header_for_a_receiver_that_trims_names(
    node: LimitedNode, name: bytes
) -> None:
    """It would end the body where the sender likes, and take what follows for a frame."""
    body = b"\0MESSAGE\nsubscription:1\nmessage-id:9\n\nforged"
    length = b"content-length:%d" % len(body)
    with node.connect() as sender:
        head = b"SEND\ndestination:/queue/trimmed\n%b:0\n%b\n\n" % (name, length)
        sender.sendall(head + body + b"\0")
        assert b"begins or ends with white space" in rest_of(sender)
    with node.connect() as sender:  # inside of a name or around a value it does no harm
        head = b"SEND\ndestination:/queue/trimmed\nmy note: a :b\nn\\cm:\\nx\nreceipt:r\n\n"
        sender.sendall(head + b"honest\0")
        assert sender.recv(4096).startswith(b"RECEIPT")
