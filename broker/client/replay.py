"""Sends selected messages again, each exactly once, through failovers and crashes of the sender.

The broker keeps the state: each chunk of messages is one STOMP transaction, which includes a
*marker*, a message to the replay's own queue that says how far it is. Chunk and marker are stored
together or not at all, so the marker is right whenever the sender, the node or both die. On every
connection the sender first reads the markers::

    SUBSCRIBE to the markers' queue, SEND a probe to it, and read what comes up to the probe
    BEGIN, ACK all that was read, SEND one marker with the highest place, COMMIT

Each marker carries a proof that this replay wrote it: ``orthia.broker.client.checkpoint``. One
without a proof is removed and ignored; but if this replay has no checkpoint yet, it ends the
replay, since it may come from a host that has one.

So that a resume has few markers to read, however many chunks there were, the sender does the same
every few hundred chunks, and at the end: then there is one.

A queue keeps its order, so no older marker can come after the probe. Markers that a dead connection
of this sender held are back in the queue by the time its node serves the next one, since a session
ends with its socket; only a network cut that neither side noticed could hold a marker back, and
then the place in the sender's own memory counts as well.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orthia.broker.client.abc import Notes
from orthia.broker.client.checkpoint import Proofs
from orthia.broker.client.connection import (
    BrokerRefused,
    ClientError,
    Connection,
    ConnectionLost,
    ServerFrame,
)
from orthia.broker.client.failover import FailoverLink
from orthia.broker.core.destinations import REPLAYS
from orthia.broker.protocols.stomp.headers import resendable
from orthia.broker.quoting import quoted

_PLACE: Final = "orthia-replayed-through"
_PROOF: Final = "orthia-replay-mac"
_PROBE: Final = "orthia-replay-probe"
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_ANSWER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_MOST_MARKERS: Final = 500
"""Markers of one run that may be in their queue before they are merged into one."""
_MOST_UNPROVEN: Final = 1_000
"""Markers without a proof that are read before the replay ends because of them."""


class UnprovenMarkers(BrokerRefused):
    """The broker has markers of this replay's name without a proof that they are its own."""


@dataclass(frozen=True)
class ReplayMessage:
    """A message to be sent again; its ``place`` is unique and orders the messages."""

    place: int
    destination: str
    headers: Mapping[str, str]
    body: bytes
    large: "LargePieces | None" = None
    """The body of a large message, in place of ``body``."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) if self.large is None else self.large.size


@dataclass(frozen=True)
class LargePieces:
    """A body that is read piece by piece while it is sent."""

    size: int
    pieces: Callable[[], Iterable[bytes]]
    """Raises OrthiaError before the last one if the body cannot be read: it is then not sent."""


@dataclass
class ReplayReport:
    """The outcome of a replay."""

    sent: int = 0
    """Messages whose chunk was committed in this run."""
    through: int = 0
    """The place up to which everything is sent, by this run or an earlier one."""
    elapsed_seconds: float = 0.0


class Replay:
    """Sends messages in order of their place; a replay of the same name resumes where it was."""

    def __init__(
        self,
        link: FailoverLink,
        name: str,
        messages: Callable[[int], Iterable[ReplayMessage]],
        *,
        checkpoint: Proofs,
        notes: Notes | None = None,
        rate: float | None = None,
        chunk: int = 100,
        on_sent: Callable[[int], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Send what ``messages(through)`` gives: all those above a place, in order.

        ``checkpoint`` proves the markers, and ``notes`` are the texts in them; ``say`` prints what
        was found among them; ``rate`` is messages a second; ``on_sent`` gets the size of each
        committed chunk.
        """
        self._link = link
        self._checkpoint = checkpoint
        self._notes = notes
        self._say = say
        self._queue = f"/queue/{REPLAYS}.{name}"
        self._messages = messages
        self._rate = rate
        self._chunk = chunk
        self._on_sent = on_sent
        self._transactions = 0
        self._markers = 0
        """How many are in their queue since it was last read; the newest one suffices."""
        self.report = ReplayReport()

    def run(self) -> ReplayReport:
        """Send everything; raises BrokerUnreachable, BrokerRefused, ClientError, OSError.

        OSError if the checkpoint cannot be written: then nothing was sent.
        """
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
        connection.send("SUBSCRIBE", {**subscription, "prefetch-count": "10000"})
        connection.send("SEND", {"destination": self._queue, _PROBE: probe})
        newest: tuple[int, str] | None = None
        """Place and ack id of the marker with the highest place."""
        noted: dict[int, str] = {}
        probed = ""
        unproven: list[str] = []
        for frame in self._frames(connection):
            if frame.command != "MESSAGE":
                continue
            if frame.headers.get(_PROBE) == probe:
                probed = frame.headers["ack"]
                break
            place = frame.headers.get(_PLACE)
            if place is not None and self._checkpoint.proves(place, frame.headers.get(_PROOF, "")):
                # Only the newest stays unacknowledged: no other is needed.
                one = (int(place), frame.headers["ack"])
                noted[one[0]] = _note_in(frame.body)
                if newest is not None:
                    connection.send("ACK", {"id": min(newest, one)[1]})
                newest = one if newest is None else max(newest, one)
                continue
            if place is not None:
                unproven.append(place)
                if self._checkpoint.is_new:
                    if len(unproven) >= _MOST_UNPROVEN:
                        break
                    continue
            connection.send("ACK", {"id": frame.headers["ack"]})
        if unproven:
            self._refuse_or_tell(unproven)
        self._checkpoint.keep()
        if newest is not None:
            self.report.through = max(self.report.through, newest[0])
            if self._notes is not None:
                self._notes.found(newest[0], noted[newest[0]])
        with_markers = self._begin(connection)
        for ack in (probed, newest[1]) if newest is not None else (probed,):
            connection.send("ACK", {"id": ack, "transaction": with_markers})
        self._commit(connection, with_markers)
        self._markers = 1
        connection.send("UNSUBSCRIBE", {"id": "markers"})

    def _refuse_or_tell(self, unproven: Sequence[str]) -> None:
        """Say what unproven markers were removed; raises UnprovenMarkers without a checkpoint.

        Then they may be this replay's own, from another host.
        """
        found = (
            f"{len(unproven)} markers in {self._queue} that {self._checkpoint.file} does not prove"
        )
        if not self._checkpoint.is_new:
            self._say(f"removed {found}: another client planted them, and they are ignored")
            return
        highest = max(unproven, key=lambda place: (len(place), place))
        raise UnprovenMarkers(
            f"there are {found}; the highest says that all up to id {quoted(highest[:40])} was"
            " sent. Nothing was sent now. If a replay of this name ran on another host, as another"
            " user or with an older Orthia, that may be true: go on with its file as --checkpoint,"
            " or under another --name with --where 'id > ...' for what it did not send. If none"
            " did, somebody planted them: take another --name, and see who may send to"
            " orthia.replay.#"
        )

    def _send_rest(self, connection: Connection, started: float) -> None:
        begun = self.report.sent
        for chunk in _chunks(self._messages(self.report.through), self._chunk):
            transaction = self._begin(connection)
            for message in chunk:
                headers = {
                    **resendable(message.headers),
                    "destination": message.destination,
                    "content-length": str(message.size),
                    "transaction": transaction,
                }
                if message.large is None:
                    connection.send("SEND", headers, message.body)
                else:
                    connection.send_pieces("SEND", headers, message.large.pieces())
            through = chunk[-1].place
            self._commit(connection, transaction, through)
            self.report.through = through
            self.report.sent += len(chunk)
            self._on_sent(len(chunk))
            self._markers += 1
            if self._markers > _MOST_MARKERS:
                self._find_place(connection)
            self._keep_rate(connection, started, self.report.sent - begun)
        if self._markers > 1:
            self._find_place(connection)

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
        """Send the marker, commit it with the messages, and wait for the receipt."""
        place = self.report.through if through is None else through
        marker = {"destination": self._queue, "transaction": name}
        marker |= {_PLACE: str(place), _PROOF: self._checkpoint.proof(place)}
        text: dict[str, object] = {"through": place}
        if self._notes is not None:
            text["note"] = self._notes.at(place)
        connection.send("SEND", marker, json.dumps(text).encode())
        connection.send("COMMIT", {"transaction": name, "receipt": name})
        for frame in self._frames(connection):
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == name:
                return

    def _frames(self, connection: Connection) -> Iterator[ServerFrame]:
        """Yield the broker's frames; raises ClientError when it is silent for too long."""
        heard = time.monotonic()
        while time.monotonic() < heard + _ANSWER_SECONDS:
            for frame in connection.exchange(_POLL_SECONDS):
                heard = time.monotonic()
                yield frame
        raise ClientError(f"{connection.address}: no answer for {_ANSWER_SECONDS:g} s")


def _note_in(body: bytes) -> str:
    try:
        return str(json.loads(body)["note"])
    except (ValueError, KeyError, TypeError):
        return ""


def _chunks(messages: Iterable[ReplayMessage], count: int) -> Iterator[list[ReplayMessage]]:
    chunk: list[ReplayMessage] = []
    size = 0
    for message in messages:
        if chunk and (len(chunk) >= count or size + message.size > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += message.size
    if chunk:
        yield chunk
