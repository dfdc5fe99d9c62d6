"""Faults of the network between the serving node and its database."""

from collections.abc import Iterator

from tests.chaos.fault import IO_ERROR, Strike, fault, long, short
from tests.chaos.ground import EXPIRATION_SECONDS, Ground


@fault("cut connections", "link", weight=2)
def cut(ground: Ground) -> Iterator[Strike]:
    """Reset all connections between the serving node and the database."""
    node = ground.serving()
    node.expect(IO_ERROR)
    assert node.link is not None
    node.link.cut()
    yield Strike(node.name, ground.random.uniform(0, 0.5))
    if ground.random.random() < 0.3:
        node.link.cut()


@fault("half-open connections", "link")
def half_open(ground: Ground) -> Iterator[Strike]:
    """The database's side of each connection is gone, the node's is not told."""
    node = ground.serving()
    node.expect(IO_ERROR)
    assert node.link is not None
    node.link.half_open()
    yield Strike(node.name, 1.0)


@fault("latency", "link")
def latency(ground: Ground) -> Iterator[Strike]:
    """Each packet between the serving node and the database takes 10 to 100 ms longer."""
    node = ground.serving()
    assert node.link is not None
    node.link.delay_seconds = ground.random.uniform(0.01, 0.1)
    try:
        yield Strike(f"{node.name} {node.link.delay_seconds * 1000:.0f} ms", EXPIRATION_SECONDS)
    finally:
        node.link.heal()


@fault("black hole for less than the lease", "link")
def black_hole_short(ground: Ground) -> Iterator[Strike]:
    """No packet passes between the serving node and the database."""
    yield from _silence(ground, short(ground), "requests", "answers")


@fault("black hole for more than the lease", "link", weight=2)
def black_hole_long(ground: Ground) -> Iterator[Strike]:
    """The same, until the lease has run out; then what was sent arrives, late."""
    yield from _silence(ground, long(ground), "requests", "answers", ends=True)


@fault("answers lost", "link")
def answers_lost(ground: Ground) -> Iterator[Strike]:
    """Requests reach the database, and no answer comes back until the lease has run out."""
    yield from _silence(ground, long(ground), "answers", ends=True)


@fault("requests lost", "link")
def requests_lost(ground: Ground) -> Iterator[Strike]:
    """No request reaches the database until the lease has run out."""
    yield from _silence(ground, long(ground), "requests", ends=True)


def _silence(
    ground: Ground, seconds: float, *directions: str, ends: bool = False
) -> Iterator[Strike]:
    """Hold up packets; ``ends`` says that it may end the node."""
    node = ground.serving()
    assert node.link is not None
    if ends:
        node.expect(IO_ERROR)
    node.link.silence(*directions)
    try:
        yield Strike(node.name, seconds)
    finally:
        node.link.heal()
