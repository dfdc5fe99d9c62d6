"""The live lock while a command works on a store on which no node may run."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typing_extensions import override

from orthia.database import Database
from orthia.nodemanager import Lock, LockLost, State
from orthia.nodemanager.errors import StoreInUse
from orthia.nodemanager.locks import maintenance as module
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease
from orthia.nodemanager.locks.maintenance import is_untouched, maintenance
from orthia.nodemanager.locks.server_lock import ServerLock
from orthia.nodemanager.locks.status import DatabaseLocks, DirectoryLocks, LockUnknown, PairLocks
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer
from tests.support.waiting import wait_until


@pytest.fixture(params=["database", "directory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], PairLocks]]:
    """Give what makes another one that asks for the locks of the same pair."""
    if request.param == "directory":
        yield lambda: DirectoryLocks(tmp_path, "orthia-data")
        return
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    database = Database.from_settings(settings)
    make_tables(database, settings)
    yield lambda: DatabaseLocks(database, settings, "orthia-data")
    database.dispose()


def test_one_command_at_a_time_has_the_lock(make: Callable[[], PairLocks]) -> None:
    """A second is told who has it; the lock is free afterwards, whatever became of the command."""
    with make() as one, make() as other:
        with suppress(RuntimeError), maintenance(one, above=6) as held:
            assert held.is_held()
            assert held.lease.token == 7
            with (
                pytest.raises(StoreInUse, match=r"orthia-data@.* holds the live lock of my store"),
                maintenance(other, store="my store"),
            ):
                pytest.fail("two have the lock")
            raise RuntimeError("the command failed")
        assert not other.read_status().live.is_held
        with maintenance(other) as held:
            assert held.lease.token == 8


def test_a_token_that_was_raised_is_given_back_too(make: Callable[[], PairLocks]) -> None:
    """The last thing an import does: the next token is above it, and the lock is free at once."""
    with make() as locks:
        with maintenance(locks) as held:
            held.raise_token(40)
            assert held.lease.token == 40
        assert not locks.read_status().live.is_held
        with maintenance(locks) as held:
            assert held.lease.token == 41


def test_a_lock_that_was_taken_and_given_back_is_noticed(make: Callable[[], PairLocks]) -> None:
    """By whoever only read the store meanwhile."""
    with make() as locks:
        before = locks.read_status()
        assert is_untouched(before, locks.read_status())
        with maintenance(locks):
            assert not is_untouched(before, locks.read_status())
        assert not is_untouched(before, locks.read_status())


class Failing(DirectoryLocks):
    """Locks that are taken away."""

    @override
    def renew(self, lease: Lease) -> Lease:
        raise LockLost("somebody removed the file")


def test_a_lock_that_was_lost_is_not_taken_for_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written under it is not to be trusted, and its last step fails."""
    monkeypatch.setattr(module, "LEASE_MS", 30)
    with Failing(tmp_path, "orthia-data") as locks, maintenance(locks) as held:
        wait_until(lambda: not held.is_held(), what="the loss is noticed")
        with pytest.raises(LockLost, match="could not be renewed: somebody removed the file"):
            held.raise_token(9)


def test_a_backup_that_waits_is_in_the_way_of_some(tmp_path: Path) -> None:
    """Of what moves or fills a store, not of what mends it while the live node is stopped."""
    files = ServerLock(tmp_path)
    assert files.try_acquire(Lock.BACKUP, "node-b@host:1:x")
    files.update(state=State.PAUSED)
    with DirectoryLocks(tmp_path, "orthia-data") as locks:
        with maintenance(locks) as held:
            assert held.lease.deadline_seconds == math.inf
            assert isinstance(held.lease.holder_id, HolderId)
        with (
            pytest.raises(StoreInUse, match=r"node-b@host:1:x holds the backup lock.*waits on it"),
            maintenance(locks, free=tuple(Lock)),
        ):
            pytest.fail("it waits")
    files.close()


def test_a_lock_that_need_not_be_free_need_not_be_known(tmp_path: Path) -> None:
    """As that of a backup which crashed before the locker was another."""
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    database = Database.from_settings(settings)
    make_tables(database, settings)
    crashed = HolderId.new("node-b", crash_detection=False, kind="shared-file-locker")
    with DatabaseLocks(database, settings, "orthia-data") as locks:
        assert locks.rows.try_acquire(Lock.BACKUP, crashed, expiration_ms=-5_000) is not None
        with maintenance(locks) as held:
            assert held.is_held()
        with (
            pytest.raises(LockUnknown, match=r"still holds the backup lock cannot be told"),
            maintenance(locks, free=tuple(Lock)),
        ):
            pytest.fail("the backup may be there")
    database.dispose()
