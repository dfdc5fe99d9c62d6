"""A pair of which each node is of a version of its own."""

from dataclasses import dataclass
from pathlib import Path

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from tests.process.nodes import Cluster, NodeProcess, Option
from tests.upgrade.versions import HAVE_ONE_SCHEMA, IS_OF_TWO_VERSIONS, Version

QUEUE = "/queue/kept"
"""Not one of those that the clients at work consume."""
DOES_NOT_KNOW = "which this version of Orthia does not know"
EITHER_FIRST = list(Version) if IS_OF_TWO_VERSIONS and HAVE_ONE_SCHEMA else [Version.OLDER]
"""Whose node may serve first."""


@dataclass
class Pair:
    """A live node and its backup, on one empty database."""

    live: NodeProcess
    backup: NodeProcess
    settings: DatabaseStoreSettings
    directory: Path

    @property
    def ports(self) -> list[int]:
        """Where clients may find a node."""
        return [self.live.port, self.backup.port]

    def start(self, live: Version, backup: Version) -> None:
        """Start the live node, then the backup; return when one serves and the other waits."""
        live.of(self.live).start().wait_serving()
        backup.of(self.backup).start().wait_log("AMQ221031")


def other(version: Version) -> Version:
    """Return the version that is not this one."""
    return Version.NEWER if version is Version.OLDER else Version.OLDER


def make_pair(nodes: Cluster, settings: DatabaseStoreSettings, **options: Option) -> Pair:
    """Make the nodes, none started."""
    live, backup = (
        nodes.node(role, role.value, failover_on_shutdown=True, **options)
        for role in (Role.LIVE, Role.BACKUP)
    )
    return Pair(live, backup, settings, nodes.directory)
