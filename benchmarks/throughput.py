"""Sends and receives a second through a live node, each beside the floor of the same database.

    python -m benchmarks.throughput [--dbms postgresql sqlite] [--seconds 4] [--rounds 3]

One load process sends 1 KiB persistent messages over STOMP, each with a receipt. Broker and floors
take turns in every round, so that a noisy machine disturbs both, and the median is printed: read
the ratios. The floors, all without a broker:

- for one client that waits: a bare driver loop that commits one row at a time;
- for eight such clients: eight of those loops at once, each in its own process;
- for many outstanding messages: 1,000 rows per commit by COPY, a multi-row INSERT or executemany;
- on PostgreSQL also the first loop with a prepared statement, and pgbench with eight connections,
  which is not Python.

"cpu us" is what a message costs the node's process, in microseconds of processor time.
"""

import argparse
import os
import re
import ssl
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.floor_clients import FloorClients
from benchmarks.floors import EVERY_DBMS, Floor, started
from benchmarks.stomp_load import Run, consume, fill, produce
from benchmarks.timers import timer_options
from orthia import migrations
from orthia.config.settings import Role
from orthia.database import Database
from tests.process.nodes import Cluster, NodeProcess, cluster
from tests.support.servers import (
    PASSWORD,
    USER,
    PostgresqlServer,
    StoreServer,
    url_with_password,
)

CONSUMED = 40_000
ONE_ROW = "one row a commit"
PREPARED = "one row a commit, prepared"
EIGHT = "eight loops of one row a commit"
PGBENCH = "pgbench, 8 clients, prepared"
BULK = "1,000 rows a commit"
WORKS = (
    ("1x1", "1 producer, waits for receipts", (ONE_ROW, PREPARED)),
    ("8x1", "8 producers, wait for receipts", (EIGHT, PGBENCH)),
    ("8x200", "8 producers, 200 outstanding", (BULK,)),
    ("consume auto", "1 consumer, ack auto", ()),
    ("consume client", "1 consumer, ack client", ()),
)
"""Each kind of work, what it is, and its floors, of which some are PostgreSQL's alone."""


def resident_mib(node: NodeProcess, field: str = "VmRSS") -> float:
    """Return the resident memory of a node; ``VmHWM`` for its peak."""
    if node.process is None:
        raise RuntimeError(f"{node.name} does not run")
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError(f"no {field} in the status of {node.name}")
    return int(found[1]) / 1024


class _Process(Protocol):
    @property
    def pid(self) -> int: ...


class Running(Protocol):
    """A broker that runs as a process."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def process(self) -> _Process | None:
        """None if it does not run."""
        ...


def cpu_seconds(node: Running) -> float:
    """Return the processor seconds that a node's process has used so far."""
    if node.process is None:
        raise RuntimeError(f"{node.name} does not run")
    after_name = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def default_node(nodes: Cluster, role: Role, name: str) -> NodeProcess:
    """Make a node with the default timers."""
    return nodes.node(role, name, **timer_options("default"))


class Pgbench:
    """One-row transactions by pgbench."""

    def __init__(self, server: PostgresqlServer, database: str, directory: Path) -> None:
        script = directory / "one-row.sql"
        script.write_text(
            "INSERT INTO floor (id, body) VALUES (:client_id * 100000000::bigint + "
            f"nextval('floor_ids'), decode(repeat('78', {1024 + 60}), 'hex'));\n"
        )
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
        if not binaries:
            raise RuntimeError("pgbench is not installed; `make packages` installs PostgreSQL")
        self._command = [
            str(binaries[-1]), "-n", "-M", "prepared", "-f", str(script),
            "-h", "127.0.0.1", "-p", str(server.port), "-U", USER, "-d", database,
        ]  # fmt: skip
        self._environment = os.environ | {"PGPASSWORD": PASSWORD}
        with Database.from_settings(server.settings(database)).engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE floor (id bigint PRIMARY KEY, body bytea)")
            connection.exec_driver_sql("CREATE SEQUENCE floor_ids CACHE 1000")

    def rate(self, clients: int, seconds: float) -> float:
        """Return transactions a second."""
        command = [*self._command, "-c", str(clients), "-T", str(max(1, round(seconds)))]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env=self._environment
        )
        found = re.search(r"tps = ([0-9.]+)", run.stdout)
        if found is None:
            raise RuntimeError(f"pgbench printed {run.stdout!r}")
        return float(found[1])


Rates = dict[str, list[float]]


@dataclass
class Measured:
    """The figures of the rounds with one DBMS."""

    rates: Rates = field(default_factory=lambda: defaultdict(list))
    cpu_us: Rates = field(default_factory=lambda: defaultdict(list))
    """Microseconds of processor time of the node, a message: what a busy machine changes least."""
    memory: list[str] = field(default_factory=list)

    def count(self, work: str, node: Running, run: Callable[[], Run]) -> None:
        """Note the rate of a run, and what each of its messages costs ``node``."""
        used = cpu_seconds(node)
        done = run()
        self.rates[work].append(done.rate)
        self.cpu_us[work].append((cpu_seconds(node) - used) / done.messages * 1e6)


def ratio(ones: list[float], others: list[float]) -> float:
    """Return the median of the ratios within each round."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def send_and_consume(
    measured: Measured,
    node: NodeProcess,
    suffix: str,
    seconds: float,
    *,
    port: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Put ``node`` under each kind of load once, in queues whose names end in ``suffix``.

    ``port`` is another one than its first, and ``tls`` what is spoken there. What is consumed is
    sent by the first.
    """
    by = node.port if port is None else port
    for producers, outstanding in ((1, 1), (8, 1), (8, 200)):
        send = partial(
            produce,
            by,
            f"{producers}x{outstanding}-{suffix}",
            producers=producers,
            outstanding=outstanding,
            seconds=seconds,
            tls=tls,
        )
        measured.count(f"{producers}x{outstanding}", node, send)
    for ack in ("auto", "client"):
        queue = f"consume-{ack}-{suffix}"
        fill(node.port, queue, CONSUMED)
        take = partial(consume, by, queue, CONSUMED, ack=ack, tls=tls)
        measured.count(f"consume {ack}", node, take)


def measure(server: StoreServer, directory: Path, seconds: float, rounds: int) -> Measured:
    """Measure broker and floors in turn."""
    measured = Measured()
    rates, memory = measured.rates, measured.memory
    floor_settings = server.settings(server.create_database(), jdbc_network_timeout=60_000)
    floor_database = Database.from_settings(floor_settings)
    migrations.upgrade(floor_database, floor_settings)
    floor = Floor(floor_database)
    eight = FloorClients(floor_settings, 8)
    pgbench = (
        Pgbench(server, server.create_database(), directory)
        if isinstance(server, PostgresqlServer)
        else None
    )
    url = url_with_password(server.settings(server.create_database()))
    with cluster(url, directory) as nodes:
        live = default_node(nodes, Role.LIVE, "live").start().wait_serving()
        memory.append(f"{resident_mib(live):.0f} MiB at rest")
        for number in range(rounds):
            rates[ONE_ROW].append(floor.one_at_a_time(seconds))
            rates[EIGHT].append(eight.rate(seconds))
            if pgbench is not None:
                rates[PREPARED].append(floor.prepared_one_at_a_time(seconds))
                rates[PGBENCH].append(pgbench.rate(8, seconds))
            rates[BULK].append(floor.many_outstanding(seconds))
            send_and_consume(measured, live, str(number), seconds)
        memory.append(f"{resident_mib(live):.0f} MiB after the run")
        memory.append(f"{resident_mib(live, 'VmHWM'):.0f} MiB peak")
    eight.close()
    floor.close()
    floor_database.dispose()
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql", "sqlite"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'':12}{'work':34}{'a second':>10}{'cpu us':>8}{'floor':>10}{'ratio':>8}")
    for dbms in arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            measured = measure(server, Path(directory), arguments.seconds, arguments.rounds)
        middle = {work: statistics.median(rate) for work, rate in measured.rates.items()}
        for work, text, floors in WORKS:
            cpu_us = statistics.median(measured.cpu_us[work])
            line = f"{dbms:12}{text:34}{middle[work]:10,.0f}{cpu_us:8.1f}"
            for floor in filter(middle.__contains__, floors):
                print(f"{line:64}{middle[floor]:10,.0f}{middle[work] / middle[floor]:8.2f} {floor}")
                line = ""
            if line:
                print(line)
        print(f"{'':12}resident memory of the node: {', '.join(measured.memory)}", flush=True)


if __name__ == "__main__":
    main()
