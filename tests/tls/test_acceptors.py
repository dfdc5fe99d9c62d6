"""Acceptors with ``sslEnabled``: real certificates, Python's ssl and stomp.py as clients."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import stomp
from cryptography.hazmat.primitives.serialization import Encoding
from stomp.utils import Frame

from orthia.config.acceptors import parse_acceptor
from orthia.config.settings import Settings
from tests.core.support import SETTINGS
from tests.core.test_server import (
    CONNECT,
    ServerUnderTest,
    read_to_the_end,
    read_until,
    serving,
)
from tests.support.certificates import Authority
from tests.support.waiting import wait_until


@pytest.fixture(name="authority")
def _authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca.pem")


def with_tls(parameters: str) -> Settings:
    """Return settings with one acceptor on a free port of this machine."""
    url = f"tcp://127.0.0.1:0?sslEnabled=true;{parameters}"
    return replace(SETTINGS, acceptors=(parse_acceptor("tls", url).settings,))


def trusting(authority: Authority) -> ssl.SSLContext:
    """Return what a client of the authority speaks TLS with."""
    pem = authority.certificate.public_bytes(Encoding.PEM).decode()
    return ssl.create_default_context(cadata=pem)


@contextmanager
def secured(
    server: ServerUnderTest, context: ssl.SSLContext, name: str = "localhost"
) -> Iterator[ssl.SSLSocket]:
    """Connect by TLS."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        yield client


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Notes what comes."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.receipts: list[str] = []

    def on_message(self, frame: Frame) -> None:
        """Note a message."""
        self.bodies.append(frame.body)

    def on_receipt(self, frame: Frame) -> None:
        """Note a receipt."""
        self.receipts.append(frame.headers["receipt-id"])


def test_an_ordinary_client_sends_and_receives(authority: Authority, tmp_path: Path) -> None:
    """stomp.py by TLS, verifying who it speaks to; a large message, too."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        client = stomp.Connection12([("localhost", server.port)])
        client.set_ssl(for_hosts=[("localhost", server.port)], ca_certs=str(tmp_path / "ca.pem"))
        listener = Listener()
        client.set_listener("", listener)
        client.connect(wait=True)
        client.subscribe("/queue/q", "1")
        bodies = ["short", 1_000_000 * "x"]
        for number, body in enumerate(bodies):
            client.send("/queue/q", body, receipt=str(number))
        wait_until(lambda: listener.bodies == bodies, what="both came back")
        wait_until(lambda: listener.receipts == ["0", "1"], what="both are confirmed")
        client.disconnect()
        wait_until(lambda: server.connections == 0, what="the connection is forgotten")


def test_an_error_is_read_whole_before_the_connection_closes(
    authority: Authority, tmp_path: Path
) -> None:
    """The client learns why, then sees the orderly end of TLS, and of the connection."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with (
        serving(with_tls(f"keyStorePath={store}")) as server,
        secured(server, trusting(authority)) as client,
    ):
        client.sendall(CONNECT)
        read_until(client, b"\0")
        client.sendall(b"NONSENSE\n\n\0" + 50_000 * b"more")
        assert b"unknown command 'NONSENSE'" in read_to_the_end(client)


def test_who_speaks_no_tls_is_told_in_the_clear(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """STOMP by an ERROR, HTTP by its own answer; one line in the log."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        for sent, answer in ((CONNECT, b"ERROR\n"), (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                client.sendall(sent)
                told = read_to_the_end(client)
                assert told.startswith(answer)
                assert b"sslEnabled=true: connect by TLS" in told
        wait_until(lambda: server.connections == 0, what="both are forgotten")
        assert server.refused == ["tls", "tls"]
    assert [one for one in caplog.messages if "not of TLS" in one] == [
        "a client at 127.0.0.1 was refused: the first bytes are not of TLS, and this acceptor has"
        " sslEnabled=true: connect by TLS"
    ]
