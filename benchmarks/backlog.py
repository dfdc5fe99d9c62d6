"""A takeover with a large backlog beside one with an empty store, and the memory it takes.

    python -m benchmarks.backlog [--dbms postgresql] [--messages 1000000] [--rounds 3]

Fills a queue with 1 KiB messages through the live node, then kills the node that serves, again and
again, each time with a new backup. A takeover here is the time from the live lock to the open
acceptor, as the failover log tells it: the part that could grow with the backlog. The aims: at most
1.5 times the empty store's time plus 0.5 s, at most 2 s, under 300 MiB resident.
"""

import argparse
import signal
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import consume, fill
from benchmarks.takeover import wait_answer
from benchmarks.throughput import resident_mib
from benchmarks.timers import timer_options
from orthia.config.settings import Role
from tests.process.nodes import Cluster, NodeProcess, cluster
from tests.support.servers import StoreServer, url_with_password
from tests.support.waiting import wait_until

QUEUE = "backlog"


@dataclass
class Takeovers:
    """Takeovers of one store: milliseconds, and the peak memory of the node that took over."""

    milliseconds: list[float]
    peak_mib: float


def start_node(nodes: Cluster, role: Role, name: str) -> NodeProcess:
    """Start a node."""
    return nodes.node(
        role,
        name,
        **timer_options("500/3000"),
    ).start()


def take_over_and_over(
    nodes: Cluster, serving: NodeProcess, rounds: int, name: str
) -> tuple[Takeovers, NodeProcess]:
    """Kill the serving node ``rounds`` times; return the figures and the node that serves last."""
    peak = 0.0
    for number in range(rounds):
        backup = start_node(nodes, Role.BACKUP, f"{name}-{number}").wait_log("AMQ221031")
        serving.signal(signal.SIGKILL)
        wait_answer(backup)
        serving = backup
        peak = max(peak, resident_mib(serving, "VmHWM"))
    wait_until(
        lambda: len(timings(nodes, name)) == rounds, what="the takeovers are in the failover log"
    )
    return Takeovers(timings(nodes, name), peak), serving


def timings(nodes: Cluster, name: str) -> list[float]:
    """Return fence + load + open of the takeovers by nodes called ``name``, milliseconds."""
    found = []
    for event in nodes.events():
        if event["event"] == "TakeoverTimings" and str(event["node_name"]).startswith(name):
            details = cast("dict[str, float]", event["details"])
            found.append(details["fence_ms"] + details["load_ms"] + details["open_ms"])
    return found


def measure(
    server: StoreServer, messages: int, rounds: int, say: Callable[[str], None]
) -> tuple[Takeovers, Takeovers]:
    """Measure an empty store, then the same one with the backlog."""
    url = url_with_password(server.settings(server.create_database()))
    with tempfile.TemporaryDirectory() as directory, cluster(url, Path(directory)) as nodes:
        live = start_node(nodes, Role.LIVE, "live").wait_serving()
        empty, serving = take_over_and_over(nodes, live, rounds, "empty")
        fill(serving.port, QUEUE, messages)
        say(
            f"{messages:,} messages waiting: the node that took them has"
            f" {resident_mib(serving):.0f} MiB, {resident_mib(serving, 'VmHWM'):.0f} MiB at most"
        )
        full, serving = take_over_and_over(nodes, serving, rounds, "full")
        run = consume(serving.port, QUEUE, messages, ack="client")
        say(
            f"consumed all at {run.rate:,.0f}/s;"
            f" {resident_mib(serving, 'VmHWM'):.0f} MiB at most while that lasted"
        )
    return empty, full


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for dbms in arguments.dbms:
        with started(dbms) as server:
            empty, full = measure(
                server,
                arguments.messages,
                arguments.rounds,
                lambda line, dbms=dbms: print(f"{dbms:12}{line}", flush=True),  # type: ignore[misc]
            )
        for what, takeovers in (("empty", empty), ("full", full)):
            middle, most = statistics.median(takeovers.milliseconds), max(takeovers.milliseconds)
            print(
                f"{dbms:12}{what:6} takeover: median {middle:.0f} ms, most {most:.0f} ms;"
                f" {takeovers.peak_mib:.0f} MiB resident at most just after it",
                flush=True,
            )


if __name__ == "__main__":
    main()
