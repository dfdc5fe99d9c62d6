"""What it costs to send by SQL, on PostgreSQL and MariaDB, each beside its floor in the same run.

    python -m benchmarks.outbox [cost] [commits] [relay] [latency] [--dbms postgresql mariadb]
        [--seconds 5] [--compiled]

- cost: a transaction that sends one message, by INSERT and by ``orthia_send``, beside the same row
  inserted into a bare table; one client and eight;
- commits: 64 clients that commit a business row and a message, with a node and without; on
  PostgreSQL while the node is woken by NOTIFY and while it polls, and beside a trigger that
  notifies each time;
- relay: rows a second that become messages, beside eight producers of 200 outstanding by STOMP;
  ``--compiled`` takes nodes of what ``make compiled`` made;
- latency: from the commit to the MESSAGE, at rest, by NOTIFY and by polling.

``benchmarks.held_snapshot`` measures what a long transaction of somebody else does to it.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.floors import started
from benchmarks.outbox_bench import OUTBOX, Bench, PostgresqlBench, bench
from benchmarks.stomp_load import produce
from orthia.broker.client.connection import BrokerAddress, Connection
from tools.compiled import use

_ROUNDS: Final = 3
_ROWS: Final = 60_000
_BUSINESS: Final = "INSERT INTO business (what) VALUES ('order')"
_POLLED: Final = "<notify>false</notify>"
_REST_SECONDS: Final = 0.15
_MESSAGES: Final = 60


def _say(what: str, name: str, rate: float, ratio: float, more: object = "") -> None:
    print(f"{what:10}{name:44}{rate:10,.0f}/s{ratio:7.2f}  {more}", flush=True)


def _medians(
    on: Bench, scripts: dict[str, list[str]], clients: int, seconds: float
) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in scripts}
    for _ in range(_ROUNDS):
        for name, script in scripts.items():
            rates[name].append(on.load(script, clients, seconds))
            on.empty(OUTBOX, "bare", "business")
    return {name: statistics.median(found) for name, found in rates.items()}


def cost(on: Bench, seconds: float) -> None:
    """Print what a send costs its transaction."""
    scripts = {
        "bare INSERT": [on.insert("bare")],
        "INSERT into the outbox": [on.insert(OUTBOX)],
        "orthia_send": [on.send()],
    }
    for clients in (1, 8):
        found = _medians(on, scripts, clients, seconds)
        for name, rate in found.items():
            _say("cost", f"{clients} clients, {name}", rate, found["bare INSERT"] / rate)
    many = {name: ["BEGIN", *script * 20, "COMMIT"] for name, script in scripts.items()}
    found = _medians(on, many, 1, seconds)
    for name, rate in found.items():
        ratio = found["bare INSERT"] / rate
        _say("cost", f"20 in a transaction, {name}", rate * 20, ratio)


def commits(on: Bench, seconds: float) -> None:
    """Print what 64 clients commit."""
    script = ["BEGIN", _BUSINESS, on.insert(OUTBOX), "COMMIT"]
    nodes = {"polled": _POLLED}
    alone = {"no node": script}
    if isinstance(on, PostgresqlBench):
        nodes["woken by NOTIFY"] = ""
        always = ["BEGIN", _BUSINESS, on.insert("notified"), "COMMIT"]
        alone["no node, always NOTIFY"] = always
    rates: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for name, inner in nodes.items():
            with on.node(inner):
                rates.setdefault(name, []).append(on.load(script, 64, seconds))
            on.empty(OUTBOX, "business", on.settings.message_table_name)
        for name, one in alone.items():
            rates.setdefault(name, []).append(on.load(one, 64, seconds))
            on.empty(OUTBOX, "business")
    for name, found in rates.items():
        rate = statistics.median(found)
        ratio = rate / statistics.median(rates["polled"])
        _say("commits", f"64 clients, {name}", rate, ratio, [round(one) for one in found])


def relay(on: Bench, seconds: float) -> None:
    """Print how many rows become messages in a second."""
    relayed: list[float] = []
    sent: list[float] = []
    with on.node() as node:
        for number in range(_ROUNDS):
            run = produce(
                node.port, f"stomp{number}", producers=8, outstanding=200, seconds=seconds
            )
            sent.append(run.rate)
            began = time.perf_counter()
            on.fill(_ROWS, f"sql{number}")
            inserted = time.perf_counter() - began
            on.drained()
            relayed.append(_ROWS / (time.perf_counter() - began - inserted))
    by_stomp = statistics.median(sent)
    _say("relay", "8x200 by STOMP", by_stomp, 1, [round(one) for one in sent])
    rate = statistics.median(relayed)
    _say("relay", "rows of SQL", rate, rate / by_stomp, [round(one) for one in relayed])


def latency(on: Bench) -> None:
    """Print how long a message takes from its commit, when nothing else is sent."""
    woken = {"by NOTIFY": ""} if isinstance(on, PostgresqlBench) else {}
    for name, inner in {**woken, "polled": _POLLED}.items():
        taken: list[float] = []
        with on.node(inner) as node, on.session() as session:
            client = Connection.open(BrokerAddress("127.0.0.1", node.port), heart_beat_ms=0)
            client.send("SUBSCRIBE", {"destination": "/queue/rest", "id": "1", "ack": "auto"}, b"")
            for number in range(_MESSAGES + 5):
                until = time.monotonic() + _REST_SECONDS + (number % 7) * 0.013
                while time.monotonic() < until:
                    client.exchange(0.02)
                session.exec_driver_sql(
                    f"INSERT INTO {OUTBOX} (destination, body) VALUES ('rest', 'x')"
                )
                began = time.perf_counter()
                while not any(one.command == "MESSAGE" for one in client.exchange(0.5)):
                    pass
                taken.append(time.perf_counter() - began)
        taken = sorted(taken[5:])
        middle, longest = taken[len(taken) // 2], taken[-1]
        print(
            f"latency   {name:12} p50 {middle * 1000:6.1f} ms   longest {longest * 1000:6.1f} ms",
            flush=True,
        )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=["cost", "commits", "relay", "latency"])
    parser.add_argument("--dbms", nargs="+", default=["postgresql", "mariadb"])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    compiled = use() if arguments.compiled else ""
    if arguments.compiled and not compiled:
        parser.error("nothing is compiled: run make compiled")
    for dbms in arguments.dbms:
        print(dbms, flush=True)
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            on = bench(dbms, server, Path(directory), compiled)
            for what in arguments.what:
                match what:
                    case "cost":
                        cost(on, arguments.seconds)
                    case "commits":
                        commits(on, arguments.seconds)
                    case "relay":
                        relay(on, arguments.seconds)
                    case "latency":
                        latency(on)
            on.close()


if __name__ == "__main__":
    main()
