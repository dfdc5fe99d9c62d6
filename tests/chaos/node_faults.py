"""Faults of nodes: killed, frozen, stopped, restarted, with a clock that steps, without memory."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress

from orthia.broker.client.connection import BrokerAddress, ClientError, Connection
from tests.chaos.bulk import send_bulk
from tests.chaos.fault import IO_ERROR, Strike, fault, long, short
from tests.chaos.ground import FARTHEST_STEP_SECONDS, Ground, wait_gone
from tests.chaos.nodes import ChaosNode
from tests.support.waiting import wait_until

_LARGE_BYTES = 1024 * 1024
_LARGE_MESSAGES = 60
_WITHOUT_MEMORY = (1, 70, IO_ERROR, -signal.SIGSEGV, -signal.SIGABRT)
"""How a node may end for want of memory: before Orthia's own code is loaded, or after; and in C,
where a stack cannot grow."""
_IN_A_BATCH_BYTES = 1024 * 1024
_TRAP_SECONDS = 5.0
_RESTART_SECONDS = 60.0


@fault("kill the live node", weight=3)
def kill_live(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves."""
    node = ground.serving()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0, 1))


@fault("kill a backup")
def kill_backup(ground: Ground) -> Iterator[Strike]:
    """SIGKILL a node that waits."""
    node = ground.waiting()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0, 1))


@fault("kill live and backup")
def kill_two(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves and one that waits, at once."""
    live, backup = ground.serving(), ground.waiting()
    live.crash()
    backup.crash()
    yield Strike(f"{live.name} {backup.name}", ground.random.uniform(0, 1))


@fault("kill the live node twice")
def kill_successor(ground: Ground) -> Iterator[Strike]:
    """SIGKILL the node that serves, and its successor in the middle of its takeover."""
    node = ground.serving()
    node.crash()
    yield Strike(node.name, ground.random.uniform(0.3, 1.2))
    ground.serving().crash()


@fault("freeze for less than the lease", weight=2)
def freeze_short(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP, and SIGCONT while the lease lasts."""
    yield from _freeze(ground.serving(), short(ground))


@fault("freeze for more than the lease", weight=2)
def freeze_long(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP, and SIGCONT when another has taken over."""
    node = ground.serving()
    node.expect(IO_ERROR)
    yield from _freeze(node, long(ground))


@fault("freeze a backup")
def freeze_backup(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP a node that waits for longer than a lease."""
    yield from _freeze(ground.waiting(), long(ground))


def _freeze(node: ChaosNode, seconds: float) -> Iterator[Strike]:
    node.pause()
    try:
        yield Strike(node.name, seconds)
    finally:
        node.resume()


@fault("freeze for good in a batch", "server link sql")
def freeze_for_good(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP in the middle of a large batch (COPY on PostgreSQL), never to go on."""
    node = ground.wait_serving()
    _stop_in_a_batch(ground, node, lambda: None)
    try:
        yield Strike(node.name, 0.0, is_for_good=True)
    finally:
        node.crash()


@fault("freeze for good in a batch of files", "files leases")
def freeze_files_for_good(ground: Ground) -> Iterator[Strike]:
    """The same where a batch goes to files: at some moment of it."""
    node = ground.wait_serving()
    send_bulk(ground, node.port)
    time.sleep(ground.random.uniform(0, 0.05))
    node.pause()
    try:
        yield Strike(node.name, 0.0, is_for_good=True)
    finally:
        node.crash()


@fault("freeze in a batch, then kill", lacks="server")
def freeze_then_kill(ground: Ground) -> Iterator[Strike]:
    """SIGSTOP at some moment of a large batch where nobody can end it, and SIGKILL after long."""
    node = ground.wait_serving()
    send_bulk(ground, node.port)
    time.sleep(ground.random.uniform(0, 0.05))
    node.pause()
    yield Strike(node.name, long(ground))
    node.crash()


@fault("lose the host in a batch", "server link")
def lose_host_in_a_batch(ground: Ground) -> Iterator[Strike]:
    """The node stands still in a large batch, and no word of it reaches the database any more."""
    node = ground.wait_serving()
    assert node.link is not None
    _stop_in_a_batch(ground, node, node.link.strand_here)
    yield from _lost_host(node)


@fault("lose the host", "server link")
def lose_host(ground: Ground) -> Iterator[Strike]:
    """The node stands still, and no packet comes from it any more, not even a FIN."""
    node = ground.wait_serving()
    node.pause()
    yield from _lost_host(node)


def _lost_host(node: ChaosNode) -> Iterator[Strike]:
    assert node.link is not None
    node.link.strand()
    try:
        yield Strike(node.name, 0.0, is_for_good=True)
    finally:
        node.crash()
        node.link.drop_stranded()


def _stop_in_a_batch(ground: Ground, node: ChaosNode, also: object) -> None:
    """SIGSTOP a node while it sends a batch of many MiB to the database."""
    assert node.link is not None
    assert callable(also)

    def stop() -> None:
        node.pause()
        also()

    node.link.set_trap(_IN_A_BATCH_BYTES, stop)
    send_bulk(ground, node.port)
    link, give_up = node.link, time.monotonic() + _TRAP_SECONDS
    while link.is_trap_set and time.monotonic() < give_up:
        time.sleep(0.01)
    link.clear_trap()
    if not node.is_paused:  # it ended before, or served nobody
        node.pause()


@fault("stop the live node", weight=2)
def stop_live(ground: Ground) -> Iterator[Strike]:
    """SIGTERM, as an operator stops a node; failover-on-shutdown hands over."""
    node = ground.serving()
    _stop(node)
    yield Strike(node.name, 0.0)
    if not node.is_paused:  # by another fault, which ends after this one
        wait_gone(node)


@fault("rolling restart", is_alone=True)
def rolling_restart(ground: Ground) -> Iterator[Strike]:
    """Stop each node in order and start it again, one after the other, as an upgrade does."""
    yield Strike("all nodes", 0.0)
    for node in ground.nodes:
        if node.is_running:
            _stop(node)
            wait_gone(node)
            wait_until(lambda node=node: node.is_noted, what="its end is noted")  # type: ignore[misc]
        before = len(node.log)
        node.start()
        wait_until(
            lambda node=node, before=before: "AMQ221001" in node.log[before:],  # type: ignore[misc]
            _RESTART_SECONDS,
            what=f"{node.name} has started",
        )
        ground.wait_serving()


def _stop(node: ChaosNode) -> None:
    # A node that has not come to install its handlers yet, or is at its very end, just dies.
    node.hit(signal.SIGTERM, 0, -signal.SIGTERM)


@fault("step a clock", lacks="sqlite", weight=2)
def step_clock(ground: Ground) -> Iterator[Strike]:
    """Set a node's wall clock off by seconds to a day, either way; it stays so."""
    node = ground.random.choice([ground.serving(), ground.waiting()])
    seconds = _step(ground)
    node.clock.step(seconds)
    yield Strike(f"{node.name} {seconds:+d} s", 1.0)


@fault("step the host's clock", "sqlite", weight=2)
def step_every_clock(ground: Ground) -> Iterator[Strike]:
    """Set the wall clock of the one host there is off, which is also its database's."""
    seconds = _step(ground)
    ground.expect(IO_ERROR)
    ground.step_clocks(seconds)
    yield Strike(f"all nodes {seconds:+d} s", 1.0)


def _step(ground: Ground) -> int:
    seconds = ground.random.choice([2, 10, 3_600, FARTHEST_STEP_SECONDS])
    return ground.random.choice([-1, 1]) * seconds


@fault("no memory")
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
            node.expect(*_WITHOUT_MEMORY)
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
