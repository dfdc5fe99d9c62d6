"""What every store of the node manager promises, in memory and on each DBMS."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import MetaData, update

from orthia.nodemanager.errors import RowMissing
from orthia.nodemanager.locks.abc import Acquired, NodeManagerStore
from orthia.nodemanager.locks.lease import Lock, State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.tables import node_manager_store
from tests.conftest import EVERY_DBMS
from tests.nodemanager.conftest import StoreUnderTest
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until

LONG_MS = 60_000
SHORT_MS = 1_000


def acquire(store: NodeManagerStore, holder: str, ms: int = LONG_MS, lock: Lock = Lock.LIVE) -> int:
    """Take a lock that is free and return the token."""
    acquired = store.try_acquire(lock, holder, ms)
    assert acquired is not None
    return acquired.token


@pytest.mark.parametrize("lock", list(Lock))
def test_a_free_lock_is_taken_and_seen(store: NodeManagerStore, lock: Lock) -> None:
    """The status shows holder, token and what is left by the store's clock."""
    assert store.lock_status(lock).holder_id is None
    acquired = store.try_acquire(lock, "a", LONG_MS)
    assert isinstance(acquired, Acquired)
    status = store.lock_status(lock)
    assert (status.holder_id, status.token, status.is_held) == ("a", acquired.token, True)
    assert status.expires_in_seconds is not None
    # SQLite tells what is left to 40 microseconds; whether a lock is free it decides exactly.
    assert 0 < status.expires_in_seconds <= LONG_MS / 1000 + 0.001


def test_a_held_lock_is_not_taken(store: NodeManagerStore) -> None:
    """Nobody else gets it, and trying changes nothing; the other lock is another's."""
    token = acquire(store, "a")
    assert store.try_acquire(Lock.LIVE, "b", LONG_MS) is None
    acquire(store, "b", lock=Lock.BACKUP)
    status = store.lock_status(Lock.LIVE)
    assert (status.holder_id, status.token) == ("a", token)


def test_an_expired_lock_is_taken_under_a_greater_token(subject: StoreUnderTest) -> None:
    """Each acquisition counts the token up by one, whoever it is."""
    first = acquire(subject.store, "a", SHORT_MS)
    subject.let_expire()
    assert acquire(subject.store, "b") == first + 1


def test_whoever_holds_a_lock_may_take_it_again(store: NodeManagerStore) -> None:
    """After a request whose answer was lost; the token it never learnt is worth nothing."""
    lost = acquire(store, "a")
    token = acquire(store, "a")
    assert token == lost + 1
    assert store.renew(Lock.LIVE, "a", lost, LONG_MS) is None
    assert store.renew(Lock.LIVE, "a", token, LONG_MS) is not None


def test_of_many_only_one_takes_a_lock(store: NodeManagerStore) -> None:
    """Ten at once: one gets it."""
    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(
                lambda number: store.try_acquire(Lock.LIVE, f"node-{number}", LONG_MS), range(10)
            )
        )
    assert sum(answer is not None for answer in answers) == 1


def test_a_renewal_sets_the_expiry_anew(subject: StoreUnderTest) -> None:
    """By the store's clock, which it also tells."""
    token = acquire(subject.store, "a", SHORT_MS)
    now = subject.store.renew(Lock.LIVE, "a", token, LONG_MS)
    assert isinstance(now, datetime)
    left = subject.store.lock_status(Lock.LIVE).expires_in_seconds
    assert left is not None
    assert SHORT_MS / 1000 < left <= LONG_MS / 1000 + 0.001  # as above


@pytest.mark.parametrize(("holder", "token_offset"), [("b", 0), ("a", -1), ("a", 1)])
def test_who_has_no_lease_changes_nothing(
    store: NodeManagerStore, holder: str, token_offset: int
) -> None:
    """A name alone is no lease: an earlier life of the same node has another token."""
    held = acquire(store, "a")
    before, token = store.status(), held + token_offset
    assert store.renew(Lock.LIVE, holder, token, LONG_MS) is None
    assert not store.advance_fence(holder, token)
    assert not store.write_state_as_live(State.PAUSED, holder, token)
    assert not store.raise_token(Lock.LIVE, holder, token, held + 9)
    assert not store.release(Lock.LIVE, holder, token)
    found = store.status()
    assert (found.live.holder_id, found.live.token) == ("a", held)
    assert found.live.expiration_time == before.live.expiration_time
    assert (found.fence_token, found.state) == (0, before.state)


def test_a_lapsed_lease_that_nobody_took_is_renewed(subject: StoreUnderTest) -> None:
    """As in Artemis: being late harms nobody if nobody came. Meanwhile it fences nobody."""
    token = acquire(subject.store, "a", SHORT_MS)
    subject.let_expire()
    assert not subject.store.advance_fence("a", token)
    assert subject.store.status().fence_token == 0
    assert subject.store.renew(Lock.LIVE, "a", token, LONG_MS) is not None
    assert subject.store.try_acquire(Lock.LIVE, "b", LONG_MS) is None


def test_a_lapsed_lease_that_was_taken_is_lost(subject: StoreUnderTest) -> None:
    """Neither renewal nor release touch the successor's lease."""
    token = acquire(subject.store, "a", SHORT_MS)
    subject.let_expire()
    acquire(subject.store, "b")
    assert subject.store.renew(Lock.LIVE, "a", token, LONG_MS) is None
    assert not subject.store.release(Lock.LIVE, "a", token)
    assert subject.store.lock_status(Lock.LIVE).holder_id == "b"


def test_a_released_lock_is_free_and_keeps_its_token(store: NodeManagerStore) -> None:
    """The next holder's token is greater than every one before."""
    token = acquire(store, "a")
    assert store.release(Lock.LIVE, "a", token)
    status = store.lock_status(Lock.LIVE)
    assert (status.holder_id, status.token, status.is_held) == (None, token, False)
    assert not store.release(Lock.LIVE, "a", token)
    assert acquire(store, "b") == token + 1


def test_the_fence_follows_the_live_lease(store: NodeManagerStore) -> None:
    """The holder of the live lock advances it to its token, any number of times."""
    token = acquire(store, "a")
    assert store.advance_fence("a", token)
    assert store.advance_fence("a", token)
    assert store.status().fence_token == token


def test_the_fence_never_goes_back(subject: StoreUnderTest) -> None:
    """A fence set for a newer token stays."""
    token = acquire(subject.store, "a", SHORT_MS)
    subject.let_expire()
    newer = acquire(subject.store, "b")
    assert subject.store.advance_fence("b", newer)
    assert not subject.store.advance_fence("a", token)
    assert subject.store.status().fence_token == newer


@pytest.mark.parametrize("subject", SERVER_NAMES, indirect=True)
def test_a_fence_that_waited_beyond_its_lease_is_not_advanced(subject: StoreUnderTest) -> None:
    """It waits for whoever has its row, and renewals do not; the lock may be another's by then."""
    assert subject.database is not None
    assert subject.settings is not None
    store = subject.store
    engine = subject.database.dedicated_engine("fence", query_timeout_ms=600_000)
    fencing = SqlNodeManagerStore(subject.database, subject.settings, engine)
    token = acquire(store, "a")
    with ThreadPoolExecutor(1) as pool:
        with subject.row_locked(4):
            advancing = pool.submit(fencing.advance_fence, "a", token)
            wait_until(lambda: fencing._fencing_session is not None, what="the fence waits")
            assert store.renew(Lock.LIVE, "a", token, LONG_MS) is not None
            assert not advancing.done()
            assert store.release(Lock.LIVE, "a", token)
            following = acquire(store, "b")
        assert advancing.result(120) is False
    assert store.status().fence_token == 0
    assert store.advance_fence("b", following)


def test_the_state_is_shared(store: NodeManagerStore) -> None:
    """Written by one, read by all; with an expectation only if it is met."""
    assert store.status().state is State.NOT_STARTED
    assert store.write_state(State.FAILING_BACK)
    assert not store.write_state(State.LIVE, expected=State.PAUSED)
    assert store.status().state is State.FAILING_BACK
    assert store.write_state(State.LIVE, expected=State.FAILING_BACK)
    assert store.status().state is State.LIVE


def test_only_the_live_node_writes_that_it_is(subject: StoreUnderTest) -> None:
    """State L and P are written under the live lease."""
    store = subject.store
    token = acquire(store, "a", SHORT_MS)
    assert store.write_state_as_live(State.LIVE, "a", token)
    subject.let_expire()
    acquire(store, "b")
    assert not store.write_state_as_live(State.PAUSED, "a", token)
    assert store.status().state is State.LIVE


@pytest.mark.parametrize("subject", SERVER_NAMES, indirect=True)
def test_nobody_takes_the_lock_between_the_check_and_the_state(subject: StoreUnderTest) -> None:
    """Whoever writes as the live node keeps row 1 locked until it has written.

    Else a node that was stopped in between writes its state over that of its successor.
    """
    store = subject.store
    token = acquire(store, "a", SHORT_MS)
    subject.let_expire()
    with ThreadPoolExecutor(1) as pool, subject.row_locked(0):
        writing = pool.submit(store.write_state_as_live, State.PAUSED, "a", token)
        wait_until(lambda: subject.is_locked(Lock.LIVE), what="the writer has the live lock's row")
    assert writing.result(60)
    wait_until(lambda: not subject.is_locked(Lock.LIVE), what="the writer lets go")
    acquire(store, "b")


def test_the_node_id_is_created_once(store: NodeManagerStore) -> None:
    """Of ten nodes that start together one's candidate becomes the pair's id for ever."""
    assert store.status().node_id is None
    with ThreadPoolExecutor(10) as pool:
        answers = set(pool.map(lambda number: store.create_node_id(f"id-{number}"), range(10)))
    assert len(answers) == 1
    assert store.create_node_id("later") == answers.pop()


def test_a_backward_step_of_the_stores_clock_is_harmless(subject: StoreUnderTest) -> None:
    """The lease lasts longer for others, and its holder goes on renewing it."""
    store = subject.store
    token = acquire(store, "a", SHORT_MS)
    if subject.clock is not None:
        subject.clock.now -= 500
    else:
        move_expiry(subject, 500)
    assert store.try_acquire(Lock.LIVE, "b", LONG_MS) is None
    assert store.renew(Lock.LIVE, "a", token, SHORT_MS) is not None
    subject.let_expire()
    assert acquire(store, "b") == token + 1


def move_expiry(subject: StoreUnderTest, seconds: int) -> None:
    """Have the expiry look as it does after the database's clock went back."""
    store = subject.store
    assert isinstance(store, SqlNodeManagerStore)
    assert subject.database is not None
    status = store.status()
    assert status.live.expires_in_seconds is not None
    expiry = status.database_time + timedelta(seconds=status.live.expires_in_seconds + seconds)
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", subject.database.dialect)
    with subject.database.engine.begin() as connection:
        connection.execute(
            update(table).where(table.c.id == int(Lock.LIVE)).values(holder_expiration_time=expiry)
        )


@pytest.mark.parametrize("subject", EVERY_DBMS, indirect=True)
def test_an_emptied_table_is_named_with_its_remedy(subject: StoreUnderTest) -> None:
    """Whoever deletes its rows learns how to mend it."""
    assert subject.database is not None
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", subject.database.dialect)
    with subject.database.engine.begin() as connection:
        connection.execute(table.delete().where(table.c.id == 4))
    with pytest.raises(RowMissing, match=r"has no row 4 \(the fence\).*orthia db upgrade"):
        subject.store.status()


@pytest.mark.parametrize("subject", EVERY_DBMS, indirect=True)
def test_a_removed_row_is_not_taken_for_another_nodes_success(subject: StoreUnderTest) -> None:
    """Each call that needs the row says that it is gone, not that somebody else has it."""
    assert subject.database is not None
    store = subject.store
    token = acquire(store, "a")
    table = node_manager_store(MetaData(), "NODE_MANAGER_STORE", subject.database.dialect)

    def remove(row: int) -> None:
        assert subject.database is not None
        with subject.database.engine.begin() as connection:
            connection.execute(table.delete().where(table.c.id == row))

    remove(4)
    with pytest.raises(RowMissing, match="the fence"):
        store.advance_fence("a", token)
    remove(0)
    with pytest.raises(RowMissing, match="the shared state"):
        store.write_state_as_live(State.LIVE, "a", token)
    remove(3)
    with pytest.raises(RowMissing, match="the node id"):
        store.create_node_id("x")
    remove(1)
    with pytest.raises(RowMissing, match="the live lock"):
        store.renew(Lock.LIVE, "a", token, 10_000)


def test_a_lease_is_taken_over_as_it_was_seen(subject: StoreUnderTest) -> None:
    """Though it has not expired; the token grows, and the former holder's is worth nothing."""
    store = subject.store
    token = acquire(store, "a")
    taken = store.take_over(Lock.LIVE, "b", LONG_MS, seen=store.lock_status(Lock.LIVE))
    assert taken is not None
    assert taken.token == token + 1
    assert store.lock_status(Lock.LIVE).holder_id == "b"
    assert store.renew(Lock.LIVE, "a", token, LONG_MS) is None
    assert not store.advance_fence("a", token)


def test_a_lease_that_was_renewed_since_is_not_taken_over(subject: StoreUnderTest) -> None:
    """Whoever renews is alive."""
    store = subject.store
    token = acquire(store, "a")
    seen = store.lock_status(Lock.LIVE)

    def is_renewed() -> bool:
        if subject.clock is not None:
            subject.clock.now += 0.001
        assert store.renew(Lock.LIVE, "a", token, LONG_MS) is not None
        return store.lock_status(Lock.LIVE).expiration_time != seen.expiration_time

    # SQLite has milliseconds, and may do both within one.
    wait_until(is_renewed, what="the renewal is seen")
    assert store.take_over(Lock.LIVE, "b", LONG_MS, seen=seen) is None
    assert store.lock_status(Lock.LIVE).holder_id == "a"


def test_of_many_only_one_takes_a_lease_over(store: NodeManagerStore) -> None:
    """All of ten backups saw the same."""
    acquire(store, "a")
    seen = store.lock_status(Lock.LIVE)
    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(
                lambda number: store.take_over(Lock.LIVE, f"node-{number}", LONG_MS, seen=seen),
                range(10),
            )
        )
    assert sum(answer is not None for answer in answers) == 1
