"""docs/backup-and-restore.md, tried out: a lost table and a restored dump, with real nodes."""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer, Producer
from orthia.database import Database
from tests.process.nodes import NodeProcess, cluster, orthia
from tests.support.servers import LEASE_MS, PASSWORD, USER, PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

NETWORK_TIMEOUT_MS = 20_000


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


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_pair_that_lost_its_node_manager_store_goes_on_after_a_repair(
    private_server: ServerProcess, tmp_path: Path
) -> None:
    """Nothing that was confirmed is lost, and tokens go on above those of before."""
    name = private_server.create_database()
    url = url_of(private_server, name)
    with cluster(url, tmp_path) as nodes:
        live, backup = nodes.pair(
            jdbc_lock_expiration=LEASE_MS, jdbc_network_timeout=NETWORK_TIMEOUT_MS
        )
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
        orthia("db", "current", "--url", url, code=1)
        lease_of = ("--url", url, "--jdbc-lock-expiration", LEASE_MS)
        assert "repaired: table" in orthia("db", "upgrade", *lease_of)
        live.start().wait_serving()
        assert receive(live, 100) == 100
        assert "token 2" in orthia("status", *lease_of)


def test_a_restored_dump_is_a_store(tmp_path: Path) -> None:
    """pg_dump of a store in use, restored into an empty database: what was there then is there."""
    with PostgresqlServer() as server, ExitStack() as stack:
        first, second = server.create_database(), server.create_database()
        live = stack.enter_context(cluster(url_of(server, first), tmp_path)).live()
        live.wait_serving()
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
        restored = stack.enter_context(cluster(url_of(server, second), tmp_path)).live("restored")
        restored.wait_serving()
        assert receive(restored, 100) == 100
