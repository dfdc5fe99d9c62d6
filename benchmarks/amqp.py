"""AMQP beside STOMP through one live node: sends and receives a second, and what they cost.

    python -m benchmarks.amqp [--dbms postgresql sqlite] [--seconds 3] [--rounds 5]

Both protocols take turns in every round, with clients that cost the machine alike: frames encoded
beforehand, answers counted. Prints the medians of rates and of the node's processor time for a
message, and of the ratios within each round, AMQP to STOMP: a rate above 1 and a cost below 1 say
that AMQP is the better one. ``JMS`` is a message with the sections that qpid-jms writes.

``--compiled DIRECTORY`` is where the node finds compiled modules: ``make compiled`` keeps them.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import amqp_load, stomp_load
from benchmarks.floors import EVERY_DBMS, started
from benchmarks.throughput import Measured, ratio
from orthia.config.settings import Role
from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import NodeProcess
from tests.support.servers import StoreServer, url_with_password

CONSUMED = 20_000
STOMP, AMQP, JMS = "STOMP", "AMQP", "JMS"
WORKS = {
    "8x200": "8 producers, 200 outstanding",
    "settled": "1 consumer, settled as they come (ack:auto)",
    "accepted": "1 consumer, one outcome for each read (ack:client)",
}


def run_once(measured: dict[str, Measured], node: NodeProcess, number: int, seconds: float) -> None:
    """Put a node under each kind of load by each protocol, which take turns to be the first."""
    port = node.port
    for protocol in (STOMP, AMQP, JMS) if number % 2 else (JMS, AMQP, STOMP):
        queue, note = f"{protocol}-{number}", measured[protocol].count
        kind = amqp_load.JMS if protocol == JMS else amqp_load.PLAIN
        produce = stomp_load.produce
        if protocol != STOMP:
            produce = partial(amqp_load.produce, kind=kind)
        send = partial(produce, port, queue, producers=8, outstanding=200, seconds=seconds)
        note("8x200", node, send)
        for work, ack in (("settled", "auto"), ("accepted", "client")):
            from_queue = f"{queue}-{work}"
            if protocol == STOMP:
                stomp_load.fill(port, from_queue, CONSUMED)
                note(work, node, partial(stomp_load.consume, port, from_queue, CONSUMED, ack=ack))
            else:
                amqp_load.fill(port, from_queue, CONSUMED, kind)
                is_settled = work == "settled"
                take = partial(amqp_load.consume, port, from_queue, CONSUMED, is_settled=is_settled)
                note(work, node, take)


def measure(
    server: StoreServer, directory: Path, seconds: float, rounds: int, compiled: str | None
) -> dict[str, Measured]:
    """Measure the protocols in turn on one node."""
    measured = {protocol: Measured() for protocol in (STOMP, AMQP, JMS)}
    url = url_with_password(server.settings(server.create_database()))
    node = FileNodeProcess(Role.LIVE, url, directory, "live")
    if compiled is not None:
        node.environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": compiled}
    try:
        node.start().wait_serving()
        for number in range(rounds):
            run_once(measured, node, number, seconds)
    finally:
        node.end()
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["sqlite"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", help="a directory with compiled modules")
    arguments = parser.parse_args()
    print(f"{'':12}{'work':52}{'':7}{'a second':>10}{'ratio':>8}{'cpu us':>8}{'ratio':>8}")
    for dbms in arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            measured = measure(
                server,
                Path(directory),
                arguments.seconds,
                arguments.rounds,
                arguments.compiled,
            )
        stomp = measured[STOMP]
        for work, text in WORKS.items():
            for protocol, found in measured.items():
                rates, costs = found.rates[work], found.cpu_us[work]
                print(
                    f"{dbms:12}{text:52}{protocol:7}"
                    f"{statistics.median(rates):10,.0f}{ratio(rates, stomp.rates[work]):8.2f}"
                    f"{statistics.median(costs):8.1f}{ratio(costs, stomp.cpu_us[work]):8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
