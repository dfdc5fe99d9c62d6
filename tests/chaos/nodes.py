"""The nodes of a run: real ones, with a clock that can be stepped and a broker.xml of their own."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from typing_extensions import override

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.nodemanager.failover_log import log_file_name
from tests.chaos.exits import Expectations
from tests.chaos.network import Link
from tests.process.file_nodes import FileNodeProcess
from tests.process.locker_stores import store

FULL_DEVICE = Path("/dev/full")
POISON_ATTEMPTS = 3
"""Deliveries in vain after which a message of the queue ``poison`` is a dead letter."""
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


class SteppedClock:
    """A wall clock that is set off, of every process that has its environment.

    What measures durations is left as it is.
    """

    def __init__(self, library: Path, file: Path) -> None:
        """Keep in ``file`` how far it is off."""
        self._file = file
        self.environment = {"LD_PRELOAD": str(library), "ORTHIA_CHAOS_CLOCK": str(file)}
        self.step(0)

    @classmethod
    def built(cls, directory: Path) -> "SteppedClock":
        """Return one with its library compiled into a directory; raises FileNotFoundError."""
        return cls(build_stepped_clock(directory), directory / "clock")

    def step(self, seconds: int) -> None:
        """Move the clock that processes see by so many seconds."""
        # One write in place: processes have the file mapped, and see all eight bytes at once.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write((seconds * 1_000_000_000).to_bytes(8, sys.byteorder, signed=True))


@dataclass
class ChaosNode(FileNodeProcess):
    """A node that is expected to end only as the faults explain."""

    clock: SteppedClock = field(kw_only=True)
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

    @override
    def elements(self) -> str:
        return (
            f'{self.core}<failover-log-directory xmlns="urn:orthia">'
            f"{self.failover_log.parent}</failover-log-directory>"
        )

    @override
    def start(self) -> Self:
        self.is_paused = False
        return super().start()

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
    waits = "<jdbc-lock-acquisition-timeout>-1</jdbc-lock-acquisition-timeout>"
    return _store(settings, port, timers, files=False, more=waits + more)


def file_store(
    directory: Path, settings: DatabaseStoreSettings | None, port: int, timers: Timers
) -> str:
    """Return the elements of messages in files, with leases in a database if there is one."""
    locks = "<store><file-store/></store>"
    if settings is not None:
        locks = _store(settings, port, timers, files=True, more="")
    return (
        f"{locks}<journal-directory>{directory}/journal</journal-directory>"
        f"<bindings-directory>{directory}/bindings</bindings-directory>"
        f"<large-messages-directory>{directory}/large</large-messages-directory>"
        f"<journal-file-size>{_MIB}</journal-file-size>"
        "<journal-lock-acquisition-timeout>-1</journal-lock-acquisition-timeout>"
    )


def _store(
    settings: DatabaseStoreSettings, port: int, timers: Timers, *, files: bool, more: str
) -> str:
    here = replace(settings, jdbc_connection_url=DatabaseUrl.parse(url_at(settings, port)))
    return store(
        Path(),
        here,
        "lease",
        files=files,
        keep_alive_ms=round(timers.renew_seconds * 1000),
        lease_ms=round(timers.expiration_seconds * 1000),
        network_timeout_ms=_NETWORK_TIMEOUT_MS,
        more=more,
    )


def common_core(role: Role, *, is_tight: bool, has_outbox: bool = False) -> str:
    """Return the elements of ``core`` that are the same in every world."""
    element = "primary" if role is Role.LIVE else "backup"
    outbox = '<outbox xmlns="urn:orthia"/>' if has_outbox else ""
    memory = f"<global-max-size>{_MIB // 4}</global-max-size>" if is_tight else ""
    clients = f"<max-client-bytes>{24 * _MIB}</max-client-bytes>" if is_tight else ""
    memory += (
        f'<stomp-limits xmlns="urn:orthia">{clients}'
        f"<max-queues-per-connection>{_QUEUES}</max-queues-per-connection></stomp-limits>"
    )
    return (
        f"<ha-policy><shared-store><{element}><failover-on-shutdown>true</failover-on-shutdown>"
        f"</{element}></shared-store></ha-policy>{memory}{outbox}<address-settings>"
        '<address-setting match="poison">'
        f"<max-delivery-attempts>{POISON_ATTEMPTS}</max-delivery-attempts></address-setting>"
        '<address-setting match="accounts">'
        "<default-group-rebalance>true</default-group-rebalance></address-setting>"
        # What cannot be processed while the database is down is to be tried until it can.
        '<address-setting match="ledger">'
        "<max-delivery-attempts>-1</max-delivery-attempts></address-setting>"
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
