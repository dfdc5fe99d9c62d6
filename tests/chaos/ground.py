"""Where a run takes place: three nodes, each with a network and a clock of its own, one store.

What the faults need to know and do is here; which faults there are is in ``faults``.
"""

import random
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from tests.chaos.exits import Expectations
from tests.chaos.history import History
from tests.chaos.network import Link, Network
from tests.chaos.nodes import (
    ChaosNode,
    Settings,
    SteppedClock,
    Timers,
    build_stepped_clock,
    common_core,
    database_store,
    file_store,
    url_at,
)
from tests.chaos.replication import ReplicatedServer
from tests.chaos.worlds import Disk, Site
from tests.process.nodes import accepts
from tests.support.servers import ServerProcess, free_port
from tests.support.turns import ENVIRONMENT, limit_seconds
from tests.support.waiting import wait_until

EXPIRATION_SECONDS = 3.0
FARTHEST_STEP_SECONDS = 86_400
_NAMES = (("alpha", Role.LIVE), ("beta", Role.BACKUP), ("gamma", Role.BACKUP))
_EQUAL_TIMERS = Timers(0.3, EXPIRATION_SECONDS)
_MIXED_TIMERS = {
    "alpha": Timers(0.9, EXPIRATION_SECONDS),
    "beta": Timers(0.3, 3.4),
    "gamma": Timers(0.15, 2.4),
}
_RETENTION = '<journal-retention xmlns="urn:orthia" period="30" unit="DAYS"/>'


@dataclass
class Ground:
    """The nodes, the database and the networks of a run."""

    site: Site
    directory: Path
    """For what the nodes write beside the store."""
    database_settings: DatabaseStoreSettings | None
    """How the run itself reaches the database, past every fault; None if there is none."""
    settings: Settings
    nodes: list[ChaosNode]
    links: list[Link]
    """Of nodes and run: all ways to the database."""
    expectations: Expectations
    random: random.Random
    history: History | None = None
    """Set once clients are at work."""
    bulks: int = 0
    """How many large transactions faults have sent."""
    lent: ExitStack = field(default_factory=ExitStack)
    """What is closed with the run."""
    tails: list[tuple[float, float]] = field(default_factory=list)
    """Since when, until when, what was committed may be lost with a primary without its standby."""

    stepped: list[float] = field(default_factory=list)
    """What clocks showed, of nodes and database, when they were stepped; seconds since 1970."""

    @property
    def has(self) -> frozenset[str]:
        """What the world has."""
        return self.site.has

    @property
    def renewal_seconds(self) -> float:
        """How long every node bears a database that does not answer."""
        return min(timers.renewal_seconds for timers in self.settings.timers.values())

    @property
    def server(self) -> ServerProcess | ReplicatedServer:
        """The database's process, of worlds that have one."""
        assert isinstance(self.site.server, ServerProcess | ReplicatedServer)
        return self.site.server

    @property
    def replicated(self) -> ReplicatedServer:
        """The database and its standby, of worlds that have one."""
        assert isinstance(self.site.server, ReplicatedServer)
        return self.site.server

    @property
    def disk(self) -> Disk:
        """The disk of the store, of worlds that have one of their own."""
        assert self.site.disk is not None
        return self.site.disk

    @property
    def sqlite_path(self) -> Path:
        """The database's file; only for SQLite."""
        assert self.database_settings is not None
        path = self.database_settings.jdbc_connection_url.sqlite_path
        assert path is not None
        return path

    def expect(self, *codes: int) -> None:
        """Say that a fault may end any node with one of ``codes`` from now on."""
        for node in self.nodes:
            node.expect(*codes)

    def serving(self) -> ChaosNode:
        """Return the node that serves, or any that runs, or any."""
        running = [node for node in self.nodes if node.is_running]
        awake = [node for node in running if not node.is_paused]
        serving = [node for node in awake if accepts(node.port)]
        return [*serving, *awake, *running, *self.nodes][0]

    def wait_serving(self) -> ChaosNode:
        """Return a node that serves, as soon as there is one; after a while any that runs."""
        with suppress(AssertionError):  # another fault may keep all of them from it
            wait_until(
                lambda: any(
                    node.is_running and not node.is_paused and accepts(node.port)
                    for node in self.nodes
                ),
                2 * EXPIRATION_SECONDS,
            )
        return self.serving()

    def waiting(self) -> ChaosNode:
        """Return a node that does not serve."""
        serving = self.serving()
        return self.random.choice([node for node in self.nodes if node is not serving])

    def open_database(self) -> Database:
        """Return a way to the database that no fault of a network is on."""
        assert self.database_settings is not None
        return Database.from_settings(self.database_settings)

    def start(self) -> None:
        """Start every node, the live one first; return once it serves and the others wait."""
        live, *backups = self.nodes
        live.start().wait_serving()
        for backup in backups:
            backup.start()
        for backup in backups:
            wait_until(lambda backup=backup: self._is_up(backup), what=f"{backup.name} waits")  # type: ignore[misc]

    def _is_up(self, backup: ChaosNode) -> bool:
        """Return whether a backup waits or serves; a machine that stood still ends leases."""
        for node in self.nodes:
            if not node.is_running and node.is_noted:  # else nobody would judge that end
                node.start()
        return "AMQ221032" in backup.log or accepts(backup.port)

    def step_clocks(self, seconds: int) -> None:
        """Set the wall clock of the one host there is off."""
        for node in self.nodes:
            node.clock.step(seconds)
        self.stepped.append(time.time() + seconds)

    @property
    def times_by_nodes(self) -> bool:
        """Whether it is the nodes' clocks that decide what is due and what has expired."""
        return "server" not in self.has or "files" in self.has

    def recovered(self) -> None:
        """Note that all faults so far are over, with all that follows from them."""
        self.expectations.close(time.monotonic())

    def end(self) -> None:
        """End every node and give back what was lent."""
        for node in self.nodes:
            node.end()
        self.lent.close()


def choose_settings(seed: int, has: frozenset[str]) -> Settings:
    """Return what nodes are configured with: each of eight seeds in a row another way."""
    names = [name for name, _ in _NAMES]
    timers = _MIXED_TIMERS if seed % 2 == 0 else dict.fromkeys(names, _EQUAL_TIMERS)
    return Settings(timers, seed // 2 % 2 == 1, "sql" in has and seed // 4 % 2 == 1)


def make_ground(site: Site, directory: Path, network: Network, seed: int) -> Ground:
    """Prepare a live node and two backups on a fresh store, none started yet."""
    settings = choose_settings(seed, site.has)
    stepped_clock = build_stepped_clock(directory)
    store = None
    if site.server is not None:
        store = site.server.settings(site.server.create_database())
    nodes: list[ChaosNode] = []
    links: list[Link] = []
    expectations = Expectations()
    ground = Ground(
        site, directory, store, settings, nodes, links, expectations, random.Random(seed)
    )
    if "standby" in site.has:
        ground.replicated.follow(network.link(0))
    if "link" in site.has:
        assert store is not None
        own = network.link(ground.server.port)
        links.append(own)
        here = DatabaseUrl.parse(url_at(store, own.port))
        ground.database_settings = store = replace(store, jdbc_connection_url=here)
    for name, role in _NAMES:
        timers, link, port = settings.timers[name], None, 0
        if "link" in site.has:
            link = network.link(ground.server.port)
            links.append(link)
            port = link.port
        if "files" in site.has:
            where = file_store(site.directory, store, port, timers)
        else:
            assert store is not None
            where = database_store(store, port, timers, _RETENTION * settings.keeps_history)
        core = common_core(role, is_tight=settings.is_tight, has_outbox="sql" in site.has)
        clock = SteppedClock(stepped_clock, directory / f"{name}.clock")
        node = ChaosNode(
            role,
            "",
            directory,
            name,
            port=free_port(),
            environment={**clock.environment, ENVIRONMENT: str(limit_seconds())},
            core=where + core,
            parameters="",
            clock=clock,
            link=link,
            expectations=expectations,
        )
        nodes.append(node)
    return ground


def wait_gone(node: ChaosNode, timeout_seconds: float = 240) -> None:
    """Wait until a node that was told to stop has ended; raises AssertionError."""
    wait_until(lambda: not node.is_running, timeout_seconds, what=f"{node.name} has stopped")
