"""A simulated pair: nodes with drifting clocks and pauses, a faulty database, clients.

No real time, no threads: one heap of events, one random generator, one seed. What is real here are
the pure parts of the node manager (leases, activation, the judgement of a holder that may be gone)
and its store in memory; what is simulated is all that lies around them. ``Mechanisms`` switches
each safety mechanism off, so that a test can show that its absence is noticed.

Of the nodes' clocks only the *rate* is bounded (``MAX_RATE_DRIFT``), of the database's nothing:
backward steps only make the lease of a node that is gone last longer. Forward steps
can make two nodes deliver at once, until the older one meets the fence; worlds in which they happen
are held to every other invariant.
"""

import heapq
import math
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from nodemanager.activation import (
    GRACE_PERIODS,
    BackupWatch,
    Decision,
    Holder,
    HolderWatch,
    decide,
    judge_holder,
    still_wanted,
)
from nodemanager.lease import Lease, Lock, State, deadline
from nodemanager.memory_store import MemoryNodeManagerStore

EXPIRATION_MS = 20_000
PERIOD_MS = 2_000
GRACE_SECONDS = GRACE_PERIODS * PERIOD_MS / 1000
MAX_RATE_DRIFT = 0.001
"""How much faster or slower than real time a clock may run; NTP slews by half of it at most."""
CALL_TIMEOUT_SECONDS = 4.0
IDLE_LIMIT_SECONDS = EXPIRATION_MS / 4000


@dataclass(frozen=True)
class Mechanisms:
    """What keeps a pair safe; each can be switched off."""

    renewal_matches_holder_and_token: bool = True
    fence: bool = True
    fence_waits_for_batches: bool = True
    deadline_from_before_the_request: bool = True
    watchdog: bool = True
    idle_limit: bool = True
    idempotent_batches: bool = True
    receipt_after_commit: bool = True
    crash_writes_no_pause: bool = True
    watch_before_taking_over: bool = True
    delivery_ends_with_the_grace: bool = True


class Violation(AssertionError):  # noqa: N818 - of an invariant
    """An invariant does not hold."""


class Failed(Exception):  # noqa: N818 - what became of a call
    """A call to the database got no answer; it may have been carried out."""


Step = tuple[str, Any]
Process = Generator[Step, Any, None]


class NodeState(Enum):
    """What a node does."""

    DOWN = auto()
    WAITING = auto()
    SERVING = auto()


@dataclass
class Batch:
    """A journal transaction that is open in the database."""

    node: "Node"
    token: int
    messages: list[int]
    alive: bool = True


class Database:
    """The store and the journal, and everything that can happen to a request on its way."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.clock_offset = 0.0
        self.store = MemoryNodeManagerStore(lambda: world.now + self.clock_offset)
        self.down_until = 0.0
        self.rows: list[tuple[int, int]] = []
        """(message, token) of every row, in the order of their commits."""
        self.stored: set[int] = set()
        self.open: list[Batch] = []
        self.presence: Node | None = None

    def begin(self, node: "Node", messages: list[int]) -> Batch | None:
        """Begin a batch as the writer does: the fence is read with a share lock."""
        token = node.token
        if self.world.mechanisms.fence and self.store.fence_token != token:
            return None
        batch = Batch(node, token, messages)
        self.open.append(batch)
        if self.world.mechanisms.idle_limit:
            self.world.after(IDLE_LIMIT_SECONDS, lambda: self.end(batch))
        return batch

    def commit(self, batch: Batch) -> bool:
        """Commit a batch unless the server has ended its session."""
        if not batch.alive:
            return False
        self.end(batch)
        for message in batch.messages:
            if message in self.stored and self.world.mechanisms.idempotent_batches:
                continue
            self.rows.append((message, batch.token))
            self.stored.add(message)
        self.world.check_rows(batch)
        return True

    def end(self, batch: Batch) -> None:
        """End a batch's transaction, which frees the share lock."""
        batch.alive = False
        if batch in self.open:
            self.open.remove(batch)

    def fence_is_locked(self, token: int) -> bool:
        """Whether the fence has to wait for a batch in flight under an older token."""
        if not self.world.mechanisms.fence_waits_for_batches:
            return False
        return any(batch.token < token for batch in self.open)


@dataclass
class Node:
    """A node: its clock, its state, and the processes of its present life."""

    world: "World"
    name: str
    role: str
    rate: float
    state: NodeState = NodeState.DOWN
    life: int = 0
    paused_until: float = 0.0
    cut_off_until: float = 0.0
    lease: Lease | None = None
    renewing_since: float | None = None
    lost: bool = False
    token: int = 0
    pending: list[int] = field(default_factory=list)
    presence_since: float | None = None
    is_scrap: bool = False

    @property
    def holder_id(self) -> str:
        """Who it is in this life."""
        return f"{self.name}-{self.life}"

    def clock(self) -> float:
        """Read the stopwatch."""
        return self.world.now * self.rate

    def is_valid(self) -> bool:
        """Whether it believes to hold the live lease."""
        if self.lease is None or self.lost:
            return False
        return not self.world.mechanisms.watchdog or self.lease.is_valid(self.clock())

    def may_deliver(self) -> bool:
        """Whether it would deliver a message at this moment."""
        if self.state is not NodeState.SERVING or not self.is_valid() or self.lease is None:
            return False
        detects = self.world.crash_detection
        if not (detects and self.world.mechanisms.delivery_ends_with_the_grace):
            return True
        renewed = self.lease.deadline_seconds - EXPIRATION_MS / 1000
        return self.clock() < renewed + GRACE_SECONDS

    # --- its processes

    def start(self) -> None:
        """Begin a new life."""
        self.life += 1
        self.state = NodeState.WAITING
        self.lease, self.lost, self.presence_since = None, False, None
        self.pending.clear()
        self.world.run(self, self.main())
        if self.world.crash_detection:
            self.world.run(self, self.want_presence())

    def crash(self) -> None:
        """Die: the session of the presence lock ends with the process."""
        self.state = NodeState.DOWN
        self.life += 1
        self.world.client_lost(self)
        self.drop_presence()

    def drop_presence(self) -> None:
        """Lose the presence lock's session."""
        self.presence_since = None
        database = self.world.database
        if database.presence is self:
            database.presence = None

    def io_error(self) -> None:
        """Stop without touching the store, and start again later."""
        if not self.world.mechanisms.crash_writes_no_pause:
            self.world.database.store.write_state(State.PAUSED)
        self.crash()
        self.world.after(self.world.random.uniform(1, 5), lambda: self.world.start(self))

    def want_presence(self) -> Process:
        """Ask for the presence lock again and again."""
        while True:
            database = self.world.database
            if self.presence_since is None and database.presence is None and self.reaches():
                database.presence = self
                self.presence_since = self.clock()
            elif self.presence_since is not None and database.presence is not self:
                self.presence_since = None
            yield "sleep", 0.2

    def reaches(self) -> bool:
        """Whether requests get to the database."""
        return self.world.now >= max(self.cut_off_until, self.world.database.down_until)

    def main(self) -> Process:
        """Wait until it may be live, become live, serve."""
        store = self.world.database.store
        if self.role == "live":
            yield from self.patiently(lambda: store.write_state(State.FAILING_BACK))
            lease = yield from self.wait_as_live()
        else:
            lease = yield from self.wait_as_backup()
        self.lease, self.token = lease, lease.token
        self.world.run(self, self.renew())
        self.world.watch(self)
        if self.world.mechanisms.fence:
            yield from self.advance_fence(lease)
        self.state = NodeState.SERVING
        self.world.run(self, self.write_state_live(lease))
        self.world.run(self, self.write_journal())

    def patiently(self, ask: Callable[[], Any]) -> Generator[Step, Any, Any]:
        """Ask until there is an answer."""
        while True:
            try:
                answer = yield "call", ask
            except Failed:
                yield "sleep", 0.5
            else:
                return answer

    def take(self, ask: Callable[[], Any]) -> Generator[Step, Any, Lease | None]:
        """Ask for the live lease; its deadline is counted from before the request."""
        while True:
            asked = self.clock()
            try:
                acquired = yield "call", ask
            except Failed:
                yield "sleep", 0.5
                continue
            if acquired is None:
                return None
            if not self.world.mechanisms.deadline_from_before_the_request:
                asked = self.clock()
            until = deadline(asked, EXPIRATION_MS)
            return Lease(Lock.LIVE, self.holder_id, acquired.token, until)

    def try_acquire(self) -> Generator[Step, Any, Lease | None]:
        """Take the live lock if it is free or expired."""
        store, holder_id = self.world.database.store, self.holder_id
        lease = yield from self.take(lambda: store.try_acquire(Lock.LIVE, holder_id, EXPIRATION_MS))
        return lease

    def judged(self, status: Any, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        """Judge the live lock's holder."""
        grace = GRACE_SECONDS if self.world.mechanisms.watch_before_taking_over else 0.0
        holder, watch = judge_holder(
            status.live,
            watch,
            present_since_seconds=self.presence_since,
            confirmed_seconds=self.clock() if self.world.database.presence is self else -math.inf,
            now_seconds=self.clock(),
            grace_seconds=grace,
        )
        if holder is Holder.ALIVE:
            self.drop_presence()
        return holder, watch

    def take_over(self, status: Any) -> Generator[Step, Any, Lease | None]:
        """Take the lease of a holder that is gone."""
        store, holder_id = self.world.database.store, self.holder_id
        lease = yield from self.take(
            lambda: store.take_over(Lock.LIVE, holder_id, EXPIRATION_MS, seen=status.live)
        )
        return lease

    def wait_as_live(self) -> Generator[Step, Any, Lease]:
        """Wait for the live lock."""
        store, watch = self.world.database.store, HolderWatch()
        while True:
            lease = yield from self.try_acquire()
            if lease is not None:
                return lease
            status = yield from self.patiently(store.status)
            holder, watch = self.judged(status, watch)
            if holder is Holder.GONE:
                lease = yield from self.take_over(status)
                if lease is not None:
                    return lease
            yield "sleep", 0.5

    def wait_as_backup(self) -> Generator[Step, Any, Lease]:
        """Wait until the live node has failed."""
        store = self.world.database.store
        watch, holder_watch = BackupWatch(), HolderWatch()
        while True:
            status = yield from self.patiently(store.status)
            holder, holder_watch = self.judged(status, holder_watch)
            decision, watch = decide(status, watch, self.clock(), EXPIRATION_MS, holder)
            if decision is Decision.WAIT:
                yield "sleep", 0.5
                continue
            if decision is Decision.TAKE_OVER:
                lease = yield from self.take_over(status)
            else:
                lease = yield from self.try_acquire()
            if lease is None:
                continue
            state = (yield from self.patiently(store.status)).state
            if still_wanted(decision, state):
                return lease
            token, holder_id = lease.token, self.holder_id
            yield from self.patiently(
                lambda token=token, holder_id=holder_id: store.release(  # type: ignore[misc]
                    Lock.LIVE, holder_id, token
                )
            )

    def renewal(self, lease: Lease) -> Any:
        """Renew in the store."""
        store = self.world.database.store
        holder_id, token = lease.holder_id, lease.token
        if not self.world.mechanisms.renewal_matches_holder_and_token:
            live = store.status().live
            holder_id, token = live.holder_id or holder_id, live.token
        return store.renew(Lock.LIVE, holder_id, token, EXPIRATION_MS)

    def renew(self) -> Process:
        """Renew each period; any failure ends the node."""
        mechanisms = self.world.mechanisms
        while True:
            yield "sleep", PERIOD_MS / 1000
            lease = self.lease
            if lease is None:
                return
            asked = self.renewing_since = self.clock()
            try:
                renewed = yield "call", lambda lease=lease: self.renewal(lease)
            except Failed:
                renewed = None
            if renewed is None:
                self.io_error()
                return
            if not mechanisms.deadline_from_before_the_request:
                asked = self.clock()
            self.lease = lease.renewed(asked, EXPIRATION_MS)

    def advance_fence(self, lease: Lease) -> Generator[Step, Any, None]:
        """Advance the fence once no older batch is in flight."""
        database = self.world.database
        while True:
            if database.fence_is_locked(lease.token):
                yield "sleep", 0.05
                continue
            try:
                advanced = yield (
                    "call",
                    lambda: (
                        not database.fence_is_locked(lease.token)
                        and database.store.advance_fence(lease.holder_id, lease.token)
                    ),
                )
            except Failed:
                advanced = False
            if advanced:
                return
            if not self.is_valid():
                self.io_error()
                return
            yield "sleep", 0.2

    def write_state_live(self, lease: Lease) -> Process:
        """Say that clients are served."""
        store = self.world.database.store
        yield from self.patiently(
            lambda: store.write_state_as_live(State.LIVE, lease.holder_id, lease.token)
        )

    def write_journal(self) -> Process:
        """Store what clients sent, batch by batch, and send receipts."""
        database, mechanisms = self.world.database, self.world.mechanisms
        while True:
            if not self.pending:
                yield "sleep", 0.05
                continue
            messages = list(self.pending)
            self.pending.clear()
            if not mechanisms.receipt_after_commit:
                self.world.receipt(messages)
            while True:
                try:
                    batch = yield "call", lambda m=messages: database.begin(self, m)
                    if batch is None:
                        self.io_error()
                        return
                    yield "work", self.world.random.uniform(0, 0.02)
                    committed = yield "call", lambda b=batch: database.commit(b)
                except Failed:
                    committed = False
                if committed:
                    break
                if not self.is_valid():
                    self.io_error()
                    return
                yield "sleep", 0.1
            self.world.receipt(messages)


class World:
    """Everything, driven by one seed."""

    def __init__(self, seed: int, *, mechanisms: Mechanisms | None = None) -> None:
        """Make the world of ``seed``, which also says how many nodes there are and what they do."""
        self.random = random.Random(seed)
        nodes = self.random.randint(2, 5)
        self.crash_detection = self.random.random() < 0.7
        self.clock_steps_forward = self.random.random() < 0.2
        self.loses_the_live_node = self.random.random() < 0.5
        self.mechanisms = mechanisms or Mechanisms()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.database = Database(self)
        self.faults = True
        self.receipted: set[int] = set()
        self.sent = 0
        self.takeovers = 0
        self._newest_token = 0
        self.nodes = [
            Node(
                self,
                f"node{number}",
                "live" if number == 0 else "backup",
                1 + self.random.uniform(-MAX_RATE_DRIFT, MAX_RATE_DRIFT),
            )
            for number in range(nodes)
        ]

    # --- the machinery

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._numbers += 1
        heapq.heappush(self._events, (self.now + seconds, self._numbers, action))

    def run(self, node: Node, process: Process) -> None:
        """Run a process of a node's present life."""
        life = node.life
        self.after(0.0, lambda: self._advance(node, life, process, None))

    def _advance(self, node: Node, life: int, process: Process, value: Any) -> None:
        if node.life != life:
            return
        if self.now < node.paused_until:
            self.after(
                node.paused_until - self.now, lambda: self._advance(node, life, process, value)
            )
            return
        try:
            if isinstance(value, Failed):
                kind, argument = process.throw(value)
            else:
                kind, argument = process.send(value)
        except StopIteration:
            return
        if node.life != life:
            return
        if kind == "call":
            self._call(node, life, process, argument)
        else:
            self.after(argument, lambda: self._advance(node, life, process, None))

    def _call(self, node: Node, life: int, process: Process, request: Callable[[], Any]) -> None:
        """Send a request: it arrives late, or not at all; so does the answer."""
        answered = [False]

        def answer(value: Any) -> None:
            if not answered[0]:
                answered[0] = True
                self._advance(node, life, process, value)

        def arrive() -> None:
            if not node.reaches():
                return
            value = request()
            if not self.faults or self.random.random() > 0.02:
                self.after(self._delay(), lambda: answer(value) if node.reaches() else None)

        if not self.faults or self.random.random() > 0.01:
            self.after(self._delay(), arrive)
        self.after(CALL_TIMEOUT_SECONDS, lambda: answer(Failed()))

    def _delay(self) -> float:
        slow = self.faults and self.random.random() < 0.01
        return self.random.uniform(1.0, 6.0) if slow else self.random.uniform(0.0005, 0.01)

    def start(self, node: Node) -> None:
        """Start a node that is down."""
        if node.state is NodeState.DOWN and not node.is_scrap:
            node.start()

    def watch(self, node: Node) -> None:
        """The node's watchdog: at the local deadline it is over, whatever a renewal does."""
        life = node.life

        def look() -> None:
            if node.life != life or node.lease is None:
                return
            if self.now < node.paused_until:
                self.after(node.paused_until - self.now, look)
            elif node.clock() >= node.lease.deadline_seconds:
                node.io_error()
            else:
                left = (node.lease.deadline_seconds - node.clock()) / node.rate
                self.after(max(left, 0.001), look)

        if self.mechanisms.watchdog:
            look()

    # --- clients

    def send(self) -> None:
        """A client sends a new message to whichever node serves it, again until it is receipted."""
        self.sent += 1
        self._offer(self.sent)
        self.after(self.random.expovariate(5), self.send)

    def _offer(self, message: int) -> None:
        if message in self.receipted:
            return
        serving = [
            node
            for node in self.nodes
            if node.state is NodeState.SERVING
            and message not in node.pending
            and self.now >= node.paused_until
        ]
        if serving:
            self.random.choice(serving).pending.append(message)
        self.after(10.0, lambda: self._offer(message))

    def client_lost(self, node: Node) -> None:
        """The connections of a node are gone, with what was never answered."""
        node.pending.clear()

    def receipt(self, messages: list[int]) -> None:
        """Clients are told that their messages are stored; it is so."""
        self.receipted.update(messages)
        if lost := [message for message in messages if message not in self.database.stored]:
            raise Violation(f"receipted and not stored: {lost}")

    # --- faults

    def break_something(self) -> None:
        """Do one thing that goes wrong, now and then."""
        if not self.faults:
            return
        node = self.random.choice(self.nodes)
        database = self.database
        match self.random.randrange(8):
            case 0:
                node.crash()
                self.after(self.random.uniform(0.1, 30), lambda: self.start(node))
            case 1:
                node.paused_until = max(
                    node.paused_until, self.now + self.random.choice([0.5, 3, 10, 25, 60])
                )
            case 2:
                database.down_until = self.now + self.random.uniform(0.1, 30)
                database.presence = None
                for batch in list(database.open):
                    database.end(batch)
            case 3:
                node.cut_off_until = self.now + self.random.uniform(0.5, 40)
            case 4:
                step = self.random.uniform(-15, 0)
                if self.clock_steps_forward:
                    step = self.random.uniform(-15, 25)
                database.clock_offset += step
            case 5 | 6:
                if database.presence is not None:
                    database.presence = None  # its session ends, its process does not
            case 7:
                for batch in list(database.open):
                    batch.node.paused_until = self.now + 30
        self.after(self.random.expovariate(1 / 6), self.break_something)

    # --- what always holds

    def check_rows(self, batch: Batch) -> None:
        """No row under an older token after the first under a newer one; none twice."""
        if batch.token < self._newest_token:
            raise Violation(f"row under token {batch.token} after one under {self._newest_token}")
        if batch.token > self._newest_token:
            self.takeovers += 1
        self._newest_token = batch.token
        if len(self.database.rows) != len(self.database.stored):
            raise Violation("a message was stored twice")

    def check_nodes(self) -> None:
        """At most one node would deliver."""
        if self.clock_steps_forward:
            return
        delivering = [node for node in self.nodes if node.may_deliver()]
        if len(delivering) > 1:
            raise Violation(f"{[node.holder_id for node in delivering]} would both deliver")

    # --- a run

    def simulate(self, seconds: float, calm_seconds: float = 150.0) -> None:
        """Run with faults, then without; in the end exactly one node serves."""
        for node in self.nodes:
            self.after(self.random.uniform(0, 2), lambda node=node: self.start(node))  # type: ignore[misc]
        self.after(1.0, self.send)
        self.after(5.0, self.break_something)
        self._until(seconds)
        self.faults = False
        left = self.nodes[1:] if self.loses_the_live_node else self.nodes
        if self.loses_the_live_node:
            self.nodes[0].crash()
            self.nodes[0].is_scrap = True
        for node in left:
            self.start(node)
        self._until(seconds + calm_seconds)
        serving = [node.name for node in self.nodes if node.may_deliver()]
        if len(serving) != 1:
            raise Violation(f"after the faults {serving or 'nobody'} serves")
        before = len(self.receipted)
        self._until(seconds + calm_seconds + 15)
        if len(self.receipted) == before:
            raise Violation("after the faults nothing is receipted any more")

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self.check_nodes()
        self.now = end
