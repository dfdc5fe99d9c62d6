"""Nodes as real processes, each started from a broker.xml of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import ClassVar

from orthia.config.settings import Role
from tests.process.nodes import CLI, NodeProcess

PATIENT = "?heartBeatToConnectionTtlModifier=240"
"""Of an acceptor: a client that beats often may stand still as long as a busy machine does."""


@dataclass
class FileNodeProcess(NodeProcess):
    """A node with a broker.xml of its own.

    Its URL is that of a database, or the path of a shared directory; or empty, if ``core`` says it.
    """

    lease: ClassVar[str] = ""
    """Elements of its store, if that is a database."""
    core: str = ""
    """Further elements of its ``core``."""
    security: str = "<security-enabled>false</security-enabled>"
    """Whether it wants a login; empty where ``core`` has users."""
    policy: str = ""
    """Elements of its HA policy; an empty one for none at all."""
    parameters: str = PATIENT
    """Of its acceptor."""

    @property
    def config_path(self) -> Path:
        """Its broker.xml."""
        return self.directory / f"{self.name}.xml"

    def elements(self) -> str:
        """Return what is in its ``core`` beside name, store, policy and acceptor."""
        return self.core

    def _store(self) -> str:
        if ":" in self.url:
            return (
                f"<store><database-store><jdbc-connection-url>{escape(self.url)}"
                f"</jdbc-connection-url>{self.lease}</database-store></store>"
            )
        if not self.url:
            return ""
        return (
            f"<journal-directory>{self.url}/journal</journal-directory>"
            f"<bindings-directory>{self.url}/bindings</bindings-directory>"
        )

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        role = "primary" if self.role is Role.LIVE else "backup"
        ha = f"<ha-policy><shared-store><{role}>{self.policy}</{role}></shared-store></ha-policy>"
        self.config_path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>{self.name}</name>
            {self.security}
            {self._store()}
            {self.elements()}{ha if self.policy else ""}
            <acceptors>
            <acceptor name="stomp">tcp://127.0.0.1:{self.port}{self.parameters}</acceptor>
            </acceptors>
            </core></configuration>"""
        )
        self.config_path.chmod(0o600)
        return [*self.prefix, *CLI, "run", "--config", str(self.config_path)]


@dataclass
class FileCluster:
    """The nodes of one test, on one directory."""

    directory: Path
    core: str = ""
    security: str = FileNodeProcess.security
    parameters: str = PATIENT
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
            parameters=self.parameters,
        )
        self.nodes.append(node)
        return node

    def alone(self) -> NodeProcess:
        """Start a live node without a backup that serves."""
        return self.node(Role.LIVE, "live", policy="").start().wait_serving()

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
    directory: Path,
    core: str = "",
    *,
    security: str = FileNodeProcess.security,
    parameters: str = PATIENT,
) -> Iterator[FileCluster]:
    """Give a cluster whose processes are ended with the block."""
    nodes = FileCluster(directory, core, security, parameters)
    try:
        yield nodes
    finally:
        for node in nodes.nodes:
            node.end()
