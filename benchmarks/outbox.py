"""What it costs to send by SQL, on PostgreSQL, each beside its floor in the same run.

    python -m benchmarks.outbox [cost] [commits] [relay] [latency] [snapshot] [--seconds 5]

- cost: a transaction that sends one message, by INSERT and by ``orthia_send``, beside the same row
  inserted into a bare table; by pgbench, one client and eight;
- commits: 64 clients that commit a business row and a message, while the node is woken by NOTIFY
  and while it polls; beside a trigger that notifies each time;
- relay: rows a second that become messages, beside eight producers of 200 outstanding by STOMP;
- latency: from the commit to the MESSAGE, at rest, by NOTIFY and by polling;
- snapshot: rows and messages a second while somebody holds a snapshot, beside the same before, and
  beside workers of a bare table with SKIP LOCKED.
"""

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg2

from benchmarks.floors import started
from benchmarks.stomp_load import consume, produce
from orthia.broker.client.connection import BrokerAddress, Connection
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from tests.process.file_nodes import FileNodeProcess
from tests.support.servers import PASSWORD, USER, PostgresqlServer, url_with_password

BODY: Final = 1_024
_BARE: Final = """
CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, destination text NOT NULL,
    headers text, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp());
ALTER TABLE bare ALTER body SET STORAGE EXTERNAL;
CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text);
CREATE TABLE notified (LIKE bare INCLUDING ALL);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('told', ''); RETURN NULL; END $$;
CREATE TRIGGER tell AFTER INSERT ON notified FOR EACH STATEMENT EXECUTE FUNCTION tell();
"""
_VALUES: Final = f"""('orders', '{{"kind": "new"}}', decode(repeat('78', {BODY}), 'hex'))"""
_SEND: Final = (
    f"SELECT orthia_send('orders', decode(repeat('78', {BODY}), 'hex'), '{{\"kind\": \"new\"}}');\n"
)
_BUSINESS: Final = "INSERT INTO business (what) VALUES ('order');\n"


def _insert(table: str) -> str:
    return f"INSERT INTO {table} (destination, headers, body) VALUES {_VALUES};\n"


def _say(what: str, name: str, rate: float, ratio: float, more: object = "") -> None:
    print(f"{what:10}{name:44}{rate:10,.0f}/s{ratio:7.2f}  {more}", flush=True)


class Bench:
    """A server, its database, and nodes on it."""

    def __init__(self, server: PostgresqlServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.name = server.create_database()
        self.settings: DatabaseStoreSettings = server.settings(self.name)
        self._number = 0

    @contextlib.contextmanager
    def node(self, inner: str = "") -> Iterator[FileNodeProcess]:
        """Run a node that sends the outbox, with these settings of it."""
        self._number += 1
        core = f'<outbox xmlns="urn:orthia">{inner}</outbox>'
        url = url_with_password(self.settings)
        name = f"node{self._number}"
        node = FileNodeProcess(Role.LIVE, url, self.directory, name, core=core)
        node.start().wait_serving()
        try:
            yield node
        finally:
            node.terminate()

    def connect(self) -> Any:
        """Return a session in autocommit."""
        session = psycopg2.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=USER,
            password=PASSWORD,
            dbname=self.name,
        )
        session.autocommit = True
        return session

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement."""
        with contextlib.closing(self.connect()) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def pgbench(self, script: str, clients: int, seconds: float) -> float:
        """Return transactions a second of so many clients."""
        path = self.directory / "script.sql"
        path.write_text(script)
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
        ended = subprocess.run(
            [
                str(binaries[-1]),
                "-n",
                "-M",
                "prepared",
                "-f",
                str(path),
                "-c",
                str(clients),
                "-j",
                "2" if clients > 1 else "1",
                "-T",
                f"{max(1, round(seconds))}",
                "-h",
                "127.0.0.1",
                "-p",
                str(self.server.port),
                "-U",
                USER,
                self.name,
            ],
            env=os.environ | {"PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"tps = ([\d.]+) \(without", ended.stdout)
        if found is None:
            raise RuntimeError(ended.stdout + ended.stderr)
        return float(found[1])

    def drained(self, timeout_seconds: float = 120) -> None:
        """Wait until the outbox is empty."""
        until = time.monotonic() + timeout_seconds
        with contextlib.closing(self.connect()) as session, session.cursor() as cursor:
            while time.monotonic() < until:
                cursor.execute("SELECT EXISTS (SELECT 1 FROM orthia_outbox)")
                if not cursor.fetchall()[0][0]:
                    return
                time.sleep(0.01)
        raise RuntimeError("the outbox is not drained")

    def fill(self, rows: int, table: str = "orthia_outbox", to: str = "orders") -> None:
        """Insert rows by one statement."""
        self.run(
            f"INSERT INTO {table} (destination, body)"
            f" SELECT '{to}', decode(repeat('78', {BODY}), 'hex') FROM generate_series(1, {rows})"
        )


def _medians(
    bench: Bench, scripts: dict[str, str], clients: int, seconds: float, rounds: int
) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(rounds):
        for name, script in scripts.items():
            rates[name].append(bench.pgbench(script, clients, seconds))
            bench.run("TRUNCATE orthia_outbox, bare, notified, business")
    return {name: statistics.median(found) for name, found in rates.items()}


def cost(bench: Bench, seconds: float) -> None:
    """Print what a send costs its transaction."""
    scripts = {
        "bare INSERT": _insert("bare"),
        "INSERT into the outbox": _insert("orthia_outbox"),
        "orthia_send": _SEND,
    }
    for clients in (1, 8):
        found = _medians(bench, scripts, clients, seconds, 3)
        for name, rate in found.items():
            ratio = found["bare INSERT"] / rate
            _say("cost", f"{clients} clients, {name}", rate, ratio)
    many = {name: f"BEGIN;\n{script * 20}COMMIT;\n" for name, script in scripts.items()}
    found = _medians(bench, many, 1, seconds, 3)
    for name, rate in found.items():
        ratio = found["bare INSERT"] / rate
        _say("cost", f"20 in a transaction, {name}", rate * 20, ratio)


def commits(bench: Bench, seconds: float) -> None:
    """Print what 64 clients commit."""
    script = f"BEGIN;\n{_BUSINESS}{_insert('orthia_outbox')}COMMIT;\n"
    always = f"BEGIN;\n{_BUSINESS}{_insert('notified')}COMMIT;\n"
    rates: dict[str, list[float]] = {}
    for _ in range(3):
        for name, inner in (
            ("polled", "<notify>false</notify>"),
            ("woken by NOTIFY", "<notify>true</notify>"),
        ):
            with bench.node(inner):
                rates.setdefault(name, []).append(bench.pgbench(script, 64, seconds))
            bench.run("TRUNCATE orthia_outbox, business, messages")
        for name, one in (("no node", script), ("no node, always NOTIFY", always)):
            rates.setdefault(name, []).append(bench.pgbench(one, 64, seconds))
            bench.run("TRUNCATE orthia_outbox, business, notified")
    for name, found in rates.items():
        rate = statistics.median(found)
        ratio = rate / statistics.median(rates["polled"])
        _say("commits", f"64 clients, {name}", rate, ratio, [round(one) for one in found])


def relay(bench: Bench, seconds: float, rows: int = 60_000) -> None:
    """Print how many rows become messages in a second."""
    relayed: list[float] = []
    sent: list[float] = []
    with bench.node() as node:
        for number in range(3):
            sent.append(
                produce(node.port, f"stomp{number}", producers=8, outstanding=200, seconds=seconds)
            )
            bench.run("CREATE TABLE IF NOT EXISTS staged (LIKE bare)")
            began = time.perf_counter()
            bench.fill(rows, to=f"sql{number}")
            inserted = time.perf_counter() - began
            bench.drained()
            took = time.perf_counter() - began
            relayed.append(rows / (took - inserted))
        by_stomp = statistics.median(sent)
        _say("relay", "8x200 by STOMP", by_stomp, 1, [round(one) for one in sent])
        rate = statistics.median(relayed)
        _say("relay", "rows of SQL", rate, rate / by_stomp, [round(one) for one in relayed])


def latency(bench: Bench, count: int = 60) -> None:
    """Print how long a message takes from its commit, when nothing else is sent."""
    for name, inner in (
        ("by NOTIFY", ""),
        ("polled", "<notify>false</notify>"),
    ):
        with bench.node(inner) as node, contextlib.closing(bench.connect()) as session:
            client = Connection.open(BrokerAddress("127.0.0.1", node.port), heart_beat_ms=0)
            client.send("SUBSCRIBE", {"destination": "/queue/rest", "id": "1", "ack": "auto"}, b"")
            taken: list[float] = []
            with session.cursor() as cursor:
                for number in range(count + 5):
                    until = time.monotonic() + 0.15 + (number % 7) * 0.013
                    while time.monotonic() < until:
                        client.exchange(0.02)
                    cursor.execute(
                        "INSERT INTO orthia_outbox (destination, body) VALUES ('rest', 'x')"
                    )
                    began = time.perf_counter()
                    while not any(one.command == "MESSAGE" for one in client.exchange(0.5)):
                        pass
                    taken.append(time.perf_counter() - began)
            taken = sorted(taken[5:])
            p50, p99 = taken[len(taken) // 2], taken[-1]
            print(
                f"latency   {name:12} p50 {p50 * 1000:6.1f} ms   longest {p99 * 1000:6.1f} ms",
                flush=True,
            )


def snapshot(bench: Bench, seconds: float, rows: int = 20_000) -> None:
    """Print rates while somebody holds a snapshot, and before."""

    def cycle(node: FileNodeProcess) -> float:
        began = time.perf_counter()
        bench.fill(rows)
        consume(node.port, "orders", rows, ack="client")
        return rows / (time.perf_counter() - began)

    def bare() -> float:
        bench.fill(rows // 4, table="bare")
        began = time.perf_counter()

        def work() -> None:
            with contextlib.closing(bench.connect()) as session, session.cursor() as cursor:
                while True:
                    cursor.execute(
                        "DELETE FROM bare WHERE id IN (SELECT id FROM bare ORDER BY id"
                        " FOR UPDATE SKIP LOCKED LIMIT 20) RETURNING id, body"
                    )
                    if not cursor.fetchall():
                        return

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return rows // 4 / (time.perf_counter() - began)

    with bench.node() as node:
        cycle(node)
        bare()
        before = [cycle(node) for _ in range(4)]
        bare_before = [bare() for _ in range(2)]
        holder = bench.connect()
        holder.autocommit = False
        with holder.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM orthia_outbox")
        began = time.monotonic()
        during: list[float] = []
        bare_during: list[float] = []
        while time.monotonic() - began < seconds:
            during.append(cycle(node))
            if len(during) % 4 == 0:
                bare_during.append(bare())
        holder.rollback()
        held = time.monotonic() - began
        dead = bench.run(
            "SELECT relname, n_dead_tup FROM pg_stat_user_tables"
            " WHERE relname IN ('orthia_outbox', 'messages', 'bare') ORDER BY 1"
        )
    told = f"held {held:.0f} s, {len(during) * rows} messages; dead rows {dead}"
    for name, one, other in (
        ("relay and MESSAGES", before, during),
        ("a bare table, SKIP LOCKED", bare_before, bare_during),
    ):
        was, last = statistics.median(one), statistics.median(other[-3:])
        _say("snapshot", f"{name}, before", was, 1)
        _say("snapshot", f"{name}, at the end", last, last / was, told)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", default=["cost", "commits", "relay", "latency", "snapshot"]
    )
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    with started("postgresql") as server, tempfile.TemporaryDirectory() as directory:
        if not isinstance(server, PostgresqlServer):
            raise TypeError("PostgreSQL was expected")
        Path(directory).chmod(0o755)
        bench = Bench(server, Path(directory))
        with bench.node():
            pass  # makes the tables
        bench.run(_BARE)
        for what in arguments.what:
            match what:
                case "cost":
                    cost(bench, arguments.seconds)
                case "commits":
                    commits(bench, arguments.seconds)
                case "relay":
                    relay(bench, arguments.seconds)
                case "latency":
                    latency(bench)
                case "snapshot":
                    snapshot(bench, arguments.seconds)


if __name__ == "__main__":
    main()
