"""Large messages against the limits of the store: counted as they come, ended when they stop."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.engine.abc import PIECE_BYTES
from tests.core.support import SETTINGS, settings
from tests.stomp.test_large_messages import LONG, QUEUE, Client, Node

LIMIT = 6 * PIECE_BYTES
"""Of the whole store: a body of four pieces fits once."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Give a node whose store holds six pieces."""
    made = Node(tmp_path, replace(SETTINGS, max_store_bytes=LIMIT))
    yield made
    made.store.close()


def error(client: Client) -> str:
    """Return the text of the ERROR that ends a client."""
    frame: Frame = client.next("ERROR")
    assert client.closed
    return frame.body.decode()


def used(node: Node) -> int:
    """Return what the store is counted to hold."""
    return node.broker.store_use.used


def begin(client: Client, size: int | None, body: str = "", **headers: str) -> None:
    """Send the head of a large SEND, which may say its size, and some of its body."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    if size is not None:
        lines += f"content-length:{size}\n"
    client.session.receive(f"SEND\ndestination:{QUEUE}\n{lines}\n{body}".encode())


def test_a_body_that_does_not_fit_is_refused_at_its_head(node: Node) -> None:
    """Before any of it comes, if the client says how long it is."""
    client = Client(node)
    begin(client, LIMIT + 1)
    assert f"max-store-bytes {LIMIT}" in error(client)
    node.wait_no_bodies()
    assert used(node) == 0


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (replace(SETTINGS, max_store_bytes=LIMIT), f"max-store-bytes {LIMIT}"),
        (settings(page_limit_bytes=LIMIT), "page-limit-bytes"),
    ],
)
def test_a_body_counts_as_it_comes(tmp_path: Path, limits: Settings, named: str) -> None:
    """Uploads that are not whole yet fill store and address, and give way at their end."""
    node = Node(tmp_path, limits)
    first, second = Client(node), Client(node)
    begin(first, len(LONG), LONG[:-1])
    node.wait(lambda: not first.session.is_waiting, "the pieces are stored")
    assert used(node) == len(LONG) - 1
    begin(second, None, "x" * 2_000)
    while not second.closed:
        second.session.receive(b"x" * PIECE_BYTES)
        node.store.loop.run_posted()
    assert named in error(second)
    assert used(node) == len(LONG) - 1
    first.session.connection_lost()
    node.wait_no_bodies()
    assert used(node) == 0
    node.store.close()


def test_a_stored_body_counts_until_it_is_acknowledged(node: Node) -> None:
    """Once, with its message."""
    client = Client(node)
    client.send_stored(LONG)
    assert len(LONG) < used(node) < len(LONG) + 2_000
    refused = Client(node)
    begin(refused, len(LONG))
    assert "max-store-bytes" in error(refused)
    client.subscribe()
    message = client.next("MESSAGE")
    client.send("ACK", id=message.get(b"ack") or "", receipt="done")
    client.next("RECEIPT")
    assert used(node) == 0
    Client(node).send_stored(LONG)


def test_bodies_of_open_transactions_count(node: Node) -> None:
    """They take room before they are committed; an ABORT gives it back."""
    client = Client(node)
    client.send("BEGIN", transaction="t")
    client.send_stored(LONG, transaction="t")
    assert used(node) == len(LONG)
    refused = Client(node)
    begin(refused, len(LONG))
    assert "max-store-bytes" in error(refused)
    client.send("ABORT", transaction="t", receipt="aborted")
    client.next("RECEIPT")
    assert used(node) == 0
    client.send("BEGIN", transaction="u")
    client.send_stored(LONG, transaction="u")
    client.send("COMMIT", transaction="u", receipt="committed")
    client.next("RECEIPT")
    assert len(LONG) < used(node) < len(LONG) + 2_000


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Node]:
    """Give a node of which each address holds six pieces, and the store any number."""
    made = Node(tmp_path, settings(page_limit_bytes=LIMIT))
    yield made
    made.store.close()


def test_bodies_of_open_transactions_count_for_their_address(narrow: Node) -> None:
    """A transaction that is never committed cannot fill the store by way of one address."""
    client = Client(narrow)
    client.send("BEGIN", transaction="t")
    client.send_stored(LONG, transaction="t")
    assert used(narrow) == len(LONG)
    refused = Client(narrow)
    begin(refused, len(LONG))
    text = error(refused)
    assert f"page-limit-bytes {LIMIT} and holds 0 bytes, and {len(LONG)} of messages not" in text
    other = Client(narrow)
    other.send_stored(LONG, destination="/queue/other")
    client.send("COMMIT", transaction="t", receipt="committed")
    client.next("RECEIPT")
    assert 2 * len(LONG) < used(narrow) < 2 * len(LONG) + 4_000
    again = Client(narrow)
    again.send("BEGIN", transaction="u")
    begin(again, len(LONG), transaction="u")
    assert "page-limit-bytes" in error(again)


def test_an_upload_of_which_nothing_comes_is_ended(node: Node) -> None:
    """It would hold its room for ever; one that goes on is left alone."""
    seconds = ClientLimits().upload_timeout / 1000
    now = 0.0
    client = Client(node, clock=lambda: now)
    begin(client, len(LONG), LONG[:1_000])
    for _ in range(3):
        now += seconds * 0.9
        client.session.receive(b"x")
        client.session.tick(now)
    now += seconds * 0.9
    client.session.tick(now, paused=seconds * 0.5)
    now += seconds * 0.2
    client.session.tick(now, is_read=False)
    now += seconds * 0.9
    client.session.tick(now)
    assert not client.closed
    now += seconds * 0.2
    client.session.tick(now)
    assert "upload-timeout 60000 ms" in error(client)
    node.wait_no_bodies()
    assert used(node) == 0
