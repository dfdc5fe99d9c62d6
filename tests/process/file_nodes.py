"""Nodes of a shared directory as real processes, each started from a broker.xml of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orthia.config.settings import Role
from tests.process.nodes import NodeProcess

PATIENT = "?heartBeatToConnectionTtlModifier=240"
"""Of an acceptor: a client that beats often may stand still as long as a busy machine does."""


@dataclass
class FileNodeProcess(NodeProcess):
    """A node whose broker.xml names a shared directory and no database."""

    core: str = ""
    """Further elements of its ``core``."""
    security: str = "<security-enabled>false</security-enabled>"
    """Whether it wants a login; empty where ``core`` has users."""
    policy: str = ""
    """Elements of its HA policy; an empty one for none at all."""

    @property
    def config_path(self) -> Path:
        """Its broker.xml."""
        return self.directory / f"{self.name}.xml"

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        role = "primary" if self.role is Role.LIVE else "backup"
        ha = (
            f"<ha-policy><shared-store><{role}>{self.policy}</{role}></shared-store></ha-policy>"
            if self.policy
            else ""
        )
        self.config_path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>{self.name}</name>
            {self.security}
            <journal-directory>{self.url}/journal</journal-directory>
            <bindings-directory>{self.url}/bindings</bindings-directory>
            {self.core}{ha}
            <acceptors><acceptor name="stomp">tcp://127.0.0.1:{self.port}{PATIENT}</acceptor>
            </acceptors>
            </core></configuration>"""
        )
        return [
            *self.prefix,
            sys.executable,
            "-m",
            "orthia.broker.cli",
            "run",
            "--config",
            str(self.config_path),
        ]


@dataclass
class FileCluster:
    """The nodes of one test, on one directory."""

    directory: Path
    core: str = ""
    security: str = FileNodeProcess.security
    nodes: list[FileNodeProcess] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """The shared directory."""
        return self.directory / "shared"

    def node(self, role: Role, name: str, *, policy: str, core: str = "") -> FileNodeProcess:
        """Make a node."""
        node = FileNodeProcess(
            role,
            str(self.store),
            self.directory,
            name,
            core=self.core + core,
            security=self.security,
            policy=policy,
        )
        self.nodes.append(node)
        return node

    def pair(self, *, failover_on_shutdown: bool = True) -> tuple[NodeProcess, NodeProcess]:
        """Start a live node that serves and a backup that is announced."""
        policy = f"<failover-on-shutdown>{str(failover_on_shutdown).lower()}</failover-on-shutdown>"
        live = self.node(Role.LIVE, "live", policy=policy)
        live.start().wait_serving()
        backup = self.node(Role.BACKUP, "backup", policy=policy)
        backup.start().wait_log("AMQ221031")
        return live, backup


@contextmanager
def file_cluster(
    directory: Path, core: str = "", *, security: str = FileNodeProcess.security
) -> Iterator[FileCluster]:
    """Give a cluster whose processes are ended with the block."""
    nodes = FileCluster(directory, core, security)
    try:
        yield nodes
    finally:
        for node in nodes.nodes:
            node.end()
