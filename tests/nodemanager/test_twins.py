"""The store in memory and one in a database give the same answers to any series of requests.

Time stands still for both: a lease is taken for an hour, or so that it has lapsed already.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import MetaData, update

from orthia.database import Database
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from tests.conftest import EVERY_DBMS, Servers
from tests.nodemanager.conftest import ManualClock
from tests.support.memory_store import MemoryNodeManagerStore
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer

pytestmark = pytest.mark.extended

LOCKS = st.sampled_from(list(Lock))
HOLDERS = st.sampled_from(["a", "b", "c"])
STATES = st.sampled_from(list(State))
EXPIRATIONS_MS = st.sampled_from([3_600_000, -60_000])
TOKENS_BACK = st.integers(-1, 2)


@pytest.fixture(params=EVERY_DBMS)
def database(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[Database]:
    """Give a migrated database of each DBMS."""
    server = SqliteServer(tmp_path) if request.param == "sqlite" else shared_servers(request.param)
    store_settings = server.settings(server.create_database())
    opened = Database.from_settings(store_settings)
    make_tables(opened, store_settings)
    yield opened
    opened.dispose()


def shown(lock: LockStatus) -> tuple[str | None, int, bool]:
    """Return what does not depend on the store's clock."""
    return lock.holder_id, lock.token, lock.is_held


def all_shown(status: NodeManagerStatus) -> tuple[object, ...]:
    """Return the whole status without its times."""
    return (
        status.state,
        shown(status.live),
        shown(status.backup),
        status.node_id,
        status.fence_token,
    )


class Twins(RuleBasedStateMachine):
    """Asks both stores the same."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        with TemporaryDirectory() as directory:
            named = SqliteServer(Path(directory)).settings("names-only")
        self.clock = ManualClock()
        self.memory = MemoryNodeManagerStore(self.clock)
        self.sql = SqlNodeManagerStore(self.database, named, self.database.engine)
        self.tokens = dict.fromkeys(Lock, 0)
        self.fence = 0
        self.seen: tuple[LockStatus, LockStatus] | None = None

    @initialize()
    def empty(self) -> None:
        """Put the table back to what the migration made."""
        table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", self.database.dialect)
        fresh: dict[str, Any] = {
            "holder_id": None,
            "holder_expiration_time": None,
            "holder_token": 0,
            "node_id": None,
        }
        with self.database.engine.begin() as connection:
            connection.execute(update(table).values(fresh))
            connection.execute(update(table).where(table.c.id == 0).values(state="N"))

    @rule(lock=LOCKS, holder=HOLDERS, ms=EXPIRATIONS_MS)
    def acquire(self, lock: Lock, holder: str, ms: int) -> None:
        """Take a lock, perhaps."""
        answers = [store.try_acquire(lock, holder, ms) for store in (self.memory, self.sql)]
        tokens = [answer and answer.token for answer in answers]
        assert tokens[0] == tokens[1]

    @rule(lock=LOCKS)
    def look(self, lock: Lock) -> None:
        """Remember how a lock is, for a later take-over."""
        self.seen = (self.memory.lock_status(lock), self.sql.lock_status(lock))

    @precondition(lambda self: self.seen is not None)
    @rule(holder=HOLDERS, ms=EXPIRATIONS_MS)
    def take_over(self, holder: str, ms: int) -> None:
        """Take a lock as it was seen, if it still is."""
        assert self.seen is not None
        of_memory, of_sql = self.seen
        answers = [
            self.memory.take_over(of_memory.lock, holder, ms, seen=of_memory),
            self.sql.take_over(of_sql.lock, holder, ms, seen=of_sql),
        ]
        tokens = [answer and answer.token for answer in answers]
        assert tokens[0] == tokens[1]

    @rule(lock=LOCKS, holder=HOLDERS, back=TOKENS_BACK, ms=EXPIRATIONS_MS)
    def renew(self, lock: Lock, holder: str, back: int, ms: int) -> None:
        """Renew a lease, perhaps one of long ago."""
        self.clock.now += 0.001  # in a database no two renewals have the same instant
        token = self.tokens[lock] - back
        answers = [store.renew(lock, holder, token, ms) for store in (self.memory, self.sql)]
        assert (answers[0] is None) == (answers[1] is None)

    @rule(lock=LOCKS, holder=HOLDERS, back=TOKENS_BACK)
    def release(self, lock: Lock, holder: str, back: int) -> None:
        """Release a lease, perhaps one of long ago."""
        token = self.tokens[lock] - back
        answers = [store.release(lock, holder, token) for store in (self.memory, self.sql)]
        assert answers[0] == answers[1]

    @rule(holder=HOLDERS, back=TOKENS_BACK)
    def advance_fence(self, holder: str, back: int) -> None:
        """Advance the fence, with or without the right to."""
        token = self.tokens[Lock.LIVE] - back
        answers = [store.advance_fence(holder, token) for store in (self.memory, self.sql)]
        assert answers[0] == answers[1]

    @rule(state=STATES, expected=st.none() | STATES)
    def write_state(self, state: State, expected: State | None) -> None:
        """Write the state, as anybody may."""
        stores = (self.memory, self.sql)
        answers = [store.write_state(state, expected=expected) for store in stores]
        assert answers[0] == answers[1]

    @rule(state=STATES, holder=HOLDERS, back=TOKENS_BACK)
    def write_state_as_live(self, state: State, holder: str, back: int) -> None:
        """Write the state, as only the live node may."""
        token = self.tokens[Lock.LIVE] - back
        stores = (self.memory, self.sql)
        answers = [store.write_state_as_live(state, holder, token) for store in stores]
        assert answers[0] == answers[1]

    @rule(candidate=HOLDERS)
    def create_node_id(self, candidate: str) -> None:
        """Create the node id, or learn it."""
        stores = (self.memory, self.sql)
        answers = [store.create_node_id(candidate) for store in stores]
        assert answers[0] == answers[1]

    @invariant()
    def the_same_is_seen(self) -> None:
        """And tokens and fence only grow, the fence never beyond the live lock's token."""
        status = self.sql.status()
        assert all_shown(status) == all_shown(self.memory.status())
        for lock, now in ((Lock.LIVE, status.live), (Lock.BACKUP, status.backup)):
            assert now.token >= self.tokens[lock]
            self.tokens[lock] = now.token
        assert self.fence <= status.fence_token <= status.live.token
        self.fence = status.fence_token


def test_the_twins_agree(database: Database) -> None:
    """Over any series of requests, on each DBMS."""

    class OnThisDatabase(Twins):
        pass

    OnThisDatabase.database = database
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
