"""What clients of a simulated process do with large messages, and how its queue is read through.

Only in some worlds: the others are what they were without it, seed by seed.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from orthia.config.errors import OrthiaError
from orthia.database import PermanentStoreError
from orthia.journal import JournalClosed
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.journal import MessageJournal
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import LargeBody, Message, decode_message, encode_message
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import Window
from tests.simulation.tables import PIECES, Violation

if TYPE_CHECKING:
    from tests.simulation.node import Node

_LARGE_PROBABILITY = 0.2
_LONGEST_SMALL_BYTES = 20
_BODY = bytes((PIECES - 1) * PIECE_BYTES + 1)
_READ_PERIOD_SECONDS = 2.0
_WINDOW_MESSAGES = 5
ANSWER_WITHIN_SECONDS = 20.0
"""From a question to its answer, once nothing goes wrong any more."""


class Large:
    """The large messages of one process, on its loop."""

    def __init__(self, node: "Node", journal: MessageJournal, queue_id: int) -> None:
        self._node = node
        self._world = node.world
        self._journal = journal
        assert journal.large is not None
        self._large = journal.large
        self._queue_id = queue_id
        self._bodies: dict[int, LargeBody] = {}
        """By the message's seq."""
        self._asked: deque[tuple[int, float]] = deque()
        """What windows were asked for behind, and when."""

    def recovered(self, seq: int, payload: bytes) -> None:
        """Take note of a message that is there from before."""
        if len(payload) > _LONGEST_SMALL_BYTES:
            self._bodies[seq] = _body_in(payload)

    def location(self, seq: int) -> MessageLocation:
        """Return where a message is."""
        body = self._bodies.get(seq)
        return MessageLocation(seq, None, None if body is None else body.id)

    # --- in

    def takes_next(self) -> bool:
        """Return whether the next message is large."""
        return self._world.has_large and self._world.random.random() < _LARGE_PROBABILITY

    def upload(self, stored: Callable[[int], None]) -> None:
        """Take a body, and send its message; raises JournalClosed."""

        def done(outcome: LargeBody | OrthiaError) -> None:
            if isinstance(outcome, OrthiaError):
                self._refused(outcome)
                return
            try:
                self._send(outcome, stored)
            except JournalClosed:
                return  # the client sends again, to another

        upload = self._large.upload(lambda: None, done)
        upload.add(_BODY)
        upload.finish()

    def _send(self, body: LargeBody, stored: Callable[[int], None]) -> None:
        place: list[int] = []

        def done() -> None:
            self._large.unpin(body.id)
            stored(place[0])

        def refused(_: OrthiaError) -> None:
            self._large.unpin(body.id)  # the client is told, and sends again

        unit = Unit(done)
        unit.refused = refused
        unit.add_message([self._queue_id], encode_message(Message("", b"", b"", 0, 0, 4, body)))
        place.append(self._journal.append_unit(unit)[0].seq)
        self._bodies[place[0]] = body
        self._world.give_out(place[0])

    # --- out

    def deliver(self, seq: int) -> None:
        """Read the body of a message, piece by piece, if it has one."""
        body = self._bodies.get(seq)
        if body is not None:
            self._large.pin(body.id)
            self._read(seq, body, 0, 0)

    def _read(self, seq: int, body: LargeBody, position: int, checksum: int) -> None:
        def done(answer: tuple[bytes, int] | OrthiaError) -> None:
            if isinstance(answer, OrthiaError):
                self._refused(answer)
            elif position < PIECES - 1:
                self._read(seq, body, position + 1, answer[1])
                return
            elif answer[1] != body.checksum:
                raise Violation(f"the body of message {seq} is not what it was")
            self._large.unpin(body.id)

        self._large.read(body.id, position, checksum, done)

    # --- reading on

    def read_through(self) -> None:
        """Ask for a window of the queue, now and then."""
        if self._node.life.is_over or not self._world.has_large:
            return
        if self._node.is_open:
            self._ask()
        self._world.engine.after(
            _READ_PERIOD_SECONDS, self._node.loop.call_soon_threadsafe, self.read_through
        )

    def _ask(self) -> None:
        journal, world = self._journal, self._world
        up_to = journal.last_committed_seq
        after = max(0, up_to - world.random.randrange(60))
        acknowledged = set(world.acknowledged)
        self._asked.append((after, world.now))

        def read(window: Window | OrthiaError) -> None:
            if self._asked.popleft()[0] != after:
                raise Violation("windows are answered in another order than they were asked for")
            if isinstance(window, OrthiaError):
                self._refused(window)
                return
            seqs = [message.seq for message in window.messages]
            if seqs != sorted(set(seqs)) or not all(after < seq <= up_to for seq in seqs):
                raise Violation(f"{seqs} were read behind {after}, up to {up_to}")
            if not acknowledged.isdisjoint(seqs):
                raise Violation(f"{seqs} were read, of which some were acknowledged before")

        try:
            journal.read_window(self._queue_id, after, up_to, _WINDOW_MESSAGES, 1_000_000, read)
        except JournalClosed:
            self._asked.pop()

    def check_answered(self) -> None:
        """Check that no window is waited for any more that was asked for long ago."""
        for after, asked in self._asked:
            if self._world.now - asked > ANSWER_WITHIN_SECONDS:
                raise Violation(f"a window behind {after} is not answered since {asked:.3f} s")

    def _refused(self, error: OrthiaError) -> None:
        """Check that this node could not have been served, or should not."""
        is_newest = self._world.database.store.fence_token == self._node.token
        is_served = is_newest and self._node.is_open and self._node.may_deliver()
        if is_served and not isinstance(error, PermanentStoreError):
            raise Violation(f"{self._node.holder_id} holds its lease, and a client got: {error}")


def _body_in(payload: bytes) -> LargeBody:
    body = decode_message(payload, 0).large
    assert body is not None
    return body
