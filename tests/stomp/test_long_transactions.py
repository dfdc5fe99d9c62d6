"""Transactions of very many messages: bounded, and what ends them is linear."""

import pytest

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.config.settings import ClientLimits
from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client, acknowledge, bodies, fill


def transaction_of(client: Client, frames: list[Frame], command: str = "ACK") -> None:
    """Have transaction t answer messages, one by one."""
    client.send("BEGIN", transaction="t")
    for frame in frames:
        acknowledge(client, frame, command, transaction="t")


def full(
    prefetch: int, mode: str, core: CoreUnderTest | None = None
) -> tuple[CoreUnderTest, Client, list[Frame]]:
    """Return a client that has as many messages of a queue as it asked for."""
    core = core or CoreUnderTest()
    fill(core, *(str(number) for number in range(prefetch)))
    client = Client(core)
    return core, client, client.subscribe(mode, prefetch_count=str(prefetch))


@pytest.mark.parametrize("command", ["ACK", "NACK"])
def test_the_messages_of_a_transaction_are_bounded(command: str) -> None:
    """What it sends and what it answers, together; the ERROR names limit and transaction."""
    core = CoreUnderTest()
    fill(core, *(str(number) for number in range(10)))
    client = Client(core, limits=ClientLimits(max_transaction_entries=10))
    frames = client.subscribe()
    client.send("BEGIN", transaction="other")
    client.send("SEND", destination=QUEUE, transaction="other")
    client.send("BEGIN", transaction="t")
    for _ in range(3):
        client.send("SEND", destination=QUEUE, transaction="t")
    for frame in frames[:7]:
        acknowledge(client, frame, command, transaction="t")
    assert not client.closed
    acknowledge(client, frames[7], command, transaction="t")
    assert "transaction 't' has more than max-transaction-entries 10" in client.error()
    assert len(core.stored_texts()) == 10


def test_a_cumulative_ack_counts_all_it_means() -> None:
    """One frame may stand for a whole prefetch."""
    core = CoreUnderTest()
    fill(core, *(str(number) for number in range(20)))
    client = Client(core, limits=ClientLimits(max_transaction_entries=10))
    frames = client.subscribe("client")
    client.send("BEGIN", transaction="t")
    acknowledge(client, frames[9], transaction="t")
    assert bodies(client.frames()) == []
    acknowledge(client, frames[10], transaction="t")
    assert "max-transaction-entries 10" in client.error()
    assert len(core.stored_texts()) == 20


def test_a_client_that_is_gone_holds_nothing_of_its_open_transactions() -> None:
    """Neither what it sent in them nor what it acknowledged."""
    core, client, frames = full(10, "client-individual")
    transaction_of(client, frames[:5])
    client.send("SEND", "x" * 1_000, destination=QUEUE, transaction="t")
    assert client.session.held > 1_000
    client.session.connection_lost()
    core.settle()
    assert client.session.held == 0
    assert len(core.stored_texts()) == 10
