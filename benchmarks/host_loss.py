"""How long clients have no node when the whole host of the live node is lost, default timers.

    sudo python -m benchmarks.host_loss [--dbms postgresql mariadb] [--rounds 3]

The live node runs in a network namespace of its own. Its network goes down, so that the others hear
nothing more from it, not even the end of its connections; then it is killed. Needs root.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.takeover import wait_answer
from benchmarks.timers import TIMERS
from orthia.config.settings import Role
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import (
    PASSWORD,
    USER,
    MariadbServer,
    PostgresqlServer,
    ServerProcess,
    url_with_password,
)

NAMESPACE = "orthia-lost"
HERE, THERE = "10.77.61.1", "10.77.61.2"
"""The two ends of the wire between this host and the namespace."""


class OpenPostgresql(PostgresqlServer):
    """A PostgreSQL server that the namespace reaches."""

    def _command(self) -> list[str]:
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {THERE}/32 scram-sha-256\n")
        return [*super()._command(), f"--listen-addresses=127.0.0.1,{HERE}"]


class OpenMariadb(MariadbServer):
    """A MariaDB server that the namespace reaches."""

    def _command(self) -> list[str]:
        command = super()._command()
        with (self.directory / "init.sql").open("a") as statements:
            statements.write(
                f"CREATE USER IF NOT EXISTS {USER}@'{THERE}' IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL ON *.* TO {USER}@'{THERE}' WITH GRANT OPTION;\n"
            )
        return [*command, "--bind-address=0.0.0.0"]


SERVERS: dict[str, type[ServerProcess]] = {"postgresql": OpenPostgresql, "mariadb": OpenMariadb}


def ip(*arguments: str) -> None:
    """Run ``ip`` of iproute2."""
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def wire() -> Iterator[None]:
    """Give a namespace that reaches this host by one wire."""
    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", "orthia-here", "type", "veth", "peer", "name", "orthia-there")
        ip("link", "set", "orthia-there", "netns", NAMESPACE)
        ip("addr", "add", f"{HERE}/30", "dev", "orthia-here")
        ip("link", "set", "orthia-here", "up")
        inside = ("netns", "exec", NAMESPACE, "ip")
        ip(*inside, "addr", "add", f"{THERE}/30", "dev", "orthia-there")
        ip(*inside, "link", "set", "orthia-there", "up")
        ip(*inside, "link", "set", "lo", "up")
        yield
    finally:
        ip("link", "delete", "orthia-here")
        ip("netns", "delete", NAMESPACE)


def lose_host(server: ServerProcess, expiration_ms: int) -> float:
    """Return the seconds from the loss of the live node's host until the backup serves."""
    renew, _ = TIMERS["default"]
    url = url_with_password(server.settings(server.create_database()))
    options: dict[str, str | int | bool] = {
        "jdbc-lock-renew-period": renew,
        "jdbc-lock-expiration": expiration_ms,
        "jdbc-network-timeout": 20_000,
    }
    with tempfile.TemporaryDirectory() as directory, cluster(url, Path(directory)) as nodes:
        live = NodeProcess(
            Role.LIVE,
            url.replace("127.0.0.1", HERE),
            nodes.directory,
            "live",
            options,
            prefix=("ip", "netns", "exec", NAMESPACE),
        )
        nodes.nodes.append(live)
        live.start().wait_log("AMQ221007")
        backup = nodes.node(Role.BACKUP, "backup", **options).start().wait_log("AMQ221031")
        began = time.monotonic()
        ip("link", "set", "orthia-here", "down")
        live.kill()
        wait_answer(backup)
        return time.monotonic() - began


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    _, expiration_ms = TIMERS["default"]
    for dbms in arguments.dbms:
        times = []
        for _ in range(arguments.rounds):
            with wire(), SERVERS[dbms]() as server:
                times.append(lose_host(server, expiration_ms))
        middle, least, most = statistics.median(times), min(times), max(times)
        print(f"{dbms:12}median {middle:.2f} s, least {least:.2f}, most {most:.2f}", flush=True)


if __name__ == "__main__":
    main()
