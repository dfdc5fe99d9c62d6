"""Faults of the store: a database killed, restarted, frozen or failed over, disks full."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress

from tests.chaos.bulk import send_bulk
from tests.chaos.fault import IO_ERROR, Strike, fault, long, short
from tests.chaos.ground import EXPIRATION_SECONDS, Ground
from tests.support.waiting import wait_until

_LAG_SECONDS = 1.5
"""How far an asynchronous standby falls behind at most before its primary is lost."""
_READ_LATE_SECONDS = 1.0
"""For so long after the nodes are gone clients may read what they had confirmed."""
_LOCK_NOT_ACQUIRED = 75
_NO_ROOM = (IO_ERROR, 69, _LOCK_NOT_ACQUIRED, 78)
"""How a node may end that finds no room for what it has to write when it starts."""


@fault("kill the database", "server", weight=2)
def kill_database(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the database with all its children, and start it again."""
    ground.expect(IO_ERROR)
    ground.server.kill()
    try:
        yield Strike("database", ground.random.uniform(0, 1.5 * EXPIRATION_SECONDS))
    finally:
        ground.server.start()


@fault("restart the database", "server")
def restart_database(ground: Ground) -> Iterator[Strike]:
    """Stop the database in order and start it again at once."""
    ground.expect(IO_ERROR)
    ground.server.restart()
    yield Strike("database", 0.0)


@fault("freeze the database for less than the lease", "server")
def freeze_database_short(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP every process of the database: connections stay, nobody answers."""
    yield from _freeze_database(ground, short(ground))


@fault("freeze the database for more than the lease", "server")
def freeze_database_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out."""
    ground.expect(IO_ERROR)
    yield from _freeze_database(ground, long(ground))


def _freeze_database(ground: Ground, seconds: float) -> Iterator[Strike]:
    ground.server.pause()
    try:
        yield Strike("database", seconds)
    finally:
        ground.server.resume()


@fault("lock the database for less than the lease", "sqlite", weight=2)
def lock_short(ground: Ground) -> Iterator[Strike]:
    """Another process holds SQLite's file locked, as a backup tool may."""
    yield from _lock_file(ground, short(ground))


@fault("lock the database for more than the lease", "sqlite", weight=2)
def lock_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out."""
    ground.expect(IO_ERROR)
    yield from _lock_file(ground, long(ground))


def _lock_file(ground: Ground, seconds: float) -> Iterator[Strike]:
    with closing(sqlite3.connect(ground.sqlite_path, timeout=1, isolation_level=None)) as other:
        # It may be locked already: by another such fault, or a node frozen in its transaction.
        with suppress(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
        yield Strike("database", seconds)
        if other.in_transaction:
            other.execute("ROLLBACK")


@fault("failover log's disk full")
def log_disk_full(ground: Ground) -> Iterator[Strike]:
    """Kill the serving node, and start it again with no room for its failover log."""
    node = ground.serving()
    node.crash()
    wait_until(lambda: node.is_noted, what="its end is noted")
    node.fill_log()
    node.start()
    yield Strike(node.name, 2.0)
    node.crash()
    node.free_log()


@fault("store's disk full", "disk", lacks="standby", is_alone=True)
def store_disk_full(ground: Ground) -> Iterator[Strike]:
    """Leave no byte on the disk that messages and locks are on, for less than the lease or more.

    And send more than what the store has set aside can take.
    """
    ground.expect(*_NO_ROOM)
    ground.disk.fill()
    try:
        send_bulk(ground, ground.serving().port)
        yield Strike("disk", ground.random.uniform(0.3, 1.5) * EXPIRATION_SECONDS)
    finally:
        ground.disk.free()
        if "server" in ground.has:
            # PostgreSQL ends if there is no room for its log; nobody but an operator starts it.
            ground.server.restart()


@fault("fail over the database", "standby synchronous", is_alone=True, weight=3)
def fail_over(ground: Ground) -> Iterator[Strike]:
    """Lose the primary; its synchronous standby takes its place, and has all that was committed."""
    yield from _fail_over(ground, 0.0)


@fault("fail over the database with loss", "standby", "synchronous", is_alone=True, weight=6)
def fail_over_with_loss(ground: Ground) -> Iterator[Strike]:
    """Lose the primary while its asynchronous standby is behind: what it lacks is lost.

    The nodes are stopped and started, as the documentation demands: what they have in memory is not
    what the new primary has.
    """
    yield from _fail_over(ground, ground.random.uniform(0, _LAG_SECONDS))


def _fail_over(ground: Ground, lag_seconds: float) -> Iterator[Strike]:
    ground.expect(IO_ERROR)
    server = ground.replicated
    link = server.replication
    assert link is not None
    if not server.is_synchronous:
        wait_until(lambda: server.lag_bytes() == 0, what="the standby has everything")
    began = time.monotonic()
    link.silence("answers")  # the primary's, to the standby that asks it for its log
    time.sleep(lag_seconds if not server.is_synchronous else ground.random.uniform(0, 0.5))
    server.kill()
    if not server.is_synchronous:
        for node in ground.nodes:
            node.crash()
        ground.tails.append((began, time.monotonic() + _READ_LATE_SECONDS))
    before = server.fail_over()
    for other in ground.links:
        other.lead_to(server.port)
        other.cut()
    before.discard()
    link.heal()
    server.follow(link)
    yield Strike(f"{lag_seconds:.1f} s behind", 0.0)


@fault("lose the standby", "standby synchronous", is_alone=True)
def lose_standby(ground: Ground) -> Iterator[Strike]:
    """Freeze the standby for longer than the lease: no commit is confirmed meanwhile."""
    ground.expect(IO_ERROR)
    standby = ground.replicated.standby
    assert standby is not None
    standby.pause()
    try:
        yield Strike("standby", long(ground))
    finally:
        standby.resume()
