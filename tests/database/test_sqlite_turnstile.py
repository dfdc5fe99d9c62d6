"""The turnstile of an SQLite file: a writer lets those through who wait, and nobody hangs on it.

That renewals get their turn beside a journal at full load: tests/journal/test_sqlite_fairness.py.
"""

import fcntl
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from orthia.database import SqliteTurnstile
from orthia.database.sqlite_turnstile import GIVE_WAY_SECONDS
from tests.support.processes import is_stopped
from tests.support.waiting import wait_until

# One process imports this module, and the others are forked from it.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give where the database would be: the turnstile is a file beside it."""
    return tmp_path / "store.sqlite"


def seconds_to_give_way(turnstile: SqliteTurnstile) -> float:
    """Give way once; return how long that took."""
    started = time.monotonic()
    turnstile.give_way()
    return time.monotonic() - started


def hold(path: Path, ready: Connection) -> None:
    """Hold the turnstile for ever."""
    with SqliteTurnstile(path).urgent():
        ready.send(os.getpid())
        time.sleep(3_600)


def test_a_frozen_waiter_slows_the_writer_only_boundedly(path: Path) -> None:
    """A process stopped while it holds the turnstile costs one bounded wait, then nothing."""
    here, there = _processes.Pipe()
    frozen = _processes.Process(target=hold, args=(path, there), daemon=True)
    frozen.start()
    try:
        number = here.recv()
        os.kill(number, signal.SIGSTOP)
        wait_until(lambda: is_stopped(number), what="the waiter stands still")
        turnstile = SqliteTurnstile(path)
        assert seconds_to_give_way(turnstile) >= GIVE_WAY_SECONDS
        # Another wait would be as long each time; a machine that is busy delays one or the other.
        assert min(seconds_to_give_way(turnstile) for _ in range(3)) < GIVE_WAY_SECONDS
    finally:
        frozen.kill()
        frozen.join()
        frozen.close()


def test_a_waiter_does_not_hang_on_a_frozen_writer(path: Path) -> None:
    """A lease statement goes ahead although a writer froze while it looked at the turnstile."""
    lock_file = path.with_name(path.name + "-turnstile")
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with SqliteTurnstile(path).urgent():
            pass
    finally:
        os.close(descriptor)


def test_the_writer_waits_for_nobody_when_nobody_waits(path: Path) -> None:
    """An open turnstile lets the writer through without the wait it grants others."""
    turnstile = SqliteTurnstile(path)
    assert min(seconds_to_give_way(turnstile) for _ in range(3)) < GIVE_WAY_SECONDS
