"""How long clients have no node: from the end of the live one until the backup answers CONNECT.

    python -m benchmarks.takeover [--dbms postgresql mariadb sqlite] [--rounds 3]
        [--timers default 500/3000] [--ends crash graceful] [--messages 1000]

A crash is kill -9 of the live node; graceful is SIGTERM with failover-on-shutdown. Both are
measured with the default timers (a lease of 20 s, renewed every 2 s) and with 3 s and 500 ms. Each
round starts a new pair.
"""

import argparse
import signal
import socket
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import fill
from benchmarks.timers import TIMERS, timer_options
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import StoreServer, url_with_password

ENDS = {"crash": signal.SIGKILL, "graceful": signal.SIGTERM}
_LOOK_SECONDS = 0.002
_GIVE_UP_SECONDS = 120


def answers(port: int) -> bool:
    """Return whether a STOMP client can connect at ``port``."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(b"CONNECT\naccept-version:1.2\nhost:bench\n\n\0")
            return client.recv(4096).startswith(b"CONNECTED")
    except OSError:
        return False


def wait_answer(node: NodeProcess) -> None:
    """Wait until a node serves."""
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    while not answers(node.port):
        if time.monotonic() > give_up:
            raise RuntimeError(f"{node.name} does not serve; its log:\n{node.log}")
        time.sleep(_LOOK_SECONDS)


def take_over(server: StoreServer, timers: str, how: signal.Signals, messages: int) -> float:
    """Return the seconds of one takeover with ``messages`` waiting."""
    url = url_with_password(server.settings(server.create_database()))
    with tempfile.TemporaryDirectory() as directory, cluster(url, Path(directory)) as nodes:
        live, backup = nodes.pair(failover_on_shutdown=True, **timer_options(timers))
        fill(live.port, "waiting", messages)
        began = time.monotonic()
        live.signal(how)
        wait_answer(backup)
        return time.monotonic() - began


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=EVERY_DBMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timers", nargs="+", choices=TIMERS, default=list(TIMERS))
    parser.add_argument("--ends", nargs="+", choices=ENDS, default=list(ENDS))
    parser.add_argument("--messages", type=int, default=1_000, help="waiting, 1 KiB each")
    arguments = parser.parse_args()
    print(f"{'':12}{'timers':10}{'end':10}{'median s':>10}{'least s':>10}{'most s':>10}")
    for dbms in arguments.dbms:
        with started(dbms) as server:
            for name in arguments.timers:
                for end in arguments.ends:
                    times = [
                        take_over(server, name, ENDS[end], arguments.messages)
                        for _ in range(arguments.rounds)
                    ]
                    middle, least, most = statistics.median(times), min(times), max(times)
                    print(
                        f"{dbms:12}{name:10}{end:10}{middle:10.2f}{least:10.2f}{most:10.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
