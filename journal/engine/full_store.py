"""What the writer does while the store has no room for messages.

``orthia.journal.engine.retry`` decides about each unit: one that only deletes is stored, one that
stores a message is refused, one that binds a queue is kept. A probe finds out when there is room
again. Runs on the writer's thread.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable

from orthia.database import StoreError
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.attempts import AtFault, MeetsLock, OutOfRoom
from orthia.journal.engine.batch import Batch, BatchReport, batch_of
from orthia.journal.engine.retry import RoomNeeded, room_needed
from orthia.journal.engine.senders import in_turn, refusal_before
from orthia.journal.engine.storing import Parts, Storing
from orthia.journal.errors import AcknowledgedBefore, StoreFull
from orthia.journal.model.unit import Appended

LOGGER = logging.getLogger("orthia.journal")
ROOM_SECONDS = 1.0
"""How often a store that had no room is asked whether it has some."""


class FullStore:
    """Whether the store is full, and the units that wait for room."""

    def __init__(
        self,
        store: BatchStore,
        storing: Storing,
        *,
        still_valid: Callable[[], bool],
        stored: Callable[[Batch, BatchReport], None],
        full: Callable[[StoreFull | None], None],
        clock: Callable[[], float],
    ) -> None:
        """``full`` is told why there is no room, and None when there is again."""
        self._store = store
        self._storing = storing
        self._still_valid = still_valid
        self._stored = stored
        self._full = full
        self._clock = clock
        self._look_again_seconds = 0.0
        """When to look for room next, whatever else comes."""
        self.kept: list[Appended] = []
        """Units that bind queues, while there is no room for them."""
        self.is_full = False
        self.look_seconds = ROOM_SECONDS
        """How often to look, while nothing else comes."""

    @property
    def is_due(self) -> bool:
        """Whether a probe is due, however busy the writer is."""
        return self.is_full and self._clock() >= self._look_again_seconds

    def with_kept(self, batch: Batch) -> Batch:
        """Return a batch with the kept units before it: a queue is bound before it has messages.

        Otherwise a node that ends in between would leave confirmed messages in no queue.
        """
        if not (batch.messages or batch.rows or batch.touches_bindings):
            return batch
        kept, self.kept = self.kept, []
        return batch_of([*kept, *batch.items])

    def look(self) -> Batch | None:
        """Probe for room; return what was kept if there is some, None if not."""
        has_room = False
        if not self._storing.abandoned.is_set() and self._still_valid():
            with contextlib.suppress(
                StoreError
            ):  # the database is unavailable: the next look tries again
                has_room = self._store.has_room()
        self._look_again_seconds = self._clock() + self.look_seconds
        if not has_room:
            return None
        kept, self.kept = self.kept, []
        return batch_of(kept)

    def has_room(self) -> None:
        """Report that messages are accepted again, once what was kept is stored."""
        if self.is_full and not self.kept:
            self.is_full = False
            LOGGER.warning("the store has room again: accepting messages")
            self._full(None)

    def store_what_frees(self, batch: Batch, failed: OutOfRoom, *, again: bool) -> None:
        """Store the units of a batch that need no room; refuse or keep the others, in order."""
        full = StoreFull(str(failed.error))
        if not self.is_full:
            self.is_full = True
            self._look_again_seconds = self._clock() + self.look_seconds
            LOGGER.error("%s", full)
            self._full(full)
        frees: list[Appended] = []
        has_failed = True
        for item in batch.items:
            needed = room_needed(item, self.kept)
            if needed is RoomNeeded.NONE:
                frees.append(item)
                continue
            if frees:
                has_failed = self._store_persistently(
                    frees, failed, has_failed=has_failed, again=again
                )
                frees = []
            if needed is RoomNeeded.KEPT:
                self.kept.append(item)
            else:
                self._storing.refuse(item, refusal_before(item) or full)
        if frees:
            self._store_persistently(frees, failed, has_failed=has_failed, again=again)

    def _store_persistently(
        self, items: list[Appended], failed: OutOfRoom, *, has_failed: bool, again: bool
    ) -> bool:
        """Store units that need no room, in as many parts and attempts as it takes.

        ``has_failed`` says whether the latest attempt failed; the new value is returned.
        """
        storing = self._storing
        parts: Parts = deque([(batch_of(items), failed.unresolved)])
        too_many = len(items) + 1
        while parts and not storing.abandoned.is_set():
            part, unresolved = parts.popleft()
            part, left = storing.locks.sift(part, unresolved=unresolved, again=again)
            if left is not None:
                parts.appendleft((left, unresolved))
            if not part.items:
                continue
            refusal = refusal_before(part.items[0])
            if refusal is not None:
                for item in part.items:
                    storing.refuse(item, refusal)
                continue
            if len(part.items) >= max(2, too_many):
                parts.extendleft((one, unresolved) for one in reversed(part.split()))
                continue
            if part.guarded:  # an id cache may end with it
                screened = storing.screened(part)
                if screened is None:
                    return has_failed
                part = screened
            started = self._clock()
            try:
                attempts = storing.attempts.store(
                    part,
                    unresolved=unresolved,
                    after_no_room=True,
                    after_failure_of_another=has_failed,
                )
            except MeetsLock as met:
                parts.appendleft((part, met.unresolved))
                continue
            except AcknowledgedBefore as found:
                storing.note_acknowledged(part, found)
                runs = [batch_of(some) for _, some in in_turn(part.items)]
                parts.extendleft((run, unresolved) for run in reversed(runs))
                continue
            except AtFault as fault:  # a probe had room, so this failed for another reason
                has_failed = True
                storing.part_or_refuse(parts, part, fault)
                continue
            except OutOfRoom as full:  # MySQL spills large transactions to a temporary file
                has_failed, too_many = True, len(part.items)
                parts.appendleft((part, full.unresolved))
                continue
            has_failed = False
            if attempts is None or storing.abandoned.is_set():
                break
            storing.duplicates.stored(part)
            self._stored(part, part.report(self._clock() - started, attempts))
        return has_failed
