"""Clients of other protocols learn at once that this port speaks STOMP."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.foreign import ENOUGH, recognise, without_tls
from tests.core.test_server import (
    CONNECT,
    PATIENCE,
    ServerUnderTest,
    read_to_the_end,
    serving,
)

TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def connect(server: ServerUnderTest) -> socket.socket:
    """Connect and say nothing yet."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def send(client: socket.socket, data: bytes, *, at_once: bool) -> None:
    """Send ``data``, perhaps byte by byte."""
    for piece in [data] if at_once else [data[at : at + 1] for at in range(len(data))]:
        client.sendall(piece)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("sent", "name", "answer"),
    [
        (TLS_HELLO, "TLS", b"ERROR\n"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"CONNECT h:443 HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"AMQP\x00\x01\x00\x00", "AMQP", b"ERROR\n"),
        (b"ARTEMIS\x00\x00\x00\x1c", "CORE", b"ERROR\n"),
        (b"HORNETQ", "HornetQ", b"ERROR\n"),
        (b"\x10\x0c\x00\x04MQTT\x04", "MQTT", b"ERROR\n"),
        (b"\x00\x00\x00\xf0\x01ActiveMQ", "OpenWire", b"ERROR\n"),
        (b"\x00\x00\x00\x2d\x00\x12\x00\x04", "Kafka", b"ERROR\n"),
        (b"\x00\x00\x00\x2d\x01\x12\x00\x04", "a binary protocol", b"ERROR\n"),
    ],
)
def test_a_client_of_another_protocol_is_told_at_its_first_bytes(
    sent: bytes,
    name: str,
    answer: bytes,
    at_once: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However they are cut into pieces; the reason names its protocol, and is noted."""
    # However long it takes to send what is left when the answer is there.
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 3_600)
    with serving(connect_timeout=3_600_000) as server, connect(server) as client:
        send(client, sent, at_once=at_once)
        written = read_to_the_end(client)
        refused = server.call(lambda: list(server.refused))
    assert written.startswith(answer)
    assert refused == [Refusal.PROTOCOL.value]
    (line,) = [one.getMessage() for one in caplog.records if "was refused" in one.getMessage()]
    reason = line.partition(" was refused: ")[2].partition(" (acceptor ")[0]
    assert name in reason
    assert reason.encode() in written


@pytest.mark.parametrize(
    ("sent", "advised"),
    [
        (b"ARTEMIS\x00", True),
        (b"\x00\x00\x00\xf0\x01ActiveMQ", True),
        (b"\x10\x0c\x00\x04MQTT", False),
    ],
)
def test_who_may_have_come_from_artemis_is_told_of_amqp(sent: bytes, *, advised: bool) -> None:
    """By which client its applications connect; not where AMQP is not served."""
    for expected, is_served in (("AMQP 1.0, or STOMP 1.2", True), ("STOMP 1.2", False)):
        found = recognise(sent, expected)
        assert found is not None
        assert ("connect with qpid-jms, by AMQP" in found.reason) == (advised and is_served)


def test_a_client_of_amqp_without_tls_is_told_in_its_own_words() -> None:
    """By the protocol header that asks for TLS, which clients know."""
    said = without_tls("the first bytes are not of TLS", b"AMQP\x03\x01\x00\x00")
    assert said.answer == b"AMQP\x02\x01\x00\x00"
    assert without_tls("the first bytes are not of TLS", b"CONNECT\n").answer == b""


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\r\n\n\n\n\n\n\n"])
@pytest.mark.parametrize("frame", [CONNECT, CONNECT.replace(b"CONNECT", b"STOMP")])
def test_a_client_of_stomp_is_not_taken_for_one_of_another_protocol(
    before: bytes, frame: bytes
) -> None:
    """Nor if its frame comes byte by byte, or after line ends."""
    with serving(connect_timeout=3_600_000) as server, connect(server) as client:
        send(client, before + frame, at_once=False)
        assert client.recv(4_096).startswith(b"CONNECTED\n")
        assert server.call(lambda: list(server.refused)) == []


@given(st.binary(max_size=20))
def test_what_is_told_of_some_bytes_is_told_of_more(data: bytes) -> None:
    """Once it is certain it stays so, and it is certain after the first few."""
    known = [recognise(data[:length], "STOMP") for length in range(len(data) + 1)]
    certain = next((one for one in known if one is not None), None)
    assert known[-1] == certain
    assert recognise(data[:ENOUGH], "STOMP") == recognise(data, "STOMP")
