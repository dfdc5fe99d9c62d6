"""The thread that stores the pieces of large bodies, and removes bodies that nothing needs.

``orthia.journal.engine.large`` is the loop's side, and says what the life of a body is.
"""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import NoRoom, PermanentStoreError, StoreUnavailable, TransientStoreError
from orthia.journal.engine.abc import BodyStore, Piece
from orthia.journal.engine.retry import Lapses, pause_seconds
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import Fenced, JournalIOError, LargeBodyError, StoreFull
from orthia.journal.model.message import LargeBody

LOGGER = logging.getLogger("orthia.journal")
_WRITE_BYTES = 4 * 1024 * 1024
"""How many bytes are written in one transaction, where the store has transactions."""
_SWEEP_IDS = 50
_BACKGROUND_RETRY_SECONDS = 1.0


class Incoming:
    """A body on its way in, as the thread sees it."""

    def __init__(self, body_id: int) -> None:
        self.body_id = body_id
        self.size = 0
        """Bytes taken so far; the loop's."""
        self.is_over = False
        """Whether it failed or was aborted, so that nothing more is stored. Read by the thread."""
        self.checksum = 0
        """Of what is stored; the thread's."""


_Body = TypeVar("_Body", bound=Incoming)


@dataclass(frozen=True, slots=True)
class _Finish(Generic[_Body]):
    incoming: _Body


class _Check(NamedTuple):
    """Check whether a body is still needed."""

    body_id: int


_Job: TypeAlias = tuple[_Body, Piece] | _Finish[_Body] | _Check


class BodyKeeper(Generic[_Body]):
    """Stores and removes the bodies of ``store`` in the order in which the loop asks.

    ``landed``, ``done`` and ``looked_at`` are posted: bytes of a body wait no more, it is stored or
    it is not, and it was removed, or not because of a reference, or of a pin (``was_pinned``).
    ``failed`` is called on the thread.
    """

    def __init__(
        self,
        store: BodyStore,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
        failed: Callable[[OrthiaError], None],
        landed: Callable[[_Body, int], None],
        done: Callable[[_Body, LargeBody | OrthiaError], None],
        is_pinned: Callable[[int], bool],
        looked_at: Callable[..., None],
        sweep_period_seconds: float | None,
    ) -> None:
        self._store = store
        self._still_valid = still_valid
        self._post = post
        self._landed = landed
        self._done = done
        self._is_pinned = is_pinned
        self._looked_at = looked_at
        self._sweep_period_seconds = sweep_period_seconds
        self._worker: Worker[_Job[_Body]] = Worker(
            "large-messages",
            self._run,
            failed=failed,
            failure="large messages cannot be stored",
            ended=store.close,
        )
        self._closed = self._worker.stopping
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join
        self._removals: dict[int, None] = {}
        """What is to be looked at, in that order, each once."""
        self._swept_to: int | None = 0
        self._sweep_at: float | None = None
        self._retry_at = 0.0
        self._said: str | None = None

    def store(self, incoming: _Body, piece: Piece) -> None:
        """Store a piece."""
        self._worker.put((incoming, piece))

    def finish(self, incoming: _Body) -> None:
        """Complete a body after its pieces."""
        self._worker.put(_Finish(incoming))

    def check(self, body_id: int) -> None:
        """Remove a body if nothing needs it."""
        self._worker.put(_Check(body_id))

    # --- the thread's own

    def _run(self) -> None:
        while not self._closed.is_set():
            jobs = self._take()
            if jobs is None:
                return
            self._do(jobs)
            # A step for each request, between writes too: removal keeps up with arrival.
            for _ in range(1 + sum(isinstance(job, _Check) for job in jobs)):
                if self._closed.is_set() or self._seconds_until_background() != 0:
                    break
                self._do_in_background()

    def _take(self) -> list[_Job[_Body]] | None:
        """Wait for jobs, or for something to do in the background; return None to end."""
        taken: list[_Job[_Body]] = []
        size = 0
        wait = self._seconds_until_background()
        while size < _WRITE_BYTES:
            try:
                job = self._worker.take(timeout=wait) if wait != 0 else self._worker.take_now()
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

    def _do(self, jobs: list[_Job[_Body]]) -> None:
        writes = [job for job in jobs if not isinstance(job, (_Finish, _Check))]
        self._write([job for job in writes if not job[0].is_over])
        for upload, piece in writes:
            self._call(partial(self._landed, upload, len(piece.data)))
        for job in jobs:
            if isinstance(job, _Finish):
                self._complete(job.incoming)
            elif isinstance(job, _Check):
                self._removals[job.body_id] = None

    def _write(self, writes: list[tuple[_Body, Piece]]) -> None:
        if not writes:
            return
        try:
            self._persist(partial(self._store.write, [piece for _, piece in writes]))
        except Fenced:
            raise
        except OrthiaError as error:
            uploads = dict.fromkeys(upload for upload, _ in writes)
            if isinstance(error, PermanentStoreError | JournalIOError) and len(uploads) > 1:
                # A body that the store refuses is refused to its client alone.
                for one in uploads:
                    self._write([job for job in writes if job[0] is one])
                return
            for upload in uploads:
                self._call(partial(self._done, upload, error))
            return
        for upload, piece in writes:
            upload.checksum = zlib.crc32(piece.data, upload.checksum)

    def _complete(self, upload: _Body) -> None:
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
        """Retry a step while the store is unavailable and the lease holds."""
        failures, lapses = 0, Lapses(self._still_valid)
        while True:
            try:
                step()
            except NoRoom as error:
                raise StoreFull(str(error)) from error
            except (StoreUnavailable, TransientStoreError) as error:
                if self._closed.is_set() or lapses.is_lost():
                    raise LargeBodyError(f"a large message was not stored: {error}") from error
                failures += 1
                self._closed.wait(pause_seconds(failures))
            else:
                return

    def _do_in_background(self) -> None:
        try:
            if self._removals:
                self._remove(next(iter(self._removals)))
            else:
                self._sweep(self._swept_to or 0)
        except Fenced:
            raise
        except OrthiaError as error:
            if str(error) != self._said:
                self._said = str(error)
                LOGGER.warning(
                    "large-message clean-up failed: %s; retrying in %g s",
                    error,
                    _BACKGROUND_RETRY_SECONDS,
                )
            self._retry_at = monotonic_seconds() + _BACKGROUND_RETRY_SECONDS

    def _remove(self, body_id: int) -> None:
        # Re-queued at the end unless this was the last step, so that others have their turn.
        del self._removals[body_id]
        # No pin can follow this check: nothing refers to the body any longer.
        was_pinned = self._is_pinned(body_id)
        try:
            is_over = was_pinned or self._store.remove(body_id)
        except OrthiaError:
            self._removals[body_id] = None
            raise
        if is_over:
            self._call(partial(self._looked_at, body_id, was_pinned=was_pinned))
        else:
            self._removals[body_id] = None

    def _sweep(self, after_id: int) -> None:
        """Check whether some bodies are needed, and note where to continue."""
        unneeded, self._swept_to = self._store.sweep(after_id, _SWEEP_IDS)
        self._removals.update(dict.fromkeys(unneeded))
        if self._swept_to is None and self._sweep_period_seconds is not None:
            self._sweep_at = monotonic_seconds() + self._sweep_period_seconds

    def _call(self, callback: Callable[[], None]) -> None:
        self._worker.tell(self._post, callback)
