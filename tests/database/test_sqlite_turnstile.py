"""Lease renewals get their turn while the journal writes without a pause."""

import fcntl
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy import text

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, SqliteTurnstile, StoreUnavailable, write_transaction
from orthia.database.sqlite_turnstile import GIVE_WAY_SECONDS
from tests.support.processes import is_stopped
from tests.support.waiting import wait_until

RENEWALS = 15
RENEW_SECONDS = 0.2
BATCH_ROWS = 5_000

# One process imports this module, and the others are forked from it.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a database with a lease for each of two nodes and a table of messages."""
    path = tmp_path / "store.sqlite"
    database = open_database(path)
    with write_transaction(database.engine, "create") as connection:
        connection.execute(text("CREATE TABLE lease (id INTEGER PRIMARY KEY, renewals INTEGER)"))
        connection.execute(text("INSERT INTO lease VALUES (1, 0), (2, 0)"))
        connection.execute(text("CREATE TABLE messages (seq INTEGER PRIMARY KEY, record BLOB)"))
    database.dispose()
    return path


def open_database(path: Path) -> Database:
    """Open the database at this path."""
    return Database.from_settings(DatabaseStoreSettings(DatabaseUrl.parse(f"jdbc:sqlite:{path}")))


def hammer(path: Path, *, polite: bool, ready: Connection) -> None:
    """Write batch after batch as the journal's writer does, until terminated."""
    database = open_database(path)
    raw = database.dedicated_engine("journal", query_timeout_ms=20_000).raw_connection()
    cursor = raw.cursor()
    # A checkpoint follows the commit, when others may write: the worst writer leaves it out.
    cursor.execute("PRAGMA wal_autocheckpoint = 0")
    first = 1
    while True:
        if polite:
            database.turnstile.give_way()
        cursor.execute("BEGIN IMMEDIATE")
        rows = [(seq, b"x") for seq in range(first, first + BATCH_ROWS)]
        cursor.executemany("INSERT INTO messages VALUES (?, ?)", rows)
        cursor.execute("DELETE FROM messages WHERE seq < ?", (first - BATCH_ROWS,))
        cursor.execute("COMMIT")
        if first == 1:
            ready.send(None)
        first += BATCH_ROWS


def renew(path: Path, row: int, result: Connection) -> None:
    """Renew a lease of 2 s every 200 ms and send how many renewals failed."""
    database = open_database(path)
    engine = database.dedicated_engine("lease", query_timeout_ms=1_500)
    failures = 0
    for _ in range(RENEWALS):
        try:
            with (
                database.turnstile.urgent(),
                write_transaction(engine, "renew") as connection,
            ):
                connection.execute(
                    text("UPDATE lease SET renewals = renewals + 1 WHERE id = :row"), {"row": row}
                )
        except StoreUnavailable:
            failures += 1
        time.sleep(RENEW_SECONDS)
    result.send(failures)


@pytest.fixture
def start() -> Iterator[Callable[..., "multiprocessing.process.BaseProcess"]]:
    """Give a function that runs another in a process of its own, ended after the test."""
    started: list[multiprocessing.process.BaseProcess] = []

    def run(
        target: Callable[..., None], *args: object, **kwargs: object
    ) -> "multiprocessing.process.BaseProcess":
        process = _processes.Process(target=target, args=args, kwargs=kwargs, daemon=True)
        process.start()
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.join()
        process.close()


def test_renewals_of_two_nodes_succeed_beside_a_writer_at_full_load(
    path: Path, start: Callable[..., object]
) -> None:
    """Not one renewal of two nodes fails in a round while the journal's writer never rests."""
    here, there = _processes.Pipe()
    start(hammer, path, polite=True, ready=there)
    here.recv()

    def renew_both() -> list[int]:
        results = []
        for row in (1, 2):
            result, sender = _processes.Pipe()
            start(renew, path, row, sender)
            results.append(result)
        return [result.recv() for result in results]

    rounds = [renew_both()]
    # All wait for a writer that stands still in a batch: luck, which does not last.
    while any(rounds[-1]) and len(rounds) < 5:
        rounds.append(renew_both())
    assert rounds[-1] == [0, 0]
    with sqlite3.connect(path) as reader:
        renewals = reader.execute("SELECT renewals FROM lease ORDER BY id").fetchall()
    reader.close()
    failed = [sum(of_row) for of_row in zip(*rounds, strict=True)]
    assert renewals == [(len(rounds) * RENEWALS - of_row,) for of_row in failed]


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


def test_a_frozen_waiter_slows_the_writer_only_boundedly(
    path: Path, start: Callable[..., object]
) -> None:
    """A process stopped while it holds the turnstile costs one bounded wait, then nothing."""
    here, there = _processes.Pipe()
    start(hold, path, there)
    frozen = here.recv()
    os.kill(frozen, signal.SIGSTOP)
    wait_until(lambda: is_stopped(frozen), what="the waiter stands still")
    turnstile = SqliteTurnstile(path)
    assert seconds_to_give_way(turnstile) >= GIVE_WAY_SECONDS
    # Another wait would be as long each time; a machine that is busy delays one or the other.
    assert min(seconds_to_give_way(turnstile) for _ in range(3)) < GIVE_WAY_SECONDS


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
