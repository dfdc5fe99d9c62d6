"""A node as a real process with limits of the test's choice, and clients that are plain sockets."""

import itertools
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from typing_extensions import override

from orthia.config.settings import Role
from tests.process.file_nodes import FileNodeProcess
from tests.support.openssl_errors import forget_openssl_errors
from tests.support.turns import ENVIRONMENT, SAID, limit_seconds
from tests.support.waiting import wait_until

CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
MIB = 1024 * 1024


@dataclass
class LimitedNode(FileNodeProcess):
    """A live node on SQLite, with limits of the test's choice.

    Its lease is long: a machine that stands still for half a minute does not end it.
    """

    lease: ClassVar[str] = "<jdbc-lock-expiration>300000</jdbc-lock-expiration>"
    parameters: str = ""
    """Of its acceptor, behind one."""
    limits: dict[str, int] = field(default_factory=dict)
    global_max_size: int = 64 * MIB
    descriptors: int | None = None
    sockets: ExitStack = field(default_factory=ExitStack)
    """What was opened, to be closed at the end."""

    def __post_init__(self) -> None:
        self.parameters = f"?protocols=STOMP{self.parameters}"
        self.environment = {ENVIRONMENT: str(limit_seconds()), **self.environment}
        if self.descriptors:
            self.before_start = self._limit_descriptors

    @property
    @override
    def config_path(self) -> Path:
        return self.directory / "broker.xml"

    @override
    def elements(self) -> str:
        limits = "".join(
            f"<{name.replace('_', '-')}>{value}</{name.replace('_', '-')}>"
            for name, value in self.limits.items()
        )
        return (
            f"<global-max-size>{self.global_max_size}</global-max-size>"
            f'<stomp-limits xmlns="urn:orthia">{limits}</stomp-limits>{self.core}'
        )

    def _limit_descriptors(self) -> None:
        most = self.descriptors or 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    @property
    def resident(self) -> int:
        """Bytes of memory the process has at the moment."""
        for line in Path(f"/proc/{self._running().pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the process is gone")

    @property
    def processor_seconds(self) -> float:
        """How much time of processors the process has taken."""
        stat = Path(f"/proc/{self._running().pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        """Open a socket to the node, from an address of this machine."""
        return self.sockets.enter_context(
            socket.create_connection(
                ("127.0.0.1", self.port), timeout=120, source_address=(source, 0)
            )
        )

    def connect(self) -> socket.socket:
        """Open a socket and say CONNECT."""
        client = self.open()
        client.sendall(CONNECT)
        assert client.recv(4096).startswith(b"CONNECTED")
        return client


@contextmanager
def live_node(
    directory: Path,
    *,
    global_max_size: int = 64 * MIB,
    parameters: str = "",
    core: str = "",
    descriptors: int | None = None,
    **limits: int,
) -> Iterator[LimitedNode]:
    """Run a node for the block; at its end it must still run, and nothing unexpected be logged.

    Nor may a turn of its loop have taken longer than clients may be kept waiting.
    """
    node = LimitedNode(
        Role.LIVE,
        f"jdbc:sqlite:{directory / 'orthia.db'}",
        directory,
        "live",
        limits=limits,
        global_max_size=global_max_size,
        parameters=parameters,
        core=core,
        descriptors=descriptors,
    )
    try:
        node.start().wait_serving()
        yield node
        assert node.is_running, node.log
        assert "Traceback" not in node.log, node.log
        assert SAID not in node.log, node.log
    finally:
        node.sockets.close()
        node.end()


class Connects(Protocol):
    """A node, however it is spoken to."""

    def connect(self) -> socket.socket:
        """Log in."""

    @property
    def log(self) -> str:
        """What it has logged."""


class Witness:
    """An ordinary client, which must be served whatever the others do."""

    _numbers = itertools.count(1)

    def __init__(self, node: Connects) -> None:
        self._node = node
        self._socket = node.connect()
        self._queue = b"/queue/witness-%d" % next(self._numbers)
        self._count = 0
        self._data = bytearray()
        self._socket.sendall(b"SUBSCRIBE\nid:w\ndestination:%b\nack:auto\n\n\0" % self._queue)

    def is_served(self) -> None:
        """Send a message, and get its receipt and the message itself."""
        forget_openssl_errors()  # of those who mean harm
        self._count += 1
        body, receipt = b"witness-%d!" % self._count, b"receipt-id:w%d\n" % self._count
        self._socket.sendall(
            b"SEND\ndestination:%b\nreceipt:w%d\n\n%b\0" % (self._queue, self._count, body)
        )
        while body not in self._data or receipt not in self._data:
            self._data += self._receive()
        self._data.clear()

    def _receive(self) -> bytes:
        try:
            chunk, why = self._socket.recv(65_536), "an end"
        except OSError as error:
            chunk, why = b"", repr(error)
        assert chunk, (
            f"the witness had {why} after {bytes(self._data[-500:])!r}; the node's log:\n"
            f"{self._node.log}"
        )
        return chunk


def rest_of(client: socket.socket) -> bytes:
    """Read until the broker closes, or cuts the connection off."""
    data = b""
    try:
        while chunk := client.recv(65_536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def pour(client: socket.socket, frame: bytes, most: int) -> int:
    """Send ``frame`` up to ``most`` times, reading nothing; return how often it was taken.

    It ends before that when the broker cuts the connection off, or takes nothing for the socket's
    time-out.
    """
    for sent in range(most):
        try:
            client.sendall(frame)
        except (TimeoutError, ConnectionError, ssl.SSLEOFError):
            return sent
    return most


def logged(node: LimitedNode, text: str) -> None:
    """Wait until the node has logged ``text``."""
    wait_until(lambda: text in node.log, what=f"{text!r} in the log")
