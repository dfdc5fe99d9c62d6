"""The journal the broker uses: the front of intake, writer and reader, and its SQL store."""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.engine.abc import BatchStore, BodyStore, Recovered, Windows
from orthia.journal.engine.batch import Batch, BatchReport
from orthia.journal.engine.intake import Intake
from orthia.journal.engine.large import LargeMessages
from orthia.journal.engine.lock_watch import LockWatch, WhoLocks
from orthia.journal.engine.locks import LocksSeen
from orthia.journal.engine.reader import Reader
from orthia.journal.engine.retention import Pruner
from orthia.journal.engine.sweeping import TimesSweeper
from orthia.journal.engine.writer import Writer
from orthia.journal.errors import JournalClosed
from orthia.journal.limits import JournalLimits
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.history import HistoryTotals
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.unit import Appended, Done, Refused, Sender, Unit
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, Window


class Journal(MessageJournal):
    """A journal on a store; see ``MessageJournal`` for what its calls promise.

    A batch that fails for good (the fence refused it, the lease ended, the store refuses all)
    ends the journal: ``on_failure`` is called once, no caller of that batch or of any later one
    is completed, and every call raises ``JournalClosed``: the node stops, and its clients send
    again to the next. A unit that the store refuses while it takes others is refused alone,
    where it says whom to tell; see ``orthia.journal.engine.retry``. What can be refused beforehand
    is: see ``RecordTooLarge``.
    """

    def __init__(
        self,
        store: BatchStore,
        windows: Windows,
        bodies: BodyStore,
        recovered: Recovered,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
        on_failure: Callable[[OrthiaError], None],
        limits: JournalLimits,
        pruner: Pruner | None = None,
        sweeper: TimesSweeper | None = None,
        reusable: Callable[[], int] = lambda: 0,
        who_locks: WhoLocks | None = None,
    ) -> None:
        self._lock_watch = LockWatch(who_locks)
        self._pruner = pruner
        self._upkeep = [one for one in (pruner, sweeper) if one is not None]
        self._reusable = reusable
        self.large: LargeMessages = LargeMessages(
            bodies,
            next_id=self.next_id,
            post=post,
            still_valid=still_valid,
            failed=lambda error: post(partial(self._fail, error)),
            # The history lets go of a body without telling anybody.
            sweep_period_seconds=None if pruner is None else limits.sweep_period_seconds,
        )
        self.bindings = recovered.bindings
        self.recovery_horizon = recovered.horizon
        self.max_record_bytes = store.max_record_bytes
        self._limits = limits
        self._post = post
        self._on_failure = on_failure
        self._closing = threading.Lock()
        self._refusal: str | None = None
        self._silent = False
        self._writer = Writer(
            store,
            limits,
            still_valid=still_valid,
            stored=lambda batch, report: post(partial(self._complete, batch, report)),
            refused=lambda item, reason: post(partial(self._refuse, item, reason)),
            failed=lambda error: post(partial(self._fail, error)),
            full=lambda error: post(partial(self._say_full, error)),
            lock_watch=self._lock_watch,
        )
        self._full_listeners: list[Callable[[OrthiaError | None], None]] = []
        self._reader = Reader(windows, still_valid=still_valid, post=post)
        self._intake = Intake(
            first_id=recovered.horizon + 1,
            max_record_bytes=store.max_record_bytes,
            limits=limits,
            submit=self._writer.submit,
            bindings=recovered.bindings,
        )
        # As what fails in one piece: that is raised in what was posted.
        self._intake.failed = lambda error: post(partial(_raise, error))

    @property
    @override
    def last_committed_seq(self) -> int:
        return self._intake.last_committed_seq

    @override
    def reusable_bytes(self) -> int:
        return self._reusable()

    @property
    @override
    def is_full(self) -> bool:
        return self._intake.is_full

    @property
    @override
    def history_totals(self) -> HistoryTotals | None:
        return None if self._pruner is None else self._pruner.totals

    @property
    @override
    def locks(self) -> LocksSeen:
        return self._lock_watch.seen

    @override
    def next_id(self) -> int:
        self._refuse_if_closed()
        return self._intake.next_id()

    @override
    def append_message(
        self,
        queue_id: int,
        payload: bytes,
        done: Done | None,
        refused: Refused | None = None,
        sender: Sender | None = None,
    ) -> int:
        if self._refusal is not None:
            raise JournalClosed(self._refusal)
        return self._intake.message(queue_id, payload, done, refused, sender)

    @override
    def append_unit(self, unit: Unit) -> list[MessageLocation]:
        self._refuse_if_closed()
        return self._intake.unit(unit)

    @override
    def delete(self, locations: Iterable[MessageLocation], done: Done | None = None) -> None:
        self._refuse_if_closed()
        self._intake.deletion(locations, done)

    @override
    def read_window(
        self,
        queue_id: int,
        after_seq: int,
        up_to_seq: int,
        max_messages: int,
        max_bytes: int,
        done: Callable[[Window | OrthiaError], None],
    ) -> None:
        self._refuse_if_closed()
        self._reader.window(queue_id, after_seq, up_to_seq, max_messages, max_bytes, done)

    @override
    def count(
        self,
        after: QueuePlace,
        up_to_seq: int,
        limit: int,
        done: Callable[[QueueCounts | OrthiaError], None],
    ) -> None:
        self._refuse_if_closed()
        self._reader.count(after, up_to_seq, limit, done)

    @override
    def read_reached(
        self,
        kind: MomentKind,
        after: MomentPlace,
        up_to_ms: int,
        limit: int,
        max_bytes: int,
        done: Callable[[Reached | OrthiaError], None],
    ) -> None:
        self._refuse_if_closed()
        self._reader.reached(kind, after, up_to_ms, limit, max_bytes, done)

    @override
    def complete_in_steps(self, run: Callable[[Iterator[bool]], object]) -> None:
        self._intake.run = run

    @override
    def register_room_listener(self, callback: Callable[[], None]) -> None:
        self._intake.register_room_listener(callback)

    @override
    def register_batch_listener(self, callback: Callable[[BatchReport], None]) -> None:
        self._intake.register_batch_listener(callback)

    @override
    def register_full_listener(self, callback: Callable[[OrthiaError | None], None]) -> None:
        self._full_listeners.append(callback)

    @override
    def close(self, *, drain: bool) -> bool:
        with self._closing:
            if self._refusal is None:
                self._refusal = "the journal is closed"
            self._reader.close()
            self.large.close()
            for one in self._upkeep:
                one.stop()
            if drain:
                self._writer.finish()
                self._writer.join(self._limits.drain_timeout_ms / 1000)
            if not self._writer.finished:
                # Else those are told whose units are stored, though others' had to be put aside.
                self._silent = True
                self._writer.abandon()
                self._writer.join(self._limits.abandon_timeout_ms / 1000)
            self._lock_watch.stop()
            self._lock_watch.join(self._limits.abandon_timeout_ms / 1000)
            self._reader.join(self._limits.abandon_timeout_ms / 1000)
            self.large.join(self._limits.abandon_timeout_ms / 1000)
            for one in self._upkeep:
                one.join(self._limits.abandon_timeout_ms / 1000)
            return self._writer.drained

    def start(self) -> None:
        """Start the threads of a journal that was just made."""
        self._lock_watch.start()
        self._writer.start()
        self._reader.start()
        self.large.start()
        for one in self._upkeep:
            one.start()

    def _refuse_if_closed(self) -> None:
        if self._refusal is not None:
            raise JournalClosed(self._refusal)

    def _complete(self, batch: Batch, report: BatchReport) -> None:
        if self._silent:
            return
        if not (batch.linked or batch.unlinked):  # as almost always
            self._intake.complete(batch.items, report)
        else:
            gone = set(batch.unlinked)
            linked = {link.large_id for link in batch.linked if link not in gone}
            unlinked = {large_id for large_id, _ in gone} - linked
            self.large.linked(linked)
            self._intake.complete(batch.items, report, partial(self.large.unlinked, unlinked))

    def _refuse(self, item: Appended, reason: OrthiaError) -> None:
        if not self._silent:
            self._intake.refuse(item, reason)

    def _say_full(self, error: OrthiaError | None) -> None:
        if not self._silent:
            for listener in self._full_listeners:
                listener(error)

    def _fail(self, error: OrthiaError) -> None:
        if not self._silent:
            self._silent = True
            self._intake.stop()
            self._refusal = f"the journal has failed: {error}"
            for one in self._upkeep:
                one.stop()
            self._on_failure(error)


def _raise(error: Exception) -> None:
    raise error
