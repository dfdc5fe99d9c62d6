"""What a message costs the node's processor here and in another checkout, side by side.

    git worktree add /tmp/before 1a2b3c4
    python -m benchmarks.versions --against /tmp/before [--dbms postgresql] [--rounds 7]

Two live nodes on one server, each with a database of its own, take turns under the same load. Both
run in this environment's interpreter with its packages. Prints the median processor time of the
node's process per message, in microseconds, and the median of the ratios within each round, which a
busy machine changes least: above 1 this checkout is slower. Beside them are messages a second,
where a ratio below 1 means that this checkout is slower.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.throughput import Measured, default_node, ratio, send_and_consume
from orthia.config.settings import Role
from tests.process.nodes import NodeProcess, cluster, program_of
from tests.support.servers import StoreServer, url_with_password

HERE, THERE = "here", "against"


def live_node(server: StoreServer, directory: Path, checkout: Path | None) -> NodeProcess:
    """Make a live node on a database of its own, from ``checkout`` or from this checkout."""
    url = url_with_password(server.settings(server.create_database()))
    with cluster(url, directory) as nodes:
        node = default_node(nodes, Role.LIVE, THERE if checkout else HERE)
    if checkout is not None:
        node.environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(checkout)}
        node.program = program_of(checkout)
    return node


def compare(
    server: StoreServer, directory: Path, against: Path, *, seconds: float, rounds: int
) -> dict[str, Measured]:
    """Measure the two nodes in turn."""
    nodes = {
        HERE: live_node(server, directory, None),
        THERE: live_node(server, directory, against),
    }
    measured = {which: Measured() for which in nodes}
    try:
        for node in nodes.values():
            node.start().wait_serving()
        for number in range(rounds):
            order = list(nodes.items())
            for which, node in order if number % 2 else reversed(order):
                send_and_consume(measured[which], node, str(number), seconds)
    finally:
        for node in nodes.values():
            node.end()
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True, help="the other checkout")
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    columns = ("us here", "against", "ratio", "/s here", "against", "ratio")
    print(f"{'':12}{'work':16}{''.join(f'{column:>10}' for column in columns)}")
    for dbms in arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            measured = compare(
                server,
                Path(directory),
                arguments.against.resolve(),
                seconds=arguments.seconds,
                rounds=arguments.rounds,
            )
        for work, here in measured[HERE].cpu_us.items():
            there = measured[THERE].cpu_us[work]
            # The kernel counts in ticks: on a starved machine a short round may have no tick.
            pairs = [pair for pair in zip(here, there, strict=True) if all(pair)]
            if not pairs:
                raise RuntimeError(f"{work} took no measurable time; give more --seconds")
            of_costs = ratio([one for one, _ in pairs], [other for _, other in pairs])
            rates, others = measured[HERE].rates[work], measured[THERE].rates[work]
            of_rates = ratio(rates, others)
            print(
                f"{dbms:12}{work:16}{statistics.median(here):10.1f}{statistics.median(there):10.1f}"
                f"{of_costs:10.3f}{statistics.median(rates):10.0f}{statistics.median(others):10.0f}"
                f"{of_rates:10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
