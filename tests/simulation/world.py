"""A simulated pair: the real node manager, on clocks that drift, in processes that stop and die.

No real time, no threads: one heap of events, one random generator, one seed. What is real is
``JdbcNodeManager`` whole, with keep-alive, watchdog and presence keeper, and its store in memory.
What is simulated is all that lies around them: threads and time (``engine``), the network and the
database (``database``), and here the nodes' processes, the journal's writer, clients and faults.
``Mechanisms`` switches each safety mechanism off, so that a test can show that its absence is
noticed.

Of the nodes' clocks only the *rate* is bounded (``MAX_RATE_DRIFT``), of the database's that and
nothing else: backward steps only make the lease of a node that is gone last longer. Forward steps
can make two nodes deliver at once, until the older one meets the fence; worlds in which they happen
are held to every other invariant.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from config.errors import OrthiaError
from config.settings import DatabaseStoreSettings
from config.urls import DatabaseUrl
from database import StoreUnavailable
from nodemanager.events import Event
from nodemanager.failover_log import FailoverLog
from nodemanager.holder_id import HolderId, Timers
from nodemanager.lease import CLOCK_RATE_MARGIN, Lock, State
from nodemanager.manager import JdbcNodeManager, Stores
from tests.simulation.database import (
    Batch,
    Client,
    Database,
    PresenceSession,
    RemoteStore,
    Violation,
)
from tests.simulation.engine import Engine, Life, SimulatedThreads
from tests.simulation.mechanisms import (
    OTHER_TIMERS,
    PERIOD_MS,
    TIMERS,
    Hasty,
    LateAcquisition,
    LateRenewal,
    Mechanisms,
    OfOwnPeriod,
    Unfenced,
)

LOGGER = logging.getLogger("orthia.failover")
MAX_RATE_DRIFT = CLOCK_RATE_MARGIN / 2
"""How much faster or slower than real time a clock may run: between two, that is the margin."""

SETTINGS = DatabaseStoreSettings(
    jdbc_connection_url=DatabaseUrl.parse("jdbc:sqlite:simulated.db"),
)
LONGEST_PAUSE_SECONDS = 60.0
FROZEN_SECONDS = 300.0
"""Of a process that stands still for longer than a run goes on."""
SETTLES_WITHIN_SECONDS = 60.0
"""From when the last fault is over to one node serving. The most that protocol and world allow: a
renewal that a process sent before it died makes its lease last for another expiration, or a node
that was stopped is started again as late (20 s); a node on its way to be live is waited for (20 s);
a batch holds the fence until the server ends it (5 s); the rest is for drifting clocks and requests
that are sent again."""
SERVES_ON_SECONDS = 10.0
"""For so long the node that serves after the faults has to go on: it is no passing state."""
RECEIPT_WITHIN_SECONDS = 25.0
"""From a client's message to its receipt in a world without faults, also if the first node it was
sent to hands over in this moment: it is sent again after 10 s, and once more."""


class NodeState(Enum):
    """What a node does."""

    DOWN = auto()
    WAITING = auto()
    SERVING = auto()
    STOPPING = auto()


class SilentLog(FailoverLog):
    """Nobody reads it."""

    def record(self, event: Event) -> Callable[[], None]:
        """Forget the event."""
        del event
        return lambda: None


class Node:
    """A node: its clock, and its present process."""

    def __init__(self, world: "World", number: int, rate: float) -> None:
        self.world = world
        self.name = f"node{number}"
        self.is_live_by_role = number == 0
        self.rate = rate
        self.timers, self.publishes_timers = world.draw_timers()
        self._state = NodeState.DOWN
        self.cut_off_until = 0.0
        self.is_scrap = False
        self.token = 0
        self.pending: list[int] = []
        self.writing = False
        self.lives = 0
        self.holder_id = ""
        self.life = Life()
        self.life.is_over = True

    @property
    def state(self) -> NodeState:
        """What it does."""
        return self._state

    @state.setter
    def state(self, state: NodeState) -> None:
        serving = self.world.serving
        if self in serving:
            serving.remove(self)
        if state is NodeState.SERVING:
            serving.append(self)
        self._state = state

    def clock(self) -> float:
        """Read the stopwatch."""
        return self.world.engine.now * self.rate

    def may_deliver(self) -> bool:
        """Return whether it would deliver a message at this moment."""
        if self.state is not NodeState.SERVING:
            return False
        mechanisms = self.world.mechanisms
        if not mechanisms.watchdog:
            return True
        if not mechanisms.delivery_ends_with_the_grace:
            return self.manager.is_lease_valid()
        return self.manager.may_deliver()

    # --- its process

    def start(self) -> None:
        """Begin a new life, unless it lives."""
        if self.state is not NodeState.DOWN or self.is_scrap:
            return
        world = self.world
        self.lives += 1
        self.holder_id = f"{self.name}@host:{self.lives}:uuid"
        published = self.timers if self.publishes_timers else None
        self.holder_id += HolderId(None, "", world.crash_detection, published).suffix
        self.life = Life()
        self.life.paused_until = world.engine.now
        self.state = NodeState.WAITING
        self.pending.clear()
        self.writing = False
        self.threads = SimulatedThreads(
            world.engine,
            self.life,
            without=None if world.mechanisms.watchdog else "orthia-watchdog",
        )
        self.stopping = self.threads.event()
        self.sent_to = self.threads.event()
        self.session = PresenceSession(world.database, self)
        self.manager = self._make_manager()
        self.manager.register_lock_listener(lambda _: self.io_error())
        world.engine.spawn(self.life, self._live_on)

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
            log=SilentLog(node_name=self.name, holder_id=self.holder_id, role="node"),
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

    def crash(self) -> None:
        """Die: the process's sessions end with it, and what was never answered is never stored."""
        if self.life.is_over:
            return
        self.life.is_over = True
        self.state = NodeState.DOWN
        self.pending.clear()
        self.session.release()
        for batch in list(self.world.database.open):
            if batch.client is self and not batch.is_committing:
                self.world.database.end(batch)

    def io_error(self) -> None:
        """Stop without touching the store, and be started again later."""
        if self.life.is_over:
            return
        if not self.world.mechanisms.crash_writes_no_pause:
            self.world.database.store.write_state(State.PAUSED)
        self.crash()
        self.world.engine.after(self.world.engine.random.uniform(1, 5), self.start)

    def _live_on(self) -> None:
        """Do what ``broker.node`` does with its node manager, in its order."""
        try:
            while True:
                if self.is_live_by_role:
                    callback = self.manager.start_live_node()
                else:
                    self.manager.start_backup()
                    callback = self.manager.await_live_node()
                self.token = self.manager.fencing_token
                self.state = NodeState.SERVING
                self.world.engine.spawn(self.life, self._write_journal)
                callback.activation_complete()
                if not self.is_live_by_role:
                    self.manager.release_backup()
                self._serve()
                self._stop_serving()
                if self.stopping.is_set():
                    break
                self.state = NodeState.WAITING
        except OrthiaError:
            self.io_error()
            return
        self.crash()
        self.world.engine.after(self.world.engine.random.uniform(1, 20), self.start)

    def _serve(self) -> None:
        """Serve until a stop, or until the live node asks for its place."""
        while not self.stopping.wait(PERIOD_MS / 1000):
            if self.is_live_by_role:
                continue
            try:
                if self.manager.is_awaiting_failback():
                    return
            except StoreUnavailable:
                continue

    def _stop_serving(self) -> None:
        self.state = NodeState.STOPPING
        self.pending.clear()
        while self.writing:
            self.world.engine.suspend(0.1)
        self.manager.crash_live_server()

    def offer(self, message: int) -> None:
        """A client sends a message."""
        self.pending.append(message)
        self.sent_to.set()

    def _write_journal(self) -> None:
        """Store what clients sent, batch by batch, and send receipts."""
        engine = self.world.engine
        while self.state is NodeState.SERVING:
            if not self.pending:
                self.sent_to.wait()
                self.sent_to.clear()
                engine.suspend(engine.random.uniform(0, 0.2))
                continue
            messages = list(self.pending)
            self.pending.clear()
            self.writing = True
            if not self.world.mechanisms.receipt_after_commit:
                self.world.receipt(messages)
            while not self._write(messages):
                if self.life.is_over:
                    return
                if not self.manager.is_lease_valid():
                    self.io_error()
                    return
                engine.suspend(0.1)
            self.writing = False
            self.world.receipt(messages)

    def _write(self, messages: list[int]) -> bool:
        database, engine = self.world.database, self.world.engine
        try:
            batch = database.call(self, lambda: database.begin(self, messages))
            if batch is None:
                self.io_error()
                return False
            engine.suspend(engine.random.uniform(0, 0.02))
            return self._commit(batch)
        except StoreUnavailable:
            return False

    def _commit(self, batch: Batch) -> bool:
        batch.is_committing = True
        return self.world.database.call(self, lambda: self.world.database.commit(batch))


class World:
    """Everything, driven by one seed."""

    def __init__(
        self, seed: int, *, mechanisms: Mechanisms | None = None, drift: float = MAX_RATE_DRIFT
    ) -> None:
        """Make the world of ``seed``, which also says how many nodes there are and what they do.

        No clock is faster or slower than real time by more than ``drift``, and some are by as much.
        """
        LOGGER.disabled = True
        self.engine = Engine(seed)
        self.random = random = self.engine.random
        nodes = random.randint(2, 5)
        self.crash_detection = random.random() < 0.7
        self.clock_steps_forward = random.random() < 0.2
        self.loses_the_live_node = random.random() < 0.5
        self.timers_differ = random.random() < 0.3
        self.is_upgraded_node_by_node = not self.timers_differ and random.random() < 0.2
        self.mechanisms = mechanisms or Mechanisms()
        self.database = Database(
            self.engine,
            self.mechanisms,
            rate=1 + random.choice([-drift, 0, drift]),
            # Not drawn: what else a seed gives stays as it was.
            may_end_sessions=seed % 3 > 0,
        )
        self.receipted: set[int] = set()
        self.sent = 0
        self.serving: list[Node] = []
        """The nodes that serve, checked after every event."""
        self.nodes = [
            Node(self, number, 1 + random.choice([-drift, random.uniform(-drift, drift), drift]))
            for number in range(nodes)
        ]

    def close(self) -> None:
        """Free what the run held, and let the node managers of others log again."""
        self.engine.close()
        LOGGER.disabled = False

    @property
    def now(self) -> float:
        """The real time, in seconds."""
        return self.engine.now

    @property
    def takeovers(self) -> int:
        """How many tokens wrote to the journal."""
        return self.database.takeovers

    def draw_timers(self) -> tuple[Timers, bool]:
        """Return a node's timers, and whether it publishes them: older versions do not."""
        timers = self.random.choice(OTHER_TIMERS) if self.timers_differ else TIMERS
        return timers, not (self.is_upgraded_node_by_node and self.random.random() < 0.5)

    # --- clients

    def send(self) -> None:
        """A client sends a new message to whichever node serves it, again until it is receipted."""
        self.sent += 1
        self._offer(self.sent, patience=self.random.choice([0, 3, 1000]))
        self.engine.after(self.random.expovariate(2), self.send)

    def _offer(self, message: int, patience: int) -> None:
        """Send it; a client that crashes does not ask again."""
        if message in self.receipted:
            return
        serving = [
            node
            for node in self.serving
            if message not in node.pending and self.now >= node.life.paused_until
        ]
        if serving:
            self.random.choice(serving).offer(message)
        if patience:
            self.engine.after(10.0, self._offer, message, patience - 1)

    def receipt(self, messages: list[int]) -> None:
        """Clients are told that their messages are stored; it is so."""
        self.receipted.update(messages)
        if lost := [message for message in messages if message not in self.database.stored]:
            raise Violation(f"receipted and not stored: {lost}")

    # --- faults

    def break_something(self) -> None:
        """Do one thing that goes wrong, now and then."""
        database, random, now = self.database, self.random, self.now
        if not database.faults:
            return
        node = random.choice(self.nodes)
        match random.randrange(11):
            case 0:
                node.crash()
                self.engine.after(random.uniform(0.1, 30), node.start)
            case 1 | 2:
                self.pause(node)
            case 3:
                database.restart(now + random.uniform(0.1, 20))
            case 4:
                self.cut_off(node)
            case 5:
                step = random.uniform(-15, 25 if self.clock_steps_forward else 0)
                database.clock_offset += step
            case 6 | 7:
                present = database.presence
                database.grant_presence(None)  # its session ends, its process does not
                if present is not None and random.random() < 0.5:
                    self.engine.after(random.uniform(0, 2), self.pause, present.client)
            case 8:
                if node.state is NodeState.SERVING:
                    node.stopping.set()
            case 9:
                database.slow_until = now + random.uniform(3, 10)
                if random.random() < 0.5:
                    self.engine.after(random.uniform(3, 10), self.cut_off, node)
            case 10:
                if database.open:
                    batch = database.open[0]
                    self.pause(batch.client)
                    if batch.is_in_copy:
                        self.freeze(batch.client)
                    if random.random() < 0.5:
                        database.grant_presence(None)
        self.engine.after(random.expovariate(1 / 5), self.break_something)

    def pause(self, node: Client) -> None:
        """Stop a process for less, or for more, than its lease."""
        if self.database.faults:
            seconds = self.random.choice([0.5, 3, 6, 10, 25, LONGEST_PAUSE_SECONDS])
            node.life.paused_until = max(node.life.paused_until, self.now + seconds)

    def freeze(self, node: Client) -> None:
        """Stop a process for longer than anybody waits for it, if another is left to serve."""
        left = [
            one
            for one in self.nodes[self.loses_the_live_node :]
            if one is not node and not self._is_frozen(one)
        ]
        if left and self.database.faults:
            node.life.paused_until = self.now + FROZEN_SECONDS

    def _is_frozen(self, node: "Node") -> bool:
        return node.life.paused_until > self.now + LONGEST_PAUSE_SECONDS

    def cut_off(self, node: Node) -> None:
        """Have a node's messages to and from the database lost for a time."""
        if self.database.faults:
            node.cut_off_until = self.now + self.random.uniform(0.5, 40)

    # --- what always holds

    def check_nodes(self) -> None:
        """At most one node would deliver, and none believes a lease that the database let go."""
        if self.clock_steps_forward:
            return
        for node in self.serving:
            if not self.database.lets_believe(node.holder_id, node.token) and (
                node.manager.is_lease_valid()
            ):
                raise Violation(f"{node.holder_id} believes a lease that has expired")
        if len(self.serving) > 1:
            delivering = [node.holder_id for node in self.serving if node.may_deliver()]
            if len(delivering) > 1:
                raise Violation(f"{delivering} would both deliver")

    # --- a run

    def simulate(self, seconds: float) -> None:
        """Run with faults, then without; in the end exactly one node serves."""
        for node in self.nodes:
            self.engine.after(self.random.uniform(0, 2), node.start)
        self.engine.after(1.0, self.send)
        self.engine.after(5.0, self.break_something)
        self.engine.run_until(seconds, self.check_nodes)
        self.database.faults = False
        if self.loses_the_live_node:
            self.nodes[0].crash()
            self.nodes[0].is_scrap = True
        for node in self.nodes:
            node.start()
        self._settle()
        self._prove_service()

    def _settle(self) -> None:
        """One node comes to serve, and goes on."""
        calm = self._last_fault_ends()
        self.engine.run_until(calm, self.check_nodes)
        before: list[str] = []
        while len(before) != 1 or before != self._serving():
            if self.now >= calm + SETTLES_WITHIN_SECONDS:
                raise Violation(f"after the faults {' and '.join(before) or 'nobody'} serves")
            before = self._serving()
            self.engine.run_until(self.now + SERVES_ON_SECONDS, self.check_nodes)

    def _serving(self) -> list[str]:
        return [node.holder_id for node in self.nodes if node.may_deliver()]

    def _last_fault_ends(self) -> float:
        """Return when the faults so far are over, in real time, all but frozen processes.

        A lease that a step back of the database's clock made longer is such a fault.
        """
        database = self.database
        ends = [self.now, database.down_until, *(node.cut_off_until for node in self.nodes)]
        ends += [node.life.paused_until for node in self.nodes if not self._is_frozen(node)]
        left = (database.store.lock_status(lock).expires_in_seconds for lock in Lock)
        ends += [self.now + seconds for seconds in left if seconds is not None]
        return max(ends)

    def _prove_service(self) -> None:
        """A message sent now is receipted."""
        self.sent += 1
        message = self.sent
        self._offer(message, patience=2)
        latest = self.now + RECEIPT_WITHIN_SECONDS
        while message not in self.receipted:
            if self.now >= latest:
                raise Violation("after the faults nothing is receipted any more")
            self.engine.run_until(self.now + 1, self.check_nodes)
