"""What an acceptor agrees to: versions, suites, names and the certificates of clients."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from orthia.broker.tls.ciphers import available, openssl_name
from orthia.broker.tls.contexts import load_acceptor
from orthia.broker.tls.errors import TlsUnusable
from tests.core.test_server import CONNECT, ServerUnderTest, read_to_the_end, read_until, serving
from tests.support.certificates import Authority, Identity, rsa_key, self_signed, write
from tests.support.waiting import wait_until
from tests.tls.test_acceptors import secured, trusting, with_tls

VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
MODERN = {"TLSv1.2", "TLSv1.3"}
WEAK = ("NULL", "RC4", "3DES", "DES-CBC3", "EXP", "MD5", "ADH", "AECDH", "PSK", "SRP", "IDEA")


@pytest.fixture(name="parameters")
def _parameters(authority: Authority, tmp_path: Path) -> str:
    both = authority.sign(key=rsa_key()).write_pem(tmp_path / "broker.pem")
    return f"keyStorePath={both}"


def agreed(server: ServerUnderTest, context: ssl.SSLContext) -> tuple[str, str] | None:
    """Return the version and suite that a client gets; None if there is none."""
    try:
        with secured(server, context) as client:
            cipher = client.cipher()
            assert cipher is not None
            return str(client.version()), cipher[0]
    except (ssl.SSLError, ConnectionResetError):
        return None


def only(
    authority: Authority, version: str, ciphers: str = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
) -> ssl.SSLContext:
    """Return a client of one version, which would take anything of it."""
    context = trusting(authority)
    context.set_ciphers(ciphers)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = VERSIONS[version]
    context.minimum_version = VERSIONS[version]
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize(
    ("enabled", "taken"),
    [
        ("", MODERN),
        ("enabledProtocols=TLSv1.2", {"TLSv1.2"}),
        ("enabledProtocols=TLSv1.3", {"TLSv1.3"}),
        ("enabledProtocols=TLSv1.3,TLSv1.2", MODERN),
    ],
)
def test_the_versions_that_are_enabled_are_spoken(
    authority: Authority, parameters: str, enabled: str, taken: set[str]
) -> None:
    """And no other, whatever a client would take."""
    with serving(with_tls(f"{parameters};{enabled}")) as server:
        found = {name: agreed(server, only(authority, name)) for name in VERSIONS}
    assert {name for name, one in found.items() if one is not None} == taken
    for name, one in found.items():
        assert one is None or one[0] == name


def test_no_weak_suite_is_agreed_on(authority: Authority, parameters: str) -> None:
    """One client for each suite that OpenSSL has: those taken are modern, with forward secrecy."""
    asked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asked.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    names = [one["name"] for one in asked.get_ciphers() if one["protocol"] != "TLSv1.3"]
    assert len(names) > 50
    with serving(with_tls(parameters)) as server:
        taken = {
            name
            for name in names
            if agreed(server, only(authority, "TLSv1.2", f"{name}:@SECLEVEL=0")) is not None
        }
    assert "ECDHE-RSA-AES256-GCM-SHA384" in taken
    for name in taken:
        assert not any(weak in name for weak in WEAK), name
        assert name.startswith(("ECDHE-", "DHE-")), name


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_a_suite_may_have_the_name_of_java(java: str, openssl: str) -> None:
    """As Artemis' files have them."""
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


def test_the_suites_that_are_enabled_are_taken(authority: Authority, parameters: str) -> None:
    """With those of TLS 1.2 alone there is no TLS 1.3."""
    suites = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,ECDHE-RSA-AES256-GCM-SHA384"
    with serving(with_tls(f"{parameters};enabledCipherSuites={suites}")) as server:
        assert agreed(server, only(authority, "TLSv1.3")) is None
        for name, taken in (
            ("ECDHE-RSA-AES128-GCM-SHA256", True),
            ("ECDHE-RSA-AES256-GCM-SHA384", True),
            ("ECDHE-RSA-CHACHA20-POLY1305", False),
        ):
            assert (agreed(server, only(authority, "TLSv1.2", name)) is not None) == taken
    newer = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
    with serving(with_tls(f"{parameters};enabledCipherSuites={newer}")) as server:
        assert agreed(server, only(authority, "TLSv1.2")) is None
        assert agreed(server, only(authority, "TLSv1.3")) is not None
    with serving(with_tls(f"{parameters};enabledCipherSuites={newer},{suites}")) as server:
        assert agreed(server, only(authority, "TLSv1.2")) is not None
        assert agreed(server, only(authority, "TLSv1.3")) is not None


@pytest.mark.parametrize(
    ("suites", "problem"),
    [
        ("TLS_RSA_WITH_RC4_128_MD5", "names TLS_RSA_WITH_RC4_128_MD5, which this OpenSSL does not"),
        ("NONSENSE", "names NONSENSE, which this OpenSSL does not have or takes for broken"),
        ("TLS_AES_128_GCM_SHA256", "of TLS 1.3, of which all are taken or none"),
        (
            "ECDHE-RSA-AES256-GCM-SHA384;enabledProtocols=TLSv1.3",
            "names none of TLS 1.3, which is all of enabledProtocols",
        ),
        (
            "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
            ";enabledProtocols=TLSv1.2",
            "names none of TLS 1.2, which is all of enabledProtocols",
        ),
    ],
)
def test_suites_that_cannot_be_taken_are_refused(
    parameters: str, suites: str, problem: str
) -> None:
    """By name, when the node starts."""
    (acceptor,) = with_tls(f"{parameters};enabledCipherSuites={suites}").acceptors
    assert acceptor.tls is not None
    with pytest.raises(TlsUnusable, match=problem):
        load_acceptor("tls", acceptor.tls)
    assert "ECDHE-RSA-AES256-GCM-SHA384" in available()


def test_a_client_that_asks_for_another_name_is_refused(
    authority: Authority, parameters: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that asks for none is not, as in Artemis."""
    context = trusting(authority)
    context.check_hostname = False
    with serving(with_tls(f"{parameters};sniHost=broker[12][.]example[.]com|localhost")) as server:
        for name, taken in (
            ("broker1.example.com", True),
            ("localhost", True),
            ("broker3.example.com", False),
            ("127.0.0.1", True),  # an address is no name to ask for
        ):
            if taken:
                with secured(server, context, name) as client:
                    client.sendall(CONNECT)
                    read_until(client, b"\0")
            else:
                with (
                    pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"),
                    secured(server, context, name),
                ):
                    pass
        wait_until(lambda: server.connections == 0, what="all are forgotten")
        assert server.refused == ["tls"]
    assert "failed: it asks for 'broker3.example.com', which sniHost does not match" in caplog.text


def showing(context: ssl.SSLContext, identity: Identity, directory: Path) -> ssl.SSLContext:
    """Have a client show a certificate."""
    context.load_cert_chain(identity.write_pem(directory / "client.pem"))
    return context


@pytest.mark.parametrize("version", sorted(MODERN))
@pytest.mark.parametrize(
    ("asked", "shown", "taken"),
    [
        ("needClientAuth", "trusted", True),
        ("needClientAuth", "none", False),
        ("needClientAuth", "self-signed", False),
        ("needClientAuth", "expired", False),
        ("needClientAuth=true;wantClientAuth", "none", False),
        ("wantClientAuth", "trusted", True),
        ("wantClientAuth", "none", True),
        ("wantClientAuth", "self-signed", False),
    ],
)
def test_clients_are_known_by_their_certificates(
    authority: Authority,
    parameters: str,
    tmp_path: Path,
    version: str,
    asked: str,
    shown: str,
    taken: bool,
) -> None:
    """needClientAuth goes over wantClientAuth; a certificate that is shown must be trusted."""
    context = only(authority, version, "DEFAULT")
    if shown != "none":
        cases: dict[str, Callable[[], Identity]] = {
            "trusted": lambda: authority.sign(()),
            "expired": lambda: authority.sign((), days=-1),
            "self-signed": self_signed,
        }
        showing(context, cases[shown](), tmp_path)
    trusted = write(tmp_path / "clients.pem", (tmp_path / "ca.pem").read_bytes())
    with serving(with_tls(f"{parameters};trustStorePath={trusted};{asked}=true")) as server:
        answer = b""
        try:
            with secured(server, context) as client:
                client.sendall(CONNECT)
                answer = read_to_the_end(client) if not taken else read_until(client, b"\0")
        except (ssl.SSLError, ConnectionResetError):
            assert not taken
        assert answer.startswith(b"CONNECTED" if taken else b"")
        wait_until(lambda: server.connections == 0, what="it is forgotten")
        assert server.refused == ([] if taken else ["tls"])
