"""What operators do, on every store there is, and on the next node, too."""

import time

import pytest

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.errors import BrokerError, LimitExceeded
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.views import JobKind, JobState, TransactionState
from orthia.broker.protocols.amqp.sections import (
    Properties,
    data_prefix,
    encode_application_properties,
    encode_properties,
    header_of,
    message_annotations_of,
    sections_of,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import Int
from orthia.config.settings import Settings
from orthia.journal import Unit
from orthia.journal.model.encodings import NO_HEAD, SECOND_ENCODING
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import Message, encode_message
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS, FakeConsumer, settings
from tests.journal.conftest import store as store
from tests.journal.support import JournalStore
from tests.management.support import OPERATOR, OnStore

HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture
def managed(store: JournalStore) -> OnStore:
    """Give a node on an empty store."""
    return OnStore(StoredNode(store, SETTINGS))


# --- what is delivered later


def later(text: str, in_ms: int, kind: str = "even") -> OutgoingMessage:
    """Return a message that is not due for a while."""
    stated = encode_fields(Fields(delivery_ms=NOW_MS + in_ms, properties={"kind": kind}))
    return OutgoingMessage(
        b"",
        text.encode(),
        persistent=True,
        expires_ms=0,
        priority=4,
        encoding=NO_HEAD,
        stated=stated,
    )


def schedule(managed: OnStore, number: int = 6) -> None:
    """Send so many to ``orders``, the latest one first, and two to ``news``."""
    kinds = ("even", "odd")
    managed.node.send_all(
        [later(f"m{one}", (number - one) * HOUR_MS, kinds[one % 2]) for one in range(number)]
    )
    managed.node.send_all([later("n0", HOUR_MS // 2), later("n1", 9 * HOUR_MS)], "/topic/news")


def test_what_is_scheduled_is_listed_by_when_it_is_due_and_paged(managed: OnStore) -> None:
    """Of all destinations or of a queue, and what a selector matches; on the next node, too."""
    managed.node.send("now")
    schedule(managed)
    for _ in range(2):
        facade = managed.management
        whole = managed.run(facade.scheduled(OPERATOR))
        assert whole.next is None
        due = [one.due_ms for one in whole.messages]
        assert due == sorted(due)
        hours = [0.5, 1, 2, 3, 4, 5, 6, 9]
        assert due == [NOW_MS + int(one * HOUR_MS) for one in hours]
        first = whole.messages[0]
        assert (first.destination, first.address, first.recurring) == ("/topic/news", "news", False)
        pages, after = [], None
        while True:
            page = managed.run(facade.scheduled(OPERATOR, "orders", "kind = 'odd'", after, 2))
            pages.append([(one.due_ms - NOW_MS) // HOUR_MS for one in page.messages])
            after = page.next
            if after is None:
                break
        assert pages == [[1, 3], [5]]
        assert managed.run(facade.queue(OPERATOR, "orders")).scheduled == 6
        managed = managed.take_over()
        managed.run(facade_is_counted(managed))


async def facade_is_counted(managed: OnStore) -> None:
    """Wait until all is counted that an earlier node left."""
    facade = managed.management
    while any(not one.is_counted for one in managed.node.broker.queues().values()):
        await facade.count(OPERATOR, "orders", "a = 1")


def test_one_scheduled_message_is_cancelled_by_its_id(managed: OnStore) -> None:
    """Once; another id is no scheduled message, also if a queue has it."""
    managed.node.send("now")
    schedule(managed, 3)
    facade = managed.management
    first, second, *_ = managed.run(facade.scheduled(OPERATOR, "orders")).messages
    managed.run(facade.cancel_scheduled(OPERATOR, first.id))
    (waiting,) = managed.run(facade.browse(OPERATOR, "orders")).messages
    for stale in (first.id, waiting.id, 4711):
        with pytest.raises(NotFound, match=f"no scheduled message '{stale}'"):
            managed.run(facade.cancel_scheduled(OPERATOR, stale))
    managed = managed.take_over()
    left = managed.run(managed.management.scheduled(OPERATOR, "orders")).messages
    assert left[0] == second
    assert len(left) == 2
    for wrong in ("x", "1", "1.x", "9" * 30 + ".1"):
        with pytest.raises(WrongArgument, match="is no place"):
            managed.run(managed.management.scheduled(OPERATOR, after=wrong))


def test_scheduled_messages_are_cancelled_moved_and_changed_by_jobs(managed: OnStore) -> None:
    """By selector; what is moved is delivered at once, what gets a priority is due as before."""
    managed.node.send("now", "now too")
    schedule(managed, 6)
    assert managed.job(JobKind.CANCEL, selector="kind = 'odd'").done == 3
    name = "orthia.scheduled.anycast.orders"
    with pytest.raises(NotPossible, match="none of them came from another queue"):
        managed.job(JobKind.RETRY, name)
    (first, *_) = managed.run(managed.management.scheduled(OPERATOR, "orders")).messages
    job = managed.job(JobKind.PRIORITY, name, ids=[first.id], priority=9)
    assert (job.state, job.done) == (JobState.DONE, 1)
    again, second, third = managed.run(managed.management.scheduled(OPERATOR, "orders")).messages
    assert (again.due_ms, again.priority) == (first.due_ms, 9)
    assert managed.job(JobKind.MOVE, name, ids=[second.id], target="orders").done == 1
    assert managed.texts("orders") == ["now", "now too", "m2"]
    assert managed.job(JobKind.COPY, name, ids=[third.id], target="orders").done == 1
    assert managed.job(JobKind.CANCEL, None, address="news").done == 2
    managed = managed.take_over()
    managed.run(facade_is_counted(managed))
    left = managed.run(managed.management.scheduled(OPERATOR)).messages
    assert [one.due_ms for one in left] == [first.due_ms, third.due_ms]
    assert managed.texts("orders") == ["now", "now too", "m2", "m0"]
    assert managed.job(JobKind.EXPIRE, name).done == 2
    assert managed.texts("ExpiryQueue") == ["m4", "m0"]  # the one of priority 9 first
    assert managed.run(managed.management.scheduled(OPERATOR)).messages == ()
    assert managed.node.broker.depths()[name] == 0


# --- operations on many messages of queues of every kind


def trimmed(managed: OnStore, depth: int) -> None:
    """Wait until a ring has no more than it keeps, in the store, too."""
    queue = managed.node.broker.queues()["orders"]
    managed.node.store.loop.run_until(lambda: queue.depth == depth, "the ring is trimmed")
    managed.node.store.settle(managed.node.journal)


RING = settings(max_size_messages=20)


@pytest.mark.parametrize("options", [SETTINGS, RING], ids=["in memory", "paged"])
@pytest.mark.parametrize("priority", [4, 7])
def test_a_ring_gives_messages_from_its_middle(
    store: JournalStore, options: Settings, priority: int
) -> None:
    """What is left is trimmed and delivered in order, here and on the next node."""
    managed = OnStore(StoredNode(store, options))
    managed.run(managed.management.create_queue(OPERATOR, "orders", options={"ring_size": 60}))
    managed.node.send("first", destination="/queue/other", priority=priority)
    texts = [f"{number}{'ab'[number % 2]}" for number in range(100)]
    for one in texts:
        managed.node.send(one, headers=f"kind:{one[-1]}\n".encode(), priority=priority)
    trimmed(managed, 60)
    assert managed.texts("orders") == texts[40:]
    assert managed.job(JobKind.MOVE, selector="kind = 'b'", target="other").done == 30
    assert managed.texts("orders") == texts[40::2]
    more = [f"more{number}" for number in range(40)]
    managed.node.send(*more, priority=priority)
    left = [*texts[40::2], *more][-60:]
    trimmed(managed, 60)
    assert managed.texts("orders") == left
    page = managed.run(managed.management.browse(OPERATOR, "orders"))
    ids = [one.id for one in page.messages][3:5]
    assert managed.job(JobKind.DELETE, ids=ids).done == 2
    del left[3:5]
    consumer = managed.node.consume(5, prefetch=5)
    assert consumer.texts == left[:5]
    assert managed.job(JobKind.COPY, target="other").done == 58
    managed = managed.take_over()
    managed.run(facade_is_counted(managed))
    assert managed.texts("orders") == left
    assert managed.texts("other") == ["first", *texts[41::2], *left]
    assert managed.job(JobKind.PURGE).done == 58
    queue = managed.node.broker.queues()["orders"]
    assert (queue.depth, queue.log.stored_bytes) == (0, 0)


# --- messages that came by AMQP


def test_operators_see_and_move_messages_of_amqp(managed: OnStore) -> None:
    """A body is said as what it is; whatever is done with a message, its body stays as it was."""
    said = encode_properties(Properties(message_id="ID:1", subject="order"))
    said += encode_application_properties({"size": Int(3)})
    a_map = encode_described(0x77, encode({"a": 1}))
    heads = [(said + text_prefix(4), b"text"), (said, a_map), (said + data_prefix(2), b"\0\xff")]
    managed.node.send_all(
        [
            OutgoingMessage(
                head, body, persistent=True, expires_ms=0, priority=4, encoding=SECOND_ENCODING
            )
            for head, body in heads
        ]
    )
    shown = [("text", b"text"), ("map", b'{"a":1}'), ("bytes", b"\0\xff")]

    def seen(queue: str) -> list[tuple[str, bytes | None]]:
        page = managed.run(managed.management.browse(OPERATOR, queue, "size = 3", body_bytes=1_000))
        assert [one.properties["JMSType"] for one in page.messages] == ["order"] * 3
        return [(one.body_kind, one.body) for one in page.messages]

    assert seen("orders") == shown
    managed.run(managed.management.create_queue(OPERATOR, "DLQ"))
    assert managed.job(JobKind.MOVE, selector="JMSMessageID = 'ID:1'", target="DLQ").done == 3
    managed = managed.take_over()
    assert seen("DLQ") == shown
    first = managed.run(managed.management.browse(OPERATOR, "DLQ")).messages[0]
    assert (first.origin_queue, first.origin_address) == ("orders", "orders")
    assert managed.job(JobKind.PRIORITY, "DLQ", selector="size = 3", priority=7).done == 3
    assert managed.job(JobKind.RETRY, "DLQ").done == 3
    assert seen("orders") == shown
    consumer = managed.node.consume(3, prefetch=3)
    records = [one.record for one in consumer.received]
    assert [(record.priority, record.body) for record in records] == [
        (7, body) for _, body in heads
    ]
    for record, (head, _) in zip(records, heads, strict=True):
        sections = sections_of(record.head)
        assert header_of(record.head, sections).priority == 7
        assert not message_annotations_of(record.head, sections)
        assert record.head.endswith(head)


# --- prepared transactions

XID = Xid(1, b"global", b"branch")


def in_doubt(managed: OnStore, options: Settings = SETTINGS) -> OnStore:
    """Return the next node, where a transaction is in doubt: two acknowledged, two sent."""
    managed.node.send("first", destination="/queue/others")
    managed.node.send("a", "b", "c", "d", "e")
    managed.node.send("high", "higher", priority=7)
    consumer = managed.node.consume(7, prefetch=7)
    unit = Unit()
    for reference in consumer.take("b", "higher"):
        assert reference.location is not None
        unit.delete(reference.location)
    queues = managed.node.broker.queues()
    ids = [queues["orders"].id, queues["others"].id]
    unit.add_message(ids, encode_message(Message("orders", b"", b"both", 1, 0, 4)))
    unit.add_message(ids[1:], encode_message(Message("others", b"", b"one", 1, 0, 4)))
    stored: list[bool] = []
    XaTransactions(managed.node.journal).prepare(XID, unit, lambda: stored.append(True))
    managed.node.store.loop.run_until(lambda: stored, "the transaction is prepared")
    managed = managed.take_over(options)
    managed.run(facade_is_counted(managed))
    return managed


READ = pytest.mark.parametrize("read", ["nothing", "all", "a selector", "paged"])


def reading(managed: OnStore, read: str) -> FakeConsumer | None:
    """Have a consumer read on over what is held back, or nobody."""
    if read in ("nothing", "paged"):
        return None
    selector = "kind = 'none'" if read == "a selector" else None
    consumer = managed.node.consume(0 if selector else 5, selector=selector)
    managed.run(facade_is_counted(managed))
    return consumer


@READ
def test_a_prepared_transaction_is_committed_by_an_operator(managed: OnStore, read: str) -> None:
    """What it acknowledged is gone, what it sent is there, also on the next node."""
    managed = in_doubt(managed, RING if read == "paged" else SETTINGS)
    consumer = reading(managed, read)
    facade = managed.management
    (view,) = managed.run(facade.transactions(OPERATOR))
    assert (view.state, view.sends, view.acknowledges) == (TransactionState.PREPARED, 2, 2)
    managed.run(facade.commit_transaction(OPERATOR, view.id))
    assert managed.run(facade.transactions(OPERATOR)) == ()
    with pytest.raises(NotFound, match="no prepared transaction"):
        managed.run(facade.commit_transaction(OPERATOR, view.id))
    left = ["high", "a", "c", "d", "e", "both"]
    if read == "all":
        assert consumer is not None
        managed.node.wait_for(consumer, 6)
        assert consumer.texts == left
    is_resolved(managed, left, ["first", "both", "one"])


@READ
def test_a_prepared_transaction_is_rolled_back_by_an_operator(managed: OnStore, read: str) -> None:
    """What it acknowledged is delivered, what it sent never was."""
    managed = in_doubt(managed, RING if read == "paged" else SETTINGS)
    consumer = reading(managed, read)
    facade = managed.management
    with pytest.raises(WrongArgument, match="is not FORMAT:GLOBAL:BRANCH"):
        managed.run(facade.roll_back_transaction(OPERATOR, "x"))
    managed.run(facade.roll_back_transaction(OPERATOR, str(XID)))
    if read == "all":
        assert consumer is not None
        managed.node.wait_for(consumer, 7)
        assert sorted(consumer.texts) == sorted(["high", "higher", "a", "b", "c", "d", "e"])
        assert all(one.redelivered for one in consumer.received)
        consumer.end.close()
    if read == "nothing":
        consumer = managed.node.consume(7)
        assert consumer.texts == ["high", "higher", "a", "b", "c", "d", "e"]
        consumer.end.close()
    is_resolved(managed, ["high", "higher", "a", "b", "c", "d", "e"], ["first"])


def is_resolved(managed: OnStore, orders: list[str], other: list[str]) -> None:
    """Assert what is there, and that it counts as it does on the next node."""
    queues = managed.node.broker.queues()
    counts = {name: (queues[name].depth, queues[name].log.stored_bytes) for name in queues}
    assert managed.texts("orders") == orders
    assert managed.texts("others") == other
    assert counts["orders"][0] == len(orders)
    managed = managed.take_over()
    managed.run(facade_is_counted(managed))
    assert managed.texts("orders") == orders
    assert managed.texts("others") == other
    queues = managed.node.broker.queues()
    assert counts == {name: (queues[name].depth, queues[name].log.stored_bytes) for name in queues}
    assert managed.run(managed.management.transactions(OPERATOR)) == ()
    assert managed.node.consume(len(orders)).texts == orders


# --- options of a queue that is there


def test_options_of_a_queue_change_at_once_and_on_the_next_node(managed: OnStore) -> None:
    """Its filter, ring, consumers and the rest; the messages that are there stay."""
    facade = managed.management
    managed.node.send("a", "b", "c", "d")
    options = {
        "filter": "kind = 'odd'",
        "ring-size": 3,
        "exclusive": True,
        "consumers-before-dispatch": 2,
    }
    view = managed.run(facade.change_queue(OPERATOR, "orders", max_consumers=2, options=options))
    assert (view.filter, view.ring_size, view.exclusive, view.max_consumers) == (
        "kind = 'odd'",
        3,
        True,
        2,
    )
    trimmed(managed, 3)
    for _ in range(2):
        managed.node.send("left out", headers=b"kind:even\n")
        managed.node.send("last", headers=b"kind:odd\n")
        trimmed(managed, 3)
        first = managed.node.consume(0)
        assert first.texts == []
        second = managed.node.consume(0)
        managed.node.wait_for(first, 3)
        assert (first.texts[-1], second.texts) == ("last", [])
        with pytest.raises(LimitExceeded, match="max-consumers 2"):
            managed.node.consume(0)
        first.end.close()
        second.end.close()
        managed = managed.take_over()
        managed.run(facade_is_counted(managed))
    facade = managed.management
    plain = {"filter": "", "ring-size": -1, "exclusive": False, "consumers-before-dispatch": 0}
    managed.run(facade.change_queue(OPERATOR, "orders", max_consumers=-1, options=plain))
    managed.node.send("any", "other")
    managed = managed.take_over()
    managed.run(facade_is_counted(managed))
    view = managed.run(managed.management.queue(OPERATOR, "orders"))
    assert (view.messages, view.filter, view.max_consumers) == (5, None, None)
    change = managed.management.change_queue
    purges = {"purge-on-no-consumers": True}
    managed.run(change(OPERATOR, "orders", options=purges))
    trimmed(managed, 0)
    assert managed.texts("orders") == []
    assert managed.run(managed.management.delete_queue(OPERATOR, "orders")) == 0
    managed = managed.take_over()
    assert managed.run(managed.management.queues(OPERATOR)).items == ()


def test_options_that_cannot_change_are_refused_by_name(managed: OnStore) -> None:
    """With the reason, and what was expected; nothing of the change is done."""
    managed.node.send("a")
    consumer = managed.node.consume(1)
    before = managed.run(managed.management.queue(OPERATOR, "orders"))
    refused: list[tuple[dict[str, object], type[BrokerError], str]] = [
        ({"last-value": True}, NotPossible, "last-value-key of queue 'orders' cannot change: what"),
        ({"non-destructive": True}, NotPossible, "non-destructive of queue 'orders' cannot"),
        ({"exclusive": True}, NotPossible, "exclusive .* only while it has no consumer.* has 1"),
        ({"ring-size": 5}, NotPossible, "ring-size .* only while it has no consumer"),
        ({"ring-size": "5"}, WrongArgument, "ring-size is '5'; expected a number from -1"),
        ({"ring-size": True}, WrongArgument, "ring-size is 'True'; expected a number"),
        ({"ring-size": -2}, WrongArgument, "ring-size is '-2'; expected a number from -1"),
        ({"exclusive": "yes"}, WrongArgument, "exclusive is 'yes'; expected true or false"),
        ({"filter": 5}, WrongArgument, "filter is '5'; expected a text"),
        ({"filter": "a = "}, SelectorRefused, "column 5"),
        ({"enabled": False, "colour": "red"}, WrongArgument, "no option 'colour'; expected one"),
    ]
    for options, kind, text in refused:
        with pytest.raises(kind, match=text):
            managed.run(managed.management.change_queue(OPERATOR, "orders", options=options))
        if kind is not NotPossible:
            with pytest.raises(kind, match=text):
                managed.run(managed.management.create_queue(OPERATOR, "new", options=options))
    with pytest.raises(WrongArgument, match="max-consumers is -2"):
        managed.run(managed.management.change_queue(OPERATOR, "orders", max_consumers=-2))
    assert managed.run(managed.management.queue(OPERATOR, "orders")) == before
    assert consumer.texts == ["a"]


def test_a_ring_gives_up_what_is_low_before_what_is_new(managed: OnStore) -> None:
    """Also where the low ones are in the table only, as after a takeover."""
    managed.run(managed.management.create_queue(OPERATOR, "orders", options={"ring-size": 3}))
    managed.node.send("low", "lower", "lowest", priority=1)
    managed = managed.take_over()
    managed.run(facade_is_counted(managed))
    managed.node.send("a", "b")
    trimmed(managed, 3)
    assert managed.texts("orders") == ["a", "b", "lowest"]
    managed.node.send("c", "d")
    trimmed(managed, 3)
    assert managed.texts("orders") == ["b", "c", "d"]
