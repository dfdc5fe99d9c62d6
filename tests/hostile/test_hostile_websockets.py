"""Clients of WebSocket that mean harm, against a real node: bounded as those of TCP are."""

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.protocols.stomp.options import MAX_CONNECT_BYTES
from orthia.config.settings import ClientLimits
from tests.hostile.node import MIB, LimitedNode, Witness, live_node, logged, pour, rest_of
from tests.support.waiting import wait_until
from tests.websocket.client import WebSocketClient
from tests.websocket.test_websocket import frame

pytestmark = pytest.mark.extended

DEFAULTS = ClientLimits()
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
