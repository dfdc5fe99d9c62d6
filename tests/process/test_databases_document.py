"""The statements of docs/databases.md: what a newcomer copies works, on real servers."""

from pathlib import Path

import pytest
from sqlalchemy import text

from orthia import migrations
from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Producer
from orthia.config.settings import Role
from orthia.database import PermanentStoreError, write_transaction
from tests.process.documented_users import (
    asked,
    blocks,
    execute,
    make_users,
    opened,
    settings_of,
    url_of,
)
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended


NODE, READER, COPIER = 1, 2, 3
"""Places in ``blocks``."""


def serve(node: NodeProcess) -> None:
    """Start a node and send it messages, a large one among them."""
    node.start().wait_serving()
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=120)
    large = b"x" * 300_000
    Producer(link, "/queue/q", body=lambda number: large if number == 1 else b"", count=3).run()


@pytest.mark.parametrize("user", ["broker", "broker_node"])
def test_the_documents_statements_make_a_database_for_a_pair(
    private_server: ServerProcess, tmp_path: Path, user: str
) -> None:
    """Two nodes serve in turn, with tables that they made or that they found."""
    if user == "broker":
        for statement in blocks(private_server)[0]:
            execute(private_server, statement)
    else:
        make_users(private_server, NODE)
    with cluster(url_of(private_server, user), tmp_path) as nodes:
        live = nodes.node(Role.LIVE, "live")
        serve(live)
        backup = nodes.backup().wait_log("AMQ221031")
        live.kill()
        backup.wait_serving()
        assert backup.terminate() == 0


@pytest.mark.parametrize(
    ("table", "command"),
    [
        ("node_manager_store", ("status",)),
        ("node_manager_store_version", ("status",)),
        ("failover_log", ("failover-log",)),
    ],
)
def test_a_reader_with_one_right_less_is_told_which(
    private_server: ServerProcess, table: str, command: tuple[str, ...]
) -> None:
    """By the name of the table, and with the exit code of a configuration that cannot work."""
    make_users(private_server, READER)
    to = "broker_reader"
    if not isinstance(private_server, PostgresqlServer):
        table, to = f"broker.{table.upper()}", "'broker_reader'@'%'"
    execute(private_server, f"REVOKE SELECT ON {table} FROM {to}")
    looks = url_of(private_server, "broker_reader", password=False)
    refused = asked(*command, looks, code=78)
    assert "denied" in refused
    assert table.rpartition(".")[2] in refused


def test_who_only_reads_sees_what_is_granted_and_changes_nothing(
    private_server: ServerProcess, tmp_path: Path
) -> None:
    """The reader who serves, the copier every message; each is told what it may not read."""
    make_users(private_server, READER, COPIER)
    looks, copies = (
        url_of(private_server, user, password=False) for user in ("broker_reader", "broker_copier")
    )
    with cluster(url_of(private_server, "broker"), tmp_path) as nodes:
        serve(nodes.node(Role.LIVE, "live"))
        assert "live" in asked("status", looks)
        assert "q" in asked("queue", "list", copies)
        for url in (looks, copies):
            wait_until(
                lambda url=url: "AMQ221007" in asked("failover-log", url),  # type: ignore[misc]
                what="its first event",
            )
        assert "denied" in asked("queue", "list", looks, code=78)
        of_copier = settings_of(private_server, "broker_copier")
        names = migrations.TableNames.from_settings(of_copier)
        with opened(of_copier) as database, database.engine.connect() as connection:
            for table in (names.messages, names.large_messages, names.history, names.message_times):
                connection.execute(text(f"SELECT COUNT(*) FROM {table}"))
        for user, statement in (
            ("broker_copier", f"DELETE FROM {names.messages}"),
            ("broker_reader", "UPDATE NODE_MANAGER_STORE SET ID = ID"),
        ):
            with (
                opened(settings_of(private_server, user)) as database,
                pytest.raises(PermanentStoreError, match="denied"),
                write_transaction(database.engine, "change something") as connection,
            ):
                connection.execute(text(statement))
        if isinstance(private_server, PostgresqlServer):
            execute(private_server, "REVOKE SELECT ON messages FROM broker_copier")
            assert "denied for table messages" in asked("queue", "list", copies, code=78)
