"""A large message through a node: its peak memory, and MiB a second in and out.

    python -m benchmarks.large_messages [--stores postgresql mariadb sqlite files] [--mib 1024]

The node may use 300 MiB: a higher peak is reported, and the exit code is 1. The floor stores the
same bytes in the shortest way: for files, write and fdatasync of pieces of 1 MiB.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.takeover import wait_answer
from benchmarks.throughput import resident_mib
from orthia.config.settings import Role
from tests.process.file_nodes import file_cluster
from tests.process.large_clients import MIB, LargeClient, body, digest
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import url_with_password

MEMORY_MIB = 300
QUEUE = "/queue/large"
FILES = "files"


@contextmanager
def node_on(store: str) -> Iterator[NodeProcess]:
    """Run a live node on a fresh store."""
    with tempfile.TemporaryDirectory() as directory:
        if store == FILES:
            with file_cluster(Path(directory)) as nodes:
                node = nodes.node(Role.LIVE, "live", policy="").start()
                wait_answer(node)
                yield node
            return
        with started(store) as server:
            url = url_with_password(server.settings(server.create_database()))
            with cluster(url, Path(directory)) as nodes:
                live = nodes.live()
                wait_answer(live)
                yield live


def floor_mib_per_second(size: int) -> float:
    """Return how fast the disk stores the same bytes, in MiB a second."""
    with tempfile.NamedTemporaryFile() as file:
        began = time.monotonic()
        for part in body(size):
            file.write(part)
            file.flush()
            os.fdatasync(file.fileno())
        return size / MIB / (time.monotonic() - began)


def measure(store: str, size: int) -> bool:
    """Measure one store and print a line; return whether the node kept within its memory."""
    expected = digest(size)
    with node_on(store) as node:
        rest = resident_mib(node, "VmRSS")
        with LargeClient(node.port, 600) as producer:
            began = time.monotonic()
            producer.send_and_wait(QUEUE, size)
            sent = time.monotonic() - began
        with LargeClient(node.port, 600) as consumer:
            began = time.monotonic()
            consumer.subscribe(QUEUE)
            message = consumer.message()
            received = time.monotonic() - began
            consumer.acknowledge(message)
        if message.sha256 != expected:
            raise RuntimeError(f"{store}: the body is not what was sent")
        peak = resident_mib(node, "VmHWM")
    mib = size / MIB
    print(
        f"| {store} | {mib / sent:,.0f} | {mib / received:,.0f} | {rest:,.0f} | {peak:,.0f} |",
        flush=True,
    )
    return peak <= MEMORY_MIB


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [*EVERY_DBMS, FILES]
    parser.add_argument("--stores", nargs="+", choices=every, default=every)
    parser.add_argument("--mib", type=int, default=1_024)
    options = parser.parse_args()
    size = options.mib * MIB
    floor = floor_mib_per_second(size)
    print(f"{options.mib} MiB; the disk alone: {floor:,.0f} MiB/s")
    print("| store | in, MiB/s | out, MiB/s | memory at rest, MiB | peak, MiB |")
    print("|---|---|---|---|---|")
    enough = [measure(store, size) for store in options.stores]
    if not all(enough):
        sys.exit(f"a node took more than {MEMORY_MIB} MiB")


if __name__ == "__main__":
    main()
