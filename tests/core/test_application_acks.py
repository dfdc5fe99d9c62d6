"""Messages that applications acknowledge in their own transactions, and what their queues do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, text

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.queue.counters import QueueCounters
from orthia.journal.engine import acks
from tests.core.stored_node import StoredNode
from tests.core.support import ANYONE, settings
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.support import SqlJournalStore
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)


@pytest.fixture
def node(sql_store: SqlJournalStore) -> StoredNode:
    """Give a node on an empty store."""
    return StoredNode(sql_store, settings())


def acknowledge(connection: Connection, seqs: Sequence[int]) -> None:
    """Do what an application does with the ids of its messages."""
    call = "SELECT" if connection.dialect.name == "postgresql" else "CALL"
    for seq in seqs:
        connection.execute(text(f"{call} orthia_ack(:id)"), {"id": str(seq)})


@contextmanager
def application(node: StoredNode) -> Iterator[Connection]:
    """Give a session of an application, whose transaction is committed at the end."""
    assert isinstance(node.store, SqlJournalStore)
    with node.store.database.engine.begin() as connection:
        yield connection


def acknowledged(node: StoredNode, *texts: str) -> None:
    """Acknowledge stored messages in a transaction, and commit it."""
    node.store.settle(node.journal)
    found: dict[str, int] = {}
    for queue in node.broker.queues().values():
        for message in node.store.window(node.journal, queue.id).messages:
            found[message.record.body.decode()] = message.seq
    with application(node) as connection:
        acknowledge(connection, [found[text] for text in texts])


def waiting(node: StoredNode) -> int:
    """Return how many acknowledgements are in the table."""
    with application(node) as connection:
        is_postgresql = connection.dialect.name == "postgresql"
        name = "orthia_acks" if is_postgresql else "ORTHIA_ACKS"
        return int(connection.execute(text(f"SELECT COUNT(*) FROM {name}")).scalar_one())


def wait_until_pruned(node: StoredNode) -> None:
    """Wait until no acknowledgement is in the table."""

    def is_pruned() -> bool:
        node.journal.delete([], lambda: None)  # so that the loop goes on
        return not waiting(node)

    node.store.loop.run_until(is_pruned, "all acknowledgements are pruned")


def counters(node: StoredNode) -> QueueCounters:
    """Return those of the queue."""
    return node.broker.queues()[node.queue].counters


def test_what_an_application_acknowledged_leaves_its_consumer(node: StoredNode) -> None:
    """That is credit again, and the client may acknowledge it all the same."""
    node.send(*"abcd")
    consumer = node.consume(2, prefetch=2)
    acknowledged(node, "a")
    node.wait_for(consumer, 3)
    assert consumer.texts == ["a", "b", "c"]
    assert [one.record.body for one in consumer.told_settled] == [b"a"]
    node.acknowledge(consumer, "a", "b")
    node.wait_for(consumer, 4)
    assert node.stored() == ["c", "d"]
    wait_until_pruned(node)
    assert counters(node).acknowledged == 2
    assert node.depth() == 2
    acks = node.journal.acks
    assert acks is not None
    wait_until(lambda: acks.status.settled == 1, what="it says so")
    assert acks.status.waiting == 0


@pytest.mark.parametrize("how", ["rejected", "closed"])
def test_what_comes_back_is_delivered_again_unless_it_was_acknowledged(
    node: StoredNode, how: str
) -> None:
    """In its order, before anything newer, and to any consumer."""
    node.send(*"abcdef")
    first = node.consume(4, prefetch=4)
    second = node.consume(2, prefetch=2)
    seqs = [one.seq for one in first.take("b", "d")]
    second.end.close()
    # Without a turn of the loop, so that nobody has told it of them.
    with application(node) as connection:
        acknowledge(connection, seqs)
    if how == "closed":
        first.end.close()
    else:
        first.reject(*"abcd")
        first.end.close()
    third = node.consume(4)
    assert third.texts == ["a", "c", "e", "f"]
    assert [one.redelivered for one in third.received] == [True] * 4
    node.acknowledge(third)
    wait_until_pruned(node)
    assert node.stored() == []
    assert counters(node).acknowledged == 6


def test_a_late_commit_takes_a_message_out_of_its_queue(node: StoredNode) -> None:
    """A consumer lost its connection, and its transaction commits when the message is back."""
    node.send(*"abc")
    with application(node) as connection:
        first = node.consume(2, prefetch=2)
        acknowledge(connection, [one.seq for one in first.take("a")])
        first.end.close()
        node.store.settle(node.journal)
    node.store.loop.run_until(lambda: node.depth() == 2, "one has left")
    wait_until_pruned(node)
    assert node.consume(2).texts == ["b", "c"]


def test_what_came_back_is_settled_at_once_and_what_nobody_had_when_it_is_told_again(
    node: StoredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of what nobody has is on its way out: its client acknowledged it, too."""
    monkeypatch.setattr(acks, "_AGAIN_SECONDS", 10_000.0)
    node.send("a")
    acknowledged(node, "a")
    journal_acks = node.journal.acks
    assert journal_acks is not None
    wait_until(lambda: journal_acks.status.waiting == 1, what="it is known")
    node.store.settle(node.journal)
    assert node.depth() == 1
    node.send("b")
    with application(node) as connection:
        consumer = node.consume(2, prefetch=2)
        acknowledge(connection, [one.seq for one in consumer.take("b")])
        consumer.end.close()
        node.store.settle(node.journal)
    node.store.loop.run_until(lambda: node.depth() == 0, "both came back, and have left")


def test_a_late_commit_takes_out_what_could_not_become_a_dead_letter(
    sql_store: SqlJournalStore,
) -> None:
    """The open transaction has locked the message, so it stays in its queue."""
    node = StoredNode(sql_store, settings(max_delivery_attempts=1))
    node.send("a")
    consumer = node.consume(1)
    with application(node) as connection:
        acknowledge(connection, [consumer.take("a")[0].seq])
        consumer.reject("a")
        unsettled = node.broker.queues()[node.queue].unsettled

        def is_back() -> bool:
            node.journal.delete([], lambda: None)  # so that the loop goes on
            return bool(unsettled.delayed)

        node.store.loop.run_until(is_back, "it is back")
        consumer.end.close()
    wait_until_pruned(node)
    assert node.stored() == []
    assert node.depth() == 0


def test_what_was_acknowledged_while_no_node_was_live_is_never_delivered(node: StoredNode) -> None:
    """The next live node deletes it before anybody can consume."""
    node.send(*"abcd", "shared")
    first = node.consume(3, prefetch=3)
    seqs = [one.seq for one in first.take("a", "c")]
    node.journal.close(drain=False)
    with application(node) as connection:
        acknowledge(connection, seqs)
    node = node.take_over()
    assert waiting(node) == 0
    assert node.consume(3).texts == ["b", "d", "shared"]
    assert node.depth() == 3


def test_a_transaction_that_outlives_its_node_takes_its_message_along(node: StoredNode) -> None:
    """It commits after the takeover, before the message is delivered again."""
    node.send(*"abc")
    with application(node) as connection:
        first = node.consume(2, prefetch=2)
        acknowledge(connection, [one.seq for one in first.take("b")])
        node = node.take_over()
        assert node.depth() == 3
    node.store.loop.run_until(lambda: node.depth() == 2, "one has left")
    assert node.consume(2).texts == ["a", "c"]
    wait_until_pruned(node)


def test_each_subscriber_acknowledges_its_own_copy(sql_store: SqlJournalStore) -> None:
    """The copies of one message have ids of their own."""
    node = StoredNode(sql_store, settings())
    subscribers = [
        node.consume(0, destination=f"/topic/news::{name}", prefetch=1) for name in ("one", "two")
    ]
    node.send("x", destination="/topic/news")
    for subscriber in subscribers:
        node.wait_for(subscriber, 1)
    ids = {one.received[0].seq for one in subscribers}
    assert len(ids) == 2
    with application(node) as connection:
        acknowledge(connection, sorted(ids))
    wait_until_pruned(node)
    assert sql_store.rows() == {}


def test_what_a_transaction_of_the_client_has_waits_for_its_end(node: StoredNode) -> None:
    """Whether it commits or aborts, the message is gone afterwards, once."""
    node.send(*"ab")
    consumer = node.consume(2)
    taken = consumer.take(*"ab")
    consumer.end.set_aside(taken)
    acknowledged(node, "a", "b")
    acks = node.journal.acks
    assert acks is not None
    wait_until(lambda: acks.status.waiting == 2, what="both are found")
    node.store.loop.run_posted()
    assert consumer.told_settled == []
    consumer.end.put_back(taken[1:])
    work = TransactionWork(acknowledgements={consumer.end: taken[:1]})
    done: list[int] = []
    for _ in node.broker.commit(ANYONE, work, lambda: done.append(1)):
        pass
    wait_until_pruned(node)
    assert done == [1]
    assert [one.seq for one in consumer.told_settled] == [taken[1].seq]
    assert node.depth() == 0
    assert node.stored() == []


def test_a_non_destructive_queue_keeps_its_messages(sql_store: SqlJournalStore) -> None:
    """Nobody acknowledges these, also not over a takeover; nor do they hold up others."""
    node = StoredNode(sql_store, settings("orders", default_non_destructive=True))
    node.send("a")
    node.send("b", destination="/queue/other")
    node.consume(1)
    node.consume(1, destination="/queue/other")
    acknowledged(node, "a")
    acknowledged(node, "b")

    def is_settled() -> bool:
        node.journal.delete([], lambda: None)  # so that the loop goes on
        acks = node.journal.acks
        return acks is not None and waiting(node) <= 1 and not acks.status.waiting

    node.store.loop.run_until(is_settled, "the reader has left what stays")
    node = node.take_over()
    assert node.consume(1).texts == ["a"]
    assert waiting(node) == 1


@pytest.mark.parametrize("where", ["in memory", "in the table", "beside a selector"])
def test_what_no_consumer_has_had_is_gone_once_it_is_acknowledged(
    sql_store: SqlJournalStore, where: str
) -> None:
    """Its id came from a look into the queue; the others are delivered in their order."""
    is_paged = where == "in the table"
    node = StoredNode(sql_store, settings(max_size_messages=1) if is_paged else settings())
    node.send(*"abcd")
    if where == "beside a selector":
        node.consume(0, selector="a = 1")
    acknowledged(node, "b", "d")
    wait_until_pruned(node)
    assert node.stored() == ["a", "c"]
    assert node.depth() == 2
    assert counters(node).acknowledged == 2
    assert node.consume(2).texts == ["a", "c"]


def test_the_second_processing_of_a_redelivery_fails(node: StoredNode) -> None:
    """Whoever has it already when the first one commits, or comes later, cannot acknowledge it."""
    node.send("a")
    with application(node) as connection:
        first = node.consume(1)
        (seq,) = (one.seq for one in first.received)
        acknowledge(connection, [seq])
        first.end.close()
        second = node.consume(1)
        assert [one.seq for one in second.received] == [seq], "its id stays"
    for _ in range(2):
        with (
            pytest.raises(sa.exc.IntegrityError, match=f"message {seq} "),
            application(node) as connection,
        ):
            acknowledge(connection, [seq])
        wait_until_pruned(node)
    assert [one.seq for one in second.told_settled] == [seq]
