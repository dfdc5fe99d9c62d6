"""What operators cost a node with very many queues and connections.

    python -m benchmarks.console [--dbms postgresql] [--queues 50000] [--connections 5000]
        [--consoles 10] [--seconds 6] [--rounds 3]

First how long pages of the console and of the API take, asked for by one client with pauses, so
that some lists are made anew; with no connections that is left out. Then 8 producers with 200
messages outstanding each send 1 KiB messages, after a run that does not count, in turn with nobody
at the console and with so many pages that follow the fullest queues: read the ratio of the medians.
The node has 50,000 queues by then, too.
"""

import argparse
import resource
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import clients, produce
from benchmarks.throughput import cpu_seconds
from orthia.config.settings import Role
from orthia.database import Database
from tests.process import test_many_queues as many_queues
from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import NodeProcess
from tests.support.servers import free_port, url_with_password

PATHS: Final = (
    "/console/queues",
    "/console/queues?sort=-messages&page=500",
    "/console/queues?search=queue.4999",
    "/api/v1/queues?limit=100",
    "/api/v1/queues?sort=-messages&limit=100",
    "/api/v1/queues?offset=49900&limit=100",
    "/api/v1/overview",
    "/console/connections",
    "/api/v1/connections?limit=100",
    "/metrics",
)
FOLLOWED: Final = "/console/queues?sort=-messages"
_CORE: Final = """
<health xmlns="urn:orthia"><port>{port}</port></health>
<stomp-limits xmlns="urn:orthia">
  <max-connections>10000</max-connections>
  <max-connections-per-address>10000</max-connections-per-address>
</stomp-limits>
"""
_TIMES: Final = 5
_PAUSE_SECONDS: Final = 2.5
"""Longer than a list is kept."""


def ask(port: int, path: str) -> float:
    """Return the milliseconds that one request takes."""
    began = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path} was answered with {answer.status}")
    return (time.perf_counter() - began) * 1_000


class Consoles:
    """Pages that follow what happens, for the block."""

    def __init__(self, port: int, number: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self.bytes = 0
        for _ in range(number):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            head = (f"GET {FOLLOWED} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream")
            one.sendall("\r\n".join((*head, "", "")).encode())
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _read(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.2):
                if isinstance(key.fileobj, socket.socket):
                    self.bytes += len(key.fileobj.recv(262_144))


@contextmanager
def live_node(dbms: str, queues: int) -> Iterator[tuple[NodeProcess, int]]:
    """Give a live node with so many queues, and its port of HTTP."""
    with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        settings = server.settings(server.create_database())
        database = Database.from_settings(settings)
        many_queues.QUEUES = queues
        many_queues.leave_queues(database, settings)
        database.dispose()
        port = free_port()
        node = FileNodeProcess(
            Role.LIVE,
            url_with_password(settings),
            Path(directory),
            "live",
            core=_CORE.format(port=port),
        )
        try:
            yield node.start().wait_serving(), port
        finally:
            node.end()


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", choices=EVERY_DBMS, default="postgresql")
    parser.add_argument("--queues", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--consoles", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with live_node(arguments.dbms, arguments.queues) as (node, port):
        with ExitStack() as connected:
            connected.enter_context(clients(node.port, arguments.connections))
            print(f"{'page':45}{'median ms':>10}{'most':>8}")
            for path in PATHS if arguments.connections else ():
                taken = []
                for _ in range(_TIMES):
                    time.sleep(_PAUSE_SECONDS)
                    taken.append(ask(port, path))
                print(f"{path:45}{statistics.median(taken):10.0f}{max(taken):8.0f}", flush=True)
        produce(node.port, "queue.1", producers=8, outstanding=200, seconds=arguments.seconds)
        rates: dict[int, list[float]] = defaultdict(list)
        used: dict[int, list[float]] = defaultdict(list)
        for number in range(arguments.rounds):
            order = (0, arguments.consoles) if number % 2 else (arguments.consoles, 0)
            for consoles in order:
                with Consoles(port, consoles) as seen:
                    time.sleep(2)
                    before, began = cpu_seconds(node), time.perf_counter()
                    rate = produce(
                        node.port,
                        f"queue.{number + 1}",
                        producers=8,
                        outstanding=200,
                        seconds=arguments.seconds,
                    )
                    sent = rate * (time.perf_counter() - began)
                    rates[consoles].append(rate)
                    used[consoles].append((cpu_seconds(node) - before) / sent * 1e6)
                    if consoles and not seen.bytes:
                        raise RuntimeError("the consoles were sent nothing")
        print(f"\n{'consoles':10}{'8x200 a second':>16}{'cpu us':>8}")
        for consoles, found in sorted(rates.items()):
            middle = statistics.median(found)
            print(f"{consoles:<10}{middle:16,.0f}{statistics.median(used[consoles]):8.1f}")
        ratio = statistics.median(rates[arguments.consoles]) / statistics.median(rates[0])
        print(f"{ratio:.1%} of the rate without consoles")


if __name__ == "__main__":
    main()
