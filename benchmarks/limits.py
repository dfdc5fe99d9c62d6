"""What every client waits for while another brings one of the limits to its bound.

    python -m benchmarks.limits [--dbms sqlite postgresql mariadb] [--only selectors due]
        [--where] [--list]
    python -m benchmarks.limits --opening 1.0

For each bound of docs/limits.md that is work for the event loop: a node of its own, ordinary
clients that bring it to the bound, and a witness beside them, which sends and takes a message every
50 ms (``benchmarks.witness``). Prints the longest turn of the loop, as processor time in
milliseconds of a machine like the one the tests' limit is meant for; the longest that the witness
waited; the longest that processes beside it waited for a processor, and for the disk to write a
page; and how long it all took. ``--where`` prints where the loop was in its longest turn.

``--opening`` instead puts into a store all that clients may have there, or a share of it, and
prints how long a node takes to serve it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.limits_at_bound import WORKS, Secured, Stage, everything_stored
from benchmarks.throughput import resident_mib
from benchmarks.witness import DISK, MACHINE
from orthia.config.settings import Role
from tests.hostile.node import LimitedNode
from tests.support.servers import StoreServer, url_with_password
from tests.support.turns import ENVIRONMENT, LIMIT_SECONDS, SAID, limit_seconds

_OPENING_SECONDS = 900
_SHOWN = 3_000
"""Characters of the log from a traceback on."""
_TOLD_SECONDS = 0.01
"""Turns above it are told of."""
_TURN = re.compile(SAID + r" ([\d.]+) s in one turn.*? it was at(?: \| )?(.*)")


@dataclass
class Measured:
    """What was seen of a node while a work went on."""

    turn_ms: float = 0.0
    """The longest turn, scaled; 0 if none was told of."""
    where: str = ""
    seconds: float = 0.0
    node_mib: float = 0.0
    ended: str = ""
    """What went wrong."""
    waits: list[float] = field(default_factory=list)
    machine_ms: float = 0.0
    """The longest that the machine kept a process waiting that only sleeps."""
    disk_ms: float = 0.0
    """The longest that the disk of a store of files took for a page."""

    def __str__(self) -> str:
        turn = f"{self.turn_ms:6.0f}" if self.turn_ms else f"   <{self.told_ms:2.0f}"
        waits = sorted(self.waits) or [0.0]
        return (
            f"turn {turn} ms   witness {waits[-1]:6.0f} ms at most, {waits[len(waits) // 2]:4.0f}"
            f" median of {len(waits):4}, machine {self.machine_ms:4.0f}, disk {self.disk_ms:4.0f}  "
            f" {self.seconds:5.1f} s  {self.node_mib:4.0f} MiB"
            f"{'  ' + self.ended if self.ended else ''}"
        )

    @property
    def told_ms(self) -> float:
        """Milliseconds, scaled, of the shortest turn that is told of."""
        return 1000 * _TOLD_SECONDS / scale()


def scale() -> float:
    """Return how much longer a piece of work takes here than where the tests' limit is meant."""
    return limit_seconds() / LIMIT_SECONDS


def longest_turn(log: str) -> tuple[float, str]:
    """Return the longest turn that a node told of, in scaled milliseconds, and where it was."""
    turns = [(float(seconds), where) for seconds, where in _TURN.findall(log)]
    seconds, where = max(turns, default=(0.0, ""))
    return 1000 * seconds / scale(), where.replace(" | ", "\n")


@contextmanager
def a_stage(server: StoreServer, core: str = "") -> Iterator[Stage]:
    """Make a node, on a store of its own."""
    url = url_with_password(server.settings(server.create_database()))
    told = {ENVIRONMENT: str(_TOLD_SECONDS)}
    with tempfile.TemporaryDirectory() as name:
        secured = Secured(Path(name))
        node = LimitedNode(
            Role.LIVE,
            url,
            Path(name),
            "live",
            core=core,
            parameters=secured.parameters,
            environment=told,
        )
        try:
            with Stage(node, secured) as stage:
                yield stage
        finally:
            node.end()


def measure_opening(server: StoreServer, share: float) -> str:
    """Return how long a node takes to serve a store with all that may be stored, or a share."""
    with a_stage(server) as stage:
        node, seconds, logged = stage.node, [], 0
        for fills in (True, False):
            began = time.monotonic()
            node.start().wait_serving(_OPENING_SECONDS)
            seconds.append(time.monotonic() - began)
            if fills:
                everything_stored(stage, share)
                node.kill()
                logged = len(node.log)
        turn, where = longest_turn(node.log[logged:])
        return (
            f"opening an empty store {seconds[0]:.1f} s, a full one {seconds[1]:.1f} s, longest"
            f" turn {turn:.0f} ms, {resident_mib(node):.0f} MiB\n{where}"
        )


def measure(server: StoreServer, name: str) -> Measured:
    """Bring one limit to its bound on a node of its own."""
    work = WORKS[name]
    seen = Measured()
    with ExitStack() as stack:
        stage = stack.enter_context(a_stage(server, work.core))
        node = stage.node
        node.start().wait_serving()
        told, late, disk = (node.directory / name for name in ("witness", "machine", "disk"))
        witness = stack.enter_context(_beside(told, str(node.port)))
        stack.enter_context(_beside(late, MACHINE))
        stack.enter_context(_beside(disk, DISK, str(node.directory / "page")))
        began = time.monotonic()
        try:
            work.run(stage)
        except (OSError, RuntimeError, AssertionError, EOFError) as error:
            seen.ended = f"{type(error).__name__}: {str(error)[-300:]}"
        seen.seconds = time.monotonic() - began
        with suppress(OSError):  # it has ended
            seen.node_mib = resident_mib(node, "VmHWM")
        _await_trip(told)
        if not node.is_running:
            seen.ended = f"the node ended with {node.exit_code()}: {seen.ended}"
        seen.waits = _waits(told)
        seen.machine_ms, seen.disk_ms = (max(_waits(one), default=0.0) for one in (late, disk))
        if witness.poll() is not None:
            seen.ended += " the witness ended: " + told.read_text()[-300:]
        seen.turn_ms, seen.where = longest_turn(node.log)
        if "Traceback" in node.log:
            seen.ended += " the log has\n" + node.log[node.log.index("Traceback") :][:_SHOWN]
    return seen


@contextmanager
def _beside(told: Path, *what: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the witness, which writes what it sees to a file."""
    with told.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.witness", *what], stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _waits(told: Path) -> list[float]:
    """Return how long each wait was that a witness told of, in milliseconds."""
    lines = [line.split() for line in told.read_text().splitlines()]
    return [1000 * float(line[1]) for line in lines if len(line) == 2 and line[0][0].isdigit()]


def _await_trip(told: Path, seconds: float = 60) -> None:
    """Wait until the round trip that is under way is over."""
    lines, until = told.read_bytes().count(b"\n"), time.monotonic() + seconds
    while told.read_bytes().count(b"\n") < lines + 2 and time.monotonic() < until:
        time.sleep(0.02)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["sqlite"])
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--opening", type=float, metavar="SHARE")
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--list", action="store_true", help="say what there is, measure nothing")
    arguments = parser.parse_args()
    if arguments.list:
        for name, work in WORKS.items():
            print(f"{name:24}{work.said}")
        return
    print(f"{scale():.2f} of the time of the machine the limit is meant for", flush=True)
    for dbms in arguments.dbms:
        with started(dbms) as server:
            if arguments.opening is not None:
                print(f"{dbms:12}{measure_opening(server, arguments.opening)}", flush=True)
                continue
            for name in arguments.only:
                seen = measure(server, name)
                print(f"{dbms:12}{name:24}{seen}", flush=True)
                if arguments.where and seen.where:
                    print(seen.where, flush=True)


if __name__ == "__main__":
    main()
