"""The writer: one thread, one connection, one transaction for all that waits.

It takes what has been appended, up to the bounds of a batch, stores it, and hands the batch back
for its callers to be completed. While it stores, the next batch gathers: under load batches grow
by themselves, at rest a single message goes at once.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from config.clock import monotonic_seconds
from config.errors import OrthiaError
from config.reminders import Reminder
from database import StoreError
from journal.api import BatchReport
from journal.batch import Batch
from journal.errors import JournalError, LeaseExpired
from journal.limits import JournalLimits
from journal.retry import NextStep, after_failure, pause_seconds
from journal.store import BatchStore
from journal.unit import Appended

LOGGER = logging.getLogger("orthia.journal")
_STUCK_SECONDS = 2.0


class Writer:
    """Owns ``store`` from ``start`` on.

    ``stored`` and ``failed`` are called on the writer's thread; ``failed`` at most once, and
    nothing is stored after it.
    """

    def __init__(
        self,
        store: BatchStore,
        limits: JournalLimits,
        *,
        still_valid: Callable[[], bool],
        stored: Callable[[Batch, BatchReport], None],
        failed: Callable[[OrthiaError], None],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._store = store
        self._limits = limits
        self._still_valid = still_valid
        self._stored = stored
        self._failed = failed
        self._clock = clock
        self._queue: SimpleQueue[Appended | None] = SimpleQueue()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self.submit = self._queue.put
        """Hand a unit over; any thread, never waits."""
        self.drained = False
        """True once everything submitted before ``finish`` is stored."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Have the thread end when all that was submitted is stored."""
        self._queue.put(None)

    def abandon(self) -> None:
        """Have the thread end without beginning another transaction."""
        self._abandoned.set()
        self._queue.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread's end; return whether it ended in time."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._store_and_report(batch)
            self.drained = not self._abandoned.is_set()
        except OrthiaError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies silently loses messages
            self._fail(JournalError(f"the journal writer failed: {type(error).__name__}: {error}"))
        finally:
            self._store.close()

    def _fail(self, error: OrthiaError) -> None:
        if not self._abandoned.is_set():
            self._failed(error)

    def _next_batch(self) -> Batch | None:
        """Wait for something to store; None at the end."""
        first = self._wait_for_first()
        if first is None:
            return None
        batch = Batch()
        batch.add(first)
        take = self._queue.get_nowait
        max_rows, max_bytes = self._limits.max_batch_rows, self._limits.max_batch_bytes
        try:
            while batch.size < max_rows and batch.payload_bytes < max_bytes:
                item = take()
                if item is None:
                    self._queue.put(None)
                    break
                batch.add(item)
        except Empty:
            pass
        return batch

    def _wait_for_first(self) -> Appended | None:
        while True:
            try:
                return self._queue.get(timeout=self._store.keep_alive_seconds)
            except Empty:
                self._keep_alive()

    def _keep_alive(self) -> None:
        """Keep the session, or open another: the next message is not to wait for that."""
        if not self._still_valid():
            return
        try:
            self._store.keep_alive()
        except StoreError:
            with contextlib.suppress(StoreError):  # the next batch will tell, and try again
                self._store.connect()

    def _store_and_report(self, batch: Batch) -> None:
        started = self._clock()
        attempts = self._store_batch(batch)
        if attempts is None or self._abandoned.is_set():
            return
        self._stored(batch, batch.report(self._clock() - started, attempts))

    def _store_batch(self, batch: Batch) -> int | None:
        """Store ``batch``, repeating as ``journal.retry`` says; return the number of attempts.

        None if it was abandoned. Raises what it gave up for.
        """
        attempts = 0
        step: NextStep | None = None
        unresolved = False
        reminder: Reminder | None = None
        while not self._abandoned.is_set():
            if not self._still_valid():
                raise LeaseExpired(
                    f"the lease ended before {batch.describe()} was known to be stored;"
                    " nothing of it was confirmed to a client"
                )
            attempts += 1
            try:
                found = step is not None and self._recover(batch, step)
                if not found:
                    self._store.store(batch)
                if unresolved and (found or batch.marker() is None):
                    self._store.confirm()
            except StoreError as error:
                step = after_failure(error, unresolved=unresolved, lease_valid=self._still_valid())
                if step is NextStep.GIVE_UP:
                    raise JournalError(
                        f"{batch.describe()} was given up, and not confirmed to any client: {error}"
                    ) from error
                unresolved = unresolved or step is NextStep.RECONNECT_AND_RESOLVE
                reminder = self._say_stuck(reminder, error)
                self._abandoned.wait(pause_seconds(attempts))
            else:
                return attempts
        return None

    def _say_stuck(self, reminder: Reminder | None, error: OrthiaError) -> Reminder:
        """Say that nothing is stored, if that lasts: what passes at once is a metric only."""
        now = self._clock()
        if reminder is None:
            return Reminder(now, first_seconds=_STUCK_SECONDS)
        seconds = reminder.due(now)
        if seconds is not None:
            LOGGER.warning(
                "the journal has stored nothing for %.0f s, trying on: %s", seconds, error
            )
        return reminder

    def _recover(self, batch: Batch, step: NextStep) -> bool:
        """Make ready for another attempt; True if the batch turns out to be stored."""
        if step is NextStep.REPEAT:
            return False
        self._store.connect()
        if step is NextStep.RECONNECT:
            return False
        marker = batch.marker()
        return marker is not None and self._store.is_stored(marker)
