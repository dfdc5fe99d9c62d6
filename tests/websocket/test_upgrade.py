"""The request with which a WebSocket begins: what is granted, and what is refused and how."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.connections.upgrade import UpgradeRefused, answer_to
from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.stomp.options import SUBPROTOCOLS
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.settings import AcceptorSettings

HEADERS = {
    "Host": "broker.example:61613",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The key is RFC 6455's example, whose answer it gives."""

STOMP = tuple(SUBPROTOCOLS)


def head(line: str = "GET /stomp HTTP/1.1", **changed: str | None) -> bytes:
    """Return a request with some of its headers changed, or without those that are None."""
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


def acceptor(*origins: str) -> AcceptorSettings:
    """Return an acceptor that allows ``origins``."""
    settings = AcceptorWebSocket(allowed_origins=origins)
    return AcceptorSettings("stomp", "127.0.0.1", 61_613, web_socket=settings)


def refusal(request: bytes, *origins: str, address: str = "192.0.2.1") -> UpgradeRefused:
    """Return how a request is refused."""
    with pytest.raises(UpgradeRefused) as caught:
        answer_to(request, acceptor(*origins), address, STOMP)
    return caught.value


def test_the_answer_is_that_of_the_rfc() -> None:
    """Nothing is agreed on but the sub-protocol."""
    request = head(
        Sec_WebSocket_Protocol="v10.stomp, v12.stomp,v11.stomp",
        Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
    )
    accepted = answer_to(request, acceptor(), "192.0.2.1", STOMP)
    assert accepted.answer == (
        b"HTTP/1.1 101 Switching Protocols\r\n"
        b"Upgrade: websocket\r\n"
        b"Connection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
        b"Sec-WebSocket-Protocol: v12.stomp\r\n\r\n"
    )
    assert accepted.subprotocol == "v12.stomp"


def test_a_client_without_subprotocols_is_taken() -> None:
    """As Artemis takes it; it may ask for any version."""
    accepted = answer_to(head(), acceptor(), "192.0.2.1", STOMP)
    assert b"Sec-WebSocket-Protocol" not in accepted.answer
    assert accepted.subprotocol is None


@pytest.mark.parametrize(
    ("request_head", "status", "reason"),
    [
        (
            head(Upgrade=None),
            "400",
            "for v10.stomp, v11.stomp, v12.stomp: the request",
        ),
        (head(Upgrade="h2c"), "400", "the request has no 'Upgrade: websocket'"),
        (head(Connection="close"), "400", "has no 'Connection: Upgrade'"),
        (head("GET /stomp HTTP/1.0"), "400", "not one of HTTP/1.1"),
        (head("GET /sto mp HTTP/1.1"), "400", "not one of HTTP/1.1"),
        (head(Host=None), "400", "not one of HTTP/1.1: 'Missing mandatory Host"),
        (head(Content_Length="5"), "400", "the request has a body"),
        (head(Transfer_Encoding="chunked"), "400", "the request has a body"),
        (head(Sec_WebSocket_Version="8"), "426", "version '8' of WebSocket; expected 13"),
        (head(Sec_WebSocket_Version=None), "426", "expected 13"),
        (head(Sec_WebSocket_Key=None), "400", "Sec-WebSocket-Key is missing"),
        (head(Sec_WebSocket_Key="c2hvcnQ="), "400", "Sec-WebSocket-Key is 'c2hvcnQ='"),
        (head(Sec_WebSocket_Key="\xe9" * 24), "400", "expected 16 bytes in base64"),
        (head(Sec_WebSocket_Protocol="mqtt"), "400", "for 'mqtt', and this port has the sub-pro"),
        (head(Sec_WebSocket_Protocol="V12.STOMP"), "400", "v10.stomp, v11.stomp, v12.stomp only"),
    ],
)
def test_what_is_no_request_for_a_websocket_is_refused(
    request_head: bytes, status: str, reason: str
) -> None:
    """In HTTP, with what is wrong and what was expected."""
    refused = refusal(request_head)
    assert reason in refused.reason
    assert refused.kind is Refusal.PROTOCOL
    assert refused.answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert refused.answer.endswith(b"\r\n\r\n" + refused.reason.encode() + b"\n")
    assert (b"\r\nSec-WebSocket-Version: 13\r\n" in refused.answer) == (status == "426")


@pytest.mark.parametrize(
    ("origin", "allowed", "address"),
    [
        (None, (), "192.0.2.1"),
        (None, ("https://app.example",), "192.0.2.1"),
        ("https://app.example", ("https://app.example",), "192.0.2.1"),
        ("HTTPS://App.Example", ("https://other.example", "https://app.example"), "192.0.2.1"),
        ("https://app.example", ("*",), "192.0.2.1"),
        ("null", ("null",), "192.0.2.1"),
        ("http://localhost:3000", (), "127.0.0.1"),
        ("http://127.0.0.1", (), "::1"),
        ("http://[::1]:8080", (), "::ffff:127.0.0.1"),
    ],
)
def test_a_page_may_connect(origin: str | None, allowed: tuple[str, ...], address: str) -> None:
    """One that is allowed by name; without names one of this machine, in a browser on it."""
    granted = answer_to(head(Origin=origin), acceptor(*allowed), address, STOMP)
    assert granted.answer.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("origin", "allowed", "address"),
    [
        ("https://evil.example", (), "127.0.0.1"),
        ("http://localhost:3000", (), "192.0.2.1"),
        ("http://localhost.evil.example", (), "127.0.0.1"),
        ("http://localhost@evil.example", (), "127.0.0.1"),
        ("http://[evil", (), "127.0.0.1"),
        ("null", (), "127.0.0.1"),
        ("file://", (), "127.0.0.1"),
        ("", (), "127.0.0.1"),
        ("http://localhost:3000", ("https://app.example",), "127.0.0.1"),
        ("http://app.example", ("https://app.example",), "127.0.0.1"),
        ("https://app.example:8443", ("https://app.example",), "127.0.0.1"),
        ("https://app.example.evil.example", ("https://app.example",), "127.0.0.1"),
        ("https://app.example, https://evil.example", ("https://app.example",), "127.0.0.1"),
    ],
)
def test_a_page_may_not_connect(origin: str, allowed: tuple[str, ...], address: str) -> None:
    """It is told so with 403, which RFC 6455 has for it, and the acceptor is named."""
    refused = refusal(head(Origin=origin), *allowed, address=address)
    assert refused.status == "403 Forbidden"
    assert refused.kind is Refusal.ORIGIN
    assert "webSocketAllowedOrigins of acceptor 'stomp'" in refused.reason


@pytest.mark.parametrize(
    "origins",
    [
        ("https://app.example", "https://evil.example"),
        ("https://evil.example", "https://app.example"),
        ("https://app.example", "https://app.example"),
    ],
)
def test_a_second_origin_is_refused(origins: tuple[str, str]) -> None:
    """Whichever is first, and though both may connect: nobody knows which of them counts."""
    lines = "".join(f"Origin: {one}\r\n" for one in origins).encode()
    request = head().replace(b"Upgrade:", lines + b"Upgrade:", 1)
    assert refusal(request, "https://app.example").kind is Refusal.ORIGIN


@given(
    st.dictionaries(
        st.sampled_from([*HEADERS, "Origin", "Sec-WebSocket-Protocol", "Content-Length", "X"]),
        st.text(st.characters(max_codepoint=255), max_size=20),
        max_size=4,
    ),
    st.sampled_from(["GET / HTTP/1.1", "GET http://h/ HTTP/1.1", "GET / HTTP/1.0", "GET /\xff"]),
)
def test_whatever_is_asked_is_answered(changed: dict[str, str], line: str) -> None:
    """Granted or refused, in HTTP, and what a client wrote begins no header of the answer."""
    try:
        answer = answer_to(head(line, **changed), acceptor(), "127.0.0.1", STOMP).answer
    except UpgradeRefused as refused:
        answer = refused.answer
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 ")
    names = {one.partition(b":")[0] for one in lines[1:]}
    assert names <= {
        b"Upgrade", b"Connection", b"Sec-WebSocket-Accept", b"Sec-WebSocket-Protocol",
        b"Sec-WebSocket-Version", b"Content-Type", b"Content-Length",
    }  # fmt: skip
