"""An ordinary client: every 50 ms it sends a message to a queue of its own, and takes it.

    python -m benchmarks.witness PORT

Writes a line for each round trip: when it began, by the monotonic clock, and its seconds. It ends
with a line of its own when the broker closes its connection.

    python -m benchmarks.witness --machine

Writes the same lines without a broker: by how much a sleep of 5 ms was late. That long the machine
kept any process waiting for a processor.

    python -m benchmarks.witness --disk FILE

Writes the same lines of a page that it writes to a file and waits for, every 50 ms.
"""

import os
import socket
import sys
import time

SOURCE = "127.0.0.2"
"""Its address: limits of one address do not bound it and others together."""
PERIOD_SECONDS = 0.05
MACHINE = "--machine"
DISK = "--disk"
_PAGE_BYTES = 4_096
_SLEEP_SECONDS = 0.005


def connect(port: int) -> socket.socket:
    """Log in and subscribe."""
    client = socket.create_connection(("127.0.0.1", port), timeout=600, source_address=(SOURCE, 0))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    until(client, b"\0")
    client.sendall(b"SUBSCRIBE\nid:w\ndestination:/queue/witness\nack:auto\n\n\0")
    return client


def until(client: socket.socket, *wanted: bytes) -> None:
    """Read until all of ``wanted`` came."""
    data = b""
    while not all(one in data for one in wanted):
        chunk = client.recv(65_536)
        if not chunk:
            raise ConnectionError(f"closed after {data[-300:]!r}")
        data += chunk


def sleep() -> None:
    """Sleep until the process is ended."""
    while True:
        began = time.monotonic()
        time.sleep(_SLEEP_SECONDS)
        print(f"{began:.3f} {time.monotonic() - began - _SLEEP_SECONDS:.4f}", flush=True)


def write(path: str) -> None:
    """Write until the process is ended."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    while True:
        began = time.monotonic()
        os.pwrite(file, os.urandom(_PAGE_BYTES), 0)
        os.fsync(file)
        print(f"{began:.3f} {time.monotonic() - began:.4f}", flush=True)
        time.sleep(PERIOD_SECONDS)


def main() -> None:
    """Do what the arguments say until the process is ended."""
    if sys.argv[1] == MACHINE:
        sleep()
    if sys.argv[1] == DISK:
        write(sys.argv[2])
    client = connect(int(sys.argv[1]))
    number = 0
    while True:
        number += 1
        began = time.monotonic()
        client.sendall(
            b"SEND\ndestination:/queue/witness\nreceipt:w%d.\n\nbody%d.\0" % (number, number)
        )
        until(client, b"body%d." % number, b"receipt-id:w%d." % number)
        print(f"{began:.3f} {time.monotonic() - began:.4f}", flush=True)
        time.sleep(PERIOD_SECONDS)


if __name__ == "__main__":
    main()
