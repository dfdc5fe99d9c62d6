"""Clients of WebSocket that mean harm, against a real node: bounded as those of TCP are."""

import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.connections.upgrade import MAX_HEAD_BYTES
from orthia.broker.protocols.stomp.options import MAX_CONNECT_BYTES
from orthia.config.settings import ClientLimits
from tests.hostile.node import MIB, LimitedNode, Witness, live_node, logged, pour, rest_of
from tests.support.waiting import wait_until
from tests.websocket.client import WebSocketClient
from tests.websocket.test_upgrade import head
from tests.websocket.test_websocket import frame

pytestmark = pytest.mark.extended

DEFAULTS = ClientLimits()
CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
EMPTY_FRAGMENT = frame(0x00, b"")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedNode]:
    """Give a node with every limit as it is without configuration."""
    with live_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def upgraded(node: LimitedNode) -> socket.socket:
    """Open a WebSocket and go on with its bare socket."""
    return WebSocketClient(node.open()).socket


def logged_in(node: LimitedNode) -> socket.socket:
    """Log in by WebSocket and go on with its bare socket."""
    client = WebSocketClient(node.open())
    client.connect()
    return client.socket


def close_code(data: bytes) -> int:
    """Return the code of the close frame at the end of what a node sent."""
    at = data.rindex(b"\x88")
    (code,) = struct.unpack("!H", data[at + 2 : at + 4])
    return int(code)


def test_a_request_that_trickles_in_is_refused_when_its_time_is_up(tmp_path: Path) -> None:
    """The time for CONNECT runs from the start, and is for the upgrade too."""
    with live_node(tmp_path, parameters=";handshake-timeout=5") as node:
        witness = Witness(node)
        slow = [node.open() for _ in range(20)]
        for client in slow:
            client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for _ in range(20):
            slow.append(node.open())
            slow[-1].sendall(head())
            assert slow[-1].recv(4096).startswith(b"HTTP/1.1 101 ")
        ended: set[socket.socket] = set()
        while len(ended) < len(slow):
            waiting = [one for one in slow if one not in ended]
            for client in waiting:
                try:
                    client.send(b"x" if client in slow[:20] else EMPTY_FRAGMENT[:1])
                except ConnectionError:
                    ended.add(client)
            ended.update(select.select(waiting, [], [], 0.2)[0])
            witness.is_served()
        reason = b"no CONNECT frame within 5000 ms"
        for client in slow[:3]:
            answer = rest_of(client)
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert reason in answer


def test_a_giant_request_is_refused(node: LimitedNode) -> None:
    """After as much as a CONNECT frame may have, wherever it is: a name, a value, many of them."""
    witness = Witness(node)
    before = node.resident
    for line in (b"GET /" + b"x" * 5 * MIB, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MIB):
        with node.open() as client:
            pour(client, line, 1)
            answer = rest_of(client)
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert f"longer than {MAX_HEAD_BYTES} bytes".encode() in answer
        witness.is_served()
    assert node.resident - before < 32 * MIB


def test_fragments_without_end_are_bounded_by_the_limits_of_stomp(node: LimitedNode) -> None:
    """Before the login by that of a CONNECT, after it by those of a frame; empty ones hold none."""
    witness = Witness(node)
    before = node.resident
    with upgraded(node) as client:
        client.sendall(frame(0x02, b"CONNECT\nlogin:"))
        pour(client, frame(0x00, b"x" * 1_000), 40)
        assert f"{MAX_CONNECT_BYTES} before CONNECTED".encode() in rest_of(client)
    with logged_in(node) as client:
        client.sendall(frame(0x02, b"ACK\n\n"))
        pour(client, frame(0x00, b"x" * 60_000), 400)
        assert f"max-body-bytes {DEFAULTS.max_body_bytes}".encode() in rest_of(client)
    with logged_in(node) as client:
        client.sendall(frame(0x02, b""))
        for _ in range(10):
            client.sendall(EMPTY_FRAGMENT * 20_000)
            witness.is_served()
        client.sendall(frame(0x80, b"SEND\ndestination:/queue/f\nreceipt:f\n\nx\0"))
        assert b"receipt-id:f" in client.recv(4096)
    assert node.resident - before < 64 * MIB


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(0x81, CONNECT, mask=False), 1002),
        (frame(0x89, b"x" * 126), 1002),
        (frame(0xC2, b"x" * 100), 1002),
        (frame(0x82, b"", length=2**40), 1009),
        (frame(0x81, b"\xff\xff"), 1007),
    ],
    ids=["unmasked", "a control frame too long", "compressed", "a giant frame", "no UTF-8"],
)
def test_what_is_no_websocket_is_refused_at_once(node: LimitedNode, wire: bytes, code: int) -> None:
    """With the code for it, before the login and after it."""
    witness = Witness(node)
    for client in (upgraded(node), logged_in(node)):
        client.sendall(wire)
        answer = rest_of(client)
        assert b"ERROR\n" in answer
        assert close_code(answer) == code
    witness.is_served()


def test_a_compressed_bomb_finds_nobody_who_would_inflate_it(node: LimitedNode) -> None:
    """A client that offers compression is granted none, and its compressed frame is an error."""
    before = node.resident
    with node.open() as client:
        client.sendall(head(Sec_WebSocket_Extensions="permessage-deflate"))
        assert b"Extensions" not in client.recv(4096)
        pour(client, frame(0xC2, b"\0" * 60_000), 100)
        assert close_code(rest_of(client)) == 1002
    assert node.resident - before < 32 * MIB


def test_a_flood_of_pings_that_nobody_reads_the_answers_of_is_bounded(tmp_path: Path) -> None:
    """It is not read from once it is behind, and cut off in the end; others are served."""
    with live_node(tmp_path, write_timeout=3_000) as node:
        witness = Witness(node)
        before = node.resident
        with logged_in(node) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sent = pour(client, frame(0x89, b"x" * 125) * 1_000, 2_000)
            assert sent < 2_000, "the broker took everything"
            witness.is_served()
            assert node.resident - before < 32 * MIB
            logged(node, "for write-timeout 3000 ms; ")
        witness.is_served()


def test_floods_of_tiny_frames_leave_others_their_turn(node: LimitedNode) -> None:
    """Decoding is work, and is done a slice at a time."""
    witness = Witness(node)
    flooding = [logged_in(node) for _ in range(5)]
    for _ in range(5):
        for client in flooding:
            client.sendall(frame(0x82, b"\n") * 10_000)
        witness.is_served()


def test_one_that_closes_half_of_its_connection_is_forgotten(node: LimitedNode) -> None:
    """In the middle of the request, of a frame, or behind a close frame."""
    witness = Witness(node)
    begun = node.open()
    begun.sendall(b"GET / HTTP/1.1\r\n")
    within = logged_in(node)
    within.sendall(frame(0x82, b"x" * 100)[:50])
    closing = logged_in(node)
    closing.sendall(frame(0x88, b""))
    for client in (begun, within, closing):
        client.shutdown(socket.SHUT_WR)
        rest_of(client)
    witness.is_served()


def test_one_that_does_not_read_is_not_waited_for_behind_its_close(tmp_path: Path) -> None:
    """It said that it goes; what it has not read by then is not kept."""
    with live_node(tmp_path, max_connections=20) as node:
        producer = node.connect()
        for _ in range(100):
            producer.sendall(b"SEND\ndestination:/queue/a\n\n" + b"x" * 50_000 + b"\0")
        producer.sendall(b"SEND\ndestination:/queue/a\nreceipt:all\n\nx\0")
        assert b"receipt-id:all" in producer.recv(4096)
        with logged_in(node) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.sendall(
                frame(0x82, b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0")
                + frame(0x88, b"")
            )
            other = logged_in(node)
            other.sendall(frame(0x82, b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0"))
            got = 0

            def has_all() -> bool:
                nonlocal got
                if select.select([other], [], [], 0.1)[0]:
                    got += len(other.recv(262_144))
                return got > 100 * 50_000

            wait_until(has_all, what="all messages at the other client")
