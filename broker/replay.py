"""Sending selected messages again, each exactly once, through failovers and crashes of the sender.

What is remembered is remembered by the broker: each chunk of messages is one STOMP transaction, and
with them goes a *marker*, a message to a queue of the replay's own that says how far it is. Chunk
and marker are stored together or not at all, so the marker is right whoever died when: the sender,
the node or both. On every connection the sender first asks for the markers::

    SUBSCRIBE to the markers' queue, SEND a probe to it, and take what comes up to the probe
    BEGIN, ACK all that was taken, SEND one marker with the highest place, COMMIT

A queue keeps its order, so no older marker can come after the probe. What a dead connection of
this sender still held, its node has taken back by the time it serves the next one, for a session
ends with its socket; only a network that is cut without either side noticing could hold a marker
back, and then the place in the sender's own memory counts as well.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.client import ClientError, Connection, ConnectionLost, FailoverLink, ServerFrame
from broker.core.destinations import REPLAYS
from broker.stomp.headers import resendable

_PLACE: Final = "orthia-replayed-through"
_PROBE: Final = "orthia-replay-probe"
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_ANSWER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ReplayMessage:
    """A message to be sent again; ``place`` orders the messages and is never repeated."""

    place: int
    destination: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class ReplayReport:
    """What came of it."""

    sent: int = 0
    """Messages whose chunk was committed in this run."""
    through: int = 0
    """The place up to which everything is sent, by this run or one before it."""
    elapsed_seconds: float = 0.0


class Replay:
    """Sends messages in order of their place; a replay of the same name goes on where it was."""

    def __init__(
        self,
        link: FailoverLink,
        name: str,
        messages: Callable[[int], Iterable[ReplayMessage]],
        *,
        rate: float | None = None,
        chunk: int = 100,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Send what ``messages(through)`` gives: all those above a place, in order.

        ``rate`` is messages a second; ``on_sent`` gets the size of each chunk that is committed.
        """
        self._link = link
        self._queue = f"/queue/{REPLAYS}.{name}"
        self._messages = messages
        self._rate = rate
        self._chunk = chunk
        self._on_sent = on_sent
        self._transactions = 0
        self.report = ReplayReport()

    def run(self) -> ReplayReport:
        """Send everything; raises BrokerUnreachable, BrokerRefused, ClientError."""
        started = time.monotonic()
        done = False
        try:
            while not done:
                connection = self._link.connect()
                try:
                    self._find_place(connection)
                    self._send_rest(connection, started)
                    done = True
                except ConnectionLost as error:
                    self._link.lost(error, self.report.sent)
                finally:
                    connection.close()
        finally:
            self.report.elapsed_seconds = time.monotonic() - started
        return self.report

    def _find_place(self, connection: Connection) -> None:
        probe = uuid.uuid4().hex
        subscription = {"id": "markers", "destination": self._queue, "ack": "client-individual"}
        # All markers at once: none is acknowledged before all are here.
        connection.send("SUBSCRIBE", {**subscription, "prefetch-count": "10000"})
        connection.send("SEND", {"destination": self._queue, _PROBE: probe})
        taken: list[ServerFrame] = []
        for frame in self._frames(connection):
            if frame.command == "MESSAGE":
                taken.append(frame)
                if frame.headers.get(_PROBE) == probe:
                    break
        places = [int(frame.headers.get(_PLACE, "0")) for frame in taken]
        self.report.through = max(self.report.through, *places)
        with_markers = self._begin(connection)
        for frame in taken:
            connection.send("ACK", {"id": frame.headers["ack"], "transaction": with_markers})
        self._commit(connection, with_markers)
        connection.send("UNSUBSCRIBE", {"id": "markers"})

    def _send_rest(self, connection: Connection, started: float) -> None:
        begun = self.report.sent
        for chunk in _chunks(self._messages(self.report.through), self._chunk):
            transaction = self._begin(connection)
            for message in chunk:
                headers = {
                    **resendable(message.headers),
                    "destination": message.destination,
                    "content-length": str(len(message.body)),
                    "transaction": transaction,
                }
                connection.send("SEND", headers, message.body)
            through = chunk[-1].place
            self._commit(connection, transaction, through)
            self.report.through = through
            self.report.sent += len(chunk)
            self._on_sent(len(chunk))
            self._keep_rate(connection, started, self.report.sent - begun)

    def _keep_rate(self, connection: Connection, started: float, sent: int) -> None:
        if self._rate is None:
            return
        due = started + sent / self._rate
        while (early_seconds := due - time.monotonic()) > 0:
            connection.exchange(min(early_seconds, _POLL_SECONDS))

    def _begin(self, connection: Connection) -> str:
        self._transactions += 1
        name = f"replay-{self._transactions}"
        connection.send("BEGIN", {"transaction": name})
        return name

    def _commit(self, connection: Connection, name: str, through: int | None = None) -> None:
        """Send the marker with what was sent, and wait until both are stored."""
        place = self.report.through if through is None else through
        marker = {"destination": self._queue, "transaction": name, _PLACE: str(place)}
        connection.send("SEND", marker, json.dumps({"through": place}).encode())
        connection.send("COMMIT", {"transaction": name, "receipt": name})
        for frame in self._frames(connection):
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == name:
                return

    def _frames(self, connection: Connection) -> Iterator[ServerFrame]:
        """Yield what the broker says; raises ClientError when it is silent for too long."""
        heard = time.monotonic()
        while time.monotonic() < heard + _ANSWER_SECONDS:
            for frame in connection.exchange(_POLL_SECONDS):
                heard = time.monotonic()
                yield frame
        raise ClientError(f"{connection.address}: no answer for {_ANSWER_SECONDS:g} s")


def _chunks(messages: Iterable[ReplayMessage], count: int) -> Iterator[list[ReplayMessage]]:
    chunk: list[ReplayMessage] = []
    size = 0
    for message in messages:
        if chunk and (len(chunk) >= count or size + len(message.body) > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += len(message.body)
    if chunk:
        yield chunk
