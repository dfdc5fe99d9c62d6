"""A replay sends every message exactly once, whoever dies."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.client.checkpoint import Checkpoint
from orthia.broker.client.connection import (
    BrokerAddress,
    BrokerUnreachable,
    Connection,
    ConnectionLost,
    ServerFrame,
)
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.replay import Replay, ReplayMessage
from tests.process.clients import take_all
from tests.process.nodes import Cluster, NodeProcess, cluster

pytestmark = pytest.mark.extended

QUEUE = "/queue/again"
TOTAL = 60


@pytest.fixture
def pair_on(tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on a fresh database."""
    with cluster(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as nodes:
        yield nodes


def link(*nodes: NodeProcess, patience_seconds: float = 120) -> FailoverLink:
    """Return a link to whichever of ``nodes`` serves."""
    addresses = [BrokerAddress("127.0.0.1", node.port) for node in nodes]
    return FailoverLink(addresses, patience_seconds=patience_seconds, heart_beat_ms=0)


def replaying(link: FailoverLink, name: str, tmp_path: Path, **options: Any) -> Replay:
    """Return a replay whose checkpoint is in the test's directory."""
    checkpoint = Checkpoint(tmp_path / f"{name}.secret", name)
    return Replay(link, name, messages, checkpoint=checkpoint, **options)


def messages(through: int) -> Iterable[ReplayMessage]:
    """Give the messages above a place."""
    for place in range(through + 1, TOTAL + 1):
        yield ReplayMessage(place, QUEUE, {"number": f"{place}"}, f"body {place}".encode())


def received(node: NodeProcess) -> list[int]:
    """Take everything out of the queue; return the numbers in order."""
    return [int(frame.headers["number"]) for frame in take_all(node.port, QUEUE)]


class KilledError(Exception):
    """Stands for the end of the sender's process."""


class LossyLink(FailoverLink):
    """Loses the connection in place of every third receipt, once the broker has sent it."""

    receipts = 0

    def connect(self) -> Connection:
        """Connect, to lose it."""
        connection = super().connect()
        exchange = connection.exchange

        def lossy(timeout_seconds: float) -> list[ServerFrame]:
            frames = exchange(timeout_seconds)
            for _ in (frame for frame in frames if frame.command == "RECEIPT"):
                self.receipts += 1
                if self.receipts % 3 == 0:
                    raise ConnectionLost("the receipt was on its way")
            return frames

        connection.exchange = lossy  # type: ignore[method-assign]
        return connection


def test_a_takeover_in_the_middle_repeats_and_loses_nothing(
    pair_on: Cluster, tmp_path: Path
) -> None:
    """The live node is killed with a chunk under way; each message arrives once, in order."""
    live, backup = pair_on.pair()
    seen: list[int] = []

    def kill_after_two_chunks(count: int) -> None:
        seen.append(count)
        if len(seen) == 2:
            live.kill()

    replay = replaying(link(live, backup), "one", tmp_path, chunk=10, on_sent=kill_after_two_chunks)
    assert replay.run().through == TOTAL
    assert received(backup) == list(range(1, TOTAL + 1))


def test_a_sender_that_died_goes_on_where_it_was(pair_on: Cluster, tmp_path: Path) -> None:
    """The next run with the same name sends the rest, a third one nothing."""
    live = pair_on.live().wait_serving()

    def die(count: int) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        replaying(link(live), "one", tmp_path, chunk=10, on_sent=die).run()
    again = replaying(link(live), "one", tmp_path, chunk=10).run()
    assert (again.sent, again.through) == (TOTAL - 10, TOTAL)
    assert replaying(link(live), "one", tmp_path).run().sent == 0
    assert Counter(received(live)) == Counter(range(1, TOTAL + 1))
    assert replaying(link(live), "another", tmp_path).run().sent == TOTAL


def test_a_lost_receipt_of_a_commit_repeats_nothing(pair_on: Cluster, tmp_path: Path) -> None:
    """Whether a chunk was stored is asked, not guessed."""
    live = pair_on.live().wait_serving()
    address = BrokerAddress("127.0.0.1", live.port)
    lossy = LossyLink([address], patience_seconds=120, heart_beat_ms=0)
    assert replaying(lossy, "one", tmp_path, chunk=10).run().through == TOTAL
    assert lossy.reconnects >= 2
    assert received(live) == list(range(1, TOTAL + 1))


def test_the_rate_is_kept(pair_on: Cluster, tmp_path: Path) -> None:
    """Sixty messages at a hundred a second take more than half a second."""
    live = pair_on.live().wait_serving()
    report = replaying(link(live), "slow", tmp_path, rate=100, chunk=5).run()
    assert report.elapsed_seconds >= TOTAL / 100


def test_no_broker_is_said_so(tmp_path: Path) -> None:
    """Nothing is read before a node is found."""
    nobody = FailoverLink([BrokerAddress("127.0.0.1", 9)], patience_seconds=0)
    with pytest.raises(BrokerUnreachable):
        Replay(
            nobody,
            "one",
            lambda _: pytest.fail("messages were read"),
            checkpoint=Checkpoint(tmp_path / "one.secret", "one"),
        ).run()
