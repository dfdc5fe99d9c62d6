"""The statements of docs/databases.md: what a newcomer copies works, on real servers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pymysql
import pytest
from sqlalchemy import text

from orthia import migrations
from orthia.broker.client.connection import BrokerAddress, FailoverLink
from orthia.broker.client.traffic import Producer
from orthia.config.secrets import Secret
from orthia.config.settings import DatabaseStoreSettings, Role
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, PermanentStoreError, write_transaction
from tests.process.nodes import NodeProcess
from tests.support.servers import PASSWORD, USER, PostgresqlServer, ServerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "databases.md"


def blocks(server: ServerProcess) -> tuple[list[str], list[str], list[str]]:
    """Return the statements that make the owner, a node's user of fewer rights, and a reader."""
    found = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    own = slice(0, None, 2) if isinstance(server, PostgresqlServer) else slice(1, None, 2)
    owner, node, reader = found[own]
    return _statements(owner), _statements(node), _statements(reader)


def _statements(block: str) -> list[str]:
    text = re.sub(r"--.*", "", block).replace("PASSWORD 'PASSWORD'", "PASSWORD 'secret'")
    # The administrator of the tests' servers is called orthia.
    text = text.replace("BY 'PASSWORD'", "BY 'secret'").replace("orthia", "broker")
    return [part.strip() for part in text.split(";") if part.strip()]


def execute(server: ServerProcess, statement: str) -> None:
    """Execute a statement as the administrator."""
    if isinstance(server, PostgresqlServer):
        # What comes before the database is there is the administrator's own.
        name = "postgres" if statement.startswith("CREATE") else "broker"
        session = psycopg2.connect(
            host="127.0.0.1", port=server.port, user=USER, password=PASSWORD, dbname=name
        )
        session.autocommit = True
        with session.cursor() as cursor:
            cursor.execute(statement)
        session.close()
        return
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user=USER, password=PASSWORD.encode()
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def nodes(private_server: ServerProcess, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Give a list whose nodes are killed in the end."""
    started: list[NodeProcess] = []
    yield started
    for node in started:
        if node.is_running:
            node.kill()


def serve(node: NodeProcess) -> None:
    """Start a node and send it messages, a large one among them."""
    node.start().wait_serving()
    link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=30)
    large = b"x" * 300_000
    Producer(link, "/queue/q", body=lambda number: large if number == 1 else b"", count=3).run()


@pytest.mark.parametrize("restricted", [False, True], ids=["owner", "fewer rights"])
def test_the_documents_statements_make_a_database_for_a_pair(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess], *, restricted: bool
) -> None:
    """Two nodes serve in turn, with tables that they made or that they found."""
    owner, node, _ = blocks(private_server)
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


def test_a_user_without_rights_to_a_table_is_told_before_it_is_needed(
    private_server: ServerProcess,
) -> None:
    """A table that a new version added: a backup would else find out when it takes over."""
    if not isinstance(private_server, PostgresqlServer):
        pytest.skip("rights are those of the database, on tables to come, too")
    owner, node, _ = blocks(private_server)
    for statement in owner:
        execute(private_server, statement)
    url = DatabaseUrl.parse(private_server.url("broker"))
    made = DatabaseStoreSettings(url, "broker", Secret("secret"))
    database = Database.from_settings(made)
    migrations.upgrade(database, made)
    for statement in node:
        execute(private_server, statement)
    restricted = DatabaseStoreSettings(url, "broker_node", Secret("secret"))
    of_a_node = Database.from_settings(restricted)
    try:
        migrations.upgrade(of_a_node, restricted)
        with database.engine.begin() as connection:
            connection.execute(text("REVOKE ALL ON messages_times FROM broker_node"))
            connection.execute(text("REVOKE INSERT, DELETE ON messages FROM broker_node"))
        with pytest.raises(migrations.RightsMissing) as caught:
            migrations.upgrade(of_a_node, restricted)
    finally:
        of_a_node.dispose()
        database.dispose()
    assert (
        "no right to INSERT, DELETE on messages; SELECT, INSERT, UPDATE, DELETE on messages_times"
        in str(caught.value)
    )


def test_the_documents_reader_sees_who_serves_and_no_message(
    private_server: ServerProcess, tmp_path: Path, nodes: list[NodeProcess]
) -> None:
    """``status`` and ``failover-log`` work for it; to read or change more is refused it."""
    owner, _, reader = blocks(private_server)
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
    assert "AMQ221007" in asked("failover-log", looks).stdout
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


def asked(*command: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a command, the last of whose words is the URL."""
    *words, url = command
    result = subprocess.run(
        [sys.executable, "-m", "orthia.broker.cli", *words, "--url", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "ORTHIA_JDBC_PASSWORD": "secret"},
    )
    assert result.returncode == code, result.stderr
    return result
