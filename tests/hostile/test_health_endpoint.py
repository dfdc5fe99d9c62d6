"""Whoever reaches the health endpoint: it costs the clients nothing, and leaves nothing behind."""

import socket
import threading
import urllib.request
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from tests.hostile.node import MIB, LimitedNode, Witness, live_node, rest_of
from tests.support.servers import free_port
from tests.support.waiting import wait_until

HEALTH = '<health xmlns="urn:orthia"><port>{port}</port></health>'
QUEUES = 3_000
SCRAPERS = 8
ROUNDS = 10


def get(port: int, path: str) -> bytes:
    """Return the body of an ordinary request."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=240) as answer:
        body: bytes = answer.read()
    return body


def get_in_the_end(port: int, path: str) -> bytes:
    """Return the body of a request that is made again if it was cut off for its time."""
    bodies: list[bytes] = []

    def has_come() -> bool:
        try:
            bodies.append(get(port, path))
        except HTTPError:
            raise
        except (OSError, HTTPException):
            return False
        return True

    wait_until(has_come, what=f"the answer to {path}")
    return bodies[0]


def make_queues(node: LimitedNode) -> None:
    """Have very many queues with long names."""
    with node.connect() as client:
        for number in range(QUEUES):
            name = b"q" * 240 + b"%06d" % number
            client.sendall(b"SEND\ndestination:/queue/%b\n\nx\0" % name)
        client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert b"receipt-id:bye" in rest_of(client)


def test_scrapes_without_end_cost_the_clients_nothing(tmp_path: Path) -> None:
    """While many scrape and read little, a client is served, the lease is renewed, memory stays."""
    port = free_port()
    with (
        live_node(
            tmp_path, core=HEALTH.format(port=port), max_queues_per_connection=QUEUES
        ) as node,
        ExitStack() as stack,
    ):
        make_queues(node)
        body = get_in_the_end(port, "/metrics")
        assert len(body) < 3 * MIB
        assert b"orthia_queues_left_out %.1f\n" % (QUEUES - 1_000) in body
        witness = Witness(node)
        before = node.resident
        done: list[int] = []

        def scrape() -> None:
            for _ in range(ROUNDS):
                # A request of a very slow machine may be cut off for its time.
                with suppress(OSError, HTTPException):
                    assert len(get(port, "/metrics")) < 3 * MIB
                    done.append(1)

        for _ in range(300):  # they ask, and read nothing
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=240))
            silent.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        threads = [threading.Thread(target=scrape) for _ in range(SCRAPERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            witness.is_served()
        assert done
        assert node.resident - before < 64 * MIB
        assert get_in_the_end(port, "/ready") == b"live\n"
        assert b"orthia_takeovers_total 1.0" in get_in_the_end(port, "/metrics")
        wait_until(lambda: not sockets_of(node, port), what="the end of all sockets")


def sockets_of(node: LimitedNode, port: int) -> int:
    """Return how many connections the node has on ``port``."""
    wanted = f":{port:04X}"
    process = node.process
    assert process is not None
    rows = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
    fields = [row.split() for row in rows]
    established = ("01", "08")  # ESTABLISHED, CLOSE_WAIT
    own = set()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            own.add(entry.readlink().name)
    return sum(
        row[1].endswith(wanted) and row[3] in established and f"socket:[{row[9]}]" in own
        for row in fields
    )
