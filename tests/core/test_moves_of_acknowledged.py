"""Messages that are moved at the moment in which an application acknowledges them: one of both."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.management.views import JobKind, JobState
from orthia.journal import MessageJournal, Unit
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.records import RemovalReason
from tests.core.stored_node import StoredNode
from tests.core.support import settings
from tests.core.test_application_acks import (
    acknowledge,
    application,
    counters,
    wait_until_pruned,
)
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.management.support import OnStore
from tests.support.servers import SERVER_NAMES

pytestmark = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)


def commit(node: StoredNode, *seqs: int) -> None:
    """Acknowledge messages by SQL, and commit that."""
    with application(node) as connection:
        acknowledge(connection, seqs)


@contextmanager
def unheard(node: StoredNode) -> Iterator[None]:
    """Tell nobody what applications acknowledge, as long as the block lasts."""
    acks = node.journal.acks
    assert acks is not None
    listener = acks._listener
    assert listener is not None
    acks.listen(lambda _, __: None)
    yield
    acks.listen(listener)


def run_until_gone(node: StoredNode, *queues: str) -> None:
    """Wait until what was acknowledged is gone; none of these queues has anything."""
    wait_until_pruned(node)
    for name in queues:
        queue = node.broker.queues().get(name)
        assert queue is None or queue.depth == 0, name
    assert isinstance(node.store, SqlJournalStore)
    assert node.store.rows() == {}


# --- in the core


@pytest.mark.parametrize("how", ["rejected", "closed"])
def test_a_dead_letter_that_was_acknowledged_meanwhile_is_in_no_queue(
    sql_store: SqlJournalStore, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It came back, was found unacknowledged, and the commit comes before it is moved."""
    node = StoredNode(sql_store, settings(max_delivery_attempts=1))
    node.send("a", "b")
    consumer = node.consume(2)
    first = consumer.take("a")[0].seq
    posted = node.store.loop.posted
    consumer.reject("a", "b")
    if how == "closed":
        consumer.end.close()
    while node.store.loop.posted == posted:  # the look for acknowledgements is answered
        pass
    commit(node, first)
    node.store.loop.run_until(lambda: node.depth() == 0, "neither is there any more")
    letters = node.consume(1, destination="/queue/DLQ")
    assert letters.texts == ["b"]
    node.acknowledge(letters)
    run_until_gone(node, "orders", "DLQ")
    assert counters(node).dead_lettered == 1
    assert counters(node).acknowledged == 1
    assert "cannot be moved" not in caplog.text


def test_what_expires_while_it_is_acknowledged_is_in_no_queue(sql_store: SqlJournalStore) -> None:
    """The consumer gave it back in time, and it expired before it could be delivered again."""
    node = StoredNode(sql_store, settings())
    node.send("a", expires_ms=node.broker.parts.timers.time_ms() + 400)
    consumer = node.consume(1)
    first = consumer.take("a")[0].seq
    with application(node) as connection:
        acknowledge(connection, [first])
        consumer.end.close()
        node.store.settle(node.journal)
        queue = node.broker.queues()["orders"]
        node.store.loop.run_until(
            lambda: _is_back(node) and queue.counters.redelivered == 1, "it is back"
        )
        while node.broker.parts.timers.time_ms() < consumer.received[0].record.expires_ms:
            pass
    other = node.consume(0)
    run_until_gone(node, "orders", "ExpiryQueue")
    assert other.received == []


def _is_back(node: StoredNode) -> bool:
    node.journal.delete([], lambda: None)  # so that the loop goes on
    return not node.broker.queues()["orders"].undecided


def test_an_operator_moves_only_what_was_not_acknowledged(sql_store: SqlJournalStore) -> None:
    """The messages beside it are moved all the same."""
    managed = OnStore(StoredNode(sql_store, settings()))
    node = managed.node
    node.send("x", destination="/queue/other")
    node.send(*"abcd")
    consumer = node.consume(4)
    seqs = [one.seq for one in consumer.take("b", "c")]
    with unheard(node):
        with application(node) as connection:
            acknowledge(connection, seqs)
            consumer.end.close()
            node.store.loop.run_until(lambda: _is_back(node), "they are back")
        job = managed.job(JobKind.MOVE, target="other")
    assert (job.state, job.done, job.left) == (JobState.DONE, 2, 2)
    assert managed.texts("other") == ["x", "a", "d"]
    wait_until_pruned(node)
    assert managed.texts("orders") == []
    assert node.depth() == 0


def test_a_scheduled_message_that_was_acknowledged_is_never_delivered(
    sql_store: SqlJournalStore,
) -> None:
    """Before it is due, and at the moment in which it is."""
    node = StoredNode(sql_store, settings())
    now_ms = node.broker.parts.timers.time_ms()
    node.send_all([_later("a", now_ms + 200), _later("b", now_ms + 3_600_000)])
    with unheard(node):
        commit(node, *sql_store.rows())
        while node.broker.parts.timers.time_ms() < now_ms + 300:
            pass
        node.pass_time(1)
        consumer = node.consume(0)
        for _ in range(3):  # it is read, and refused
            node.store.settle(node.journal)
    run_until_gone(node, "orders")
    assert consumer.received == []


def _later(text: str, due_ms: int) -> OutgoingMessage:
    stated = encode_fields(Fields(delivery_ms=due_ms))
    return OutgoingMessage(b"", text.encode(), True, 0, 4, encoding=NO_HEAD, stated=stated)


# --- in the journal


def move(journal: MessageJournal, seq: int, told: list[object], *, copy: bool = True) -> None:
    """Move a message of the one queue to the other; ``told`` gets what becomes of it."""
    unit = Unit(lambda: told.append(seq))
    unit.refused = told.append
    if copy:
        unit.add_message([OTHER_QUEUE], payload(str(seq)))
    (location,) = (one.location for one in _windowed(journal, seq))
    unit.move(location, RemovalReason.DEAD_LETTERED)
    journal.append_unit(unit)


def _windowed(journal: MessageJournal, seq: int):  # type: ignore[no-untyped-def]
    return journal.windows.window(QUEUE, seq - 1, seq, 1, 1_000_000).messages


def test_of_a_batch_only_the_move_of_what_was_acknowledged_is_refused(
    sql_store: SqlJournalStore,
) -> None:
    """In its place in the order; all that is stored with it is stored once."""
    journal = sql_store.open()
    seqs = sql_store.append(journal, *"abcdef")
    with sql_store.database.engine.begin() as connection:
        acknowledge(connection, [seqs[1], seqs[4]])
    told: list[object] = []
    for seq in seqs:
        move(journal, seq, told, copy=seq != seqs[4])
    sql_store.loop.run_until(lambda: len(told) == len(seqs), "all are answered")
    assert [type(one).__name__ for one in told] == [
        *("int", "AcknowledgedBefore", "int", "int", "AcknowledgedBefore", "int")
    ]
    assert f"message {seqs[1]}" in str(told[1])
    assert sql_store.bodies(journal, OTHER_QUEUE) == [str(seqs[n]) for n in (0, 2, 3, 5)]
    assert sql_store.bodies(journal) == ["b", "e"]
    assert sql_store.failures == []


def test_whoever_is_second_loses(sql_store: SqlJournalStore) -> None:
    """Moves and acknowledgements of the same messages at once: each has one of both."""
    journal = sql_store.open()
    count = 150
    seqs = sql_store.append(journal, *map(str, range(count)))
    refused: dict[int, str] = {}

    def application_works() -> None:
        for seq in reversed(seqs):
            try:
                with sql_store.database.engine.begin() as connection:
                    acknowledge(connection, [seq])
            except sa.exc.IntegrityError as error:
                refused[seq] = str(error)

    told: list[object] = []
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(application_works)
        for number, seq in enumerate(seqs):
            if any(_windowed(journal, seq)):
                move(journal, seq, told)
            else:
                told.append(seq)
            sql_store.loop.run_until(lambda n=number: len(told) > n, "it is answered")  # type: ignore[misc]
        working.result()
    moved = {int(body) for body in sql_store.bodies(journal, OTHER_QUEUE)}
    assert moved == set(refused), "each was moved, or acknowledged"
    assert all(f"message {seq} is in no queue" in text for seq, text in refused.items())
    assert 0 < len(moved) < count
    assert sql_store.failures == []
