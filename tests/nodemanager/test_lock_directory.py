"""The directory of a shared-file-locker: one for all nodes of a store, or no node."""

import re
import shutil
import threading
from pathlib import Path

import pytest

from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, StoreUnavailable
from orthia.nodemanager.errors import LockDirectoryMissing
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.lock_directory import ID_FILE, DirectoryRow, LockDirectory
from orthia.nodemanager.locks.shared_file import SharedFileLock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.support.waiting import wait_until


@pytest.fixture
def row(database: Database, migrated_store: DatabaseStoreSettings) -> DirectoryRow:
    """Give the row of a new store."""
    return DirectoryRow(database, migrated_store)


@pytest.fixture
def used(database: Database, migrated_store: DatabaseStoreSettings) -> DirectoryRow:
    """Give the row of a store on which a node was live already."""
    store = SqlNodeManagerStore(database, migrated_store, database.engine)
    taken = store.try_acquire(Lock.LIVE, "somebody", 2_000)
    assert taken is not None
    store.release(Lock.LIVE, "somebody", taken.token)
    return DirectoryRow(database, migrated_store)


def test_the_first_node_makes_the_directory_and_others_share_it(
    row: DirectoryRow, tmp_path: Path
) -> None:
    """By whatever path they come to it."""
    directory = tmp_path / "shared" / "locks"
    LockDirectory(directory, row).join()
    LockDirectory(directory, row).join()
    (tmp_path / "link").symlink_to(directory)
    LockDirectory(tmp_path / "link", row).join()
    known = row.read()
    assert known is not None
    assert known.identity == (directory / ID_FILE).read_text().strip()
    assert known.place.endswith(f":{directory}")


def test_a_directory_that_has_an_identity_keeps_it(row: DirectoryRow, tmp_path: Path) -> None:
    """It may be the directory of another store too, whose nodes would lock no more."""
    directory = tmp_path / "locks"
    directory.mkdir()
    (directory / ID_FILE).write_text("of-another-store\n")
    LockDirectory(directory, row).join()
    assert (directory / ID_FILE).read_text() == "of-another-store\n"
    known = row.read()
    assert known is not None
    assert known.identity == "of-another-store"


def test_another_directory_is_refused(row: DirectoryRow, tmp_path: Path) -> None:
    """The error names both, and nobody has taken a lock."""
    LockDirectory(tmp_path / "a", row).join()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ID_FILE).write_text("another\n")
    other = LockDirectory(tmp_path / "b", row)
    with pytest.raises(ConfigurationError) as refused:
        other.join()
    assert str(tmp_path / "a") in str(refused.value)
    assert str(tmp_path / "b") in str(refused.value)
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        SharedFileLock(other, Lock.LIVE, "holder").try_acquire()


@pytest.mark.parametrize("is_mounted_over", [False, True])
def test_a_directory_that_is_missing_is_not_made_by_a_node_that_joins(
    row: DirectoryRow, tmp_path: Path, *, is_mounted_over: bool
) -> None:
    """Neither where there is none, nor in the empty place of one that is not mounted."""
    LockDirectory(tmp_path / "a", row).join()
    known = row.read()
    assert known is not None
    if is_mounted_over:
        (tmp_path / "b").mkdir()
    with pytest.raises(LockDirectoryMissing, match=re.escape(known.place)) as refused:
        LockDirectory(tmp_path / "b", row).join()
    assert known.identity in str(refused.value)
    assert not (tmp_path / "b" / ID_FILE).exists()
    (tmp_path / "b").mkdir(exist_ok=True)
    (tmp_path / "b" / ID_FILE).write_text(known.identity)  # as the error says
    LockDirectory(tmp_path / "b", row).join()


def test_a_store_that_was_in_use_before_makes_none(used: DirectoryRow, tmp_path: Path) -> None:
    """One whose nodes lock in files from now on: the operator makes and shares the directory."""
    directory = LockDirectory(tmp_path / "locks", used)
    with pytest.raises(LockDirectoryMissing, match="was in use before"):
        directory.join()
    assert not directory.path.exists()
    directory.path.mkdir()
    directory.join()
    directory.check()


def test_of_nodes_that_start_at_once_in_different_directories_one_starts(
    row: DirectoryRow, tmp_path: Path
) -> None:
    """The database decides which."""
    outcomes: dict[str, OrthiaError | None] = {}
    together = threading.Barrier(4)

    def join(name: str) -> None:
        together.wait()
        try:
            LockDirectory(tmp_path / name, row).join()
        except OrthiaError as error:
            outcomes[name] = error
        else:
            outcomes[name] = None

    for name in "abcd":
        threading.Thread(target=join, args=(name,)).start()
    wait_until(lambda: len(outcomes) == 4, what="all have tried")
    refused = [error for error in outcomes.values() if error is not None]
    assert len(refused) == 3
    assert {type(error) for error in refused} <= {ConfigurationError, LockDirectoryMissing}


def test_a_directory_that_goes_away_gives_no_lock(row: DirectoryRow, tmp_path: Path) -> None:
    """A waiting backup does not take the live lock in the empty place of what was unmounted."""
    directory = LockDirectory(tmp_path / "locks", row)
    directory.join()
    lock = SharedFileLock(directory, Lock.LIVE, "holder")
    shutil.move(directory.path, tmp_path / "away")
    directory.path.mkdir()
    for look in (lock.try_acquire, lock.is_free):
        with pytest.raises(StoreUnavailable, match="is it mounted"):
            look()
    directory.path.rmdir()
    shutil.move(tmp_path / "away", directory.path)
    assert lock.is_free()
    assert lock.try_acquire()
    lock.release()
