"""What a node manager makes of time, with a store in memory and a stopwatch the test moves."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemanager import JdbcNodeManager, NodeManagerStatus, State
from nodemanager.events import Event, LeaseLost, LiveLockObtained
from nodemanager.failover_log import FailoverLog
from nodemanager.lease import Lock
from nodemanager.manager import Stores, new_holder_id
from nodemanager.memory_store import MemoryNodeManagerStore
from tests.nodemanager.conftest import ManualClock
from tests.support.servers import SqliteServer

EXPIRATION_MS = 20_000


class SlowStatusStore(MemoryNodeManagerStore):
    """A store whose ``status`` can be made to take long, as in an outage that is ridden out."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.before_status: Callable[[], None] = lambda: None

    def status(self) -> NodeManagerStatus:
        """Read everything, late."""
        self.before_status()
        return super().status()


class Simulation:
    """One node manager on a store in memory."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = SlowStatusStore(self.clock)
        self.events: list[Event] = []
        self.lost: list[str] = []
        # The timers are real ones: long enough that no renewal comes in between.
        settings = SqliteServer(directory).settings(
            "unused", jdbc_lock_expiration=EXPIRATION_MS, jdbc_lock_renew_period=9_000
        )
        holder_id = new_holder_id("me", crash_detection=False)
        log = FailoverLog(
            node_name="me", holder_id=holder_id, role="backup", listener=self.events.append
        )
        self.manager = JdbcNodeManager(
            Stores(self.store, self.store, self.store, self.store),
            settings,
            name="me",
            log=log,
            holder_id=holder_id,
            clock=self.clock,
        )
        self.manager.register_lock_listener(self.lost.append)

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
    store, manager = simulation.store, simulation.manager
    manager.start()
    manager.start_backup()
    store.write_state(State.LIVE)

    def ride_out_an_outage() -> None:
        if not MemoryNodeManagerStore.status(store).live.is_held:
            return
        store.before_status = lambda: None
        simulation.clock.now += EXPIRATION_MS / 1000 + 1

    store.before_status = ride_out_an_outage
    manager.await_live_node()
    assert manager.fencing_token == 2
    assert manager.is_lease_valid()
    assert simulation.lost == []
    assert simulation.kinds().count(LiveLockObtained) == 1
    assert not any(
        isinstance(event, LeaseLost) and event.lock is Lock.LIVE for event in simulation.events
    )
