"""A consumer whose selector matches few of very many messages, beside one that takes all of them.

    python -m benchmarks.selecting [--dbms postgresql] [--messages 1000000] [--one-in 10000]

Fills a queue through a node whose memory holds a fraction of it. Then one consumer selects the few
matching messages, and another one takes the rest. The first one's cost is reading and matching the
messages that it does not get.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import consume, fill
from benchmarks.throughput import resident_mib
from orthia.config.settings import Role
from tests.process.nodes import cluster
from tests.support.servers import StoreServer, url_with_password

QUEUE = "selecting"


def measure(server: StoreServer, messages: int, one_in: int, say: Callable[[str], None]) -> None:
    """Measure one store."""
    url = url_with_password(server.settings(server.create_database()))
    with tempfile.TemporaryDirectory() as directory, cluster(url, Path(directory)) as nodes:
        live = nodes.node(Role.LIVE, "live").start().wait_serving()
        few = messages // one_in
        for _ in range(few):
            fill(live.port, QUEUE, one_in - 1, headers="kind:hay\nweight:12\n")
            fill(live.port, QUEUE, 1, headers="kind:needle\nweight:12\n")
        say(f"{messages:,} messages waiting, {resident_mib(live, 'VmHWM'):.0f} MiB at most")
        _, seconds = consume(
            live.port, QUEUE, few, ack="client", selector="kind = 'needle' AND weight > 10"
        )
        say(
            f"selected {few} in {seconds:.1f} s, {messages / seconds:,.0f} looked at in a second;"
            f" {resident_mib(live, 'VmHWM'):.0f} MiB at most"
        )
        run = consume(live.port, QUEUE, messages - few, ack="client")
        most = resident_mib(live, "VmHWM")
        say(f"consumed the rest at {run.rate:,.0f}/s; {most:.0f} MiB at most")


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--one-in", type=int, default=10_000)
    arguments = parser.parse_args()
    for dbms in arguments.dbms:
        with started(dbms) as server:
            measure(
                server,
                arguments.messages,
                arguments.one_in,
                lambda line, dbms=dbms: print(f"{dbms:12}{line}", flush=True),  # type: ignore[misc]
            )


if __name__ == "__main__":
    main()
