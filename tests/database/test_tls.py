"""TLS to MySQL and MariaDB: each mode does what it says, against a server with a certificate."""

import datetime
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from sqlalchemy import text

from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret
from orthia.config.settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, PermanentStoreError, StoreUnavailable
from tests.conftest import Servers
from tests.support.servers import MYSQL_FAMILY, PASSWORD, SERVER_PROCESSES, ServerProcess

DAYS = datetime.timedelta(days=2)


class Authority:
    """Signs certificates; ``path`` is its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = x509.BasicConstraints(ca=True, path_length=None)
        self._write(path, self._key, self._name, own)

    def sign(self, path: Path, host: str) -> tuple[Path, Path]:
        """Write a certificate for a server at ``host``, and its key beside it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        of_host = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
        self._write(path, key, name, of_host)
        key_path = path.with_suffix(".key")
        key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key_path.chmod(0o644)
        return path, key_path

    def _write(
        self,
        path: Path,
        key: ec.EllipticCurvePrivateKey,
        name: x509.Name,
        extension: x509.ExtensionType,
    ) -> None:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAYS)
            .not_valid_after(now + DAYS)
            .add_extension(extension, critical=False)
        )
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        path.chmod(0o644)


@pytest.fixture(scope="module", params=MYSQL_FAMILY)
def server(
    request: pytest.FixtureRequest, templates: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Give a server with a certificate for an address that is not the one it is reached at."""
    made = SERVER_PROCESSES[request.param](template=templates(request.param))
    try:
        certificate, key = Authority(made.directory / "ca.pem").sign(
            made.directory / "server.pem", "192.0.2.1"
        )
        made.options = [f"--ssl-cert={certificate}", f"--ssl-key={key}"]
        made.start()
        yield made
    finally:
        made.discard()


def cipher(server: ServerProcess, query: str, **settings: Any) -> str:
    """Return by what a connection with this query is encrypted; nothing if it is not."""
    name = "mysql"
    url = DatabaseUrl.parse(f"{server.url(name)}?{query.format(ca=server.directory / 'ca.pem')}")
    database = Database.from_settings(server.settings(name, jdbc_connection_url=url, **settings))
    try:
        database.server_now()
        with database.engine.connect() as connection:
            return str(connection.execute(text("SHOW STATUS LIKE 'Ssl_cipher'")).one()[1])
    finally:
        database.dispose()


@pytest.mark.parametrize("query", ["useSSL=false", "sslMode=DISABLED", "ssl_disabled=true"])
def test_tls_that_is_turned_off_is_off(server: ServerProcess, query: str) -> None:
    """Though the server offers it."""
    assert cipher(server, query) == ""


@pytest.mark.parametrize(
    "query", ["", "sslMode=REQUIRED", "useSSL=true", "sslMode=VERIFY_CA&serverSslCert={ca}"]
)
def test_tls_is_on(server: ServerProcess, query: str) -> None:
    """By default too; without a verification, or with one of who signed the certificate."""
    assert cipher(server, query) != ""


def test_a_certificate_that_nobody_verifies_needs_no_authorities(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read all that the machine knows takes longer than to connect."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("the certificates were read")

    monkeypatch.setattr("ssl.create_default_context", read)
    assert cipher(server, "") != ""


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("sslMode=VERIFY_CA", "certificate verify failed"),
        ("sslMode=VERIFY_IDENTITY&serverSslCert={ca}", "not valid for '127.0.0.1'"),
        ("ssl_ca={ca}", "not valid for '127.0.0.1'"),
    ],
)
def test_a_certificate_that_is_not_right_is_refused(
    server: ServerProcess, query: str, reason: str
) -> None:
    """One of an authority that is not known, or for another host; the error says which."""
    with pytest.raises(StoreUnavailable, match=reason):
        cipher(server, query)


def test_the_right_certificate_is_taken(server: ServerProcess) -> None:
    """VERIFY_IDENTITY, with the server's authority and its host."""
    authority = Authority(server.directory / "ca.pem")
    certificate, key = authority.sign(server.directory / "right.pem", "127.0.0.1")
    server.options = [f"--ssl-cert={certificate}", f"--ssl-key={key}"]
    server.restart()
    assert cipher(server, "sslMode=VERIFY_IDENTITY&serverSslCert={ca}") != ""


WITHOUT_TLS = {"mariadb": "--skip-ssl", "mysql": "--tls-version="}


@pytest.mark.parametrize(
    ("private_server", "option", "query"),
    [
        ("postgresql", "--ssl=off", "sslmode=require"),
        *((one, WITHOUT_TLS[one], "sslMode=VERIFY_CA") for one in MYSQL_FAMILY),
        *((one, WITHOUT_TLS[one], "useSSL=true") for one in MYSQL_FAMILY),
    ],
    indirect=["private_server"],
)
def test_a_server_without_tls_is_not_waited_for(
    private_server: ServerProcess, option: str, query: str
) -> None:
    """It will offer none the next time, too: a person has to mend the server or the URL."""
    private_server.options = [option]
    private_server.restart()
    url = DatabaseUrl.parse(f"{private_server.url('nowhere')}?{query}")
    database = Database.from_settings(private_server.settings("nowhere", jdbc_connection_url=url))
    try:
        with pytest.raises(PermanentStoreError, match="asks for TLS, so the login was not sent"):
            database.server_now()
    finally:
        database.dispose()


def test_a_node_shows_its_own_certificate(server: ServerProcess) -> None:
    """To a server that lets its user in with one only."""
    ca = server.directory / "ca.pem"
    authority = Authority(ca)
    certificate, key = authority.sign(server.directory / "right.pem", "127.0.0.1")
    mine, my_key = authority.sign(server.directory / "node.pem", "127.0.0.1")
    server.options = [f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={ca}"]
    server.restart()
    server._administrate(f"CREATE USER certified IDENTIFIED BY '{PASSWORD}' REQUIRE X509")
    server._administrate("GRANT SELECT ON mysql.* TO certified")
    user = {"jdbc_user": "certified", "jdbc_password": Secret(PASSWORD)}
    with pytest.raises(PermanentStoreError, match="Access denied"):
        cipher(server, "ssl_ca={ca}", **user)
    assert cipher(server, f"ssl_ca={{ca}}&ssl_cert={mine}&ssl_key={my_key}", **user) != ""


def test_a_file_that_cannot_be_used_is_named() -> None:
    """Before anything is connected to."""
    url = DatabaseUrl.parse("jdbc:mysql://h/db?sslMode=VERIFY_CA&serverSslCert=/nowhere.pem")
    with pytest.raises(ConfigurationError, match=r"/nowhere\.pem, cannot be used: No such file"):
        Database.from_settings(DatabaseStoreSettings(url))
