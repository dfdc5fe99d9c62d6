"""What the store refuses alone is refused to the client it is of, with nothing left of it."""

import pytest

from orthia.journal.errors import UnitRefused
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import QUEUE, Client, acknowledge, bodies, fill

REASON = UnitRefused("value out of range")


def refuse(core: CoreUnderTest) -> None:
    """Have the journal refuse the first unit that waits, and store all others."""
    core.settle()
    core.journal.refuse(REASON)
    core.journal.commit()
    core.settle()


def started() -> CoreUnderTest:
    """Return a core with a queue, whose journal stores when it is told to."""
    core = CoreUnderTest()
    fill(core, "first", "second")
    core.journal.auto_commit = False
    return core


def test_a_message_is_refused_with_its_receipt_named() -> None:
    """Its client is ended by an ERROR that says why; those of others are stored."""
    core = started()
    poisoner, innocent = Client(core), Client(core)
    poisoner.send("SEND", "poison", destination=QUEUE, receipt="r-poison")
    innocent.send("SEND", "fine", destination=QUEUE, receipt="r-fine")
    refuse(core)
    frame = poisoner.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r-poison")
    assert "does not store this" in frame.body.decode()
    assert "value out of range" in frame.body.decode()
    assert poisoner.closed
    assert innocent.read().get(b"receipt-id") == "r-fine"
    assert bodies(Client(core).subscribe()) == ["first", "second", "fine"]


@pytest.mark.parametrize("then", ["waits", "disconnects", "is gone"])
def test_a_message_without_a_receipt_is_refused_too(then: str) -> None:
    """Nothing is dropped silently: a DISCONNECT's receipt would say that all was done."""
    core = started()
    poisoner = Client(core)
    poisoner.send("SEND", "poison", destination=QUEUE)
    if then == "disconnects":
        poisoner.send("DISCONNECT", receipt="bye")
    if then == "is gone":
        poisoner.session.connection_lost()
    refuse(core)
    if then == "is gone":
        assert poisoner.frames() == []
    else:
        assert "value out of range" in poisoner.error()
    assert core.stored_texts() == ["first", "second"]


def test_of_a_refused_transaction_nothing_is_done() -> None:
    """Its messages are nowhere; what it acknowledged or rejected is back, for whoever is next."""
    core = CoreUnderTest()
    fill(core, "acknowledged", "rejected", "neither")
    client = Client(core)
    first, second, _ = client.subscribe()
    topic = Client(core)
    topic.send("SUBSCRIBE", destination="/topic/news", id="t")
    topic.send("SUBSCRIBE", destination="/queue/answers", id="a")
    core.journal.auto_commit = False
    client.send("BEGIN", transaction="t")
    client.send("SEND", "poison", destination="/queue/answers", transaction="t")
    client.send("SEND", "news", destination="/topic/news", transaction="t")
    acknowledge(client, first, transaction="t")
    acknowledge(client, second, "NACK", transaction="t")
    client.send("COMMIT", transaction="t", receipt="r-commit")
    refuse(core)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r-commit")
    assert topic.frames() == []
    assert core.stored_texts() == ["acknowledged", "rejected", "neither"]
    queue = core.broker.queues()["orders"]
    assert (queue.depth, queue.counters.acknowledged) == (3, 0)
    again = Client(core)
    assert bodies(again.subscribe()) == ["acknowledged", "rejected", "neither"]
    assert core.broker.queues()["answers"].depth == 0


def test_what_a_client_sent_behind_a_refused_message_is_refused() -> None:
    """It sends both again: the later one would be there first."""
    core = started()
    poisoner = Client(core)
    poisoner.send("SEND", "poison", destination=QUEUE, receipt="r-poison")
    poisoner.send("SEND", "behind", destination=QUEUE, receipt="r-behind")
    poisoner.send("SEND", "elsewhere", destination="/queue/elsewhere")
    poisoner.send("SEND", "not persistent", destination=QUEUE, persistent="false")
    refuse(core)
    frame = poisoner.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r-poison")
    assert "nor, where this ends the connection, any message sent behind it" in frame.body.decode()
    assert core.stored_texts() == ["first", "second"]
    core.journal.auto_commit = True
    again = Client(core)
    again.send("SEND", "cured", destination=QUEUE)
    again.send("SEND", "behind", destination=QUEUE, receipt="r")
    assert again.read().get(b"receipt-id") == "r"
    assert bodies(Client(core).subscribe()) == ["first", "second", "cured", "behind"]
    assert core.broker.queues()["elsewhere"].depth == 0
    assert core.broker.store_use.used == sum(
        queue.use.used for queue in core.broker.queues().values()
    )


def test_a_commit_behind_a_refused_message_is_refused_and_was_not_tried_in_vain() -> None:
    """What it acknowledged goes back, and counts for nothing: another's message was at fault."""
    core = CoreUnderTest(settings(max_delivery_attempts=1))
    fill(core, "answered")
    client = Client(core)
    (answered,) = client.subscribe()
    client.send("BEGIN", transaction="t")
    client.send("SEND", "answer", destination="/queue/answers", transaction="t")
    acknowledge(client, answered, transaction="t")
    core.journal.auto_commit = False
    client.send("SEND", "poison", destination=QUEUE, receipt="r-poison")
    client.send("COMMIT", transaction="t", receipt="r-commit")
    refuse(core)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r-poison")
    assert core.stored_texts() == ["answered"]
    core.journal.auto_commit = True
    left = core.consume(QUEUE)
    assert left.texts == ["answered"]
    assert [one.attempts for one in left.received] == [0]


@pytest.mark.parametrize("asks", [{}, {"selector": "AMQPriority >= 0"}])
def test_a_message_that_a_topic_hears_is_refused_with_its_receipt_named(
    asks: dict[str, str],
) -> None:
    """Beside the one queue that is to store it, whatever that asks of it."""
    core = CoreUnderTest()
    keeping = Client(core, client_id="keeping")
    headers = {"durable-subscription-name": "paper", **asks}
    keeping.send("SUBSCRIBE", destination="/topic/news", id="d", **headers)
    hearing = Client(core)
    hearing.send("SUBSCRIBE", destination="/topic/news", id="t")
    core.journal.auto_commit = False
    poisoner = Client(core)
    poisoner.send("SEND", "poison", destination="/topic/news", receipt="r-poison")
    refuse(core)
    frame = poisoner.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r-poison")
    assert (keeping.frames(), hearing.frames()) == ([], [])
