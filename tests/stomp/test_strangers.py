"""Clients of other protocols learn at once that this port speaks STOMP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.refusals import Refusal
from orthia.broker.protocols.stomp.session import StompSession
from orthia.broker.protocols.stomp.strangers import ENOUGH, recognise
from orthia.config.settings import StompLimits
from tests.core.support import CoreUnderTest

CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
WEBSOCKET = b"GET /stomp HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class Line:
    """A session that has just been connected."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.refusals: list[tuple[Refusal, str]] = []
        self.session = StompSession(
            CoreUnderTest().broker,
            StompLimits(),
            write=self._write,
            close=self._close,
            clock=lambda: 0.0,
            refused=lambda kind, reason: self.refusals.append((kind, reason)),
        )

    def _write(self, data: bytes) -> int:
        self.written += data
        return len(self.written)

    def _close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("sent", "name", "answer"),
    [
        (TLS_HELLO, "TLS", b"ERROR\n"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"CONNECT h:443 HTTP/1.1\r\n\r\n", "HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
        (WEBSOCKET, "WebSocket", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"AMQP\x00\x01\x00\x00", "AMQP", b"ERROR\n"),
        (b"ARTEMIS\x00\x00\x00\x1c", "CORE", b"ERROR\n"),
        (b"HORNETQ", "HornetQ", b"ERROR\n"),
        (b"\x10\x0c\x00\x04MQTT\x04", "MQTT", b"ERROR\n"),
        (b"\x00\x00\x00\xf0\x01ActiveMQ", "OpenWire", b"ERROR\n"),
    ],
)
def test_a_client_of_another_protocol_is_told_at_its_first_bytes(
    sent: bytes, name: str, answer: bytes, at_once: bool
) -> None:
    """However they are cut into pieces; the reason names its protocol, and is noted."""
    line = Line()
    for piece in [sent] if at_once else [sent[at : at + 1] for at in range(len(sent))]:
        line.session.receive(piece)
    assert line.written.startswith(answer)
    assert line.is_closed
    ((kind, reason),) = line.refusals
    assert kind is Refusal.PROTOCOL
    assert name in reason
    assert reason.encode() in line.written


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\r\n\n\n\n\n\n\n"])
@pytest.mark.parametrize("frame", [CONNECT, CONNECT.replace(b"CONNECT", b"STOMP")])
def test_a_client_of_stomp_is_not_taken_for_a_stranger(before: bytes, frame: bytes) -> None:
    """Nor if its frame comes byte by byte, or after line ends."""
    line = Line()
    for byte in before + frame:
        line.session.receive(bytes((byte,)))
    assert line.written.startswith(b"CONNECTED\n")
    assert line.refusals == []


@given(st.binary(max_size=20))
def test_what_is_told_of_some_bytes_is_told_of_more(data: bytes) -> None:
    """Once it is certain it stays so, and it is certain after the first few."""
    known = [recognise(data[:length]) for length in range(len(data) + 1)]
    certain = next((one for one in known if one is not None), None)
    assert known[-1] == certain
    assert recognise(data[:ENOUGH]) == recognise(data)
