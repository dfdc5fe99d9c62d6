"""Clients that mean harm, against a real node: it stays up, small, and serves the others."""

import re
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD, SMALL_CLAIM
from orthia.broker.protocols.stomp.options import MAX_CONNECT_BYTES
from orthia.config.settings import ClientLimits
from tests.hostile.node import CONNECT, MIB, LimitedNode, Witness, live_node, logged, pour, rest_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

DEFAULTS = ClientLimits()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedNode]:
    """Give a node with every limit as it is without configuration."""
    with live_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def read_error(client: socket.socket) -> str:
    """Return the text of the ERROR that ends the connection."""
    data = rest_of(client).decode(errors="replace")
    assert "ERROR\n" in data, data[-500:]
    return data[data.index("ERROR\n") :]


# --- what one frame may be


def test_before_connect_a_frame_is_small(node: LimitedNode) -> None:
    """Headers or a body without end are refused after some kilobytes, from whoever it is."""
    witness = Witness(node)
    for head in (b"CONNECT\nlogin:", b"CONNECT\n\n", b"CONNECT\ncontent-length:1000000\n\n"):
        with node.open() as client:
            pour(client, head + b"x" * (2 * MAX_CONNECT_BYTES), 1)
            assert f"{MAX_CONNECT_BYTES} before CONNECTED" in read_error(client)
    witness.is_served()


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"SEND\nx:" + b"x" * 70_000, f"max-header-bytes {DEFAULTS.max_header_bytes}"),
        (
            b"SEND\n" + b"".join(b"h%d:x\n" % n for n in range(300)) + b"\n\0",
            f"more than max-headers {DEFAULTS.max_headers}",
        ),
        (b"ACK\ncontent-length:9999999999\n\n", f"max-body-bytes {DEFAULTS.max_body_bytes}"),
        (b"ACK\n\n" + b"x" * (17 * MIB), f"max-body-bytes {DEFAULTS.max_body_bytes}"),
        (
            b"SEND\ncontent-length:9999999999\n\n",
            f"max-large-message-size {DEFAULTS.max_large_message_size}",
        ),
    ],
    ids=["giant header", "many headers", "giant body", "giant body sent", "giant message"],
)
def test_a_giant_frame_is_refused_with_the_limits_name(
    node: LimitedNode, frame: bytes, complaint: str
) -> None:
    """The defaults, as documented; the others are served, and the memory is free again."""
    witness = Witness(node)
    before = node.resident
    with node.connect() as client:
        pour(client, frame, 1)
        assert complaint in read_error(client)
    witness.is_served()
    assert node.resident - before < 64 * MIB


# --- connections


def test_a_flood_of_silent_sockets_keeps_nobody_out(tmp_path: Path) -> None:
    """Sockets that say nothing make room for those who come; who is connected stays."""
    with live_node(
        tmp_path, max_connections=100, max_connections_per_address=100, connect_timeout=600_000
    ) as node:
        witness = Witness(node)
        before = node.resident
        flood = [node.open() for _ in range(400)]
        witness.is_served()
        newcomer = Witness(node)
        newcomer.is_served()
        assert "max-connections 100 already, and this one did not connect" in read_error(flood[0])
        witness.is_served()
        assert node.resident - before < 32 * MIB


def test_connections_above_the_limit_are_told_so(tmp_path: Path) -> None:
    """Those that are in are served, and when one leaves there is room again."""
    parameters = ";connectionsAllowed=60"
    with live_node(tmp_path, parameters=parameters) as node:
        witness = Witness(node)
        inside = [node.connect() for _ in range(59)]
        for _ in range(200):
            with node.open() as outside:
                assert "acceptor 'stomp' has connectionsAllowed 60 already" in read_error(outside)
        witness.is_served()
        inside[0].close()
        wait_until(lambda: _lets_in(node), what="room for one more")


def test_one_address_takes_not_every_connection(tmp_path: Path) -> None:
    """With all it can have, those of another are let in and served; the node is as before."""
    with live_node(tmp_path, max_connections=400) as node:
        witness = Witness(node)
        before = node.resident
        inside = []
        for _ in range(350):
            client = node.open("127.0.0.2")
            client.sendall(CONNECT)
            assert client.recv(4096).startswith(b"CONNECTED")
            inside.append(client)
        for _ in range(200):
            with node.open("127.0.0.2") as outside:
                text = read_error(outside)
                assert "clients at 127.0.0.2 have max-connections-per-address 350" in text
        witness.is_served()
        newcomer = Witness(node)
        newcomer.is_served()
        assert node.resident - before < 32 * MIB
        logged(node, "max-connections-per-address")
        assert node.log.count("max-connections-per-address") == 1
        assert "AMQ222010" not in node.log
        assert node.log.count("AMQ221007") == 1
        inside[0].close()
        wait_until(lambda: _lets_in(node, "127.0.0.2"), what="room for one more")


def _lets_in(node: LimitedNode, source: str = "127.0.0.1") -> bool:
    with node.open(source) as client:
        try:
            client.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
            return client.recv(100).startswith(b"CONNECTED")
        except ConnectionError:
            return False


def test_connections_leave_descriptors_to_the_database(tmp_path: Path) -> None:
    """A process that may open few files takes few connections, says so, and goes on storing."""
    with live_node(tmp_path, descriptors=200, max_connections_per_address=4_096) as node:
        logged(node, "accepting 72 connections in place of max-connections 4096")
        witness = Witness(node)
        for _ in range(71):
            node.connect()
        for _ in range(200):
            with node.open() as outside:
                assert "max-connections 72 already" in read_error(outside)
        witness.is_served()


def test_who_connects_a_byte_at_a_time_is_ended(tmp_path: Path) -> None:
    """The time for CONNECT runs from the start, whatever trickles in; the acceptor may set it."""
    with live_node(tmp_path, parameters=";handshake-timeout=6") as node:
        witness = Witness(node)
        slow = [node.open() for _ in range(50)]
        ended: set[socket.socket] = set()
        while len(ended) < len(slow):
            waiting = [one for one in slow if one not in ended]
            for client in waiting:
                try:
                    client.send(b"C")
                except ConnectionError:
                    ended.add(client)
            ended.update(select.select(waiting, [], [], 0.2)[0])
            witness.is_served()
        errors = [read_error(client) for client in slow[:5]]
        assert all("no CONNECT frame within 6000 ms" in error for error in errors)


def test_a_silent_client_is_ended_after_the_connection_ttl(tmp_path: Path) -> None:
    """A half-open connection without heart-beats, where the acceptor has a connectionTtl."""
    with live_node(tmp_path, parameters=";connectionTtl=4000") as node:
        with node.connect() as client:
            assert "nothing came from the client for connectionTtl 4000 ms" in read_error(client)
        assert _lets_in(node)


# --- those that do not read


def test_who_never_reads_its_receipts_is_not_read_from_and_cut_off(tmp_path: Path) -> None:
    """Its receipts fill a bounded buffer; then it is stopped, and after a while it goes."""
    with live_node(tmp_path, write_timeout=1_500) as node:
        witness = Witness(node)
        before = node.resident
        with node.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            frame = b"BEGIN\ntransaction:t\nreceipt:%b\n\n\0ABORT\ntransaction:t\n\n\0"
            sent = pour(client, frame % (b"r" * 60_000), 2_000)
            assert sent < 2_000, "the broker took everything"
            witness.is_served()
            assert node.resident - before < 32 * MIB
            logged(node, "for write-timeout 1500 ms; ")
        witness.is_served()


# --- those that hold


def test_half_a_million_subscriptions_are_bounded_in_memory(tmp_path: Path) -> None:
    """Where a connection may have so many, what all clients hold together ends it."""
    many = 500_000
    with live_node(tmp_path, max_subscriptions=many, max_client_bytes=32 * MIB) as node:
        witness = Witness(node)
        before = node.resident
        with node.connect() as client:
            for start in range(0, many, 1_000):
                frames = b"".join(
                    b"SUBSCRIBE\nid:%d\ndestination:/topic/%d\n\n\0" % (number, number)
                    for number in range(start, start + 1_000)
                )
                if pour(client, frames, 1) == 0 or select.select([client], [], [], 0)[0]:
                    break
            witness.is_served()
            assert node.resident - before < 96 * MIB
            assert "max-client-bytes 33554432" in read_error(client)
        witness.is_served()


def test_transactions_of_many_connections_are_bounded_together(tmp_path: Path) -> None:
    """The one that sends more when there is no memory is refused; the others keep theirs."""
    # Three have room and the fourth not: were it full to the brim, deliveries would wait for the
    # end of an idle client.
    with live_node(tmp_path, max_client_bytes=20 * MIB) as node:
        witness = Witness(node)
        before = node.resident
        refused = 0
        for _ in range(8):
            client = node.connect()
            client.sendall(b"BEGIN\ntransaction:t\nreceipt:b\n\n\0")
            assert client.recv(4096).startswith(b"RECEIPT")
            send = b"SEND\ndestination:/queue/a\ntransaction:t\n%b\n" + b"x" * 90_000 + b"\0"
            pour(client, send % b"", 69)
            pour(client, send % b"receipt:s\n", 1)
            answer = client.recv(4096)
            refused += b"ERROR" in answer
            assert answer.startswith(b"RECEIPT") or b"max-client-bytes" in answer
        assert refused >= 4
        witness.is_served()
        assert node.resident - before < 96 * MIB


def test_clients_that_never_acknowledge_are_bounded_together(tmp_path: Path) -> None:
    """Each may have much, all together not; who acknowledges is served, from the same queue too."""
    with live_node(tmp_path, global_max_size=8 * MIB) as node:
        witness = Witness(node)
        producer = node.connect()
        body = b"x" * 20_000
        # Of the first there are more than one that comes before the others can have.
        for number, messages in enumerate([1_000, *11 * [180]]):
            for _ in range(messages):
                producer.sendall(b"SEND\ndestination:/queue/%d\n\n%b\0" % (number, body))
        producer.sendall(b"SEND\ndestination:/queue/0\nreceipt:all\n\nx\0")
        assert b"receipt-id:all" in producer.recv(4096)
        before = node.resident
        hogs = []
        for number in range(12):
            hog = node.connect()
            hog.sendall(
                b"SUBSCRIBE\nid:1\ndestination:/queue/%d\nack:client\nprefetch-count:10000\n\n\0"
                % number
            )
            hogs.append(hog)
        # A message counts for more than its bytes on the wire: less than the limit comes.
        least = 8 * MIB * len(body) // (len(body) + 2 * MESSAGE_OVERHEAD)
        # 60 MB wait; the limit, a small claim for each, and a window's last message.
        most = 8 * MIB + 12 * 2 * SMALL_CLAIM + 4 * MIB
        taken = 0

        def nothing_more_comes() -> bool:
            nonlocal taken
            ready = select.select(hogs, [], [], 1.0)[0]
            taken += sum(len(hog.recv(262_144)) for hog in ready)
            assert taken < most
            witness.is_served()
            return taken > least and not ready

        wait_until(nothing_more_comes, what="as many messages as fit in memory")
        assert node.resident - before < 96 * MIB
        Witness(node).is_served()
        good = node.connect()
        good.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/0\nack:client-individual\n\n\0")
        acknowledged, data = 0, b""
        while acknowledged < 20:
            data += good.recv(65_536)
            # The last may have come in part.
            while found := re.search(rb"\nack:([0-9-]+)\n", data):
                good.sendall(b"ACK\nid:%b\n\n\0" % found[1])
                data = data[found.end() :]
                acknowledged += 1
