"""One client that asks for very much work at a time: the others are served all the while.

How much the node works during the longest of another client's round trips is bounded generously:
what these attacks cost before was 20 to 60 s without an answer, or the node, which did not answer
its own watchdog. It is the time of processors: a machine that stands still is no fault of the node.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orthia.config.settings import ClientLimits
from tests.hostile.node import MIB, LimitedNode, Witness, live_node, logged, pour, rest_of

pytestmark = pytest.mark.extended

LIMITS = ClientLimits()
MOST_SECONDS = 10.0
ENTRIES = LIMITS.max_transaction_entries - 10
READY = b"BEGIN\ntransaction:ready\nreceipt:ready\n\n\0"


@contextmanager
def watched(node: LimitedNode) -> Iterator[list[float]]:
    """Have another client send and receive messages one by one during the block.

    Gives how many seconds of processors the node took during each of its round trips.
    """
    witness, ended = Witness(node), threading.Event()
    trips: list[float] = []
    resident: list[int] = []
    before, logged_before = node.resident, len(node.log)

    def run() -> None:
        is_last = False
        while not is_last:
            is_last = ended.is_set()  # also what goes on after the block has a round trip
            began = node.processor_seconds
            witness.is_served()
            trips.append(node.processor_seconds - began)
            resident.append(node.resident)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield trips
    finally:
        ended.set()
        thread.join(240)
    assert not thread.is_alive(), "the witness gets no answer"
    assert max(trips) < MOST_SECONDS
    assert max(resident) - before < 128 * MIB
    assert "does not answer" not in node.log[logged_before:], "the loop's watchdog felt it"


def read_until(client: socket.socket, text: bytes) -> bytes:
    """Read until ``text`` came; return the last of what was read."""
    tail = b""
    while text not in tail:
        data: bytes = client.recv(1 << 20)
        assert data, tail
        tail = tail[-200:] + data
    return tail


def fill(node: LimitedNode, messages: int) -> None:
    """Put messages into the queue."""
    with node.connect() as client:
        client.sendall(b"SEND\ndestination:/queue/a\n\nx\0" * (messages - 1))
        client.sendall(b"SEND\ndestination:/queue/a\nreceipt:filled\n\nx\0")
        read_until(client, b"receipt-id:filled")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedNode]:
    """Give a node with every limit as it is without configuration."""
    with live_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def subscribe_to_a_topic(node: LimitedNode) -> socket.socket:
    """Return a client with as many subscriptions of one topic as it may have."""
    client = node.connect()
    frame = b"SUBSCRIBE\nid:%d\ndestination:/topic/t\n\n\0"
    client.sendall(b"".join(frame % number for number in range(LIMITS.max_subscriptions)))
    client.sendall(READY)
    read_until(client, b"receipt-id:ready")
    return client


def test_a_thousand_subscriptions_that_nobody_reads(node: LimitedNode) -> None:
    """Their client is ended once too much waits for all of them together."""
    client = subscribe_to_a_topic(node)
    sender = node.connect()
    with watched(node):
        pour(sender, b"SEND\ndestination:/topic/t\n\n" + b"x" * 900 + b"\0", 2_000)
        rest_of(client)
    logged(node, f"are more than max-behind-bytes {LIMITS.max_behind_bytes} behind")


def test_a_thousand_subscriptions_that_are_read(node: LimitedNode) -> None:
    """A message for all of them is a thousand deliveries: they are given in turn with others."""
    client = subscribe_to_a_topic(node)
    with watched(node) as trips:
        for number in range(25):  # not all at once: who is far behind is ended
            client.sendall(b"SEND\ndestination:/topic/t\n\n\0" * 19)
            client.sendall(b"SEND\ndestination:/topic/t\n\nlast %d\0" % number)
            read_until(client, b"\n\nlast %d\0" % number)
    assert len(trips) >= 3, "half a million deliveries left the witness a few"


@pytest.mark.parametrize("end", [b"ABORT", b"COMMIT", b"UNSUBSCRIBE", b"close"])
def test_very_many_acknowledgements_of_one_transaction(node: LimitedNode, end: bytes) -> None:
    """Whatever becomes of them."""
    fill(node, ENTRIES)
    client = node.connect()
    client.sendall(
        b"BEGIN\ntransaction:t\n\n\0SUBSCRIBE\nid:s\ndestination:/queue/a\n"
        b"ack:client-individual\nprefetch-count:10000\n\n\0"
    )
    acknowledged, data = 0, b""
    while acknowledged < ENTRIES:
        data += client.recv(1 << 20)
        *frames, data = data.split(b"\0")
        ids = [frame.split(b"\nack:")[1].split(b"\n")[0] for frame in frames if b"\nack:" in frame]
        client.sendall(b"".join(b"ACK\nid:%b\ntransaction:t\n\n\0" % one for one in ids))
        acknowledged += len(ids)
    with watched(node):
        if end == b"close":
            client.close()
        else:
            client.sendall(end + b"\nid:s\ntransaction:t\nreceipt:r\n\n\0")
            read_until(client, b"receipt-id:r")
            client.close()
    if end != b"COMMIT":  # then they are there still
        with node.connect() as other:
            other.sendall(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:auto\n\n\0")
            count, tail = 0, b""
            while count < ENTRIES:
                tail += other.recv(1 << 20)
                *frames, tail = tail.split(b"\0")
                count += sum(b"MESSAGE\n" in frame for frame in frames)


def test_very_many_sends_of_one_transaction(node: LimitedNode) -> None:
    """Their COMMIT is answered, and all of them are there."""
    client = node.connect()
    client.sendall(b"BEGIN\ntransaction:t\n\n\0")
    client.sendall(b"SEND\ndestination:/queue/b\ntransaction:t\n\nx\0" * ENTRIES + READY)
    read_until(client, b"receipt-id:ready")
    with watched(node):
        client.sendall(b"COMMIT\ntransaction:t\nreceipt:r\n\n\0")
        read_until(client, b"receipt-id:r")


def test_more_messages_than_a_transaction_may_have(node: LimitedNode) -> None:
    """One more is an ERROR that names the limit."""
    client = node.connect()
    client.sendall(b"BEGIN\ntransaction:t\n\n\0")
    client.sendall(b"SEND\ndestination:/queue/b\ntransaction:t\n\nx\0" * (ENTRIES + 11))
    with watched(node):
        error = rest_of(client).decode()
    limit = LIMITS.max_transaction_entries
    assert f"transaction 't' has more than max-transaction-entries {limit}" in error
