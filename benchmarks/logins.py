"""What a flood of logins does to the lease and to a producer of the live node of a pair.

    python -m benchmarks.logins [--dbms postgresql] [--seconds 20] [--rounds 2] [--offered 1000]

Three phases take turns on one pair with the default timers: no flood; the flood at a bare listener
that refuses everybody at once, which shows what the flood's clients and the kernel cost; and the
flood at the node. The flood comes from 200 addresses. One half sends right passcodes, the other
half wrong ones and unknown users; passcodes are stored as Argon2id and as PBKDF2 with 1,024
iterations. The first run remembers verdicts, as is the default; the second has
authentication-cache-size 0. "gap" is the longest time between two renewals of the live lease, by
the database's clock. One process watches the producer and the lease, another one sends the flood.
"""

import argparse
import asyncio
import hashlib
import math
import multiprocessing
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import text

from benchmarks.floors import BODY, EVERY_DBMS, started
from benchmarks.throughput import cpu_seconds
from benchmarks.timers import TIMERS
from orthia.config.settings import Role
from orthia.database import Database
from tests.process.secured_node import SecuredNode
from tests.support.login_flood import Login, LoginFlood
from tests.support.servers import StoreServer, free_port, url_with_password
from tests.support.waiting import wait_until

PASSCODE: Final = "s3cret"
LOGINS: Final = (
    Login("right, Argon2id", "alice", PASSCODE, "127.0.2"),
    Login("right, PBKDF2", "old", PASSCODE, "127.0.2"),
    Login("wrong, Argon2id", "bob", "guess-{}"),
    Login("wrong, PBKDF2", "older", "guess-{}"),
    Login("unknown", "nobody-{}", "guess-{}"),
)
ANSWERS: Final = ("let in", "wrong", "refused", "none")
"""None: still in line after two seconds, when the client leaves."""
AT_A_TIME: Final = 3_000
FEW_A_SECOND: Final = 20
RENEW_MS, EXPIRATION_MS = TIMERS["default"]
CACHES: Final = {"remembered": "", "not remembered": "0"}
"""What authentication-cache-size is; empty is its default."""

Answers = Counter[tuple[str, str]]


class PairedNode(SecuredNode):
    """A node of a pair with the default timers."""

    lease = (
        f"<jdbc-lock-renew-period>{RENEW_MS}</jdbc-lock-renew-period>"
        f"<jdbc-lock-expiration>{EXPIRATION_MS}</jdbc-lock-expiration>"
    )

    def __init__(self, role: Role, url: str, directory: Path, cache: str) -> None:
        directory.mkdir()
        super().__init__(role, url, directory, role.value)
        place = "primary" if role is Role.LIVE else "backup"
        self.core = f"<ha-policy><shared-store><{place}/></shared-store></ha-policy>"
        if cache:
            self.core += f"<authentication-cache-size>{cache}</authentication-cache-size>"

    def make_users(self) -> None:
        """Write the user files."""
        self.command()
        for name in ("worker", "alice", "bob"):
            self.user("add", name, "--role", "amq", password=PASSCODE)
        salt = bytes(range(32))
        made = hashlib.pbkdf2_hmac("sha1", PASSCODE.encode(), salt, 1_024, 64).hex()
        with (self.directory / "artemis-users.properties").open("a") as file:
            file.writelines(
                f"{name} = ENC(1024:{salt.hex()}:{made})\n" for name in ("old", "older")
            )

    def take_users_of(self, other: "PairedNode") -> None:
        """Copy the user files."""
        for path in other.directory.glob("artemis-*.properties"):
            shutil.copy2(path, self.directory)


class LeaseWatch:
    """Notes when the live lease was renewed, as its row says."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopped = threading.Event()
        self._seen: list[datetime] = []
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def longest_gap(self) -> float:
        """Stop watching; return the longest time without a renewal, in seconds."""
        self._stopped.set()
        self._thread.join()
        gaps = zip(self._seen, self._seen[1:], strict=False)
        return max(((after - before).total_seconds() for before, after in gaps), default=math.nan)

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            with self._database.engine.connect() as connection:
                found = connection.execute(
                    text("SELECT HOLDER_EXPIRATION_TIME FROM NODE_MANAGER_STORE WHERE ID = 1")
                ).scalar_one()
            when = found if isinstance(found, datetime) else datetime.fromisoformat(found)
            if when not in self._seen[-1:]:
                self._seen.append(when)


def produce(node: SecuredNode, seconds: float) -> list[float]:
    """Send messages one by one for the given time; return the seconds until each receipt."""
    head = f"SEND\ndestination:/queue/work\nreceipt:r\ncontent-length:{len(BODY)}\n\n"
    frame = head.encode() + BODY + b"\0"
    took = []
    with node.log_in("worker", PASSCODE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not client.recv(4_096).startswith(b"CONNECTED"):
            raise RuntimeError("the producer was not let in")
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            client.sendall(frame)
            if not client.recv(4_096).startswith(b"RECEIPT"):
                raise RuntimeError("the broker sent something else than a receipt")
            took.append(time.perf_counter() - began)
    return took


def flood(port: int, a_second: float, seconds: float) -> tuple[float, Answers]:
    """Offer logins for the given time; return how many a second, and the answers."""
    logins = LoginFlood(port, LOGINS, AT_A_TIME)
    logins.start(a_second)
    time.sleep(seconds)
    offered = logins.offered / seconds
    logins.stop()
    return offered, logins.answers


def cost_of_a_login(port: int, a_second: float, seconds: float) -> Answers:
    """Offer only right passcodes, few enough for an immediate answer to each."""
    logins = LoginFlood(port, [one for one in LOGINS if one.kind.startswith("right")])
    logins.start(a_second)
    time.sleep(seconds)
    logins.stop()
    return logins.answers


def refuse_everybody(port: int) -> None:
    """Answer every login as a node without users does, until the process is ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\0")
            writer.write(b"ERROR\nmessage:login or passcode is wrong\n\n\0")
            await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=1_024)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def bare_listener() -> Iterator[int]:
    """Give the port of a process that refuses everybody."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=refuse_everybody, args=(port,))
    process.start()
    try:

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers, what="a listener")
        yield port
    finally:
        process.terminate()
        process.join()


@dataclass
class Phase:
    """The figures of the rounds of one phase."""

    took: list[float] = field(default_factory=list)
    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    answers: Answers = field(default_factory=Counter)
    cpu: float = 0.0

    def line(self, dbms: str, cache: str, name: str) -> str:
        """Return a row of the table."""
        slowest = statistics.quantiles(self.took, n=100)[98]
        row = (
            f"{dbms:12}{cache:16}{name:14}{len(self.took) / self.seconds:8,.0f}"
            f"{statistics.median(self.took) * 1e3:8.1f}{slowest * 1e3:8.1f}"
            f"{max(self.took) * 1e3:8.0f}{max(self.gaps):8.2f}{self.cpu / self.seconds:8.2f}"
        )
        if not self.offered:
            return row
        said: Counter[str] = Counter()
        for (_, answer), count in self.answers.items():
            said[answer] += count
        row += f"{statistics.median(self.offered):9,.0f}"
        return row + "".join(f"{said[answer] / self.seconds:9,.1f}" for answer in ANSWERS)


def measure(
    server: StoreServer, directory: Path, cache: str, arguments: argparse.Namespace
) -> tuple[dict[str, Phase], float]:
    """Measure the phases in turn on one pair; also return processor milliseconds per login."""
    settings = server.settings(server.create_database())
    url = url_with_password(settings)
    live, backup = (PairedNode(role, url, directory / role.value, cache) for role in Role)
    live.make_users()
    backup.command()
    backup.take_users_of(live)
    phases = {name: Phase() for name in ("no flood", "elsewhere", "at the node")}
    database = Database.from_settings(settings)
    spawn = multiprocessing.get_context("spawn")
    try:
        live.start().wait_serving()
        backup.start().wait_log("AMQ221031")
        with bare_listener() as bare, ProcessPoolExecutor(1, spawn) as pool:
            ports = dict(zip(phases, (None, bare, live.port), strict=True))
            pool.submit(time.time).result()  # so that its process has started
            used = cpu_seconds(live)
            few = pool.submit(cost_of_a_login, live.port, FEW_A_SECOND, arguments.seconds).result()
            cost = (cpu_seconds(live) - used) / sum(few.values()) * 1e3
            for _ in range(arguments.rounds):
                for name, phase in phases.items():
                    watch, used = LeaseWatch(database), cpu_seconds(live)
                    port, began = ports[name], time.perf_counter()
                    running = port and pool.submit(
                        flood, port, arguments.offered, arguments.seconds
                    )
                    phase.took += produce(live, arguments.seconds)
                    if running:
                        offered, answers = running.result()
                        phase.offered.append(offered)
                        phase.answers += answers
                    phase.seconds += arguments.seconds
                    phase.cpu += (cpu_seconds(live) - used) * (
                        arguments.seconds / (time.perf_counter() - began)
                    )
                    phase.gaps.append(watch.longest_gap())
        if backup.log.count("AMQ221010") or not live.is_running:
            raise RuntimeError(f"the backup took over; its log:\n{backup.log}")
    finally:
        for node in (live, backup):
            node.end()
        database.dispose()
    return phases, cost


def main() -> None:
    """Measure and print a table, and the node's answers to the flood by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--offered", type=float, default=1_000.0, help="logins a second")
    arguments = parser.parse_args()
    print(
        f"{'':12}{'verdicts':16}{'flood':14}{'sends/s':>8}{'ms':>8}{'99 %':>8}{'most ms':>8}"
        f"{'gap s':>8}{'cpu':>8}{'offered':>9}" + "".join(f"{one:>9}" for one in ANSWERS)
    )
    for dbms in arguments.dbms:
        with started(dbms) as server:
            for name, cache in CACHES.items():
                with tempfile.TemporaryDirectory() as directory:
                    Path(directory).chmod(0o755)
                    phases, cost = measure(server, Path(directory), cache, arguments)
                for phase, measured in phases.items():
                    print(measured.line(dbms, name, phase), flush=True)
                print(f"{'':28}a right login alone: {cost:.2f} ms of the node's processor")
                for kind in dict.fromkeys(one.kind for one in LOGINS):
                    counts = phases["at the node"].answers
                    found = ", ".join(f"{counts[kind, one]} {one}" for one in ANSWERS)
                    print(f"{'':28}{kind}: {found}")


if __name__ == "__main__":
    main()
