"""A node in a folder of Artemis: whoever logs in there logs in here, with nothing changed."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from orthia.config.settings import Role
from tests.process.nodes import CLI
from tests.process.secured_node import SecuredNode

_SALT = "48F4E3C4DD5D9D9B85A0C1A4CDB97FB6E08B8E0FB4E1C9DA3AC0D9A7FB2E9F11"
_HASH = hashlib.pbkdf2_hmac("sha1", b"s3cret", bytes.fromhex(_SALT), 1024, 64).hex().upper()
_JAAS = "org.apache.activemq.artemis.spi.core.security.jaas."


class ArtemisNode(SecuredNode):
    """A node started from the broker.xml of an Artemis, beside its own files."""

    @property
    @override
    def config_path(self) -> Path:
        return self.directory / "etc" / "broker.xml"

    @override
    def command(self) -> list[str]:
        self.config_path.parent.mkdir(exist_ok=True)
        self.config_path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>0.0.0.0</name><journal-directory>${{data.dir}}/journal</journal-directory>
            <acceptors><acceptor name="artemis">tcp://127.0.0.1:{self.port}?amqpCredits=1000;\
protocols=CORE,AMQP,STOMP,HORNETQ,MQTT,OPENWIRE;connection-ttl=60000</acceptor></acceptors>
            <security-settings><security-setting match="#">
            <permission type="send" roles="amq"/><permission type="createAddress" roles="amq"/>
            <permission type="createDurableQueue" roles="amq"/></security-setting>
            </security-settings></core></configuration>"""
        )
        return [*CLI, "run", str(self.config_path)]

    def write(self, name: str, text: str) -> None:
        """Write a file beside its broker.xml."""
        (self.config_path.parent / name).write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ArtemisNode]:
    """A node that is not started, with users as `artemis create --allow-anonymous` writes them."""
    node = ArtemisNode(Role.LIVE, "", tmp_path, "live")
    node.command()
    node.write("artemis-users.properties", f"admin = ENC(1024:{_SALT}:{_HASH})\nbob = plain\n")
    node.write("artemis-roles.properties", "amq = admin,bob\n")
    node.write(
        "login.config",
        f"""activemq {{
           {_JAAS}PropertiesLoginModule sufficient
               debug=false
               reload=true
               org.apache.activemq.jaas.properties.user="artemis-users.properties"
               org.apache.activemq.jaas.properties.role="artemis-roles.properties";
           {_JAAS}GuestLoginModule sufficient
               org.apache.activemq.jaas.guest.user="guest"
               org.apache.activemq.jaas.guest.role="nobodies";
        }};""",
    )
    yield node
    node.end()


def _send(node: ArtemisNode, login: str, passcode: str) -> bytes:
    """Return the answer to a SEND."""
    with node.log_in(login, passcode) as client:
        assert client.recv(4096).startswith(b"CONNECTED")
        client.sendall(b"SEND\ndestination:/queue/a\nreceipt:1\n\nx\0")
        return client.recv(4096)


def test_the_users_of_artemis_come_in(node: ArtemisNode) -> None:
    """With their roles, whether hashed or plain; all others are the guest, with the guest's.

    The log says what the port serves, and whose clients it does not.
    """
    node.start().wait_serving()
    node.wait_log(f"acceptor open on 127.0.0.1:{node.port} for AMQP and STOMP")
    node.wait_log("'artemis', protocols: clients of CORE, HORNETQ, MQTT, OPENWIRE cannot")
    assert b"receipt-id:1" in _send(node, "admin", "s3cret")
    assert b"receipt-id:1" in _send(node, "bob", "plain")
    for login, passcode in (("bob", "wrong"), ("stranger", "x")):
        assert b"user 'guest' has no role with permission" in _send(node, login, passcode)
