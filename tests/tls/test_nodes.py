"""Nodes with TLS as processes: their start, and a certificate that is replaced meanwhile."""

import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from orthia.broker.tls.stores import read_key_store, read_trust_store
from orthia.config.acceptor_tls import StoreFile, not_readable
from orthia.config.secrets import Secret
from tests.core.test_server import CONNECT, read_until
from tests.hostile.node import LimitedNode, live_node
from tests.support.certificates import Authority
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.tls.conftest import Run
from tests.tls.test_acceptors import trusting
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
