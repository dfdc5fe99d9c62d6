"""Storing one part of a batch, as the writer's loop and a full store both do.

Before an attempt, units that wait for a lock and duplicates are taken out of the part. A part that
the store refuses while it takes others is split, or its only unit is refused; see the tables in
``orthia.journal.engine.retry``. Runs on the writer's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeAlias

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.attempts import AtFault, Attempts, given_up
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.duplicates import DuplicateIds
from orthia.journal.engine.lock_watch import LockWatch
from orthia.journal.engine.locked_rows import LockedRows
from orthia.journal.engine.retry import NextStep, after_probe, is_answer
from orthia.journal.engine.senders import mark_refused
from orthia.journal.errors import AcknowledgedBefore, OutboxRowsGone, UnitRefused
from orthia.journal.model.unit import Appended, Unit

LOGGER = logging.getLogger("orthia.journal")

Parts: TypeAlias = deque[tuple[Batch, bool]]
"""Parts of a batch still to be stored, in order, and whether an earlier attempt may have."""


class Storing:
    """Attempts to store parts of batches, with the known locks and duplicate ids."""

    def __init__(
        self,
        store: BatchStore,
        *,
        still_valid: Callable[[], bool],
        abandoned: Event,
        refused: Callable[[Appended, OrthiaError], None],
        lock_watch: LockWatch | None,
        clock: Callable[[], float],
        aside: Callable[[Sequence[Unit]], None],
    ) -> None:
        """``refused`` is called with each unit that is refused, and why.

        ``aside`` is called with those that wait for a lock of another session.
        """
        self._refused = refused
        self.unanswered = 0
        """Units refused in a row without an answer of the database; 0 once it stores something."""
        self.abandoned = abandoned
        self.has_refused = False
        """Whether any unit was refused: until then no sender need be checked."""
        self.duplicates = DuplicateIds(store.duplicate_ids)
        self.locks = LockedRows(store, lock_watch or LockWatch(), clock, self.refuse, aside)
        self.attempts = Attempts(
            store,
            still_valid=still_valid,
            abandoned=abandoned,
            clock=clock,
            meets_lock=self.locks.meets_lock,
        )

    def screened(self, batch: Batch) -> Batch | None:
        """Return a batch without its duplicates; None if it was abandoned meanwhile."""
        screened = self.attempts.screened(batch, self.duplicates.screen)
        if screened is not None:
            self.locks.keep_forgotten(screened)
        return screened

    def refuse(self, item: Appended, reason: OrthiaError) -> None:
        """Refuse a unit, and mark its sender so that its later units are refused too."""
        mark_refused(item, reason)
        self.has_refused = True
        self._refused(item, reason)

    def note_acknowledged(self, batch: Batch, found: AcknowledgedBefore) -> None:
        """Refuse the units that move what applications have acknowledged, when it is their turn."""
        self.has_refused = True
        for item in batch.items:
            if isinstance(item, Unit):
                seqs = found.seqs.intersection(item.moved)
                if seqs:
                    item.refusal = AcknowledgedBefore(seqs)

    def part_or_refuse(self, parts: Parts, batch: Batch, fault: AtFault) -> None:
        """Put back the parts of a batch that is at fault, or refuse its only unit."""
        error = fault.error
        step = after_probe(
            error,
            units=len(batch.items),
            refusable=batch.items[0].refused is not None
            and (batch.marker() is not None or isinstance(error, OutboxRowsGone)),
            unanswered=self.unanswered,
        )
        if step is NextStep.GIVE_UP:
            raise given_up(batch, error) from error
        if step is NextStep.REFUSE:
            self.unanswered = 0 if is_answer(error) else self.unanswered + 1
            LOGGER.error(
                "the database refused %s, though it stores others: %s; nothing of it is stored, and"
                " its client is told",
                batch.describe(),
                error,
            )
            is_gone = isinstance(error, OutboxRowsGone)
            self.refuse(batch.items[0], error if is_gone else UnitRefused(str(error)))
            return
        smaller = batch.split() if step is NextStep.SPLIT else [batch]
        parts.extendleft((one, fault.unresolved) for one in reversed(smaller))
