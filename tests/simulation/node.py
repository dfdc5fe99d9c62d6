"""A simulated node: its processes, one after the other, and what each does from start to end.

What is real of it is the node manager, the journal, the critical analyzer and the log handler.
What is simulated does as ``orthia.broker.node.node`` does, in its order.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from orthia.broker.node.critical_analyzer import CriticalAnalyzer, LoopJudge
from orthia.config.errors import OrthiaError
from orthia.config.settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import DuplicateKey, StoreUnavailable
from orthia.journal import JournalClosed
from orthia.journal.engine.journal import Journal
from orthia.journal.engine.retry import pause_seconds
from orthia.journal.unit import MessageLocation
from orthia.nodemanager import Interrupted
from orthia.nodemanager.events import CriticalIOError
from orthia.nodemanager.holder_id import HolderId
from orthia.nodemanager.lease import State
from orthia.nodemanager.manager import JdbcNodeManager, Stores
from tests.simulation.console import Console, ConsoleLog, Handler, WaitingHandler
from tests.simulation.database import PresenceSession, RemoteStore
from tests.simulation.engine import Life, SimulatedThreads
from tests.simulation.interpreter import simulated
from tests.simulation.journal import SimulatedStore, open_journal
from tests.simulation.loop import SimulatedLoop
from tests.simulation.mechanisms import (
    PERIOD_MS,
    Hasty,
    LateAcquisition,
    LateRenewal,
    OfOwnPeriod,
    Unfenced,
)
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
IO_ERROR_GRACE_SECONDS = 3.0
"""How long an IO-error shutdown may take before the process ends regardless."""
_QUEUE_ID = 1
_ATTEMPTS_TO_OPEN = 5


class NodeState(Enum):
    """What a node does."""

    DOWN = auto()
    WAITING = auto()
    SERVING = auto()
    STOPPING = auto()
    FAILED = auto()


class Node:
    """A node: its clock, and its present process."""

    def __init__(self, world: "World", number: int, rate: float) -> None:
        self.world = world
        self.name = f"node{number}"
        self.is_live_by_role = number == 0
        self.rate = rate
        self.timers, self.publishes_timers = world.draw_timers()
        self.state = NodeState.DOWN
        self.cut_off_until = 0.0
        self.is_scrap = False
        self.token = 0
        self.lives = 0
        self.holder_id = ""
        self.life = Life()
        self.life.is_over = True

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
        return self.state is NodeState.SERVING and not self.loop.is_stalled and self.may_deliver()

    # --- its process

    def start(self) -> None:
        """Begin a new life, unless it lives."""
        if self.state is not NodeState.DOWN or self.is_scrap:
            return
        world, mechanisms = self.world, self.world.mechanisms
        engine = world.engine
        self.lives += 1
        self.holder_id = f"{self.name}@host:{self.lives}:uuid"
        published = self.timers if self.publishes_timers else None
        self.holder_id += HolderId(None, "", world.crash_detection, published).suffix
        self.life = Life()
        self.life.paused_until = engine.now
        self.state = NodeState.WAITING
        self.threads = SimulatedThreads(
            engine, self.life, without=None if mechanisms.watchdog else "orthia-watchdog"
        )
        self.stopping = self.threads.event()
        self.loop = SimulatedLoop(engine, self.life, in_order=mechanisms.completions_in_order)
        self.console = Console(engine)
        if not world.reads_consoles:
            self.console.block(None)
        self.session = PresenceSession(world.database, self)
        self.journal: Journal | None = None
        self.waiting: deque[int] = deque()
        """Messages that may be delivered."""
        self._arrived: deque[int] = deque()
        self._last_confirmed = self._last_delivered = 0
        self._is_watched = self._is_failing = False
        with simulated(engine, self.life):
            kind = Handler if mechanisms.console_holds_nobody_up else WaitingHandler
            self.handler = kind(self.console, engine)
            self.analyzer = self._make_analyzer()
        self.manager = self._make_manager()
        self.manager.register_lock_listener(self.fail)
        self.manager.register_renewal_listener(self._renewed)
        engine.spawn(self.life, self._live_on)

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
            name=self.name,
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
            is_serving=lambda: self.state is NodeState.SERVING,
            wedged=self._loop_is_wedged,
            clock=self.clock,
        )
        if not self.world.mechanisms.analyzer_counts_what_it_sees:
            analyzer._judge = LoopJudge(
                ANALYZER_TIMEOUT_MS / 1000, ANALYZER_CHECK_PERIOD_MS / 1000, math.inf
            )
        return analyzer

    def _loop_is_wedged(self, seconds: float) -> None:
        if not self.loop.is_wedged:
            raise Violation(f"{self.holder_id} takes its loop for wedged after {seconds:.1f} s")
        self.fail("the event loop does not answer")

    def crash(self) -> None:
        """Die: the process's sessions end with it, and what was never answered is never stored."""
        if self.life.is_over:
            return
        self.life.is_over = True
        self.state = NodeState.DOWN
        self._close_acceptors()
        self.session.release()
        self.world.database.tables.end_sessions_of(self.life)

    def end(self) -> None:
        """Come to the process's end, and be started again later."""
        if not self.life.is_over:
            self.crash()
            self.world.engine.after(self.world.engine.random.uniform(1, 5), self.start)

    def _live_on(self) -> None:
        """Do what ``orthia.broker.node.node`` does with its node manager, in its order."""
        try:
            while True:
                if self.is_live_by_role:
                    callback = self.manager.start_live_node()
                else:
                    self.manager.start_backup()
                    callback = self.manager.await_live_node()
                self.token = self.manager.fencing_token
                journal = self._open_journal()
                self._on_loop(self._open_acceptors)
                callback.activation_complete()
                if not self.is_live_by_role:
                    self.manager.release_backup()
                self._become(NodeState.SERVING)
                if not self._is_watched and self.world.mechanisms.critical_analyzer:
                    self._is_watched = True
                    self.analyzer.start()
                self._serve()
                self._stop_serving(journal)
                if self.stopping.is_set():
                    break
                self._become(NodeState.WAITING)
        except OrthiaError as error:
            self._give_up(str(error))
            return
        self.handler.flush()
        self.crash()
        self.world.engine.after(self.world.engine.random.uniform(1, 20), self.start)

    def _become(self, state: NodeState) -> None:
        if self._is_failing:
            raise Interrupted("the node has failed")
        self.state = state

    def _open_journal(self) -> Journal:
        """Load the journal, as ``Journal.open`` does it."""
        world, tried = self.world, 1
        store = SimulatedStore(world.database, self, self.token)
        while True:
            try:
                store.connect()
                horizon, rows = store.recover()
                break
            except StoreUnavailable:
                if tried == _ATTEMPTS_TO_OPEN or not self.manager.is_lease_valid():
                    raise
            world.engine.suspend(pause_seconds(tried))
            tried += 1
        self.waiting = deque(seq for seq, _ in rows)
        self._last_confirmed = self._last_delivered = 0
        journal = self.journal = open_journal(
            store,
            horizon,
            engine=world.engine,
            life=self.life,
            mechanisms=world.mechanisms,
            still_valid=self.manager.is_lease_valid,
            post=self.loop.call_soon_threadsafe,
            on_failure=self._journal_failed,
        )
        journal.register_room_listener(self._read)
        return journal

    def _serve(self) -> None:
        """Serve until a stop, or until the live node asks for its place."""
        while not self.stopping.wait(PERIOD_MS / 1000):
            if self._is_failing:
                raise Interrupted("the node has failed")
            if self.is_live_by_role:
                continue
            try:
                if self.manager.is_awaiting_failback():
                    return
            except StoreUnavailable:
                continue

    def _stop_serving(self, journal: Journal) -> None:
        self._become(NodeState.STOPPING)
        self._on_loop(self._close_acceptors)
        journal.close(drain=True)
        self._on_loop(lambda: None)  # what the journal has posted was done before
        self.manager.crash_live_server()

    def _on_loop(self, work: Callable[[], None]) -> None:
        """Have the loop do something, and wait for it; a loop that hangs is an IO error."""
        done = self.threads.event()
        self.loop.call_soon_threadsafe(work)
        self.loop.call_soon_threadsafe(done.set)
        is_bounded = self.world.mechanisms.loop_calls_are_bounded
        if not done.wait(LOOP_CALL_SECONDS if is_bounded else None):
            raise Interrupted("the event loop has not done what it was asked for")

    # --- failure

    def _journal_failed(self, error: OrthiaError) -> None:
        if isinstance(error.__cause__, DuplicateKey):
            raise Violation(f"{self.holder_id} gives up for a row that it stored itself: {error}")
        self.fail(f"journal: {error}")

    def fail(self, reason: str) -> None:
        """Stop because of an IO error: at once, from any thread, without touching the store."""
        if self.state is not NodeState.STOPPING:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        if self.life.is_over or self._is_failing:
            return
        self._is_failing = True
        world = self.world
        if not world.mechanisms.crash_writes_no_pause:
            world.database.store.write_state(State.PAUSED)
        world.engine.spawn(self.life, partial(self._shut_down, reason))
        if world.mechanisms.failed_process_ends:
            world.engine.spawn(self.life, self._end_in_time)

    def _shut_down(self, reason: str) -> None:
        """Close what is open, then let the main thread go, which is the loop's."""
        self.state = NodeState.FAILED
        self.loop.call_soon_threadsafe(self._close_acceptors)
        if self.journal is not None:
            self.journal.close(drain=False)
        self.manager.log.emit(CriticalIOError(reason))
        self.manager.stop()
        self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self.handler.flush()
        self.end()

    def _end_in_time(self) -> None:
        self.world.engine.suspend(IO_ERROR_GRACE_SECONDS)
        self.end()

    # --- on the loop

    def offer(self, message: int) -> None:
        """A client sends a message."""
        self._arrived.append(message)
        self.loop.call_soon_threadsafe(self._read)

    def _open_acceptors(self) -> None:
        self.world.serving.append(self)
        self.world.opened(self)
        self._dispatch()

    def _close_acceptors(self) -> None:
        if self.is_open:
            self.world.serving.remove(self)
        self._arrived.clear()
        self.waiting.clear()

    def _read(self) -> None:
        """Append what clients sent, as long as the journal takes it."""
        journal = self.journal
        if journal is None or not self.is_open:
            return
        try:
            while self._arrived and not journal.is_full:
                self._append(journal, self._arrived.popleft())
        except JournalClosed:
            return  # the clients send again, to another

    def _append(self, journal: Journal, message: int) -> None:
        place: list[int] = []
        place.append(
            journal.append_message(
                _QUEUE_ID,
                b"%d" % message,
                lambda: self._stored(message, place[0]),
                lambda _: None,  # the client is told, and sends again
            )
        )
        self.world.give_out(place[0])
        if not self.world.mechanisms.receipt_after_commit:
            self.world.receipt(message, place[0])

    def _stored(self, message: int, seq: int) -> None:
        if seq <= self._last_confirmed:
            raise Violation(f"message {seq} was confirmed after {self._last_confirmed}")
        self._last_confirmed = seq
        self.world.receipt(message, seq)
        if self.is_open:
            self.waiting.append(seq)
            self._dispatch()

    def _renewed(self, *_: object) -> None:
        if self.waiting:
            self.loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        """Deliver what may be delivered."""
        while self.waiting and self.may_deliver():
            seq = self.waiting.popleft()
            if seq <= self._last_delivered:
                raise Violation(f"message {seq} was delivered after {self._last_delivered}")
            self._last_delivered = seq
            self.world.deliver(seq, partial(self._acknowledge, seq, self.life))

    def _acknowledge(self, seq: int, life: Life) -> None:
        """A client acknowledges what it got from a process, if that is there."""
        if self.life is life and not life.is_over:
            self.loop.call_soon_threadsafe(self._delete, seq)

    def _delete(self, seq: int) -> None:
        if self.journal is None or not self.is_open:
            return
        try:
            self.journal.delete(
                [MessageLocation(seq)], partial(self.world.receipt_of_acknowledgement, seq)
            )
        except JournalClosed:
            return  # the message is delivered again
