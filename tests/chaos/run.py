"""One run: clients at work, faults one after the other, and at the end the verdict."""

import json
import math
import random
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from orthia.config.errors import OrthiaError
from tests.chaos.amqp_clients import AmqpProducer, AmqpTransactionalProducer
from tests.chaos.business import Business
from tests.chaos.checker import Checker, Violations
from tests.chaos.clients import Given
from tests.chaos.fault import IO_ERROR, Fault, Strike
from tests.chaos.faults import FAULTS, kinds
from tests.chaos.feature_checkers import DelayChecker, GroupChecker, SelectorChecker
from tests.chaos.ground import FARTHEST_STEP_SECONDS, Ground, make_ground
from tests.chaos.history import History, Kind, Operation
from tests.chaos.network import Network
from tests.chaos.population import (
    EVERY_KIND,
    GROUPED,
    ONCE,
    ORDERED,
    SELECTS,
    Kinds,
    Sender,
    populate,
)
from tests.chaos.renewals import RenewalWatch
from tests.chaos.starvation import StarvationWatch
from tests.chaos.subscriptions import Subscriptions
from tests.chaos.topic_checker import TopicChecker
from tests.chaos.verdict import Verdict
from tests.chaos.watches import LockWatch, MachineWatch, NodesWatch
from tests.chaos.worlds import Site
from tests.support.waiting import wait_until

RECOVERY_SECONDS = 120
"""After the last fault's end, and with every node running again, a node must serve by then."""
DRAIN_SECONDS = 300
"""At the end some confirmed message is acknowledged in so much time, until all of them are."""
_STUCK = (AssertionError, OrthiaError, RuntimeError, SQLAlchemyError)
_DOUBLE_PROBABILITY = 0.2
_LEFT_DOWN_PROBABILITY = 0.2


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
    """The world's name."""
    seed: int
    settings: str = ""
    """What the nodes were configured with."""
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


class Run:
    """A run in one world."""

    def __init__(
        self,
        site: Site,
        directory: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        until: float = math.inf,
        kinds: Collection[Kinds] = EVERY_KIND,
    ) -> None:
        """Everything chosen at random is chosen from ``seed``; ``say`` hears of each fault.

        ``kinds`` are the clients that it has. No further fault is struck after ``until``, of the
        monotonic clock.
        """
        self._site = site
        self._name = site.world.name
        self._directory = directory
        self._seed = seed
        self._say = say
        self._until = until
        self._kinds = kinds
        self._random = random.Random(seed)
        self._down: set[str] = set()
        """The nodes that stay down until the next fault."""
        self._result = Result(self._name, seed)

    def __call__(self, faults: list[Fault]) -> Result:
        """Strike with ``faults`` in turn; return the result, violations and all."""
        network = Network()
        ground = make_ground(self._site, self._directory, network, self._seed)
        self._result.settings = str(ground.settings)
        try:
            self._run(ground, faults)
        finally:
            ground.end()
            network.close()
        return self._result

    def _run(self, ground: Ground, faults: list[Fault]) -> None:
        # Before any node: what ends while the machine stands still is explained by that.
        nodes, machine = NodesWatch(ground), MachineWatch(self._directory)
        nodes.start()
        machine.start()
        try:
            ground.start()
        except BaseException:
            nodes.stop()
            machine.stop()
            raise
        verdict = Verdict(ground)
        verdict.install()
        self._began = time.monotonic()
        self._meter = Meter(self._began)
        # Without a server the time is that of the nodes' own clocks, which are stepped.
        has_true_clock = not ground.times_by_nodes
        checker = Checker(
            ORDERED,
            once=ONCE,
            tails=ground.tails,
            stalls=machine.stalls,
            has_true_clock=has_true_clock,
        )
        lanes = {name: lanes for name, (lanes, _) in SELECTS.items()}
        subscriptions = Subscriptions(checker.observe, checker.forget, lanes)
        topics = TopicChecker(checker.violations)
        groups = GroupChecker(GROUPED, checker.violations)
        selectors = SelectorChecker(lanes, checker.violations)
        delays = DelayChecker(checker.violations, has_true_clock=has_true_clock)
        checkers = (subscriptions, topics, groups, selectors, delays, self._meter)
        locks, renewals, starvation = (
            LockWatch(ground, self._began),
            RenewalWatch(ground),
            StarvationWatch(ground),
        )
        watches = (locks, nodes, machine, renewals, starvation)
        for watch in (locks, renewals, starvation):
            watch.start()

        def heard(operation: Operation) -> None:
            for one in checkers:
                one.observe(operation)

        with History(self._directory / "history.jsonl", heard) as history:
            ground.history = history
            ports = [node.port for node in ground.nodes]
            population = populate(ports, history, self._seed, self._kinds)
            business = None
            if Kinds.SQL in self._kinds and Business.is_possible(ground):
                business = Business(ground, Given(ports, history, self._seed))
                population.receivers.extend(business.consumers)
                business.start()
            for client in population.everybody:
                client.start()
            try:
                self._progress(ground, population.senders, "the first messages are confirmed")
                self._strike(ground, faults, population.senders)
            except _STUCK as error:
                checker.violations.add("stuck", f"{error!r}; {_ends_of_logs(ground)}")
            for client in population.everybody:
                client.hurry()
            try:  # after that too: what is lost is known only when all queues are empty
                self._drain(ground, population.senders, checker, business)
                verdict.wait_empty()
            except _STUCK as error:
                checker.violations.add("stuck", f"{error!r}; {_ends_of_logs(ground)}")
            for client in population.everybody:
                client.abandon()
            for client in population.everybody:
                client.join(240)
        for each in watches:
            each.stop()
        violations = checker.finish()
        figures = {
            **checker.figures(),
            "heard of topics": topics.heard,
            "got by durable subscriptions": subscriptions.got,
            "got in groups": groups.grouped,
            "got by selectors": selectors.selected,
            "got later": delays.delayed,
            "accepted by AMQP": sum(
                one.confirmed
                for one in population.senders
                if isinstance(one, AmqpProducer | AmqpTransactionalProducer)
            ),
        }
        for client in population.everybody:
            if client.failure is not None:
                violations.add("client", f"{client.name}: {client.failure!r}")
        stalls = [*machine.stalls, *filter(self._is_between_faults, renewals.stalls)]
        figures |= verdict.judge_ends(nodes.ends, stalls, starvation.waited, violations)
        verdict.judge_turns(violations)
        try:
            figures |= verdict.judge_store(violations)
            if business is not None:
                figures |= business.judge(violations)
        except (OrthiaError, SQLAlchemyError) as error:
            violations.add("stuck", f"the store cannot be looked at: {error!r}")
        self._conclude(violations, figures, locks)

    def _conclude(self, violations: Violations, figures: dict[str, int], locks: LockWatch) -> None:
        result = self._result
        result.seconds = time.monotonic() - self._began
        result.violations, result.told = dict(violations.counts), violations.told
        result.figures = {
            **figures,
            "moments with two writers": violations.counts["two writers"],
            "takeovers": locks.takeovers(0, result.seconds),
        }
        result.holders = locks.holders
        result.confirmed_per_second = self._meter.confirmed
        result.received_per_second = self._meter.received
        for fault in result.faults:
            fault.takeovers = locks.takeovers(fault.began, fault.recovered)

    def _progress(self, ground: Ground, senders: list[Sender], what: str) -> None:
        """Wait until every sender has had three more confirmations; start nodes that end meanwhile.

        So does whatever starts nodes where they are used.
        """
        wanted = [(sender, sender.confirmed + 3) for sender in senders]

        def progressed() -> bool:
            self._revive(ground)
            wanted[:] = [
                (sender, number)
                for sender, number in wanted
                if sender.confirmed < number and sender.is_alive()
            ]
            return not wanted

        try:
            wait_until(progressed, RECOVERY_SECONDS, what=what)
        except AssertionError as error:
            names = ", ".join(sender.name for sender, _ in wanted)
            raise AssertionError(f"{error}: {names} have no receipts") from None

    def _strike(self, ground: Ground, faults: list[Fault], senders: list[Sender]) -> None:
        waiting = list(faults)
        while waiting and time.monotonic() < self._until:
            together = (
                len(waiting) > 1
                and not any(fault.is_alone for fault in waiting[:2])
                and self._random.random() < _DOUBLE_PROBABILITY
            )
            count = 2 if together else 1
            now, waiting = waiting[:count], waiting[count:]
            what = f"recovery from {' and '.join(fault.name for fault in now)}"
            progress = partial(self._progress, ground, senders, what)
            struck = self._strike_with(ground, now, progress)
            self._leave_down(ground, allowed=bool(waiting))
            progress()
            ground.recovered()
            recovered = self._now()
            outage = self._meter.outage(self._began + struck[0].began, self._began + recovered)
            for fault in struck:
                fault.recovered, fault.outage_seconds = recovered, outage
            self._result.faults += struck
            self._say(
                f"{self._name} {len(self._result.faults)}/{len(faults)}"
                f" {' + '.join(f'{f.kind} ({f.target})' for f in struck)}:"
                f" served again after {outage:.1f} s"
            )
            time.sleep(self._random.uniform(0, 0.5))

    def _strike_with(
        self, ground: Ground, faults: list[Fault], progress: Callable[[], None]
    ) -> list[Struck]:
        struck: list[Struck] = []
        began, seconds, is_for_good = self._now(), 0.0, False
        with ExitStack() as for_good:
            with ExitStack() as healing:
                if len(faults) > 1:
                    # What one does to the live node the other may do to its successor.
                    ground.expect(IO_ERROR)
                for fault in faults:
                    effect = fault.effect(ground)
                    strike: Strike = effect.__enter__()
                    (for_good if strike.is_for_good else healing).push(effect)
                    struck.append(Struck(fault.name, strike.target, began, 0.0))
                    seconds = max(seconds, strike.seconds)
                    is_for_good = is_for_good or strike.is_for_good
                time.sleep(seconds)
            if is_for_good:
                self._down.clear()
                progress()
        for fault_struck in struck:
            fault_struck.ended = self._now()
        return struck

    def _leave_down(self, ground: Ground, *, allowed: bool) -> None:
        """Now and then leave one of the nodes that have ended down until after the next fault."""
        down = [node.name for node in ground.nodes if not node.is_running and allowed]
        self._down = {name for name in down[:1] if self._random.random() < _LEFT_DOWN_PROBABILITY}

    def _revive(self, ground: Ground) -> None:
        """Start the nodes that have ended again."""
        for node in ground.nodes:
            if not node.is_running and node.is_noted and node.name not in self._down:
                node.start()

    def _drain(
        self,
        ground: Ground,
        senders: list[Sender],
        checker: Checker,
        business: Business | None,
    ) -> None:
        if business is not None:
            business.stop()
        for sender in senders:
            sender.stop()
        for sender in senders:
            sender.join(RECOVERY_SECONDS)
            assert not sender.is_alive(), f"{sender.name} did not come to its end"
        self._down.clear()
        if ground.times_by_nodes:  # what was delayed while clocks were ahead is due now
            ground.expect(IO_ERROR)
            ground.step_clocks(2 * FARTHEST_STEP_SECONDS)

        least = checker.missing

        def drained() -> bool:
            is_settled = business is None or business.is_settled()
            return is_settled and not checker.missing

        def went_on() -> bool:
            self._revive(ground)
            return drained() or checker.missing < least

        try:
            while not drained():
                least = min(least, checker.missing)
                wait_until(went_on, DRAIN_SECONDS, what="every confirmed message is acknowledged")
        except AssertionError as error:
            state = "" if business is None else f"; {business.state()}"
            raise AssertionError(f"{error}; {checker.missing} are not{state}") from None

    def _is_between_faults(self, stall: tuple[float, float]) -> bool:
        """Tell whether no fault can have made the database slow."""
        at, seconds = (stall[0] - self._began, stall[1])
        return not any(
            fault.began - 1 <= at and at - seconds <= fault.ended + 1
            for fault in self._result.faults
        )

    def _now(self) -> float:
        return time.monotonic() - self._began


def choose(site: Site, count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults at random, each kind at least once if there is room for all."""
    random_ = random.Random(f"{site.world.name} {seed}")
    possible = kinds(site.has)
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
