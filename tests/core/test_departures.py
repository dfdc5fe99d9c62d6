"""Clients that go while what they sent waits for room: nobody reads of them that they have gone."""

import logging
import socket
import struct
from contextlib import ExitStack

import pytest

from orthia.broker.connections.departures import KEPT_SECONDS
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.settings import Settings
from tests.core.support import settings
from tests.core.test_server import CONNECT, PATIENCE, ServerUnderTest, read_until, serving
from tests.support.waiting import wait_until


def blocking() -> Settings:
    """Return settings by which an address blocks those who send to it once it has a message."""
    return settings("q", address_full_policy=AddressFullPolicy.BLOCK, max_size_messages=1)


def logged_in(server: ServerUnderTest) -> socket.socket:
    """Connect without heart-beats."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    client.sendall(CONNECT)
    read_until(client, b"\0")
    return client


def blocked(server: ServerUnderTest) -> socket.socket:
    """Return a client that waits for room in the address, and is not read from."""
    client = logged_in(server)
    client.sendall(b"SEND\ndestination:/queue/q\n\nwaits\0")
    wait_until(
        lambda: client.getsockname() in server.call(lambda: _unread(server)),
        what="it is not read from",
    )
    return client


def _unread(server: ServerUnderTest) -> list[object]:
    return [
        one.unread.get_extra_info("peername")
        for one in server.server.clients.all()
        if one.unread is not None
    ]


def fill(server: ServerUnderTest) -> None:
    """Put into the address what it may have, and close: whoever filled it waits for room, too."""
    with logged_in(server) as client:
        client.sendall(b"SEND\ndestination:/queue/q\nreceipt:full\n\nfull\0")
        read_until(client, b"receipt-id:full")


def test_who_closed_while_blocked_makes_room_for_who_would_consume() -> None:
    """Each producer that gave up and came back would else take a place until there is none."""
    with serving(blocking(), max_connections_per_address=3) as server:
        fill(server)
        for _ in range(2):
            blocked(server).close()
        wait_until(
            lambda: server.call(lambda: len(server.server._departures._since)) == 3,
            what="it is seen that they have closed",
        )
        with logged_in(server) as consumer:
            consumer.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\n\n\0")
            data = read_until(consumer, b"full\0")
            # Those that were not in its way are read once there is room, and then end.
            while data.count(b"waits\0") < 2:
                data += consumer.recv(4096)
            wait_until(lambda: server.connections == 1, what="they are forgotten")


def test_who_was_reset_while_blocked_gives_back_what_it_had() -> None:
    """At once: of such a client nothing more can be read."""
    with serving(blocking()) as server:
        fill(server)
        with logged_in(server) as other:
            other.sendall(b"SEND\ndestination:/queue/a\nreceipt:r\n\nwork\0")
            read_until(other, b"receipt-id:r")
            worker = logged_in(server)
            worker.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0")
            read_until(worker, b"work\0")
            worker.sendall(b"SEND\ndestination:/queue/q\n\nresult\0")
            wait_until(
                lambda: worker.getsockname() in server.call(lambda: _unread(server)),
                what="it is blocked, as who filled the address is before it",
            )
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            worker.close()
            other.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\n\n\0")
            read_until(other, b"work\0")


@pytest.mark.parametrize("paused", [0.0, 5.0])
def test_who_closed_is_cut_off_when_it_was_not_read_for_long(
    caplog: pytest.LogCaptureFixture, paused: float
) -> None:
    """A client that closed in good order has its messages stored if there is room before."""
    with serving(blocking()) as server, ExitStack() as stack:
        fill(server)
        stays = stack.enter_context(blocked(server))
        departures = server.server._departures
        wait_until(
            lambda: server.call(lambda: len(departures._since)) == 1, what="its close is seen"
        )

        def tick_no_more() -> None:
            assert server.server._ticker is not None
            server.server._ticker.cancel()

        server.call(tick_no_more)  # a late tick would forgive seconds that are not counted here
        (since,) = server.call(lambda: [*departures._since.values()])

        def look(seconds: float, still: float = 0.0) -> None:
            clients = server.server.clients.all()
            server.call(lambda: departures.look(clients, since + seconds, still))

        look(KEPT_SECONDS - 1)
        assert server.connections == 2
        look(KEPT_SECONDS + paused - 1, paused)
        assert server.connections == 2
        with caplog.at_level(logging.WARNING):
            look(KEPT_SECONDS + paused + 1.5)
        wait_until(lambda: server.connections == 1, what="it is cut off")
        assert server.refused == ["silence"]
        stays.sendall(b"\n")
    assert "closed its connection 61 s ago, while its messages waited for room" in caplog.text
