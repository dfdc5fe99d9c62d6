"""What a node manager makes of time, with a store in memory and a stopwatch the test moves."""

import logging
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from orthia.database import StoreUnavailable
from orthia.nodemanager import (
    Interrupted,
    JdbcNodeManager,
    State,
    failover_log,
)
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.activation import HolderWatch
from orthia.nodemanager.events import (
    CrashDetected,
    Event,
    LeaseExpired,
    LeaseLost,
    LiveLockObtained,
    LockReleased,
    StateNotWritten,
    StoreUnavailableEvent,
)
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.lockers import LockHolder, leases
from orthia.nodemanager.stores import Stores
from tests.nodemanager.conftest import ManualClock, StuckConsole
from tests.nodemanager.scripted import ScriptedNodeStore
from tests.support.servers import SqliteServer
from tests.support.waiting import wait_until

E = TypeVar("E", bound=Event)
EXPIRATION_MS = 2_000_000
PERIOD_MS = 900_000
"""A real one: long enough that no renewal comes in between."""


class Simulation:
    """One node manager on a store in memory that the test scripts."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = ScriptedNodeStore(self.clock)
        self.events: list[Event] = []
        self.lost: list[str] = []
        settings = SqliteServer(directory).settings(
            "unused", jdbc_lock_expiration=EXPIRATION_MS, jdbc_lock_renew_period=PERIOD_MS
        )
        holder_id = HolderId(f"me@host:1:x/{PERIOD_MS}/{EXPIRATION_MS}")
        log = FailoverLog(
            node_name="me", holder_id=holder_id, role="backup", listener=self.events.append
        )

        store = self.store
        self.manager = JdbcNodeManager(
            Stores(store, store, store, store),
            settings,
            leases(
                dict.fromkeys(Lock, store),
                LockHolder("me", holder_id, self.clock),
                expiration_ms=EXPIRATION_MS,
            ),
            log=log,
            holder_id=holder_id,
            clock=self.clock,
        )
        self.manager.register_lock_listener(self.lost.append)

    def held_by(self, holder: str) -> int:
        """Have another hold the live lock, and return its token."""
        taken = self.store.try_acquire(Lock.LIVE, holder, EXPIRATION_MS)
        assert taken is not None
        return taken.token

    def wait_as_backup(self) -> None:
        """Start, with the backup lock, beside a node that is live."""
        self.manager.start()
        self.manager.start_backup()
        self.store.write_state(State.LIVE)

    def go_live(self) -> None:
        """Make the node live."""
        self.manager.start()
        self.manager.start_live_node().activation_complete()

    def ride_out_an_outage(self) -> None:
        """Let a lease run out, once, while the state is read under a lock that was just taken."""
        live = self.store.looks().live
        if live.holder_id == self.manager.holder_id and live.is_held:
            self.store.script("status", lambda: None)
            self.clock.now += EXPIRATION_MS / 1000 + 1

    def said(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def kinds(self) -> list[type[Event]]:
        """Return the kinds of events so far."""
        return [type(event) for event in self.events]


@pytest.fixture
def simulation(tmp_path: Path) -> Iterator[Simulation]:
    """Give a node manager that is stopped in the end."""
    made = Simulation(tmp_path)
    yield made
    made.manager.stop()


def test_a_lease_that_ran_out_while_the_state_was_read_is_taken_anew(
    simulation: Simulation,
) -> None:
    """An outage between taking the lock and reading the state is waited out, not died of."""
    manager = simulation.manager
    simulation.wait_as_backup()
    simulation.store.script("status", simulation.ride_out_an_outage)
    manager.await_live_node()
    assert manager.fencing_token == 2
    assert manager.is_lease_valid()
    assert simulation.lost == []
    assert simulation.kinds().count(LiveLockObtained) == 1
    assert Lock.LIVE not in {event.lock for event in simulation.said(LeaseLost)}


OTHER = f"other@host:1:y/2000/{EXPIRATION_MS}"


def test_the_first_node_of_a_pair_claims_no_outage(simulation: Simulation) -> None:
    """Nobody served before, as far as it knows; the lock was free when it looked."""
    simulation.manager.start()
    assert simulation.manager.start_live_node().detection_ms is None
    assert simulation.said(LiveLockObtained) == [LiveLockObtained(Lock.LIVE, 1, None, None, 0.0)]


def test_a_lease_that_ran_out_is_told_as_one(simulation: Simulation) -> None:
    """Whose it was, since when nobody served and since when it has ended, and who takes it."""
    manager = simulation.manager
    manager.start()
    simulation.held_by(OTHER)
    simulation.clock.now += 3_600
    assert manager.start_live_node().detection_ms == 3_600_000
    expired_ms = 3_600_000 - EXPIRATION_MS
    assert simulation.said(LeaseExpired) == [
        LeaseExpired(OTHER, 3_600_000, expired_ms, "unknown", manager.holder_id)
    ]
    (obtained,) = simulation.said(LiveLockObtained)
    assert (obtained.former, obtained.silent_ms) == (OTHER, 3_600_000)
    assert obtained.gone_ms == expired_ms
    assert simulation.kinds().index(LeaseExpired) < simulation.kinds().index(LiveLockObtained)


def test_a_live_node_counts_its_outage_from_the_last_sign_of_the_other(
    simulation: Simulation,
) -> None:
    """Not from its own start: the backup served while it waited, and then handed over."""
    store, clock = simulation.store, simulation.clock
    simulation.manager.start()
    token = simulation.held_by(OTHER)
    looks = iter(range(4))

    def serve_and_hand_over() -> None:
        clock.now += 3
        if next(looks, None) is None:
            store.release(Lock.LIVE, OTHER, token)
        else:
            store.renew(Lock.LIVE, OTHER, token, EXPIRATION_MS)

    began = clock.now
    store.script("status", serve_and_hand_over)
    detection_ms = simulation.manager.start_live_node().detection_ms
    assert clock.now - began == 15
    assert detection_ms == 6_000, "one look before the hand-over to one after, of 3 s each"


def test_a_lost_lease_says_when_it_was_last_renewed(simulation: Simulation) -> None:
    """That is the last proof that its node could serve."""
    simulation.go_live()
    simulation.clock.now += 30
    simulation.manager._kept[Lock.LIVE]._lose("the local deadline has passed")
    (lost,) = simulation.said(LeaseLost)
    assert lost.silent_ms == pytest.approx(30_000)


def test_a_token_that_was_given_back_unused_is_in_the_log(simulation: Simulation) -> None:
    """Whoever reads the log looks for each token."""
    manager, store = simulation.manager, simulation.store
    simulation.wait_as_backup()

    def pause_the_pair() -> None:
        if store.looks().live.is_held:
            store.script("status", manager.interrupt)
            store.write_state(State.PAUSED)

    store.script("status", pause_the_pair)
    with pytest.raises(Interrupted):
        manager.await_live_node()
    assert LockReleased(Lock.LIVE, 1) in simulation.events
    assert LiveLockObtained not in simulation.kinds()


def test_a_backup_that_is_interrupted_has_not_lost_its_lock(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the lock back, wherever in its wait the interrupt meets it."""
    manager = simulation.manager
    manager.start()
    manager.start_backup()
    set_lost = manager._backup_lost.set

    def set_and_look() -> None:
        set_lost()
        with pytest.raises(Interrupted):
            manager.await_live_node()

    def fail() -> None:
        pytest.fail("the node waits on")

    monkeypatch.setattr(manager._backup_lost, "set", set_and_look)
    simulation.store.script("status", fail)
    manager.interrupt()
    manager.stop_backup()
    assert simulation.events[-1] == LockReleased(Lock.BACKUP, 1)


def test_events_have_the_databases_time_whatever_the_nodes_clock_is_set_to(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's own clock that is set counts for ``node_time`` only."""
    simulation.manager.start()
    before = simulation.manager.log._entry(LockReleased(Lock.LIVE, 1))
    set_back = SimpleNamespace(now=lambda zone: datetime.now(zone) - timedelta(hours=1))
    monkeypatch.setattr(failover_log, "datetime", set_back)
    simulation.clock.now += 5
    after = simulation.manager.log._entry(LockReleased(Lock.LIVE, 1))
    assert before.db_time is not None
    assert after.db_time is not None
    assert after.db_time - before.db_time == timedelta(seconds=5)
    assert after.node_time < before.node_time


def test_a_lock_that_a_node_had_for_a_moment_is_no_sign_of_the_node_before(
    simulation: Simulation,
) -> None:
    """It served nobody under it: the outage is counted from when the other renewed its lease."""
    manager, clock = simulation.manager, simulation.clock
    simulation.held_by(OTHER)
    simulation.wait_as_backup()
    renewed = clock.now
    clock.now += EXPIRATION_MS / 1000 + 1
    simulation.store.script("status", simulation.ride_out_an_outage)
    detection_ms = manager.await_live_node().detection_ms
    assert manager.fencing_token == 3
    assert detection_ms == pytest.approx((clock.now - renewed) * 1000)


def go_away(simulation: Simulation, seconds: float) -> None:
    """Have the store answer nothing for some time, from the next look at it on."""
    back = simulation.clock.now + seconds

    def be_away() -> None:
        if simulation.clock.now < back:
            simulation.clock.now = back
            raise StoreUnavailable("no answer")

    simulation.store.script("status", be_away)


def test_an_outage_of_the_store_is_counted_once(simulation: Simulation) -> None:
    """A look that had to be asked for again says what was when it was answered, and not before."""
    manager, clock = simulation.manager, simulation.clock
    simulation.held_by(OTHER)
    simulation.wait_as_backup()
    renewed = clock.now
    go_away(simulation, EXPIRATION_MS / 1000 + 5)
    assert manager.await_live_node().detection_ms == pytest.approx((clock.now - renewed) * 1000)
    assert clock.now - renewed == pytest.approx(EXPIRATION_MS / 1000 + 5, abs=1)
    (obtained,) = simulation.said(LiveLockObtained)
    assert obtained.gone_ms == pytest.approx(5_000, abs=1_000)


def test_a_node_that_waited_for_the_store_knows_the_databases_time(
    simulation: Simulation,
) -> None:
    """It was told when the store answered, however long the node had asked before."""
    go_away(simulation, 600)
    simulation.manager.start()
    known = simulation.manager.log._entry(LockReleased(Lock.LIVE, 1)).db_time
    assert known is not None
    said = simulation.store.status().database_time
    assert abs((known - said).total_seconds()) < 1


@pytest.mark.parametrize(
    "holder",
    [
        f"me@host:1:x/{PERIOD_MS}/{EXPIRATION_MS}",
        f"other@host:1:y/{PERIOD_MS}/{EXPIRATION_MS}:database-locker",
        None,
    ],
    ids=["ones-own", "no-lease", "given-back"],
)
def test_what_nobody_let_run_out_is_no_expired_lease(
    simulation: Simulation, holder: str | None
) -> None:
    """A node's own from before, the row of a locker without leases, one given back in order."""
    token = simulation.held_by(holder or OTHER)
    if holder is None:
        simulation.store.release(Lock.LIVE, OTHER, token)
    simulation.clock.now += 3_600
    simulation.manager.start()
    simulation.manager.start_live_node()
    assert LiveLockObtained in simulation.kinds()
    assert LeaseExpired not in simulation.kinds()


@pytest.mark.parametrize(
    ("away_seconds", "told"),
    [
        (10.0, CrashDetected(OTHER, 15_000.0, EXPIRATION_MS - 15_000.0)),
        (
            EXPIRATION_MS / 1000 + 11,
            LeaseExpired(
                OTHER,
                EXPIRATION_MS + 16_000.0,
                16_000.0,
                "unknown",
                f"me@host:1:x/{PERIOD_MS}/{EXPIRATION_MS}",
            ),
        ),
    ],
)
def test_a_takeover_tells_of_the_lease_as_it_was_when_it_was_taken(
    simulation: Simulation, away_seconds: float, told: Event
) -> None:
    """Not as it was when the holder was judged to be gone: the store may be away in between."""
    store, clock = simulation.store, simulation.clock
    simulation.held_by(OTHER)
    seen = store.status().live
    sign = LastSign().after(seen, clock.now)
    watch = HolderWatch(clock.now, None, clock.now)
    clock.now += 5

    def be_away() -> None:
        store.script("take_over", lambda: None)
        clock.now += away_seconds
        raise StoreUnavailable("no answer")

    store.script("take_over", be_away)
    assert simulation.manager._take_over(seen, watch, sign) is not None
    assert [*simulation.said(CrashDetected), *simulation.said(LeaseExpired)] == [told]


def never_answer(store: ScriptedNodeStore) -> None:
    """Have the first takeover carried out, and never answered."""

    def after(request: str) -> None:
        if request == "take_over":
            store.after = lambda _: None
            raise StoreUnavailable("no answer")

    store.after = after


def test_a_takeover_whose_answer_was_lost_is_finished_at_once(simulation: Simulation) -> None:
    """The lock is the node's own, under a token it does not know: it need not watch itself."""
    store = simulation.store
    never_answer(store)
    simulation.held_by("gone@host:1:y")
    seen = store.status().live
    lease = simulation.manager._take_over(seen, HolderWatch(), LastSign())
    assert lease is not None
    assert (lease.holder_id, lease.token) == (simulation.manager.holder_id, 3)
    assert lease.token == store.status().live.token
    assert [crash.holder for crash in simulation.said(CrashDetected)] == ["gone@host:1:y"]


def test_a_life_that_resumes_finishes_a_takeover_whose_answer_was_lost(
    simulation: Simulation,
) -> None:
    """It took the lock for somebody else's, and ended with the lease its own."""
    store = simulation.store
    never_answer(store)
    token = simulation.held_by("me@host:1:former")
    former = FormerLife("me@host:1:former", token, simulation.clock.now)
    simulation.manager.start()
    simulation.manager.resume_live_node(former, 1)
    assert simulation.manager.fencing_token == token + 2
    assert store.status().fence_token == token + 2


def test_a_life_that_cannot_resume_yet_says_so_again(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks at the log of a node with stopped connectors finds that it still waits."""
    token = simulation.held_by("me@host:1:former")
    former = FormerLife("me@host:1:former", token, simulation.clock.now)
    looks = iter(range(4))

    def be_away() -> None:
        simulation.clock.now += 30
        if next(looks, None) is not None:
            raise StoreUnavailable("no answer")
        simulation.store.script("status", lambda: None)

    simulation.manager.start()
    simulation.store.script("status", be_away)
    with caplog.at_level(logging.WARNING):
        simulation.manager.resume_live_node(former, 1)
    waits = [line for line in caplog.messages if "still waiting" in line]
    assert len(waits) >= 2
    assert all("no answer" in line for line in waits)
    assert simulation.kinds().count(StoreUnavailableEvent) == 1


def test_a_takeover_that_another_node_was_faster_with_takes_nothing(
    simulation: Simulation,
) -> None:
    """What it saw has changed, and the lock is somebody else's."""
    store = simulation.store
    simulation.held_by("gone@host:1:y")
    seen = store.status().live
    store.take_over(Lock.LIVE, "faster@host:1:z", EXPIRATION_MS, seen=seen)
    assert simulation.manager._take_over(seen, HolderWatch(), LastSign()) is None
    assert store.status().live.holder_id == "faster@host:1:z"


def test_every_lock_listener_is_told_whatever_the_others_do(simulation: Simulation) -> None:
    """Nor does it wait for a console that nobody reads."""
    later: list[str] = []

    def fail(reason: str) -> None:
        raise RuntimeError(f"a defect, told of {reason}")

    simulation.manager.register_lock_listener(fail)
    simulation.manager.register_lock_listener(later.append)
    simulation.go_live()
    console = StuckConsole()
    logging.getLogger("orthia.failover").addHandler(console)
    try:
        keep_alive = simulation.manager._kept[Lock.LIVE]
        losing = threading.Thread(target=keep_alive._lose, args=("a reason",))
        losing.start()
        wait_until(lambda: console.waiting, what="the console is stuck")
        assert simulation.lost == later == ["a reason"]
    finally:
        console.read.set()
        logging.getLogger("orthia.failover").removeHandler(console)
    losing.join(120)
    assert LeaseLost in simulation.kinds()
    assert not simulation.manager.is_lease_valid()


def test_a_pause_that_could_not_be_written_is_told(simulation: Simulation) -> None:
    """The backup will take over, which the operator did not want."""
    simulation.go_live()
    store = simulation.store

    def be_away() -> None:
        raise StoreUnavailable("no answer")

    store.script("write_state_as_live", be_away)
    simulation.manager.pause_live_server()
    assert simulation.kinds()[-2:] == [StateNotWritten, LockReleased]
    assert not store.status().live.is_held


def test_a_node_that_waits_for_its_store_says_so_again(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    """It was silent until the store came back; it says for how long it has waited, and for what."""
    attempts = iter(range(4))

    def be_away() -> None:
        if next(attempts, None) is not None:
            simulation.clock.now += 7
            raise StoreUnavailable("connection refused")

    simulation.store.script("status", be_away)
    with caplog.at_level(logging.WARNING, "orthia.failover"):
        simulation.manager.start()
    again = [one.getMessage() for one in caplog.records if "still waiting" in one.getMessage()]
    assert again == [
        "the store has not answered for 7 s: connection refused; still waiting",
        "the store has not answered for 21 s: connection refused; still waiting",
    ]
