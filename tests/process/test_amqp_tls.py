"""Proton's client with TLS, and with a certificate in place of a password.

``make test-amqp`` builds a proton that has TLS, which the one that PyPI has built has not; where it
is missing, these tests are skipped.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.file_nodes import file_cluster
from tests.process.nodes import NodeProcess
from tests.support.certificates import Authority

proton: Any = pytest.importorskip("proton", reason="there is no proton: run make test-amqp")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not proton.SSL.present(),
        reason="needs proton with TLS: install libssl-dev, then run make test-amqp",
    ),
]
utils: Any = pytest.importorskip("proton.utils")

PATIENCE = 60
"""Seconds that proton waits for an answer."""
_PERMISSIONS = "".join(
    f'<permission type="{one}" roles="senders"/>'
    for one in ("send", "consume", "createAddress", "createDurableQueue")
)
CORE = f"""<populate-validated-user>true</populate-validated-user>
<users xmlns="urn:orthia"><user name="ada" password="l0vel@ce" roles="senders"/></users>
<security-settings><security-setting match="#">{_PERMISSIONS}</security-setting></security-settings>
<login-modules xmlns="urn:orthia"><certificate-login-module/></login-modules>"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """Give a node that knows the certificate of relay, and trusts that of stranger."""
    authority = Authority(tmp_path / "ca.pem")
    Authority(tmp_path / "other.pem")
    (tmp_path / "cert-users.properties").write_text("relay = CN=relay\n")
    (tmp_path / "cert-roles.properties").write_text("senders = relay\n")
    for name in ("relay", "stranger"):
        authority.sign((), subject=(("CN", name),)).write_apart(tmp_path / f"{name}.pem")
    store = authority.sign().write_pem(tmp_path / "broker.pem")
    parameters = (
        f"?sslEnabled=true;keyStorePath={store};trustStorePath={tmp_path / 'ca.pem'}"
        ";wantClientAuth=true"
    )
    with file_cluster(tmp_path, CORE, security="", parameters=parameters) as nodes:
        yield nodes.alone()


def connect(
    node: NodeProcess, mechanism: str, *, shown: str = "", trusted: str = "ca", **login: str
) -> Any:
    """Return a connection with TLS, which shows the certificate of whom it is told."""
    domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(node.directory / f"{trusted}.pem"))
    domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
    if shown:
        certificate = node.directory / f"{shown}.pem"
        domain.set_credentials(str(certificate), str(certificate.with_suffix(".key")), None)
    return utils.BlockingConnection(
        f"amqps://localhost:{node.port}",
        timeout=PATIENCE,
        ssl_domain=domain,
        allowed_mechs=mechanism,
        **login,
    )


def sent_and_received(connection: Any) -> tuple[str, str]:
    """Send a message and receive it; return its body, and who sent it by the broker's word."""
    connection.create_sender("orders").send(proton.Message(body="text", durable=True))
    receiver = connection.create_receiver("orders", credit=1)
    message = receiver.receive(timeout=PATIENCE)
    receiver.accept()
    connection.close()
    return message.body, bytes(message.user_id).decode()


def test_a_password_goes_by_tls(node: NodeProcess) -> None:
    """Without a certificate, which the node wants and does not need."""
    connection = connect(node, "PLAIN", user="ada", password="l0vel@ce")
    assert sent_and_received(connection) == ("text", "ada")


def test_a_certificate_is_a_login(node: NodeProcess) -> None:
    """By EXTERNAL: the user is the one with its subject."""
    assert sent_and_received(connect(node, "EXTERNAL", shown="relay")) == ("text", "relay")


@pytest.mark.parametrize("shown", ["stranger", ""])
def test_a_certificate_of_no_user_is_refused(node: NodeProcess, shown: str) -> None:
    """And without one EXTERNAL is not offered."""
    with pytest.raises(proton.ConnectionException):
        connect(node, "EXTERNAL", shown=shown)
    if shown:
        node.wait_log("CN=stranger")


def test_a_node_that_is_not_trusted_gets_no_login(node: NodeProcess) -> None:
    """Proton ends the handshake."""
    with pytest.raises(proton.ConnectionException):
        connect(node, "PLAIN", trusted="other", user="ada", password="l0vel@ce")
