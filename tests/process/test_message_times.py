"""What has to do with time, over kill -9 of the node that took it: delays, attempts, expiry."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress, Connection, ServerFrame
from tests.conftest import EVERY_DBMS, Servers
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import SqliteServer, url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

CORE = """
<message-expiry-scan-period>200</message-expiry-scan-period>
<address-settings>
  <address-setting match="jobs"><max-delivery-attempts>2</max-delivery-attempts></address-setting>
</address-settings>
"""
DELAYED = 200
DELAY_MS = 4_000
Pair = tuple[NodeProcess, NodeProcess]


@pytest.fixture(params=[*EVERY_DBMS, "files"])
def pair(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup."""
    if request.param == "files":
        core = f"<journal-type>NIO</journal-type>{CORE}"
    else:
        dbms = request.param
        server = SqliteServer(tmp_path) if dbms == "sqlite" else shared_servers(dbms)
        settings = server.settings(server.create_database())
        core = store(tmp_path, settings, "lease", files=False) + CORE
    with file_cluster(tmp_path, core) as nodes:
        yield nodes.pair()


def connect(node: NodeProcess) -> Connection:
    """Return a client of a node."""
    address = BrokerAddress("127.0.0.1", node.port)
    return Connection.open(address, timeout_seconds=120, heart_beat_ms=0)


def receipts(client: Connection, *receipt_ids: str) -> None:
    """Wait for the RECEIPTs of these ids: another's, which comes late, is none of them."""
    missing = set(receipt_ids)

    def have_come() -> bool:
        frames = [frame for frame in client.exchange(0.1) if frame.command == "RECEIPT"]
        missing.difference_update(frame.headers["receipt-id"] for frame in frames)
        return not missing

    wait_until(have_come, what=lambda: f"RECEIPTs of {sorted(missing)}")


def subscribe(client: Connection, queue: str, ack: str = "auto") -> None:
    """Subscribe under the queue's name."""
    client.send("SUBSCRIBE", {"id": queue, "destination": f"/queue/{queue}", "ack": ack})


def messages(client: Connection, count: int) -> list[tuple[float, ServerFrame]]:
    """Return the next MESSAGEs, and when they were here at the latest, in milliseconds."""
    found: list[tuple[float, ServerFrame]] = []

    def have_come() -> bool:
        frames = [frame for frame in client.exchange(0.1) if frame.command == "MESSAGE"]
        found.extend((time.time() * 1000, frame) for frame in frames)
        return len(found) >= count

    wait_until(have_come, what=lambda: f"{count} MESSAGEs, of which {len(found)} are here")
    return found


def test_delays_attempts_and_expiry_survive_a_crash(pair: Pair) -> None:
    """Each delayed message comes once and not early; a second attempt in vain is the last one.

    And what expires in a queue that nobody consumes is moved by the next node.
    """
    live, backup = pair
    client = connect(live)
    client.send("SEND", {"destination": "/queue/jobs", "receipt": "r"}, b"job")
    receipts(client, "r")
    subscribe(client, "jobs", ack="client-individual")
    ((_, job),) = messages(client, 1)
    client.send("NACK", {"id": job.headers["ack"]})
    ((_, again),) = messages(client, 1)
    assert again.headers["redelivered"] == "true"
    for number in range(DELAYED):
        due_ms = int(time.time() * 1000) + DELAY_MS
        headers = {"destination": "/queue/later", "AMQ_SCHEDULED_TIME": str(due_ms)}
        client.send("SEND", {**headers, "receipt": str(number)}, f"{number} {due_ms}".encode())
    expires = {"destination": "/queue/old", "expires": str(int(time.time() * 1000) + DELAY_MS)}
    for number in range(10):
        client.send("SEND", {**expires, "receipt": f"old-{number}"}, b"old")
    later, old = map(str, range(DELAYED)), (f"old-{number}" for number in range(10))
    receipts(client, *later, *old)
    live.kill()
    client.close()
    backup.wait_serving()

    client = connect(backup)
    subscribe(client, "jobs", ack="client-individual")
    ((_, job),) = messages(client, 1)
    client.send("NACK", {"id": job.headers["ack"]})
    subscribe(client, "DLQ")
    ((_, dead),) = messages(client, 1)
    assert (dead.body, dead.headers["_AMQ_ORIG_QUEUE"]) == (b"job", "jobs")
    subscribe(client, "later")
    came = messages(client, DELAYED)
    numbers = [int(frame.body.split()[0]) for _, frame in came]
    assert sorted(numbers) == list(range(DELAYED))
    for now_ms, frame in came:
        assert now_ms >= int(frame.body.split()[1]), "a message came before its time"
    subscribe(client, "ExpiryQueue")
    expired = [frame.body for _, frame in messages(client, 10)]
    assert expired == [b"old"] * 10
    client.close()


@pytest.mark.parametrize("dbms", EVERY_DBMS)
def test_what_waits_is_listed_and_cancelled(
    dbms: str, shared_servers: Servers, tmp_path: Path
) -> None:
    """An operator sees what is due when, and cancels one message of two."""
    server = SqliteServer(tmp_path) if dbms == "sqlite" else shared_servers(dbms)
    settings = server.settings(server.create_database())
    url = url_with_password(settings)
    with cluster(url, tmp_path) as nodes:
        node = nodes.live().wait_serving()
        client = connect(node)
        for delay_ms in (7_200_000, 3_600_000):
            headers = {"destination": "/queue/a", "AMQ_SCHEDULED_DELAY": str(delay_ms)}
            client.send("SEND", {**headers, "receipt": str(delay_ms)}, b"x")
        receipts(client, "7200000", "3600000")
        first, second = scheduled(url)
        assert first["due"] < second["due"]
        assert first["queue"] == "orthia.scheduled.anycast.a"
        broker = ("--broker", f"127.0.0.1:{node.port}")
        arguments = ("queue", "cancel", first["queue"], str(first["message"]), *broker)
        assert orthia(*arguments).returncode == 0
        assert orthia(*arguments).returncode == 1
        assert scheduled(url, first["queue"]) == [second]
        client.close()


def orthia(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command."""
    command = [sys.executable, "-m", "orthia.broker.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def scheduled(url: str, *arguments: str) -> list[dict[str, str]]:
    """Return what the command lists."""
    done = orthia("queue", "scheduled", *arguments, "--url", url, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found
