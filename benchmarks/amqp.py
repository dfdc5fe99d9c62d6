"""AMQP beside STOMP through one live node: sends and receives a second, and what they cost.

    python -m benchmarks.amqp [--dbms postgresql sqlite] [--seconds 3] [--rounds 5]

All kinds of clients take turns in every round, with clients that cost the machine alike: frames
encoded beforehand, answers counted. Prints the medians of rates and of the node's processor time
for a message, and of the ratios within each round: a rate above 1 and a cost below 1 say that the
kind is better than STOMP. ``JMS`` is a message with the sections that qpid-jms writes, and
``STOMP+`` one of STOMP with as many headers: the last two columns are the ratios to that.

``--compiled DIRECTORY`` is where the node finds compiled modules: ``make compiled`` keeps them.

``--artemis HOME`` is another comparison: the same clients of AMQP at a node and at Artemis with
its JDBC store, in turns, both on one PostgreSQL. HOME is where Artemis is unpacked, with the JDBC
driver of PostgreSQL in its ``lib``. The first round, in which Java compiles, does not count.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import amqp_load, stomp_load
from benchmarks.artemis import Artemis
from benchmarks.floors import EVERY_DBMS, started
from benchmarks.throughput import Measured, Running, ratio
from orthia.config.settings import Role
from tests.process.file_nodes import FileNodeProcess
from tests.support.servers import StoreServer, url_with_password

CONSUMED = 20_000
STOMP, STOMP_JMS, AMQP, JMS = "STOMP", "STOMP+", "AMQP", "JMS"
EVERY_KIND = (STOMP, STOMP_JMS, AMQP, JMS)
WORKS = {
    "8x200": "8 producers, 200 outstanding",
    "settled": "1 consumer, settled as they come (ack:auto)",
    "accepted": "1 consumer, one outcome for each read (ack:client)",
}


class Work:
    """Clients of one kind at one broker."""

    def __init__(self, kind: str, broker: Running, port: int) -> None:
        self.measured = Measured()
        self._broker = broker
        self._port = port
        self._kind = amqp_load.JMS if kind == JMS else amqp_load.PLAIN
        self._name = kind.replace("+", "-headers")
        self._is_stomp = kind in (STOMP, STOMP_JMS)
        self._headers = amqp_load.HEADERS_OF_JMS if kind == STOMP_JMS else ""

    def run_once(self, number: int, seconds: float, *, only_sends: bool) -> None:
        """Put the broker under each kind of load."""
        port, queue, note = self._port, f"{self._name}-{number}", self.measured.count
        if self._is_stomp:
            produce = partial(stomp_load.produce, headers=self._headers)
        else:
            encoded = amqp_load.transfers(self._kind, queue)
            produce = partial(amqp_load.produce, encoded=encoded)
        send = partial(produce, port, queue, producers=8, outstanding=200, seconds=seconds)
        note("8x200", self._broker, send)
        if only_sends:
            return
        for work, ack in (("settled", "auto"), ("accepted", "client")):
            from_queue = f"{queue}-{work}"
            if self._is_stomp:
                stomp_load.fill(port, from_queue, CONSUMED, headers=self._headers)
                take = partial(stomp_load.consume, port, from_queue, CONSUMED, ack=ack)
            else:
                amqp_load.fill(port, from_queue, CONSUMED, self._kind)
                is_settled = work == "settled"
                take = partial(amqp_load.consume, port, from_queue, CONSUMED, is_settled=is_settled)
            note(work, self._broker, take)


def in_turns(works: Sequence[Work], numbers: range, arguments: argparse.Namespace) -> None:
    """Let each have its turn in every round, and each order be had."""
    for number in numbers:
        for work in works if number % 2 else reversed(works):
            work.run_once(number, arguments.seconds, only_sends=arguments.only_sends)


def node_of(server: StoreServer, directory: Path, compiled: str | None) -> FileNodeProcess:
    """Return a node on a database of its own."""
    url = url_with_password(server.settings(server.create_database()))
    node = FileNodeProcess(Role.LIVE, url, directory, "live")
    if compiled is not None:
        node.environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": compiled}
    return node


def beside_stomp(
    dbms: str, server: StoreServer, directory: Path, arguments: argparse.Namespace
) -> None:
    """Measure the kinds in turn on one node, and print a row for each."""
    node = node_of(server, directory, arguments.compiled)
    try:
        node.start().wait_serving()
        works = {kind: Work(kind, node, node.port) for kind in EVERY_KIND}
        in_turns(tuple(works.values()), range(arguments.rounds), arguments)
    finally:
        node.end()
    for work, text in list(WORKS.items())[: 1 if arguments.only_sends else None]:
        for kind, one in works.items():
            rates, costs = one.measured.rates[work], one.measured.cpu_us[work]
            line = f"{dbms:12}{text:52}{kind:8}"
            line += f"{statistics.median(rates):10,.0f}{statistics.median(costs):8.1f}"
            for other in (works[STOMP].measured, works[STOMP_JMS].measured):
                line += f"{ratio(rates, other.rates[work]):8.2f}"
                line += f"{ratio(costs, other.cpu_us[work]):6.2f}"
            print(line, flush=True)


def beside_artemis(server: StoreServer, directory: Path, arguments: argparse.Namespace) -> None:
    """Measure a node and Artemis in turn, and print a row for each kind of work and message."""
    node = node_of(server, directory, arguments.compiled)
    artemis = Artemis(arguments.artemis, server, directory)
    try:
        node.start().wait_serving()
        artemis.start()
        for warms_up in (True, False):
            works = [
                (kind, Work(kind, node, node.port), Work(kind, artemis, artemis.port))
                for kind in (AMQP, JMS)
            ]
            turns = [one for _, ours, theirs in works for one in (ours, theirs)]
            rounds = range(1) if warms_up else range(1, arguments.rounds + 1)
            in_turns(turns, rounds, arguments)
    finally:
        artemis.end()
        node.end()
    for work, text in list(WORKS.items())[: 1 if arguments.only_sends else None]:
        for kind, ours, theirs in works:
            line = f"{text:52}{kind:8}"
            for figures, other, form in (
                (ours.measured.rates[work], theirs.measured.rates[work], "10,.0f"),
                (ours.measured.cpu_us[work], theirs.measured.cpu_us[work], "10.1f"),
            ):
                line += f"{statistics.median(figures):{form}}{statistics.median(other):{form}}"
                line += f"{ratio(figures, other):8.2f}"
            print(line, flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["sqlite"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-sends", action="store_true", help="leave the consumers out")
    parser.add_argument("--compiled", help="a directory with compiled modules")
    parser.add_argument("--artemis", type=Path, help="where Artemis is unpacked")
    arguments = parser.parse_args()
    is_beside_artemis = arguments.artemis is not None
    if is_beside_artemis:
        print(f"{'work':52}{'':8}{'a second':>10}{'Artemis':>10}{'ratio':>8}", end="")
        print(f"{'cpu us':>10}{'Artemis':>10}{'ratio':>8}")
    else:
        print(f"{'':12}{'work':52}{'':8}{'a second':>10}{'cpu us':>8}", end="")
        print(f"{'of STOMP':>14}{'of STOMP+':>14}")
    for dbms in ("postgresql",) if is_beside_artemis else arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            if is_beside_artemis:
                beside_artemis(server, Path(directory), arguments)
            else:
                beside_stomp(dbms, server, Path(directory), arguments)


if __name__ == "__main__":
    main()
