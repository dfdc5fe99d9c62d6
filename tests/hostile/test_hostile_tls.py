"""Clients of TLS, and of WebSockets by TLS, that mean harm, against a real node.

Each is bounded as on plain TCP: in memory, in time, and in what others wait for it.
"""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orthia.broker.tls.records import MOST_HELLO_BYTES
from tests.hostile.node import CONNECT, MIB, live_node, logged, rest_of
from tests.hostile.tls_node import TlsNode
from tests.support.certificates import Authority
from tests.support.openssl_errors import forget_openssl_errors
from tests.tls.openssl import OpenSslClient
from tests.tls.test_acceptors import trusting
from tests.tls.test_hostile import client_hello, shake_hands
from tests.websocket.test_upgrade import head
from tests.websocket.test_websocket import frame

pytestmark = pytest.mark.extended

LARGE_HELLO = b"\x16\x03\x01\x00\x04\x01\x02\x00\x00"
"""A hello of 128 KiB is announced, and nothing of it is there."""
DISCONNECT = b"DISCONNECT\nreceipt:bye\n\n\0"
"""After which the node closes, also where no limit was reached."""
TOO_MANY = b"its TLS records carry no data, as key updates do"


@pytest.fixture(scope="module", name="authority")
def _authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module", name="parameters")
def _parameters(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keys") / "broker.pem"
    return f";sslEnabled=true;keyStorePath={authority.sign().write_pem(path)}"


@pytest.fixture(scope="module", name="tls")
def _tls(
    authority: Authority, parameters: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsNode]:
    """Give a node with every limit as it is without configuration."""
    with live_node(tmp_path_factory.mktemp("node"), parameters=parameters) as node:
        yield TlsNode(node, trusting(authority))


# --- before there is TLS


def test_who_trickles_is_ended_when_its_time_is_up(
    authority: Authority, parameters: str, tmp_path: Path
) -> None:
    """A hello, a request for a WebSocket or a CONNECT byte by byte: one time is for all of it."""
    with live_node(tmp_path, parameters=parameters + ";handshake-timeout=8") as node:
        tls = TlsNode(node, trusting(authority))
        witness = tls.witness()
        hello = client_hello()
        trickling = [
            trickle
            for _ in range(20)
            for trickle in (
                Trickle(node.open(), hello[:-1]),
                Trickle(tls.open(), head()[:-1]),
                Trickle(tls.upgraded(), frame(0x82, CONNECT)[:-1]),
            )
        ]
        while waiting := [one for one in trickling if not one.has_ended]:
            for one in waiting:
                one.go_on()
            witness.is_served()
        handshakes, requests, connects = (trickling[at::3] for at in range(3))
        assert all(one.came.startswith(b"HTTP/1.1 408 ") for one in requests)
        for one in (*requests, *connects):
            assert b"no CONNECT frame within 8000 ms" in one.came
        assert {one.came for one in handshakes} == {b""}
        logged(node, "no CONNECT frame within 8000 ms")  # of those who were first, by the clock


class Trickle:
    """A client that sends byte by byte from the ninth on, and reads what it is sent."""

    def __init__(self, client: socket.socket, sent: bytes) -> None:
        self._client = client
        client.sendall(sent[:8])  # by which the node knows what it is
        self._left = iter(sent[8:])
        client.settimeout(0.02)
        self.came = b""
        self.has_ended = False

    def go_on(self) -> None:
        """Send one byte more, if there is one, and read what is there."""
        try:
            self._client.sendall(bytes([one]) if (one := next(self._left, None)) else b"")
            chunk = self._client.recv(4096)
        except (TimeoutError, ssl.SSLWantReadError):
            return
        except OSError:
            forget_openssl_errors()
            chunk = b""
        self.came += chunk
        self.has_ended = not chunk


def _rest(client: socket.socket) -> bytes:
    """Read to the end, in whatever way it comes."""
    with suppress(ssl.SSLError):
        return rest_of(client)
    return b""


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_hello_that_is_announced_too_long_takes_no_memory(tls: TlsNode, in_pieces: bool) -> None:
    """OpenSSL makes room for it at once, of 128 KiB, for each who sends nine bytes."""
    witness = tls.witness()
    sent = LARGE_HELLO
    if in_pieces:
        sent = b"".join(b"\x16\x03\x01\x00\x01" + sent[at : at + 1] for at in range(5, 9))
    before = tls.node.resident
    flood = []
    for _ in range(300):
        client = tls.node.open()
        client.sendall(sent)
        flood.append(client)
    for client in flood:
        assert rest_of(client) == b""
    witness.is_served()
    assert tls.node.resident - before < 300 * 110 * 1024
    logged(tls.node, f"its hello has more than {MOST_HELLO_BYTES} bytes")


def test_handshakes_that_nobody_ends_make_room_and_take_little_memory(
    authority: Authority, parameters: str, tmp_path: Path
) -> None:
    """Of one address there are few at a time, and who is connected notices nothing."""
    with live_node(tmp_path, parameters=parameters, max_unauthenticated_per_address=100) as node:
        witness = TlsNode(node, trusting(authority)).witness()
        before = node.resident
        hello = client_hello()
        flood = []
        for number in range(1_000):
            client = node.open()
            client.sendall(hello)
            flood.append(client)
            if number % 100 == 0:
                witness.is_served()
        witness.is_served()
        logged(node, "max-unauthenticated-per-address 100 connections without a login already")
        assert rest_of(flood[0]) is not None
        assert node.resident - before < 20 * MIB


# --- what TLS itself lets a client ask for


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("logs_in", [False, True])
def test_a_flood_of_key_updates_ends_its_client(
    authority: Authority, parameters: str, tmp_path: Path, both: bool, logs_in: bool
) -> None:
    """Each costs the node more than a message does; an ordinary client asks once in gigabytes."""
    with live_node(tmp_path, parameters=parameters) as node:
        tls = TlsNode(node, trusting(authority))
        witness = tls.witness()
        with OpenSslClient(node.open()) as client:
            if logs_in:
                client.send(CONNECT)
                assert client.receive().startswith(b"CONNECTED")
            for _ in range(30):
                assert client.update_keys(both=both)
            client.send(b"SEND\ndestination:/queue/k\nreceipt:k\n\nx\0" if logs_in else CONNECT)
            # So many are served; only then it is too much.
            data = b""
            while b"\n" not in data:
                data += client.receive()
            assert b"ERROR" not in data
            for _ in range(200):
                client.update_keys(both=both)
            client.send(DISCONNECT)
            assert TOO_MANY in _all_of(client)
        witness.is_served()
        logged(node, TOO_MANY.decode())


def _all_of(client: OpenSslClient) -> bytes:
    data = b""
    while chunk := client.receive():
        data += chunk
    return data


def test_key_updates_that_stand_between_messages_are_few(tls: TlsNode) -> None:
    """One now and then makes no ordinary client of a flood; ten thousand messages allow some."""
    with OpenSslClient(tls.node.open()) as client:
        client.send(CONNECT)
        assert client.receive().startswith(b"CONNECTED")
        for _ in range(200):
            client.send(b"\n")
            client.update_keys(both=False)
        client.send(DISCONNECT)
        assert TOO_MANY in _all_of(client)
    with OpenSslClient(tls.node.open()) as client:
        client.send(CONNECT)
        assert client.receive().startswith(b"CONNECTED")
        for number in range(10_000):
            assert client.send(b"\n")
            if number % 100 == 0:
                assert client.update_keys(both=False)
        client.send(b"SEND\ndestination:/queue/k\nreceipt:k\n\nx\0")
        assert b"receipt-id:k" in client.receive()


def test_nobody_renegotiates(tls: TlsNode) -> None:
    """TLS 1.2 could: each would be a handshake more, and none comes about."""
    witness = tls.witness()
    with OpenSslClient(tls.node.open(), is_old=True) as client:
        client.send(CONNECT)
        assert client.receive().startswith(b"CONNECTED")
        assert not client.renegotiate()
    witness.is_served()


def test_very_many_records_of_one_byte_leave_others_their_turn(tls: TlsNode) -> None:
    """Of what one read brings a few are decrypted at a time, and all of them in the end."""
    witness = tls.witness()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with tls.node.open() as plain:
        shake_hands(plain, client, incoming, outgoing)
        client.write(CONNECT)
        plain.sendall(outgoing.read())
        for _ in range(4):
            for _ in range(20_000):
                client.write(b"\n")
            plain.sendall(outgoing.read())
            witness.is_served()
        client.write(b"SEND\ndestination:/queue/t\nreceipt:t\n\nx\0")
        plain.sendall(outgoing.read())
        data = b""
        while b"receipt-id:t" not in data:
            incoming.write(plain.recv(65_536))
            with suppress(ssl.SSLWantReadError):
                while True:
                    data += client.read(65_536)


# --- how it ends


@pytest.mark.parametrize("is_websocket", [False, True])
@pytest.mark.parametrize("how", ["half", "whole", "reset", "tls alone"])
def test_however_a_client_goes_it_is_forgotten(tls: TlsNode, is_websocket: bool, how: str) -> None:
    """Without a close frame, amid a frame, without the end of TLS: its message is another's."""
    queue = b"/queue/gone-%d-%b" % (is_websocket, how.encode().replace(b" ", b""))
    subscribe = b"SUBSCRIBE\nid:1\ndestination:%b\nack:client\n\n\0" % queue
    producer = tls.connect()
    producer.sendall(b"SEND\ndestination:%b\nreceipt:s\n\nhello\0" % queue)
    assert b"receipt-id:s" in producer.recv(4096)
    client = tls.logged_in() if is_websocket else tls.connect()
    client.sendall(frame(0x82, subscribe) if is_websocket else subscribe)
    data = b""
    while b"hello" not in data:
        data += client.recv(4096)
    client.sendall(frame(0x82, b"x" * 100)[:50] if is_websocket else b"SEND\nx")
    if how == "tls alone":
        with suppress(OSError):
            client.settimeout(0.0)
            client.unwrap()  # says that nothing follows, and leaves the socket open
    elif how == "half":
        client.shutdown(socket.SHUT_WR)
    elif how == "whole":
        socket.socket(fileno=client.detach()).close()
    else:
        plain = socket.socket(fileno=client.detach())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.close()
    other = tls.connect()
    other.sendall(subscribe)
    data = b""
    while b"hello" not in data:
        chunk = other.recv(4096)
        assert chunk
        data += chunk
    producer.close()
    other.close()
