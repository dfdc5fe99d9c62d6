"""Messages that applications send by SQL, with real nodes that are killed."""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from typing_extensions import override

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect
from orthia.migrations import TableNames
from tests.process.clients import Client
from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import CLI, RENEW_PERIOD_MS, wait_any_serving
from tests.support.servers import (
    LAPSING_NODE_LEASE_MS,
    NODE_LEASE_MS,
    NODE_NETWORK_TIMEOUT_MS,
    SERVER_NAMES,
    url_with_password,
)
from tests.support.waiting import wait_until

_OUTBOX = '<outbox xmlns="urn:orthia"><poll-period>20</poll-period></outbox>'

_STAYS = "<allow-failback>false</allow-failback>"


@dataclass
class OutboxNode(FileNodeProcess):
    """A node that sends the outbox."""

    lease_ms: int = NODE_LEASE_MS

    @property
    @override
    def lease(self) -> str:  # type: ignore[override]
        return (
            f"<jdbc-lock-renew-period>{RENEW_PERIOD_MS}</jdbc-lock-renew-period>"
            f"<jdbc-network-timeout>{NODE_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>"
            f"<jdbc-lock-expiration>{self.lease_ms}</jdbc-lock-expiration>"
        )

    core: str = _OUTBOX
    policy: str = "<failover-on-shutdown>true</failover-on-shutdown>"


class Shop:
    """An application with a business table, in the database of the pair."""

    def __init__(self, s: DatabaseStoreSettings, directory: Path) -> None:
        self.database = Database.from_settings(s)
        self.table = TableNames.from_settings(s).outbox
        url = url_with_password(s)
        self.nodes = [
            OutboxNode(Role.LIVE, url, directory, "live"),
            OutboxNode(Role.BACKUP, url, directory, "backup", policy=_STAYS),
        ]

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a transaction, committed at the end of the block."""
        begin = {"sqlite_begin": "IMMEDIATE"}
        engine = self.database.engine.execution_options(**begin)
        with engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """Give a transaction that is rolled back at the end of the block."""
        with self.transaction() as session:
            yield session
            session.rollback()

    def send(
        self, session: Connection, *bodies: str, to: str = "orders", headers: str | None = None
    ) -> None:
        """Send messages in a transaction."""
        insert = f"INSERT INTO {self.table} (destination, headers, body) VALUES (:to, :headers, :b)"
        for body in bodies:
            session.execute(text(insert), {"to": to, "headers": headers, "b": body.encode()})

    def waiting(self) -> int:
        """Return how many rows wait."""
        with self.transaction() as session:
            return int(session.execute(text(f"SELECT COUNT(*) FROM {self.table}")).scalar_one())

    def close(self) -> None:
        """End all."""
        for node in self.nodes:
            node.end()
        self.database.dispose()


@pytest.fixture
def shop(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Shop]:
    """Give an application beside an empty store of every DBMS."""
    opened = Shop(store_settings, tmp_path)
    yield opened
    opened.close()


def shown_by_status(node: OutboxNode) -> str:
    """Return what ``orthia status`` shows."""
    asked = [*CLI, "status", "--config", str(node.config_path)]
    return subprocess.run(asked, capture_output=True, check=False, timeout=120, text=True).stdout


def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(shop: Shop) -> None:
    """In order, with its headers; also what was sent while no node was live."""
    live = shop.nodes[0].start().wait_serving()
    client = Client(live)
    client.subscribe("orders")
    client.subscribe("/topic/news", ack="auto")
    with shop.transaction() as session:
        shop.send(session, "1", "2", headers='{"kind": "new", "count": 3, "_AMQ_DUPL_ID": "x"}')
        shop.send(session, "3", to="/queue/orders,/topic/news", headers='{"priority": 4}')
        assert not client.hear()
    with shop.rolled_back() as session:
        shop.send(session, "never")
    with shop.transaction() as session:
        shop.send(session, "4", to="/topic/news")
    frames = client.waits(4)
    assert sorted(frame.body for frame in frames) == [b"1", b"3", b"3", b"4"], "one is a duplicate"
    first = next(frame for frame in frames if frame.body == b"1")
    assert (first.headers["kind"], first.headers["count"]) == ("new", "3")
    assert shop.waiting() == 0
    client.close()
    assert live.terminate() == 0
    with shop.transaction() as session:
        shop.send(session, "5", to="later")
    assert "1 row waits, the oldest for" in shown_by_status(live)
    client = Client(shop.nodes[0].start().wait_serving())
    assert client.takes(1, "later") == ["5"]
    live.wait_log("AMQ221007 live live: server is now active under token 2; ")
    client.close()


def test_a_row_that_cannot_be_sent_becomes_a_dead_letter(shop: Shop) -> None:
    """With its reason, and holds nobody up behind it."""
    live = shop.nodes[0].start().wait_serving()
    with shop.transaction() as session:
        shop.send(session, "a", to="/queue/a", headers='{"destination-type": "MULTICAST"}')
        shop.send(session, "b", to="orders", headers='{"expires": "soon"}')
        shop.send(session, "c", to="activemq.management")
        shop.send(session, "d")
    client = Client(live)
    assert client.takes(1, "orders") == ["d"]
    client.subscribe("DLQ")
    letters = {frame.body: frame.headers for frame in client.waits(3)}
    assert "says MULTICAST" in letters[b"a"]["dlqDeliveryFailureCause"]
    assert letters[b"a"]["_AMQ_ORIG_ADDRESS"] == "/queue/a"
    assert "header expires is 'soon'" in letters[b"b"]["dlqDeliveryFailureCause"]
    assert "is for connections" in letters[b"c"]["dlqDeliveryFailureCause"]
    client.close()


@pytest.mark.extended
def test_a_full_address_holds_the_rows_and_not_the_application(shop: Shop) -> None:
    """They are sent in order once there is room."""
    live = shop.nodes[0]
    live.core += (
        '<address-settings><address-setting match="orders"><max-size-messages>2</max-size-messages>'
        "<address-full-policy>FAIL</address-full-policy></address-setting></address-settings>"
    )
    live.start().wait_serving()
    with shop.transaction() as session:
        shop.send(session, *"abcde")
    live.wait_log("rows of the outbox wait")
    wait_until(lambda: shop.waiting() == 3, what="what there is room for is sent")
    wait_until(
        lambda: (
            "outbox    3 rows wait, the oldest for" in shown_by_status(live)
            and "held: address 'orders' may hold max-size-messages 2" in shown_by_status(live)
        ),
        what="`orthia status` says what waits, and why",
    )
    client = Client(live)
    assert client.takes(5, "orders") == [*"abcde"]
    live.wait_log("rows of the outbox are sent again")
    client.close()


@pytest.mark.extended
def test_a_row_that_is_locked_or_taken_back_holds_nobody_up(shop: Shop) -> None:
    """The locked one is sent when it is free; of the other nothing is."""
    is_locking = shop.database.dialect is not Dialect.SQLITE
    live = shop.nodes[0]
    live.core += (
        '<address-settings><address-setting match="full"><max-size-messages>1</max-size-messages>'
        "<address-full-policy>FAIL</address-full-policy></address-setting></address-settings>"
    )
    live.start().wait_serving()
    with shop.transaction() as session:
        shop.send(session, "1", "2", "3", "4", to="full")
        shop.send(session, "5", "6")
    live.wait_log("rows of the outbox wait")
    rows = f"FROM {shop.table} WHERE body ="
    with shop.transaction() as session:
        session.execute(text(f"DELETE {rows} :body"), {"body": b"3"})
    client = Client(live)
    if not is_locking:
        assert client.takes(3, "full") == ["1", "2", "4"]
        assert client.takes(2, "orders") == ["5", "6"]
    else:
        with shop.transaction() as session:
            session.execute(text(f"SELECT 1 {rows} :body FOR UPDATE"), {"body": b"5"})
            assert client.takes(3, "full") == ["1", "2", "4"]
            assert client.takes(1, "orders") == ["6"]
        assert client.takes(1, "orders") == ["5"]
    assert "was deleted before it was sent" in live.log
    client.close()


class Clerk(threading.Thread):
    """Orders things in transactions, every other of which it rolls back."""

    def __init__(self, shop: Shop, number: int, is_over: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.committed: list[str] = []
        self._shop = shop
        self._number = number
        self._is_over = is_over

    def run(self) -> None:
        """Order until it is over."""
        count = 0
        while not self._is_over():
            count += 1
            bodies = [f"{self._number}-{count}-{part}" for part in range(3)]
            if count % 2:
                with self._shop.rolled_back() as session:
                    self._shop.send(session, *bodies)
                continue
            with self._shop.transaction() as session:
                self._shop.send(session, *bodies)
            self.committed += bodies


def kill(serving: OutboxNode) -> None:
    """Kill the live node, and start it again."""
    serving.kill()
    serving.start()


def freeze(serving: OutboxNode, other: OutboxNode) -> None:
    """Freeze the live node until the other serves, and have it start again when it ends."""
    serving.signal(signal.SIGSTOP)
    other.wait_serving()
    serving.signal(signal.SIGCONT)
    serving.exit_code()
    serving.start()


def orders_come_once(
    shop: Shop, times: int, break_node: Callable[[OutboxNode, OutboxNode], None]
) -> None:
    """Order things while live nodes break, and see each order once, clerk by clerk in order."""
    live, backup = shop.nodes
    live.start().wait_serving()
    backup.start().wait_log("AMQ221031")
    over = threading.Event()
    clerks = [Clerk(shop, number, over.is_set) for number in range(2)]
    for clerk in clerks:
        clerk.start()

    def ordered(count: int) -> None:
        wanted = [len(clerk.committed) + count for clerk in clerks]
        wait_until(
            lambda: all(
                len(one.committed) >= most for one, most in zip(clerks, wanted, strict=True)
            ),
            what="more orders",
        )

    try:
        for _ in range(times):
            serving = wait_any_serving(shop.nodes)
            ordered(60)
            nodes = (live, backup) if serving is live else (backup, live)
            break_node(*nodes)
    finally:
        over.set()
        for clerk in clerks:
            clerk.join(120)
    with shop.transaction() as session:
        shop.send(session, "end")
    client = Client(wait_any_serving(shop.nodes))
    client.subscribe("orders", ack="auto")
    wait_until(
        lambda: any(frame.body == b"end" for frame in client.hear()), what="the end of the orders"
    )
    *taken, _ = [frame.body.decode() for frame in client.messages]
    for number, clerk in enumerate(clerks):
        assert [one for one in taken if one.startswith(f"{number}-")] == clerk.committed
    assert len(taken) == sum(len(clerk.committed) for clerk in clerks)
    client.close()


@pytest.mark.extended
def test_each_committed_row_is_delivered_once_though_nodes_are_killed(shop: Shop) -> None:
    """By messages that are there against those that were committed."""
    orders_come_once(shop, 3, lambda serving, _: kill(serving))


@pytest.mark.extended
@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_node_that_thaws_sends_nothing_again(shop: Shop) -> None:
    """Its unit deletes rows under a fence that is no longer its own."""
    for node in shop.nodes:
        node.lease_ms = LAPSING_NODE_LEASE_MS
    orders_come_once(shop, 1, freeze)
