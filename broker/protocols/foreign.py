"""Clients of protocols that are not served, known by the first bytes they send.

A GET is not among them: with it a WebSocket begins, ``orthia.broker.connections.upgrade``.

A TLS handshake or a request of HTTP has no end that a STOMP parser would see: without this they
wait for ``connect-timeout`` and learn nothing.
"""

from typing import Final, NamedTuple

from orthia.broker.protocols.stomp.frames import Version, error_frame

ENOUGH: Final = 8
"""Bytes after which everybody is known."""
GET: Final = b"GET "
"""With this a WebSocket begins; no frame of STOMP begins as it does."""
_HTTP: Final = tuple(
    f"{method} ".encode()
    for method in (
        "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI",
    )
)  # fmt: skip
_BINARY: Final = (
    (b"\x16\x03", "TLS", "this acceptor has none: connect without it, or set sslEnabled"),
    (b"ARTEMIS", "Artemis' own protocol (CORE)", "expected STOMP 1.0, 1.1 or 1.2"),
    (b"HORNETQ", "HornetQ's own protocol", "expected STOMP 1.0, 1.1 or 1.2"),
    (b"AMQP", "AMQP", "expected STOMP 1.0, 1.1 or 1.2"),
    (b"\x10", "MQTT", "expected STOMP 1.0, 1.1 or 1.2"),
    (b"\x00", "a binary protocol, as OpenWire is", "expected STOMP 1.0, 1.1 or 1.2"),
)


class ForeignClient(NamedTuple):
    """A client that does not speak STOMP."""

    reason: str
    answer: bytes
    """What it is sent before the connection is closed, in its own protocol where that can be."""


def recognise(first: bytes) -> ForeignClient | None:
    """Return whose first bytes these are; None for STOMP, and while it is not certain."""
    if first.startswith(_HTTP):
        reason = "the first bytes are of HTTP, and this port speaks STOMP, over TCP or WebSocket"
        return ForeignClient(reason, http_answer("400 Bad Request", reason))
    for beginning, name, advice in _BINARY:
        if first.startswith(beginning):
            reason = f"the first bytes are of {name}; {advice}"
            return ForeignClient(
                reason, error_frame(reason, None, Version.V1_2, names_versions=True)
            )
    return None


def without_tls(why: str, first: bytes) -> ForeignClient:
    """Return a client that speaks no TLS where nothing else is spoken."""
    reason = f"{why}, and this acceptor has sslEnabled=true: connect by TLS"
    if first.startswith((GET, *_HTTP)):
        return ForeignClient(reason, http_answer("400 Bad Request", reason))
    return ForeignClient(reason, error_frame(reason, None, Version.V1_2))


def http_answer(status: str, reason: str, headers: bytes = b"") -> bytes:
    """Return the answer of HTTP that refuses a request for ``reason`` and ends the connection."""
    body = reason.encode() + b"\n"
    return (
        b"HTTP/1.1 %b\r\n"
        b"Content-Type: text/plain;charset=utf-8\r\n"
        b"Content-Length: %d\r\n"
        b"%bConnection: close\r\n\r\n%b" % (status.encode(), len(body), headers, body)
    )
