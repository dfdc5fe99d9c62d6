"""The statements of docs/databases.md: what a newcomer copies works, on real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from orthia import migrations
from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Producer
from orthia.config.secrets import Secret
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, PermanentStoreError, write_transaction
from tests.process.documented_users import asked, blocks, execute
from tests.process.nodes import NodeProcess
from tests.support.servers import PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def nodes(private_server: ServerProcess, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Give a list whose nodes are killed in the end."""
    started: list[NodeProcess] = []
    yield started
    for node in started:
        node.end()


def serve(node: NodeProcess) -> None:
    """Start a node and send it messages, a large one among them."""
    node.start().wait_serving()
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=120)
    large = b"x" * 300_000
    Producer(link, "/queue/q", body=lambda number: large if number == 1 else b"", count=3).run()


@pytest.mark.parametrize("restricted", [False, True], ids=["owner", "fewer rights"])
def test_the_documents_statements_make_a_database_for_a_pair(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess], *, restricted: bool
) -> None:
    """Two nodes serve in turn, with tables that they made or that they found."""
    owner, node, *_ = blocks(private_server)
    for statement in owner:
        execute(private_server, statement)
    user = "broker"
    if restricted:
        user = "broker_node"
        made = DatabaseStoreSettings(
            DatabaseUrl.parse(private_server.url("broker")), "broker", Secret("secret")
        )
        database = Database.from_settings(made)
        migrations.upgrade(database, made)
        database.dispose()
        for statement in node:
            execute(private_server, statement)
    url = private_server.url("broker").replace("//", f"//{user}:secret@", 1)
    live = NodeProcess(Role.LIVE, url, tmp_path, "live")
    backup = NodeProcess(Role.BACKUP, url, tmp_path, "backup")
    nodes += [live, backup]
    serve(live)
    backup.start().wait_log("AMQ221031")
    live.kill()
    backup.wait_serving()
    assert backup.terminate() == 0


@pytest.fixture
def made(private_server: ServerProcess) -> Iterator[tuple[DatabaseStoreSettings, Database]]:
    """Give a database with the owner and the tables of the document, and the owner's settings."""
    for statement in blocks(private_server)[0]:
        execute(private_server, statement)
    url = DatabaseUrl.parse(private_server.url("broker"))
    made = DatabaseStoreSettings(url, "broker", Secret("secret"))
    database = Database.from_settings(made)
    migrations.upgrade(database, made)
    yield made, database
    database.dispose()


@pytest.mark.parametrize(
    ("table", "command"),
    [
        ("node_manager_store", ("status",)),
        ("node_manager_store_version", ("status",)),
        ("failover_log", ("failover-log",)),
    ],
)
def test_a_reader_with_one_right_less_is_told_which(
    private_server: ServerProcess,
    made: tuple[DatabaseStoreSettings, Database],
    table: str,
    command: tuple[str, ...],
) -> None:
    """By the name of the table, and with the exit code of a configuration that cannot work."""
    reader, to = blocks(private_server)[2], "broker_reader"
    if not isinstance(private_server, PostgresqlServer):
        table, to = f"broker.{table.upper()}", "'broker_reader'@'%'"
    for statement in reader:
        execute(private_server, statement)
    execute(private_server, f"REVOKE SELECT ON {table} FROM {to}")
    looks = private_server.url("broker").replace("//", "//broker_reader@", 1)
    refused = asked(*command, looks, code=78)
    assert "denied" in refused.stderr
    assert table.rpartition(".")[2] in refused.stderr


def test_a_copier_reads_every_table_and_changes_none(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess]
) -> None:
    """What the sources of the pipeline and ``queue list`` need; one table less is told of."""
    owner, _, _, copier = blocks(private_server)
    for statement in owner:
        execute(private_server, statement)
    url = private_server.url("broker")
    live = NodeProcess(Role.LIVE, url.replace("//", "//broker:secret@", 1), tmp_path, "live")
    nodes.append(live)
    serve(live)
    for statement in copier:
        execute(private_server, statement)
    copies = url.replace("//", "//broker_copier@", 1)
    assert "q" in asked("queue", "list", copies).stdout
    wait_until(lambda: "AMQ221007" in asked("failover-log", copies).stdout, what="its first event")
    made = DatabaseStoreSettings(DatabaseUrl.parse(url), "broker_copier", Secret("secret"))
    database = Database.from_settings(made)
    try:
        with database.engine.connect() as connection:
            names = migrations.TableNames.from_settings(made)
            for table in (names.messages, names.large_messages, names.history, names.message_times):
                connection.execute(text(f"SELECT COUNT(*) FROM {table}"))
        with (
            pytest.raises(PermanentStoreError, match="denied"),
            write_transaction(database.engine, "take a message") as connection,
        ):
            connection.execute(text(f"DELETE FROM {names.messages}"))
    finally:
        database.dispose()
    if isinstance(private_server, PostgresqlServer):
        execute(private_server, "REVOKE SELECT ON messages FROM broker_copier")
        assert "denied for table messages" in asked("queue", "list", copies, code=78).stderr


def test_the_documents_reader_sees_who_serves_and_no_message(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess]
) -> None:
    """``status`` and ``failover-log`` work for it; to read or change more is refused it."""
    owner, _, reader, _ = blocks(private_server)
    for statement in owner:
        execute(private_server, statement)
    url = private_server.url("broker")
    live = NodeProcess(Role.LIVE, url.replace("//", "//broker:secret@", 1), tmp_path, "live")
    nodes.append(live)
    serve(live)
    for statement in reader:
        execute(private_server, statement)
    looks = url.replace("//", "//broker_reader@", 1)
    assert "live" in asked("status", looks).stdout
    wait_until(lambda: "AMQ221007" in asked("failover-log", looks).stdout, what="its first event")
    refused = asked("queue", "list", looks, code=78)
    assert "denied" in refused.stderr
    made = DatabaseStoreSettings(DatabaseUrl.parse(url), "broker_reader", Secret("secret"))
    database = Database.from_settings(made)
    try:
        with (
            pytest.raises(PermanentStoreError, match="denied"),
            write_transaction(database.engine, "take the lock") as connection,
        ):
            connection.execute(text("UPDATE NODE_MANAGER_STORE SET ID = ID"))
    finally:
        database.dispose()
