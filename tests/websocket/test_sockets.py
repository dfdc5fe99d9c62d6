"""STOMP over WebSocket on the sockets of a server, with wsproto as the client."""

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override
from wsproto.events import CloseConnection, Pong, TextMessage

from orthia.broker.connections.connection import Connection
from orthia.broker.connections.opened import OpenAcceptor
from orthia.broker.core.errors import Refusal
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.acceptors import parse_acceptor
from orthia.config.settings import AcceptorSettings
from tests.core.support import SETTINGS
from tests.core.test_server import ServerUnderTest, serving
from tests.support.certificates import Authority
from tests.support.waiting import wait_until
from tests.websocket.client import ALL, CONNECT, Rejected, WebSocketClient
from tests.websocket.test_upgrade import head
from tests.websocket.test_websocket import frame

SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client-individual\n\n\0"


def send_frame(body: str) -> str:
    """Return a SEND with a receipt."""
    return f"SEND\ndestination:/queue/a\nreceipt:r\n\n{body}\0"


@contextmanager
def websockets(
    settings: AcceptorWebSocket | None = None, *, connect_timeout: int = 600_000
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


def test_heart_beats_are_messages_of_their_own() -> None:
    """In both directions; pings of WebSocket are none: a client that sends only those is gone."""
    connect = "CONNECT\naccept-version:1.2\nhost:h\nheart-beat:2000,500\n\n\0"
    with websockets() as server, connected(server) as client:
        assert "\nheart-beat:500,2000\n" in client.connect(connect)
        for _ in range(3):
            assert client.text() == "\n"
            began = time.monotonic()
            client.send("\n")
        pongs = 0
        # A heart-beat, or the end, may come between a ping and its pong.
        while (event := client.event()) in (TextMessage("\n"), Pong(b"alive")):
            if event == Pong(b"alive"):
                pongs += 1
            else:
                client.ping(b"alive")
        assert isinstance(event, TextMessage)
        assert "no heart-beat from the client within its time" in event.data
        assert pongs
        assert time.monotonic() - began > 2.0
        assert client.closed()[0] == 1008


def test_an_error_of_stomp_is_told_in_both_ways() -> None:
    """The ERROR frame has all of it, the close frame what fits."""
    with websockets() as server, connected(server) as client:
        client.connect()
        client.send("FROBNICATE\n\n\0")
        error = client.text()
        assert error.startswith("ERROR\n")
        code, reason = client.closed()
        assert code == 1002
        assert reason
        assert reason in error


def test_who_does_not_ask_for_the_upgrade_in_time_is_told_in_http() -> None:
    """The time for CONNECT is for the upgrade too."""
    with (
        websockets(connect_timeout=500) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n")
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"no CONNECT frame within 500 ms" in answer
        assert server.call(lambda: list(server.refused)) == [Refusal.NO_CONNECT.value]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_browser_that_looks_at_the_port_is_told_what_it_is(at_once: bool) -> None:
    """A request of HTTP without an upgrade, in one piece or byte by byte."""
    request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    with (
        websockets() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [request] if at_once else [bytes([one]) for one in request]:
            client.sendall(piece)
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"v12.stomp: the request has no 'Upgrade: websocket'" in answer


def test_what_only_begins_like_a_request_is_read_as_stomp() -> None:
    """Nothing of it is lost for the error."""
    with (
        websockets() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (b"GE", b"T", b"TING\n\n\0"):
            client.sendall(piece)
        assert b"GETTING" in client.makefile("rb").read()


def test_by_tls_it_is_wss(authority: Authority, tmp_path: Path) -> None:
    """On the same port as STOMP by TLS; the close frame arrives, too."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    url = f"tcp://127.0.0.1:0?sslEnabled=true;keyStorePath={store}"
    settings = replace(SETTINGS, acceptors=(parse_acceptor("wss", url).settings,))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with (
        serving(settings) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        client = WebSocketClient(secure)
        client.connect()
        client.send(SUBSCRIBE + send_frame("x" * 60_000))
        assert {client.text().partition("\n")[0] for _ in range(2)} == {"RECEIPT", "MESSAGE"}
        client.send("DISCONNECT\nreceipt:bye\n\n\0")
        assert client.text() == "RECEIPT\nreceipt-id:bye\n\n\0"
        assert client.closed() == (1000, "")


class _Still(asyncio.Transport):
    """A transport of which a test sees whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.written = b""

    @override
    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    @override
    def pause_reading(self) -> None:
        self.is_read = False

    @override
    def resume_reading(self) -> None:
        self.is_read = True

    @override
    def get_write_buffer_size(self) -> int:
        return 0

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def abort(self) -> None:
        pass


def test_one_is_not_read_from_before_what_came_is_decoded() -> None:
    """However many frames that are: it is counted as held, and the loop has other turns."""
    sends = b"".join(frame(0x82, one) for one in (send_frame("x").encode(),) * 4_000)
    with websockets() as server:

        async def connect_and_look() -> tuple[Connection, _Still, bool, int]:
            acceptor = OpenAcceptor.of(AcceptorSettings("a", "h", 1), SETTINGS.stomp_limits)
            connection = Connection(server.broker, server.server.clients, acceptor)
            transport = _Still()
            connection.connection_made(transport)
            connection.data_received(head() + frame(0x82, CONNECT.encode()))
            connection.data_received(sends)
            # In the loop's next turn: it would have had many before this thread asked it.
            await asyncio.sleep(0)
            return connection, transport, transport.is_read, connection.held

        looked = asyncio.run_coroutine_threadsafe(connect_and_look(), server.loop)
        connection, transport, is_read, most = looked.result(120)
        assert not is_read
        assert most > len(sends) / 2
        wait_until(lambda: server.depth("a") == 4_000, what="all to be sent")
        wait_until(lambda: transport.is_read, what="it to be read from again")
        server.call(lambda: connection.connection_lost(None))
