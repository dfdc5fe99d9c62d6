"""Orthia nodes as real processes, started from the CLI as a user starts them."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypedDict

from orthia.config.settings import Role
from tests.support.forked import ForkedProcess, start_program
from tests.support.processes import is_stopped
from tests.support.servers import (
    LAPSING_NODE_LEASE_MS,
    NODE_LEASE_MS,
    NODE_NETWORK_TIMEOUT_MS,
    free_port,
)
from tests.support.turns import SAID
from tests.support.waiting import wait_until

RENEW_PERIOD_MS = 300

Option = str | int | bool


class Lapsing(TypedDict):
    """Options of a node, with their names known to a type checker."""

    jdbc_lock_expiration: int


LAPSING: Lapsing = {"jdbc_lock_expiration": LAPSING_NODE_LEASE_MS}
"""Of a pair whose lease is to end by itself."""


CLI = (sys.executable, "-m", "orthia.broker.cli")
"""The command line."""


def orthia(*arguments: object, code: int = 0, **environment: str) -> str:
    """Run a command, which must end with an exit code; return what it says."""
    ended = subprocess.run(
        [*CLI, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stdout + ended.stderr


def told(*arguments: object) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(orthia(*arguments, "--json"))


def failover_log(url: str) -> list[dict[str, Any]]:
    """Return the merged failover log of all nodes, as it is in a database."""
    lines = orthia("failover-log", "--url", url, "--json").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def accepts(port: int) -> bool:
    """Return whether something accepts connections on ``port``."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def program_of(checkout: Path) -> str:
    """Return the module that is the command line in a checkout: once it was ``broker.cli``."""
    return NodeProcess.program if (checkout / "orthia").is_dir() else "broker.cli"


@dataclass
class NodeProcess:
    """One node: ``orthia live`` or ``orthia backup`` with its own data directory and port."""

    role: Role
    url: str
    directory: Path
    name: str
    options: Mapping[str, Option] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of this process."""
    prefix: Sequence[str] = ()
    """A command that runs the node's: ``ip netns exec`` and the like."""
    program: str = "orthia.broker.cli"
    """Which module is run: ``broker.cli`` in a checkout from before there was ``orthia``."""
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    judged: int = 0
    """How many long turns in its log were judged."""
    before_start: Callable[[], None] | None = None
    """What is done in the new process before its program begins."""

    @property
    def log_path(self) -> Path:
        """Where its output goes."""
        return self.directory / f"{self.name}.log"

    @property
    def log(self) -> str:
        """What the node printed so far."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def command(self) -> list[str]:
        """Return how it is started."""
        command = [*self.prefix, sys.executable, "-m", self.program, self.role.value]
        command += ["--url", self.url, "--port", str(self.port), "--name", self.name]
        command += ["--data-dir", str(self.directory / self.name)]
        timers = {
            "jdbc-lock-renew-period": RENEW_PERIOD_MS,
            "jdbc-lock-expiration": NODE_LEASE_MS,
            "jdbc-network-timeout": NODE_NETWORK_TIMEOUT_MS,
        }
        for option, value in {**timers, **self.options}.items():
            if isinstance(value, bool):
                command.append(f"--{option}" if value else f"--no-{option}")
            else:
                command += [f"--{option}", str(value)]
        return command

    def start(self) -> Self:
        """Start the process and return at once."""
        STARTED.append(self)
        with self.log_path.open("ab") as output:
            environment = {**os.environ, **self.environment}
            self.process = start_program(
                self.command(), environment, output.fileno(), self.before_start
            )
        return self

    def _running(self) -> subprocess.Popen[bytes] | ForkedProcess:
        assert self.process is not None, f"{self.name} was not started"
        return self.process

    def limit_memory(self, bytes_more: int | None) -> None:
        """Let the process have so much more address space than it has now; None is no limit."""
        pid, limit = self._running().pid, resource.RLIM_INFINITY
        if bytes_more is not None:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + bytes_more
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    def limit_files(self, size: int | None) -> None:
        """Let no file of the process grow beyond ``size`` bytes, as a full disk; None: any."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(
            self._running().pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
        )

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; if that is to stop it, return once it stands still."""
        pid = self._running().pid
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            wait_until(lambda: is_stopped(pid), what=f"process {pid} stopped")

    def kill(self) -> None:
        """Kill the process as ``kill -9`` does and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._running().wait(120)

    def terminate(self) -> int:
        """Stop the process as an operator does and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self, timeout_seconds: float = 120) -> int:
        """Wait until the process ends and return its exit code."""
        try:
            return self._running().wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} goes on running; its log:\n{self.log}") from None

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def wait_serving(self, timeout_seconds: float = 120) -> Self:
        """Wait until clients can connect."""
        self._wait(lambda: accepts(self.port), timeout_seconds, "serves clients")
        return self

    def wait_log(self, text: str, timeout_seconds: float = 120) -> Self:
        """Wait until the node has printed ``text``."""
        self._wait(lambda: text in self.log, timeout_seconds, f"prints {text!r}")
        return self

    def _wait(self, condition: object, timeout_seconds: float, what: str) -> None:
        assert callable(condition)

        def met_or_ended() -> bool:
            return bool(condition()) or not self.is_running

        try:
            wait_until(met_or_ended, timeout_seconds=timeout_seconds, what=f"{self.name} {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log}") from None
        assert condition(), f"{self.name} ended before it {what}; its log:\n{self.log}"

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self.is_running:
            with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                self.signal(signal.SIGCONT)
                self.kill()


STARTED: Final[list[NodeProcess]] = []
"""Those whose turns of the loop are to be judged."""


def judge_turns() -> None:
    """Fail if a turn of the loop of a node that was started took longer than clients may wait.

    It asks what the logs say: nodes are told of the limit by the environment of the tests.
    """
    long: list[str] = []
    for node in STARTED:
        said = node.log.split(SAID)[1:]
        long += [f"{node.name}: {SAID}{one}" for one in said[node.judged :]]
        node.judged = len(said)
    assert not long, "\n".join(long)


def forget_ended() -> None:
    """Judge those no more that have ended, or are ended with their test."""
    STARTED[:] = [node for node in STARTED if node.is_running]


@dataclass
class Cluster:
    """The nodes of one test, on one store."""

    url: str
    directory: Path
    nodes: list[NodeProcess] = field(default_factory=list)

    def node(self, role: Role, name: str, **options: Option) -> NodeProcess:
        """Make a node; options are the CLI's, with underscores."""
        named = {option.replace("_", "-"): value for option, value in options.items()}
        node = NodeProcess(role, self.url, self.directory, name, named)
        self.nodes.append(node)
        return node

    def live(self, name: str = "live", **options: Option) -> NodeProcess:
        """Start a live node."""
        return self.node(Role.LIVE, name, **options).start()

    def backup(self, name: str = "backup", **options: Option) -> NodeProcess:
        """Start a backup node."""
        return self.node(Role.BACKUP, name, **options).start()

    def pair(self, **options: Option) -> tuple[NodeProcess, NodeProcess]:
        """Start a live node that serves and a backup that is announced."""
        live = self.node(Role.LIVE, "live", **options).start().wait_serving()
        backup = self.node(Role.BACKUP, "backup", **options).start().wait_log("AMQ221031")
        return live, backup

    def events(self) -> list[dict[str, Any]]:
        """Return the merged failover log of all nodes, as the CLI prints it from the database."""
        return failover_log(self.url)

    def codes(self, awaited: str) -> list[str]:
        """Return the codes of the merged failover log, in order, as soon as ``awaited`` is there.

        Nodes write events to the database on the side: what was printed may not be there yet.
        """
        codes: list[str] = []

        def is_there() -> bool:
            codes[:] = [str(event["code"]) for event in self.events()]
            return awaited in codes

        wait_until(is_there, what=f"{awaited} in the failover log")
        return codes

    def end(self) -> None:
        """End every node."""
        for node in self.nodes:
            node.end()


def status_of(url: str) -> dict[str, Any]:
    """Return what ``orthia status`` tells of the store at ``url``."""
    ran = subprocess.run(
        [*CLI, "status", "--url", url, "--json"], capture_output=True, check=False, timeout=120
    )
    status: dict[str, Any] = json.loads(ran.stdout)  # whatever its exit code says of the pair
    return status


@contextmanager
def cluster(url: str, directory: Path) -> Iterator[Cluster]:
    """Give a cluster whose processes are ended with the block."""
    nodes = Cluster(url, directory)
    try:
        yield nodes
    finally:
        nodes.end()


def wait_any_serving(nodes: Iterable[NodeProcess], timeout_seconds: float = 120) -> NodeProcess:
    """Wait until one of ``nodes`` serves clients and return it."""
    candidates = list(nodes)
    wait_until(
        lambda: any(accepts(node.port) for node in candidates),
        timeout_seconds=timeout_seconds,
        what="a node serves clients",
    )
    return next(node for node in candidates if accepts(node.port))
