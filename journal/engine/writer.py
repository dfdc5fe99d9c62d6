"""The writer: one thread, one connection, one transaction for all that waits.

It takes the appended units, up to the bounds of a batch, stores them, and reports the batch so that
its callers are completed. While it stores, the next batch gathers: under load batches grow by
themselves, at rest a single message is stored at once.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import StoreError
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.attempts import AtFault, MeetsLock, OutOfRoom
from orthia.journal.engine.batch import Batch, BatchReport, batch_of
from orthia.journal.engine.duplicates import without_conflicts
from orthia.journal.engine.full_store import FullStore
from orthia.journal.engine.lock_watch import LockWatch
from orthia.journal.engine.retry import LOCKED_LOOK_SECONDS
from orthia.journal.engine.senders import in_turn, storable
from orthia.journal.engine.storing import Parts, Storing
from orthia.journal.engine.storing_rate import LEAST_ROWS, StoringRate
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import AcknowledgedBefore, StoreFull
from orthia.journal.limits import JournalLimits
from orthia.journal.model.unit import Appended, Unit


class Writer:
    """Owns ``store`` from ``start`` on.

    ``stored``, ``refused`` and ``failed`` are called on the writer's thread, the first two in the
    order of submission, except for units kept until there was room; ``failed`` at most once, and
    nothing is stored after it. ``full`` gets why there is no room, and None when there is again.
    ``aside`` gets the units that wait for a lock of another session, before they are stored.
    """

    def __init__(
        self,
        store: BatchStore,
        limits: JournalLimits,
        *,
        still_valid: Callable[[], bool],
        stored: Callable[[Batch, BatchReport], None],
        refused: Callable[[Appended, OrthiaError], None],
        failed: Callable[[OrthiaError], None],
        full: Callable[[StoreFull | None], None] = lambda _: None,
        aside: Callable[[Sequence[Unit]], None] = lambda _: None,
        lock_watch: LockWatch | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._store = store
        self._limits = limits
        self._rate = StoringRate(limits.batch_seconds, limits.max_batch_rows)
        self._still_valid = still_valid
        self._stored = stored
        self._refused = refused
        self._clock = clock
        self._worker: Worker[Appended] = Worker(
            "journal-writer",
            self._run,
            failed=failed,
            failure="the journal writer failed",
            ended=store.close,
        )
        self._abandoned = self._worker.stopping
        self._storing = Storing(
            store,
            still_valid=still_valid,
            abandoned=self._abandoned,
            refused=refused,
            lock_watch=lock_watch,
            clock=clock,
            aside=aside,
        )
        self._locks = self._storing.locks
        self._full_store = FullStore(
            store, self._storing, still_valid=still_valid, stored=stored, full=full, clock=clock
        )
        self.start = self._worker.start
        self.join = self._worker.join
        self.submit = self._worker.put
        """Hand a unit over; any thread, never waits."""
        self.abandon = self._worker.stop
        """End the thread without beginning another transaction."""
        self.finished = False
        """True once everything submitted before ``finish`` was tried; nothing is reported later."""
        self.drained = False
        """True once everything submitted before ``finish`` is stored."""

    def finish(self) -> None:
        """End the thread when all that was submitted is stored."""
        self._worker.put(None)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._locks.begin(batch)
            self._store_and_report(batch)
        self._look_at_locks()
        self.finished = not self._abandoned.is_set()
        self.drained = self.finished and not (self._full_store.kept or self._locks.put_aside)

    def _next_batch(self) -> Batch | None:
        """Wait for something to store; None at the end."""
        first = self._wait_for_first()
        if first is None:
            return None
        batch = Batch()
        batch.add(first)
        take = self._worker.take_now
        max_rows, max_bytes = self._rate.rows, self._limits.max_batch_bytes
        try:
            while batch.size < max_rows and batch.payload_bytes < max_bytes:
                item = take()
                if item is None:
                    self._worker.put(None)
                    break
                batch.add(item)
        except Empty:
            pass
        return batch

    def _wait_for_first(self) -> Appended | None:
        full = self._full_store
        while True:
            if full.is_due:
                self._look_for_room()
            if self._locks.is_due:
                self._look_at_locks()
            wait = full.look_seconds if full.is_full else self._store.keep_alive_seconds
            try:
                return self._worker.take(timeout=LOCKED_LOOK_SECONDS if self._locks.met else wait)
            except Empty:
                if full.is_full:
                    self._look_for_room()
                elif not self._locks.met:
                    self._keep_alive()

    def _keep_alive(self) -> None:
        """Keep the session alive, or open another before the next message needs it."""
        if not self._still_valid():
            return
        try:
            self._store.keep_alive()
        except StoreError:
            with contextlib.suppress(StoreError):  # the next batch retries, and reports it
                self._store.connect()

    def _store_and_report(
        self, batch: Batch, *, unresolved: bool = False, again: bool = False
    ) -> None:
        """Store ``batch`` in as many parts as it takes, and refuse what cannot be stored.

        ``again`` says that it was put aside before.
        """
        storing, full = self._storing, self._full_store
        parts: Parts = deque([(batch, unresolved)])
        if batch.guarded:
            parts = deque((part, False) for part in without_conflicts(batch))
        while parts and not self._abandoned.is_set():
            part, unresolved = parts.popleft()
            if full.kept and not unresolved:
                part = full.with_kept(part)
            part, left = self._locks.sift(part, unresolved=unresolved, again=again)
            if left is not None:
                parts.appendleft((left, unresolved))
            if not part.items:
                continue
            stored = storable(part) if storing.has_refused else part
            if stored.guarded:
                # Only what will be stored: an id that is refused must not evict another.
                # Even if it may be stored already: the units do not say what it evicts.
                screened = storing.screened(stored)
                if screened is None:
                    return
                if stored is part:
                    part = screened
                stored = screened
            started = self._clock()
            try:
                attempts = (
                    storing.attempts.store(stored, unresolved=unresolved) if stored.items else 0
                )
            except MeetsLock as met:
                parts.appendleft((part, met.unresolved))
                continue
            except AcknowledgedBefore as found:
                storing.note_acknowledged(stored, found)
                parts.appendleft((part, unresolved))
                continue
            except OutOfRoom as out_of_room:
                full.store_what_frees(part, out_of_room, again=again)
                continue
            except AtFault as fault:
                storing.part_or_refuse(parts, part, fault)
                continue
            if attempts is None or self._abandoned.is_set():
                return
            seconds = self._clock() - started
            if attempts > 1:
                self._locks.stored_after_failure()
            elif attempts == 1 and stored.size >= LEAST_ROWS:
                self._rate.stored(stored.size, seconds)
            if stored.guarded:
                storing.duplicates.stored(stored)
            if stored is part:
                self._stored(part, part.report(seconds, attempts))
            else:
                self._tell_in_turn(part, seconds, attempts)
            if stored.items:
                storing.unanswered = 0
            if full.is_full and (stored.messages or stored.rows):
                self._look_for_room()  # a small message may fit where a larger one does not

    def _tell_in_turn(self, batch: Batch, seconds: float, attempts: int) -> None:
        """Report a batch of which some units are refused because of earlier ones."""
        for reason, items in in_turn(batch.items):
            if reason is None:
                told = batch_of(items)
                self._stored(told, told.report(seconds, attempts))
            else:
                for item in items:
                    self._refused(item, reason)

    def _look_for_room(self) -> None:
        """If there is room again, store what was kept and report it."""
        kept = self._full_store.look()
        if kept is not None:
            if kept.items:
                self._store_and_report(kept)
            self._full_store.has_room()

    def _look_at_locks(self) -> None:
        """Store the units that were put aside, as far as their rows are no longer locked."""
        if self._abandoned.is_set() or not self._still_valid():
            return
        self._locks.look()
        self._locks.forget(self._storing.attempts)
        while not self._abandoned.is_set():
            batch, unresolved = self._locks.take_free(self._limits.max_batch_rows)
            if not batch.items:
                break
            self._store_and_report(batch, unresolved=unresolved, again=True)
        self._locks.looked()
