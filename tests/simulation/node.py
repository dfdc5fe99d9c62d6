"""A simulated node: its processes, one after the other, and what each does from start to end.

What is real of it is the node manager, the journal, the state machine with its driver, the critical
analyzer and the log handler. What is simulated is the driver's shell: it does as
``orthia.broker.node.shell`` does.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from orthia.broker.node import effects
from orthia.broker.node.critical_analyzer import CriticalAnalyzer, LoopJudge
from orthia.broker.node.driver import Driver
from orthia.broker.node.effects import Effect, Handover, Work
from orthia.broker.node.errors import event_of
from orthia.broker.node.events import (
    AcceptorsTried,
    Activated,
    BackupStopped,
    Completed,
    Drained,
    FailbackAsked,
    JournalFailed,
    Loaded,
    LockWasLost,
    LoopWedged,
    Opened,
    PartDied,
    Paused,
    Prepared,
    Released,
    ServedEnough,
    StopRequested,
    WhoWaitsAsked,
    WorkEvent,
)
from orthia.broker.node.state import NodeState, Phase, Terms
from orthia.config.errors import OrthiaError
from orthia.config.settings import HaPolicy, Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import DuplicateKey, StoreUnavailable
from orthia.journal.errors import Fenced
from orthia.nodemanager import Interrupted
from orthia.nodemanager.events import CriticalIOError
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, State
from orthia.nodemanager.locks.lockers import LockHolder, leases
from orthia.nodemanager.manager import JdbcNodeManager
from orthia.nodemanager.stores import Stores
from tests.simulation.console import Console, ConsoleLog, Handler, WaitingHandler
from tests.simulation.database import PresenceSession, RemoteStore
from tests.simulation.engine import Life, SimulatedThreads
from tests.simulation.interpreter import simulated
from tests.simulation.loop import SimulatedLoop
from tests.simulation.mechanisms import (
    PERIOD_MS,
    Hasty,
    LateAcquisition,
    LateRenewal,
    OfOwnPeriod,
    Unfenced,
)
from tests.simulation.service import Service
from tests.simulation.tables import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTINGS = DatabaseStoreSettings(
    jdbc_connection_url=DatabaseUrl.parse("jdbc:sqlite:simulated.db"),
)
ANALYZER_TIMEOUT_MS = 10_000
ANALYZER_CHECK_PERIOD_MS = 2_000
LOOP_CALL_SECONDS = 30.0
"""How long the activation thread waits for what it asks of the loop."""


class Node:
    """A node: its clock, and its present process."""

    def __init__(self, world: "World", number: int, rate: float) -> None:
        self.world = world
        self.name = f"node{number}"
        self.is_live_by_role = number == 0
        self.rate = rate
        self.timers, self.publishes_timers = world.draw_timers()
        self.cut_off_until = 0.0
        self.is_scrap = False
        self.token = 0
        self.lives = 0
        self.holder_id = HolderId("")
        self.life = Life()
        self.life.is_over = True

    @property
    def is_down(self) -> bool:
        """Whether it has no process."""
        return self.life.is_over

    @property
    def phase(self) -> Phase:
        """What its process is at present, or was last."""
        return self.driver.state.phase

    @property
    def is_open(self) -> bool:
        """Whether clients are connected to it."""
        return self in self.world.serving

    def clock(self) -> float:
        """Read the stopwatch."""
        return self.world.engine.now * self.rate

    def may_deliver(self) -> bool:
        """Return whether it would deliver a message at this moment, if its loop got to it."""
        if not self.is_open:
            return False
        mechanisms = self.world.mechanisms
        if not mechanisms.watchdog:
            return True
        if not mechanisms.delivery_ends_with_the_grace:
            return self.manager.is_lease_valid()
        return self.manager.may_deliver()

    def serves(self) -> bool:
        """Return whether clients are served."""
        if self.is_down or self.phase is not Phase.LIVE:
            return False
        return not self.loop.is_stalled and self.may_deliver()

    # --- its process

    def start(self) -> None:
        """Begin a new life, unless it lives."""
        if not self.is_down or self.is_scrap:
            return
        world, mechanisms = self.world, self.world.mechanisms
        engine = world.engine
        self.lives += 1
        self.holder_id = HolderId.of(
            self.name,
            f"host:{self.lives}:uuid",
            has_presence=world.crash_detection,
            timers=self.timers if self.publishes_timers else None,
        )
        self.life = Life()
        self.life.paused_until = engine.now
        self.threads = SimulatedThreads(
            engine, self.life, without=None if mechanisms.watchdog else "orthia-watchdog"
        )
        self._wake = self.threads.event()
        self.loop = SimulatedLoop(engine, self.life, in_order=mechanisms.completions_in_order)
        self.console = Console(engine)
        if not world.reads_consoles:
            self.console.block(None)
        self.session = PresenceSession(world.database, self)
        self._is_watched = False
        with simulated(engine, self.life):
            kind = Handler if mechanisms.console_holds_nobody_up else WaitingHandler
            self.handler = kind(self.console, engine)
            self.analyzer = self._make_analyzer()
            self.driver = Driver(NodeState(self._terms()), self)
        self.manager = self._make_manager()
        self.manager.register_lock_listener(lambda reason: self.driver.tell(LockWasLost(reason)))
        self.service = Service(self)
        self.manager.register_renewal_listener(self.service.renewed)
        self.driver.stand_by()
        self.driver.begin()

    def _terms(self) -> Terms:
        role = Role.LIVE if self.is_live_by_role else Role.BACKUP
        return Terms(HaPolicy(role, failover_on_shutdown=True))

    def _make_manager(self) -> JdbcNodeManager:
        mechanisms = self.world.mechanisms
        kind = JdbcNodeManager
        if not mechanisms.watch_before_taking_over:
            kind = Hasty
        elif not mechanisms.grace_of_the_holder:
            kind = OfOwnPeriod
        elif not mechanisms.fence:
            kind = Unfenced
        store = RemoteStore(self.world.database, self)
        manager = kind(
            Stores(store, store, store, store),
            replace(
                SETTINGS,
                jdbc_lock_expiration=self.timers.expiration_ms,
                jdbc_lock_renew_period=self.timers.renew_period_ms,
            ),
            leases(
                dict.fromkeys(Lock, store),
                LockHolder(self.name, self.holder_id, self.clock),
                expiration_ms=self.timers.expiration_ms,
            ),
            log=ConsoleLog(self.handler, node_name=self.name, holder_id=self.holder_id),
            holder_id=self.holder_id,
            presence=self.session if self.world.crash_detection else None,
            clock=self.clock,
            threads=self.threads,
        )
        for locker in manager._lockers.values():
            if not mechanisms.acquisition_counts_from_before_the_request:
                locker.__class__ = LateAcquisition
            if not mechanisms.renewal_counts_from_before_the_request:
                locker.__class__ = LateRenewal
        return manager

    def _make_analyzer(self) -> CriticalAnalyzer:
        analyzer = CriticalAnalyzer(
            self.loop,  # type: ignore[arg-type]
            timeout_ms=ANALYZER_TIMEOUT_MS,
            check_period_ms=ANALYZER_CHECK_PERIOD_MS,
            is_serving=lambda: self.phase is Phase.LIVE,
            wedged=self._loop_is_wedged,
            clock=self.clock,
        )
        if not self.world.mechanisms.analyzer_counts_what_it_sees:
            analyzer._judge = LoopJudge(
                ANALYZER_TIMEOUT_MS / 1000, ANALYZER_CHECK_PERIOD_MS / 1000, math.inf
            )
        return analyzer

    def _loop_is_wedged(self, seconds: float, where: str) -> None:
        if not self.loop.is_wedged:
            raise Violation(f"{self.holder_id} takes its loop for wedged after {seconds:.1f} s")
        self.driver.tell(LoopWedged(seconds, where))

    def crash(self) -> None:
        """Die: the process's sessions end with it, and what was never answered is never stored."""
        if self.life.is_over:
            return
        self.life.is_over = True
        self.service.close()
        self.session.release()
        self.world.database.tables.end_sessions_of(self.life)

    def request_stop(self) -> None:
        """Have it stop in good order, unless it is down."""
        if not self.is_down:
            self.driver.tell(StopRequested())

    # --- what its driver has it do

    def perform(self, work: Work) -> WorkEvent:
        """Do as ``NodeShell`` does."""
        manager = self.manager
        match work:
            case effects.Pause():
                return Paused()
            case effects.PrepareStore():
                return Prepared()
            case effects.TryAcceptors():
                return AcceptorsTried()
            case effects.AwaitLiveLock(role):
                if role is Role.LIVE:
                    self._activation = manager.start_live_node()
                else:
                    manager.start_backup()
                    self._activation = manager.await_live_node()
                self.token = manager.fencing_token
                return Activated(self.holder_id, self.token)
            case effects.LoadJournal():
                self.service.load(self._journal_failed)
                return Loaded()
            case effects.OpenService():
                self._on_loop(self.service.open)
                return Opened()
            case effects.CompleteActivation(role):
                self._activation.activation_complete()
                if role is Role.BACKUP:
                    manager.release_backup()
                return Completed(self.clock())
            case effects.Serve(watches_failback):
                return self._serve(watches_failback=watches_failback)
            case effects.AskWhoWaits():
                return self._ask_who_waits()
            case effects.CloseService():
                self._close_service()
                return Drained()
            case effects.ReleaseLiveLock(handover):
                if handover is Handover.GIVE_UP:
                    manager.give_up_live_server()
                else:
                    manager.crash_live_server()
                return Released(self.clock())
            case effects.StopBackup():
                manager.stop_backup()
                return BackupStopped()
            case _:
                raise TypeError(f"no simulated node does {work}")

    def event_of(self, error: Exception) -> WorkEvent:
        """Do as ``NodeShell`` does; what is no error of a node ends the run."""
        if not isinstance(error, OrthiaError):
            raise error
        return event_of(error)

    def carry_out(self, effect: Effect) -> None:
        """Do as ``NodeShell`` does."""
        match effect:
            case effects.Show(Phase.LIVE):
                if not self._is_watched and self.world.mechanisms.critical_analyzer:
                    self._is_watched = True
                    self.analyzer.start()
            case effects.Emit(event):
                self.manager.log.emit(event)
            case effects.Interrupt():
                self._wake.set()
                self.manager.interrupt()
            case effects.Wake():
                self._wake.set()
            case effects.StopManager():
                self.manager.stop()
            case effects.Finish():
                self.loop.call_soon_threadsafe(self._finish)
            case effects.Show() | effects.ShowLoop() | effects.ShowTakeover():
                pass
            case effects.CloseStore():
                pass
            case _:
                raise TypeError(f"no simulated node does {effect}")

    def shut_down(self, reason: str) -> None:
        """Do as ``NodeShell`` does."""
        if not self.world.mechanisms.crash_writes_no_pause:
            self.world.database.store.write_state(State.PAUSED)
        self.loop.call_soon_threadsafe(self.service.close)
        self.service.close_journal(drain=False)
        self.manager.log.emit(CriticalIOError(reason))

    def end_process(self) -> None:
        """Come to the process's end, whatever hangs, and be started again later."""
        if self.world.mechanisms.failed_process_ends:
            self._end(1, 5)

    def _finish(self) -> None:
        self.handler.flush()
        self._end(1, 5 if self.driver.state.failure is not None else 20)

    def _end(self, soonest: float, latest: float) -> None:
        if not self.is_down:
            self.crash()
            self.world.engine.after(self.world.engine.random.uniform(soonest, latest), self.start)

    def _serve(self, *, watches_failback: bool) -> WorkEvent:
        while not self._wake.wait(PERIOD_MS / 1000 if watches_failback else None):
            with contextlib.suppress(StoreUnavailable):
                if self.manager.is_awaiting_failback():
                    return FailbackAsked(self.clock())
        return ServedEnough()

    def _ask_who_waits(self) -> WorkEvent:
        with contextlib.suppress(StoreUnavailable):
            self.manager.ask_who_waits()
            return WhoWaitsAsked(is_written=True)
        return WhoWaitsAsked(is_written=False)

    def _close_service(self) -> None:
        self._on_loop(self.service.close)
        self.service.close_journal(drain=True)
        self._on_loop(lambda: None)  # what the journal has posted was done before

    def _on_loop(self, work: Callable[[], None]) -> None:
        """Have the loop do something, and wait for it; a loop that hangs is an IO error."""
        done = self.threads.event()
        self.loop.call_soon_threadsafe(work)
        self.loop.call_soon_threadsafe(done.set)
        is_bounded = self.world.mechanisms.loop_calls_are_bounded
        if not done.wait(LOOP_CALL_SECONDS if is_bounded else None):
            reason = "the event loop has not done what it was asked for"
            self.driver.tell(PartDied(reason))
            raise Interrupted(reason)

    def _journal_failed(self, error: OrthiaError) -> None:
        if isinstance(error.__cause__, DuplicateKey):
            raise Violation(f"{self.holder_id} gives up for a row that it stored itself: {error}")
        self.driver.tell(JournalFailed(str(error), was_fenced=isinstance(error, Fenced)))
