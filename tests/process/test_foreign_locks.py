"""A pair beside a session of somebody else that keeps rows of MESSAGES locked."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from orthia.broker.protocols.amqp.performatives import Source
from orthia.broker.protocols.amqp.values import Symbol
from orthia.config.urls import DatabaseUrl
from tests.conftest import Servers
from tests.process.clients import Client, connecting
from tests.process.nodes import Cluster, NodeProcess, cluster
from tests.support.amqp import AmqpConnection, Delivery, Event
from tests.support.servers import url_with_password
from tests.support.waiting import wait_until

LOCKED = "locked"


@pytest.fixture
def nodes(shared_servers: Servers, tmp_path: Path) -> Iterator[Cluster]:
    """Give nodes on PostgreSQL."""
    server = shared_servers("postgresql")
    name = server.create_database()
    with cluster(url_with_password(server.settings(name)), tmp_path) as made:
        yield made
    server.drop_database(name)


def session_of(node: NodeProcess) -> psycopg2.extensions.connection:
    """Return another session of a node's database."""
    url = DatabaseUrl.parse(node.url).sqlalchemy_url
    return psycopg2.connect(
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        application_name="some GUI",
    )


def acknowledge(client: Client) -> list[str]:
    """Send an ACK of each message that is there; return the receipts that are asked for."""
    return [client.write("ACK", id=frame.headers["ack"]) for frame in client.messages]


def test_a_foreign_lock_ends_nobody(nodes: Cluster) -> None:
    """An acknowledgement waits for an uncommitted DELETE; all else goes on, and it is named."""
    live, backup = nodes.pair()
    with connecting() as connect, closing(session_of(live)) as gui:
        consumer, witness = connect(live), connect(live)
        consumer.send(LOCKED, "0", "1", "2")
        consumer.holds(3, LOCKED)
        cursor = gui.cursor()
        cursor.execute("DELETE FROM messages")
        assert cursor.rowcount == 3
        waiting = acknowledge(consumer)
        # To the same queue and to another, and from that one.
        witness.send(LOCKED, "same")
        witness.send("other", "other")
        witness.takes(1, "other")
        live.wait_log("rows of the journal are locked by session")
        assert f"session {gui.get_backend_pid()} (user " in live.log
        assert "application some GUI" in live.log
        assert not any(consumer.has(one) for one in waiting)
        gui.rollback()
        consumer.answered(*waiting)
        live.wait_log("no other session locks rows of the journal any longer")
        cursor.execute("SELECT COUNT(*) FROM messages")
        assert cursor.fetchone() == (1,)
    assert live.is_running
    assert backup.is_running
    assert "AMQ222010" not in live.log


def test_what_is_put_aside_comes_again_after_a_takeover(nodes: Cluster) -> None:
    """Nobody was told that it is acknowledged; and the next node is not ended either."""
    live, backup = nodes.pair()
    with connecting() as connect, closing(session_of(live)) as gui:
        consumer = connect(live)
        consumer.send(LOCKED, "1")
        consumer.holds(1, LOCKED)
        gui.cursor().execute("SELECT * FROM messages FOR UPDATE")
        waiting = acknowledge(consumer)
        live.wait_log("rows of the journal are locked by session")
        assert not consumer.has(*waiting)
        live.kill()
        consumer = connect(backup.wait_serving())
        assert consumer.holds(1, LOCKED) == ["1"]
        waiting = acknowledge(consumer)
        consumer.send("other", "2")
        assert not consumer.has(*waiting)
        gui.rollback()
        consumer.answered(*waiting)
    assert backup.is_running


def test_a_durable_subscription_that_ends_behind_a_lock_holds_up_nothing(nodes: Cluster) -> None:
    """Of its own STOMP connection: its RECEIPT alone comes once it is deleted."""
    live = nodes.live().wait_serving()
    durable = {"id": "s", "durable_subscription_name": "audit"}
    with connecting() as connect, closing(session_of(live)) as gui:
        client = connect(live, client_id="app")
        client.do("SUBSCRIBE", destination="/topic/news", ack="client", **durable)
        client.send("/topic/news", "0", "1")
        gui.cursor().execute("SELECT * FROM messages FOR UPDATE")
        ended = client.write("UNSUBSCRIBE", **durable)
        live.wait_log("rows of the journal are locked by session")
        client.send("other", "2")
        client.takes(1, "other")
        assert not client.has(ended)
        gui.rollback()
        client.answered(ended)


def test_a_subscription_that_ends_behind_a_lock_holds_up_no_other_link(nodes: Cluster) -> None:
    """Of the same AMQP connection: the subscription's end is answered once it is deleted."""
    live = nodes.live().wait_serving()
    with connecting() as connect, closing(session_of(live)) as gui:
        stomp = connect(live)
        with closing(AmqpConnection.open(live.port, "app")) as amqp:
            audit = amqp.receiver(subscription("news"), 0, "audit")
            stomp.send("/topic/news", "kept")
            gui.cursor().execute("SELECT * FROM messages FOR UPDATE")
            amqp.ask_to_detach(audit, closed=True)
            assert not amqp.exchange(0)
            live.wait_log("rows of the journal are locked by session")
            stomp.send("other", "0")
            amqp.receiver("other", 10)
            assert next_text(amqp).endswith(b"0")
            assert not amqp.is_detached(audit)
            gui.rollback()
            amqp.wait_detached(audit)
            # It is gone with its message: this is another one.
            amqp.receiver(subscription("news"), 10, "audit")
            stomp.send("/topic/news", "new")
            assert next_text(amqp).endswith(b"new")


def test_a_subscription_that_is_made_anew_behind_a_lock_holds_up_its_own_client_alone(
    nodes: Cluster,
) -> None:
    """With another selector: the old one is deleted with its message before the new one is made."""
    live = nodes.live().wait_serving()
    with connecting() as connect, closing(session_of(live)) as gui:
        stomp = connect(live)
        with (
            closing(AmqpConnection.open(live.port, "app")) as amqp,
            closing(AmqpConnection.open(live.port, "another")) as other,
        ):
            amqp.detach(amqp.receiver(subscription("news"), 0, "audit"), closed=False)
            stomp.send("/topic/news", "kept")
            gui.cursor().execute("SELECT * FROM messages FOR UPDATE")
            audit = amqp.ask_for_receiver(subscription("news", "a = '1'"), "audit")
            assert not amqp.exchange(0)
            live.wait_log("rows of the journal are locked by session")
            stomp.send("other", "0")
            other.receiver("other", 10)
            assert next_text(other).endswith(b"0")
            assert not amqp.exchange(0)
            assert not amqp.is_attached(audit)
            gui.rollback()
            amqp.wait_receiver(audit, 10)
            stomp.send("/topic/news", "without")
            stomp.send("/topic/news", "new", a="1")
            assert next_text(amqp).endswith(b"new")


def subscription(topic: str, selector: str | None = None) -> Source:
    """Return the source of a durable subscription."""
    name = Symbol("apache.org:selector-filter:string")
    filters = {} if selector is None else {name: selector}
    return Source(topic, 2, Symbol("never"), filter=filters, capabilities=(Symbol("topic"),))


def next_text(amqp: AmqpConnection) -> bytes:
    """Return the message that comes next, as it is encoded."""
    came: list[Event] = []

    def has_come() -> bool:
        came.extend(amqp.exchange(0.1))
        return bool(came)

    wait_until(has_come, what="a message comes")
    (delivery,) = came
    assert isinstance(delivery, Delivery)
    return delivery.payload
