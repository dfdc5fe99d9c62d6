"""STOMP over WebSocket on the sockets of a server, with wsproto as the client."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from wsproto.events import CloseConnection, Pong

from orthia.broker.core.refusals import Refusal
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.settings import AcceptorSettings
from tests.core.support import SETTINGS
from tests.core.test_server import ServerUnderTest, serving
from tests.support.waiting import wait_until
from tests.websocket.client import ALL, Rejected, WebSocketClient

SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client-individual\n\n\0"


def send_frame(body: str) -> str:
    """Return a SEND with a receipt."""
    return f"SEND\ndestination:/queue/a\nreceipt:r\n\n{body}\0"


@contextmanager
def websockets(
    settings: AcceptorWebSocket | None = None, *, connect_timeout: int = 10_000
) -> Iterator[ServerUnderTest]:
    """Run a server whose acceptor has ``settings`` for WebSockets."""
    acceptor = AcceptorSettings("stomp", "127.0.0.1", 0, web_socket=settings or AcceptorWebSocket())
    options = replace(SETTINGS, acceptors=(acceptor,))
    with serving(options, connect_timeout=connect_timeout) as server:
        yield server


@contextmanager
def connected(
    server: ServerUnderTest, subprotocols: tuple[str, ...] = ALL, origin: str | None = None
) -> Iterator[WebSocketClient]:
    """Open a WebSocket to a server."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        yield WebSocketClient(client, subprotocols=subprotocols, origin=origin)


def test_a_message_goes_round() -> None:
    """As with TCP; text is answered by text, each frame of STOMP by a message of its own."""
    with websockets() as server, connected(server) as client:
        assert client.subprotocol == "v12.stomp"
        assert "\nversion:1.2\n" in client.connect()
        client.send(SUBSCRIBE + send_frame("hällo"))
        message, receipt = sorted((client.text(), client.text()))
        assert message.startswith("MESSAGE\n")
        assert message.endswith("\n\nhällo\0")
        assert receipt == "RECEIPT\nreceipt-id:r\n\n\0"


def test_a_client_of_tcp_and_one_of_a_websocket_share_a_port() -> None:
    """What the one sends the other gets."""
    with (
        websockets() as server,
        connected(server) as client,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
    ):
        client.connect()
        client.send(SUBSCRIBE)
        plain.sendall(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0" + send_frame("over").encode())
        assert client.text().endswith("\n\nover\0")


def test_bytes_are_answered_by_bytes() -> None:
    """And a body may be any."""
    body = bytes(range(256))
    with websockets() as server, connected(server) as client:
        client.send(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
        assert bytes(client.message()).startswith(b"CONNECTED\n")  # type: ignore[arg-type]
        head = b"SEND\ndestination:/queue/a\ncontent-length:256\n\n"
        client.send(SUBSCRIBE.encode() + head + body + b"\0")
        message = client.message()
        assert isinstance(message, bytes)
        assert message.endswith(b"\n\n" + body + b"\0")


def test_a_ping_is_answered() -> None:
    """With what it had, also amid a frame of STOMP."""
    with websockets() as server, connected(server) as client:
        client.connect()
        client.send("SEND\ndestination:/queue/a\nreceipt:r\n", is_last=False)
        client.ping(b"there?")
        assert client.event() == Pong(b"there?")
        client.send("\nhello\0")
        assert client.text() == "RECEIPT\nreceipt-id:r\n\n\0"


def test_a_disconnect_closes_with_1000_and_a_stop_with_1001() -> None:
    """After the receipt, and each client at a stop."""
    with websockets() as server, connected(server) as leaving, connected(server) as staying:
        leaving.connect()
        staying.connect()
        leaving.send("DISCONNECT\nreceipt:bye\n\n\0")
        assert leaving.text() == "RECEIPT\nreceipt-id:bye\n\n\0"
        assert leaving.closed() == (1000, "")
        server.stop()
        assert staying.closed() == (1001, "")


def test_a_client_that_closes_is_answered_and_gone() -> None:
    """With its own code; what it had not acknowledged goes to others."""
    with websockets() as server, connected(server) as client:
        client.connect()
        client.send(send_frame("again") + SUBSCRIBE)
        assert {client.text().partition("\n")[0] for _ in range(2)} == {"RECEIPT", "MESSAGE"}
        client.close(4321)
        assert client.event() == CloseConnection(4321, "")
        assert client.socket.recv(1) == b""
        client.socket.close()
        wait_until(lambda: not server.connections, what="the connection to be forgotten")
        assert server.depth("a") == 1


@pytest.mark.parametrize(
    ("offered", "chosen", "version"),
    [
        (("v10.stomp",), "v10.stomp", "1.0"),
        (("v10.stomp", "v11.stomp"), "v11.stomp", "1.1"),
        (("mqtt", "v11.stomp"), "v11.stomp", "1.1"),
        (("v12.stomp", "v10.stomp"), "v12.stomp", "1.2"),
        ((), None, "1.2"),
    ],
)
def test_the_subprotocol_is_the_newest_that_both_know(
    offered: tuple[str, ...], chosen: str | None, version: str
) -> None:
    """And CONNECT may ask for no newer version than that."""
    with websockets() as server, connected(server, offered) as client:
        assert client.subprotocol == chosen
        assert f"\nversion:{version}\n" in client.connect()


def test_connect_may_not_ask_for_a_newer_version_alone() -> None:
    """It would be another than the sub-protocol says."""
    with websockets() as server, connected(server, ("v11.stomp",)) as client:
        client.send("CONNECT\naccept-version:1.2\nhost:h\n\n\0")
        assert "has none of the supported 1.0, 1.1" in client.text()
        assert client.closed()[0] == 1002


def test_a_frame_longer_than_the_limit_is_refused() -> None:
    """With code 1009, and an ERROR that names the limit, as the log does."""
    with websockets(AcceptorWebSocket(2_000)) as server, connected(server) as client:
        client.connect()
        client.send("x" * 2_001)
        reason = "a frame of the WebSocket is longer than webSocketMaxFramePayloadLength 2000"
        assert reason in client.text()
        assert client.closed() == (1009, reason)
        assert server.call(lambda: list(server.refused)) == [Refusal.LIMIT.value]


def test_a_page_of_another_site_is_refused() -> None:
    """With 403, before anything of STOMP; it is counted as what it is."""
    with websockets() as server:
        with pytest.raises(Rejected) as caught, connected(server, origin="https://evil.example"):
            pass
        assert caught.value.status == 403
        assert "'https://evil.example' may not connect" in caught.value.reason
        assert server.call(lambda: list(server.refused)) == [Refusal.ORIGIN.value]
        with connected(server, origin="http://localhost:8080") as client:
            client.connect()
