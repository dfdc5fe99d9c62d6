"""A node from its start to its exit code: activation, service, failback, shutdown.

The activation thread lives the life of the node in order and may block; the event loop, in the
main thread, has the sockets and the queues. Each calls the other in one way: ``_on_loop`` runs a
coroutine there and waits, ``_stop_requested`` and ``_failure`` are read here.
"""

import asyncio
import contextlib
import enum
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import uvloop
from prometheus_client import CollectorRegistry

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.connections.descriptors import raise_limit
from orthia.broker.connections.listening import (
    LONGEST_WAIT_SECONDS,
    AcceptorNotFree,
    await_acceptors,
    try_acceptors,
)
from orthia.broker.core.broker import Broker
from orthia.broker.core.refusals import Refusal
from orthia.broker.management.health import HealthServer, Verdict
from orthia.broker.management.metrics import NodeMetrics
from orthia.broker.node.critical_analyzer import CriticalAnalyzer
from orthia.broker.node.disk_usage import DiskLimits, DiskWatch
from orthia.broker.node.exit_codes import ExitCode, code_of
from orthia.broker.node.lives import Life, begin
from orthia.broker.node.logs import set_role
from orthia.broker.node.out_of_memory import OutOfMemory
from orthia.broker.node.stores import RETRY_SECONDS, NodeStore, node_store
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.settings import CriticalAnalyzerPolicy, Role, Settings
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.journal.abc import MessageJournal
from orthia.journal.engine.batch import BatchReport
from orthia.journal.errors import Fenced, JournalIOError, LeaseExpired
from orthia.nodemanager import Interrupted, Lock, LockLost
from orthia.nodemanager.events import (
    AcceptorNotFreeEvent,
    BackupActive,
    ConnectorsStopped,
    CriticalIOError,
    FailbackPutOff,
    FailbackRequested,
    FencedWriteRefused,
    LiveActive,
    LoopUnanswered,
    NodeStopped,
    RestartsAsBackup,
    ServiceClosing,
    StartFailed,
    TakeoverTimings,
)
from orthia.nodemanager.failback import Failbacks
from orthia.nodemanager.protocol import Activation, NodeManager

LOGGER = logging.getLogger("orthia.broker")
_Result = TypeVar("_Result")

_IO_ERRORS = (
    StoreUnavailable,
    TransientStoreError,
    JournalIOError,
    LockLost,
    Fenced,
    LeaseExpired,
)
"""What says that the store or the lease is gone, not that the node is wrongly set up."""
_LOOP_CALL_SECONDS = 30.0
_LAST_WORK_SECONDS = 3.0
"""How long a node that stops goes on with frames it has read; the rest has no receipts."""
_IO_ERROR_GRACE_SECONDS = 3.0
"""How long an IO-error shutdown may take to log and close before the process ends regardless."""
_HALT_LOG_SECONDS = 1.0
"""How long a node that is halted waits for its failover log."""
_SWITCH_INTERVAL_SECONDS = 0.0005
"""How soon the journal's writer gets the interpreter from a busy loop; CPython's default of 5 ms
would be a large part of a commit."""
_GARBAGE_THRESHOLDS = (5_000, 5, 2)
"""When the collector looks for cycles. Messages that wait are many objects and no cycles: with
CPython's 700, looking through them again and again took a third of the time of a SEND. All objects
are looked through about as often as by default: clients that are gone are cycles, and old ones."""


class Phase(enum.Enum):
    """What a node is at the moment, for probes, metrics and logs."""

    STARTING = "starting"
    WAITING_LIVE = "waiting-live"
    BACKUP = "backup"
    CONNECTORS_STOPPED = "connectors-stopped"
    LIVE = "live"
    STOPPING = "stopping"
    FAILED = "failed"


_ON_THE_WAY = frozenset({Phase.WAITING_LIVE, Phase.BACKUP})
"""Until a node serves: the live lock that it may have by then was of no use to anybody."""


class BrokerNode:
    """One node of a pair; ``run`` blocks until it is over."""

    def __init__(self, settings: Settings, life: Life | None = None) -> None:
        """Make the node of ``settings``, in its first life if not in ``life``."""
        self._life = life or Life(began_seconds=monotonic_seconds())
        self._settings = settings = self._life.settings(settings)
        self._served_as: tuple[str, int] | None = None
        self._failbacks = Failbacks()
        self._role = settings.ha_policy.role
        self._phase = Phase.STARTING
        self._metrics = NodeMetrics(
            (phase.value for phase in Phase), (reason.value for reason in Refusal)
        )
        self._metrics.role_is(self._phase.value)
        self._stop_requested = threading.Event()
        self._failure: str | None = None
        self._failure_lock = threading.Lock()
        self._failing = threading.Event()
        self._out_of_memory = OutOfMemory(self._give_up)
        self._wake = threading.Event()
        self._finished: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: NodeStore | None = None
        self._manager: NodeManager | None = None
        self._journal: MessageJournal | None = None
        self._broker: Broker | None = None
        self._server: Acceptors | None = None
        self._disk_watch: DiskWatch | None = None
        self._exit_code: int = ExitCode.OK
        self._exit_reason = "stopped"

    # --- what the process calls

    def run(self) -> int:
        """Run the node in the main thread and return its exit code."""
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        gc.freeze()  # what was imported stays
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        raise_limit(self._settings.stomp_limits.max_connections)
        for one in self._settings.not_applied:
            LOGGER.warning("THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES: not applied: %s", one)
        for warning in self._settings.warnings:
            LOGGER.warning("%s", warning)
        self._stand_by()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())
        logging.shutdown()
        if self._failure is not None:
            # Threads may hang in a database call for ever; nothing is left to be done for them.
            sys.stdout.flush()
            self._end_process()
        return self._exit_code

    def _end_process(self) -> None:
        """End after an IO error; or begin the next life, if the policy says so."""
        try:
            life = self._next_life()
            if life is not None:
                begin(life)
        finally:
            os._exit(ExitCode.IO_ERROR)

    def _next_life(self) -> Life | None:
        if self._stop_requested.is_set():
            return None
        holder_id, token = self._served_as or (None, None)
        return self._life.next(
            self._settings.io_error_policy,
            now=monotonic_seconds(),
            holder_id=holder_id,
            token=token,
        )

    def request_stop(self) -> None:
        """Stop in good order; may be called on any thread."""
        self._stop_requested.set()
        self._wake.set()
        if self._manager is not None:
            self._manager.interrupt()

    async def _main(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._out_of_memory.loop_failed)
        self._finished = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        self._metrics.watch(
            lease_seconds_remaining=self._lease_seconds_remaining,
            queue_depths=lambda: self._broker.depths() if self._broker else {},
            connections=lambda: self._server.connections if self._server else 0,
            history=lambda: self._journal.history_totals if self._journal else None,
            messages=lambda: asdict(live.counters()) if (live := self._broker) else {},
            store_use=lambda: self._broker.store_use.shown if self._broker else None,
        )
        health = HealthServer(self._settings.health, self) if self._settings.health else None
        if health is not None:
            await health.start()
        thread = threading.Thread(target=self._activate, name="orthia-activation", daemon=True)
        thread.start()
        analyzer = self._analyzer(loop) if self._settings.critical_analyzer else None
        if analyzer is not None:
            analyzer.start()
        await self._finished.wait()
        if analyzer is not None:
            analyzer.stop()
        if health is not None:
            await health.close()

    def _analyzer(self, loop: asyncio.AbstractEventLoop) -> CriticalAnalyzer:
        return CriticalAnalyzer(
            loop,
            timeout_ms=self._settings.critical_analyzer_timeout,
            check_period_ms=self._settings.critical_analyzer_check_period,
            # Before and after it serves, the activation thread has its own bound for what it asks.
            is_serving=lambda: self._phase is Phase.LIVE,
            wedged=self._loop_is_wedged,
        )

    # --- what probes ask

    @property
    def registry(self) -> CollectorRegistry:
        """The node's metrics."""
        return self._metrics.registry

    def liveness(self) -> Verdict:
        """A node that runs is live, whatever its role; one that failed is about to exit."""
        return Verdict(self._phase is not Phase.FAILED, self._failure or self._phase.value)

    def readiness(self) -> Verdict:
        """Only a live node whose lease is valid serves clients."""
        if self._phase is not Phase.LIVE:
            return Verdict(ok=False, reason=f"{self._phase.value}: no clients are served here")
        valid = self._manager is not None and self._manager.is_lease_valid()
        return Verdict(valid, "live" if valid else "the lease is not valid")

    def describe_role(self) -> Mapping[str, object]:
        """Return name, role and token."""
        manager = self._manager
        return {
            "name": self._settings.name,
            "role": self._phase.value,
            "token": manager.fencing_token if manager and self._phase is Phase.LIVE else None,
            "lease_seconds_remaining": self._lease_seconds_remaining(),
            "holder_id": manager.holder_id if manager else None,
        }

    def _lease_seconds_remaining(self) -> float | None:
        return self._manager.lease_seconds_remaining() if self._manager else None

    # --- the activation thread

    def _activate(self) -> None:
        try:
            self._live_on()
        except Interrupted:
            if self._failure is None:
                self._leave(ExitCode.OK, "stopped while waiting")
        except _IO_ERRORS as error:
            self._fail(str(error))
        except OrthiaError as error:
            if self._phase is Phase.LIVE:
                self._fail(str(error))  # such as a row of its store that somebody deleted
            else:
                self._leave(code_of(error), str(error), failed=True)
        except OSError as error:
            if error.filename is None:
                LOGGER.exception("unexpected error")
            reason = f"{error.filename} cannot be used: {error.strerror}"
            self._leave(ExitCode.CONFIGURATION, reason, failed=True)
        except MemoryError:
            self._out_of_memory.met()
            LOGGER.exception("unexpected error")
        except Exception as error:
            LOGGER.exception("unexpected error")
            self._leave(ExitCode.SOFTWARE, f"{type(error).__name__}: {error}", failed=True)
        if self._failure is None:
            self._end()

    def _live_on(self) -> None:
        """The life of a node, in order; a backup that handed over begins it again."""
        store = self._store = node_store(self._settings, is_known=self._life.is_later)
        if self._stop_requested.wait(self._life.pause_seconds):
            raise Interrupted("stopped while pausing after one failure upon another")
        former = self._life.former
        period_ms = self._settings.resume_check_sleep_period
        if former is not None:
            self._become(Phase.CONNECTORS_STOPPED)
        store.prepare(self._stop_requested, RETRY_SECONDS if former is None else period_ms / 1000)
        manager = self._manager = store.node_manager()
        manager.register_lock_listener(self._fail)
        manager.register_renewal_listener(self._renewed)
        if self._stop_requested.is_set():
            manager.interrupt()
        manager.start()
        if former is None:
            self._try_acceptors(manager)
        while True:
            if former is not None:
                callback = manager.resume_live_node(former, period_ms)
                former = None
                # Should it fail to open, it is still a node that served: the next life resumes.
                self._served_as = (manager.holder_id, manager.fencing_token)
            else:
                callback = self._wait_for_activation(manager)
            journal = self._open(store, manager, callback)
            if not self._serve(store, manager):
                break
            self._hand_back(manager, journal)
            self._served_as = None
        if self._failure is None:
            self._stop(manager, journal)

    def _wait_for_activation(self, manager: NodeManager) -> Activation:
        self._act_as(manager, self._role)
        if self._role is Role.LIVE:
            self._become(Phase.WAITING_LIVE)
            return manager.start_live_node()
        self._become(Phase.BACKUP)
        manager.start_backup()
        return manager.await_live_node()

    def _try_acceptors(self, manager: NodeManager) -> None:
        """Find out whether this node could serve, before it asks anybody for the live lock.

        A live node waits for its port, so that it asks nobody to fail back to a node that cannot
        serve; unless the live lock is held on this host, by whom it may be that has the port.
        Raises AcceptorError.
        """
        is_live_here = False
        with contextlib.suppress(StoreUnavailable, TransientStoreError):
            is_live_here = manager.is_live_here()
        if self._role is Role.LIVE and not is_live_here:
            self._await_acceptors(manager, "this live node asks for the live lock when it can")
            return
        not_free = try_acceptors(self._settings.acceptors)
        if not_free is not None:
            self._tell_not_free(manager, not_free, "a takeover would have to wait for that")

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

    def _open(self, store: NodeStore, manager: NodeManager, callback: Activation) -> MessageJournal:
        """Load the journal, open the acceptors, say so: from here on clients are served."""
        began = monotonic_seconds()
        loop = self._running_loop()
        journal = self._journal = store.open_journal(
            manager,
            lambda callback: _post(loop, partial(self._confirm, callback)),
            self._journal_failed,
        )
        journal.register_batch_listener(self._committed)
        loaded = monotonic_seconds()
        self._await_acceptors(manager, "this node has the live lock and serves nobody")
        self._on_loop(self._open_service(manager, journal))
        self._watch_disks(journal)
        opened = monotonic_seconds()
        self._act_as(manager, Role.LIVE)
        token = manager.fencing_token
        self._served_as = (manager.holder_id, token)
        if self._role is Role.LIVE:
            manager.log.emit(LiveActive(token))
        else:
            manager.log.emit(BackupActive(token))
        callback.activation_complete()
        if self._role is Role.BACKUP:
            manager.release_backup()
        self._failbacks = self._failbacks.serves_again(monotonic_seconds())
        self._become(Phase.LIVE)
        self._metrics.became_live(token, callback.fence_ms / 1000 + opened - began)
        manager.log.emit(
            TakeoverTimings(
                token,
                callback.detection_ms,
                callback.fence_ms,
                (loaded - began) * 1000,
                (opened - loaded) * 1000,
            )
        )
        return journal

    def _watch_disks(self, journal: MessageJournal) -> None:
        """Have sends refused, from the first one on, while a disk of the store is nearly full."""
        loop, s = self._running_loop(), self._settings
        self._disk_watch = DiskWatch(
            s.watched_directories,
            DiskLimits(s.max_disk_usage, s.min_disk_free),
            period_ms=s.disk_scan_period,
            reusable=journal.reusable_bytes,
            told=lambda problem: _post(loop, partial(self._disk_is, problem)),
        )
        self._disk_watch.start()

    def _disk_is(self, problem: str | None) -> None:
        if self._broker is not None:
            self._broker.store_use.close_or_reopen("disk", problem)

    def _serve(self, store: NodeStore, manager: NodeManager) -> bool:
        """Serve until a stop or a failure, or until a failback is asked for: then return True."""
        yields = self._role is Role.BACKUP and self._settings.ha_policy.allow_failback
        period = store.failback_poll_seconds if yields else None
        while not self._wake.wait(period):
            with contextlib.suppress(StoreUnavailable, TransientStoreError):
                if manager.is_awaiting_failback() and self._may_hand_back(manager):
                    manager.log.emit(FailbackRequested())
                    return True
        return False

    def _may_hand_back(self, manager: NodeManager) -> bool:
        """Return whether the live node that asks gets its place now; say once if it does not."""
        failbacks, now = self._failbacks, monotonic_seconds()
        if not failbacks.may_hand_back(now):
            if not failbacks.was_put_off:
                self._failbacks = failbacks.put_off()
                wait_ms = (failbacks.not_before_seconds - now) * 1000
                lasted_ms = failbacks.lasted_seconds * 1000
                manager.log.emit(FailbackPutOff(wait_ms, failbacks.short_terms, lasted_ms))
            return False
        if failbacks.was_put_off:
            # That was long ago: handed back to a node that is gone, nobody would serve.
            manager.ask_who_waits()
            self._failbacks = failbacks.asked_again()
            return False
        return True

    def _stop(self, manager: NodeManager, journal: MessageJournal) -> None:
        """Stop in good order; the policy says whether the backup is to take over."""
        self._become(Phase.STOPPING)
        self._close_service(journal)
        if self._settings.ha_policy.failover_on_shutdown:
            manager.crash_live_server()
        else:
            manager.pause_live_server()

    def _hand_back(self, manager: NodeManager, journal: MessageJournal) -> None:
        """Give the live lock to the returning live node, and be a backup again."""
        self._become(Phase.STOPPING)
        self._close_service(journal)
        manager.crash_live_server()
        self._failbacks = self._failbacks.handed_back(monotonic_seconds())
        if not self._settings.ha_policy.restart_backup:
            raise Interrupted("handed back, and restart-backup is false")

    def _close_service(self, journal: MessageJournal) -> None:
        """Close the acceptors, store what waits, send the last receipts, close the sockets."""
        if self._served_as is not None and self._manager is not None:
            self._manager.log.emit(ServiceClosing(self._served_as[1]))
        if self._disk_watch is not None:
            self._disk_watch.stop()
        self._on_loop(self._stop_accepting())
        if not journal.close(drain=True):
            LOGGER.warning("not everything was stored in time; its senders got no receipt")
        self._on_loop(self._stop_service())
        self._journal = None

    # --- on the loop

    async def _open_service(self, manager: NodeManager, journal: MessageJournal) -> None:
        loop = self._running_loop()
        broker = self._broker = Broker(
            self._settings,
            journal,
            lease_valid=manager.may_deliver,
            call_later=lambda seconds, callback: loop.call_later(seconds, callback),
            time_ms=manager.message_time_ms,
        )
        server = self._server = Acceptors(
            broker,
            journal,
            self._settings.stomp_limits,
            users=self._settings.resource_limit_settings,
            refused=self._metrics.client_refused,
        )
        await server.start(
            self._settings.acceptors,
            lambda host, port: LOGGER.info("acceptor open on %s:%d for STOMP", host, port),
        )
        broker.count_backlogs()

    async def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.stop_reading()
        if self._broker is not None:
            # What was read is still done, as far as that goes.
            until = monotonic_seconds() + _LAST_WORK_SECONDS
            while (  # noqa: ASYNC110 - with each turn of the loop a slice of it is done
                not self._broker.slices.is_idle and monotonic_seconds() < until
            ):
                await asyncio.sleep(0)
            self._broker.stop()

    async def _stop_service(self) -> None:
        if self._broker is not None:
            self._broker.stop()
        if self._server is not None:
            await self._server.stop()
        self._broker = None
        self._server = None

    # --- failure and the end

    def _journal_failed(self, error: OrthiaError) -> None:
        if isinstance(error, Fenced) and self._manager is not None:
            token = self._manager.fencing_token
            self._manager.log.emit(FencedWriteRefused(token, str(error)))
        self._fail(f"journal: {error}")

    def _loop_is_wedged(self, seconds: float) -> None:
        """Do what the policy says when the loop has not answered in time; the analyzer's thread."""
        policy = self._settings.critical_analyzer_policy
        timeout_ms = self._settings.critical_analyzer_timeout
        manager = self._manager
        if manager is not None:
            manager.log.emit(LoopUnanswered(seconds * 1000, timeout_ms, policy.value))
        if policy is CriticalAnalyzerPolicy.SHUTDOWN:
            self._fail(f"the event loop has not answered for {seconds:.1f} s")
        elif policy is CriticalAnalyzerPolicy.HALT:
            if manager is not None:
                manager.log.close(_HALT_LOG_SECONDS)
            logging.shutdown()
            os._exit(ExitCode.IO_ERROR)

    def _stand_by(self) -> None:
        """Start what an IO-error shutdown needs: where memory is short, no thread can be had."""
        for name, target in (("orthia-io-error", self._fail_when_told), ("orthia-end", self._exit)):
            threading.Thread(target=target, name=name, daemon=True).start()
        threading.excepthook = self._thread_died
        sys.unraisablehook = self._thread_not_begun

    def _thread_died(self, what: threading.ExceptHookArgs) -> None:
        """End the node with any of its threads: none of them is one that it can do without."""
        name = what.thread.name if what.thread is not None else "a thread"
        try:
            self._give_up(f"{name} died: {what.exc_type.__name__}: {what.exc_value}")
        except MemoryError:
            self._out_of_memory.met()
        # Not by the hook of Python, which waits for whoever reads standard error.
        error = what.exc_value or what.exc_type()
        LOGGER.critical("%s died", name, exc_info=(what.exc_type, error, what.exc_traceback))

    def _thread_not_begun(self, what: "sys.UnraisableHookArgs") -> None:
        """End the node if a thread dies before its first line, for want of memory.

        Whoever started that thread waits for it for ever: this is all that is ever heard of it.
        """
        if "in thread started by" not in (what.err_msg or ""):
            if issubclass(what.exc_type, MemoryError):
                self._out_of_memory.met()
            error = what.exc_value or what.exc_type()
            LOGGER.error(
                "%s: %r",
                what.err_msg or "an exception nobody can be told of in",
                what.object,
                exc_info=(what.exc_type, error, what.exc_traceback),
            )
            return
        try:
            self._give_up(f"a thread could not begin: {what.exc_type.__name__}")
        except MemoryError:
            self._out_of_memory.met()

    def _confirm(self, callback: Callable[[], None]) -> None:
        """Run on the loop what follows a commit; half done, the queues are not the journal's."""
        try:
            callback()
        except MemoryError:
            self._out_of_memory.met()
            LOGGER.exception("unexpected error after a commit")
        except Exception as error:
            self._fail(f"after a commit: {type(error).__name__}: {error}")
            LOGGER.exception("unexpected error after a commit")

    def _fail(self, reason: str) -> None:
        """Stop because of an IO error: at once, from any thread, without touching the store."""
        if self._phase is not Phase.STOPPING:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        with self._failure_lock:
            if self._failure is not None:
                return
            self._failure = reason
        self._exit_code, self._exit_reason = ExitCode.IO_ERROR, reason
        self._failing.set()

    def _exit(self) -> None:
        self._failing.wait()
        time.sleep(_IO_ERROR_GRACE_SECONDS)
        self._end_process()

    def _fail_when_told(self) -> None:
        self._failing.wait()
        self._become(Phase.FAILED)
        loop = self._running_loop()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._cut_off)
        if self._journal is not None:
            self._journal.close(drain=False)
        if self._manager is not None:
            self._manager.log.emit(CriticalIOError(self._exit_reason))
        else:
            LOGGER.error("critical IO error: %s", self._exit_reason)
        self._tell_next_life()
        self._wake.set()
        self._end()

    def _tell_next_life(self) -> None:
        life, manager = self._next_life(), self._manager
        if life is None or manager is None:
            return
        if life.former is None:
            manager.log.emit(RestartsAsBackup())
        else:
            period_ms = self._settings.resume_check_sleep_period
            manager.log.emit(ConnectorsStopped(life.former.token, period_ms))

    def _cut_off(self) -> None:
        if self._broker is not None:
            self._broker.stop()
        if self._server is not None:
            self._cutting = asyncio.ensure_future(self._server.stop(cut_off=True))

    def _leave(self, exit_code: int, reason: str, *, failed: bool = False) -> None:
        self._exit_code, self._exit_reason = exit_code, reason
        if not failed:
            return
        if self._manager is not None:
            self._manager.log.emit(StartFailed(reason))
        else:
            LOGGER.error("failed to start server: %s", reason)

    def _end(self) -> None:
        """Close what the activation thread opened, and let the main thread go."""
        manager = self._manager
        if manager is not None:
            if self._failure is None:
                if self._journal is not None:
                    self._close_service(self._journal)
                if self._phase in _ON_THE_WAY:
                    manager.give_up_live_server()
                else:
                    manager.crash_live_server()
                manager.stop_backup()
            if self._failure is None or self._next_life() is None:
                manager.log.emit(NodeStopped(self._exit_code, self._exit_reason))
            manager.stop()
        if self._failure is None and self._store is not None:
            self._store.close()
        finished = self._finished
        if finished is not None:
            with contextlib.suppress(RuntimeError):
                self._running_loop().call_soon_threadsafe(finished.set)

    # --- helpers

    def _become(self, phase: Phase) -> None:
        self._phase = phase
        self._metrics.role_is(phase.value)

    def _act_as(self, manager: NodeManager, role: Role) -> None:
        """Have every line from now on say which role the node plays."""
        manager.log.role = role.value
        set_role(role.value)

    def _committed(self, report: BatchReport) -> None:
        """Count a batch, after its answers to clients: those leave in the loop's next turn."""
        self._running_loop().call_soon(
            self._metrics.batch_committed,
            report.rows + report.deletes,
            report.commit_seconds,
            report.attempts,
        )

    def _renewed(self, lock: Lock, seconds: float) -> None:
        metrics = self._metrics
        histogram = (
            metrics.live_renewal_seconds if lock is Lock.LIVE else metrics.backup_renewal_seconds
        )
        histogram.observe(seconds)
        if lock is Lock.LIVE and self._loop is not None:
            _post(self._loop, self._go_on)

    def _go_on(self) -> None:
        """Deliver what a late renewal held back."""
        if self._broker is not None:
            self._broker.go_on()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the node is not running")
        return self._loop

    def _on_loop(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run ``work`` on the loop and return its result; a loop that hangs is an IO error."""
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(_LOOP_CALL_SECONDS)
        except TimeoutError:
            reason = f"the event loop has not done what it was asked for {_LOOP_CALL_SECONDS:g} s"
            self._give_up(reason)
            raise Interrupted(reason) from None


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run ``callback`` on the loop; a loop that is closed has nobody left to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
