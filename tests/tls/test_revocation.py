"""``crlPath``: certificates of clients that were revoked."""

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from orthia.broker.tls.check import unusable_tls
from orthia.config.acceptors import parse_acceptor
from orthia.config.errors import ConfigurationError
from tests.core.test_server import CONNECT, ServerUnderTest, read_until, serving
from tests.support.certificates import Authority, Identity, damaged, write
from tests.support.waiting import wait_until
from tests.tls.test_acceptors import secured, trusting, with_tls
from tests.tls.test_handshakes import showing


@pytest.fixture(name="parameters")
def _parameters(authority: Authority, tmp_path: Path) -> str:
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    trusted = write(tmp_path / "clients.pem", (tmp_path / "ca.pem").read_bytes())
    return f"keyStorePath={store};trustStorePath={trusted};needClientAuth=true"


def is_let_in(
    server: ServerUnderTest, authority: Authority, client: Identity, directory: Path
) -> bool:
    """Return whether a client with that certificate can connect."""
    try:
        with secured(server, showing(trusting(authority), client, directory)) as tls:
            tls.sendall(CONNECT)
            return read_until(tls, b"\0").startswith(b"CONNECTED")
    except (ssl.SSLError, ConnectionResetError, AssertionError):
        return False


def revoked_are_refused(server: ServerUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    """See that the one client that was refused was so for its certificate."""
    wait_until(lambda: server.connections == 0, what="all are forgotten")
    assert server.refused == ["tls"]
    assert "certificate revoked" in caplog.text


@pytest.mark.parametrize("as_der", [False, True])
def test_a_revoked_certificate_is_refused(
    authority: Authority,
    parameters: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    as_der: bool,
) -> None:
    """Others of the same authority are taken."""
    good, bad = authority.sign(()), authority.sign(())
    lists = authority.revoke(bad)
    if as_der:
        lists = x509.load_pem_x509_crl(lists).public_bytes(Encoding.DER)
    path = write(tmp_path / "revoked.crl", lists)
    with serving(with_tls(f"{parameters};crlPath={path}"), connect_timeout=600_000) as server:
        assert is_let_in(server, authority, good, tmp_path)
        assert not is_let_in(server, authority, bad, tmp_path)
        revoked_are_refused(server, caplog)


def test_who_was_revoked_since_is_refused_once_the_file_says_so(
    authority: Authority, parameters: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With sslAutoReload; a list that cannot be used leaves the one there was."""
    client = authority.sign(())
    path = write(tmp_path / "revoked.crl", authority.revoke())
    settings = with_tls(f"{parameters};crlPath={path};sslAutoReload=true")
    with serving(settings, connect_timeout=600_000) as server:
        assert is_let_in(server, authority, client, tmp_path)
        for lists, is_taken in ((b"nothing", True), (authority.revoke(client), False)):
            path.write_bytes(lists)
            for _ in range(2):
                server.certificates.look(datetime.now(UTC), 0.0)
            assert is_let_in(server, authority, client, tmp_path) == is_taken
        revoked_are_refused(server, caplog)
    assert f"crlPath={path} cannot be used: there is no list" in caplog.text


@pytest.mark.parametrize("name", ["revoked.crl", "clients.pem"])
def test_what_openssl_alone_refuses_is_told_and_changes_nothing(
    authority: Authority,
    parameters: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """A list, or a trust store, that can be parsed: check names it, and a running node goes on."""
    client = authority.sign(())
    path = write(tmp_path / "revoked.crl", authority.revoke())
    settings = with_tls(f"{parameters};crlPath={path};sslAutoReload=true")
    with serving(settings, connect_timeout=600_000) as server:
        der = x509.load_pem_x509_crl(authority.revoke()).public_bytes(Encoding.DER)
        if name == "clients.pem":
            der = authority.certificate.public_bytes(Encoding.DER)
        _write_damaged(tmp_path / name, der)
        (violation,) = unusable_tls(settings)
        assert f"{tmp_path / name} cannot be used: OpenSSL refuses" in violation.message
        for _ in range(2):
            server.certificates.look(datetime.now(UTC), 0.0)
        assert f"{tmp_path / name} cannot be used: OpenSSL refuses" in caplog.text
        assert "keeping the previous certificate" in caplog.text
        assert is_let_in(server, authority, client, tmp_path)


def _write_damaged(path: Path, der: bytes) -> None:
    if path.suffix == ".pem":
        text = base64.encodebytes(damaged(der)).decode()
        path.write_text(f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n")
    else:
        path.write_bytes(damaged(der))


@pytest.mark.parametrize(
    ("days", "by_another", "why"),
    [(-1.0, False, "CRL has expired"), (10.0, True, "unable to get certificate CRL")],
)
def test_without_a_present_list_of_its_signer_nobody_is_let_in(
    authority: Authority,
    parameters: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    days: float,
    by_another: bool,
    why: str,
) -> None:
    """Nobody knows then whether a certificate was revoked; the log says why."""
    signer = Authority(name="another") if by_another else authority
    path = write(tmp_path / "revoked.crl", signer.revoke(days=days))
    with serving(with_tls(f"{parameters};crlPath={path}"), connect_timeout=600_000) as server:
        assert not is_let_in(server, authority, authority.sign(()), tmp_path)
    assert why in caplog.text


def test_a_list_that_nobody_would_be_looked_up_in_is_refused() -> None:
    """An acceptor that asks no client for a certificate."""
    url = "tcp://127.0.0.1:1?sslEnabled=true;keyStorePath=a.pem;trustStorePath=b.pem;crlPath=c.crl"
    with pytest.raises(ConfigurationError, match="has crlPath and asks no client"):
        parse_acceptor("tls", url)


def test_check_reads_the_list(parameters: str, tmp_path: Path) -> None:
    """A file that is not there, or has certificates and no list, is told of."""
    for name in ("nothing.crl", "clients.pem"):
        settings = with_tls(f"{parameters};crlPath={tmp_path / name}")
        (violation,) = unusable_tls(settings)
        assert f"crlPath={tmp_path / name} cannot be used" in violation.message
