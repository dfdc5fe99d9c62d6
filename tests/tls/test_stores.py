"""Files with keys and certificates: each kind is read, and what is wrong is told by its name."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthia.broker.tls.errors import TlsUnusable
from orthia.broker.tls.stores import files_of, read_key_store, read_trust_store
from orthia.config.acceptor_tls import StoreFile, StoreType
from orthia.config.secrets import Secret, mask
from tests.support.certificates import Authority, Identity, rsa_key, self_signed, write
from tests.tls.conftest import Run

PASSWORD = "store-secret"


@pytest.fixture(name="between")
def _between(tmp_path: Path) -> Authority:
    """Give an authority that another one signed."""
    return Authority(name="between", by=Authority(tmp_path / "ca.pem"))


def _pem(identity: Identity, path: Path) -> StoreFile:
    return StoreFile(identity.write_pem(path))


def _upside_down(identity: Identity, path: Path) -> StoreFile:
    (signer,) = identity.signers
    both = b"".join(one.public_bytes(Encoding.PEM) for one in (signer, identity.certificate))
    return StoreFile(write(path, both + identity.key_pem()))


def _encrypted_pem(identity: Identity, path: Path) -> StoreFile:
    return StoreFile(identity.write_pem(path, PASSWORD), StoreType.PEM, Secret(PASSWORD))


def _pemcfg(identity: Identity, path: Path) -> StoreFile:
    certificate, key = identity.write_apart(path.with_suffix(".crt"))
    text = f"# of the tests\nalias=broker\nsource.cert={certificate.name}\nsource.key={key}\n"
    return StoreFile(write(path, text.encode()), StoreType.PEMCFG)


def _pkcs12(identity: Identity, path: Path) -> StoreFile:
    return StoreFile(identity.write_pkcs12(path, PASSWORD), None, Secret(PASSWORD))


@pytest.mark.parametrize("made", [_pem, _upside_down, _encrypted_pem, _pemcfg, _pkcs12])
def test_a_key_store_is_read(
    between: Authority, tmp_path: Path, made: Callable[[Identity, Path], StoreFile]
) -> None:
    """The key's own certificate is the first, and after each comes the one that signed it."""
    identity = between.sign()
    found = read_key_store(made(identity, tmp_path / "store"), None)
    assert found.chain == (identity.certificate, between.certificate)


def test_an_alias_names_the_key(between: Authority, tmp_path: Path) -> None:
    """In whatever capitals, as Java's stores do; another one is refused, and what to do is said."""
    identity = between.sign()
    for store in (_pkcs12(identity, tmp_path / "p12"), _pemcfg(identity, tmp_path / "cfg")):
        assert read_key_store(store, "broker").chain[0] == identity.certificate
        with pytest.raises(TlsUnusable, match=r"keyStoreAlias=other is not in .* -srcalias other"):
            read_key_store(store, "other")
    assert read_key_store(_pkcs12(identity, tmp_path / "p12"), "BROKER").chain
    with pytest.raises(TlsUnusable, match="a PEM file has one key and no aliases"):
        read_key_store(_pem(identity, tmp_path / "pem"), "broker")


def test_a_trust_store_is_read(between: Authority, tmp_path: Path) -> None:
    """From a file of certificates, or one of Java's without a key."""
    certificates = (between.certificate, Authority(name="other").certificate)
    pem = write(
        tmp_path / "trust.pem", b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
    )
    assert read_trust_store(StoreFile(pem)) == certificates
    entries = [pkcs12.PKCS12Certificate(one, b"entry") for one in certificates]
    java = pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
    store = StoreFile(write(tmp_path / "trust.p12", java), None, Secret(PASSWORD))
    assert {*read_trust_store(store)} == {*certificates}
    assert read_trust_store(_pkcs12(between.sign(), tmp_path / "keys.p12"))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda path: StoreFile(path), "store cannot be used: No such file or directory"),
        (lambda path: StoreFile(path.parent), "cannot be used: Is a directory"),
        (lambda path: StoreFile(write(path, b"")), "it is not PEM or PKCS12"),
        (
            lambda path: StoreFile(write(path, b"\xfe\xed\xfe\xed\0\0")),
            "store can be read by Java alone; convert it, with `keytool -importkeystore",
        ),
        (
            lambda path: StoreFile(write(path, b"\x30\x82")),
            "it is encrypted; expected keyStorePass",
        ),
        (
            lambda path: StoreFile(write(path, self_signed().certificates_pem)),
            "it has no private keys; expected one, and its certificate",
        ),
        (lambda path: StoreFile(write(path, self_signed().key_pem())), "there is no certificate"),
        (
            lambda path: StoreFile(
                write(path, self_signed().key_pem() + self_signed().certificates_pem)
            ),
            "no certificate in it belongs to its private key",
        ),
        (lambda path: StoreFile(self_signed().write_pem(path, PASSWORD)), "it is encrypted; expec"),
        (
            lambda path: StoreFile(self_signed().write_pem(path, PASSWORD), None, Secret("other")),
            "keyStorePassword is not the password of keyStorePath=",
        ),
        (
            lambda path: StoreFile(
                self_signed().write_pkcs12(path, PASSWORD), StoreType.PKCS12, Secret("other")
            ),
            "keyStorePassword is not the password of keyStorePath=",
        ),
        (
            lambda path: StoreFile(self_signed().write_pkcs12(path, PASSWORD), StoreType.PEM),
            "keyStoreType says PEM, and it is PKCS12",
        ),
        (
            lambda path: StoreFile(write(path, b"alias=a\n"), StoreType.PEMCFG),
            "it has no source.NAME=FILE of a PEM file",
        ),
        (
            lambda path: StoreFile(write(path, b"source.key=gone.pem\n"), StoreType.PEMCFG),
            "source.key of keyStorePath=",
        ),
        (lambda path: StoreFile(write(path, b"x" * 5_000_000)), "it is larger than 4194304 bytes"),
    ],
)
def test_what_is_wrong_with_a_key_store_is_told(
    tmp_path: Path, made: Callable[[Path], StoreFile], reason: str
) -> None:
    """By the parameter that names it, its path, and what was expected."""
    with pytest.raises(TlsUnusable) as refused:
        read_key_store(made(tmp_path / "store"), None)
    assert reason in str(refused.value)
    assert str(tmp_path) in str(refused.value)


_WHOLE = self_signed()


@given(data=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
def test_a_damaged_store_is_told_of(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever became of it: a node that reads its files again goes on with what it has."""
    path = tmp_path / "store"
    if data.draw(st.booleans(), "PKCS12"):
        _WHOLE.write_pkcs12(path, PASSWORD)
    else:
        _WHOLE.write_pem(path)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    store = StoreFile(path, None, Secret(PASSWORD))
    for read in (lambda: read_key_store(store, None), lambda: read_trust_store(store)):
        with suppress(TlsUnusable):
            read()
    assert files_of(store)[0] == path


def broker_xml(directory: Path, url: str) -> Path:
    """Write the configuration of a node with one acceptor."""
    path = directory / "broker.xml"
    path.write_text(
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">\n'
        "<security-enabled>false</security-enabled><acceptors>\n"
        f'<acceptor name="tls">{url}</acceptor></acceptors></core></configuration>'
    )
    return path


def test_check_reads_the_files(run: Run, tmp_path: Path) -> None:
    """And tells of what is wrong by file, line, element and parameter."""
    path = broker_xml(tmp_path, "tcp://:0?sslEnabled=true;keyStorePath=broker.pem")
    found = run("check", str(path))
    assert found.exit_code == 78
    assert (
        f"{path}:3: <acceptor[tls]>: keyStorePath={tmp_path / 'broker.pem'} cannot be used: No such"
        " file or directory" in found.stderr
    )
    store = self_signed().write_pem(tmp_path / "broker.pem")
    found = run("check", str(path))
    assert found.exit_code == 0
    (line,) = [one for one in found.stdout.splitlines() if "keyStorePath" in one]
    assert line.split() == ["acceptors/acceptor[tls]/keyStorePath", str(store)]
    warned = f"warning: {store} has the key of acceptor 'tls' and everybody on this machine can"
    assert warned in found.stderr
    store.chmod(0o600)
    assert "has the key" not in run("check", str(path)).stderr


@pytest.mark.parametrize(
    ("days", "said"),
    [(-1, "has expired on"), (20, "expires in 19 days"), (300, "is not valid before")],
)
def test_check_tells_of_the_end_of_a_certificate(
    run: Run, authority: Authority, tmp_path: Path, days: float, said: str
) -> None:
    """Whoever checks a file is not to hear of it from clients; it is valid all the same."""
    path = broker_xml(tmp_path, "tcp://:0?sslEnabled=true;keyStorePath=broker.pem")
    authority.sign(days=days).write_pem(tmp_path / "broker.pem")
    found = run("check", str(path))
    assert found.exit_code == 0
    assert f"warning: the certificate of acceptor 'tls', CN=server, {said}" in found.stderr
    authority.sign().write_pem(tmp_path / "broker.pem")
    assert "the certificate of" not in run("check", str(path)).stderr


def test_a_masked_password_is_unmasked(run: Run, tmp_path: Path) -> None:
    """As others in the file, and is in no output."""
    self_signed().write_pkcs12(tmp_path / "broker.p12", PASSWORD)
    path = broker_xml(
        tmp_path,
        f"tcp://:0?sslEnabled=true;keyStorePath=broker.p12;keyStorePassword={mask(PASSWORD)}",
    )
    found = run("check", str(path))
    assert found.exit_code == 0
    assert PASSWORD not in found.output
    assert mask(PASSWORD) not in found.output
    path.write_text(path.read_text().replace(mask(PASSWORD), mask("other")))
    assert "keyStorePassword is not the password of keyStorePath=" in run("check", str(path)).stderr


def test_a_file_beside_broker_xml_is_found(run: Run, tmp_path: Path) -> None:
    """As in Artemis' instances, where both are in etc; what is at the instance's goes first."""
    (tmp_path / "etc").mkdir()
    path = broker_xml(tmp_path / "etc", "tcp://:0?sslEnabled=true;keyStorePath=broker.pem")
    beside = self_signed().write_pem(tmp_path / "etc" / "broker.pem")
    assert str(beside) in run("check", str(path)).stdout
    first = self_signed().write_pem(tmp_path / "broker.pem")
    assert str(first) in run("check", str(path)).stdout


def test_a_key_of_rsa_is_read(tmp_path: Path) -> None:
    """The older kind, which most authorities still sign."""
    identity = Authority().sign(key=rsa_key())
    assert read_key_store(_pem(identity, tmp_path / "store"), None).chain[0] == identity.certificate


def test_status_shows_certificates_it_can_read(run: Run, tmp_path: Path) -> None:
    """Until when they are valid, and for a program, too; of files it cannot read nothing."""
    url = f"sqlite:///{tmp_path / 'orthia.db'}"
    assert run("db", "upgrade", "--url", url).exit_code == 0
    path = broker_xml(tmp_path, "tcp://:0?sslEnabled=true;keyStorePath=broker.pem")
    text = path.read_text().replace(
        "<acceptors>",
        f"<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>"
        "</database-store></store><acceptors>",
    )
    path.write_text(text)
    assert "TLS " not in run("status", "--config", path).stdout
    shown_as = {90.9: "in 91 days)", 9.9: "in 10 days: REPLACE IT)", -1.0: "HAS EXPIRED)"}
    for days, left in shown_as.items():
        identity = Authority().sign(days=days)
        identity.write_pem(tmp_path / "broker.pem")
        ends = f"{identity.certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        shown = run("status", "--config", path).stdout
        assert f"TLS       acceptor 'tls', CN=server, until {ends} ({left}" in shown
    (found,) = json.loads(run("status", "--config", path, "--json").stdout)["certificates"]
    assert (found["acceptor"], found["subject"]) == ("tls", "CN=server")
    assert found["days_left"] == pytest.approx(-1, abs=0.1)
