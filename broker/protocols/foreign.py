"""Clients of protocols that are not served, recognised by the first bytes they send.

A GET is not among them: a WebSocket begins with it, ``orthia.broker.connections.upgrade``.

A TLS handshake or a request of HTTP has no end that a STOMP parser would see: without this such
clients wait for ``connect-timeout`` and learn nothing.
"""

from typing import Final, NamedTuple

ENOUGH: Final = 8
"""Bytes after which every client is recognised."""
GET: Final = b"GET "
"""A WebSocket begins with this; no frame of STOMP does."""
_HTTP: Final = tuple(
    f"{method} ".encode()
    for method in (
        "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI",
    )
)  # fmt: skip
_BY_AMQP: Final = "; applications of JMS connect with qpid-jms, by AMQP"
_BINARY: Final = (
    (b"ARTEMIS", "Artemis' own protocol (CORE)", _BY_AMQP),
    (b"HORNETQ", "HornetQ's own protocol", _BY_AMQP),
    (b"AMQP", "AMQP", ""),
    (b"\x10", "MQTT", ""),
)
_LENGTH: Final = b"\x00"
"""The first byte of four that are a length, with which these begin."""
_AFTER_A_LENGTH: Final = (
    (b"\x01Act", "OpenWire", _BY_AMQP),
    (b"\x00\x12", "Kafka", ""),
)
_TLS: Final = b"\x16\x03"
_AMQP: Final = b"AMQP"
_AMQP_BY_TLS: Final = b"AMQP\x02\x01\x00\x00"
"""The protocol header by which AMQP says that TLS comes first."""


class ForeignClient(NamedTuple):
    """A client whose protocol is not served."""

    reason: str
    answer: bytes
    """Sent before the connection is closed, in the client's own protocol; empty if it has to be in
    one that is served."""


def recognise(first: bytes, expected: str) -> ForeignClient | None:
    """Return the client whose first bytes these are; None while it may be one that is served.

    ``expected`` names the protocols that are.
    """
    if first.startswith(_HTTP):
        reason = f"the first bytes are of HTTP; expected {expected}, over TCP or WebSocket"
        return ForeignClient(reason, http_answer("400 Bad Request", reason))
    if first.startswith(_TLS):
        advice = "this acceptor has none: connect without it, or set sslEnabled"
        return ForeignClient(f"the first bytes are of TLS; {advice}", b"")
    for beginning, name, advice in _BINARY:
        if first.startswith(beginning):
            return _not_served(name, expected, advice)
    if not first.startswith(_LENGTH) or is_undecided(first):
        return None
    for beginning, name, advice in _AFTER_A_LENGTH:
        if first[4:].startswith(beginning):
            return _not_served(name, expected, advice)
    return _not_served("a binary protocol", expected, "")


def is_undecided(first: bytes) -> bool:
    """Return whether no protocol that is served begins so, and too little came to name another."""
    return first.startswith(_LENGTH) and len(first) < ENOUGH


def _not_served(name: str, expected: str, advice: str) -> ForeignClient:
    # Whoever is told to speak AMQP must be able to, here.
    told = advice if "AMQP" in expected else ""
    return ForeignClient(f"the first bytes are of {name}; expected {expected}{told}", b"")


def without_tls(why: str, first: bytes) -> ForeignClient:
    """Return a client that speaks no TLS to an acceptor that requires it."""
    reason = f"{why}, and this acceptor has sslEnabled=true: connect by TLS"
    if first.startswith((GET, *_HTTP)):
        return ForeignClient(reason, http_answer("400 Bad Request", reason))
    return ForeignClient(reason, _AMQP_BY_TLS if first.startswith(_AMQP) else b"")


def http_answer(status: str, reason: str, headers: bytes = b"") -> bytes:
    """Return the answer of HTTP that refuses a request for ``reason`` and ends the connection."""
    body = reason.encode() + b"\n"
    return (
        b"HTTP/1.1 %b\r\n"
        b"Content-Type: text/plain;charset=utf-8\r\n"
        b"Content-Length: %d\r\n"
        b"%bConnection: close\r\n\r\n%b" % (status.encode(), len(body), headers, body)
    )
