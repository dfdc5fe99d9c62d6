"""Orthia's own client by TLS: whom it trusts, whom it shows itself to, and what it says if not."""

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from orthia.broker.client.connection import (
    BrokerAddress,
    BrokerNotTrusted,
    BrokerRefused,
    Connection,
)
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.tls import KEY_STORE_PASSWORD, ClientTls
from orthia.broker.tls.errors import TlsUnusable
from orthia.config.acceptor_tls import StoreFile, StoreType
from tests.core.test_server import serving
from tests.support.certificates import Authority, Identity, self_signed
from tests.tls.conftest import Run
from tests.tls.test_acceptors import with_tls


def test_a_url_says_how_tls_is_spoken() -> None:
    """In Artemis' names; a plain address is as it was."""
    text = "ssl://node-a:61614?trustStorePath=/ca.pem&keyStorePath=me.p12;sniHost=broker"
    found = BrokerAddress.parse(text)
    assert found == BrokerAddress(
        "node-a",
        61_614,
        ClientTls(StoreFile(Path("/ca.pem")), StoreFile(Path("me.p12")), "broker"),
    )
    assert str(found) == "ssl://node-a:61614"
    assert BrokerAddress.parse("stomp+ssl://[::1]:1/").tls == ClientTls()
    for plain in ("h:1", "tcp://h:1", "stomp://h:1"):
        assert BrokerAddress.parse(plain) == BrokerAddress("h", 1)


def test_a_url_of_artemis_says_the_same() -> None:
    """``sslEnabled`` makes it one of TLS; the rest is as of an acceptor."""
    text = (
        "tcp://node-a:61614?sslEnabled=true;keyStorePath=me.p12;keyStoreType=PKCS12;keyStoreAlias=me;"
        "enabledProtocols=TLSv1.2;enabledCipherSuites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    )
    found = BrokerAddress.parse(text).tls
    assert found == ClientTls(
        key_store=StoreFile(Path("me.p12"), StoreType.PKCS12),
        key_store_alias="me",
        enabled_protocols=("TLSv1.2",),
        enabled_cipher_suites=("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",),
    )
    assert BrokerAddress.parse("tcp://h:1?sslEnabled=true").tls == ClientTls()
    assert BrokerAddress.parse("ssl://h:1?sslEnabled=true").tls == ClientTls()


def test_a_client_speaks_what_its_url_names(authority: Authority, tmp_path: Path) -> None:
    """One version and one suite of it; a key by its alias, and by no other."""
    suite = "ECDHE-ECDSA-AES128-GCM-SHA256"
    store = authority.sign().write_pkcs12(tmp_path / "me.p12", "secret", "me")
    text = f"ssl://h:1?enabledProtocols=TLSv1.2&enabledCipherSuites={suite}&keyStorePath={store}"
    passwords = {KEY_STORE_PASSWORD: "secret"}
    tls = BrokerAddress.parse(f"{text}&keyStoreAlias=me").tls
    assert tls is not None
    context = tls.context(passwords)
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    assert [one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"] == [suite]
    other = BrokerAddress.parse(f"{text}&keyStoreAlias=other").tls
    assert other is not None
    with pytest.raises(TlsUnusable, match="keyStoreAlias=other is not in keyStorePath"):
        other.context(passwords)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ssl://h:1?sslEnabled=false", "sslEnabled=false is not for a URL that asks for TLS"),
        ("ssl://h:1?enabledProtocols=TLSv1", "the URL has enabledProtocols with 'TLSv1'; expected"),
        ("ssl://h:1?trustStorePath=a.ks;trustStoreType=JKS", "keytool -importkeystore"),
        ("ssl://h", "is not HOST:PORT"),
        ("http://h:1", "is neither HOST:PORT nor ssl://HOST:PORT"),
        ("tcp://h:1?trustStorePath=f", "is neither HOST:PORT nor ssl://HOST:PORT"),
        ("ssl://h:1?trustAll=true", "trustAll is not known; expected trustStorePath, trust"),
        ("ssl://h:1?keyStorePassword=hunter2", "set ORTHIA_KEY_STORE_PASSWORD"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(text: str, problem: str) -> None:
    """By what is wrong; a password has no place where others see it."""
    with pytest.raises(ValueError, match=problem):
        BrokerAddress.parse(text)


def test_messages_go_both_ways(run: Run, authority: Authority, tmp_path: Path) -> None:
    """``produce`` and ``consume`` by TLS, with more than a record of TLS in each message."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        broker = f"ssl://localhost:{server.port}?trustStorePath={tmp_path / 'ca.pem'}"
        common = ("--broker", broker, "--json", "--reconnect-timeout", 120)
        sent = run("produce", *common, "--count", 50, "--size", 100_000)
        assert sent.exit_code == 0, sent.output
        assert json.loads(sent.stdout)["complete"]
        received = run("consume", *common, "--count", 50, "--timeout", 120)
        assert received.exit_code == 0, received.output
        assert json.loads(received.stdout)["confirmed"] == 50


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("expired", "the broker's certificate, or one that it is signed by, has expired; replace"),
        ("other host", "the broker's certificate is not for localhost; connect by a name that it"),
        ("self-signed", "is signed by itself or by an authority that nobody here knows; if it is"),
        ("unknown authority", "authority that is not known here; name the file with its certifica"),
        ("not yet valid", "the broker's certificate is not valid yet; is the clock of this mach"),
    ],
)
def test_a_broker_that_is_not_trusted_is_refused_at_once(
    run: Run, authority: Authority, tmp_path: Path, case: str, said: str
) -> None:
    """With words that say what is wrong with its certificate, and what to do."""
    cases: dict[str, Callable[[], Identity]] = {
        "expired": lambda: authority.sign(days=-1),
        "other host": lambda: authority.sign(["other.example", "192.0.2.1"]),
        "self-signed": self_signed,
        "unknown authority": lambda: Authority(name="unknown").sign(),
        "not yet valid": lambda: authority.sign(days=201),
    }
    store = cases[case]().write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        url = f"ssl://localhost:{server.port}?trustStorePath={tmp_path / 'ca.pem'}"
        found = run("produce", "--broker", url, "--count", 1, "--reconnect-timeout", 600)
    assert found.exit_code == 77
    assert f"orthia: ssl://localhost:{server.port}: " in found.stderr
    assert said in found.stderr
    assert "Traceback" not in found.output


def test_a_certificate_that_is_named_is_trusted(tmp_path: Path) -> None:
    """Also one that nobody else signed; and sniHost names whom it is for."""
    identity = self_signed(["broker.example"])
    store = identity.write_pem(tmp_path / "broker.pem")
    with serving(with_tls(f"keyStorePath={store}")) as server:
        url = f"ssl://127.0.0.1:{server.port}?trustStorePath={store}"
        Connection.open(BrokerAddress.parse(f"{url};sniHost=broker.example")).close()
        with pytest.raises(BrokerNotTrusted, match=r"not for 127\.0\.0\.1"):
            Connection.open(BrokerAddress.parse(url))


def test_a_port_without_tls_is_told_from_one_that_is_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    """And the other way round: whoever mixes them up learns which to change."""
    with serving() as server, pytest.raises(BrokerNotTrusted, match="speaks no TLS; name the port"):
        Connection.open(BrokerAddress.parse(f"ssl://127.0.0.1:{server.port}"))
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    with (
        serving(with_tls(f"keyStorePath={store}")) as server,
        pytest.raises(BrokerRefused, match="sslEnabled=true: connect by TLS"),
    ):
        Connection.open(BrokerAddress("127.0.0.1", server.port))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_shows_its_own_certificate(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """To a broker that needs one; without one, or with another's, it learns why it is refused."""
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    mine = authority.sign(subject=(("CN", "client"),)).write_pkcs12(tmp_path / "me.p12", "hunter2")
    untrusted = Authority(name="other").sign().write_pem(tmp_path / "untrusted.pem")
    ca = tmp_path / "ca.pem"
    needing = f"keyStorePath={store};trustStorePath={ca};needClientAuth=true"
    with serving(with_tls(f"{needing};enabledProtocols={version}")) as server:
        url = f"ssl://localhost:{server.port}?trustStorePath={ca}"
        monkeypatch.setenv("ORTHIA_KEY_STORE_PASSWORD", "hunter2")
        FailoverLink([BrokerAddress.parse(f"{url};keyStorePath={mine}")]).connect().close()
        with pytest.raises(BrokerNotTrusted, match=r"if it has needClientAuth, name the file"):
            Connection.open(BrokerAddress.parse(url))
        with pytest.raises(BrokerNotTrusted, match=r"does not trust the certificate of keyStorePa"):
            Connection.open(BrokerAddress.parse(f"{url};keyStorePath={untrusted}"))
