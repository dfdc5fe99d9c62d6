"""One run: clients at work, faults one after the other, and at the end the verdict."""

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from config.errors import OrthiaError
from nodemanager.sql_store import SqlNodeManagerStore
from tests.chaos import witness
from tests.chaos.checker import Checker, Violations
from tests.chaos.clients import (
    Consumer,
    Producer,
    TransactionalProducer,
    Transformer,
)
from tests.chaos.faults import FAULTS, Fault, Strike, kinds
from tests.chaos.ground import Ground, make_ground
from tests.chaos.history import History, Kind, Operation
from tests.chaos.network import Network
from tests.support.servers import StoreServer
from tests.support.waiting import wait_until

RECOVERY_SECONDS = 60
"""After the last fault's end, and with every node running again, a node must serve by then."""
DRAIN_SECONDS = 180
_WATCH_SECONDS = 0.1
_DOUBLE_PROBABILITY = 0.2
_LEFT_DOWN_PROBABILITY = 0.2
_PER_SECOND = 30.0
_CRASHES = 0.002


@dataclass
class Struck:
    """One fault of a run; times in seconds since its start."""

    kind: str
    target: str
    began: float
    ended: float
    recovered: float = 0.0
    """When every producer had messages confirmed again that were sent after the end."""
    outage_seconds: float = 0.0
    """The longest time without a confirmed message between the beginning and the recovery."""
    takeovers: int = 0
    """How often the live lock changed hands meanwhile."""


@dataclass
class Result:
    """All that a run found."""

    dbms: str
    seed: int
    seconds: float = 0.0
    faults: list[Struck] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    holders: list[tuple[float, str, int]] = field(default_factory=list)
    """Changes of the live lock's row: since when, which node ("" is nobody), which token."""
    confirmed_per_second: list[int] = field(default_factory=list)
    received_per_second: list[int] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read what ``write`` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        faults = [Struck(**fault) for fault in values.pop("faults")]
        holders = [(at, name, token) for at, name, token in values.pop("holders")]
        return cls(faults=faults, holders=holders, **values)


class Meter:
    """Counts what is confirmed and received, second by second, and the gaps between receipts."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.confirmed: list[int] = []
        self.received: list[int] = []
        self._confirmations: list[float] = []

    def observe(self, operation: Operation) -> None:
        """Count an operation."""
        if operation.kind in (Kind.RECEIPT, Kind.COMMITTED):
            self._confirmations.append(operation.at)
            self._count(self.confirmed, operation)
        elif operation.kind is Kind.RECEIVE:
            self._count(self.received, operation)

    def _count(self, counts: list[int], operation: Operation) -> None:
        second = int(operation.at - self._began)
        counts.extend([0] * (second + 1 - len(counts)))
        counts[second] += 1

    def outage(self, began: float, ended: float) -> float:
        """Return the longest time without a confirmation; forgets what was before ``began``."""
        within = [began, *(at for at in self._confirmations if began <= at <= ended), ended]
        self._confirmations = [at for at in self._confirmations if at >= ended]
        return max(later - earlier for earlier, later in pairwise(within))


class LockWatch(threading.Thread):
    """Reads the live lock's row again and again: who holds it by the database's word."""

    def __init__(self, ground: Ground, began: float) -> None:
        super().__init__(name="lock-watch", daemon=True)
        self._ground = ground
        self._began = began
        self._stopping = threading.Event()
        self.holders: list[tuple[float, str, int]] = []

    def run(self) -> None:
        """Watch until stopped."""
        database = self._ground.open_database()
        store = SqlNodeManagerStore(database, self._ground.settings, database.engine)
        while not self._stopping.wait(_WATCH_SECONDS):
            try:
                lock = store.status().live
            except OrthiaError:
                continue  # the database is struck
            name = (lock.holder_id or "").split("@")[0] if lock.is_held else ""
            if not self.holders or self.holders[-1][1:] != (name, lock.token):
                self.holders.append((time.monotonic() - self._began, name, lock.token))
        database.dispose()

    def takeovers(self, began: float, ended: float) -> int:
        """Return how many tokens began to be held between two times since the run's start."""
        tokens = [(at, token) for at, name, token in self.holders if name]
        changes = pairwise(tokens)
        return sum(before != token and began <= at <= ended for (_, before), (at, token) in changes)

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self.join(60)


class Run:
    """A run on one database server."""

    def __init__(
        self,
        server: StoreServer,
        dbms: str,
        directory: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Everything chosen at random is chosen from ``seed``; ``say`` hears of each fault."""
        self._server = server
        self._dbms = dbms
        self._directory = directory
        self._seed = seed
        self._say = say
        self._random = random.Random(seed)
        self._result = Result(dbms, seed)

    def __call__(self, faults: list[Fault]) -> Result:
        """Strike with ``faults`` in turn; return the result, violations and all."""
        network = Network()
        ground = make_ground(self._server, self._dbms, self._directory, network, self._seed)
        try:
            self._run(ground, faults)
        finally:
            ground.end()
            network.close()
        return self._result

    def _run(self, ground: Ground, faults: list[Fault]) -> None:
        ground.start()
        database = ground.open_database()
        messages = ground.settings.message_table_name
        witness.install(database, messages)
        self._began = time.monotonic()
        self._meter = Meter(self._began)
        checker = Checker(["orders", "invoices"])
        watch = LockWatch(ground, self._began)
        watch.start()

        def heard(operation: Operation) -> None:
            checker.observe(operation)
            self._meter.observe(operation)

        with History(self._directory / "history.jsonl", heard) as history:
            producers, consumers = self._clients(ground, history)
            for client in (*producers, *consumers):
                client.start()
            try:
                self._progress(producers, "the first messages are confirmed")
                self._strike(ground, faults, producers)
                self._drain(producers, checker)
                wait_until(
                    lambda: witness.waiting(database, messages) == 0,
                    DRAIN_SECONDS,
                    what="no message is left in the store",
                )
            except AssertionError as error:
                checker.violations.add("stuck", f"{error}; {_ends_of_logs(ground)}")
            for client in (*producers, *consumers):
                client.abandon()
                client.join(30)
        watch.stop()
        rows = checker.check_rows(witness.rows(database))
        database.dispose()
        for client in (*producers, *consumers):
            if client.failure is not None:
                checker.violations.add("client", f"{client.name}: {client.failure!r}")
        for node in ground.nodes:
            node.reap()
            for text in node.unexplained:
                checker.violations.add("node", text)
        self._conclude(checker.finish(), {**checker.figures(), "rows stored": rows}, watch)

    def _conclude(self, violations: Violations, figures: dict[str, int], watch: LockWatch) -> None:
        result = self._result
        result.seconds = time.monotonic() - self._began
        result.violations, result.told = dict(violations.counts), violations.told
        result.figures = {
            **figures,
            "moments with two writers": violations.counts["two writers"],
            "takeovers": watch.takeovers(0, result.seconds),
        }
        result.holders = watch.holders
        result.confirmed_per_second = self._meter.confirmed
        result.received_per_second = self._meter.received
        for fault in result.faults:
            fault.takeovers = watch.takeovers(fault.began, fault.recovered)

    def _clients(
        self, ground: Ground, history: History
    ) -> tuple[list[Producer | TransactionalProducer], list[Consumer]]:
        ports, seed = [node.port for node in ground.nodes], self._seed
        producers: list[Producer | TransactionalProducer] = [
            Producer(queue, ports, history, seed, _PER_SECOND)
            for queue in ("orders", "invoices", "events", "requests")
        ]
        producers.append(TransactionalProducer(["debits", "credits"], ports, history, seed))
        consumers = [
            Consumer("consumer-orders", "orders", ports, history, seed),
            Consumer("consumer-invoices", "invoices", ports, history, seed, ack="client"),
            *(
                Consumer(name, "events", ports, history, seed, crash_probability=_CRASHES)
                for name in ("consumer-events-1", "consumer-events-2")
            ),
            Consumer("consumer-debits", "debits", ports, history, seed),
            Consumer(
                "consumer-credits", "credits", ports, history, seed, crash_probability=_CRASHES
            ),
            Transformer("requests", "results", ports, history, seed),
            Consumer("consumer-results", "results", ports, history, seed),
        ]
        return producers, consumers

    def _progress(self, producers: list[Producer | TransactionalProducer], what: str) -> None:
        """Wait until every producer has had three more confirmations."""
        wanted = [producer.confirmed + 3 for producer in producers]

        def progressed() -> bool:
            return all(
                producer.confirmed >= number or not producer.is_alive()
                for producer, number in zip(producers, wanted, strict=True)
            )

        wait_until(progressed, RECOVERY_SECONDS, what=what)

    def _strike(
        self,
        ground: Ground,
        faults: list[Fault],
        producers: list[Producer | TransactionalProducer],
    ) -> None:
        waiting = list(faults)
        while waiting:
            count = 2 if self._random.random() < _DOUBLE_PROBABILITY else 1
            now, waiting = waiting[:count], waiting[count:]
            struck = self._strike_with(ground, now)
            self._revive(ground, down=0 if not waiting else 1)
            self._progress(producers, f"recovery from {' and '.join(f.name for f in now)}")
            recovered = self._now()
            outage = self._meter.outage(self._began + struck[0].began, self._began + recovered)
            for fault in struck:
                fault.recovered, fault.outage_seconds = recovered, outage
            self._result.faults += struck
            self._say(
                f"{self._dbms} {len(self._result.faults)}/{len(faults)}"
                f" {' + '.join(f'{f.kind} ({f.target})' for f in struck)}:"
                f" served again after {outage:.1f} s"
            )
            time.sleep(self._random.uniform(0, 0.5))

    def _strike_with(self, ground: Ground, faults: list[Fault]) -> list[Struck]:
        struck: list[Struck] = []
        with ExitStack() as healing:
            began, seconds = self._now(), 0.0
            for fault in faults:
                strike: Strike = healing.enter_context(fault.effect(ground))
                struck.append(Struck(fault.name, strike.target, began, 0.0))
                seconds = max(seconds, strike.seconds)
            time.sleep(seconds)
        for fault_struck in struck:
            fault_struck.ended = self._now()
        return struck

    def _revive(self, ground: Ground, down: int) -> None:
        """Start the nodes that have ended again, but now and then leave one down for a while."""
        for node in ground.nodes:
            if node.is_running:
                continue
            node.reap()
            if down and self._random.random() < _LEFT_DOWN_PROBABILITY:
                down -= 1
                continue
            node.start()

    def _drain(
        self,
        producers: list[Producer | TransactionalProducer],
        checker: Checker,
    ) -> None:
        for producer in producers:
            producer.stop()
        for producer in producers:
            producer.join(RECOVERY_SECONDS)
            assert not producer.is_alive(), f"{producer.name} did not come to its end"
        wait_until(
            lambda: not checker.missing,
            DRAIN_SECONDS,
            what="every confirmed message is received",
        )

    def _now(self) -> float:
        return time.monotonic() - self._began


def choose(dbms: str, count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults at random, each kind at least once if there is room for all."""
    random_ = random.Random(f"{dbms} {seed}")
    possible = kinds(dbms)
    chosen = random_.sample(possible, min(count, len(possible)))
    weights = [fault.weight for fault in possible]
    chosen += random_.choices(possible, weights, k=count - len(chosen))
    random_.shuffle(chosen)
    return chosen


def named(names: list[str]) -> list[Fault]:
    """Return the faults of these names; raises KeyError."""
    return [FAULTS[name] for name in names]


def _ends_of_logs(ground: Ground) -> str:
    return "\n".join(
        f"{node.name} ({'runs' if node.is_running else 'down'}) logged last:\n{node.log[-1_500:]}"
        for node in ground.nodes
    )
