"""A node whose users are in files beside its broker.xml, as ``orthia user`` writes them."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import orthia
from tests.support.servers import NODE_LEASE_MS, NODE_NETWORK_TIMEOUT_MS

_PERMISSIONS = "".join(
    f'<permission type="{one}" roles="amq"/>'
    for one in ("send", "consume", "createAddress", "createDurableQueue")
)


@dataclass
class SecuredNode(FileNodeProcess):
    """A node on a store of its own, or a pair's, whose users are in files."""

    lease: ClassVar[str] = (
        f"<jdbc-network-timeout>{NODE_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>"
        f"<jdbc-lock-expiration>{NODE_LEASE_MS}</jdbc-lock-expiration>"
    )
    security: str = ""
    parameters: str = ""

    @property
    @override
    def config_path(self) -> Path:
        return self.directory / "broker.xml"

    @override
    def elements(self) -> str:
        return (
            f'<security-settings><security-setting match="#">{_PERMISSIONS}</security-setting>'
            '</security-settings><login-modules xmlns="urn:orthia"><properties-login-module/>'
            f"</login-modules>{self.core}"
        )

    def user(self, *arguments: str, password: str = "") -> None:
        """Run ``orthia user``."""
        orthia("user", *arguments, "--config", self.config_path, ORTHIA_PASSWORD=password)

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
