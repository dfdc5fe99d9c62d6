"""Clients of large messages on plain sockets: a body is made and checked as it passes."""

import hashlib
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import cast

MIB = 1024 * 1024
_CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\nheart-beat:0,0\n\n\0"
_BLOCK = random.Random(7).randbytes(MIB)


def body(size: int) -> Iterator[bytes]:
    """Yield a body of ``size`` bytes, no two MiB of it the same."""
    for number in range(0, size, MIB):
        part = number.to_bytes(8, "big") + _BLOCK[8:]
        yield part[: min(MIB, size - number)]


def digest(size: int) -> str:
    """Return the SHA-256 of ``body(size)``."""
    hashed = hashlib.sha256()
    for part in body(size):
        hashed.update(part)
    return hashed.hexdigest()


@dataclass
class Received:
    """A MESSAGE as it came."""

    headers: dict[str, str]
    size: int
    sha256: str


class LargeClient:
    """A STOMP client that holds no body in memory."""

    def __init__(self, port: int, timeout_seconds: float = 120) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self._stream = cast("BufferedReader", self.socket.makefile("rb", buffering=MIB))
        self.socket.sendall(_CONNECT)
        assert self.read_head()[0] == "CONNECTED"
        assert self._stream.read(1) == b"\0"

    def __enter__(self) -> "LargeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection."""
        self._stream.close()
        self.socket.close()

    def write(self, command: str, body: str = "", **headers: str | int) -> None:
        """Write a frame; header names have underscores for dashes."""
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        self.socket.sendall(f"{command}\n{lines}\n{body}\0".encode())

    def begin(self, destination: str, size: int | None, **headers: str | int) -> None:
        """Write the head of a SEND, without a content-length if ``size`` is None."""
        if size is not None:
            headers["content_length"] = size
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        self.socket.sendall(f"SEND\ndestination:{destination}\n{lines}\n".encode())

    def send(self, destination: str, size: int, **headers: str | int) -> None:
        """Send a message whose body is ``body(size)``."""
        self.begin(destination, size, **headers)
        for part in body(size):
            self.socket.sendall(part)
        self.socket.sendall(b"\0")

    def send_and_wait(self, destination: str, size: int, **headers: str | int) -> None:
        """Send a message and wait for its receipt."""
        self.send(destination, size, receipt="sent", **headers)
        assert self.receipt() == "sent"

    def subscribe(self, destination: str, ack: str = "client-individual") -> None:
        """Subscribe."""
        self.write("SUBSCRIBE", destination=destination, id="s", ack=ack)

    def read_head(self) -> tuple[str, dict[str, str]]:
        """Read command and headers of the next frame; EOFError if the connection was cut."""
        lines: list[str] = []
        while True:
            line = self._stream.readline()
            if not line:
                raise EOFError
            if line == b"\n" and lines:
                break
            if line != b"\n":
                lines.append(line.decode().rstrip("\n"))
        headers = dict(reversed([line.split(":", 1) for line in lines[1:]]))
        return lines[0], headers

    def receipt(self) -> str:
        """Read a RECEIPT and return its id."""
        command, headers = self.read_head()
        text = b"" if command == "RECEIPT" else self._stream.read(500)
        assert command == "RECEIPT", (command, headers, text)
        assert self._stream.read(1) == b"\0"
        return headers["receipt-id"]

    def error(self) -> str:
        """Read an ERROR and return its text."""
        command, headers = self.read_head()
        assert command == "ERROR", (command, headers)
        return headers["message"]

    def message(self) -> Received:
        """Read a MESSAGE; EOFError if the connection was cut within it."""
        command, headers = self.read_head()
        assert command == "MESSAGE", (command, headers)
        left = size = int(headers["content-length"])
        hashed = hashlib.sha256()
        while left:
            part = self._stream.read1(min(left, MIB))
            if not part:
                raise EOFError
            hashed.update(part)
            left -= len(part)
        if self._stream.read(1) != b"\0":
            raise EOFError
        return Received(headers, size, hashed.hexdigest())

    def acknowledge(self, message: Received) -> None:
        """Acknowledge a message and wait until that is stored."""
        self.write("ACK", id=message.headers["ack"], receipt="acked")
        assert self.receipt() == "acked"
