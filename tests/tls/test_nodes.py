"""Nodes with TLS as processes: their start, and a certificate that is replaced meanwhile."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from click.testing import Result

from orthia.broker.tls.stores import read_key_store, read_trust_store
from orthia.config.acceptor_tls import StoreFile, not_readable
from orthia.config.secrets import Secret
from orthia.config.settings import Role
from tests.core.test_server import CONNECT, read_until
from tests.hostile.node import LimitedNode, live_node
from tests.support.certificates import Authority
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.tls.conftest import Run
from tests.tls.test_acceptors import trusting
from tests.tls.test_handshakes import showing
from tests.tls.test_stores import broker_xml

PASSWORD = "store-secret"


def shown(node: LimitedNode, authority: Authority) -> int:
    """Return the number of the certificate that a new client is shown."""
    with trusting(authority).wrap_socket(node.open(), server_hostname="localhost") as client:
        found = client.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_running_node_shows_a_new_certificate(authority: Authority, tmp_path: Path) -> None:
    """A client that is connected stays; log and metrics know of the end of the one there is."""
    old, new = authority.sign(days=10.5), authority.sign()
    store = old.write_pem(tmp_path / "broker.pem")
    port = free_port()
    health = f'<health xmlns="urn:orthia"><host>127.0.0.1</host><port>{port}</port></health>'
    parameters = f";sslEnabled=true;keyStorePath={store};sslAutoReload=true"

    def expiry() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        name = 'orthia_certificate_expiry_timestamp_seconds{acceptor="stomp"} '
        return float(next(one for one in lines if one.startswith(name)).removeprefix(name))

    with (
        live_node(tmp_path, parameters=parameters, core=health) as node,
        trusting(authority).wrap_socket(node.open(), server_hostname="localhost") as client,
    ):
        client.sendall(CONNECT)
        assert read_until(client, b"\0").startswith(b"CONNECTED")
        node.wait_log("the certificate of acceptor 'stomp', CN=server, expires in 10 days")
        assert expiry() == old.certificate.not_valid_after_utc.timestamp()
        new.write_pem(store)
        wait_until(
            lambda: shown(node, authority) == new.certificate.serial_number, what="it is shown"
        )
        client.sendall(b"SEND\ndestination:/queue/q\nreceipt:r\n\n\0")
        assert b"receipt-id:r\n" in read_until(client, b"\0")
        ends = new.certificate.not_valid_after_utc.timestamp()
        wait_until(lambda: expiry() == ends, what="the metrics know of its end")


def test_a_node_that_could_not_serve_does_not_start(run: Run, tmp_path: Path) -> None:
    """It says by file, line and parameter why, before it asks for the live lock."""
    path = broker_xml(tmp_path, f"tcp://:{free_port()}?sslEnabled=true;keyStorePath=gone.pem")
    found = run("run", path)
    assert found.exit_code == 78
    assert f"{path}:3: <acceptor[tls]>: keyStorePath={tmp_path / 'gone.pem'} cannot" in found.stderr


SECURED = """\
<users xmlns="urn:orthia"><user name="ada" password="l0vel@ce" roles="ops"/></users>
<security-settings><security-setting match="#">
  <permission type="manage" roles="ops"/><permission type="view" roles="ops"/>
</security-setting></security-settings>
<login-modules xmlns="urn:orthia"><certificate-login-module/></login-modules>
<health xmlns="urn:orthia"><port>{port}</port><tls>{tls}</tls></health>"""


@dataclass
class SecuredNode(LimitedNode):
    """A node whose operators log in."""

    security: str = "<security-enabled>true</security-enabled>"


def test_operators_come_by_tls_and_log_in_by_certificate(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    """As clients do at an acceptor: one that nobody knows is refused, a new one is shown."""
    old, new = authority.sign(), authority.sign()
    store, port = old.write_pem(tmp_path / "http.pem"), free_port()
    tls = f"keyStorePath={store};trustStorePath={tmp_path / 'ca.pem'};wantClientAuth=true"
    (tmp_path / "cert-users.properties").write_text("relay = CN=relay\n")
    (tmp_path / "cert-roles.properties").write_text("ops = relay\n")
    for name in ("relay", "unlisted"):
        authority.sign((), subject=(("CN", name),)).write_pem(tmp_path / f"{name}.pem")
    node = SecuredNode(
        Role.LIVE,
        f"jdbc:sqlite:{tmp_path / 'orthia.db'}",
        tmp_path,
        "live",
        core=SECURED.format(port=port, tls=f"{tls};sslAutoReload=true"),
    )
    at = ("--management", f"https://localhost:{port}")

    def asked(*options: object, **environment: str) -> tuple[int, str]:
        ended = run("job", "list", "--json", *at, *options, environment=environment)
        return ended.exit_code, ended.stderr or ended.stdout

    def shown_number() -> int:
        context = trusting(authority)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            found = client.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)

    try:
        node.start().wait_serving()
        trusts = ("--ca", tmp_path / "ca.pem")
        code, said = asked(*trusts, "--key-store", tmp_path / "relay.pem")
        assert (code, json.loads(said)) == (0, [])
        assert asked(*trusts, "--user", "ada", ORTHIA_PASSWORD="l0vel@ce")[0] == 0
        code, said = asked(*trusts, "--key-store", tmp_path / "unlisted.pem")
        assert code == 77
        assert "unlisted.pem: the certificate of 'CN=unlisted' is no user's" in said
        code, said = asked(*trusts)
        assert (code, "asks for a login: add --user NAME" in said) == (77, True)
        code, said = asked("--key-store", tmp_path / "relay.pem")
        assert code == 69
        assert "that nobody here knows; if it is yours, name it: --ca FILE" in said
        with pytest.raises(urllib.error.HTTPError) as plain:
            urllib.request.urlopen(f"http://localhost:{port}/live", timeout=120)
        assert plain.value.read() == b"this port speaks TLS alone: ask for https://\n"
        client = HTTPSConnection(
            "localhost",
            port,
            context=showing(trusting(authority), authority.sign(()), tmp_path),
            timeout=120,
        )
        with closing(client):
            client.request("GET", "/api/v1/jobs")
            answer = client.getresponse()
            assert answer.status == 401
            assert "the certificate of 'CN=server' is no user's" in answer.read().decode()
        assert shown_number() == old.certificate.serial_number
        new.write_pem(store)
        wait_until(lambda: shown_number() == new.certificate.serial_number, what="it is shown")
        assert "Traceback" not in node.log, node.log
    finally:
        node.end()


def test_check_reads_what_http_shows(run: Run, authority: Authority, tmp_path: Path) -> None:
    """And says what is wrong by its place, also of a parameter that is not of TLS."""
    authority.sign().write_pem(tmp_path / "http.pem")
    path = tmp_path / "broker.xml"

    def checked(tls: str) -> Result:
        path.write_text(
            '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">'
            "<security-enabled>false</security-enabled>"
            f'<health xmlns="urn:orthia">\n<tls>{tls}</tls></health></core></configuration>'
        )
        return run("check", path)

    right = checked("keyStorePath=http.pem")
    assert (right.exit_code, "health/tls/keyStorePath" in right.stdout) == (0, True)
    for tls, problem in (
        ("keyStorePath=gone.pem", f"{path}:1: <health>: keyStorePath={tmp_path / 'gone.pem'}"),
        ("keyStorePaht=http.pem", f"{path}:2: <tls>: has the parameter 'keyStorePaht'"),
        ("sslEnabled=false", f"{path}:2: <tls>: has sslEnabled=false"),
        ("keyStorePath=http.pem;needClientAuth=true", "needClientAuth=true and no trustStorePath"),
    ):
        refused = checked(tls)
        assert refused.exit_code == 78
        assert problem in refused.stderr


def keytool(*arguments: object) -> None:
    """Run Java's tool for stores."""
    done = subprocess.run(
        ["keytool", *map(str, arguments)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("keytool") is None, reason="there is no Java")
def test_stores_of_java_are_read(tmp_path: Path) -> None:
    """PKCS12 as keytool writes it, keys and trusted certificates; JKS after the line told."""
    java = tmp_path / "broker.jks"
    keytool(
        *("-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-dname", "CN=broker, O=Acme"),
        *("-keystore", java, "-storetype", "JKS", "-storepass", PASSWORD, "-keypass", PASSWORD),
    )
    told = not_readable("keyStore", java)
    line = told.partition("`keytool ")[2].partition("`")[0].split()
    assert str(tmp_path / "broker.p12") in line
    keytool(*line, "-srcstorepass", PASSWORD, "-deststorepass", PASSWORD)
    store = StoreFile(tmp_path / "broker.p12", None, Secret(PASSWORD))
    found = read_key_store(store, "Broker")
    assert found.chain[0].subject.rfc4514_string() == "CN=broker,O=Acme"
    authority = Authority(tmp_path / "ca.pem")
    keytool(
        *("-importcert", "-noprompt", "-alias", "ca", "-file", tmp_path / "ca.pem"),
        *("-keystore", tmp_path / "trust.p12", "-storetype", "PKCS12", "-storepass", PASSWORD),
    )
    trusted = StoreFile(tmp_path / "trust.p12", None, Secret(PASSWORD))
    assert read_trust_store(trusted) == (authority.certificate,)
