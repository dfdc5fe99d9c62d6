"""Proton's blocking client and a pair of real nodes: a round trip, and a crash in the midst.

``make test-amqp`` brings proton; where it is missing, these tests are skipped.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Servers
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import STORES, stored

pytestmark = pytest.mark.extended
proton: Any = pytest.importorskip("proton", reason="there is no proton: run make test-amqp")
utils: Any = pytest.importorskip("proton.utils")
reactor: Any = pytest.importorskip("proton.reactor")

PATIENCE = 60
"""Seconds that proton waits for an answer."""
MESSAGES = 60
LAST = "the last"


@pytest.fixture(params=STORES)
def nodes(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[FileCluster]:
    """Give a cluster on each store."""
    with file_cluster(tmp_path, stored(request.param, shared_servers, tmp_path)) as cluster:
        yield cluster


def connect(*nodes: NodeProcess) -> Any:
    """Return a connection to whichever node serves."""
    while True:
        for node in nodes:
            with contextlib.suppress(proton.ProtonException, OSError):
                return utils.BlockingConnection(
                    f"amqp://127.0.0.1:{node.port}", timeout=PATIENCE, allowed_mechs="ANONYMOUS"
                )


def body_of(message: Any) -> Any:
    """Return the body of a message, bytes as such."""
    return bytes(message.body) if isinstance(message.body, memoryview) else message.body


def received(connection: Any, address: str) -> list[Any]:
    """Return the bodies of all messages of a queue, each accepted: up to one that is sent last."""
    last = connection.create_sender(address, name="last")
    last.send(proton.Message(body=LAST, durable=True))
    last.close()
    receiver = connection.create_receiver(address, credit=100)
    found: list[Any] = []
    while not found or found[-1] != LAST:
        message = receiver.receive(timeout=PATIENCE)
        receiver.accept()
        found.append(body_of(message))
    receiver.close()
    return found[:-1]


def test_proton_sends_receives_selects_and_browses(nodes: FileCluster) -> None:
    """What it sends comes as it was: texts, bytes, maps, with properties of every type."""
    node = nodes.alone()
    connection = connect(node)
    bodies = ["text", b"bytes", {"a": 1, "b": [True, None]}, ["list", 2.5], 7]
    sender = connection.create_sender("orders")
    for number, body in enumerate(bodies):
        sender.send(
            proton.Message(body=body, durable=True, properties={"n": number}, correlation_id="c")
        )
    browser = connection.create_receiver("orders", credit=10, options=reactor.Copy())
    assert [body_of(browser.receive(timeout=PATIENCE)) for _ in bodies] == bodies
    browser.close()
    chosen = connection.create_receiver("orders", credit=1, options=reactor.Selector("n = 2"))
    message = chosen.receive(timeout=PATIENCE)
    assert (message.body, message.properties, message.correlation_id) == (bodies[2], {"n": 2}, "c")
    chosen.accept()
    chosen.close()
    assert received(connection, "orders") == [*bodies[:2], *bodies[3:]]
    large = "large " * 500_000
    sender.send(proton.Message(body=large, durable=True))
    assert received(connection, "orders") == [large]
    connection.close()


def test_proton_loses_nothing_that_was_accepted_when_the_live_node_is_killed(
    nodes: FileCluster,
) -> None:
    """Each message that was accepted before or after is received once the backup serves."""
    live, backup = nodes.pair()
    connection = connect(live, backup)
    sender = connection.create_sender("orders")
    accepted: list[str] = []
    while len(accepted) < MESSAGES:
        text = f"message {len(accepted)}"
        if len(accepted) == MESSAGES // 2 and live.is_running:
            live.kill()
        try:
            sender.send(proton.Message(body=text, durable=True))
        except (proton.ProtonException, OSError):
            connection = connect(backup)
            sender = connection.create_sender("orders")
            continue
        accepted.append(text)
    found = received(connection, "orders")
    assert list(dict.fromkeys(found)) == accepted
    connection.close()


def test_a_large_message_of_proton_that_the_live_node_dies_amid_is_sent_again(
    nodes: FileCluster,
) -> None:
    """The backup has it once, whole, and nothing of what came before."""
    live, backup = nodes.pair()
    connection = connect(live, backup)
    sender = connection.create_sender("orders")
    body = "large " * 1_000_000
    sender.send(proton.Message(body="first" + body, durable=True))
    half = proton.Message(body="second" + body, durable=True).encode()
    delivery = sender.link.delivery("half")
    sender.link.stream(half[: len(half) // 2])
    connection.wait(lambda: delivery.pending == 0)
    live.kill()
    connection = connect(backup)
    connection.create_sender("orders").send(proton.Message(body="second" + body, durable=True))
    assert received(connection, "orders") == ["first" + body, "second" + body]
    connection.close()


def test_what_proton_has_not_settled_comes_again_after_a_crash(nodes: FileCluster) -> None:
    """From the backup, which knows nothing of the deliveries of the live node."""
    live, backup = nodes.pair()
    connection = connect(live)
    sender = connection.create_sender("orders")
    for text in ("a", "b"):
        sender.send(proton.Message(body=text, durable=True))
    receiver = connection.create_receiver("orders", credit=1)
    assert receiver.receive(timeout=PATIENCE).body == "a"
    receiver.accept()
    assert receiver.receive(timeout=PATIENCE).body == "b"
    live.kill()  # to close its connection now would wait for PATIENCE
    left = received(connect(backup), "orders")
    assert left in (["b"], ["a", "b"])  # the disposition of "a" may not have left in time
