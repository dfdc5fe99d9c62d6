"""The writer: one thread, one connection, one transaction for all that waits.

It takes what has been appended, up to the bounds of a batch, stores it, and hands the batch back
for its callers to be completed. While it stores, the next batch gathers: under load batches grow
by themselves, at rest a single message goes at once.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from queue import Empty

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import StoreError
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.attempts import AtFault, Attempts, MeetsLock, OutOfRoom, given_up
from orthia.journal.engine.batch import Batch, BatchReport, batch_of
from orthia.journal.engine.duplicates import DuplicateIds, without_conflicts
from orthia.journal.engine.lock_watch import LockWatch
from orthia.journal.engine.locked_rows import LockedRows
from orthia.journal.engine.retry import (
    LOCKED_LOOK_SECONDS,
    NextStep,
    RoomNeeded,
    after_probe,
    is_answer,
    room_needed,
)
from orthia.journal.engine.senders import in_turn, mark_refused, refusal_before, storable
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import StoreFull, UnitRefused
from orthia.journal.limits import JournalLimits
from orthia.journal.model.unit import Appended

LOGGER = logging.getLogger("orthia.journal")
ROOM_SECONDS = 1.0
"""How often a store that had no room is asked whether it has some."""


class Writer:
    """Owns ``store`` from ``start`` on.

    ``stored``, ``refused`` and ``failed`` are called on the writer's thread, the first two in the
    order of what was submitted, but for what was kept for want of room; ``failed`` at most once,
    and nothing is stored after it. ``full`` says that there is no room, or None when there is.
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
        lock_watch: LockWatch | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._store = store
        self._locks = LockedRows(store, lock_watch or LockWatch(), clock, self._refuse)
        self._duplicates = DuplicateIds(store.duplicate_ids)
        self._limits = limits
        self._still_valid = still_valid
        self._stored = stored
        self._refused = refused
        self._unanswered = 0
        self._full = full
        self._is_full = False
        self._look_again_seconds = 0.0
        """When to look for room next, while there is none, whatever else comes."""
        self._has_refused = False
        """Whether anybody was refused anything: until then nobody need be looked for."""
        self._kept: list[Appended] = []
        """What binds queues, while there is no room for that."""
        self._clock = clock
        self._worker: Worker[Appended] = Worker(
            "journal-writer",
            self._run,
            failed=failed,
            failure="the journal writer failed",
            ended=store.close,
        )
        self._abandoned = self._worker.stopping
        self._attempts = Attempts(
            store,
            still_valid=still_valid,
            abandoned=self._abandoned,
            clock=clock,
            meets_lock=self._locks.meets_lock,
        )
        self.start = self._worker.start
        self.join = self._worker.join
        self.submit = self._worker.put
        """Hand a unit over; any thread, never waits."""
        self.abandon = self._worker.stop
        """Have the thread end without beginning another transaction."""
        self.finished = False
        """True once everything submitted before ``finish`` was tried: nobody is told any more."""
        self.drained = False
        """True once everything submitted before ``finish`` is stored."""

    def finish(self) -> None:
        """Have the thread end when all that was submitted is stored."""
        self._worker.put(None)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._locks.begin(batch)
            self._store_and_report(batch)
        self._look_at_locks()
        self.finished = not self._abandoned.is_set()
        self.drained = self.finished and not (self._kept or self._locks.put_aside)

    def _next_batch(self) -> Batch | None:
        """Wait for something to store; None at the end."""
        first = self._wait_for_first()
        if first is None:
            return None
        batch = Batch()
        batch.add(first)
        take = self._worker.take_now
        max_rows, max_bytes = self._limits.max_batch_rows, self._limits.max_batch_bytes
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
        while True:
            if self._is_full and self._clock() >= self._look_again_seconds:
                self._look_for_room()  # acknowledgements may come without a pause
            if self._locks.is_due:
                self._look_at_locks()
            wait = ROOM_SECONDS if self._is_full else self._store.keep_alive_seconds
            try:
                return self._worker.take(timeout=LOCKED_LOOK_SECONDS if self._locks.met else wait)
            except Empty:
                if self._is_full:
                    self._look_for_room()
                elif not self._locks.met:
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

    def _store_and_report(
        self, batch: Batch, *, unresolved: bool = False, again: bool = False
    ) -> None:
        """Store ``batch`` in as many parts as it takes, and refuse what cannot be stored.

        ``again`` says that it was put aside before.
        """
        parts = deque([(batch, unresolved)])
        if batch.guarded:
            parts = deque((part, False) for part in without_conflicts(batch))
        while parts and not self._abandoned.is_set():
            part, unresolved = parts.popleft()
            if self._kept and not unresolved:
                part = self._with_kept(part)
            part, left = self._locks.sift(part, unresolved=unresolved, again=again)
            if left is not None:
                parts.appendleft((left, unresolved))
            if not part.items:
                continue
            stored = storable(part) if self._has_refused else part
            if stored.guarded:
                # Only of what is to be stored: an id that is refused makes nobody forget another.
                # Also if it may be stored already: what it forgets is not told by its units.
                screened = self._attempts.screened(stored, self._duplicates.screen)
                if screened is None:
                    return
                if stored is part:
                    part = screened
                stored = screened
                self._locks.keep_forgotten(stored)
            started = self._clock()
            try:
                attempts = (
                    self._attempts.store(stored, unresolved=unresolved) if stored.items else 0
                )
            except MeetsLock as met:
                parts.appendleft((part, met.unresolved))
                continue
            except OutOfRoom as full:
                self._do_without_room(part, full, again=again)
                continue
            except AtFault as fault:
                smaller = self._part_or_refuse(part, fault.error)
                parts.extendleft((one, fault.unresolved) for one in reversed(smaller))
                continue
            if attempts is None or self._abandoned.is_set():
                return
            seconds = self._clock() - started
            if attempts > 1:
                self._locks.stored_after_failure()
            if stored.guarded:
                self._duplicates.stored(stored)
            if stored is part:
                self._stored(part, part.report(seconds, attempts))
            else:
                self._tell_in_turn(part, seconds, attempts)
            if stored.items:
                self._unanswered = 0
            if self._is_full and (stored.messages or stored.rows):
                self._look_for_room()  # for a small message there may be some where there is none

    def _tell_in_turn(self, batch: Batch, seconds: float, attempts: int) -> None:
        """Tell of a batch of which some units were refused for what was refused before them."""
        for reason, items in in_turn(batch.items):
            if reason is None:
                told = batch_of(items)
                self._stored(told, told.report(seconds, attempts))
            else:
                for item in items:
                    self._refused(item, reason)

    def _refuse(self, item: Appended, reason: OrthiaError) -> None:
        """Refuse a unit, and with it what its sender sent behind it and is still to come."""
        mark_refused(item, reason)
        self._has_refused = True
        self._refused(item, reason)

    # --- while another session has locked rows; see ``orthia.journal.engine.locks``

    def _look_at_locks(self) -> None:
        """Store what was put aside, as far as its rows are free."""
        if self._abandoned.is_set() or not self._still_valid():
            return
        self._locks.look()
        self._locks.forget(self._attempts)
        while not self._abandoned.is_set():
            batch, unresolved = self._locks.take_free(self._limits.max_batch_rows)
            if not batch.items:
                break
            self._store_and_report(batch, unresolved=unresolved, again=True)
        self._locks.looked()

    # --- while there is no room

    def _do_without_room(self, batch: Batch, failed: OutOfRoom, *, again: bool) -> None:
        """Do what each unit of a batch allows; see ``orthia.journal.engine.retry``."""
        full = StoreFull(str(failed.error))
        if not self._is_full:
            self._is_full = True
            self._look_again_seconds = self._clock() + ROOM_SECONDS
            LOGGER.error("%s", full)
            self._full(full)
        takes_none: list[Appended] = []
        has_failed = True
        for item in batch.items:
            needed = room_needed(item, self._kept)
            if needed is RoomNeeded.NONE:
                takes_none.append(item)
                continue
            if takes_none:
                has_failed = self._store_persistently(
                    takes_none, failed, has_failed=has_failed, again=again
                )
                takes_none = []
            if needed is RoomNeeded.KEPT:
                self._kept.append(item)
            else:
                self._refuse(item, refusal_before(item) or full)
        if takes_none:
            self._store_persistently(takes_none, failed, has_failed=has_failed, again=again)

    def _with_kept(self, batch: Batch) -> Batch:
        """Return a batch with what was kept before it: a queue is bound before it has messages.

        Else a node that ends in between would leave messages that it confirmed, in no queue.
        """
        if not (batch.messages or batch.rows or batch.touches_bindings):
            return batch
        kept, self._kept = self._kept, []
        return batch_of([*kept, *batch.items])

    def _store_persistently(
        self, items: list[Appended], failed: OutOfRoom, *, has_failed: bool, again: bool
    ) -> bool:
        """Store what takes no room, in as many parts and however often that has to be tried.

        Whether the latest attempt at anything ``has_failed``, is given and returned.
        """
        parts = deque([(batch_of(items), failed.unresolved)])
        too_many = len(items) + 1
        while parts and not self._abandoned.is_set():
            part, unresolved = parts.popleft()
            part, left = self._locks.sift(part, unresolved=unresolved, again=again)
            if left is not None:
                parts.appendleft((left, unresolved))
            if not part.items:
                continue
            if len(part.items) >= max(2, too_many):
                parts.extendleft((one, unresolved) for one in reversed(part.split()))
                continue
            if part.guarded:  # an id cache may end with it
                screened = self._attempts.screened(part, self._duplicates.screen)
                if screened is None:
                    return has_failed
                part = screened
                self._locks.keep_forgotten(part)
            started = self._clock()
            try:
                attempts = self._attempts.store(
                    part,
                    unresolved=unresolved,
                    after_no_room=True,
                    after_failure_of_another=has_failed,
                )
            except MeetsLock as met:
                parts.appendleft((part, met.unresolved))
                continue
            except AtFault as fault:  # there was room for a probe, and what failed was not that
                has_failed = True
                smaller = self._part_or_refuse(part, fault.error)
                parts.extendleft((one, fault.unresolved) for one in reversed(smaller))
                continue
            except OutOfRoom as full:  # MySQL has much of one transaction in a temporary file
                has_failed, too_many = True, len(part.items)
                parts.appendleft((part, full.unresolved))
                continue
            has_failed = False
            if attempts is None or self._abandoned.is_set():
                break
            self._duplicates.stored(part)
            self._stored(part, part.report(self._clock() - started, attempts))
        return has_failed

    def _look_for_room(self) -> None:
        if not self._abandoned.is_set() and self._still_valid():
            with contextlib.suppress(StoreError):  # the database is away: asked again soon
                if self._store.has_room():
                    self._has_room()
        self._look_again_seconds = self._clock() + ROOM_SECONDS

    def _has_room(self) -> None:
        """Store what was kept, then say that messages are taken again."""
        kept, self._kept = self._kept, []
        if kept:
            self._store_and_report(batch_of(kept))
        if self._is_full and not self._kept:
            self._is_full = False
            LOGGER.warning("the store has room again: messages are taken again")
            self._full(None)

    def _part_or_refuse(self, batch: Batch, error: StoreError) -> list[Batch]:
        """Return the parts of a batch that is at fault; none if it was refused."""
        step = after_probe(
            error,
            units=len(batch.items),
            refusable=batch.items[0].refused is not None and batch.marker() is not None,
            unanswered=self._unanswered,
        )
        if step is NextStep.SPLIT:
            return batch.split()
        if step is NextStep.WAIT:
            return [batch]
        if step is NextStep.GIVE_UP:
            raise given_up(batch, error) from error
        self._unanswered = 0 if is_answer(error) else self._unanswered + 1
        LOGGER.error(
            "the database does not store %s, though it stores others; it is refused to its client,"
            " nothing of it is stored: %s",
            batch.describe(),
            error,
        )
        self._refuse(batch.items[0], UnitRefused(str(error)))
        return []
