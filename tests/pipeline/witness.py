"""A client that notes when it was served: what the report of an outage is held against."""

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_ANSWER_SECONDS = 0.5
_RECEIPT_SECONDS = 3.0
"""A node that is slow to store a message serves; one that stands still is to be given up soon."""
_PAUSE_SECONDS = 0.01


@dataclass
class Witness(threading.Thread):
    """Sends a message and waits for its receipt, again and again, to whichever node answers.

    Times are seconds since 1970 by this machine's clock, which is also the database's.
    """

    ports: Sequence[int]
    served: list[tuple[float, float, int]] = field(default_factory=list)
    """When each message was sent, when its receipt came, and from which port."""
    failed: list[tuple[float, float, int]] = field(default_factory=list)
    """When each attempt began that got no receipt, when it was given up, and at which port."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Ask, until ``finish``."""
        number = 0
        while not self._ended.is_set():
            port = self.ports[number % len(self.ports)]
            number += 1
            begun = time.time()
            try:
                with socket.create_connection(("127.0.0.1", port), _ANSWER_SECONDS) as connection:
                    connection.settimeout(_ANSWER_SECONDS)
                    self._ask(
                        connection, b"CONNECT\naccept-version:1.2\nhost:x\n\n\0", b"CONNECTED"
                    )
                    connection.settimeout(_RECEIPT_SECONDS)
                    while not self._ended.is_set():
                        begun = time.time()
                        self._ask(connection, _SEND, b"RECEIPT")
                        self.served.append((begun, time.time(), port))
                        time.sleep(_PAUSE_SECONDS)
            except (OSError, EOFError):
                self.failed.append((begun, time.time(), port))
                time.sleep(_PAUSE_SECONDS)

    def _ask(self, connection: socket.socket, frame: bytes, expected: bytes) -> None:
        connection.sendall(frame)
        received = b""
        while b"\0" not in received:
            more = connection.recv(4096)
            if not more:
                raise EOFError
            received += more
        if not received.lstrip().startswith(expected):
            raise EOFError

    def finish(self) -> None:
        """Stop asking."""
        self._ended.set()
        self.join(120)


_SEND = b"SEND\ndestination:/queue/witness\nreceipt:1\npersistent:true\n\nhere\0"


@dataclass(frozen=True)
class Truth:
    """An outage as a client saw it: between when it began, between when it ended."""

    began: tuple[float, float]
    ended: tuple[float, float] | None

    def seconds(self, now: float) -> tuple[float, float]:
        """Return how long it was, or has been until ``now``, at least and at most."""
        begun, ended = self.began, self.ended or (now, now)
        return max(0.0, ended[0] - begun[1]), ended[1] - begun[0]


def seen(witness: Witness, after: float, before: float | None = None) -> Truth:
    """Return the first outage that the witness saw after ``after``.

    It began before ``before``, when the node was certainly gone, if that is known.
    """
    # When it was asked: its receipt may be noted late.
    last = max((asked for asked, receipt, _ in witness.served if receipt <= after), default=after)
    served = sorted(one for one in witness.served if one[1] > after)
    failed = sorted(witness.failed)
    for begun, ended, _ in failed:
        if ended <= after:
            continue
        earlier = [asked for asked, receipt, _ in served if receipt <= ended]
        last = max([last, *earlier])
        following = [one for one in served if one[0] > max(begun, last)]
        began = (last, ended if before is None else min(ended, before))
        if not following:
            return Truth(began, None)
        _, receipt, port = following[0]
        tried = [
            start
            for start, end, to in failed
            # What was not answered in time says nothing: whoever serves may be slow.
            if to == port and end <= receipt and end - start < _ANSWER_SECONDS
        ]
        return Truth(began, (max([*tried, began[0]]), receipt))
    raise AssertionError("the witness was served all the time")
