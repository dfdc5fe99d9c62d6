"""What the writer does about locks of other sessions: it looks for them, and has them named.

What becomes of the units is decided in ``orthia.journal.engine.locks``. On the writer's thread.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from orthia.config.errors import OrthiaError
from orthia.database import StoreError
from orthia.journal.engine.abc import CERTAIN_ROWS
from orthia.journal.engine.attempts import AtFault, Attempts, MeetsLock, OutOfRoom
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.lock_watch import LockWatch
from orthia.journal.engine.locks import PutAside, RowKey, RowKind, can_wait, rows_of
from orthia.journal.engine.retry import LOCKED_LOOK_SECONDS
from orthia.journal.errors import HeldElsewhere
from orthia.journal.model.unit import Appended, AppendedMessage

_LOOKS_AT_ONCE = 16
"""Looks with locked rows among those that are free, for which everybody else waits."""


class _Store(Protocol):
    """The writer's store."""

    rows_looked_at: int

    def connect(self) -> None:
        """Open the connection anew."""

    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        """Return which of these rows another session has locked."""


class LockedRows:
    """The rows that are known to be locked, and the units that wait for them."""

    def __init__(
        self,
        store: _Store,
        watch: LockWatch,
        clock: Callable[[], float],
        refuse: Callable[[Appended, OrthiaError], None],
    ) -> None:
        """``refuse`` is called with what cannot wait, and why."""
        self._refuse = refuse
        self._store = store
        self._watch = watch
        self._clock = clock
        self._aside = PutAside()
        self._look_seconds = 0.0
        self.met = False
        """Whether a row is known to be locked, or something is put aside: asked with each batch."""
        self.begin = self._aside.begin
        self.take_free = self._aside.take_free
        self.keep_forgotten = self._aside.keep_forgotten

    @property
    def put_aside(self) -> int:
        """How many units wait."""
        return len(self._aside)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look whether locked rows are free."""
        return self.met and self._clock() >= self._look_seconds

    def meets_lock(self, batch: Batch) -> bool:
        """Look for locked rows of a batch that failed for a lock; return whether to sift it."""
        with contextlib.suppress(StoreError):  # as where a table is locked
            self._find(batch)
        self._watch.meets_lock([*self._aside.locked], len(self._aside))
        self.met = bool(self._aside)
        return self._aside.stands_back(batch)

    def sift(self, batch: Batch, *, unresolved: bool, again: bool) -> tuple[Batch, Batch | None]:
        """Return what of a batch waits for no lock, the rest being put aside or refused.

        And what is to be sifted once that is stored, of which the first is to be refused then.
        ``again`` says that ``take_free`` returned it. Its rows are looked at before they are waited
        for: where one row is locked others are.
        """
        if not self.met:
            return batch, None
        with contextlib.suppress(StoreError):  # then the batch meets what there is
            self._find(batch)
        sift = self._aside.sift_again if again else self._aside.sift
        stored, refused, left = sift(batch, unresolved=unresolved)
        for unit in refused:
            self._refuse(unit, HeldElsewhere())
        return stored, left

    def forget(self, attempts: Attempts) -> None:
        """Delete the rows of ids that are to be forgotten, as far as they are free by now."""
        batch = self._aside.take_forgotten()
        if batch.forgotten:
            try:
                attempts.store(batch, unresolved=False)
            except (MeetsLock, AtFault, OutOfRoom):
                self.keep_forgotten(batch, locked_only=False)

    def look(self) -> None:
        """Ask of some rows whether they are still locked, of more as long as some are free."""
        most = self._store.rows_looked_at
        left = _LOOKS_AT_ONCE
        try:
            while left and (rows := self._aside.to_look_at(most)):
                free = self._aside.looked(rows, self._store.locked(rows))
                if free == len(rows):
                    most *= 2
                else:
                    left = left - 1 if free else 0
        except StoreError:
            with contextlib.suppress(StoreError):  # the database is away: asked again soon
                self._store.connect()

    def looked(self) -> None:
        """Take note that what is free was stored, and when to look next."""
        self.met = bool(self._aside)
        if self.met:
            self._watch.meets_lock([*self._aside.locked], len(self._aside))
        else:
            self._watch.is_free()
        self._look_seconds = self._clock() + LOCKED_LOOK_SECONDS

    def stored_after_failure(self) -> None:
        """Take note that a batch was stored that had failed: no table is locked any more."""
        self._watch.table_is_free()

    def _find(self, batch: Batch) -> None:
        """Look for locked rows of a batch, as far as it is not known that they are."""
        known = self._aside.locked
        waiting = [RowKey(RowKind.MESSAGE, seq) for seq in batch.forgotten]
        others: list[tuple[RowKey, int]] = []
        for number, item in enumerate(batch.items):
            if isinstance(item, AppendedMessage):
                continue
            if can_wait(item):
                waiting += rows_of(item)
            else:
                others += [(row, number) for row in rows_of(item)]
        rows = [row for row in dict.fromkeys(waiting) if row not in known]
        if rows:
            self._aside.are_locked(self._store.locked(rows))
        # Also of those that were locked before, and so few at once that none is taken for locked
        # which is not: who is refused is so for good.
        while others:
            some, others = others[:CERTAIN_ROWS], others[CERTAIN_ROWS:]
            asked = [row for row, _ in some]
            locked = self._store.locked(asked)
            self._aside.looked(asked, locked)
            done = {number for row, number in some if row in locked}
            others = [one for one in others if one[1] not in done]
