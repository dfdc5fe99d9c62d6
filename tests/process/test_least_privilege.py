"""A node whose user may do what docs/databases.md grants it and nothing else, on real servers."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import MetaData, func, select, text

from orthia import migrations
from orthia.config.store_settings import DatabaseLockerSettings, DatabaseStoreSettings
from orthia.database import Database, PermanentStoreError, write_transaction
from orthia.journal.sql.tables import history_table
from tests.process.clients import connecting
from tests.process.documented_users import (
    DOCUMENT,
    asked,
    blocks,
    execute,
    make_users,
    opened,
    settings_of,
    url_of,
)
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.support.servers import PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

_GRANT = re.compile(r"GRANT (?P<rights>.*) ON (?P<tables>.*) TO (?P<to>.*)")


CORE = """<address-settings><address-setting match="#">
<max-delivery-attempts>2</max-delivery-attempts>
<dead-letter-address>DLQ</dead-letter-address></address-setting></address-settings>"""
LARGE = "x" * 300_000
OUTBOX = '<outbox xmlns="urn:orthia"/>'
RETENTION = '<journal-retention xmlns="urn:orthia" period="1" unit="SECONDS"/>'


class Granted:
    """The tables as their owner made them, and a node's user with the rights of the document."""

    def __init__(self, server: ServerProcess) -> None:
        make_users(server, 1)
        self.server = server
        self.owner = settings_of(server)
        self.database = Database.from_settings(self.owner)
        self.node = settings_of(server, "broker_node")
        self.url = url_of(server, "broker_node")
        found = filter(None, map(_GRANT.fullmatch, blocks(server)[1]))
        self.rights = [
            (right, table, one["to"])
            for one in found
            if set(one["rights"].split(", ")) <= {"SELECT", "INSERT", "UPDATE", "DELETE"}
            for table in one["tables"].split(", ")
            for right in one["rights"].split(", ")
        ]

    def missing(self, node: DatabaseStoreSettings) -> str:
        """Return what a node that starts says is missing."""
        try:
            with opened(node) as database:
                migrations.upgrade(database, node)
        except PermanentStoreError as error:
            return str(error)
        return ""

    def newest_kept_seconds(self) -> float:
        """Return for how long the history has had its newest message."""
        name = self.owner.message_history_table_name
        removed_at = history_table(MetaData(), name, self.database.dialect).c.removed_at
        with self.database.engine.connect() as connection:
            newest = connection.execute(select(func.max(removed_at))).scalar_one()
        return float((self.database.server_now() - newest).total_seconds())

    def rows(self, table: str) -> int:
        """Return how many rows there are."""
        with self.database.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one())


@pytest.fixture
def granted(private_server: ServerProcess) -> Iterator[Granted]:
    """Give the tables and the user."""
    granted = Granted(private_server)
    yield granted
    granted.database.dispose()


def test_each_right_of_the_document_is_needed_and_missed_by_name(granted: Granted) -> None:
    """When a node starts: a backup would else find out when it takes over."""
    assert granted.missing(granted.node) == ""
    assert len(granted.rights) > 20
    for right, table, to in granted.rights:
        name = table.rpartition(".")[2]
        execute(granted.server, f"REVOKE {right} ON {table} FROM {to}")
        found = granted.missing(granted.node)
        if right == "SELECT" and "denied" in found:  # what is there is read first
            assert name in found, table
        else:
            assert f"no right to {right} on {name}." in found, (right, table)
        execute(granted.server, f"GRANT {right} ON {table} TO {to}")
    assert granted.missing(granted.node) == ""
    with_locker = replace(granted.node, locker=DatabaseLockerSettings())
    assert "no right to insert on node_manager_store." in granted.missing(with_locker).lower()


def test_those_rights_are_all_a_pair_needs(granted: Granted, tmp_path: Path) -> None:
    """To store, deliver, schedule, give up on, keep and prune messages, large ones too."""
    s = granted.owner
    core = store(tmp_path, granted.node, "lease", more=RETENTION) + CORE + OUTBOX
    with file_cluster(tmp_path, core) as nodes, connecting() as connect:
        live, backup = nodes.pair()
        client = connect(live)
        client.send("large", LARGE)
        client.send("later", "1", AMQ_SCHEDULED_DELAY="1000")
        client.send("expiring", "1", expires="1")
        client.send("once", "1", _AMQ_DUPL_ID="1")
        client.send("rejected", "1")
        client.send("waits", LARGE)
        outbox = migrations.TableNames.from_settings(s).outbox
        with write_transaction(granted.database.engine, "send") as session:
            session.execute(text(f"INSERT INTO {outbox} (destination, body) VALUES ('sent', '1')"))
        assert client.takes(1, "sent") == ["1"]
        assert client.takes(1, "large") == [LARGE]
        assert client.takes(1, "later") == ["1"]
        client.messages.clear()
        client.subscribe("rejected")
        client.rejects()
        client.rejects()
        assert client.takes(1, "DLQ") == ["1"]
        assert granted.rows(s.message_history_table_name)
        live.kill()
        client = connect(backup.wait_serving())
        client.send("once", "2", _AMQ_DUPL_ID="1")
        assert client.takes(1, "once") == ["1"]
        assert client.takes(1, "waits") == [LARGE]
        # What was kept longer than a second is pruned by whoever becomes live.
        wait_until(lambda: granted.newest_kept_seconds() > 1, what="all was kept for a second")
        live.start().wait_serving()
        wait_until(
            lambda: not granted.rows(s.message_history_table_name), what="the history pruned"
        )
        wait_until(lambda: "AMQ221010" in asked("failover-log", granted.url), what="the takeover")
        assert live.terminate() == 0
        for node in (live, backup):
            assert "denied" not in node.log


_SENDS = re.compile(r"GRANT (?:EXECUTE|INSERT \(destination)[^;]*?TO app;")


def test_an_application_needs_one_right_and_has_no_other(private_server: ServerProcess) -> None:
    """To the function or procedure, or to insert; it sees nothing of what it sends."""
    is_postgresql = isinstance(private_server, PostgresqlServer)
    make_users(private_server)
    table = migrations.TableNames.from_settings(settings_of(private_server)).outbox
    insert = f"INSERT INTO {table} (destination, headers, body) VALUES ('q', NULL, 'x')"
    if is_postgresql:
        document = (DOCUMENT.parent / "outbox.md").read_text()
        execution, insertion = (one[0] for one in _SENDS.finditer(document))
        ways = [(execution, "SELECT orthia_send('q', 'x')"), (insertion, insert)]
        make, to = "CREATE ROLE {} LOGIN PASSWORD 'secret'", "{}"
    else:
        columns = "GRANT INSERT (DESTINATION, HEADERS, BODY) ON broker.ORTHIA_OUTBOX TO app;"
        execution = "GRANT EXECUTE ON PROCEDURE broker.ORTHIA_SEND TO app;"
        ways = [(execution, "CALL ORTHIA_SEND('q', 'x', NULL)"), (columns, insert)]
        make, to = "CREATE USER '{}'@'%' IDENTIFIED BY 'secret'", "'{}'@'%'"
    for number, (grant, statement) in enumerate(ways):
        user = f"app{number}"
        execute(private_server, make.format(user))
        execute(private_server, grant.replace("TO app;", f"TO {to.format(user)}"))
        with opened(settings_of(private_server, user)) as database:
            with write_transaction(database.engine, "send") as session:
                session.execute(text(statement))
            others = [other for _, other in ways if other != statement]
            for refused in (*others, f"SELECT * FROM {table}", f"DELETE FROM {table}"):
                with (
                    pytest.raises(PermanentStoreError, match="denied"),
                    write_transaction(database.engine, "do more") as session,
                ):
                    session.execute(text(refused))
