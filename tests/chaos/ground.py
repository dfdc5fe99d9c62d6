"""Where a run takes place: three nodes, each with a network and a clock of its own, one database.

What the faults need to know and do is here; which faults there are is in ``faults``.
"""

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from config.settings import DatabaseStoreSettings, Role
from database import Database
from nodemanager.failover_log import log_file_name
from tests.chaos.network import Link, Network
from tests.process.nodes import NodeProcess, accepts
from tests.support.servers import ServerProcess, StoreServer, free_port, url_with_password
from tests.support.waiting import wait_until

EXPIRATION_SECONDS = 3.0
RENEW_SECONDS = 0.3
OTHER_RENEW_SECONDS = {"alpha": 0.9, "beta": 0.3, "gamma": 0.15}
"""What the nodes have when the seed is even: a pair is as safe if its timers differ."""
IO_ERROR = 74
FULL_DEVICE = Path("/dev/full")


@dataclass
class ChaosNode(NodeProcess):
    """A node whose clock can be stepped, and that is expected to end only as the rules say."""

    clock: Path = Path()
    link: Link | None = None
    """Its way to the database; None if there is no network between them."""
    expected_codes: set[int] = field(default_factory=lambda: {IO_ERROR})
    """Exit codes that the faults of this incarnation explain."""
    is_paused: bool = False
    ends: list[int] = field(default_factory=list)
    """The exit codes of past incarnations."""
    unexplained: list[str] = field(default_factory=list)
    """What ended otherwise than the rules say."""

    @property
    def failover_log(self) -> Path:
        """Its failover log's file."""
        return self.directory / self.name / "log" / log_file_name(self.name)

    def start(self) -> "ChaosNode":
        """Start a new incarnation."""
        self.expected_codes = {IO_ERROR}
        self.is_paused = False
        super().start()
        return self

    def reap(self) -> None:
        """Note how an incarnation that has ended did so."""
        if self.process is None or self.is_running:
            return
        code = self.process.returncode
        self.ends.append(code)
        if code not in self.expected_codes:
            self.unexplained.append(
                f"{self.name} ended with {code}, not one of {sorted(self.expected_codes)};"
                f" its log ends:\n{self.log[-2_000:]}"
            )
        self.process = None

    def hit(self, number: signal.Signals, *expected: int) -> None:
        """Send a signal, if the node runs; ``expected`` are the exit codes it may lead to."""
        if self.is_running:
            self.expected_codes |= set(expected)
            self.signal(number)

    def crash(self) -> None:
        """Kill it as a power cut would, if it runs."""
        if self.is_running:
            self.expected_codes.add(-signal.SIGKILL)
            self.kill()

    def pause(self) -> None:
        """Freeze it."""
        self.hit(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        self.hit(signal.SIGCONT)
        self.is_paused = False

    def step_clock(self, seconds: int) -> None:
        """Set its wall clock off by ``seconds``; what measures durations is left as it is."""
        # One write in place: the node has the file mapped, and sees all eight bytes at once.
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write((seconds * 1_000_000_000).to_bytes(8, sys.byteorder, signed=True))

    def fill_disk(self) -> None:
        """Leave no room for its failover log from its next start on."""
        if not self.failover_log.is_symlink():
            self.failover_log.rename(self.failover_log.with_suffix(".kept"))
            self.failover_log.symlink_to(FULL_DEVICE)

    def free_disk(self) -> None:
        """Give it room again, from its next start on."""
        if self.failover_log.is_symlink():
            self.failover_log.unlink()
            self.failover_log.with_suffix(".kept").rename(self.failover_log)


@dataclass
class Ground:
    """The nodes, the database and the networks of a run."""

    dbms: str
    directory: Path
    settings: DatabaseStoreSettings
    nodes: list[ChaosNode]
    server: ServerProcess | None
    """None for SQLite."""
    random: random.Random

    @property
    def sqlite_path(self) -> Path:
        """The database's file; only for SQLite."""
        return Path(str(self.settings.jdbc_connection_url.sqlalchemy_url.database))

    def serving(self) -> ChaosNode:
        """Return the node that serves, or any that runs, or any."""
        running = [node for node in self.nodes if node.is_running]
        serving = [node for node in running if not node.is_paused and accepts(node.port)]
        return [*serving, *running, *self.nodes][0]

    def waiting(self) -> ChaosNode:
        """Return a node that does not serve."""
        serving = self.serving()
        return self.random.choice([node for node in self.nodes if node is not serving])

    def open_database(self) -> Database:
        """Return a way to the database that no fault of a network is on."""
        return Database.from_settings(self.settings)

    def start(self) -> None:
        """Start every node, the live one first; return once it serves and the others wait."""
        live, *backups = self.nodes
        live.start().wait_serving()
        for backup in backups:
            backup.start().wait_log("AMQ221032")

    def end(self) -> None:
        """End every node and give back what was lent."""
        for node in self.nodes:
            node.end()


def build_stepped_clock(directory: Path) -> Path:
    """Compile the library that steps the clock of a process; raises FileNotFoundError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError(
            "stepping clocks needs a C compiler; install it with: make packages"
        )
    library = directory / "stepped_clock.so"
    source = Path(__file__).with_name("stepped_clock.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(library), str(source)], check=True)
    return library


def make_ground(
    server: StoreServer, dbms: str, directory: Path, network: Network, seed: int
) -> Ground:
    """Prepare a live node and two backups on a fresh database, none started yet."""
    settings = server.settings(server.create_database())
    stepped_clock = build_stepped_clock(directory)
    nodes = []
    process = server if isinstance(server, ServerProcess) else None
    for name, role in (("alpha", Role.LIVE), ("beta", Role.BACKUP), ("gamma", Role.BACKUP)):
        url, link = url_with_password(settings), None
        if process is not None:
            link = network.link(process.port)
            url = url.replace(f":{process.port}/", f":{link.port}/")
        clock = directory / f"{name}.clock"
        renew_seconds = OTHER_RENEW_SECONDS[name] if seed % 2 == 0 else RENEW_SECONDS
        node = ChaosNode(
            role,
            url,
            directory,
            name,
            {
                "jdbc-lock-renew-period": int(renew_seconds * 1000),
                "jdbc-lock-expiration": int(EXPIRATION_SECONDS * 1000),
                "jdbc-network-timeout": 2_000,
                "jdbc-lock-acquisition-timeout": -1,
                "failover-on-shutdown": True,
            },
            free_port(),
            environment={
                "LD_PRELOAD": str(stepped_clock),
                "ORTHIA_CHAOS_CLOCK": str(clock),
            },
            clock=clock,
            link=link,
        )
        node.step_clock(0)
        nodes.append(node)
    return Ground(dbms, directory, settings, nodes, process, random.Random(seed))


def wait_gone(node: ChaosNode, timeout_seconds: float = 30) -> None:
    """Wait until a node that was told to stop has ended; raises AssertionError."""
    wait_until(lambda: not node.is_running, timeout_seconds, what=f"{node.name} has stopped")
