"""What leaves the queues of a real node is in the history: all of it, once, and why and when."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import MetaData, select

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.model.history import ROW_BYTES
from orthia.journal.model.message import decode_message
from orthia.journal.sql.tables import history_table, messages_table
from tests.process.clients import QUEUE, Client, Consumer, Producer
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.locker_stores import HANDS_OVER, store
from tests.process.nodes import told
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

_RETENTION = '<journal-retention xmlns="urn:orthia" period="1" unit="HOURS"/>'
_ADDRESSES = """
<address-settings>
  <address-setting match="jobs"><max-delivery-attempts>2</max-delivery-attempts>
    <dead-letter-address>DLQ</dead-letter-address></address-setting>
  <address-setting match="offers"><expiry-address>ExpiryQueue</expiry-address></address-setting>
</address-settings>
<addresses><address name="prices"><multicast>
  <queue name="asia"/><queue name="europe"/>
</multicast></address></addresses>
"""


class Left(NamedTuple):
    """A message that left a queue: where it was sent to, why it left, and its body."""

    address: str
    reason: str
    body: str


class History:
    """The history as an operator reads it."""

    def __init__(self, database: Database, s: DatabaseStoreSettings) -> None:
        self._database = database
        dialect = database.dialect
        self._table = history_table(MetaData(), s.message_history_table_name, dialect)
        self._messages = messages_table(MetaData(), s.message_table_name, dialect)

    def left(self) -> list[Left]:
        """Return what is kept, sorted."""
        c = self._table.c
        with self._database.engine.connect() as connection:
            rows = connection.execute(select(c.seq, c.reason, c.record)).all()
        messages = [(reason, decode_message(bytes(record), seq)) for seq, reason, record in rows]
        return sorted(Left(one.address, reason, one.body.decode()) for reason, one in messages)

    def queues(self) -> dict[int, int]:
        """Return how many messages left each queue, by the queue's id."""
        found: dict[int, int] = {}
        with self._database.engine.connect() as connection:
            for queue_id in connection.execute(select(self._table.c.queue_id)).scalars():
                found[queue_id] = found.get(queue_id, 0) + 1
        return found

    def is_drained(self) -> bool:
        """Whether no message waits."""
        with self._database.engine.connect() as connection:
            return connection.execute(select(self._messages.c.seq).limit(1)).first() is None

    def in_both(self) -> list[int]:
        """Return what is kept and still in a queue."""
        c = self._table.c
        both = select(c.seq).where(c.seq.in_(select(self._messages.c.seq)))
        with self._database.engine.connect() as connection:
            return list(connection.execute(both).scalars())

    def times_are_of(self, earliest_ms: int) -> bool:
        """Whether each left after it was written, by the database's clock, not before a time."""
        c = self._table.c
        with self._database.engine.connect() as connection:
            times = connection.execute(select(c.written_at, c.removed_at)).all()
        now = self._database.server_now()
        return all(earliest_ms / 1000 <= w.timestamp() and w <= r <= now for w, r in times)


ON_POSTGRESQL = pytest.mark.parametrize("server", ["postgresql"], indirect=True)


@pytest.fixture
def nodes(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[FileCluster]:
    """Give nodes with retention on a fresh database."""
    core = store(tmp_path, store_settings, "lease", more=_RETENTION)
    with file_cluster(tmp_path, core + _ADDRESSES) as cluster:
        yield cluster


@pytest.fixture
def history(store_settings: DatabaseStoreSettings, database: Database) -> History:
    """Give the history of ``nodes``."""
    return History(database, store_settings)


@ON_POSTGRESQL
def test_each_message_that_left_is_kept_once_with_its_reason(
    nodes: FileCluster, history: History
) -> None:
    """Acknowledged, expired, rejected too often, in transactions, of two subscriptions."""
    started_ms = time.time_ns() // 1_000_000
    live = nodes.node(Role.LIVE, "live", policy=HANDS_OVER)
    client = Client(live.start().wait_serving())
    client.send("orders", "taken", "aborted", "committed", "waits")
    client.send("offers", "late", expires=str(started_ms + 1))
    client.send("jobs", "poison")
    client.send("/topic/prices", "1.10")
    client.send("orders", "memory only", persistent="false")

    client.holds(5, "orders")
    acks = {frame.body: frame.headers["ack"] for frame in client.messages}
    client.do("ACK", id=acks[b"taken"])
    client.do("ACK", id=acks[b"memory only"])
    for transaction, body, end in (("t", b"committed", "COMMIT"), ("u", b"aborted", "ABORT")):
        client.do("BEGIN", transaction=transaction)
        client.do("ACK", id=acks[body], transaction=transaction)
        client.do(end, transaction=transaction)
    client.messages.clear()
    client.subscribe("jobs")
    for _ in range(2):
        client.rejects()
    client.subscribe("offers")
    for queue in ("asia", "europe"):
        assert client.takes(1, queue) == ["1.10"]

    expected = [
        Left("jobs", "dead-lettered", "poison"),
        Left("offers", "expired", "late"),
        Left("orders", "acknowledged", "committed"),
        Left("orders", "acknowledged", "taken"),
        Left("prices", "acknowledged", "1.10"),
        Left("prices", "acknowledged", "1.10"),
    ]
    wait_until(lambda: len(history.left()) >= len(expected), what="the history is complete")
    assert history.left() == expected
    assert sorted(history.queues().values()) == [1, 1, 1, 1, 2]
    assert history.in_both() == []
    assert history.times_are_of(started_ms)
    client.close()
    shown = told("queue", "history", "--config", live.config_path)
    assert (shown["messages"], shown["period_seconds"]) == (len(expected), 3_600)
    assert shown["bytes"] > len(expected) * ROW_BYTES


@ON_POSTGRESQL
def test_a_takeover_in_the_middle_keeps_each_message_once(
    nodes: FileCluster, history: History
) -> None:
    """With the live node killed at work, the history holds exactly what left the queue."""
    live, backup = nodes.pair()
    with Producer([live.port, backup.port], QUEUE) as producer:
        consumer = Consumer(live.port, QUEUE)
        consumer.wait_for(lambda c: len(c.order) >= 100, "messages are consumed")
        live.kill()
        backup.wait_serving()
        producer.wait_receipts(50)
        receipted = producer.finish()
    rest = Consumer(backup.port, QUEUE)
    wait_until(history.is_drained, what="an empty queue")
    rest.close()
    left = history.left()
    assert {one.reason for one in left} == {"acknowledged"}
    numbers = Counter(int(one.body.split()[1]) for one in left)
    assert receipted <= numbers.keys()
    # One that was sent again, for want of a receipt, may have been stored twice; none left more
    # often than it was delivered.
    assert numbers <= consumer.received + rest.received
