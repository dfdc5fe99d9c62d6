"""TLS to the databases: each mode does what it says, against a server with a certificate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, PermanentStoreError, StoreUnavailable
from tests.conftest import Servers
from tests.support.certificates import Authority
from tests.support.servers import MYSQL_FAMILY, PASSWORD, SERVER_PROCESSES, ServerProcess

OTHER_HOST = "192.0.2.1"
"""Where nobody is reached."""


def certified(
    authority: Authority, directory: Path, host: str = "127.0.0.1", days: float = 100.0
) -> tuple[Path, Path]:
    """Write a certificate for a host, and its key; return both files."""
    return authority.sign([host], days=days).write_apart(directory / "server.pem")


@pytest.fixture(scope="module", params=MYSQL_FAMILY)
def server(
    request: pytest.FixtureRequest, templates: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Give a server with a certificate for an address that is not the one it is reached at."""
    made = SERVER_PROCESSES[request.param](template=templates(request.param))
    try:
        authority = Authority(made.directory / "ca.pem")
        certificate, key = certified(authority, made.directory, OTHER_HOST)
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
    certificate, key = certified(Authority(server.directory / "ca.pem"), server.directory)
    server.options = [f"--ssl-cert={certificate}", f"--ssl-key={key}"]
    server.restart()
    assert cipher(server, "sslMode=VERIFY_IDENTITY&serverSslCert={ca}") != ""


def test_a_certificate_that_has_expired_is_refused(server: ServerProcess) -> None:
    """Whoever signed it; the error says so, and what to look at."""
    authority = Authority(server.directory / "ca.pem")
    certificate, key = certified(authority, server.directory, days=-1)
    server.options = [f"--ssl-cert={certificate}", f"--ssl-key={key}"]
    server.restart()
    for mode in ("VERIFY_CA", "VERIFY_IDENTITY"):
        with pytest.raises(StoreUnavailable, match=r"certificate has expired.*; the server's cert"):
            cipher(server, f"sslMode={mode}&serverSslCert={{ca}}")
    assert cipher(server, "sslMode=REQUIRED") != ""


POSTGRESQL_CERTIFICATES = {
    "right": ("127.0.0.1", 100.0),
    "of another host": (OTHER_HOST, 100.0),
    "expired": ("127.0.0.1", -1.0),
}


@pytest.fixture(scope="module", params=POSTGRESQL_CERTIFICATES)
def postgresql(
    request: pytest.FixtureRequest, templates: Servers
) -> Iterator[tuple[str, ServerProcess]]:
    """Give a server of PostgreSQL, and how its certificate is."""
    made = SERVER_PROCESSES["postgresql"](template=templates("postgresql"))
    try:
        authority = Authority(made.directory / "ca.pem")
        Authority(made.directory / "other.pem", name="other")
        host, days = POSTGRESQL_CERTIFICATES[request.param]
        certificate, key = certified(authority, made.directory, host, days)
        key.chmod(0o600)
        made.give(key)
        files = (f"--ssl-cert-file={certificate}", f"--ssl-key-file={key}")
        made.options = ["--ssl=on", *files]
        made.start()
        yield request.param, made
    finally:
        made.discard()


def is_encrypted(server: ServerProcess, query: str) -> bool:
    """Return whether a connection with this query is."""
    text_of = query.format(ca=server.directory / "ca.pem", other=server.directory / "other.pem")
    url = DatabaseUrl.parse(f"{server.url('postgres')}?{text_of}")
    database = Database.from_settings(server.settings("postgres", jdbc_connection_url=url))
    try:
        database.server_now()
        with database.engine.connect() as connection:
            own = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            return bool(connection.execute(text(own)).scalar_one())
    finally:
        database.dispose()


_TAKEN: dict[str, dict[str, str | None]] = {
    "right": {
        "sslmode=verify-full&sslrootcert={ca}": None,
        "ssl=true&sslrootcert={ca}": None,
        "sslmode=verify-ca&sslrootcert={ca}": None,
        "sslmode=require": None,
        "sslmode=verify-full&sslrootcert={other}": "certificate verify failed",
        "sslmode=verify-ca&sslrootcert={other}": "certificate verify failed",
    },
    "of another host": {
        "sslmode=verify-full&sslrootcert={ca}": "does not match host name",
        "ssl=true&sslrootcert={ca}": "does not match host name",
        "sslmode=verify-ca&sslrootcert={ca}": None,
    },
    "expired": {
        "sslmode=verify-full&sslrootcert={ca}": "certificate verify failed",
        "sslmode=verify-ca&sslrootcert={ca}": "certificate verify failed",
        "sslmode=require": None,
    },
}
"""Why a query of the URL is refused, by how the certificate is; None if it is not."""


def test_postgresql_is_verified_as_the_url_asks(postgresql: tuple[str, ServerProcess]) -> None:
    """Each mode does what it says; what is refused says why, and what to look at."""
    kind, server = postgresql
    for query, reason in _TAKEN[kind].items():
        if reason is None:
            assert is_encrypted(server, query), query
        else:
            with pytest.raises(StoreUnavailable, match=f"{reason}.*; the server's certificate has"):
                is_encrypted(server, query)
    assert not is_encrypted(server, "sslmode=disable")


def test_postgresql_without_an_authority_to_verify_by_is_refused(
    postgresql: tuple[str, ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not that the server would ever be right: a person has to name one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PermanentStoreError, match="root certificate file"):
        is_encrypted(postgresql[1], "sslmode=verify-full&sslrootcert=/nowhere.pem")


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
    certificate, key = certified(authority, server.directory)
    mine, my_key = authority.sign(()).write_apart(server.directory / "node.pem")
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
    with pytest.raises(
        ConfigurationError, match=r"serverSslCert.*/nowhere\.pem, cannot be used: No such"
    ):
        Database.from_settings(DatabaseStoreSettings(url))


def test_a_login_without_tls_is_told_that_it_may_be_that(server: ServerProcess) -> None:
    """MariaDB refuses it as it does a wrong password."""
    server._administrate(f"CREATE USER encrypted IDENTIFIED BY '{PASSWORD}' REQUIRE SSL")
    server._administrate("GRANT SELECT ON mysql.* TO encrypted")
    user = {"jdbc_user": "encrypted", "jdbc_password": Secret(PASSWORD)}
    with pytest.raises(PermanentStoreError, match=r"without TLS .*useSSL=false.*says the same"):
        cipher(server, "useSSL=false", **user)
    assert cipher(server, "sslMode=REQUIRED", **user) != ""
