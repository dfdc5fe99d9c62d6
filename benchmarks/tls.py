"""What TLS costs a node: messages and connections with TLS, beside the same without.

    python -m benchmarks.tls [--dbms postgresql] [--seconds 3] [--rounds 5]

One live node has an acceptor with TLS and one without. They take turns under the load of
``benchmarks.throughput``, with bodies of 1 KiB. "cpu us" is what a message costs the node's
process, in microseconds of processor time, which a busy machine changes least; "ratio" is the cost
with TLS over the cost without. For connections, four clients at once connect, with a whole
handshake where there is TLS, send CONNECT, wait for CONNECTED and close. Python's client and the
node agree on the default: TLS 1.3, with a P-256 certificate.
"""

import argparse
import ssl
import statistics
import tempfile
import threading
import time
from functools import partial
from html import escape
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import Run, clients
from benchmarks.throughput import Measured, send_and_consume
from orthia.config.settings import Role
from tests.process.nodes import CLI, NodeProcess
from tests.support.certificates import Authority
from tests.support.servers import StoreServer, free_port, url_with_password

CONNECTION = "a connection"
AT_ONCE = 4


class TwoDoors(NodeProcess):
    """A live node with an acceptor without TLS and one with TLS, whose key is in a file."""

    def __init__(self, url: str, directory: Path, key_store: Path) -> None:
        super().__init__(Role.LIVE, url, directory, "live")
        self.tls_port = free_port()
        self._key_store = key_store

    def command(self) -> list[str]:
        """Write the broker.xml; return the command that starts the node."""
        path = self.directory / "broker.xml"
        tls = f"sslEnabled=true;keyStorePath={self._key_store}"
        path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>live</name><security-enabled>false</security-enabled>
            <store><database-store><jdbc-connection-url>{escape(self.url)}</jdbc-connection-url>
            </database-store></store>
            <acceptors><acceptor name="plain">tcp://127.0.0.1:{self.port}</acceptor>
            <acceptor name="tls">tcp://127.0.0.1:{self.tls_port}?{tls}</acceptor></acceptors>
            </core></configuration>"""
        )
        return [*CLI, "run", str(path)]


def connect(port: int, tls: ssl.SSLContext | None, seconds: float) -> Run:
    """Connect again and again for some seconds."""
    counts: list[int] = []
    began = time.perf_counter()

    def connect_again_and_again() -> None:
        count = 0
        while time.perf_counter() - began < seconds:
            with clients(port, 1, tls):
                count += 1
        counts.append(count)

    threads = [threading.Thread(target=connect_again_and_again) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < AT_ONCE:
        raise RuntimeError("not every client could connect")
    return Run(sum(counts), time.perf_counter() - began)


def measure(
    server: StoreServer, directory: Path, seconds: float, rounds: int
) -> dict[str, Measured]:
    """Measure the two acceptors in turn."""
    authority = Authority(directory / "ca.pem")
    key_store = authority.sign().write_pem(directory / "broker.pem")
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    url = url_with_password(server.settings(server.create_database()))
    node = TwoDoors(url, directory, key_store)
    doors = {"plain": (node.port, None), "tls": (node.tls_port, context)}
    measured = {name: Measured() for name in doors}
    try:
        node.start().wait_serving()
        for number in range(rounds):
            order = list(doors.items())
            for name, (port, tls) in order if number % 2 else reversed(order):
                into = measured[name]
                send_and_consume(into, node, f"{name}-{number}", seconds, port=port, tls=tls)
                into.count(CONNECTION, node, partial(connect, port, tls, seconds))
    finally:
        node.end()
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=["postgresql"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    heads = ("plain/s", "tls/s", "cpu us", "by tls", "ratio")
    print(f"{'':12}{'work':16}" + "".join(f"{head:>10}" for head in heads))
    for dbms in arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            found = measure(server, Path(directory), arguments.seconds, arguments.rounds)
        for work in found["plain"].cpu_us:
            rates = [statistics.median(found[name].rates[work]) for name in found]
            costs = [statistics.median(found[name].cpu_us[work]) for name in found]
            print(
                f"{dbms:12}{work:16}{rates[0]:10,.0f}{rates[1]:10,.0f}"
                f"{costs[0]:10.1f}{costs[1]:10.1f}{costs[1] / costs[0]:10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
