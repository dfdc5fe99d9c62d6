"""The HTTP request with which a WebSocket begins: granted, or refused by an HTTP response.

The rules are of RFC 6455, section 4.2. Of the sub-protocols that a client offers, the one that the
acceptor's protocols want most is chosen, wherever it stands in its list; a client that offers none
is taken too, as in Artemis. A request with an Origin is of a page in a browser, which anybody may
have written: it is taken from pages that are allowed by name, or are of the same machine as the
node.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import h11
from wsproto.utilities import generate_accept_token

from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.abc import UNAUTHENTICATED_BYTES
from orthia.broker.protocols.foreign import http_answer
from orthia.broker.quoting import quoted
from orthia.config.acceptor_websocket import ANY_ORIGIN
from orthia.config.settings import AcceptorSettings

MAX_HEAD_BYTES: Final = UNAUTHENTICATED_BYTES
"""Bytes of the request, whose sender has not logged in yet."""
_KEY_BYTES: Final = 16
_WEBSOCKET_VERSION: Final = "13"


class Accepted(NamedTuple):
    """A granted request."""

    answer: bytes
    subprotocol: str | None
    """The sub-protocol that the client offered and the node chose; None if it offered none."""


@dataclass(frozen=True)
class UpgradeRefused(Exception):  # noqa: N818 - a response, not an error of ours
    """A refused request."""

    reason: str
    status: str = "400 Bad Request"
    kind: Refusal = Refusal.PROTOCOL
    headers: bytes = b""

    @property
    def answer(self) -> bytes:
        """The response."""
        return http_answer(self.status, self.reason, self.headers)


def answer_to(
    head: bytes, acceptor: AcceptorSettings, address: str, subprotocols: Sequence[str]
) -> Accepted:
    """Return the answer to a request, of which ``head`` is all up to the empty line.

    ``address`` is the client's; of the ``subprotocols`` the last are wanted most.

    Raises UpgradeRefused.
    """
    headers = _headers(head)
    if "websocket" not in _words(headers.get(b"upgrade", ())):
        raise UpgradeRefused(
            "the first bytes are of HTTP, which opens a WebSocket here, for"
            f" {', '.join(subprotocols)}: the request has no 'Upgrade: websocket'"
        )
    if "upgrade" not in _words(headers.get(b"connection", ())):
        raise UpgradeRefused(
            "the request has no 'Connection: Upgrade', without which no WebSocket begins"
        )
    if headers.get(b"content-length", [b"0"]) != [b"0"] or b"transfer-encoding" in headers:
        raise UpgradeRefused("the request has a body, and one for a WebSocket has none")
    version = headers.get(b"sec-websocket-version", [])
    if version != [_WEBSOCKET_VERSION.encode()]:
        raise UpgradeRefused(
            f"the request asks for version {_shown(version)} of WebSocket;"
            f" expected {_WEBSOCKET_VERSION}",
            "426 Upgrade Required",
            headers=b"Sec-WebSocket-Version: %b\r\n" % _WEBSOCKET_VERSION.encode(),
        )
    key = headers.get(b"sec-websocket-key", [])
    if len(key) != 1 or not _is_key(key[0]):
        raise UpgradeRefused(f"Sec-WebSocket-Key is {_shown(key)}; expected 16 bytes in base64")
    _check_origin(headers.get(b"origin", []), acceptor, address)
    chosen = _subprotocol(headers.get(b"sec-websocket-protocol"), subprotocols)
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + generate_accept_token(key[0]),
    ]
    if chosen is not None:
        lines.append(b"Sec-WebSocket-Protocol: " + chosen.encode())
    return Accepted(b"\r\n".join([*lines, b"", b""]), chosen)


def _headers(head: bytes) -> dict[bytes, list[bytes]]:
    """Return the headers by their lower-case names; raises UpgradeRefused."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    http.receive_data(head)
    try:
        request = http.next_event()
    except h11.RemoteProtocolError as error:
        raise UpgradeRefused(f"the request is not one of HTTP/1.1: {quoted(str(error))}") from None
    if not isinstance(request, h11.Request) or request.http_version != b"1.1":
        raise UpgradeRefused("the request is not one of HTTP/1.1")
    headers: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        headers.setdefault(name, []).append(value)
    return headers


def _listed(values: Iterable[bytes]) -> list[str]:
    """Return the entries of all headers of one name."""
    return [one.strip() for value in values for one in value.decode("latin-1").split(",")]


def _words(values: Iterable[bytes]) -> list[str]:
    """Return the same in lower case, for lists in which case does not count."""
    return [one.lower() for one in _listed(values)]


def _shown(values: list[bytes]) -> str:
    return quoted(b", ".join(values).decode("latin-1")) if values else "missing"


def _is_key(value: bytes) -> bool:
    try:
        return len(b64decode(value, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


def _subprotocol(offered: list[bytes] | None, served: Sequence[str]) -> str | None:
    """Return the one chosen of those a client offers; raises UpgradeRefused if none is served."""
    if offered is None:
        return None
    names = _listed(offered)
    common = [one for one in served if one in names]
    if not common:
        raise UpgradeRefused(
            f"the WebSocket is for {_shown(offered)}, and this port has the sub-protocols"
            f" {', '.join(served)} only"
        )
    return common[-1]


def _check_origin(origins: list[bytes], acceptor: AcceptorSettings, address: str) -> None:
    """Raise UpgradeRefused if the page that sends the request may not connect."""
    allowed = acceptor.web_socket.allowed_origins
    if not origins or ANY_ORIGIN in allowed:
        return
    origin = origins[0].decode("latin-1").lower()
    if len(origins) == 1 and (
        origin in allowed or (not allowed and _is_local(origin) and _is_loopback(address))
    ):
        return
    raise UpgradeRefused(
        f"a page of {_shown(origins)} may not connect: webSocketAllowedOrigins of acceptor"
        f" {acceptor.name!r} does not name it",
        "403 Forbidden",
        Refusal.ORIGIN,
    )


def _is_local(origin: str) -> bool:
    """Return whether a page was served by the machine its browser runs on."""
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or _is_loopback(host)


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
