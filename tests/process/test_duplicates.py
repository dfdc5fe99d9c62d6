"""Duplicate ids across takeovers: a producer that sends again after a lost answer stores once."""

import threading
from pathlib import Path

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer, Producer
from tests.process.file_nodes import file_cluster
from tests.process.nodes import NodeProcess, cluster
from tests.support.waiting import wait_until

QUEUE = "/queue/orders"
COUNT = 3_000


def test_databases(store_url: str, tmp_path: Path) -> None:
    """With a table of messages and ids."""
    with cluster(store_url, tmp_path) as nodes:
        send_through_a_takeover(*nodes.pair())


def test_files(tmp_path: Path) -> None:
    """With the journal's own files, compacted meanwhile."""
    with file_cluster(tmp_path, "<journal-file-size>64K</journal-file-size>") as nodes:
        send_through_a_takeover(*nodes.pair())


def send_through_a_takeover(live: NodeProcess, backup: NodeProcess) -> None:
    """Of messages whose receipts were lost with their node none is there twice, and none is not."""
    addresses = [BrokerAddress("127.0.0.1", node.port) for node in (live, backup)]
    producer = Producer(
        FailoverLink(addresses),
        QUEUE,
        body=lambda number: b"%d" % number,
        count=COUNT,
        outstanding=500,
    )
    sending = threading.Thread(target=producer.run)
    sending.start()
    wait_until(lambda: producer.report.confirmed > COUNT // 6, what="some messages are stored")
    live.kill()
    sending.join(120)
    assert producer.report.complete
    assert producer.report.repeated > 0, "nothing was sent again: the test shows nothing"
    received: list[int] = []
    consumer = Consumer(
        FailoverLink(addresses),
        QUEUE,
        count=None,
        idle_timeout_seconds=3,
        on_message=lambda frame: received.append(int(frame.body)),
    )
    consumer.run()
    assert sorted(received) == list(range(COUNT))
