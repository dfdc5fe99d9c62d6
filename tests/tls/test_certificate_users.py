"""Login by certificate: subjects as they are written, whose they are, and what follows."""

import re
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.errors import CertificateUnknown
from orthia.broker.node.user_files import UserFiles
from orthia.broker.security.certificates import CertificateDirectory
from orthia.config.certificate_users import CertificateUser, read_certificate_users
from orthia.config.distinguished_names import parts_of, read_name, written
from orthia.config.errors import ConfigurationError
from orthia.config.login_domains import ControlFlag, LoginDomain, LoginModule
from orthia.config.secrets import Secret
from orthia.config.security_settings import CertificateLoginModule, SecuritySetting, User
from orthia.config.settings import Settings
from tests.core.test_server import ServerUnderTest, read_to_the_end, read_until, serving
from tests.support.certificates import Authority, Identity
from tests.support.waiting import wait_until
from tests.tls.conftest import Run
from tests.tls.test_acceptors import secured, trusting, with_tls
from tests.tls.test_handshakes import showing

SUBJECT = (("C", "DE"), ("O", "Acme, Inc."), ("OU", "orders"), ("CN", "relay"))
"""As a certificate has it, the least special part first."""


@pytest.mark.parametrize(
    "text",
    [
        'CN=relay, OU=orders, O="Acme, Inc.", C=DE',
        "CN=relay,OU=orders,O=Acme\\, Inc.,C=DE",
        " cn = relay ,OU=orders;O=Acme\\2C Inc. , c=DE ",
        '2.5.4.3=relay, OID.2.5.4.11=orders, O="Acme\\, Inc.", C=DE',
    ],
)
def test_a_subject_may_be_written_in_several_ways(text: str) -> None:
    """As Java writes it, as RFC 4514 does, with blanks and other capitals of attributes."""
    certificate = Authority().sign((), subject=SUBJECT).certificate
    assert read_name(text) == parts_of(certificate.subject)


@pytest.mark.parametrize(
    "text",
    ["CN=Relay, OU=orders", "CN=relay", "OU=orders, CN=relay", "CN=relay, OU=orders, OU=orders"],
)
def test_another_subject_is_another(text: str) -> None:
    """Capitals, order and every part count."""
    assert read_name(text) != read_name("CN=relay, OU=orders")


@pytest.mark.parametrize("text", ["", "relay", "CN=a,", "CN=a, b", "=a", 'CN="a', "CN=a\\"])
def test_what_is_no_subject_is_refused(text: str) -> None:
    """With an example of one."""
    with pytest.raises(ConfigurationError, match="expected"):
        read_name(text)


_TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), include_characters=',+"\\<>;= #'),
    min_size=1,
    max_size=15,
)
_KINDS = st.sampled_from(
    [NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.USER_ID, NameOID.EMAIL_ADDRESS]
)
_PARTS = st.lists(
    st.builds(x509.NameAttribute, _KINDS, _TEXTS), min_size=1, max_size=2, unique_by=lambda a: a.oid
)
_SUBJECTS = st.lists(_PARTS.map(x509.RelativeDistinguishedName), min_size=1, max_size=4)


@given(_SUBJECTS)
def test_every_subject_can_be_written_and_read(rdns: list[x509.RelativeDistinguishedName]) -> None:
    """In Java's way and in that of RFC 4514."""
    name = x509.Name(rdns)
    assert read_name(written(parts_of(name))) == parts_of(name)
    assert read_name(name.rfc4514_string()) == parts_of(name)


def _der(identity: Identity) -> bytes:
    return identity.certificate.public_bytes(Encoding.DER)


def test_users_are_found_by_subject_and_then_by_expression(authority: Authority) -> None:
    """The expression is one of the whole subject, in Java's way."""
    directory = CertificateDirectory()
    relay = CertificateUser("relay", read_name("CN=relay, OU=orders"), frozenset({"senders"}))
    any_of = CertificateUser("any", re.compile("CN=r.*, OU=orders"), frozenset({"readers"}))
    directory.replace((any_of, relay))
    for subject, name in (("relay", "relay"), ("reader", "any")):
        found = directory.principal(
            _der(authority.sign((), subject=(("OU", "orders"), ("CN", subject))))
        )
        assert found.name == name
        assert not found.unrestricted
    for other in ((("CN", "relay"),), (("OU", "orders"), ("CN", "a"))):
        with pytest.raises(CertificateUnknown, match=r"the certificate of 'CN=.*' is no user's"):
            directory.principal(_der(authority.sign((), subject=other)))
    with pytest.raises(CertificateUnknown, match="reading the client's certificate failed"):
        directory.principal(b"nothing")
    assert directory.replace((replace(relay, roles=frozenset()), any_of)) == {"relay"}
    assert directory.replace(()) == {"relay", "any"}


def write_users(directory: Path, users: str, roles: str) -> CertificateLoginModule:
    """Write the files of Artemis' names."""
    module = CertificateLoginModule(directory / "users", directory / "roles")
    module.user.write_text(users)
    module.role.write_text(roles)
    return module


def test_the_files_are_read_as_artemis_writes_them(tmp_path: Path) -> None:
    """And what is wrong is told with file, line and user."""
    module = write_users(
        tmp_path, "# ours\nrelay=CN=relay, OU=orders\nall=/CN=.*/\n", "senders=relay,all\nidle=x\n"
    )
    relay, everybody = read_certificate_users(module)
    assert relay == CertificateUser(
        "relay", read_name("CN=relay, OU=orders"), frozenset({"senders"})
    )
    assert isinstance(everybody.subject, re.Pattern)
    module = write_users(tmp_path, "a=CN=a\nb=nonsense\nc=/(/\n", "")
    with pytest.raises(ConfigurationError) as refused:
        read_certificate_users(module)
    first, second = str(refused.value).splitlines()
    assert first.startswith(f"{module.user}:2: b: 'nonsense' is not the name of a certificate's")
    assert second.startswith(f"{module.user}:3: c: /(/ is no regular expression")


@pytest.mark.parametrize(
    "expression",
    ["CN=a{4294967296}", "CN=a{" + 5_000 * "9" + "}", 10_000 * "(" + 10_000 * ")"],
    ids=["large", "long", "deep"],
)
def test_an_expression_beyond_what_python_reads_is_told_of(tmp_path: Path, expression: str) -> None:
    """As any other that is none; of a long one the beginning."""
    module = write_users(tmp_path, f"a=CN=a\nb=/{expression}/\n", "")
    with pytest.raises(ConfigurationError, match=f"{module.user}:2: b: .*no regular") as refused:
        read_certificate_users(module)
    assert len(str(refused.value)) < 1_000


def secured_by_certificates(parameters: str, module: CertificateLoginModule) -> Settings:
    """Return settings with users by certificate, and one with a passcode."""
    granted = {one: frozenset({"senders"}) for one in ("send", "createAddress")}
    granted["createDurableQueue"] = frozenset({"senders"})
    return replace(
        with_tls(f"{parameters};wantClientAuth=true"),
        security_enabled=True,
        certificate_login_module=module,
        users=(User("ada", Secret("l0vel@ce"), frozenset()),),
        security_settings=(SecuritySetting("#", granted),),
    )


def have_users(server: ServerUnderTest, users: tuple[CertificateUser, ...]) -> None:
    """Have the server know these, and end whom it has to."""

    def replaced() -> None:
        changed = server.broker.security.certificates.replace(users)
        server.server.clients.end_users(changed, "changed")

    server.call(replaced)


CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
SEND = b"SEND\ndestination:/queue/q\nreceipt:r\n\nx\0"


def test_a_client_logs_in_by_its_certificate(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the roles of the files; who gives a login is asked for its passcode, as without TLS."""
    module = write_users(tmp_path, "relay=CN=relay\nidle=CN=idle\n", "senders=relay\n")
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    parameters = f"keyStorePath={store};trustStorePath={tmp_path / 'ca.pem'}"

    def context(name: str) -> ssl.SSLContext:
        return showing(trusting(authority), authority.sign((), subject=(("CN", name),)), tmp_path)

    with serving(secured_by_certificates(parameters, module)) as server:
        have_users(server, read_certificate_users(module))
        with secured(server, context("relay")) as client:
            client.sendall(CONNECT + SEND)
            assert b"receipt-id:r\n" in read_until(client, b"receipt-id:r\n")
        with secured(server, context("idle")) as client:
            client.sendall(CONNECT + SEND)
            assert b"user 'idle' has no role with permission" in read_to_the_end(client)
        for login, answer in (
            (b"login:ada\npasscode:l0vel@ce\n", b"CONNECTED"),
            (b"login:ada\npasscode:wrong\n", b"login or passcode is wrong"),
        ):
            with secured(server, context("relay")) as client:
                client.sendall(CONNECT.replace(b"host", login + b"host"))
                assert answer in read_until(client, b"\0")
        with secured(server, context("unlisted")) as client:
            client.sendall(CONNECT)
            assert b"the certificate of 'CN=unlisted' is no user's" in read_to_the_end(client)
        with secured(server, trusting(authority)) as client:
            client.sendall(CONNECT)
            assert b"login or passcode is wrong" in read_to_the_end(client)
        assert server.refused == [
            "authorization",
            "authentication",
            "certificate",
            "authentication",
        ]
    assert "refused: the certificate of 'CN=unlisted' is no user's" in caplog.text


@pytest.mark.parametrize("flag", ["certificate-domain", "sufficient", "last"])
def test_a_certificate_counts_as_login_config_says(
    authority: Authority, tmp_path: Path, flag: str
) -> None:
    """It decides alone, or goes before a login, or behind it, as its module does."""
    certificates = (LoginModule.CERTIFICATE, ControlFlag.SUFFICIENT)
    passcodes = (LoginModule.PROPERTIES, ControlFlag.SUFFICIENT)
    modules = {
        "certificate-domain": (passcodes,),
        "sufficient": (certificates, passcodes),
        "last": (passcodes, certificates),
    }
    module = write_users(tmp_path, "relay=CN=relay\n", "senders=relay\n")
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    settings = replace(
        secured_by_certificates(
            f"keyStorePath={store};trustStorePath={tmp_path / 'ca.pem'}", module
        ),
        login_domain=LoginDomain(
            tmp_path / "login.config",
            "activemq",
            modules[flag],
            certificates_decide=flag == "certificate-domain",
        ),
    )
    with serving(settings) as server:
        have_users(server, read_certificate_users(module))

        def name_of(subject: str, login: bytes) -> str:
            certificate = authority.sign((), subject=(("CN", subject),))
            with secured(server, showing(trusting(authority), certificate, tmp_path)) as client:
                client.sendall(CONNECT.replace(b"host", login + b"host"))
                answer = read_until(client, b"\0")
                if not answer.startswith(b"CONNECTED"):
                    return ""
                principals = server.server.clients._principals
                return server.call(lambda: next(iter(principals.values())).name)

        ada = b"login:ada\npasscode:l0vel@ce\n"
        assert name_of("relay", b"") == "relay"
        wait_until(lambda: server.connections == 0, what="it has left")
        assert name_of("relay", ada) == ("ada" if flag == "last" else "relay")
        wait_until(lambda: server.connections == 0, what="it has left")
        assert name_of("unlisted", ada) == ("" if flag == "certificate-domain" else "ada")
        assert name_of("unlisted", b"") == ""


def test_a_user_that_is_taken_out_of_the_file_is_ended(
    authority: Authority, tmp_path: Path
) -> None:
    """Soon, and without the node being told; others stay."""
    module = write_users(tmp_path, "relay=CN=relay\nother=CN=other\n", "senders=relay,other\n")
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    parameters = f"keyStorePath={store};trustStorePath={tmp_path / 'ca.pem'}"
    with serving(secured_by_certificates(parameters, module)) as server:
        files = UserFiles(
            module, read_certificate_users, lambda users: have_users(server, users), 0.05
        )
        have_users(server, files.start())
        try:
            contexts = [
                showing(trusting(authority), authority.sign((), subject=(("CN", name),)), tmp_path)
                for name in ("relay", "other")
            ]
            with secured(server, contexts[0]) as relay, secured(server, contexts[1]) as other:
                for client in (relay, other):
                    client.sendall(CONNECT)
                    assert read_until(client, b"\0").startswith(b"CONNECTED")
                # Put in its place whole: one that is emptied first is read so on a slow machine.
                fresh = tmp_path / "fresh"
                fresh.write_text("other=CN=other\n")
                fresh.replace(module.user)
                assert read_to_the_end(relay).startswith(b"ERROR\nmessage:changed")
                other.sendall(SEND)
                assert b"receipt-id:r\n" in read_until(other, b"receipt-id:r\n")
        finally:
            files.stop()


def test_a_module_without_an_acceptor_that_asks_is_refused(run: Run, tmp_path: Path) -> None:
    """And files that cannot be used are told of by check."""
    Authority(tmp_path / "ca.pem").sign().write_pem(tmp_path / "broker.pem")
    path = tmp_path / "broker.xml"
    text = (
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">\n'
        '<acceptors><acceptor name="a">tcp://:1?sslEnabled=true;keyStorePath=broker.pem'
        "{more}</acceptor></acceptors>\n"
        '<login-modules xmlns="urn:orthia"><certificate-login-module/></login-modules>\n'
        "</core></configuration>"
    )
    path.write_text(text.format(more=""))
    found = run("check", path)
    assert found.exit_code == 78
    assert f"{path}:3: <certificate-login-module>: knows users by their" in found.stderr
    path.write_text(text.format(more=";trustStorePath=ca.pem;wantClientAuth=true"))
    assert f"{tmp_path / 'cert-users.properties'}: cannot be read" in run("check", path).stderr
    (tmp_path / "cert-users.properties").write_text("relay=CN=relay\n")
    (tmp_path / "cert-roles.properties").write_text("senders=relay\n")
    found = run("check", path)
    assert found.exit_code == 0, found.stderr
    assert "no client can log in" not in found.stderr
