"""The bodies of large messages, outside the journal: in as they come, out as they are taken.

The life of a body:

1. An upload gives it an id and takes pieces. A thread stores them, a bounded number in flight; when
   the last is durable, the upload's ``done`` gets the ``LargeBody`` that goes into the message.
2. The message's unit *links* the body in the journal's own transaction. Each queue that has the
   message, and each transaction in doubt, is one reference; deleting the message unlinks it.
3. While anything in memory needs a body (an upload, a client's transaction, a delivery under way)
   it is *pinned*. Whatever is neither pinned nor referred to is removed, in bounded steps: after
   the commit that unlinked it, when the last pin goes, and, if a node died in between, by the
   sweep that begins when the journal is opened. So nothing that is needed is ever removed, and
   what is not removed at once is found later.

``LargeMessages`` is the loop's side; a ``BodyStore`` is where the bodies are, and blocks.
"""

import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import NoRoom, PermanentStoreError, StoreUnavailable, TransientStoreError
from orthia.journal.engine.abc import PIECE_BYTES, BodyStore, Piece
from orthia.journal.engine.read_threads import ReadThreads
from orthia.journal.engine.retry import pause_seconds
from orthia.journal.errors import Fenced, JournalError, LargeBodyError, StoreFull
from orthia.journal.message import LargeBody

LOGGER = logging.getLogger("orthia.journal")
UPLOAD_WINDOW_BYTES = 4 * PIECE_BYTES
"""Bytes of one upload that wait for the store, above which it wants no more."""
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""The same for all uploads together."""
_WRITE_BYTES = 4 * 1024 * 1024
"""What is written at once, in one transaction where there are any."""
_SWEEP_IDS = 50
_BACKGROUND_RETRY_SECONDS = 1.0

Read = Callable[[tuple[bytes, int] | OrthiaError], None]
"""Gets a piece and the checksum of all up to it, or what went wrong."""


class Upload:
    """A body on its way in; all calls on the loop's thread."""

    def __init__(
        self,
        bodies: "LargeMessages",
        body_id: int,
        room: Callable[[], None],
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> None:
        self.body_id = body_id
        self.size = 0
        """Bytes taken so far."""
        self.is_over = False
        """Whether nothing more is to be stored: it failed or was aborted. Read by the thread."""
        self.checksum = 0
        """Of what is stored; the thread's."""
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
        """Whether more is to be read from its client; ``room`` is called when it is again."""
        return self._bodies.has_room_for(self)

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self.size += len(data)
        self._bodies.came(self.body_id, len(data))
        self._buffer += data
        while len(self._buffer) >= PIECE_BYTES:
            piece = bytes(memoryview(self._buffer)[:PIECE_BYTES])
            del self._buffer[:PIECE_BYTES]
            self._submit(piece)

    def finish(self) -> None:
        """Take note that this was all; ``done`` follows once it is durable."""
        if self._buffer:
            self._submit(bytes(self._buffer))
            self._buffer.clear()
        self._bodies.finish(self)

    def abort(self) -> None:
        """Have what came removed; nothing is called any more. Does nothing once it is over."""
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


class _Finish(NamedTuple):
    upload: Upload


class _Check(NamedTuple):
    """See whether a body is needed any more."""

    body_id: int


_Job = tuple[Upload, Piece] | _Finish | _Check


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
        self._post = post
        self._still_valid = still_valid
        self._failed = failed
        self._sweep_period_seconds = sweep_period_seconds
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = threading.Event()
        self._pins: dict[int, int] = {}
        self._uploaded: dict[int, _Count] = {}
        self._stalled: set[Upload] = set()
        self._waiting_bytes = 0
        self._thread = threading.Thread(target=self._run, name="large-messages", daemon=True)
        self._readers = ReadThreads("large-reader", 1, still_valid=still_valid, post=post)
        # The thread's own:
        self._removals: deque[int] = deque()
        self._swept_to: int | None = 0
        self._sweep_at: float | None = None
        self._retry_at = 0.0
        self._said: str | None = None

    # --- the loop's side

    def upload(
        self,
        room: Callable[[], None],
        done: Callable[[LargeBody | OrthiaError], None],
        counted: Callable[[int], None] = lambda _: None,
    ) -> Upload:
        """Begin a body, pinned once; raises JournalClosed.

        Who gets the LargeBody has to unpin it; after an error or an abort nobody has to.
        ``counted`` hears of bytes that come, and of as many fewer once they are ``taken_over``.
        """
        upload = Upload(self, self._next_id(), room, done)
        self.pin(upload.body_id)
        self._uploaded[upload.body_id] = _Count(counted)
        return upload

    def pin(self, body_id: int) -> None:
        """Keep a body for something in memory."""
        self._pins[body_id] = self._pins.get(body_id, 0) + 1

    def unpin(self, body_id: int) -> None:
        """Undo one ``pin``; a body that nothing needs any more is removed."""
        left = self._pins[body_id] - 1
        if left:
            self._pins[body_id] = left
        else:
            del self._pins[body_id]
            self.taken_over(body_id)
            self._jobs.put(_Check(body_id))

    def came(self, body_id: int, size: int) -> None:
        """Count bytes of a body that is on its way."""
        count = self._uploaded[body_id]
        count.size += size
        count.hears(size)

    def taken_over(self, body_id: int) -> None:
        """Count a body no more: its message does, or it is needed no more."""
        count = self._uploaded.pop(body_id, None)
        if count is not None:
            count.hears(-count.size)

    def unlinked(self, body_ids: Iterable[int]) -> None:
        """Take note that references are gone from the store."""
        for body_id in body_ids:
            if body_id not in self._pins:
                self._jobs.put(_Check(body_id))

    def read(self, body_id: int, position: int, checksum: int, done: Read) -> None:
        """Read a piece of a pinned body; ``checksum`` is that of all before it."""

        def piece() -> tuple[bytes, int]:
            data = self._store.read(body_id, position)
            return data, zlib.crc32(data, checksum)

        self._readers.ask(piece, done)

    def has_room_for(self, upload: Upload) -> bool:
        """Return whether more of ``upload`` is wanted; if not, it is told when it is."""
        if self._waiting_bytes < MAX_WAITING_BYTES and upload.in_flight < UPLOAD_WINDOW_BYTES:
            return True
        self._stalled.add(upload)
        return False

    def submit(self, upload: Upload, piece: Piece) -> None:
        """Have a piece stored."""
        self._waiting_bytes += len(piece.data)
        self._jobs.put((upload, piece))

    def finish(self, upload: Upload) -> None:
        """Have ``upload`` completed after its pieces."""
        self._jobs.put(_Finish(upload))

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._readers.start()

    def close(self) -> None:
        """Have the threads end after what they are at; nothing is called any more. Any thread."""
        self._closed.set()
        self._jobs.put(None)
        self._readers.close()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads' end."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self._readers.join(timeout_seconds)

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

    # --- the thread's side

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                jobs = self._take()
                if jobs is None:
                    return
                self._do(jobs)
                # A step after each write, too: bodies are removed as fast as they come.
                if self._seconds_until_background() == 0:
                    self._do_in_background()
        except Fenced as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies silently holds uploads for ever
            self._fail(
                JournalError(f"large messages cannot be stored: {type(error).__name__}: {error}")
            )
        finally:
            self._store.close()

    def _fail(self, error: OrthiaError) -> None:
        if not self._closed.is_set():
            self._failed(error)

    def _take(self) -> list[_Job] | None:
        """Wait for jobs, or for something to do in the background; return None to end."""
        taken: list[_Job] = []
        size = 0
        wait = self._seconds_until_background()
        while size < _WRITE_BYTES:
            try:
                job = self._jobs.get(timeout=wait) if wait != 0 else self._jobs.get_nowait()
            except Empty:
                return taken
            if job is None:
                return None
            wait = 0
            taken.append(job)
            if not isinstance(job, (_Finish, _Check)):
                size += len(job[1].data)
        return taken

    def _seconds_until_background(self) -> float | None:
        if self._removals or self._swept_to is not None:
            at: float | None = self._retry_at
        else:
            at = self._sweep_at
        return None if at is None else max(0.0, at - monotonic_seconds())

    def _do(self, jobs: list[_Job]) -> None:
        writes = [job for job in jobs if not isinstance(job, (_Finish, _Check))]
        self._write([job for job in writes if not job[0].is_over])
        for upload, piece in writes:
            self._call(partial(self._landed, upload, len(piece.data)))
        for job in jobs:
            if isinstance(job, _Finish):
                self._complete(job.upload)
            elif isinstance(job, _Check):
                self._removals.append(job.body_id)

    def _write(self, writes: list[tuple[Upload, Piece]]) -> None:
        if not writes:
            return
        try:
            self._persist(partial(self._store.write, [piece for _, piece in writes]))
        except Fenced:
            raise
        except OrthiaError as error:
            uploads = dict.fromkeys(upload for upload, _ in writes)
            if isinstance(error, PermanentStoreError) and len(uploads) > 1:
                # What the database does not store of one body is refused to its client alone.
                for one in uploads:
                    self._write([job for job in writes if job[0] is one])
                return
            for upload in uploads:
                self._call(partial(self._done, upload, error))
            return
        for upload, piece in writes:
            upload.checksum = zlib.crc32(piece.data, upload.checksum)

    def _complete(self, upload: Upload) -> None:
        outcome: LargeBody | OrthiaError = LargeBody(upload.body_id, upload.size, upload.checksum)
        try:
            if not upload.is_over:
                self._persist(partial(self._store.finish, upload.body_id))
        except Fenced:
            raise
        except OrthiaError as error:
            outcome = error
        self._call(partial(self._done, upload, outcome))

    def _persist(self, step: Callable[[], None]) -> None:
        """Do a step again and again while the store is away and the lease lasts."""
        failures = 0
        while True:
            try:
                step()
            except NoRoom as error:
                raise StoreFull(str(error)) from error
            except (StoreUnavailable, TransientStoreError) as error:
                if self._closed.is_set() or not self._still_valid():
                    raise LargeBodyError(f"a large message was not stored: {error}") from error
                failures += 1
                self._closed.wait(pause_seconds(failures))
            else:
                return

    def _do_in_background(self) -> None:
        try:
            if self._removals:
                self._remove(self._removals.popleft())
            else:
                self._sweep(self._swept_to or 0)
        except Fenced:
            raise
        except OrthiaError as error:
            if str(error) != self._said:
                self._said = str(error)
                LOGGER.warning("large bodies are not looked after, trying again: %s", error)
            self._retry_at = monotonic_seconds() + _BACKGROUND_RETRY_SECONDS

    def _remove(self, body_id: int) -> None:
        # A pin that comes after this look is of a message in a queue, which is a reference.
        if body_id in self._pins:
            return
        try:
            ended = self._store.remove(body_id)
        except OrthiaError:
            self._removals.append(body_id)
            raise
        if not ended:
            self._removals.append(body_id)

    def _sweep(self, after_id: int) -> None:
        """Look at some bodies whether they are needed, and note where to go on."""
        unneeded, self._swept_to = self._store.sweep(after_id, _SWEEP_IDS)
        self._removals.extend(unneeded)
        if self._swept_to is None and self._sweep_period_seconds is not None:
            self._sweep_at = monotonic_seconds() + self._sweep_period_seconds

    def _call(self, callback: Callable[[], None]) -> None:
        if not self._closed.is_set():
            self._post(callback)
