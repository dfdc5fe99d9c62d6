"""The nodes of a run: real ones, with a clock that can be stepped and a broker.xml of their own."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.nodemanager.failover_log import log_file_name
from tests.chaos.exits import Expectations
from tests.chaos.network import Link
from tests.process.nodes import NodeProcess
from tests.support.servers import PASSWORD, USER

FULL_DEVICE = Path("/dev/full")
POISON_ATTEMPTS = 3
"""Deliveries in vain after which a message of the queue ``poison`` is a dead letter."""
MIN_LARGE_BYTES = 102_400
_NETWORK_TIMEOUT_MS = 2_000
_MIB = 1024 * 1024
_QUEUES = 10_000


@dataclass(frozen=True)
class Timers:
    """When a node renews its lease, and how long it lasts."""

    renew_seconds: float
    expiration_seconds: float

    @property
    def renewal_seconds(self) -> float:
        """How long a renewal may take, or stand still, before it has failed.

        The node gives it up one period before the lease ends; and the database ends a transaction
        of a renewal that stands still for half of the lease.
        """
        given_up_seconds = self.expiration_seconds - 2 * self.renew_seconds
        return min(given_up_seconds, self.expiration_seconds / 2)


@dataclass(frozen=True)
class Settings:
    """What the nodes of a run are configured with, beside where things are."""

    timers: dict[str, Timers]
    """By name of node."""
    is_tight: bool
    """Whether they may hold little in memory."""
    keeps_history: bool
    """Whether messages that left their queue are kept."""

    def __str__(self) -> str:
        mixed = len(set(self.timers.values())) > 1
        words = ["mixed timers" if mixed else "equal timers"]
        words += ["little memory"] * self.is_tight + ["retention"] * self.keeps_history
        return ", ".join(words)


@dataclass
class ChaosNode(NodeProcess):
    """A node that is expected to end only as the faults explain."""

    core: str = ""
    """The elements of its ``core`` that say where things are."""
    clock: Path = Path()
    link: Link | None = None
    """Its way to the database; None if there is no network between them."""
    expectations: Expectations = field(default_factory=Expectations)
    is_paused: bool = False
    noted_pid: int = 0
    """The process whose end was noted last."""

    @property
    def is_noted(self) -> bool:
        """Whether the end of its last incarnation was noted."""
        return self.process is None or self.process.pid == self.noted_pid

    @property
    def failover_log(self) -> Path:
        """Its failover log's file."""
        return self.directory / self.name / "log" / log_file_name(self.name)

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        path = self.directory / f"{self.name}.xml"
        path.write_text(
            '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">'
            f"<name>{self.name}</name><security-enabled>false</security-enabled>{self.core}"
            '<failover-log-directory xmlns="urn:orthia">'
            f"{self.failover_log.parent}</failover-log-directory>"
            f"<acceptors><acceptor>tcp://127.0.0.1:{self.port}</acceptor></acceptors>"
            "</core></configuration>"
        )
        path.chmod(0o600)
        return [sys.executable, "-m", "orthia.broker.cli", "run", "--config", str(path)]

    def start(self) -> "ChaosNode":
        """Start a new incarnation."""
        self.is_paused = False
        super().start()
        return self

    def expect(self, *codes: int) -> None:
        """Say that a fault may end it with one of ``codes`` from now on."""
        self.expectations.allow(self.name, codes, time.monotonic())

    def hit(self, number: signal.Signals, *expected: int) -> None:
        """Send a signal, if the node runs; ``expected`` are the exit codes it may lead to."""
        if self.is_running:
            self.expect(*expected)
            with suppress(ProcessLookupError):  # it has ended just now
                self.signal(number)

    def crash(self) -> None:
        """Kill it as a power cut would, if it runs."""
        if self.is_running:
            self.expect(-signal.SIGKILL)
            with suppress(ProcessLookupError):  # it has ended just now
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

    def fill_log(self) -> None:
        """Leave no room for its failover log from its next start on."""
        if not self.failover_log.is_symlink():
            self.failover_log.rename(self.failover_log.with_suffix(".kept"))
            self.failover_log.symlink_to(FULL_DEVICE)

    def free_log(self) -> None:
        """Give it room again, from its next start on."""
        if self.failover_log.is_symlink():
            self.failover_log.unlink()
            self.failover_log.with_suffix(".kept").rename(self.failover_log)


def database_store(settings: DatabaseStoreSettings, port: int, timers: Timers, more: str) -> str:
    """Return the ``store`` of messages and leases in a database that is reached at ``port``."""
    login = ""
    if settings.jdbc_user is not None:
        login = f"<jdbc-user>{USER}</jdbc-user><jdbc-password>{escape(PASSWORD)}</jdbc-password>"
    return (
        "<store><database-store>"
        f"<jdbc-connection-url>{escape(url_at(settings, port))}</jdbc-connection-url>{login}"
        f"<jdbc-lock-renew-period>{timers.renew_seconds * 1000:.0f}</jdbc-lock-renew-period>"
        f"<jdbc-lock-expiration>{timers.expiration_seconds * 1000:.0f}</jdbc-lock-expiration>"
        f"<jdbc-network-timeout>{_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>"
        "<jdbc-lock-acquisition-timeout>-1</jdbc-lock-acquisition-timeout>"
        f"{more}</database-store></store>"
    )


def file_store(
    directory: Path, settings: DatabaseStoreSettings | None, port: int, timers: Timers
) -> str:
    """Return the elements of messages in files, with leases in a database if there is one."""
    locker = ""
    if settings is not None:
        attributes = {
            "jdbcConnectionUrl": url_at(settings, port),
            "jdbcUser": USER,
            "jdbcPassword": PASSWORD,
            "lockKeepAlivePeriod": f"{timers.renew_seconds * 1000:.0f}",
            "lockAcquireSleepInterval": f"{timers.expiration_seconds * 1000:.0f}",
        }
        given = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
        locker = f'<locker xmlns="urn:orthia"><lease-database-locker {given}/></locker>'
    return (
        f"<store><file-store>{locker}</file-store></store>"
        f"<journal-directory>{directory}/journal</journal-directory>"
        f"<bindings-directory>{directory}/bindings</bindings-directory>"
        f"<large-messages-directory>{directory}/large</large-messages-directory>"
        f"<journal-file-size>{_MIB}</journal-file-size>"
        "<journal-lock-acquisition-timeout>-1</journal-lock-acquisition-timeout>"
    )


def common_core(role: Role, *, is_tight: bool) -> str:
    """Return the elements of ``core`` that are the same in every world."""
    element = "primary" if role is Role.LIVE else "backup"
    memory = f"<global-max-size>{_MIB // 4}</global-max-size>" if is_tight else ""
    clients = f"<max-client-bytes>{24 * _MIB}</max-client-bytes>" if is_tight else ""
    memory += (
        f'<stomp-limits xmlns="urn:orthia">{clients}'
        f"<max-queues-per-connection>{_QUEUES}</max-queues-per-connection></stomp-limits>"
    )
    return (
        f"<ha-policy><shared-store><{element}><failover-on-shutdown>true</failover-on-shutdown>"
        f"</{element}></shared-store></ha-policy>{memory}<address-settings>"
        '<address-setting match="poison">'
        f"<max-delivery-attempts>{POISON_ATTEMPTS}</max-delivery-attempts></address-setting>"
        '<address-setting match="accounts">'
        "<default-group-rebalance>true</default-group-rebalance></address-setting>"
        "</address-settings>"
    )


def url_at(settings: DatabaseStoreSettings, port: int) -> str:
    """Return the URL without password, with ``port`` in place of the database's own unless 0."""
    url = settings.jdbc_connection_url.sqlalchemy_url.set(username=None, password=None)
    return (url.set(port=port) if port else url).render_as_string(hide_password=False)


def build_stepped_clock(directory: Path) -> Path:
    """Compile the library that steps the clock of a process; raises FileNotFoundError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError(
            "stepping clocks needs a C compiler; install it with: make packages-all"
        )
    library = directory / "stepped_clock.so"
    source = Path(__file__).with_name("stepped_clock.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(library), str(source)], check=True)
    return library
