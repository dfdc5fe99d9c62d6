"""What clients see of a node that is stopped: all that was stored is answered, and no ERROR."""

import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.node.exit_codes import ExitCode
from orthia.config.settings import Role
from orthia.journal import JournalLimits
from tests.process.clients import Consumer, Producer, connect, receive_all
from tests.process.nodes import Cluster, NodeProcess, cluster
from tests.support.servers import NODE_LEASE_MS
from tests.support.stomp_py import Listener
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["postgresql"], indirect=True),
]

QUEUE = "/queue/orders"
CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"


@pytest.fixture
def nodes(store_url: str, tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on a fresh database."""
    with cluster(store_url, tmp_path) as ground:
        yield ground


def send_until_the_end(node: NodeProcess, before_stop: int) -> tuple[bytes, float]:
    """Send messages as fast as they are taken, have the node stop; return all it said, and when.

    That is when it was told to stop, by the monotonic clock.
    """
    said = bytearray()
    number, waiting, told_at = 0, b"", 0.0
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as client:
        client.sendall(CONNECT)
        client.setblocking(False)
        while True:
            if not waiting:
                head = b"SEND\ndestination:%b\nreceipt:%d\n\n" % (QUEUE.encode(), number)
                waiting = head + b"message %d\0" % number
                number += 1
            readable, writable, _ = select.select([client], [client], [], 60)
            assert readable or writable, "the node neither takes nor says anything"
            if readable:
                data = client.recv(65_536)
                if not data:
                    return bytes(said), told_at
                said += data
            elif writable:
                waiting = waiting[client.send(waiting) :]
            if not told_at and said.count(b"RECEIPT\n") >= before_stop:
                told_at = time.monotonic()
                node.signal(signal.SIGTERM)


def test_a_stop_leaves_no_sender_in_doubt(nodes: Cluster) -> None:
    """What is stored is receipted, what is not receipted is not stored, and nobody reads ERROR."""
    live = nodes.node(Role.LIVE, "live").start().wait_serving()
    said, told_at = send_until_the_end(live, before_stop=500)
    assert live.exit_code() == ExitCode.OK
    stopped_seconds = time.monotonic() - told_at
    frames = [
        frame.lstrip(b"\n").partition(b"\n")[0] for frame in said.split(b"\0") if frame.strip()
    ]
    assert set(frames) == {b"CONNECTED", b"RECEIPT"}
    receipted = {int(found) for found in re.findall(rb"receipt-id:(\d+)", said)}
    again = nodes.node(Role.LIVE, "again").start().wait_serving()
    consumer = Consumer(again.port, QUEUE)
    consumer.wait_for(lambda c: receipted <= c.received.keys(), "what was receipted is there")
    with socket.create_connection(("127.0.0.1", again.port), timeout=60) as last:
        end = max(receipted) + 1_000_000
        last.sendall(CONNECT + b"SEND\ndestination:%b\n\nmessage %d\0" % (QUEUE.encode(), end))
        consumer.wait_for(lambda c: end in c.received, "the queue is at its end")
    consumer.close()
    stored = consumer.received.keys() - {end}
    if "not everything was stored in time" in live.log:
        # What it says is what it could not answer, however long it may try.
        assert stopped_seconds >= JournalLimits().drain_timeout_ms / 1000
        assert stored >= receipted
    else:
        assert stored == receipted


def test_a_stop_looks_to_a_library_like_a_node_that_is_gone(nodes: Cluster) -> None:
    """An idle consumer and an idle producer of stomp.py are disconnected, and told nothing else."""
    live = nodes.node(Role.LIVE, "live").start().wait_serving()
    witnesses = [Listener(), Listener()]
    consuming, _ = [connect([live.port], one) for one in witnesses]
    consuming.subscribe(QUEUE, id="1", ack="client")
    assert live.terminate() == ExitCode.OK
    wait_until(lambda: all(one.is_over for one in witnesses), what="both are disconnected")
    assert [one.seen for one in witnesses] == [[], []]


def test_an_operator_hands_over_and_back_and_no_message_is_lost(nodes: Cluster) -> None:
    """Each node is the backup afterwards; without a backup that waits nothing happens."""
    live = nodes.node(Role.LIVE, "live")
    live.program = "tests.process.handing_node"
    live.start().wait_serving()
    live.signal(signal.SIGUSR1)
    live.wait_log("not handed over: no backup waits")
    backup = nodes.node(Role.BACKUP, "backup")
    backup.program = "tests.process.handing_node"
    backup.start()
    sent: set[int] = set()
    for number, (giver, taker) in enumerate([(live, backup), (backup, live)], 1):
        taker.wait_log("AMQ221031")  # the giver hands over to nobody who is not announced
        with Producer([giver.port, taker.port], QUEUE, first=1_000_000 * number) as producer:
            producer.wait_receipts(50)
            giver.signal(signal.SIGUSR1)
            taker.wait_serving()
            giver.wait_log("handed over to ")
            producer.wait_receipts(100)
            sent |= producer.finish()
        found = re.findall(r"^handed over to (\S+) in ([0-9.]+) s", giver.log, re.MULTILINE)
        assert taker.name in found[-1][0]
        assert float(found[-1][1]) < NODE_LEASE_MS / 1000
        assert giver.is_running
    assert sent <= receive_all(live.port, QUEUE, sent).received.keys()
