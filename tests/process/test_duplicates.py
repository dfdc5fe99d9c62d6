"""Duplicate ids across takeovers: a producer that sends again after a lost answer stores once."""

from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Producer
from tests.conftest import Servers
from tests.process.clients import QUEUE, connecting, take_all
from tests.process.file_nodes import file_cluster
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import pair_on
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

COUNT = 3_000


@pytest.mark.parametrize("place", ["files", "postgresql"])
def test_what_is_sent_again_is_stored_once(
    place: str, shared_servers: Servers, tmp_path: Path
) -> None:
    """Of messages whose receipts were lost with their node none is there twice, and none is not."""
    core = "<journal-file-size>64K</journal-file-size>"
    with pair_on(place, core, shared_servers, tmp_path) as (live, backup):
        send_through_a_takeover(live, backup)


def send_through_a_takeover(live: NodeProcess, backup: NodeProcess) -> None:
    """Kill the live node amid what a producer sends, and take all from the other."""
    addresses = [BrokerAddress("127.0.0.1", node.port) for node in (live, backup)]

    def kill_amid_them(number: int) -> None:
        # The producer goes on sending to the node that it has not missed yet.
        if number == COUNT // 6:
            live.kill()

    report = Producer(
        FailoverLink(addresses, patience_seconds=120, heart_beat_ms=0),
        QUEUE,
        body=lambda number: b"%d" % number,
        count=COUNT,
        outstanding=500,
        on_confirmed=kill_amid_them,
    ).run()
    assert report.complete
    assert report.repeated > 0, "nothing was sent again: the test shows nothing"
    received = sorted(int(frame.body) for frame in take_all(backup.port, QUEUE))
    assert received == list(range(COUNT))


def test_queues_that_go_take_no_id_that_is_new(tmp_path: Path) -> None:
    """Over kill -9: what is sent again is known, though its queue is empty and may be deleted."""
    core = """
    <address-queue-scan-period>100</address-queue-scan-period>
    <address-settings><address-setting match="#">
      <auto-delete-queues>true</auto-delete-queues></address-setting></address-settings>
    """
    with file_cluster(tmp_path, core) as nodes:
        live, backup = nodes.pair()
        with connecting() as connect:
            client = connect(live)
            client.send("once", "sent", _AMQ_DUPL_ID="1")
            assert client.takes(1, "once") == ["sent"]
            client.send("plain", "there")
            live.kill()
            client = connect(backup.wait_serving())
            assert client.takes(1, "plain") == ["there"]
            wait_gone(backup, "plain", 1)
            for number in range(2, 4):  # with looks of the successor before each and after
                client.send("plain", "looked at")
                assert client.takes(1, "plain") == ["looked at"]
                wait_gone(backup, "plain", number)
                client.send("once", "sent again", _AMQ_DUPL_ID="1")
            client.send("once", "another", _AMQ_DUPL_ID="2")
            assert client.takes(1, "once") == ["another"]


def wait_gone(node: NodeProcess, queue: str, times: int) -> None:
    """Return when a node has said so often that it deleted a queue that nobody uses."""
    said = f"queue '{queue}' is deleted: nobody uses it"
    wait_until(lambda: node.log.count(said) == times, what=f"{queue} to go, for time {times}")
