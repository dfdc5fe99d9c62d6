"""Finds rows that other sessions have locked, for the writer, on its thread.

``orthia.journal.engine.locks`` decides what happens to the units.
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
from orthia.journal.model.unit import Appended, AppendedMessage, Unit

_LOOKS_AT_ONCE = 16
"""How many look-ups in a row may find some rows still locked: all other work waits for them."""


class _Store(Protocol):
    """The writer's store."""

    rows_looked_at: int

    def connect(self) -> None:
        """Open the connection anew."""

    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        """Return which of these rows another session has locked."""


class LockedRows:
    """The rows known to be locked, and the units that wait for them."""

    def __init__(
        self,
        store: _Store,
        watch: LockWatch,
        clock: Callable[[], float],
        refuse: Callable[[Appended, OrthiaError], None],
        aside: Callable[[Sequence[Unit]], None] = lambda _: None,
    ) -> None:
        """``refuse`` is called with each unit that cannot wait, and the reason.

        ``aside`` is called with those that are put aside, once.
        """
        self._refuse = refuse
        self._tell_aside = aside
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
        """Whether it is time to check locked rows again."""
        return self.met and self._clock() >= self._look_seconds

    def meets_lock(self, batch: Batch) -> bool:
        """Find the locked rows of a batch that failed for a lock; return whether to sift it."""
        with contextlib.suppress(StoreError):  # as where a table is locked
            self._find(batch)
        self._watch.meets_lock([*self._aside.locked], len(self._aside))
        self.met = bool(self._aside)
        return self._aside.stands_back(batch)

    def sift(self, batch: Batch, *, unresolved: bool, again: bool) -> tuple[Batch, Batch | None]:
        """Return the part of a batch that waits for no lock; put aside or refuse the rest.

        Also returns what to sift once that part is stored, whose first unit is then refused.
        ``again`` says that ``take_free`` returned the batch. Its rows are checked before anything
        waits for them: where one row is locked, others usually are.
        """
        if not self.met:
            return batch, None
        with contextlib.suppress(StoreError):  # then the batch runs into whatever is locked
            self._find(batch)
        sift = self._aside.sift_again if again else self._aside.sift
        stored, refused, waiting, left = sift(batch, unresolved=unresolved)
        if waiting:
            self._tell_aside(waiting)
        for unit in refused:
            self._refuse(unit, HeldElsewhere())
        return stored, left

    def forget(self, attempts: Attempts) -> None:
        """Delete the rows of evicted duplicate ids, as far as they are free by now."""
        batch = self._aside.take_forgotten()
        if batch.forgotten:
            try:
                attempts.store(batch, unresolved=False)
            except (MeetsLock, AtFault, OutOfRoom):
                self.keep_forgotten(batch, locked_only=False)

    def look(self) -> None:
        """Check whether some rows are still locked, and more rows as long as some are free."""
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
            with contextlib.suppress(
                StoreError
            ):  # the database is unavailable: the next look tries again
                self._store.connect()

    def looked(self) -> None:
        """Record that what was free is stored, and when to look next."""
        self.met = bool(self._aside)
        if self.met:
            self._watch.meets_lock([*self._aside.locked], len(self._aside))
        else:
            self._watch.is_free()
        self._look_seconds = self._clock() + LOCKED_LOOK_SECONDS

    def stored_after_failure(self) -> None:
        """Record that a batch that had failed is stored: no table is locked any longer."""
        self._watch.table_is_free()

    def _find(self, batch: Batch) -> None:
        """Find locked rows of a batch among those not known to be locked."""
        known = self._aside.locked
        waiting = [RowKey(RowKind.MESSAGE, seq) for seq in batch.forgotten]
        others: list[tuple[RowKey, int]] = []
        for number, item in enumerate(batch.items):
            if isinstance(item, AppendedMessage):
                others += [(row, number) for row in rows_of(item)]
            elif can_wait(item):
                waiting += rows_of(item)
            else:
                others += [(row, number) for row in rows_of(item)]
        rows = [row for row in dict.fromkeys(waiting) if row not in known]
        if rows:
            self._aside.are_locked(self._store.locked(rows))
        # Rows known to be locked too, and so few at once that none is wrongly taken for locked:
        # a refusal is final.
        while others:
            some, others = others[:CERTAIN_ROWS], others[CERTAIN_ROWS:]
            asked = [row for row, _ in some]
            locked = self._store.locked(asked)
            self._aside.looked(asked, locked)
            done = {number for row, number in some if row in locked}
            others = [one for one in others if one[1] not in done]
