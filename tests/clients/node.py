"""A node that wants a login, and gives up on a message after two attempts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orthia.config.settings import Role
from tests.process.nodes import NodeProcess

PASSCODES = {"alice": "a:b\\c", "bob": "plain"}
"""Of a client that escapes nothing in CONNECT, as the STOMP text has it, and of one that does."""
DEAD_LETTERS = "DLQ"
DIVERTS = """<diverts><divert name="audit"><address>orders.#</address>
  <forwarding-address>audit</forwarding-address></divert></diverts>"""
LAST_VALUES = """<address-setting match="prices.#">
  <default-last-value-queue>true</default-last-value-queue></address-setting>"""
SECONDS = 120
"""How long a client waits for what must come."""
_PERMISSIONS = (
    *("send", "consume", "browse", "createAddress"),
    *("createDurableQueue", "deleteDurableQueue"),
    *("createNonDurableQueue", "deleteNonDurableQueue"),
)


class ClientsNode(NodeProcess):
    """A live node alone, on SQLite, run from a broker.xml."""

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        permissions = "".join(f'<permission type="{one}" roles="amq"/>' for one in _PERMISSIONS)
        users = "".join(
            f'<user name="{name}" password="{passcode}" roles="amq"/>'
            for name, passcode in PASSCODES.items()
        )
        path = self.directory / "broker.xml"
        path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>{self.name}</name>
            <store><database-store><jdbc-connection-url>{self.url}</jdbc-connection-url>
            </database-store></store>
            <acceptors><acceptor name="stomp">tcp://127.0.0.1:{self.port}</acceptor></acceptors>
            <users xmlns="urn:orthia">{users}</users>
            <security-settings><security-setting match="#">{permissions}</security-setting>
            </security-settings>
            <address-settings><address-setting match="#">
              <max-delivery-attempts>2</max-delivery-attempts>
              <dead-letter-address>{DEAD_LETTERS}</dead-letter-address>
            </address-setting>{LAST_VALUES}</address-settings>{DIVERTS}
            </core></configuration>"""
        )
        return [sys.executable, "-m", "orthia.broker.cli", "run", str(path)]


@contextmanager
def clients_node(directory: Path) -> Iterator[ClientsNode]:
    """Run a node for the block; at its end it must still run, and nothing unexpected be logged."""
    url = f"jdbc:sqlite:{directory / 'orthia.db'}"
    node = ClientsNode(Role.LIVE, url, directory, "live")
    try:
        node.start().wait_serving()
        yield node
        assert node.is_running, node.log
        assert "Traceback" not in node.log, node.log
    finally:
        node.end()
