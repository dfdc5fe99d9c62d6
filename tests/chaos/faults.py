"""The faults: what each does, for how long, and how it is healed.

A fault is a context manager: entering strikes, leaving heals. It yields what was struck and the
seconds to hold it.
"""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass

from broker.client import BrokerAddress, ClientError, Connection
from tests.chaos.ground import EXPIRATION_SECONDS, ChaosNode, Ground, wait_gone

SERVERS = frozenset({"postgresql", "mariadb", "mysql"})
_LARGE_BYTES = 1024 * 1024
_LARGE_MESSAGES = 60
_WITHOUT_MEMORY = frozenset({1, 70})
"""How a node may end for want of memory: before Orthia's own code is loaded, or after."""
EVERYWHERE = SERVERS | {"sqlite"}


@dataclass(frozen=True)
class Strike:
    """A fault that is on."""

    target: str
    seconds: float


Effect = Callable[[Ground], AbstractContextManager[Strike]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    effect: Effect
    on: frozenset[str]
    """The DBMS it can be made with."""
    weight: int = 1


FAULTS: dict[str, Fault] = {}


def _fault(
    name: str, on: frozenset[str] = EVERYWHERE, weight: int = 1
) -> Callable[[Callable[[Ground], Iterator[Strike]]], Effect]:
    def register(function: Callable[[Ground], Iterator[Strike]]) -> Effect:
        effect = contextmanager(function)
        FAULTS[name] = Fault(name, effect, on, weight)
        return effect

    return register


def _short(ground: Ground) -> float:
    """Return less than the lease, and not so much that the lease may run out all the same."""
    return ground.random.uniform(0.2, 0.6) * EXPIRATION_SECONDS


def _long(ground: Ground) -> float:
    """Return more than the lease."""
    return ground.random.uniform(1.2, 1.8) * EXPIRATION_SECONDS


@_fault("kill the live node", weight=3)
def kill_live(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves."""
    node = ground.serving()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0, 1))


@_fault("kill a backup")
def kill_backup(ground: Ground) -> Iterator[Strike]:
    """SIGKILL a node that waits."""
    node = ground.waiting()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0, 1))


@_fault("kill live and backup")
def kill_two(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves and one that waits, at once."""
    live, backup = ground.serving(), ground.waiting()
    live.crash()
    backup.crash()
    yield Strike(f"{live.name} {backup.name}", ground.random.uniform(0, 1))


@_fault("kill the live node twice")
def kill_successor(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves, and its successor in the middle of its takeover."""
    node = ground.serving()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0.3, 1.2))
    ground.serving().crash()


@_fault("freeze for less than the lease", weight=2)
def freeze_short(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP, and SIGCONT while the lease lasts."""
    yield from _freeze(ground.serving(), _short(ground))


@_fault("freeze for more than the lease", weight=2)
def freeze_long(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP, and SIGCONT when another has taken over."""
    yield from _freeze(ground.serving(), _long(ground))


@_fault("freeze a backup")
def freeze_backup(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP a node that waits for longer than a lease."""
    yield from _freeze(ground.waiting(), _long(ground))


def _freeze(node: ChaosNode, seconds: float) -> Iterator[Strike]:
    node.pause()
    try:
        yield Strike(node.name, seconds)
    finally:
        node.resume()


@_fault("stop the live node", weight=2)
def stop_live(ground: Ground) -> Iterator[Strike]:
    """SIGTERM, as an operator stops a node; failover-on-shutdown hands over."""
    node = ground.serving()
    # A node that has not come to install its handlers yet, or is at its very end, just dies.
    node.hit(signal.SIGTERM, 0, -signal.SIGTERM)
    yield Strike(node.name, 0.0)
    if not node.is_paused:  # by another fault, which ends after this one
        wait_gone(node)


@_fault("step a clock", weight=2)
def step_clock(ground: Ground) -> Iterator[Strike]:
    """Set a node's wall clock off by seconds to a day, either way; it stays so."""
    node = ground.random.choice([ground.serving(), ground.waiting()])
    seconds = ground.random.choice([-1, 1]) * ground.random.choice([2, 10, 3_600, 86_400])
    node.step_clock(seconds)
    yield Strike(f"{node.name} {seconds:+d} s", 1.0)


@_fault("disk full")
def disk_full(ground: Ground) -> Iterator[Strike]:
    """Kill the serving node, and start it again with no room for its failover log."""
    node = ground.serving()
    node.crash()
    node.reap()
    node.fill_disk()
    node.start()
    yield Strike(node.name, 2.0)
    node.crash()
    node.free_disk()


@_fault("no memory")
def no_memory(ground: Ground) -> Iterator[Strike]:
    """Refuse the serving node any more memory than it has, and ask much of it."""
    node = ground.serving()
    try:
        _limit_memory(node, 0)
        _fill_memory(node.port)
        yield Strike(node.name, 1.0)
    finally:
        _limit_memory(node, None)


def _limit_memory(node: ChaosNode, bytes_more: int | None) -> None:
    with suppress(ProcessLookupError, FileNotFoundError):  # it may end at any time
        if node.is_running:
            node.expected_codes |= _WITHOUT_MEMORY
            node.limit_memory(bytes_more)


def _fill_memory(port: int) -> None:
    """Send large messages in a transaction that is never committed, until that fails."""
    with suppress(ClientError):
        connection = Connection.open(BrokerAddress("127.0.0.1", port), timeout_seconds=2)
        with closing(connection):
            connection.send("BEGIN", {"transaction": "large"})
            large = {"destination": "large", "transaction": "large", "receipt": "large"}
            for _ in range(_LARGE_MESSAGES):
                connection.send("SEND", large, bytes(_LARGE_BYTES))
                give_up = time.monotonic() + 1
                while connection.unsent_bytes and time.monotonic() < give_up:
                    connection.exchange(0.1)


@_fault("kill the database", SERVERS, weight=2)
def kill_database(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the database with all its children, and start it again."""
    assert ground.server is not None
    ground.server.kill()
    try:
        yield Strike("database", ground.random.uniform(0, 1.5 * EXPIRATION_SECONDS))
    finally:
        ground.server.start()


@_fault("restart the database", SERVERS)
def restart_database(ground: Ground) -> Iterator[Strike]:
    """Stop the database in order and start it again at once."""
    assert ground.server is not None
    ground.server.restart()
    yield Strike("database", 0.0)


@_fault("freeze the database for less than the lease", SERVERS)
def freeze_database_short(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP every process of the database: connections stay, nobody answers."""
    yield from _freeze_database(ground, _short(ground))


@_fault("freeze the database for more than the lease", SERVERS)
def freeze_database_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out."""
    yield from _freeze_database(ground, _long(ground))


def _freeze_database(ground: Ground, seconds: float) -> Iterator[Strike]:
    assert ground.server is not None
    ground.server.pause()
    try:
        yield Strike("database", seconds)
    finally:
        ground.server.resume()


@_fault("cut connections", SERVERS, weight=2)
def cut(ground: Ground) -> Iterator[Strike]:
    """Reset all connections between the serving node and the database."""
    node = ground.serving()
    assert node.link is not None
    node.link.cut()
    yield Strike(node.name, ground.random.uniform(0, 0.5))
    if ground.random.random() < 0.3:
        node.link.cut()


@_fault("half-open connections", SERVERS)
def half_open(ground: Ground) -> Iterator[Strike]:
    """The database's side of each connection is gone, the node's is not told."""
    node = ground.serving()
    assert node.link is not None
    node.link.half_open()
    yield Strike(node.name, 1.0)


@_fault("latency", SERVERS)
def latency(ground: Ground) -> Iterator[Strike]:
    """Each packet between the serving node and the database takes 10 to 100 ms longer."""
    node = ground.serving()
    assert node.link is not None
    node.link.delay_seconds = ground.random.uniform(0.01, 0.1)
    try:
        yield Strike(f"{node.name} {node.link.delay_seconds * 1000:.0f} ms", EXPIRATION_SECONDS)
    finally:
        node.link.heal()


@_fault("black hole for less than the lease", SERVERS)
def black_hole_short(ground: Ground) -> Iterator[Strike]:
    """No packet passes between the serving node and the database."""
    yield from _silence(ground, _short(ground), "requests", "answers")


@_fault("black hole for more than the lease", SERVERS, weight=2)
def black_hole_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out; then what was sent arrives, late."""
    yield from _silence(ground, _long(ground), "requests", "answers")


@_fault("answers lost", SERVERS)
def answers_lost(ground: Ground) -> Iterator[Strike]:
    """Requests reach the database, and no answer comes back until the lease has run out."""
    yield from _silence(ground, _long(ground), "answers")


@_fault("requests lost", SERVERS)
def requests_lost(ground: Ground) -> Iterator[Strike]:
    """No request reaches the database until the lease has run out."""
    yield from _silence(ground, _long(ground), "requests")


def _silence(ground: Ground, seconds: float, *directions: str) -> Iterator[Strike]:
    node = ground.serving()
    assert node.link is not None
    node.link.silence(*directions)
    try:
        yield Strike(node.name, seconds)
    finally:
        node.link.heal()


@_fault("lock the database for less than the lease", frozenset({"sqlite"}), weight=2)
def lock_short(ground: Ground) -> Iterator[Strike]:
    """Another process holds SQLite's file locked, as a backup tool may."""
    yield from _lock_file(ground, _short(ground))


@_fault("lock the database for more than the lease", frozenset({"sqlite"}), weight=2)
def lock_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out."""
    yield from _lock_file(ground, _long(ground))


def _lock_file(ground: Ground, seconds: float) -> Iterator[Strike]:
    with closing(sqlite3.connect(ground.sqlite_path, timeout=1, isolation_level=None)) as other:
        # It may be locked already: by another such fault, or a node frozen in its transaction.
        with suppress(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
        yield Strike("database", seconds)
        if other.in_transaction:
            other.execute("ROLLBACK")


def kinds(dbms: str) -> list[Fault]:
    """Return the faults that can be made with ``dbms``."""
    return [fault for fault in FAULTS.values() if dbms in fault.on]
