"""A node whose user may do what docs/databases.md grants it and nothing else, on real servers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from sqlalchemy import text

from orthia import migrations
from orthia.broker.client.connection import BrokerAddress, Connection, ServerFrame
from orthia.config.secrets import Secret
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseLockerSettings, DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, PermanentStoreError
from tests.process.documented_users import asked, blocks, execute
from tests.process.nodes import NodeProcess
from tests.process.secured_node import CLI
from tests.support.servers import NODE_LEASE_MS, NODE_NETWORK_TIMEOUT_MS, ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

_GRANT = re.compile(r"GRANT (?P<rights>.*) ON (?P<tables>.*) TO (?P<to>.*)")


class RestrictedNode(NodeProcess):
    """A node that keeps what left its queues for a second, and gives up after two attempts."""

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        path = self.directory / f"{self.name}.xml"
        role = "primary" if self.role is Role.LIVE else "backup"
        path.write_text(
            f"""<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
            <name>{self.name}</name><security-enabled>false</security-enabled>
            <store><database-store><jdbc-connection-url>{escape(self.url)}</jdbc-connection-url>
            <jdbc-lock-renew-period>300</jdbc-lock-renew-period>
            <jdbc-lock-expiration>{NODE_LEASE_MS}</jdbc-lock-expiration>
            <jdbc-network-timeout>{NODE_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>
            <journal-retention xmlns="urn:orthia" period="1" unit="SECONDS"/>
            </database-store></store>
            <ha-policy><shared-store><{role}/></shared-store></ha-policy>
            <address-settings><address-setting match="#">
            <max-delivery-attempts>2</max-delivery-attempts>
            <dead-letter-address>DLQ</dead-letter-address></address-setting></address-settings>
            <acceptors><acceptor name="stomp">tcp://127.0.0.1:{self.port}</acceptor></acceptors>
            </core></configuration>"""
        )
        return [*CLI, "run", str(path)]


class Granted:
    """The tables as their owner made them, and a node's user with the rights of the document."""

    def __init__(self, server: ServerProcess) -> None:
        owner, node, *_ = blocks(server)
        for statement in owner:
            execute(server, statement)
        self.server = server
        self.owner = DatabaseStoreSettings(
            DatabaseUrl.parse(server.url("broker")), "broker", Secret("secret")
        )
        self.database = Database.from_settings(self.owner)
        migrations.upgrade(self.database, self.owner)
        for statement in node:
            execute(server, statement)
        self.node = replace(self.owner, jdbc_user="broker_node")
        self.url = server.url("broker").replace("//", "//broker_node:secret@", 1)
        found = filter(None, map(_GRANT.fullmatch, node))
        self.rights = [
            (right, table, one["to"])
            for one in found
            if set(one["rights"].split(", ")) <= {"SELECT", "INSERT", "UPDATE", "DELETE"}
            for table in one["tables"].split(", ")
            for right in one["rights"].split(", ")
        ]

    def missing(self, node: DatabaseStoreSettings) -> str:
        """Return what a node that starts says is missing."""
        database = Database.from_settings(node)
        try:
            migrations.upgrade(database, node)
        except PermanentStoreError as error:
            return str(error)
        finally:
            database.dispose()
        return ""

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
    live = RestrictedNode(Role.LIVE, granted.url, tmp_path, "live")
    backup = RestrictedNode(Role.BACKUP, granted.url, tmp_path, "backup")
    s = granted.owner
    try:
        live.start().wait_serving()
        backup.start().wait_log("AMQ221031")
        with connected(live) as client:
            send(client, "large", b"x" * 300_000)
            send(client, "later", b"1", AMQ_SCHEDULED_DELAY="1000")
            send(client, "expiring", b"1", expires="1")
            send(client, "once", b"1", _AMQ_DUPL_ID="1")
            send(client, "rejected", b"1")
            send(client, "waits", b"x" * 300_000)
            assert len(receive(client, "large")) == 300_000
            assert receive(client, "later") == b"1"
            assert receive(client, "rejected", "NACK", "NACK") == b"1"
            assert receive(client, "DLQ") == b"1"
        assert granted.rows(s.message_history_table_name)
        live.kill()
        backup.wait_serving()
        with connected(backup) as client:
            send(client, "once", b"2", _AMQ_DUPL_ID="1")
            assert receive(client, "once") == b"1"
            assert len(receive(client, "waits")) == 300_000
        # What was kept longer than a second is pruned by whoever becomes live.
        live.start().wait_serving()
        wait_until(
            lambda: not granted.rows(s.message_history_table_name), what="the history pruned"
        )
        wait_until(
            lambda: "AMQ221010" in asked("failover-log", granted.url).stdout, what="the takeover"
        )
        assert live.terminate() == 0
    finally:
        live.end()
        backup.end()
    for log in (live.log, backup.log):
        assert "denied" not in log


@contextmanager
def connected(node: NodeProcess) -> Iterator[Connection]:
    """Connect to a node, and disconnect with the block."""
    address = BrokerAddress("127.0.0.1", node.port)
    client = Connection.open(address, timeout_seconds=120, heart_beat_ms=0)
    try:
        yield client
    finally:
        client.close()


def awaited(client: Connection, command: str) -> ServerFrame:
    """Wait for the next frame, which is to be this one."""
    frames: list[ServerFrame] = []

    def has_come() -> bool:
        frames.extend(client.exchange(1.0))
        return bool(frames)

    wait_until(has_come, what=command)
    (frame,) = frames
    assert frame.command == command, frame
    return frame


def send(client: Connection, queue: str, body: bytes, **headers: str) -> None:
    """Send a message and wait for its receipt."""
    client.send("SEND", {"destination": f"/queue/{queue}", "receipt": "1", **headers}, body)
    awaited(client, "RECEIPT")


def receive(client: Connection, queue: str, *answers: str) -> bytes:
    """Answer a message as often as it comes, by default with ACK; return its body."""
    asked_for = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"}
    client.send("SUBSCRIBE", asked_for)
    for answer in answers or ("ACK",):
        message = awaited(client, "MESSAGE")
        client.send(answer, {"id": message.headers["ack"]})
    client.send("UNSUBSCRIBE", {"id": "1", "receipt": "2"})
    awaited(client, "RECEIPT")
    return message.body
