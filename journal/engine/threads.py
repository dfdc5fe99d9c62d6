"""A journal on a store: its threads, and the order in which they start and end."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import BatchStore, BodyStore, Recovered, Windows
from orthia.journal.engine.acks import AckReader
from orthia.journal.engine.batch import Batch, BatchReport
from orthia.journal.engine.intake import Intake
from orthia.journal.engine.large import LargeMessages
from orthia.journal.engine.lock_watch import LockWatch, WhoLocks
from orthia.journal.engine.locks import LocksSeen
from orthia.journal.engine.outbox import OutboxReader
from orthia.journal.engine.read_thread import ReadThread
from orthia.journal.engine.retention import Pruner
from orthia.journal.engine.sweeping import TimesSweeper
from orthia.journal.engine.writer import Writer
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits
from orthia.journal.model.history import HistoryTotals
from orthia.journal.model.unit import Appended, Unit

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Backend:
    """What a store provides for the threads of a journal."""

    store: BatchStore
    windows: Windows
    bodies: BodyStore
    recovered: Recovered
    acks: AckReader | None = None
    pruner: Pruner | None = None
    sweeper: TimesSweeper | None = None
    reusable: Callable[[], int] = lambda: 0
    who_locks: WhoLocks | None = None
    outbox: OutboxReader | None = None


class _Part(Protocol):
    """A thread, or several."""

    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """Tell it to end after the step it is at."""

    def join(self, timeout_seconds: float) -> object:
        """Wait for its end."""


class ThreadedJournal(MessageJournal):
    """Threads that write, read, and keep bodies and history; outcomes go to the event loop."""

    def __init__(
        self,
        backend: Backend,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
        on_failure: Callable[[OrthiaError], None],
        limits: JournalLimits,
    ) -> None:
        """``post`` runs a callable on the event loop, later, in order, from any thread.

        ``still_valid`` says on the journal's threads whether the lease holds, and ``on_failure`` is
        called on the loop, at most once.
        """
        store, pruner = backend.store, backend.pruner
        self.windows = backend.windows
        self.recovered = backend.recovered
        self.max_record_bytes = store.max_record_bytes
        self._backend = backend
        self._limits = limits
        self._on_failure = on_failure
        self._closing = threading.Lock()
        self._silent = False
        """Whether outcomes are no longer reported."""
        self._full_listeners: list[Callable[[OrthiaError | None], None]] = []
        self._lock_watch = LockWatch(backend.who_locks)
        self.writer = Writer(
            store,
            limits,
            still_valid=still_valid,
            stored=lambda batch, report: post(partial(self._complete, batch, report)),
            refused=lambda item, reason: post(partial(self._refuse, item, reason)),
            failed=lambda error: post(partial(self._fail, error)),
            full=lambda error: post(partial(self._say_full, error)),
            aside=lambda units: post(partial(self._put_aside, units)),
            lock_watch=self._lock_watch,
        )
        self.reader = ReadThread(
            "journal-reader",
            still_valid=still_valid,
            post=post,
            ended=backend.windows.close,
            what="messages of queues",
        )
        self.large: LargeMessages = LargeMessages(
            backend.bodies,
            next_id=self.next_id,
            post=post,
            still_valid=still_valid,
            failed=lambda error: post(partial(self._fail, error)),
            # Pruning the history unlinks bodies without a report.
            sweep_period_seconds=None if pruner is None else limits.sweep_period_seconds,
        )
        self.outbox = backend.outbox
        self.acks = backend.acks
        upkeep = (pruner, backend.sweeper, self.outbox, self.acks)
        self._upkeep: Sequence[_Part] = [one for one in upkeep if one is not None]
        self.intake = Intake(
            first_id=self.recovered.horizon + 1,
            max_record_bytes=store.max_record_bytes,
            limits=limits,
            submit=self.writer.submit,
            bindings=self.recovered.bindings,
        )
        # An error in steps is raised on the loop, as one in a single piece is.
        self.intake.failed = lambda error: post(partial(_raise, error))

    @override
    def ask(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        self.reader.ask(read, done)

    @property
    @override
    def history_totals(self) -> HistoryTotals | None:
        pruner = self._backend.pruner
        return None if pruner is None else pruner.totals

    @property
    @override
    def locks(self) -> LocksSeen:
        return self._lock_watch.seen

    @override
    def reusable_bytes(self) -> int:
        return self._backend.reusable()

    @override
    def register_full_listener(self, callback: Callable[[OrthiaError | None], None]) -> None:
        self._full_listeners.append(callback)

    def start(self) -> None:
        """Start the threads."""
        self._lock_watch.start()
        self.writer.start()
        self.reader.start()
        self.large.start()
        for one in self._upkeep:
            one.start()

    @override
    def close(self, *, drain: bool) -> bool:
        seconds = self._limits.abandon_timeout_ms / 1000
        with self._closing:
            if self.refusal is None:
                self.refusal = "the journal is closed"
            self.reader.close()
            self.large.close()
            self._stop_upkeep()
            if drain:
                self.writer.finish()
                self.writer.join(self._limits.drain_timeout_ms / 1000)
            if not self.writer.finished:
                # Otherwise callers whose units are stored are told, though others were put aside.
                self._silent = True
                self.writer.abandon()
                self.writer.join(seconds)
            self._lock_watch.stop()
            self._lock_watch.join(seconds)
            self.reader.join(seconds)
            self.large.join(seconds)
            for one in self._upkeep:
                one.join(seconds)
            return self.writer.drained

    def _stop_upkeep(self) -> None:
        for one in self._upkeep:
            one.stop()

    # --- what the threads tell the loop

    def _complete(self, batch: Batch, report: BatchReport) -> None:
        if self._silent:
            return
        if not (batch.linked or batch.unlinked):  # as almost always
            self.intake.complete(batch.items, report)
        else:
            gone = set(batch.unlinked)
            linked = {link.large_id for link in batch.linked if link not in gone}
            unlinked = {large_id for large_id, _ in gone} - linked
            self.large.linked(linked)
            self.intake.complete(batch.items, report, partial(self.large.unlinked, unlinked))

    def _refuse(self, item: Appended, reason: OrthiaError) -> None:
        if not self._silent:
            self.intake.refuse(item, reason)

    def _put_aside(self, units: Sequence[Unit]) -> None:
        if not self._silent:
            self.intake.put_aside(units)

    def _say_full(self, error: OrthiaError | None) -> None:
        if not self._silent:
            for listener in self._full_listeners:
                listener(error)

    def _fail(self, error: OrthiaError) -> None:
        if not self._silent:
            self._silent = True
            self.intake.stop()
            self.refusal = f"the journal has failed: {error}"
            self._stop_upkeep()
            self._on_failure(error)


def _raise(error: Exception) -> None:
    raise error
