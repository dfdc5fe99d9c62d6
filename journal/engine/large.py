"""The bodies of large messages, outside the journal: streamed in and streamed out.

The life of a body:

1. An upload gives it an id and takes pieces. A thread stores them, a bounded number in flight; when
   the last is durable, the upload's ``done`` gets the ``LargeBody`` that goes into the message.
2. The message's unit *links* the body in the journal's own transaction. Each queue that has the
   message, and each transaction in doubt, is one reference; deleting the message unlinks it.
3. While anything in memory needs a body (an upload, a client's transaction, a delivery under way)
   it is *pinned*. What is unlinked while a browser's window is read is *withheld* from removal
   until the messages in that window are pinned. Whatever is neither pinned nor referred to is
   removed, in bounded steps: after the commit that unlinked it, when the last pin goes, and, if a
   node died in between, by the sweep that begins when the journal is opened. So nothing that is
   needed is ever removed, and what is not removed at once is found later.

``LargeMessages`` is the loop's side, a ``BodyKeeper`` the thread's; a ``BodyStore`` is where the
bodies are, and blocks.
"""

import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES, BodyStore, Piece
from orthia.journal.engine.body_keeper import BodyKeeper, Incoming
from orthia.journal.engine.read_thread import ReadThread
from orthia.journal.model.message import LargeBody

UPLOAD_WINDOW_BYTES = 4 * PIECE_BYTES
"""Bytes of one upload that may wait for the store before its client is held back."""
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""The same for all uploads together."""

Read = Callable[[tuple[bytes, int] | OrthiaError], None]
"""Called with a piece and the checksum of all up to it, or with the error."""


class Upload(Incoming):
    """An incoming body; all calls on the loop's thread."""

    def __init__(
        self,
        bodies: "LargeMessages",
        body_id: int,
        room: Callable[[], None],
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> None:
        super().__init__(body_id)
        self.in_flight = 0
        self.room = room
        self.done = done
        self._bodies = bodies
        self._buffer = bytearray()
        self._position = 0

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._buffer) + self.in_flight

    @property
    def wants_more(self) -> bool:
        """Whether to read more from its client; ``room`` is called when it becomes true again."""
        return self._bodies.has_room_for(self)

    def add(self, data: bytes) -> None:
        """Append the next bytes."""
        self.size += len(data)
        self._bodies.came(self.body_id, len(data))
        self._buffer += data
        while len(self._buffer) >= PIECE_BYTES:
            piece = bytes(memoryview(self._buffer)[:PIECE_BYTES])
            del self._buffer[:PIECE_BYTES]
            self._submit(piece)

    def finish(self) -> None:
        """Mark the body as complete; ``done`` follows once it is durable."""
        if self._buffer:
            self._submit(bytes(self._buffer))
            self._buffer.clear()
        self._bodies.finish(self)

    def abort(self) -> None:
        """Remove what has arrived, without further callbacks. Does nothing once it is over."""
        if not self.is_over:
            self.is_over = True
            self._buffer.clear()
            self._bodies.unpin(self.body_id)

    def _submit(self, data: bytes) -> None:
        self.in_flight += len(data)
        self._bodies.submit(self, Piece(self.body_id, self._position, data))
        self._position += 1


@dataclass(slots=True)
class _Count:
    """The bytes of a body whose message is not sent yet."""

    hears: Callable[[int], None]
    size: int = 0


class LargeMessages:
    """The bodies of an opened journal; calls and callbacks on the loop's thread.

    ``failed`` is called on the thread when the store says that this node is fenced, or the lease
    ended before a body was stored. Not after ``close``: a node that handed back is fenced by its
    successor, and that is in order.
    """

    def __init__(
        self,
        store: BodyStore,
        *,
        next_id: Callable[[], int],
        post: Callable[[Callable[[], None]], None],
        still_valid: Callable[[], bool],
        failed: Callable[[OrthiaError], None],
        sweep_period_seconds: float | None = None,
    ) -> None:
        """Keep bodies in ``store``; without a period they are swept once, at the start."""
        self._store = store
        self._next_id = next_id
        self._pins: dict[int, int] = {}
        self._unreferenced: set[int] = set()
        """Bodies that nothing in the store refers to, as far as is known. No others are looked at:
        the store may take long to look, and what a message has at its beginning may be pinned and
        unlinked at its end."""
        self._reads = 0
        """The number of the latest read that bodies are withheld for."""
        self._open_reads: dict[int, None] = {}
        self._withheld: dict[int, int] = {}
        """Bodies to remove, by the last read that may have seen their messages."""
        self._uploaded: dict[int, _Count] = {}
        self._stalled: set[Upload] = set()
        self._waiting_bytes = 0
        self._keeper: BodyKeeper[Upload] = BodyKeeper(
            store,
            still_valid=still_valid,
            post=post,
            failed=failed,
            landed=self._landed,
            done=self._done,
            is_pinned=self._is_pinned,
            looked_at=self._looked_at,
            sweep_period_seconds=sweep_period_seconds,
        )
        self._reader = ReadThread(
            "large-reader", still_valid=still_valid, post=post, what="body of a large message"
        )

    def upload(
        self,
        room: Callable[[], None],
        done: Callable[[LargeBody | OrthiaError], None],
        counted: Callable[[int], None] = lambda _: None,
    ) -> Upload:
        """Begin a body, pinned once; raises JournalClosed.

        The receiver of the LargeBody must unpin it; after an error or an abort nobody has to.
        ``counted`` is called with bytes that arrive, and with as many fewer once ``taken_over``.
        """
        upload = Upload(self, self._next_id(), room, done)
        self.pin(upload.body_id)
        self._unreferenced.add(upload.body_id)
        self._uploaded[upload.body_id] = _Count(counted)
        return upload

    def pin(self, body_id: int) -> None:
        """Keep a body while something in memory needs it."""
        self._pins[body_id] = self._pins.get(body_id, 0) + 1

    def unpin(self, body_id: int) -> None:
        """Undo one ``pin``; a body that nothing needs any more is removed."""
        left = self._pins[body_id] - 1
        if left:
            self._pins[body_id] = left
        else:
            del self._pins[body_id]
            self.taken_over(body_id)
            if body_id in self._unreferenced:
                self._check(body_id)

    def came(self, body_id: int, size: int) -> None:
        """Count bytes of an incoming body."""
        count = self._uploaded[body_id]
        count.size += size
        count.hears(size)

    def taken_over(self, body_id: int) -> None:
        """Stop counting a body: its message counts it, or nothing needs it."""
        count = self._uploaded.pop(body_id, None)
        if count is not None:
            count.hears(-count.size)

    def linked(self, body_ids: Collection[int]) -> None:
        """Record that the store now refers to bodies."""
        self._unreferenced.difference_update(body_ids)

    def unlinked(self, body_ids: Collection[int]) -> None:
        """Record that the store no longer refers to bodies."""
        self._unreferenced.update(body_ids)
        for body_id in body_ids:
            if body_id not in self._pins:
                self._check(body_id)

    def withhold(self) -> int:
        """Withhold every body that is needed now from removal; return a number for ``let_go``.

        For a reader of messages that another consumer may take before the answer arrives.
        """
        self._reads += 1
        self._open_reads[self._reads] = None
        return self._reads

    def let_go(self, read: int) -> None:
        """Undo one ``withhold``; what was read is pinned.

        Reads that began later withhold nothing that was unlinked before: otherwise bodies would
        stay for as long as reads overlap.
        """
        del self._open_reads[read]
        oldest = next(iter(self._open_reads), self._reads + 1)
        for body_id in [one for one, last in self._withheld.items() if last < oldest]:
            del self._withheld[body_id]
            if body_id not in self._pins:
                self._keeper.check(body_id)

    def _looked_at(self, body_id: int, *, was_pinned: bool) -> None:
        """Check a body again later if it was pinned."""
        if not was_pinned:
            self._unreferenced.discard(body_id)
        elif body_id in self._pins:
            self._unreferenced.add(body_id)
        else:
            self._check(body_id)

    def _check(self, body_id: int) -> None:
        if self._open_reads:
            self._withheld[body_id] = self._reads
        else:
            self._keeper.check(body_id)

    def read(self, body_id: int, position: int, checksum: int, done: Read) -> None:
        """Read a piece of a pinned body; ``checksum`` is that of all before it."""

        def piece() -> tuple[bytes, int]:
            data = self._store.read(body_id, position)
            return data, zlib.crc32(data, checksum)

        self._reader.ask(piece, done)

    def has_room_for(self, upload: Upload) -> bool:
        """Return whether ``upload`` may go on; if not, it is told when it may."""
        if self._waiting_bytes < MAX_WAITING_BYTES and upload.in_flight < UPLOAD_WINDOW_BYTES:
            return True
        self._stalled.add(upload)
        return False

    def submit(self, upload: Upload, piece: Piece) -> None:
        """Store a piece."""
        self._waiting_bytes += len(piece.data)
        self._keeper.store(upload, piece)

    def finish(self, upload: Upload) -> None:
        """Complete ``upload`` after its pieces."""
        self._keeper.finish(upload)

    def start(self) -> None:
        """Start the threads."""
        self._keeper.start()
        self._reader.start()

    def close(self) -> None:
        """End the threads after their current step, without further callbacks. Any thread."""
        self._keeper.stop()
        self._reader.close()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads' end."""
        self._keeper.join(timeout_seconds)
        self._reader.join(timeout_seconds)

    def _is_pinned(self, body_id: int) -> bool:
        """On the thread."""
        return body_id in self._pins or body_id in self._withheld

    def _landed(self, upload: Upload, size: int) -> None:
        upload.in_flight -= size
        self._waiting_bytes -= size
        for stalled in [one for one in self._stalled if self._has_room_again(one)]:
            self._stalled.discard(stalled)
            if not stalled.is_over:
                stalled.room()

    def _has_room_again(self, upload: Upload) -> bool:
        return upload.is_over or (
            self._waiting_bytes <= MAX_WAITING_BYTES // 2
            and upload.in_flight <= UPLOAD_WINDOW_BYTES // 2
        )

    def _done(self, upload: Upload, outcome: LargeBody | OrthiaError) -> None:
        if upload.is_over:
            return
        upload.is_over = True
        if isinstance(outcome, OrthiaError):
            self.unpin(upload.body_id)
        upload.done(outcome)
