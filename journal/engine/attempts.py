"""Attempts at one batch: it is stored exactly once, or given up, whatever happens to connections.

``orthia.journal.engine.retry`` decides what follows a failure; this module does it, on the writer's
thread.
"""

from collections.abc import Callable
from threading import Event

from orthia.database import Locked, NoRoom, StoreError
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, probe
from orthia.journal.engine.lasting import LastingFailure
from orthia.journal.engine.retry import (
    NextStep,
    after_failure,
    is_suspect,
    pause_seconds,
)
from orthia.journal.errors import JournalError, LeaseExpired, OutboxRowsGone


class AtFault(Exception):  # noqa: N818 - of a batch
    """The store refuses this batch, of which nothing is stored, and takes others.

    Unless it has no marker: then an earlier attempt may have stored it, if it is ``unresolved``.
    """

    def __init__(self, error: StoreError, *, unresolved: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.unresolved = unresolved


class OutOfRoom(Exception):  # noqa: N818 - of a batch
    """The store has no room for a batch, of which nothing is stored.

    Unless it only frees: then an earlier attempt may have stored it, if it is ``unresolved``.
    """

    def __init__(self, error: NoRoom, *, unresolved: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.unresolved = unresolved


class MeetsLock(Exception):  # noqa: N818 - of a batch
    """Some units of a batch, of which nothing is stored, wait for a lock or are refused.

    Unless it only frees: then an earlier attempt may have stored it, if it is ``unresolved``.
    """

    def __init__(self, *, unresolved: bool) -> None:
        super().__init__()
        self.unresolved = unresolved


class Attempts:
    """Stores batches in ``store``, however many attempts that takes, until ``abandoned`` is set."""

    def __init__(
        self,
        store: BatchStore,
        *,
        still_valid: Callable[[], bool],
        abandoned: Event,
        clock: Callable[[], float],
        meets_lock: Callable[[Batch], bool] = lambda _: False,
    ) -> None:
        """``meets_lock`` gets a batch that failed because another session holds a lock.

        It returns whether some of the batch is to be put aside for that, or refused.
        """
        self._store = store
        self._meets_lock = meets_lock
        self._still_valid = still_valid
        self._abandoned = abandoned
        self._clock = clock

    def store(
        self,
        batch: Batch,
        *,
        unresolved: bool,
        after_no_room: bool = False,
        after_failure_of_another: bool = False,
    ) -> int | None:
        """Store ``batch``, repeating as ``orthia.journal.engine.retry`` says; return how often.

        ``unresolved`` says that it may be part of what was stored already, and
        ``after_failure_of_another`` that the connection is to be made anew. None if it was
        abandoned. Raises what it gave up for, AtFault if the store takes others, OutOfRoom if it
        takes nothing that grows; ``after_no_room`` only for what can be parted: all that is left
        for one unit is to try on. MeetsLock if it cannot be stored as it is, AcknowledgedBefore if
        some units are to be refused: an earlier attempt has not stored those, or no application
        could have acknowledged their messages.
        """
        attempts = failures = 0
        kind: type[StoreError] | None = None
        step: NextStep | None = NextStep.RECONNECT if after_failure_of_another else None
        lasting = LastingFailure("the journal has stored nothing", self._clock)
        while not self._abandoned.is_set():
            if not self._still_valid():
                raise LeaseExpired(
                    f"the lease ended before {batch.describe()} was known to be stored;"
                    " nothing of it was confirmed to a client"
                )
            attempts += 1
            is_storing = False
            try:
                found = step is not None and self._recover(batch, step)
                if not found:
                    is_storing = True
                    found = self._store_or_find(batch, unresolved=unresolved)
                    is_storing = False
                if unresolved and (found or batch.marker() is None):
                    self._store.confirm()
            except StoreError as error:
                valid = self._still_valid()
                gives_way = not after_no_room or len(batch.items) > 1
                # This attempt has looked for what an earlier one may have stored.
                was_looked_for = step is NextStep.RECONNECT_AND_RESOLVE and is_storing
                is_absent = was_looked_for and batch.marker() is not None
                # A batch that only frees may be repeated.
                may_be_parted = valid and (batch.only_frees or not unresolved or is_absent)
                may_be_stored = unresolved and batch.only_frees
                if isinstance(error, NoRoom) and gives_way and may_be_parted:
                    raise OutOfRoom(error, unresolved=may_be_stored) from error
                is_locked = isinstance(error, Locked) and is_storing and may_be_parted
                if is_locked and self._meets_lock(batch):
                    raise MeetsLock(unresolved=may_be_stored) from error
                step = after_failure(error, unresolved=unresolved, lease_valid=valid)
                unresolved = unresolved or step is NextStep.RECONNECT_AND_RESOLVE
                if is_storing:
                    failures = failures + 1 if type(error) is kind else 1
                    kind = type(error)
                    if is_suspect(error, failures=failures, lease_valid=valid):
                        failures = 0
                        if self._takes_others(batch):
                            raise AtFault(error, unresolved=unresolved) from error
                        if step is not NextStep.GIVE_UP:
                            # The connection is lost with the probe, or the batch turned out stored.
                            step, unresolved = NextStep.RECONNECT_AND_RESOLVE, True
                if step is NextStep.GIVE_UP:
                    raise given_up(batch, error) from error
                lasting.failed(error)
                self._abandoned.wait(pause_seconds(attempts))
            else:
                return attempts
        return None

    def _store_or_find(self, batch: Batch, *, unresolved: bool) -> bool:
        """Store a batch; return True if its rows of the outbox tell that it was stored before."""
        try:
            self._store.store(batch)
        except OutboxRowsGone as gone:
            # A batch without a row of its own is repeated: nothing else tells of its first attempt.
            if unresolved and gone.all_of_them and batch.marker() is None:
                return True
            raise
        return False

    def screened(self, batch: Batch, screen: Callable[[Batch], Batch]) -> Batch | None:
        """Return a batch without its duplicates, retrying ``screen`` while it fails.

        Returns None if it was abandoned. Raises the error that it gave up for.
        """
        attempts = 0
        lasting = LastingFailure("the journal has stored nothing", self._clock)
        while not self._abandoned.is_set():
            attempts += 1
            try:
                if attempts > 1:
                    # Reconnect first: its failure is judged like any other.
                    self._store.connect()
                return screen(batch)
            except StoreError as error:
                step = after_failure(error, unresolved=False, lease_valid=self._still_valid())
                if step is NextStep.GIVE_UP:
                    raise given_up(batch, error) from error
                lasting.failed(error)
                self._abandoned.wait(pause_seconds(attempts))
        return None

    def _takes_others(self, batch: Batch) -> bool:
        """Return whether nothing of ``batch`` is stored while a probe is, on a new connection."""
        try:
            if self._recover(batch, NextStep.RECONNECT_AND_RESOLVE):
                return False
            self._store.store(probe())
        except StoreError:
            return False
        return True

    def _recover(self, batch: Batch, step: NextStep) -> bool:
        """Prepare another attempt; return True if the batch turns out to be stored."""
        if step is NextStep.REPEAT:
            return False
        self._store.connect()
        if step is NextStep.RECONNECT:
            return False
        marker = batch.marker()
        return marker is not None and self._store.is_stored(marker)


def given_up(batch: Batch, error: StoreError) -> JournalError:
    """Return the error that ends the journal: a batch was not stored."""
    return JournalError(
        f"{batch.describe()} was given up, and not confirmed to any client: {error}"
    )
