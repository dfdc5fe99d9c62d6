"""What operators cost a node with very many queues and connections.

    python -m benchmarks.console [--dbms postgresql] [--queues 50000] [--connections 5000]
        [--consoles 10] [--seconds 3] [--rounds 10]

First how long pages of the console and of the API take, asked for by one client with pauses, so
that some lists are made anew, of a node that rests, and while 8 producers with 200 messages
outstanding each send 1 KiB messages; with no connections that is left out, and with no rounds what
follows. Then the same producers send, after a run that does not count, in turn with nobody at the
console and with so many pages that follow the fullest queues. The node has 50,000 queues by then,
too. Read the median of the rounds' ratios, and how far the quartiles are apart: on a machine that
does something else a rate says little, and the processor time of a message more.
"""

import argparse
import multiprocessing
import resource
import selectors
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import clients, produce
from benchmarks.throughput import cpu_seconds, ratio
from orthia.config.settings import Role
from orthia.database import Database
from tests.process import test_many_queues as many_queues
from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import NodeProcess
from tests.support.servers import free_port, url_with_password

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

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


def _follow(port: int, number: int, seen: "Synchronized[int]") -> None:
    """Read so many pages that follow what happens; in a process of its own, until it is ended."""
    with selectors.DefaultSelector() as selector:
        for _ in range(number):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            head = (f"GET {FOLLOWED} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream")
            one.sendall("\r\n".join((*head, "", "")).encode())
            selector.register(one, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                seen.value += len(key.data.recv(262_144))


@contextmanager
def following(port: int, number: int) -> Iterator["Synchronized[int]"]:
    """Open pages that follow what happens during the block; yield the bytes they were sent.

    They are no thread of this process, which would wait for them while it sends.
    """
    forking = multiprocessing.get_context("fork")
    seen = forking.Value("q", 0)
    reader = forking.Process(target=_follow, args=(port, number, seen), daemon=True)
    if number:
        reader.start()
    try:
        yield seen
    finally:
        if number:
            reader.kill()
            reader.join()


def _load(port: int) -> None:
    """Send all the time; in a process of its own, until it is ended."""
    while True:
        produce(port, "queue.2", producers=8, outstanding=200, seconds=60)


@contextmanager
def loaded(port: int) -> Iterator[None]:
    """Send by 8 producers during the block."""
    sender = multiprocessing.get_context("fork").Process(target=_load, args=(port,), daemon=True)
    sender.start()
    try:
        yield
        if not sender.is_alive():
            raise RuntimeError("the producers have ended: what was timed was not under load")
    finally:
        sender.kill()
        sender.join()


def taken(port: int, path: str) -> list[float]:
    """Return the milliseconds that some requests take."""
    found = []
    for _ in range(_TIMES):
        time.sleep(_PAUSE_SECONDS)
        found.append(ask(port, path))
    return found


def time_pages(node: NodeProcess, port: int) -> None:
    """Print how long pages take, of a node that rests and under load."""
    at_rest = {path: taken(port, path) for path in PATHS}
    with loaded(node.port):
        under_load = {path: taken(port, path) for path in PATHS}
    print(f"{'page':45}{'median ms':>10}{'most':>8}{'under load':>12}{'most':>8}")
    for path in PATHS:
        shown = ""
        for found, width in ((at_rest[path], 10), (under_load[path], 12)):
            shown += f"{statistics.median(found):{width}.0f}{max(found):8.0f}"
        print(f"{path:45}{shown}", flush=True)


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
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with live_node(arguments.dbms, arguments.queues) as (node, port):
        if arguments.connections:
            with clients(node.port, arguments.connections):
                time_pages(node, port)
        if not arguments.rounds:
            return
        produce(node.port, "queue.1", producers=8, outstanding=200, seconds=arguments.seconds)
        rates: dict[int, list[float]] = defaultdict(list)
        used: dict[int, list[float]] = defaultdict(list)
        for number in range(arguments.rounds):
            order = (0, arguments.consoles) if number % 2 else (arguments.consoles, 0)
            for pages in order:
                with following(port, pages) as seen:
                    time.sleep(2)
                    before = cpu_seconds(node)
                    run = produce(
                        node.port,
                        f"queue.{number + 1}",
                        producers=8,
                        outstanding=200,
                        seconds=arguments.seconds,
                    )
                    rates[pages].append(run.rate)
                    used[pages].append((cpu_seconds(node) - before) / run.messages * 1e6)
                    if pages and not seen.value:
                        raise RuntimeError("the consoles were sent nothing")
        print(f"\n{'consoles':10}{'8x200 a second':>16}{'quartiles':>18}{'cpu us':>8}")
        for pages, found in sorted(rates.items()):
            low, middle, high = statistics.quantiles(found, n=4)
            apart = f"{low:,.0f}-{high:,.0f}"
            print(f"{pages:<10}{middle:16,.0f}{apart:>18}{statistics.median(used[pages]):8.1f}")
        for what, both in (("rate", rates), ("processor time of a message", used)):
            of_rounds = ratio(both[arguments.consoles], both[0])
            print(f"{of_rounds:.1%} of the {what} without consoles")


if __name__ == "__main__":
    main()
