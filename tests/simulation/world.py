"""A simulated pair: the real node manager, on clocks that drift, in processes that stop and die.

No real time, no threads: one heap of events, one random generator, one seed. What is real is
``JdbcNodeManager`` whole, with keep-alive, watchdog and presence keeper, and its store in memory;
the journal's intake and writer, the node's state machine with its driver, the critical analyzer and
the log handler. What is simulated is
all that lies around them: threads and time (``engine``, ``interpreter``), the event loop
(``loop``), standard error (``console``), the network and the database (``database``, ``tables``),
the nodes' processes (``node``), and here clients and faults. ``Mechanisms`` switches each safety
mechanism off, so that a test can show that its absence is noticed.

Of the nodes' clocks only the *rate* is bounded (``MAX_RATE_DRIFT``), of the database's that and
nothing else: backward steps only make the lease of a node that is gone last longer. Forward steps
can make two nodes deliver at once, until the older one meets the fence, also what was acknowledged
to the newer; worlds in which they happen are held to every other invariant.
"""

import logging
import math
from collections.abc import Callable

from orthia.broker.node.driver import IO_ERROR_GRACE_SECONDS
from orthia.broker.node.state import Phase
from orthia.nodemanager.locks.holder_id import Timers
from orthia.nodemanager.locks.lease import CLOCK_RATE_MARGIN, Lock
from tests.simulation.database import Database
from tests.simulation.engine import Engine, Life
from tests.simulation.interpreter import set_clock
from tests.simulation.mechanisms import OTHER_TIMERS, TIMERS, Mechanisms
from tests.simulation.node import (
    ANALYZER_CHECK_PERIOD_MS,
    ANALYZER_TIMEOUT_MS,
    LOOP_CALL_SECONDS,
    Node,
)
from tests.simulation.tables import Client, Transaction, Violation

LOGGERS = [logging.getLogger(f"orthia.{name}") for name in ("failover", "journal", "broker")]
MAX_RATE_DRIFT = CLOCK_RATE_MARGIN / 2
"""How much faster or slower than real time a clock may run: between two, that is the margin."""

LONGEST_PAUSE_SECONDS = 60.0
FROZEN_SECONDS = 300.0
"""Of a process that stands still for longer than a run goes on."""
LOOP_STALLS_SECONDS = (0.5, 2.0, ANALYZER_TIMEOUT_MS / 1000 * 0.8)
"""Of loops that come back: before anybody takes them for wedged."""
WEDGE_ENDS_WITHIN_SECONDS = (
    5.0
    + (ANALYZER_TIMEOUT_MS + ANALYZER_CHECK_PERIOD_MS) / 1000
    + LOOP_CALL_SECONDS
    + IO_ERROR_GRACE_SECONDS
)
"""From a loop that does not come back to the end of its process."""
WEDGE_NOTICED_WITHIN_SECONDS = 10.0 + (ANALYZER_TIMEOUT_MS + ANALYZER_CHECK_PERIOD_MS) / 1000
"""The same while it serves, or is about to, and does not stop: by the critical analyzer."""
SETTLES_WITHIN_SECONDS = 60.0
"""From when the last fault is over to one node serving. The most that protocol and world allow: a
renewal that a process sent before it died makes its lease last for another expiration, or a node
that was stopped is started again as late (20 s); a node on its way to be live is waited for (20 s);
a batch holds the fence until the server ends it (5 s); the rest is for drifting clocks and requests
that are sent again."""
_ACKNOWLEDGED_PROBABILITY = 0.8
_WITH_LARGE = 3
"""Of five worlds in a row, the one with large messages, and with a queue that is read through."""
REMOVED_WITHIN_SECONDS = 60.0
"""After the last large message of all, until no body is left that nobody needs."""
SERVES_ON_SECONDS = 10.0
"""For so long the node that serves after the faults has to go on: it is no passing state."""
RECEIPT_WITHIN_SECONDS = 25.0
"""From a client's message to its receipt in a world without faults, also if the first node it was
sent to hands over in this moment: it is sent again after 10 s, and once more."""


class World:
    """Everything, driven by one seed."""

    def __init__(
        self, seed: int, *, mechanisms: Mechanisms | None = None, drift: float = MAX_RATE_DRIFT
    ) -> None:
        """Make the world of ``seed``, which also says how many nodes there are and what they do.

        No clock is faster or slower than real time by more than ``drift``, and some are by as much.
        """
        for logger in LOGGERS:
            logger.disabled = True
        self.engine = Engine(seed)
        set_clock(lambda: self.engine.now)
        self.random = random = self.engine.random
        nodes = random.randint(2, 5)
        self.crash_detection = random.random() < 0.7
        self.clock_steps_forward = random.random() < 0.2
        self.loses_the_live_node = random.random() < 0.5
        self.reads_consoles = random.random() < 0.85
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
        self.has_large = seed % 5 == _WITH_LARGE
        self.receipted: set[int] = set()
        self.sent = 0
        self.serving: list[Node] = []
        """The nodes that clients are connected to, checked after every event."""
        self._sends = True
        self._given: set[int] = set()
        self.acknowledged: set[int] = set()
        self.nodes = [
            Node(self, number, 1 + random.choice([-drift, random.uniform(-drift, drift), drift]))
            for number in range(nodes)
        ]

    def close(self) -> None:
        """Free what the run held, and let the node managers of others log again."""
        self.engine.close()
        set_clock()
        for logger in LOGGERS:
            logger.disabled = False

    @property
    def now(self) -> float:
        """The real time, in seconds."""
        return self.engine.now

    @property
    def takeovers(self) -> int:
        """How many tokens wrote to the journal."""
        return self.database.tables.takeovers

    def draw_timers(self) -> tuple[Timers, bool]:
        """Return a node's timers, and whether it publishes them: older versions do not."""
        timers = self.random.choice(OTHER_TIMERS) if self.timers_differ else TIMERS
        return timers, not (self.is_upgraded_node_by_node and self.random.random() < 0.5)

    # --- clients

    def send(self) -> None:
        """Clients send a message, or several at once, to whichever node serves them."""
        if not self._sends:
            return
        for _ in range(self.random.choice((1, 1, 1, 1, 9))):
            self.sent += 1
            self._offer(self.sent, patience=self.random.choice([0, 3, 1000]))
        self.engine.after(self.random.expovariate(0.5), self.send)

    def _offer(self, message: int, patience: int) -> None:
        """Send it, again until it is receipted; a client that crashes does not ask again."""
        if message in self.receipted:
            return
        serving = self.serving
        if not self.database.faults or self.random.random() < 0.7:
            # Sockets of a process that stands still take what is sent, too.
            serving = [node for node in serving if self.now >= node.life.paused_until]
        if serving:
            self.random.choice(serving).service.offer(message)
        if patience:
            self.engine.after(10.0, self._offer, message, patience - 1)

    def give_out(self, seq: int) -> None:
        """A node's journal has given this number to a message."""
        if seq in self._given:
            raise Violation(f"{seq} is the number of two messages")
        self._given.add(seq)

    def receipt(self, message: int, seq: int) -> None:
        """A client is told that its message is stored; it is so."""
        self.receipted.add(message)
        if not self.database.tables.has_stored(seq):
            raise Violation(f"receipted and not stored: {seq}")

    def deliver(self, seq: int, token: int, acknowledge: Callable[[], None]) -> None:
        """A consumer gets a message of the node with this token, and acknowledges it as a rule.

        Where the database's clock steps forward, a node that was taken over from may deliver what
        was acknowledged since, until it meets the fence.
        """
        # Also if whoever took over has crashed since: the fence is there, and is met.
        is_newest = token >= self.database.tables.newest_token
        if seq in self.acknowledged and (is_newest or not self.clock_steps_forward):
            raise Violation(f"delivered though it was acknowledged: {seq}")
        if self.random.random() < _ACKNOWLEDGED_PROBABILITY:
            self.engine.after(self.random.expovariate(2), acknowledge)

    def receipt_of_acknowledgement(self, seq: int) -> None:
        """A consumer is told that its acknowledgement is stored; it is so."""
        self.acknowledged.add(seq)
        if seq in self.database.tables.rows:
            raise Violation(f"acknowledged and still there: {seq}")

    # --- faults

    def break_something(self) -> None:
        """Do one thing that goes wrong, now and then."""
        database, random, now = self.database, self.random, self.now
        if not database.faults:
            return
        node = random.choice(self.nodes)
        match random.randrange(15):
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
                node.request_stop()
            case 9:
                database.slow_until = now + random.uniform(3, 10)
                if random.random() < 0.5:
                    self.engine.after(random.uniform(3, 10), self.cut_off, node)
            case 10:
                database.tables.when_open(self.pause_in)
            case 11 | 12:
                self.stall_loop(random.choice(self.serving or self.nodes))
            case 13:
                if not node.is_down:
                    node.console.block(random.choice([None, 5, 60]))
            case 14:
                database.answers_next_acquisition_late = True
        self.engine.after(random.expovariate(1 / 5), self.break_something)

    def pause(self, node: Client) -> None:
        """Stop a process for less, or for more, than its lease."""
        if self.database.faults:
            seconds = self.random.choice([0.5, 3, 6, 10, 25, LONGEST_PAUSE_SECONDS])
            node.life.paused_until = max(node.life.paused_until, self.now + seconds)

    def pause_in(self, transaction: Transaction) -> None:
        """Stop a process in the middle of a batch."""
        client = transaction.session.client
        self.pause(client)
        if transaction.is_in_copy and self.random.random() < 0.5:
            self.freeze(client)
        if self.random.random() < 0.5 and self.database.faults:
            self.database.grant_presence(None)

    def opened(self, node: Node) -> None:
        """A node has begun to serve: stop it for as long as its lease lasts, if that began late."""
        database = self.database
        holder, expires_at = database.acquired_late or ("", 0.0)
        if holder == node.holder_id and database.faults:
            database.acquired_late = None
            node.life.paused_until = expires_at + self.random.uniform(0, 2)

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

    def stall_loop(self, node: Node) -> None:
        """Have a node's event loop do nothing for a time, or, while it serves, ever again."""
        if node.is_down or node.loop.is_stalled or self.now < node.life.paused_until:
            return  # without a moment in between two stalls would be a longer one
        if node.is_open and self.random.random() < 0.3:
            node.loop.stall(math.inf)
            within = WEDGE_ENDS_WITHIN_SECONDS
            self.engine.after(within, self._check_ended, node, node.life, self.now)
            self.engine.after(
                WEDGE_NOTICED_WITHIN_SECONDS, self._check_noticed, node, node.life, self.now
            )
        else:
            seconds = self.random.choice(LOOP_STALLS_SECONDS)
            node.loop.stall(seconds)
            if self.random.random() < 0.5:
                self.engine.after(self.random.uniform(0, seconds), self.pause, node)

    def _check_ended(self, node: Node, life: Life, since: float) -> None:
        """Check that a process is over whose loop has hung since then, unless it was paused."""
        if not life.is_over and life.paused_until <= since:
            raise Violation(f"{node.holder_id} goes on with a loop that hangs")

    def _check_noticed(self, node: Node, life: Life, since: float) -> None:
        """Check the same of one that was to serve all the while."""
        if node.phase is Phase.LIVE:
            self._check_ended(node, life, since)

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
        if self.has_large:
            self._prove_readers()

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
        for node in self.nodes:
            runs = not node.is_down and not self._is_frozen(node)
            if runs and node.loop.is_wedged:
                raise Violation(f"{node.holder_id} goes on with a loop that hangs")

    def _serving(self) -> list[str]:
        return [node.holder_id for node in self.nodes if node.serves()]

    def _last_fault_ends(self) -> float:
        """Return when the faults so far are over, in real time, all but frozen processes.

        A lease that a step back of the database's clock made longer is such a fault.
        """
        database = self.database
        ends = [self.now, database.down_until, *(node.cut_off_until for node in self.nodes)]
        awake = [node for node in self.nodes if not self._is_frozen(node)]
        ends += [node.life.paused_until for node in awake]
        for node in awake:
            if not node.is_down and node.loop.is_stalled:
                resumes = max(self.now, node.life.paused_until)
                ends.append(min(node.loop.stalled_until, resumes + WEDGE_ENDS_WITHIN_SECONDS))
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

    def _prove_readers(self) -> None:
        """What was asked for is answered, and bodies that nobody needs are removed."""
        self._sends = False
        latest = self.now + REMOVED_WITHIN_SECONDS
        while self.database.tables.bodies.unneeded():
            if self.now >= latest:
                left = self.database.tables.bodies.unneeded()
                raise Violation(f"nobody needs the bodies {left}, and they are not removed")
            self.engine.run_until(self.now + 1, self.check_nodes)
        for node in self.serving:
            if node.serves():
                node.service.large.check_answered()
