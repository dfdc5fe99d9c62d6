"""A node whose users are in files beside its broker.xml, as ``orthia user`` writes them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.process.nodes import NodeProcess
from tests.support.servers import NODE_LEASE_MS, NODE_NETWORK_TIMEOUT_MS

CLI = (sys.executable, "-m", "orthia.broker.cli")
"""The command line."""


class SecuredNode(NodeProcess):
    """A node on a store of its own, or a pair's, started from a broker.xml."""

    core = ""
    """More elements of its broker.xml."""
    lease = f"<jdbc-lock-expiration>{NODE_LEASE_MS}</jdbc-lock-expiration>"
    """Elements of its store."""

    @property
    def config_path(self) -> Path:
        """Its broker.xml."""
        return self.directory / "broker.xml"

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        permissions = "".join(
            f'<permission type="{one}" roles="amq"/>'
            for one in ("send", "consume", "createAddress", "createDurableQueue")
        )
        self.config_path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>{self.name}</name>
            <store><database-store><jdbc-connection-url>{self.url}</jdbc-connection-url>
            <jdbc-network-timeout>{NODE_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>
            {self.lease}</database-store></store>
            <acceptors><acceptor name="stomp">tcp://127.0.0.1:{self.port}</acceptor></acceptors>
            <security-settings><security-setting match="#">{permissions}</security-setting>
            </security-settings>
            <login-modules xmlns="urn:orthia"><properties-login-module/></login-modules>{self.core}
            </core></configuration>"""
        )
        return [*CLI, "run", str(self.config_path)]

    def user(self, *arguments: str, password: str = "") -> None:
        """Run ``orthia user``."""
        subprocess.run(
            [*CLI, "user", *arguments, "--config", str(self.config_path)],
            check=True,
            env={**os.environ, "ORTHIA_PASSWORD": password},
            timeout=120,
        )

    def log_in(self, login: str, passcode: str) -> socket.socket:
        """Connect and say CONNECT."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        client.sendall(
            f"CONNECT\naccept-version:1.2\nlogin:{login}\npasscode:{passcode}\n\n\0".encode()
        )
        return client

    def answer(self, login: str, passcode: str) -> bytes:
        """Return the beginning of the answer to a login."""
        with self.log_in(login, passcode) as client:
            return client.recv(4096)
