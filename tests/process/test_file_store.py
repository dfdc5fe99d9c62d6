"""A pair of real processes on a shared directory, and what becomes of its clients' messages."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.clients import QUEUE, Consumer, Producer, receive_all, served_through_it
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.nodes import accepts

pytestmark = pytest.mark.extended

HANDS_OVER = "<failover-on-shutdown>true</failover-on-shutdown>"


@pytest.fixture
def pair_on(tmp_path: Path) -> Iterator[FileCluster]:
    """Give a cluster on a directory, with files small enough to be used up."""
    with file_cluster(tmp_path, "<journal-file-size>64K</journal-file-size>") as nodes:
        yield nodes


def test_graceful_stop_without_failover_keeps_the_backup_passive(pair_on: FileCluster) -> None:
    """SIGTERM without failover-on-shutdown pauses the pair; the restarted live node serves on."""
    live, backup = pair_on.pair(failover_on_shutdown=False)
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        receipted = producer.finish()
    assert live.terminate() == 0
    live.start().wait_serving()
    assert not accepts(backup.port)
    receive_all(live.port, QUEUE, receipted)


def test_a_frozen_node_stays_live_until_it_is_killed(pair_on: FileCluster) -> None:
    """SIGSTOP keeps the lock: nobody takes over, and after SIGCONT clients go on as before."""
    live, backup = pair_on.pair()
    with served_through_it(live, backup) as producer:
        live.signal(signal.SIGSTOP)
        other = pair_on.node(Role.LIVE, "other", policy=HANDS_OVER).start()
        other.wait_log("AMQ221034")
        assert not accepts(backup.port)
        assert not accepts(other.port)
        other.terminate()
        live.signal(signal.SIGCONT)
        producer.wait_receipts(20)
        live.signal(signal.SIGSTOP)
        live.kill()
        backup.wait_serving()


def test_a_node_whose_lock_file_is_removed_stops(pair_on: FileCluster) -> None:
    """A lock that locks nobody out any more is lost: exit 74, and the backup goes on."""
    live, backup = pair_on.pair()
    with served_through_it(live, backup):
        (pair_on.store / "journal" / "serverlock.1").unlink()
        assert live.exit_code() == 74
        backup.wait_serving()


def test_a_node_alone_stores_in_files(tmp_path: Path) -> None:
    """Without store and HA policy a node is live on files, and finds them when it returns."""
    with file_cluster(tmp_path) as nodes:
        node = nodes.node(Role.LIVE, "alone", policy="")
        node.start().wait_serving()
        with Producer([node.port], QUEUE) as producer:
            producer.wait_receipts(50)
            receipted = producer.finish()
        node.kill()
        node.start().wait_serving()
        received = receive_all(node.port, QUEUE, receipted)
        assert receipted <= received.redelivered


def test_without_persistence_nothing_is_written(tmp_path: Path) -> None:
    """persistence-enabled false: a loud warning, receipts, deliveries, and not one file."""
    core = "<persistence-enabled>false</persistence-enabled>"
    with file_cluster(tmp_path, core) as nodes:
        node = nodes.node(Role.LIVE, "forgetful", policy=HANDS_OVER)
        node.start().wait_serving().wait_log("NOTHING IS STORED")
        assert node.log.count("NOTHING IS STORED") == 1
        with Producer([node.port], QUEUE) as producer:
            producer.wait_receipts(50)
            receipted = producer.finish()
        receive_all(node.port, QUEUE, receipted)
        with Producer([node.port], QUEUE) as producer:
            producer.wait_receipts(5)
            producer.finish()
        assert not nodes.store.exists()
        assert node.terminate() == 0
        node.start().wait_serving()
        fresh = Consumer(node.port, QUEUE)
        with Producer([node.port], QUEUE, first=1_000_000) as producer:
            producer.wait_receipts(1)
            again = producer.finish()
        fresh.wait_for(lambda c: again <= c.received.keys(), "what is sent now is received")
        fresh.close()
        assert set(fresh.received) == again
