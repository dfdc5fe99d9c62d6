"""The RECEIPT of what was delivered in vain comes once a successor would know of it."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.journal.errors import StoreFull
from tests.core.support import CoreUnderTest, FakeConsumer, settings
from tests.stomp.support import Client, acknowledge, fill

OPTIONS = settings("orders", max_delivery_attempts=2)
MORE_THAN_A_TURN = 300


def nack(client: Client, frames: list[Frame]) -> None:
    """Reject a message."""
    acknowledge(client, frames[0], "NACK", receipt="mine")


def nack_all(client: Client, frames: list[Frame]) -> None:
    """Reject all that was delivered up to the last."""
    acknowledge(client, frames[-1], "NACK", receipt="mine")


def commit(client: Client, frames: list[Frame]) -> None:
    """Reject messages in a transaction, and send one."""
    client.send("BEGIN", transaction="t")
    for frame in frames:
        acknowledge(client, frame, "NACK", transaction="t")
    client.send("SEND", "sent", destination="/queue/other", transaction="t")
    client.send("COMMIT", transaction="t", receipt="mine")


def disconnect(client: Client, frames: list[Frame]) -> None:
    """Reject a message, without a receipt of its own, and leave."""
    acknowledge(client, frames[0], "NACK")
    client.send("DISCONNECT", receipt="mine")


Says = Callable[[Client, list[Frame]], None]
SAYINGS: dict[str, tuple[str, Says]] = {
    "client-individual": ("client-individual", nack),
    "client": ("client", nack_all),
    "transaction": ("client-individual", commit),
    "disconnect": ("client-individual", disconnect),
}
COUNTS = [
    *(pytest.param(*both, messages, id=f"{name}-{messages}")
      for name, both in SAYINGS.items() for messages in (1, 3)),
    pytest.param("client", nack_all, MORE_THAN_A_TURN, id="many"),
    pytest.param("client-individual", commit, MORE_THAN_A_TURN, id="many-of-a-transaction"),
]  # fmt: skip


def slow_clock() -> Iterator[float]:
    """Return a clock by which each step of long work takes a second."""
    return map(float, itertools.count())


def commit_until_answered(core: CoreUnderTest, client: Client) -> None:
    """Store one unit after the other until the RECEIPT came."""
    said = client.commands()
    while "RECEIPT" not in said:
        assert core.journal.waiting, "no RECEIPT, and nothing that it could wait for"
        core.journal.commit(1)
        core.settle()
        said += client.commands()


def attempts_known(core: CoreUnderTest, destination: str) -> list[int]:
    """Return how often messages were delivered in vain, as a node would know that came now."""
    again = CoreUnderTest(OPTIONS, store=core.successor_store())
    consumer: FakeConsumer = again.consume(destination)
    return [one.attempts for one in consumer.received]


@pytest.mark.parametrize(("ack", "says", "messages"), COUNTS)
@pytest.mark.parametrize("last_attempt", [False, True])
def test_a_successor_knows_of_it_once_its_receipt_is_sent(
    ack: str, says: Says, messages: int, *, last_attempt: bool
) -> None:
    """Of a failed attempt, and of the dead letter that comes of the last one."""
    clock = slow_clock()
    core = CoreUnderTest(OPTIONS, clock=lambda: next(clock))
    fill(core, *[f"m{number}" for number in range(messages)])
    if last_attempt:
        before = Client(core)
        for frame in before.subscribe(prefetch_count="1000"):
            acknowledge(before, frame, "NACK")
        before.send("DISCONNECT")
    client = Client(core)
    frames = client.subscribe(ack, prefetch_count="1000")
    core.journal.auto_commit = False
    says(client, frames)
    commit_until_answered(core, client)
    counted = 1 if says in (nack, disconnect) else messages
    if last_attempt:
        assert len(attempts_known(core, "/queue/DLQ")) == counted
        assert len(attempts_known(core, "/queue/orders")) == messages - counted
    else:
        assert sorted(attempts_known(core, "/queue/orders")) == [
            *[0] * (messages - counted),
            *[1] * counted,
        ]


@pytest.mark.parametrize("says", [nack, disconnect, commit])
def test_several_destinations_wait_for_all(says: Says) -> None:
    """A subscription to two queues is one of each."""
    core = CoreUnderTest(OPTIONS)
    core.send("/queue/first", "a")
    core.send("/queue/second", "b")
    client = Client(core)
    client.send("SUBSCRIBE", destination="/queue/first,/queue/second", id="s", ack="client")
    frames = client.frames()
    core.journal.auto_commit = False
    says(client, frames[1:] if says is nack else frames)
    commit_until_answered(core, client)
    known = [attempts_known(core, f"/queue/{name}") for name in ("first", "second")]
    assert known == ([[1], [0]] if says is disconnect else [[1], [1]])


@pytest.mark.parametrize("destination", ["/topic/news", "/queue/shown"])
def test_what_is_no_attempt_is_answered(destination: str) -> None:
    """A topic's messages are nobody's, and those that everybody is shown stay where they are."""
    shown = settings("shown", default_non_destructive=True)
    core = CoreUnderTest(shown)
    client = Client(core)
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client-individual")
    core.send(destination, "a")
    (frame,) = client.frames()
    acknowledge(client, frame, "NACK", receipt="mine")
    assert "RECEIPT" in client.commands()


def test_a_full_store_keeps_no_receipt_back() -> None:
    """Then nobody counts the attempt, and the message is delivered again."""
    core = CoreUnderTest(OPTIONS)
    fill(core, "a")
    client = Client(core)
    frames = client.subscribe()
    core.journal.auto_commit = False
    nack(client, frames)
    core.journal.refuse(StoreFull("no room"))
    core.settle()
    assert client.commands() == ["MESSAGE", "RECEIPT"]


def test_a_subscriber_waits_for_its_own_queue_and_those_before() -> None:
    """And for no other that is bound behind it."""
    core = CoreUnderTest(OPTIONS, auto_commit=False)
    client = Client(core)
    for name in ("first", "second"):
        client.send("SUBSCRIBE", destination=f"/queue/{name}", id=name, receipt=name)
    told: list[list[str | None]] = []
    while core.journal.waiting:
        core.journal.commit(1)
        core.settle()
        told.append([frame.get(b"receipt-id") for frame in client.frames()])
    assert [one for one in told if one] == [["first"], ["second"]]


def test_a_node_that_stops_answers_no_attempt() -> None:
    """It counts none any more: its successor would not know of it."""
    core = CoreUnderTest(OPTIONS)
    fill(core, "a")
    client = Client(core)
    (frame,) = client.subscribe()
    core.broker.stop()
    acknowledge(client, frame, "NACK", receipt="mine")
    assert client.commands() == []
    assert attempts_known(core, "/queue/orders") == [0]
