"""What all clients of a run have in common, and what bodies messages have.

Each client runs on a thread of its own, goes to whichever node serves, and notes all it does.
"""

import random
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from typing_extensions import override

from orthia.broker.client.connection import (
    BrokerAddress,
    BrokerRefused,
    Connection,
    ConnectionLost,
)
from tests.chaos.history import History, Kind, Operation

HEART_BEAT_MS = 500
CONNECT_SECONDS = 1.5
RETRY_SECONDS = 0.1
MAX_PADDING_BYTES = 4_096
LARGE = "large"
"""What the names of messages begin with whose bodies are stored outside of the journal."""
UPLOAD = "upload"
"""The same of messages so large that they take seconds to send."""
BULK = "bulk"
"""The same of messages that are just not large."""
GROUPS = 4
LANES = 3
_BULK_BYTES = 100_000
_LARGE_BYTES = range(150_000, 600_000)
_UPLOAD_BYTES = range(1_000_000, 4_000_000)


def body_of(name: str) -> bytes:
    """Return the whole body of the message ``name``: the name and a padding of its own."""
    seed = zlib.crc32(name.encode())
    if name.startswith(LARGE):
        size = _LARGE_BYTES[seed % len(_LARGE_BYTES)]
    elif name.startswith(UPLOAD):
        size = _UPLOAD_BYTES[seed % len(_UPLOAD_BYTES)]
    elif name.startswith(BULK):
        size = _BULK_BYTES
    else:
        size = seed % MAX_PADDING_BYTES if seed % 7 == 0 else seed % 200
    return f"{name} ".encode() + bytes([97 + seed % 26]) * size


def name_of(body: bytes) -> str:
    """Return the name of the message whose body this is, or one that nobody has ever sent."""
    name = body.partition(b" ")[0].decode(errors="replace")
    return name if body == body_of(name) else f"corrupt/{body[:60]!r}"


def number_of(name: str) -> int:
    """Return the number of the message ``name`` among those of its producer."""
    return int(name.rpartition("/")[2])


def group_of(name: str) -> str:
    """Return the group of the message ``name``, where messages have groups."""
    return f"group-{number_of(name) % GROUPS}"


def lane_of(name: str) -> int:
    """Return what selectors look at in the message ``name``."""
    return number_of(name) % LANES


class Given(NamedTuple):
    """What all clients of a run are given."""

    ports: Sequence[int]
    history: History
    seed: int


class Client(threading.Thread, ABC):
    """Connects, works until the connection is lost, and connects again."""

    def __init__(self, name: str, given: Given) -> None:
        super().__init__(name=name, daemon=True)
        self._ports = list(given.ports)
        self._history = given.history
        self._random = random.Random(f"{given.seed} {name}")
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self.failure: Exception | None = None
        """What ended the client before its time."""

    def note(self, kind: Kind, **what: object) -> None:
        """Add an operation to the history."""
        self._history.add(Operation(kind, self.name, **what))  # type: ignore[arg-type]

    def stop(self) -> None:
        """Have the client end as soon as nothing is left for it to do."""
        self._stopping.set()

    def abandon(self) -> None:
        """Have the client end at once."""
        self._abandoned.set()
        self._stopping.set()

    def hurry(self) -> None:
        """Crash no more and rest no more: what it receives is to become empty."""

    @override
    def run(self) -> None:
        try:
            while not self.is_done():
                self._work_once()
        except Exception as error:  # noqa: BLE001 - it is told with the result of the run
            self.failure = error

    def is_done(self) -> bool:
        """Tell whether a stopped client has nothing left to do."""
        return self._stopping.is_set()

    def _work_once(self) -> None:
        port = self._ports[0]
        if not self.visit(port):
            self._ports = [*self._ports[1:], port]
            self._stopping.wait(RETRY_SECONDS)

    @abstractmethod
    def visit(self, port: int) -> bool:
        """Work on a new connection until it is lost or all is done; False if there is no node."""


class StompClient(Client):
    """A client that speaks STOMP."""

    client_id: str | None = None
    """Whose durable subscriptions it uses."""

    @override
    def visit(self, port: int) -> bool:
        try:
            connection = Connection.open(
                BrokerAddress("127.0.0.1", port),
                client_id=self.client_id,
                timeout_seconds=CONNECT_SECONDS,
                heart_beat_ms=HEART_BEAT_MS,
            )
        except (ConnectionLost, BrokerRefused):
            return False
        with closing(connection):
            self.note(Kind.CONNECTED, port=port)
            with suppress(ConnectionLost, BrokerRefused):
                self.work(connection)
            self.note(Kind.LOST)
        return True

    @abstractmethod
    def work(self, connection: Connection) -> None:
        """Work on a new connection until it is lost (raise ConnectionLost) or all is done."""
