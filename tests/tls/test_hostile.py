"""Handshakes that go wrong, do not end, or are too many: bounded as clients without TLS are."""

import random
import socket
import ssl
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from tests.core.test_server import CONNECT, read_to_the_end, read_until, serving
from tests.hostile.node import live_node
from tests.process.file_nodes import file_cluster
from tests.support.certificates import Authority, rsa_key
from tests.support.leases import looking
from tests.support.waiting import wait_until
from tests.tls.test_acceptors import secured, trusting, with_tls
from tests.websocket.test_upgrade import head

_FLOODED = """<store><database-store>
    <jdbc-connection-url>{url}</jdbc-connection-url>
    <jdbc-lock-renew-period>500</jdbc-lock-renew-period>
    <jdbc-lock-expiration>300000</jdbc-lock-expiration>
  </database-store></store>
  <stomp-limits xmlns="urn:orthia">
    <connect-timeout>600000</connect-timeout>
    <max-unauthenticated-per-address>50</max-unauthenticated-per-address>
  </stomp-limits>
"""
RECORD = b"\x16\x03\x01"
"""How the first record of TLS begins."""


def client_hello() -> bytes:
    """Return the first bytes of an ordinary client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.fixture(name="parameters")
def _parameters(authority: Authority, tmp_path: Path) -> str:
    return f"keyStorePath={authority.sign().write_pem(tmp_path / 'broker.pem')}"


def opened(port: int, sent: bytes) -> socket.socket:
    """Connect and send."""
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.sendall(sent)
    return client


@pytest.mark.parametrize(
    "sent",
    [b"", RECORD, RECORD + b"\x40\x00" + b"x", client_hello()[:100], client_hello()],
    ids=["nothing", "three bytes", "part of a record", "part of a hello", "a hello"],
)
def test_a_handshake_that_does_not_end_is_ended(
    parameters: str, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    """After connect-timeout, as a client that never says CONNECT; and it is said so."""
    with (
        serving(with_tls(parameters), connect_timeout=300) as server,
        opened(server.port, sent) as client,
    ):
        read_to_the_end(client)
        client.close()
        wait_until(lambda: server.connections == 0, what="it is forgotten")
        assert server.refused == ["no-connect"]
    assert "no CONNECT frame within 300 ms: its TLS handshake did not end" in caplog.text


def test_handshakes_of_one_address_make_room_for_each_other(
    authority: Authority, parameters: str
) -> None:
    """The oldest goes: there are no more of them than of other clients without a login."""
    with (
        serving(
            with_tls(parameters), connect_timeout=600_000, max_unauthenticated_per_address=10
        ) as server,
        ExitStack() as stack,
    ):
        hello = client_hello()
        clients = [stack.enter_context(opened(server.port, hello)) for _ in range(50)]
        wait_until(lambda: len(server.refused) == 40, what="forty have made room")
        assert {*server.refused} == {"address-connections"}
        assert server.connections == 10
        for client in clients[:40]:
            read_to_the_end_or_reset(client)
        with secured(server, trusting(authority)) as honest:
            honest.sendall(CONNECT)
            assert read_until(honest, b"\0").startswith(b"CONNECTED")


def read_to_the_end_or_reset(client: socket.socket) -> None:
    """Read until the broker closes, in whatever way."""
    with suppress(ConnectionResetError):
        read_to_the_end(client)


def test_what_is_no_handshake_is_refused(parameters: str, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that begin as TLS and are none, at random: each client is ended, and counted."""
    choose = random.Random(7)
    with serving(with_tls(parameters), connect_timeout=2_000) as server:
        for number in range(30):
            hello = bytearray(client_hello() if number % 2 else RECORD + choose.randbytes(600))
            for _ in range(20):
                hello[choose.randrange(3, len(hello))] = choose.randrange(256)
            with opened(server.port, bytes(hello)) as client:
                client.shutdown(socket.SHUT_WR)
                read_to_the_end_or_reset(client)
        wait_until(lambda: server.connections == 0, what="all are forgotten")
        assert {*server.refused} <= {"tls", "no-connect"}
        assert "tls" in server.refused
    assert "its TLS handshake failed: " in caplog.text
    assert not [one for one in caplog.records if one.exc_info]


@pytest.mark.parametrize(
    "first", [CONNECT, b"RUBBISH\n\n\0", head()], ids=["CONNECT", "no STOMP", "WebSocket"]
)
def test_what_is_answered_and_then_no_tls_leaves_nobody_behind(
    authority: Authority, parameters: str, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In one piece with the end of the handshake: the answer can be sent no more."""
    with serving(
        with_tls(parameters), connect_timeout=600_000, max_unauthenticated_per_address=3
    ) as server:
        for _ in range(5):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
            with socket.create_connection(("127.0.0.1", server.port), timeout=120) as plain:
                shake_hands(plain, client, incoming, outgoing)
                client.write(first)
                plain.sendall(outgoing.read() + b"nonsense" * 10)
                read_to_the_end_or_reset(plain)
        wait_until(lambda: server.connections == 0, what="they are forgotten")
        with secured(server, trusting(authority)) as honest:
            honest.sendall(CONNECT)
            assert read_until(honest, b"\0").startswith(b"CONNECTED")
    assert not [one for one in caplog.records if one.exc_info]


def shake_hands(
    plain: socket.socket, client: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Have ``client`` shake hands by a socket; what it sends last is left in ``outgoing``."""
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(65_536))
        else:
            return


def test_a_flood_of_handshakes_disturbs_no_lease(authority: Authority, tmp_path: Path) -> None:
    """From several threads, as fast as they can; a client that is there is served meanwhile."""
    key_store = authority.sign(key=rsa_key()).write_pem(tmp_path / "broker.pem")
    url = f"jdbc:sqlite:{tmp_path / 'orthia.db'}"
    parameters = f"?sslEnabled=true;keyStorePath={key_store}"
    context, done, counts = trusting(authority), threading.Event(), [0] * 3

    def connected(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=120)
        return context.wrap_socket(plain, server_hostname="localhost")

    with ExitStack() as stack:
        nodes = stack.enter_context(
            file_cluster(tmp_path, _FLOODED.format(url=url), parameters=parameters)
        )
        node = nodes.alone()
        expires = stack.enter_context(looking(DatabaseStoreSettings(DatabaseUrl.parse(url))))
        renewals: set[object] = set()

        def is_renewed() -> bool:
            renewals.add(expires())
            return len(renewals) > 5

        def flood(mine: int) -> None:
            while not done.is_set():
                with suppress(OSError), connected(node.port):
                    counts[mine] += 1

        threads = [threading.Thread(target=flood, args=(one,)) for one in range(len(counts))]
        with connected(node.port) as client:
            client.sendall(CONNECT)
            assert client.recv(4096).startswith(b"CONNECTED")
            for thread in threads:
                thread.start()
            try:
                for number in range(100):
                    client.sendall(b"SEND\ndestination:/queue/q\nreceipt:r%d\n\nx\0" % number)
                    read_until(client, b"receipt-id:r%d\n" % number)
                wait_until(lambda: sum(counts) > 500, what="there were many handshakes")
                wait_until(is_renewed, what="the lease is renewed, and again, and again")
            finally:
                done.set()
                for thread in threads:
                    thread.join()
        assert node.terminate() == 0  # and has written all of its log
        assert "serving under token 1;" in node.log
        assert "lost" not in node.log, node.log
        assert "Traceback" not in node.log, node.log


def test_what_large_messages_went_through_is_not_kept(authority: Authority, tmp_path: Path) -> None:
    """OpenSSL's buffers never get smaller: each client that was busy once would have large ones."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    parameters = f";sslEnabled=true;keyStorePath={store}"
    head = b"SEND\ndestination:/topic/%d\ncontent-length:90000\nreceipt:r\n\n"
    with live_node(tmp_path, parameters=parameters, connect_timeout=600_000) as node:
        context = trusting(authority)

        def busy_client(number: int) -> ssl.SSLSocket:
            client = context.wrap_socket(node.open(), server_hostname="localhost")
            client.sendall(CONNECT + b"SUBSCRIBE\nid:1\ndestination:/topic/%d\n\n\0" % number)
            client.sendall(head % number + 90_000 * b"x" + b"\0")
            data = b""
            while b"receipt-id:r" not in data or data.count(b"x") < 90_000:
                data += client.recv(65_536)
            return client

        clients = [busy_client(number) for number in range(30)]
        before = node.resident
        clients += [busy_client(number) for number in range(30, 130)]
        assert (node.resident - before) / 100 < 105 * 1024
        for client in clients:
            client.close()
