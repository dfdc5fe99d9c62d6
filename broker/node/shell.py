"""Carries out the effects of a node's state machine on store, node manager and service."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from orthia.broker.connections.listening import (
    LONGEST_WAIT_SECONDS,
    AcceptorNotFree,
    await_acceptors,
    try_acceptors,
)
from orthia.broker.management.metrics import NodeMetrics
from orthia.broker.node import effects
from orthia.broker.node.abc import RETRY_SECONDS, NodeStore
from orthia.broker.node.effects import Effect, Handover, Work
from orthia.broker.node.errors import event_of, is_expected
from orthia.broker.node.events import (
    AcceptorsTried,
    Activated,
    BackupStopped,
    Completed,
    CompletionFailed,
    Drained,
    FailbackAsked,
    HandoverAsked,
    JournalFailed,
    Loaded,
    LockWasLost,
    NodeEvent,
    Opened,
    Paused,
    Prepared,
    Released,
    ServedEnough,
    WhoWaitsAsked,
    WorkEvent,
    WorkInterrupted,
)
from orthia.broker.node.handover import Handovers, HandoverWish
from orthia.broker.node.logs import set_role
from orthia.broker.node.out_of_memory import OutOfMemory, end_at_once
from orthia.broker.node.reporter import Reporter
from orthia.broker.node.restarts import Life
from orthia.broker.node.service import Service
from orthia.broker.node.stores import node_store
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.settings import Role, Settings
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.journal.errors import Fenced
from orthia.nodemanager import Interrupted
from orthia.nodemanager.abc import Activation, FormerLife, NodeManager
from orthia.nodemanager.events import (
    AcceptorNotFreeEvent,
    BackupActive,
    CriticalIOError,
    Event,
    FailbackPutOff,
    LiveActive,
    SchemaMigrated,
    StartFailed,
    TakeoverTimings,
)

LOGGER = logging.getLogger("orthia.broker")
_HALT_LOG_SECONDS: Final = 1.0
"""How long a node that is halted waits for its failover log."""


@dataclass
class _Takeover:
    """What is measured from the live lock to the first client."""

    activation: Activation
    began_seconds: float
    loaded_seconds: float = 0.0
    opened_seconds: float = 0.0


class NodeShell:
    """The world of one node, but for its process."""

    def __init__(
        self,
        settings: Settings,
        life: Life,
        metrics: NodeMetrics,
        *,
        tell: Callable[[NodeEvent], None],
        service: Service,
        out_of_memory: OutOfMemory,
        finish: Callable[[], None],
        end_process: Callable[[], None],
    ) -> None:
        """``tell`` takes what happens to the node; ``finish`` lets its main thread go."""
        self.manager: NodeManager | None = None
        self.end_process = end_process
        self._settings = settings
        self._life = life
        self._metrics = metrics
        self._tell = tell
        self._service = service
        self._out_of_memory = out_of_memory
        self._finish = finish
        self._role = settings.ha_policy.role
        self._wake = threading.Event()
        self._is_interrupted = False
        self._wish = HandoverWish(self._wake)
        self._store: NodeStore | None = None
        self._takeover: _Takeover | None = None
        service.hand_over_by(Handovers(self._wish.ask, lambda: self.manager))
        self._reporter: Reporter | None = None

    # --- work: on the activation thread, where it may block

    def perform(self, work: Work) -> WorkEvent:
        """Do ``work``, however long that takes; raises what ``event_of`` translates."""
        match work:
            case effects.Pause(seconds):
                return self._pause(seconds)
            case effects.PrepareStore():
                return self._prepare()
            case effects.TryAcceptors():
                return self._try_acceptors(self._running())
            case effects.AwaitLiveLock(role):
                return self._await_live_lock(self._running(), role)
            case effects.ResumeLiveLock(former):
                return self._resume_live_lock(self._running(), former)
            case effects.LoadJournal():
                return self._load(self._running())
            case effects.OpenService():
                return self._open(self._running())
            case effects.CompleteActivation(role):
                return self._complete(self._running(), role)
            case effects.Serve(watches_failback):
                return self._serve(self._running(), watches_failback=watches_failback)
            case effects.AskWhoWaits():
                return self._ask_who_waits(self._running())
            case effects.CloseService():
                self._service.close()
                return Drained()
            case effects.ReleaseLiveLock(handover):
                return self._release(handover)
            case effects.StopBackup():
                if self.manager is not None:
                    self.manager.stop_backup()
                return BackupStopped()
            case _:
                raise TypeError(f"nobody does {work}")

    def event_of(self, error: Exception) -> WorkEvent:
        """Return the event for work that raised ``error``; log unexpected errors."""
        if isinstance(error, MemoryError):
            self._out_of_memory.met()
            LOGGER.error("unexpected error", exc_info=error)
            return WorkInterrupted()
        if not is_expected(error):
            LOGGER.error("unexpected error", exc_info=error)
        return event_of(error)

    def _pause(self, seconds: float) -> WorkEvent:
        self._store = node_store(self._settings, is_known=self._life.is_later)
        if self._wake.wait(seconds):
            raise Interrupted("stopped while pausing after one failure upon another")
        return Paused()

    def _prepare(self) -> WorkEvent:
        store = self._opened_store()
        is_known = self._life.former is not None
        period_seconds = self._settings.resume_check_sleep_period / 1000
        store.prepare(self._wake, period_seconds if is_known else RETRY_SECONDS)
        manager = self.manager = store.node_manager()
        manager.register_lock_listener(lambda reason: self._tell(LockWasLost(reason)))
        manager.register_renewal_listener(self._service.renewed)
        if self._is_interrupted:
            manager.interrupt()
        manager.start()
        done = store.migration
        if done is not None:
            revision = done.from_revision or "none"
            manager.log.emit(SchemaMigrated(revision, done.to_revision, done.duration_ms))
        self._reporter = Reporter(
            lambda: self._service.settings,
            manager,
            self._service.refused_by,
            lambda: self._service.api_url,
            self._service.outbox,
        )
        self._reporter.start()
        return Prepared()

    def _try_acceptors(self, manager: NodeManager) -> WorkEvent:
        """Test whether this node could serve, before it asks for the live lock.

        A live node waits for its port, so that it asks nobody to fail back to a node that cannot
        serve; unless the live lock is held on this host, by whom it may be that has the port.
        Raises AcceptorError, TlsUnusable.
        """
        self._service.load_certificates()
        is_live_here = False
        with contextlib.suppress(StoreUnavailable, TransientStoreError):
            is_live_here = manager.is_live_here()
        if self._role is Role.LIVE and not is_live_here:
            self._await_acceptors(manager, "this live node asks for the live lock when it can")
            return AcceptorsTried()
        not_free = try_acceptors(self._settings.acceptors)
        if not_free is not None:
            self._tell_not_free(manager, not_free, "a takeover would have to wait for that")
        return AcceptorsTried()

    def _await_acceptors(self, manager: NodeManager, consequence: str) -> None:
        """Wait until every acceptor can listen; raises AcceptorNotFree if that takes too long."""
        then = f"{consequence}; waiting for it, {LONGEST_WAIT_SECONDS:g} s at most"
        await_acceptors(
            self._settings.acceptors,
            stopped=self._wake,
            told=lambda found: self._tell_not_free(manager, found, then),
        )

    def _tell_not_free(self, manager: NodeManager, found: AcceptorNotFree, then: str) -> None:
        one = found.acceptor
        address = f"{one.host}:{one.port}"
        manager.log.emit(AcceptorNotFreeEvent(one.name, address, found.reason, then))

    def _await_live_lock(self, manager: NodeManager, role: Role) -> WorkEvent:
        self._act_as(manager, role)
        if role is Role.LIVE:
            return self._activated(manager, manager.start_live_node())
        manager.start_backup()
        return self._activated(manager, manager.await_live_node())

    def _resume_live_lock(self, manager: NodeManager, former: FormerLife) -> WorkEvent:
        period_ms = self._settings.resume_check_sleep_period
        return self._activated(manager, manager.resume_live_node(former, period_ms))

    def _activated(self, manager: NodeManager, activation: Activation) -> WorkEvent:
        self._takeover = _Takeover(activation, monotonic_seconds())
        return Activated(manager.holder_id, manager.fencing_token)

    def _load(self, manager: NodeManager) -> WorkEvent:
        journal = self._opened_store().open_journal(
            manager,
            lambda callback: self._service.post(partial(self._confirm, callback)),
            self._journal_failed,
        )
        self._service.has_journal(journal)
        self._measured().loaded_seconds = monotonic_seconds()
        return Loaded()

    def _open(self, manager: NodeManager) -> WorkEvent:
        self._await_acceptors(manager, "this node has the live lock and serves nobody")
        self._service.open(manager)
        self._measured().opened_seconds = monotonic_seconds()
        return Opened()

    def _complete(self, manager: NodeManager, role: Role) -> WorkEvent:
        self._act_as(manager, Role.LIVE)
        token, outbox = manager.fencing_token, self._service.what_waits_in_outbox()
        active = LiveActive if role is Role.LIVE else BackupActive
        manager.log.emit(active(token, outbox))
        self._measured().activation.activation_complete()
        if role is Role.BACKUP:
            manager.release_backup()
        return Completed(monotonic_seconds())

    def _serve(self, manager: NodeManager, *, watches_failback: bool) -> WorkEvent:
        period = self._opened_store().failback_poll_seconds if watches_failback else None
        self._wish.begin()
        try:
            while not self._is_over(period):
                if self._wish.is_there:
                    return HandoverAsked(monotonic_seconds())
                with contextlib.suppress(StoreUnavailable, TransientStoreError):
                    if manager.is_awaiting_failback():
                        return FailbackAsked(monotonic_seconds())
            return ServedEnough()
        finally:
            self._wish.end(is_interrupted=self._is_interrupted)

    def _is_over(self, period: float | None) -> bool:
        """Wait for so long; return whether serving is over, and not for a hand-over."""
        if not self._wake.wait(period):
            return False
        return self._is_interrupted or not self._wish.is_there

    def _ask_who_waits(self, manager: NodeManager) -> WorkEvent:
        with contextlib.suppress(StoreUnavailable, TransientStoreError):
            manager.ask_who_waits()
            return WhoWaitsAsked(is_written=True)
        return WhoWaitsAsked(is_written=False)

    def _release(self, handover: Handover) -> WorkEvent:
        manager = self.manager
        if manager is not None:
            match handover:
                case Handover.CRASH:
                    manager.crash_live_server()
                case Handover.PAUSE:
                    manager.pause_live_server()
                case Handover.GIVE_UP:
                    manager.give_up_live_server()
        return Released(monotonic_seconds())

    # --- what is done at once, on any thread

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect at once."""
        match effect:
            case effects.Show(phase):
                self._metrics.role_is(phase.value)
            case effects.Emit(event):
                self._emit(event)
            case effects.ShowLoop(where):
                LOGGER.error("the event loop does not answer; it is at:\n%s", where)
            case effects.ShowTakeover(token):
                self._show_takeover(self._running(), token)
            case effects.Interrupt():
                self._is_interrupted = True
                self._wake.set()
                if self.manager is not None:
                    self.manager.interrupt()
            case effects.Wake():
                self._wake.set()
            case effects.StopManager():
                if self._reporter is not None:
                    self._reporter.stop()
                if self.manager is not None:
                    self.manager.stop()
            case effects.CloseStore():
                if self._store is not None:
                    self._store.close()
            case effects.Finish():
                self._finish()
            case effects.Halt():
                try:
                    if self.manager is not None:
                        self.manager.log.close(_HALT_LOG_SECONDS)
                    logging.shutdown()
                finally:
                    end_at_once()
            case _:
                raise TypeError(f"nobody does {effect}")

    def shut_down(self, reason: str) -> None:
        """Cut off clients and journal, and log why, without touching the store."""
        self._metrics.role_is("failed")
        self._service.cut_off()
        self._emit(CriticalIOError(reason))

    def _emit(self, event: Event) -> None:
        """Write to the failover log; before there is one, log the important events."""
        if isinstance(event, FailbackPutOff) and self._reporter is not None:
            self._reporter.failback_put_off(event.wait_ms)
        if self.manager is not None:
            self.manager.log.emit(event)
        elif isinstance(event, CriticalIOError):
            LOGGER.error("critical IO error: %s", event.reason)
        elif isinstance(event, StartFailed):
            LOGGER.error("failed to start server: %s", event.reason)

    def _show_takeover(self, manager: NodeManager, token: int) -> None:
        took = self._measured()
        activation = took.activation
        seconds = took.opened_seconds - took.began_seconds
        self._metrics.became_live(token, activation.fence_ms / 1000 + seconds)
        manager.log.emit(
            TakeoverTimings(
                token,
                activation.detection_ms,
                activation.fence_ms,
                (took.loaded_seconds - took.began_seconds) * 1000,
                (took.opened_seconds - took.loaded_seconds) * 1000,
            )
        )

    # --- what the journal reports

    def _journal_failed(self, error: OrthiaError) -> None:
        self._tell(JournalFailed(str(error), was_fenced=isinstance(error, Fenced)))

    def _confirm(self, callback: Callable[[], None]) -> None:
        """Run on the loop what follows a commit; a failure leaves queues and journal apart."""
        try:
            callback()
        except MemoryError:
            self._out_of_memory.met()
            LOGGER.exception("unexpected error after a commit")
        except Exception as error:
            self._tell(CompletionFailed(f"after a commit: {type(error).__name__}: {error}"))
            LOGGER.exception("unexpected error after a commit")

    # --- helpers

    def _act_as(self, manager: NodeManager, role: Role) -> None:
        """Set the role that log lines name from now on."""
        manager.log.role = role.value
        set_role(role.value)

    def _running(self) -> NodeManager:
        if self.manager is None:
            raise RuntimeError("the node manager is not started")
        return self.manager

    def _opened_store(self) -> NodeStore:
        if self._store is None:
            raise RuntimeError("the store is not known")
        return self._store

    def _measured(self) -> _Takeover:
        if self._takeover is None:
            raise RuntimeError("the live lock is not held")
        return self._takeover
