"""docs/backup-and-restore.md, tried out: a lost table and a restored dump, with real nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer, Producer
from orthia.config.settings import Role
from orthia.database import Database
from tests.process.nodes import NodeProcess
from tests.support.servers import LEASE_MS, PASSWORD, USER, PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

NETWORK_TIMEOUT_MS = 20_000


@pytest.fixture
def nodes() -> Iterator[list[NodeProcess]]:
    """Give a list whose nodes are killed in the end."""
    started: list[NodeProcess] = []
    yield started
    for node in started:
        node.end()


def url_of(server: ServerProcess, name: str) -> str:
    """Return the URL of a database, with the password as the manual says to write it."""
    return server.url(name).replace("//", f"//{USER}:{quote(PASSWORD, safe='')}@", 1)


def send(node: NodeProcess, count: int) -> None:
    """Send messages and wait for their receipts."""
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=120)
    Producer(link, "/queue/q", body=lambda number: b"m%d" % number, count=count).run()


def receive(node: NodeProcess, count: int) -> int:
    """Receive messages and return how many came."""
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=120)
    return Consumer(link, "/queue/q", count=count).run().confirmed


def orthia(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the CLI."""
    command = [sys.executable, "-m", "orthia.broker.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_pair_that_lost_its_node_manager_store_goes_on_after_a_repair(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess]
) -> None:
    """Nothing that was confirmed is lost, and tokens go on above those of before."""
    name = private_server.create_database()
    url = url_of(private_server, name)
    lease = {"jdbc-lock-expiration": LEASE_MS, "jdbc-network-timeout": NETWORK_TIMEOUT_MS}
    live, backup = (NodeProcess(role, url, tmp_path, role.value, lease) for role in Role)
    nodes += [live, backup]
    live.start().wait_serving()
    backup.start().wait_log("AMQ221031")
    send(live, 100)
    database = Database.from_settings(private_server.settings(name))
    with database.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE NODE_MANAGER_STORE"))
    database.dispose()
    # Neither goes on without it, and a manager that starts them again gets the reason.
    assert live.exit_code() in (74, 78)
    assert backup.exit_code() in (74, 78)
    assert live.start().exit_code() == 78
    wait_until(lambda: "is missing" in live.log, what="the reason is logged")
    assert "table node_manager_store is missing" in live.log.lower()
    assert orthia("db", "current", "--url", url).returncode == 1
    repaired = orthia("db", "upgrade", "--url", url, "--jdbc-lock-expiration", str(LEASE_MS))
    assert repaired.returncode == 0
    assert "repaired: table" in repaired.stdout
    live.start().wait_serving()
    assert receive(live, 100) == 100
    status = orthia("status", "--url", url, "--jdbc-lock-expiration", str(LEASE_MS))
    assert "token 2" in status.stdout


def test_a_restored_dump_is_a_store(tmp_path: Path, nodes: list[NodeProcess]) -> None:
    """pg_dump of a store in use, restored into an empty database: what was there then is there."""
    with PostgresqlServer() as server:
        first, second = server.create_database(), server.create_database()
        live = NodeProcess(Role.LIVE, url_of(server, first), tmp_path, "live")
        nodes.append(live)
        live.start().wait_serving()
        send(live, 100)
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        reach = ["-h", "127.0.0.1", "-p", str(server.port), "-U", USER]
        dump = tmp_path / "orthia.dump"
        for command in (
            ["pg_dump", *reach, "--format=custom", "--no-owner", "-f", str(dump), first],
            ["pg_restore", *reach, "--no-owner", "--exit-on-error", "-d", second, str(dump)],
        ):
            subprocess.run(command, env=environment, check=True, timeout=120)
        live.kill()
        restored = NodeProcess(Role.LIVE, url_of(server, second), tmp_path, "restored")
        nodes.append(restored)
        restored.start().wait_serving()
        assert receive(restored, 100) == 100
