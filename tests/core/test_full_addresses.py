"""What becomes of senders and messages when an address is full: BLOCK and DROP."""

import gc
import weakref
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import QuotaExceeded
from orthia.config.address_settings import AddressFullPolicy, PageFullPolicy
from orthia.config.settings import Settings
from tests.core.support import CoreUnderTest, anyone, message, settings
from tests.stomp.support import Client

BLOCK, DROP = AddressFullPolicy.BLOCK, AddressFullPolicy.DROP
QUEUE = "/queue/orders"


def sends(client: Client, *bodies: str, **headers: str) -> list[str]:
    """Send messages in one go, and return the receipts that came."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    data = "".join(
        f"SEND\ndestination:{QUEUE}\nreceipt:{body}\n{lines}\n{body}\0" for body in bodies
    )
    client.session.receive(data.encode())
    client.core.settle()
    return receipts(client)


def waits(client: Client) -> bool:
    """Return whether nothing more is read from a client."""
    return client.session.is_waiting


def receipts(client: Client) -> list[str]:
    """Return the receipts that came."""
    return [one.get(b"receipt-id") or "" for one in client.frames() if one.command == "RECEIPT"]


@pytest.mark.parametrize(
    "limit", [{"max_size_messages": 2}, {"max_size_bytes": 1_300}], ids=["messages", "bytes"]
)
def test_a_sender_is_read_on_from_when_there_is_room(limit: dict[str, Any]) -> None:
    """What it sent is stored and answered; what follows waits, and so does who comes now."""
    core = CoreUnderTest(settings(address_full_policy=BLOCK, **limit))
    first, second = Client(core), Client(core)
    taken = sends(first, "1", "2", "3", "4")
    held = core.broker.depths()["orders"]
    assert 2 <= held < 4
    assert taken == ["1", "2", "3", "4"][:held]
    assert waits(first)
    turns = core.now
    core.pass_time(60)
    assert core.now == turns + 60
    assert receipts(first) == []
    assert sends(second, "a", "b") == ["a"], "its first is taken, as each sender's is"
    assert waits(second)
    consumer = core.consume(QUEUE)
    consumer.acknowledge(*consumer.texts)
    core.settle()
    core.pass_time(1)
    core.settle()
    consumer.acknowledge(*consumer.texts[held + 1 :])
    core.pass_time(1)
    assert "4" in consumer.texts
    assert "b" in consumer.texts
    assert not waits(first)
    assert not waits(second)
    order = [text for text in consumer.texts if text.isdecimal()]
    assert order == sorted(order)


def test_an_address_whose_senders_wait_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """What is full, and what to do: their clients are told nothing."""
    core = CoreUnderTest(settings(address_full_policy=BLOCK, max_size_messages=2))
    first, second = Client(core), Client(core)
    sends(first, "1", "2", "3")
    sends(second, "a", "b")
    (line,) = [one for one in caplog.messages if "BLOCK" in one]
    assert line.startswith("address 'orders' is full (address-full-policy BLOCK): it holds 2 mess")
    assert "consume messages, or raise its limit; until there is room nothing is read" in line


def test_a_commit_waits_for_room() -> None:
    """And is done whole then."""
    core = CoreUnderTest(settings(address_full_policy=BLOCK, max_size_messages=2))
    core.send(QUEUE, "1", "2")
    client = Client(core)
    client.send("BEGIN", transaction="t")
    for body in ("3", "4", "5"):
        client.send("SEND", body, destination=QUEUE, transaction="t")
    client.send("COMMIT", transaction="t", receipt="r")
    core.pass_time(1)
    assert client.commands() == []
    assert core.broker.depths()["orders"] == 2
    consumer = core.consume(QUEUE, prefetch=2)
    consumer.acknowledge("1")
    core.pass_time(1)
    assert client.commands() == ["RECEIPT"]
    assert core.broker.depths()["orders"] == 4


def test_who_leaves_while_it_waits_leaves_nothing() -> None:
    """What it had sent and was not read is not sent."""
    core = CoreUnderTest(settings(address_full_policy=BLOCK, max_size_messages=1))
    client = Client(core)
    sends(client, "1", "2", "3")
    client.session.connection_lost()
    consumer = core.consume(QUEUE, auto=True)
    core.pass_time(1)
    assert consumer.texts == ["1"]


@pytest.mark.parametrize(
    "full",
    [
        settings(address_full_policy=DROP, max_size_messages=2),
        settings(address_full_policy=DROP, max_size_bytes=1_300),
        settings(page_full_policy=PageFullPolicy.DROP, page_limit_messages=2),
        settings(page_full_policy=PageFullPolicy.DROP, page_limit_bytes=1_300),
    ],
    ids=["messages", "bytes", "page messages", "page bytes"],
)
def test_what_has_no_room_is_dropped(full: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Its RECEIPT comes; the log says so once."""
    core = CoreUnderTest(full)
    client = Client(core)
    assert sorted(sends(client, "1", "2", "3", "4")) == ["1", "2", "3", "4"]
    assert core.broker.depths()["orders"] == 2
    client.send("BEGIN", transaction="t")
    client.send("SEND", "5", destination=QUEUE, transaction="t")
    client.send("COMMIT", transaction="t", receipt="r")
    assert client.commands() == ["RECEIPT"]
    consumer = core.consume(QUEUE, auto=True)
    assert consumer.texts == ["1", "2"]
    core.send(QUEUE, "6")
    assert consumer.texts == ["1", "2", "6"]
    assert caplog.text.count("are dropped until there is room") == 1


@pytest.mark.parametrize(
    "full",
    [
        settings(address_full_policy=DROP, max_size_messages=5),
        settings(address_full_policy=DROP, max_size_bytes=5 * 625),
        settings(page_full_policy=PageFullPolicy.DROP, page_limit_messages=5),
    ],
    ids=["messages", "bytes", "page messages"],
)
@pytest.mark.parametrize("sent", [5, 6, 500])
def test_a_transaction_that_alone_has_no_room_is_refused_whole(full: Settings, sent: int) -> None:
    """Where single messages would be dropped: nothing of it is stored, and nothing counts."""
    core = CoreUnderTest(full)
    client = Client(core)
    client.send("BEGIN", transaction="t")
    for _ in range(sent):
        client.send("SEND", "x", destination=QUEUE, transaction="t")
    client.send("COMMIT", transaction="t", receipt="r")
    core.settle()
    if sent == 5:
        assert client.commands() == ["RECEIPT"]
        assert core.broker.depths()["orders"] == 5
        return
    assert "a transaction sends more than there is room for" in client.error()
    assert core.broker.depths()["orders"] == 0
    assert core.broker.store_use.used == 0
    assert core.journal.store.messages == {}


def test_room_that_others_took_during_the_commit_refuses_it() -> None:
    """What was routed into an address with room is not beyond its limit when it is stored."""
    core = CoreUnderTest(settings(address_full_policy=DROP, max_size_messages=40))
    answers: list[str] = []
    work = TransactionWork([(QUEUE, message(str(number))) for number in range(40)], {}, {})
    steps = core.broker.commit(anyone(), work, lambda: answers.append("done"))
    next(steps)
    core.broker.send(anyone(), QUEUE, message("another's"), None)
    with pytest.raises(QuotaExceeded, match="more than there is room for"):
        list(steps)
    core.settle()
    assert core.stored_texts() == ["another's"]


@pytest.mark.parametrize("most", [1, 3])
def test_a_message_for_several_queues_is_dropped_whole_or_taken_whole(most: int) -> None:
    """Each of them counts; nobody is refused."""
    core = CoreUnderTest(settings(address_full_policy=DROP, max_size_messages=most))
    taken = [core.consume(f"/topic/news::{name}", prefetch=10) for name in "ab"]
    client = Client(core)
    for text in "1234":
        client.send("SEND", text, destination="/topic/news", receipt=text)
    assert receipts(client) == list("1234")
    held = list("1234")[: (most + 1) // 2]
    assert [one.texts for one in taken] == [held, held]


@pytest.mark.parametrize("policy", [DROP, BLOCK])
def test_a_queue_that_is_named_itself_is_of_its_address(policy: AddressFullPolicy) -> None:
    """What its address does when it is full, it does."""
    core = CoreUnderTest(settings(address_full_policy=policy, max_size_messages=2))
    client = Client(core)
    for text in "1234":
        client.send("SEND", text, destination="/queue/orders::orders", receipt=text)
    assert receipts(client) == (list("1234") if policy is DROP else ["1", "2"])
    assert waits(client) is (policy is BLOCK)
    consumer = core.consume(QUEUE, auto=True)
    core.pass_time(1)
    assert consumer.texts == (["1", "2"] if policy is DROP else list("1234"))


@pytest.mark.parametrize("in_transaction", [True, False])
def test_nothing_is_kept_of_clients_that_left_while_they_waited(*, in_transaction: bool) -> None:
    """An address may be full for long, and any number may come and go meanwhile."""
    core = CoreUnderTest(settings(address_full_policy=BLOCK, max_size_messages=1))
    core.send(QUEUE, "0")
    left: list[weakref.ref[Client]] = []
    for _ in range(5):
        client = Client(core)
        if in_transaction:
            client.send("BEGIN", transaction="t")
            client.send("SEND", "1", destination=QUEUE, transaction="t")
            client.send("COMMIT", transaction="t")
        else:
            sends(client, "1", "2")
        assert waits(client)
        client.session.connection_lost()
        core.settle()
        left.append(weakref.ref(client))
        del client
    gc.collect()
    assert [one() for one in left] == [None] * 5
    assert not core.broker.queues()["orders"].use._waiting
