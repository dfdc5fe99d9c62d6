"""What the clients of a run did and saw, in the order in which they did."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self


class Kind(StrEnum):
    """What a client did (noted before it wrote to the socket) or saw (noted after it read)."""

    CONNECTED = "connected"
    LOST = "lost"
    SEND = "send"
    RECEIPT = "receipt"
    COMMIT = "commit"
    COMMITTED = "committed"
    ABORT = "abort"
    RECEIVE = "receive"
    ACK = "ack"
    ACKED = "acked"
    PUBLISH = "publish"
    """SEND to a topic."""
    HEARD = "heard"
    """A message of a topic came."""
    SUBSCRIBE = "subscribe"
    """SUBSCRIBE to a durable subscription, which makes it if it is not there."""
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBE = "unsubscribe"
    """UNSUBSCRIBE that ends a durable subscription."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one client."""

    kind: Kind
    client: str
    queue: str = ""
    body: str = ""
    """SEND, RECEIPT, RECEIVE, PUBLISH, HEARD: what names the message, ``producer/number``."""
    message_id: int = 0
    """RECEIVE, ACK, ACKED: the broker's name for this copy of the message."""
    transaction: str = ""
    """SEND, COMMIT, COMMITTED, ABORT: the client's name for the transaction, if any.

    HEARD: the subscriber's name for its connection.
    """
    redelivered: bool = False
    moved: str = ""
    """RECEIVE: why the message came from another queue than it was sent to; ``queue`` is that."""
    expires_at: float = 0.0
    """SEND: when the message expires, in seconds of the monotonic clock; 0 is never."""
    due_at: float = 0.0
    """SEND: not to be delivered before, in seconds of the monotonic clock; 0 is at once."""
    port: int = 0
    """CONNECTED: to which node."""
    at: float = 0.0
    """Seconds of the monotonic clock; the history sets it."""


class History:
    """Takes the operations of all clients, one after the other, and keeps them in a file."""

    def __init__(self, path: Path, listener: Callable[[Operation], None]) -> None:
        """Write to ``path``, one JSON object a line; ``listener`` hears each operation, in order.

        Nothing is kept in memory: a long run has millions of operations.
        """
        self._file = path.open("w", encoding="utf-8")
        self._listener = listener
        self._mutex = threading.Lock()

    def add(self, operation: Operation) -> None:
        """Note an operation, with the time of now."""
        with self._mutex:
            timed = replace(operation, at=time.monotonic())
            fields = {name: value for name, value in asdict(timed).items() if value}
            self._file.write(json.dumps(fields) + "\n")
            self._listener(timed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._mutex:
            self._file.close()


def read(path: Path) -> Iterator[Operation]:
    """Read a history file back; raises ValueError if a line is not an operation."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                yield Operation(**fields | {"kind": Kind(fields["kind"])})
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: not an operation: {error}") from None
