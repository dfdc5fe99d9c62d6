"""STOMP load that costs the machine little: constant frames, answers counted by their NUL.

Every producer sends the same SEND with the same receipt id, so that the measurement is of the
broker and not of its client. The broker does the same work as for different ids.
"""

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.floors import BODY

_CHUNK = 262_144


class LoadError(Exception):
    """The broker answered with an ERROR frame, or not at all."""


class Run(NamedTuple):
    """How many messages were sent or consumed, or clients connected, in how many seconds."""

    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """How many a second."""
        return self.messages / self.seconds


class Client:
    """One connection, non-blocking once it is connected."""

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        client_id: str = "",
        greeting: tuple[bytes, bytes] | None = None,
    ) -> None:
        """With a ``greeting``, what is said first and how the answer begins, it is no STOMP."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        said = f"client-id:{client_id}\n" if client_id else ""
        connect = f"CONNECT\naccept-version:1.2\nhost:bench\n{said}\n\0".encode()
        first, expected = greeting or (connect, b"CONNECTED")
        self.socket.sendall(first)
        answer = self.socket.recv(_CHUNK)
        if not answer.startswith(expected):
            raise LoadError(f"the broker answered {answer[:200]!r}")
        self.socket.settimeout(0)
        self._out = b""

    def send(self, data: bytes) -> None:
        """Send as much as the socket takes; ``flush`` sends the rest."""
        self._out += data
        self.flush()

    def flush(self) -> None:
        """Send as much of the waiting bytes as the socket takes."""
        while self._out:
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            self._out = self._out[sent:]

    @property
    def waits_to_write(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._out)

    def receive(self) -> bytes:
        """Return the bytes that can be read now."""
        try:
            data = self.socket.recv(_CHUNK)
            # The socket does not tell of bytes that are decrypted already.
            while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                data += self.socket.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        if not data:
            raise LoadError("the broker closed the connection")
        if data.startswith(b"ERROR") or b"\0ERROR\n" in data or b"\nERROR\n" in data:
            raise LoadError(data[-2000:].decode(errors="replace"))
        return data


@contextmanager
def clients(port: int, count: int, tls: ssl.SSLContext | None = None) -> Iterator[list[Client]]:
    """Connect ``count`` clients, with ``tls`` if it is given; close them with the block."""
    connected = [Client(port, tls) for _ in range(count)]
    try:
        yield connected
    finally:
        for client in connected:
            client.socket.close()


def produce(
    port: int,
    queue: str,
    *,
    producers: int,
    outstanding: int,
    seconds: float,
    tls: ssl.SSLContext | None = None,
    headers: str = "",
) -> Run:
    """Send by ``producers``, each with ``outstanding`` messages unanswered, for some seconds.

    ``headers`` are those of every message beside what it needs.
    """
    frame = _frame(queue, headers)
    if producers == outstanding == 1:
        return _produce_one_by_one(port, frame, seconds, tls)
    receipted = 0
    with clients(port, producers, tls) as connected:
        began = time.perf_counter()
        ends = began + seconds
        unanswered = dict.fromkeys(connected, outstanding)
        for client in connected:
            client.send(frame * outstanding)

        def answered(client: Client, data: bytes) -> None:
            nonlocal receipted
            count = data.count(b"\0")
            receipted += count
            unanswered[client] -= count
            if time.perf_counter() < ends:
                unanswered[client] += count
                client.send(frame * count)

        pump(connected, answered, lambda: not any(unanswered.values()))
        return Run(receipted, time.perf_counter() - began)


def _frame(queue: str, headers: str = "") -> bytes:
    said = f"{headers}receipt:r\ncontent-length:{len(BODY)}"
    head = f"SEND\ndestination:/queue/{queue}\n{said}\n\n"
    return head.encode() + BODY + b"\0"


def _produce_one_by_one(port: int, frame: bytes, seconds: float, tls: ssl.SSLContext | None) -> Run:
    """Send and wait in the plainest way: the client's own time is a part of every round trip."""
    with clients(port, 1, tls) as (client,):
        client.socket.settimeout(30)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            client.socket.sendall(frame)
            if not client.socket.recv(_CHUNK).startswith(b"RECEIPT"):
                raise LoadError("the broker sent something else than a receipt")
            count += 1
        return Run(count, time.perf_counter() - began)


def fill(port: int, queue: str, count: int, *, headers: str | Callable[[int], str] = "") -> None:
    """Send ``count`` messages and wait for all receipts.

    ``headers`` are those of every message, or a function of its number.
    """

    def frames(numbers: range, receipt: str = "") -> bytes:
        if isinstance(headers, str):
            return frame(headers, receipt) * len(numbers)
        return b"".join([frame(headers(number), receipt) for number in numbers])

    def frame(said: str, receipt: str) -> bytes:
        head = f"SEND\ndestination:/queue/{queue}\n{said}{receipt}content-length:{len(BODY)}\n\n"
        return head.encode() + BODY + b"\0"

    step = 500
    with clients(port, 1) as (client,):
        receipts = 0
        for first in range(0, count, step):
            last = min(first + step, count) - 1
            client.send(frames(range(first, last)))
            client.send(frames(range(last, last + 1), "receipt:last\n"))

            def answered(_: Client, data: bytes) -> None:
                nonlocal receipts
                receipts += data.count(b"\0")

            # Two batches are under way, so that the broker never waits for this client.
            wanted = first // step
            pump([client], answered, lambda wanted=wanted: receipts >= wanted)  # type: ignore[misc]
        pump([client], answered, lambda: receipts >= -(-count // step))


def consume(
    port: int,
    queue: str,
    count: int,
    *,
    ack: str,
    selector: str = "",
    tls: ssl.SSLContext | None = None,
) -> Run:
    """Take ``count`` messages from a queue by one consumer."""
    asked = f"selector:{selector}\n" if selector else ""
    received = 0
    with clients(port, 1, tls) as (client,):
        began = time.perf_counter()
        client.send(
            f"SUBSCRIBE\ndestination:/queue/{queue}\nid:s\nack:{ack}\n{asked}"
            "prefetch-count:2000\n\n\0".encode()
        )
        tail = b""

        def answered(taker: Client, data: bytes) -> None:
            nonlocal received, tail
            received += data.count(b"\0")
            if ack == "client":
                data = tail + data
                whole = data.rfind(b"\0")
                at = data.rfind(b"\nack:", 0, whole)
                if at >= 0:
                    acknowledged = data[at + 5 : data.index(b"\n", at + 5)]
                    taker.send(b"ACK\nid:%b\n\n\0" % acknowledged)
                tail = data[whole + 1 :]

        pump([client], answered, lambda: received >= count)
        # The receipt of DISCONNECT comes after all acknowledgements are stored.
        client.send(b"DISCONNECT\nreceipt:bye\n\n\0")
        pump([client], answered, lambda: received > count)
        return Run(count, time.perf_counter() - began)


def pump(
    connected: list[Client],
    answered: Callable[[Client, bytes], None],
    is_done: Callable[[], bool],
    silence_seconds: float = 60,
) -> None:
    """Read and write until ``is_done``; raises LoadError when nothing happens for too long."""
    with selectors.DefaultSelector() as selector:
        for client in connected:
            selector.register(client.socket, selectors.EVENT_READ, client)
        while not is_done():
            for client in connected:
                wanted = selectors.EVENT_READ
                if client.waits_to_write:
                    wanted |= selectors.EVENT_WRITE
                if selector.get_key(client.socket).events != wanted:
                    selector.modify(client.socket, wanted, client)
            ready = selector.select(silence_seconds)
            if not ready:
                raise LoadError(f"the broker did nothing for {silence_seconds:.0f} s")
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                if events & selectors.EVENT_READ and (data := key.data.receive()):
                    answered(key.data, data)
