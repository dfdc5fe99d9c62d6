"""Transactions: all of it or nothing, at one moment."""

import pytest

from orthia.broker.core.api import MessageReference, TransactionWork
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import AcknowledgementRefused, DestinationRefused, LimitExceeded
from orthia.journal import Unit
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.support import (
    ANYONE,
    SETTINGS,
    CoreUnderTest,
    FakeConsumer,
    message,
    opened,
    settings,
)
from tests.stomp.support import Client

QUEUE = "/queue/orders"
XID = Xid(1, b"global", b"branch")


def set_aside(consumer: FakeConsumer, *texts: str) -> list[MessageReference]:
    """Have a transaction take messages that were delivered."""
    references = consumer.take(*texts)
    consumer.end.set_aside(references)
    return references


def work(
    *sends: tuple[str, str],
    consumer: FakeConsumer | None = None,
    acknowledge: tuple[str, ...] = (),
    reject: tuple[str, ...] = (),
) -> TransactionWork:
    """Return a transaction's work."""
    made = TransactionWork([(destination, message(text)) for destination, text in sends])
    if consumer is not None:
        if acknowledge:
            made.acknowledgements[consumer.end] = set_aside(consumer, *acknowledge)
        if reject:
            made.rejections[consumer.end] = set_aside(consumer, *reject)
    return made


def test_sends_and_acknowledgements_happen_together() -> None:
    """Before the commit nothing of it shows; after it, all of it does."""
    core = CoreUnderTest(auto_commit=False)
    core.send(QUEUE, "order")
    core.journal.commit()
    core.settle()
    consumer = core.consume(QUEUE)
    answers = core.consume("/queue/answers")
    done: list[int] = []
    transaction = work(
        ("/queue/answers", "one"),
        ("/queue/answers", "two"),
        consumer=consumer,
        acknowledge=("order",),
    )
    core.commit(transaction, lambda: done.append(1))
    core.settle()
    assert (answers.texts, done) == ([], [])
    assert core.stored_texts() == ["order"]
    core.journal.commit()
    core.settle()
    assert (answers.texts, done) == (["one", "two"], [1])
    assert core.stored_texts() == ["one", "two"]


def test_a_transaction_with_one_refused_part_is_refused_whole() -> None:
    """An unknown destination among several refuses all, and what was to be acknowledged stays."""
    core = CoreUnderTest(settings("closed", auto_create_addresses=False))
    core.send(QUEUE, "order")
    consumer = core.consume(QUEUE)
    transaction = work(
        (QUEUE, "a"), ("/queue/closed", "b"), consumer=consumer, acknowledge=("order",)
    )
    with pytest.raises(DestinationRefused, match="message to '/queue/closed' in the transaction"):
        core.commit(transaction, lambda: None)
    core.settle()
    consumer.end.close()
    assert core.consume(QUEUE).texts == ["order"]


def test_what_went_back_during_a_commit_is_not_deleted_by_it() -> None:
    """At any of its steps: another consumer may have it, and nothing of the transaction is done."""
    for step in range(8):
        core = CoreUnderTest()
        core.send(QUEUE, "order")
        consumer = core.consume(QUEUE)
        made = work(("/queue/answers", "one"), consumer=consumer, acknowledge=("order",))
        try:
            for number, _ in enumerate(core.broker.commit(ANYONE, made, lambda: None)):
                if number == step:
                    consumer.end.close()
        except AcknowledgementRefused:
            assert core.stored_texts() == ["order"]
        else:
            assert core.stored_texts() == ["one"]
            break
    assert step >= 2, "there were steps to close it at"


def test_a_transaction_too_large_for_the_store_loses_no_message() -> None:
    """A record that cannot be stored refuses the commit; the acknowledged messages come back."""
    core = CoreUnderTest()
    core.send(QUEUE, "order")
    core.journal = MemoryJournal(core.journal.store, max_record_bytes=1_000)
    core.broker = opened(
        Broker(
            SETTINGS,
            core.journal,
            lease_valid=lambda: True,
            call_later=core._call_later,
            clock=lambda: 0.0,
        )
    )
    consumer = core.consume(QUEUE)
    transaction = work((QUEUE, "x" * 2_000), consumer=consumer, acknowledge=("order",))
    with pytest.raises(LimitExceeded):
        core.commit(transaction, lambda: None)
    consumer.end.close()
    assert core.consume(QUEUE).texts == ["order"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rejection_in_a_transaction_waits_for_the_commit(is_lost: bool) -> None:
    """Nobody gets the message before; and it counts, though the consumer may be gone by then."""
    core = CoreUnderTest(settings("orders", max_delivery_attempts=1), auto_commit=False)
    core.send(QUEUE, "order")
    core.journal.commit()
    core.settle()
    consumer = core.consume(QUEUE)
    other = core.consume(QUEUE)
    core.commit(work((QUEUE, "a"), consumer=consumer, reject=("order",)), lambda: None)
    core.settle()
    if is_lost:
        consumer.end.close()
    assert other.texts == []
    assert core.stored_texts() == ["order"]
    core.store_all()
    assert core.consume("/queue/DLQ").texts == ["order"]


@pytest.mark.parametrize("destination", [QUEUE, "/topic/orders.all"])
def test_what_a_transaction_holds_takes_no_credit(destination: str) -> None:
    """More messages than the prefetch come before its COMMIT, and none is lost or doubled."""
    core = CoreUnderTest()
    consumer = core.consume(destination, prefetch=1)
    core.send(destination, "a", "b", "c")
    assert consumer.texts == ["a"]
    transaction = work(consumer=consumer, acknowledge=("a",))
    consumer.end.resume()
    assert consumer.texts == ["a", "b"]
    transaction.acknowledgements[consumer.end] += set_aside(consumer, "b")
    core.commit(transaction, lambda: None)
    consumer.end.resume()
    core.settle()
    assert consumer.texts == ["a", "b", "c"]
    consumer.acknowledge("c")
    core.settle()
    assert core.stored_texts() == []
    assert core.memory_used == 0
    assert consumer.held == 0


def test_what_an_aborted_transaction_held_takes_credit_again() -> None:
    """The consumer has it as before; nothing more comes until it acknowledges."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE, prefetch=1)
    core.send(QUEUE, "a", "b", "c")
    aside = set_aside(consumer, "a")
    consumer.end.resume()
    consumer.end.put_back(aside)
    consumer.acknowledge("b")
    assert consumer.texts == ["a", "b"]
    consumer.acknowledge("a")
    assert consumer.texts == ["a", "b", "c"]
    core.settle()
    assert core.stored_texts() == ["c"]


def test_a_topic_hears_of_a_transaction_after_its_commit() -> None:
    """Subscribers and queues see a transaction at the same moment."""
    core = CoreUnderTest(auto_commit=False)
    subscriber = core.consume("/topic/news")
    core.commit(work((QUEUE, "a"), ("/topic/news", "b")), lambda: None)
    core.settle()
    assert subscriber.texts == []
    core.journal.commit()
    core.settle()
    assert subscriber.texts == ["b"]


def test_an_empty_transaction_is_confirmed() -> None:
    """COMMIT of nothing is answered too."""
    core = CoreUnderTest()
    done: list[int] = []
    core.commit(work(), lambda: done.append(1))
    core.settle()
    assert done == [1]


def test_what_a_transaction_in_doubt_acknowledged_is_withheld() -> None:
    """A successor delivers everything else; rolled back, the next one delivers that too."""
    core = CoreUnderTest()
    core.send(QUEUE, "in doubt", "free")
    consumer = core.consume(QUEUE)
    unit = Unit()
    (reference,) = consumer.take("in doubt")
    assert reference.location is not None
    unit.delete(reference.location)
    XaTransactions(core.journal).prepare(XID, unit)
    second = core.takeover()
    assert second.consume(QUEUE).texts == ["free"]
    XaTransactions(second.journal).rollback(XID)
    assert second.takeover().consume(QUEUE).texts == ["in doubt", "free"]


def test_a_transaction_for_very_many_queues_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is how many messages there would be: a few sends to a topic may be millions."""
    monkeypatch.setattr("orthia.broker.core.sending.transaction.MOST_COPIES", 6)
    core = CoreUnderTest()
    for name in ("a", "b", "c"):
        core.consume(f"/topic/news::{name}")
    client = Client(core)
    client.send("BEGIN", transaction="t")
    for text in ("1", "2"):
        client.send("SEND", text, destination="/topic/news", transaction="t")
    client.send("COMMIT", transaction="t", receipt="r")
    assert client.commands() == ["RECEIPT"]
    client.send("BEGIN", transaction="u")
    for text in ("3", "4", "5"):
        client.send("SEND", text, destination="/topic/news", transaction="u")
    client.send("COMMIT", transaction="u")
    assert "would be more than 6 in all queues that get them" in client.error()
    assert core.consume("/topic/news::d").texts == []
    assert core.broker.queues()["a"].depth == 2


def test_open_transactions_are_seen_until_they_end() -> None:
    """How much each would send and acknowledges, by the name its client gave it."""
    core = CoreUnderTest()
    core.send(QUEUE, "a")
    client = Client(core)
    client.send("SUBSCRIBE", id="1", destination=QUEUE, ack="client-individual")
    (delivered,) = [one for one in client.frames() if one.command == "MESSAGE"]
    number = delivered.required(b"ack")
    client.send("BEGIN", transaction="t")
    client.send("SEND", "x" * 100, destination=QUEUE, transaction="t")
    client.send("ACK", id=number, transaction="t")
    (one,) = client.session.open_transactions()
    assert (one.name, one.sends, one.acknowledges) == ("t", 1, 1)
    assert one.size > 100
    assert one.since_ms > 0
    client.send("ABORT", transaction="t")
    assert client.session.open_transactions() == []
