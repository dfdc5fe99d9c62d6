"""What an acceptor's parameters do to the clients that come by it."""

import socket
from collections.abc import Sequence
from dataclasses import replace

import pytest
from typing_extensions import override

from orthia.broker.core.api import OpenTransaction
from orthia.broker.core.broker import Broker
from orthia.broker.protocols.abc import ProtocolConnection, ServedProtocol, Socket
from orthia.broker.protocols.registry import SERVED
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.config.settings import AcceptorSettings
from tests.core.support import SETTINGS
from tests.core.test_server import CONNECT, PATIENCE, connected, read_to_the_end, serving
from tests.websocket.test_upgrade import head


def test_the_clients_of_an_acceptor_have_its_parameters() -> None:
    """Its heart-beats, its size of large messages and its prefixes; other acceptors keep theirs."""
    special = AcceptorSettings(
        "special",
        "127.0.0.1",
        0,
        heart_beat_to_connection_ttl_modifier=3.0,
        min_large_message_size=2_048,
        anycast_prefixes=("jms.queue.",),
    )
    with (
        serving(replace(SETTINGS, acceptors=(special,))) as server,
        connected(server) as client,
    ):
        client.sendall(b"SEND\ndestination:jms.queue.orders\nreceipt:r\n\na\0")
        assert b"RECEIPT" in client.recv(4_096)
        assert server.depth("orders") == 1
        (one,) = server.call(lambda: list(server.server.clients.all()))
        session = one.protocol
        assert isinstance(session, StompConnection)
        assert session.options.silence_factor == 3.0
        assert session.options.limits.min_large_message_size == 2_048


class Echo(ProtocolConnection):
    """The least protocol there can be: it writes what it reads, and ends at a full stop."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._is_closed = False

    @override
    def receive(self, data: bytes) -> None:
        self._socket.write(data)
        if data.endswith(b"."):
            self.go_away()

    @property
    @override
    def is_waiting(self) -> bool:
        return False

    @override
    def choose_subprotocol(self, name: str) -> None:
        self._socket.write(name.encode())

    @override
    def set_writable(self, *, writable: bool) -> None:
        """Deliver nothing in any case."""

    @override
    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        """Wait for ever."""

    @property
    @override
    def held(self) -> int:
        return 0

    @property
    @override
    def sent(self) -> int:
        return 0

    @property
    @override
    def released(self) -> int:
        return 0

    @override
    def open_transactions(self) -> list[OpenTransaction]:
        return []

    @property
    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    @override
    def was_disconnected(self) -> bool:
        return self._is_closed

    @override
    def connection_lost(self) -> None:
        self._is_closed = True

    @override
    def release(self) -> None:
        """Refer to nothing."""

    @override
    def shut_down(self, reason: str) -> None:
        self._socket.write(self.farewell(reason))
        self.go_away()

    @override
    def go_away(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._socket.close()

    @override
    def farewell(self, reason: str) -> bytes:
        return reason.encode()


class ServedEcho(ServedProtocol):
    """It, for clients that begin with AMQP."""

    def __init__(self, *_: object) -> None:
        """Need no options."""

    @property
    @override
    def versions(self) -> str:
        return "an echo"

    @property
    @override
    def greeting(self) -> bytes:
        return b"AMQP"

    @property
    @override
    def subprotocols(self) -> Sequence[str]:
        return ("amqp",)

    @override
    def connect(self, core: Broker, socket: Socket) -> ProtocolConnection:
        return Echo(socket)


@pytest.mark.parametrize("protocols", [("STOMP", "AMQP"), ("AMQP", "STOMP")])
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ([b"AMQP", b"\x00\x01."], b"AMQP\x00\x01."),
        ([b"A", b"M", b"Q", b"P", b"."], b"AMQP."),
        ([CONNECT + b"DISCONNECT\nreceipt:bye\n\n\0"], b"CONNECTED\n"),
        ([b"A", b"B\n\n\0" + b" " * 8], b"ERROR\nmessage:the first frame is 'AB'"),
        ([b"HORNETQ."], b"ERROR\nmessage:the first bytes are of HornetQ"),
        (
            [head(Sec_WebSocket_Protocol="amqp, v12.stomp") + b"\x81\x81\0\0\0\0."],
            b"HTTP/1.1 101 Switching Protocols\r\n",
        ),
    ],
)
def test_an_acceptor_tells_its_protocols_apart_by_their_first_bytes(
    monkeypatch: pytest.MonkeyPatch,
    protocols: tuple[str, ...],
    sent: list[bytes],
    answer: bytes,
) -> None:
    """However they are cut, in whatever order it names them; a WebSocket by what it asks for."""
    monkeypatch.setitem(SERVED, "AMQP", ServedEcho)
    acceptor = AcceptorSettings("both", "127.0.0.1", 0, protocols=protocols)
    with (
        serving(replace(SETTINGS, acceptors=(acceptor,))) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in sent:
            client.sendall(piece)
        if answer.startswith(b"HTTP"):
            client.sendall(b"\x88\x80\0\0\0\0")
        written = read_to_the_end(client)
    assert written.startswith(answer)
    if answer.startswith(b"HTTP"):
        chosen = b"amqp" if protocols[0] == "AMQP" else b"v12.stomp"
        assert b"\r\nSec-WebSocket-Protocol: " + chosen + b"\r\n" in written
        assert (b"\x82\x04amqp" in written) == (chosen == b"amqp")
