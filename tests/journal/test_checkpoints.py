"""Checkpoints of SQLite after large batches: who makes them, and when they are waited for."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orthia.journal.sql.checkpoints import LARGE_BYTES, MOST_BYTES, Checkpoints, checkpoint
from tests.support.waiting import wait_until

PAGES = 1_000
"""SQLite's own limit."""


class Copying:
    """A checkpoint that takes as long as the test says."""

    def __init__(self) -> None:
        self.began = 0
        self.may_end = threading.Semaphore(0)

    def __call__(self, _: str) -> None:
        """Begin, and wait for the test."""
        self.began += 1
        self.may_end.acquire()


@pytest.fixture
def cursor(tmp_path: Path) -> Iterator[sqlite3.Cursor]:
    """Return the writer's cursor."""
    with closing(sqlite3.connect(tmp_path / "file", isolation_level=None)) as connection:
        yield connection.cursor()


def limit(cursor: sqlite3.Cursor) -> int:
    """Return from how many pages on the writer makes checkpoints; 0 if it makes none."""
    (pages,) = cursor.execute("PRAGMA wal_autocheckpoint").fetchone()
    return int(pages)


def store(checkpoints: Checkpoints, cursor: sqlite3.Cursor, size: int) -> int:
    """Store a batch, and return the limit that held meanwhile."""
    checkpoints.before(cursor, size)
    found = limit(cursor)
    checkpoints.after(size)
    return found


def test_a_small_batch_makes_its_own(cursor: sqlite3.Cursor) -> None:
    """As without all this."""
    copying = Copying()
    checkpoints = Checkpoints("file", copying)
    assert store(checkpoints, cursor, LARGE_BYTES - 1) == PAGES
    checkpoints.close()
    assert copying.began == 0


def test_nothing_waits_for_the_checkpoint_of_a_large_batch(cursor: sqlite3.Cursor) -> None:
    """Neither it nor what follows; afterwards the writer makes them again."""
    copying = Copying()
    checkpoints = Checkpoints("file", copying)
    assert store(checkpoints, cursor, LARGE_BYTES) == 0
    assert store(checkpoints, cursor, 1) == 0
    copying.may_end.release()
    wait_until(lambda: store(checkpoints, cursor, 1) == PAGES, what="the checkpoint is over")
    checkpoints.close()
    assert copying.began == 1


def test_a_large_batch_amid_a_checkpoint_has_one_of_its_own(cursor: sqlite3.Cursor) -> None:
    """The one that is under way may have begun without it."""
    copying = Copying()
    checkpoints = Checkpoints("file", copying)
    for _ in range(2):
        assert store(checkpoints, cursor, LARGE_BYTES) == 0
    copying.may_end.release()

    def began_again() -> bool:
        assert store(checkpoints, cursor, 1) == 0
        return copying.began == 2

    wait_until(began_again, what="another checkpoint")
    copying.may_end.release()
    checkpoints.close()


def test_the_log_does_not_grow_without_end(cursor: sqlite3.Cursor) -> None:
    """At its bound the writer waits for the checkpoint."""
    copying = Copying()
    checkpoints = Checkpoints("file", copying)
    for _ in range(MOST_BYTES // LARGE_BYTES):
        store(checkpoints, cursor, LARGE_BYTES)
    waiting = threading.Thread(target=checkpoints.before, args=(_NoCursor(), LARGE_BYTES))
    waiting.start()
    assert waiting.is_alive()
    copying.may_end.release(2)
    waiting.join()
    checkpoints.close()


class _NoCursor:
    """The writer's cursor is of another thread."""

    def execute(self, _: str) -> None:
        """Do nothing."""


def test_one_that_fails_is_left_to_the_writer(
    cursor: sqlite3.Cursor, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so."""

    def fail(_: str) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    checkpoints = Checkpoints("file", fail)
    store(checkpoints, cursor, LARGE_BYTES)
    checkpoints.close()
    assert "into file failed: disk I/O error" in caplog.text


def test_a_checkpoint_copies_all_that_is_in_the_log(tmp_path: Path) -> None:
    """Beside an open connection that made none."""
    path = tmp_path / "file"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE t (b BLOB)")
        writer.execute("INSERT INTO t VALUES (?)", (os.urandom(1_000_000),))
        assert path.stat().st_size < 100_000
        checkpoint(str(path))
        assert path.stat().st_size > 1_000_000
