"""Large messages from clients of AMQP: stored as they come, a few pieces of them in memory."""

import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.core.api import Answer, MessageReference, Settlement
from orthia.broker.core.errors import NotLive
from orthia.broker.core.queue.queue import Queue
from orthia.broker.protocols.amqp.composites import encode_composite
from orthia.broker.protocols.amqp.conditions import (
    DECODE_ERROR,
    MESSAGE_SIZE,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
)
from orthia.broker.protocols.amqp.frames import encode_frame
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Rejected,
    TransactionalState,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    data_prefix,
    encode_application_properties,
    encode_header,
    encode_properties,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import Symbol
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import UPLOAD_WINDOW_BYTES
from orthia.journal.errors import JournalClosed, JournalError, LargeBodyError
from tests.amqp.support import Client, Received
from tests.amqp.test_large_messages import LargeNode, amqp, next_message
from tests.core.support import SETTINGS, settings
from tests.journal.support import threads_of
from tests.stomp.support import PASSCODE, secured
from tests.stomp.test_large_messages import Client as StompClient
from tests.support.compiled import needs_pure_python
from tests.support.waiting import wait_until

FRAME = 65_536
LONG = "long" * PIECE_BYTES
"""A body of four pieces."""
DURABLE = encode_header(Header(durable=True))
FOOTER = encode_described(0x78, encode({Symbol("crc"): 1}))
Nodes = Callable[[Settings], LargeNode]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Give what makes a node of a test's own settings, on the test's one directory."""
    with ExitStack() as made:

        def make(options: Settings) -> LargeNode:
            node = LargeNode(tmp_path, options)
            made.callback(node.store.close)
            return node

        yield make


@pytest.fixture
def node(nodes: Nodes) -> LargeNode:
    """Give a node."""
    return nodes(SETTINGS)


def text(body: str = LONG, **said: Any) -> bytes:
    """Return a durable message with a text."""
    raw = body.encode()
    return b"".join(
        (
            DURABLE,
            encode_properties(Properties(message_id="ID:1", **said)),
            encode_application_properties({"kind": "x"}),
            text_prefix(len(raw)),
            raw,
        )
    )


class Upload:
    """A message that a client sends in transfers, reading and waiting as a socket would."""

    def __init__(self, node: LargeNode, client: Client, handle: int, **said: Any) -> None:
        self._node = node
        self._client = client
        self._handle = handle
        self.id = client._deliveries
        client._deliveries += 1
        self._said: dict[str, Any] = {"delivery_id": self.id, "delivery_tag": b"t", **said}

    def add(self, payload: bytes, *, more: bool = True, frame: int = FRAME, **said: Any) -> None:
        """Send some of it."""
        for at in range(0, len(payload), frame):
            self._node.wait(lambda: not self._client.connection.is_waiting, "it is read from")
            is_last = at + frame >= len(payload) and not more
            part = payload[at : at + frame]
            first, self._said = self._said, {}
            self._client.say(Transfer(self._handle, more=not is_last, **first, **said), part)


def upload(
    node: LargeNode, client: Client, handle: int, payload: bytes, frame: int = FRAME, **said: Any
) -> Disposition:
    """Send a whole message; return its outcome."""
    one = Upload(node, client, handle, **said)
    one.add(payload, more=False, frame=frame)
    outcome = outcome_of(node, client)
    assert outcome.first == one.id
    return outcome


def outcome_of(node: LargeNode, client: Client) -> Disposition:
    """Wait for one outcome, the only thing to come."""
    found: list[object] = []

    def came() -> bool:
        found.extend(client.all())
        return any(isinstance(one, Disposition | Close | End) for one in found)

    node.wait(came, "an outcome")
    (outcome,) = [one for one in found if not isinstance(one, Flow)]
    assert isinstance(outcome, Disposition), outcome
    return outcome


def error_in(outcome: Disposition) -> tuple[Symbol, str]:
    """Return why a message is rejected."""
    assert isinstance(outcome.state, Rejected)
    assert outcome.state.error is not None
    return outcome.state.error.condition, outcome.state.error.description or ""


def consumed(node: LargeNode, queue: str = "orders") -> Received:
    """Consume the one message of a queue, which leaves no body."""
    client = amqp(node, container_id="consumer")
    client.receiver(queue, 1)
    message = next_message(node, client)
    client.settle(message)
    node.wait_no_bodies()
    return message


def options(**limits: int) -> AmqpOptions:
    """Return those of an acceptor on which messages of 1,000 bytes are large."""
    return AmqpOptions(
        ClientLimits(**limits),
        AcceptorAmqp(min_large_message_size=1_000),
    )


# --- there and back


@pytest.mark.parametrize("frame", [512, FRAME, 2**20 - 100])
@pytest.mark.parametrize(
    "body",
    [
        text_prefix(len(LONG)) + LONG.encode(),
        data_prefix(300_000) + bytes(300_000) + data_prefix(7) + b"another" + FOOTER,
        encode_described(0x77, encode({"key": LONG})),
        encode_described(0x76, encode([LONG])) + encode_described(0x76, encode([1])),
    ],
    ids=["text", "data and footer", "map", "sequences"],
)
def test_a_large_message_comes_back_byte_for_byte(node: LargeNode, body: bytes, frame: int) -> None:
    """Whatever its sections are, and whatever its frames."""
    client = amqp(node)
    sent = text("")[: -len(text_prefix(0))] + body
    small = replace_frame(frame, body)
    outcome = upload(node, client, client.sender("orders"), sent, small)
    assert outcome.state == ACCEPTED
    assert outcome.settled
    assert len(node.bodies) == 1
    assert consumed(node).payload == sent


def test_each_transfer_of_a_message_that_is_a_body_only_carries_some_of_it(node: LargeNode) -> None:
    """Also the first, before any of the body is read: rhea cannot read an empty one."""
    client, body = amqp(node), encode_described(0x77, encode([LONG]))
    upload(node, client, client.sender("orders"), body)
    consumer = amqp(node, container_id="consumer")
    consumer.receiver("orders", 1)
    parts: list[bytes] = []

    def came() -> bool:
        parts.extend(data for said, data in consumer.came() if isinstance(said, Transfer))
        return b"".join(parts).endswith(body)

    node.wait(came, "the message")
    assert all(parts)
    assert b"".join(parts) == encode_composite(Header()) + body


def replace_frame(frame: int, body: bytes) -> int:
    """Return a size of frames in which a body has not too many of them for a test."""
    return frame if len(body) // frame < 700 else FRAME


def test_stomp_clients_get_a_large_message_by_the_table(node: LargeNode) -> None:
    """Of a text or a binary the bytes; headers as those of any other."""
    client = amqp(node)
    sent = text(subject="kind", correlation_id="c", reply_to="/queue/answers")
    upload(node, client, client.sender("orders"), sent)
    consumer = StompClient(node)
    consumer.subscribe()
    message = consumer.next("MESSAGE")
    assert message.body.decode() == LONG
    assert {name: message.get(name) for name in (b"type", b"correlation-id", b"kind")} == {
        b"type": "kind",
        b"correlation-id": "c",
        b"kind": "x",
    }
    consumer.send("ACK", id=message.get(b"ack") or "", receipt="done")
    consumer.next("RECEIPT")
    node.wait_no_bodies()


def test_a_message_of_the_least_size_is_large_and_a_smaller_one_is_not(node: LargeNode) -> None:
    """By its bytes as it is encoded, in one transfer or in several."""
    client = amqp(node, options=options())
    sender = client.sender("orders")
    around = len(text("x" * 300)) - 300
    upload(node, client, sender, text("x" * (999 - around)))
    upload(node, client, sender, text("x" * (999 - around)), frame=512)
    assert node.bodies == []
    upload(node, client, sender, text("x" * (1_000 - around)))
    assert len(node.bodies) == 1
    upload(node, client, sender, text("x" * (1_000 - around)), frame=512)
    assert len(node.bodies) == 2


def test_without_a_least_size_no_message_is_large(node: LargeNode) -> None:
    """It is taken whole then, up to what a message may have."""
    amqp_options = AcceptorAmqp(min_large_message_size=0)
    limits = ClientLimits(max_body_bytes=2 * FRAME, max_header_bytes=1_000)
    client = amqp(node, options=AmqpOptions(limits, amqp_options))
    sender = client.sender("orders")
    assert upload(node, client, sender, text("x" * 2 * FRAME)).state == ACCEPTED
    assert node.bodies == []
    client.say(Transfer(sender, 1, b"t", more=True), text("x" * (2 * FRAME + 1_000)))
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == MESSAGE_SIZE


def test_what_follows_a_large_message_is_behind_it(node: LargeNode) -> None:
    """Also where the one is in the store sooner than the other."""
    client = amqp(node)
    sender = client.sender("orders")
    Upload(node, client, sender).add(text(), more=False)
    client.send(sender, "second")
    states: list[object] = []

    def both() -> bool:
        states.extend(client.states())
        return len(states) == 2

    node.wait(both, "both outcomes")
    assert states == [ACCEPTED, ACCEPTED]
    other = amqp(node, container_id="other")
    receiver = other.receiver("orders", 1)
    assert next_message(node, other).text == LONG
    other.flow(receiver, 1, count=1)
    assert next_message(node, other).text == "second"


def test_links_of_one_client_send_large_messages_at_a_time(node: LargeNode) -> None:
    """Transfer by transfer; each is whole."""
    client = amqp(node)
    first = Upload(node, client, client.sender("one"))
    second = Upload(node, client, client.sender("two"))
    one, two = text("a" * 2_000_000), text("b" * 1_000_000)
    for at in range(0, 15 * FRAME, FRAME):
        first.add(one[at : at + FRAME])
        second.add(two[at : at + FRAME])
    second.add(two[15 * FRAME :], more=False)
    assert outcome_of(node, client).first == second.id
    first.add(one[15 * FRAME :], more=False)
    assert outcome_of(node, client).first == first.id
    client.connection.connection_lost()
    other = amqp(node, container_id="other")
    for queue, body in (("one", "a" * 2_000_000), ("two", "b" * 1_000_000)):
        other.receiver(queue, 1)
        message = next_message(node, other)
        assert message.text == body
        other.settle(message)
    node.wait_no_bodies()


# --- what is promised


def test_it_is_accepted_once_it_is_committed(
    node: LargeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its body is durable only."""
    client = amqp(node)
    sender = client.sender("orders")
    client.send(sender, "first")
    outcome_of(node, client)
    store = threads_of(node.journal).writer._store
    stores, may_store = threading.Event(), threading.Event()
    store_batch = store.store

    def store_when_told(batch: Any) -> Any:
        stores.set()
        assert may_store.wait(60)
        return store_batch(batch)

    monkeypatch.setattr(store, "store", store_when_told)
    Upload(node, client, sender).add(text(), more=False)

    def is_about_to_be_stored() -> bool:
        node.settle()
        return stores.is_set()

    wait_until(is_about_to_be_stored, what="its unit is about to be stored")
    assert client.outcomes() == []
    may_store.set()
    assert outcome_of(node, client).state == ACCEPTED


def test_64_mib_come_in_while_a_few_pieces_are_held(node: LargeNode) -> None:
    """As counted for the client, and as allocated by the process."""
    client = amqp(node)
    one = Upload(node, client, client.sender("orders"))
    most, size = 0, 64 * 1024 * 1024
    one.add(text("")[: -len(text_prefix(0))] + data_prefix(size))
    part = bytes(1024 * 1024 - 100)
    left = size
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        while left:
            sent = min(left, len(part))
            left -= sent
            one.add(part[:sent], more=left > 0, frame=2**20)
            most = max(most, client.connection.held, client.connection.sent)
        assert outcome_of(node, client).state == ACCEPTED
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What may wait for the store, a piece that is not whole, and the last frame.
    bound = UPLOAD_WINDOW_BYTES + PIECE_BYTES + 2**20
    assert PIECE_BYTES < most < bound + 100_000
    assert peak - before < bound + 8 * 2**20, "the test itself has some copies of each frame"
    assert node.broker.depths() == {"orders": 1}


def test_a_client_is_not_read_from_while_the_store_is_behind(node: LargeNode) -> None:
    """What waits for the store is bounded; the socket is told when to read on."""
    client = amqp(node)
    sender = client.sender("orders")
    waits = [client.connection.is_waiting]
    payload = text(LONG * 2)
    client.connection.receive(transfer(sender, payload[: 2**20 - 100], delivery_id=0))
    client.connection.receive(transfer(sender, payload[2**20 - 100 : 2**21 - 200]))
    waits.append(client.connection.is_waiting)
    assert client.connection.sent > UPLOAD_WINDOW_BYTES
    node.wait(lambda: client.waits_ended, "room again")
    waits.append(client.connection.is_waiting)
    assert waits == [False, True, False]


def transfer(handle: int, payload: bytes, *, more: bool = True, **said: Any) -> bytes:
    """Return a frame with a part of a message."""
    performative = Transfer(handle, delivery_tag=b"t" if said else None, more=more, **said)
    return encode_frame(encode_performative(performative) + payload)


@pytest.mark.parametrize("how", ["abort", "detach", "end", "close", "lose", "stop"])
def test_a_message_that_is_not_whole_leaves_nothing(node: LargeNode, how: str) -> None:
    """Whoever ends it, and how."""
    client = amqp(node)
    sender = client.sender("orders")
    Upload(node, client, sender).add(text()[: 3 * PIECE_BYTES])
    node.wait(lambda: node.bodies, "some of the body is stored")
    if how == "abort":
        client.say(Transfer(sender, aborted=True))
        assert upload(node, client, sender, text("next")).state == ACCEPTED
    elif how == "detach":
        client.say(Detach(sender, closed=True))
    elif how == "end":
        client.say(End())
    elif how == "close":
        client.say(Close())
    elif how == "lose":
        client.connection.connection_lost()
    else:
        client.connection.stop_serving()
        assert client.closed
        assert client.all() == []  # no outcome, and no error: it tries the other node
    node.wait_no_bodies()
    assert client.connection.held < 10_000
    assert node.broker.depths() == {"orders": 1 if how == "abort" else 0}


@pytest.mark.parametrize("how", ["lose", "stop"])
def test_a_message_whose_body_is_being_stored_is_not_sent_for_a_client_that_is_gone(
    node: LargeNode, how: str
) -> None:
    """It has no outcome, and sends it again."""
    client = amqp(node)
    sender = client.sender("orders")
    payload = text()
    client.connection.receive(transfer(sender, payload[: 2**20 - 100], delivery_id=0))
    client.connection.receive(transfer(sender, payload[2**20 - 100 :], more=False))
    if how == "lose":
        client.connection.connection_lost()
    else:
        client.connection.stop_serving()
    node.wait_no_bodies()
    assert node.broker.depths() == {"orders": 0}


def test_a_durable_body_goes_with_its_client_if_its_message_is_not_sent_yet(
    node: LargeNode,
) -> None:
    """Between the one turn of the loop and the next."""
    client = amqp(node)
    Upload(node, client, client.sender("orders")).add(text(), more=False)
    (under_way,) = client.connection.uploads._under_way
    node.wait(lambda: under_way._outcome is not None, "its body is durable")
    client.connection.connection_lost()
    node.wait_no_bodies()
    assert node.broker.depths() == {"orders": 0}


@needs_pure_python("what is compiled calls its own methods, whatever stands in their place")
def test_a_node_that_is_no_longer_live_gives_no_outcome(
    node: LargeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client fails over, and sends the message again."""
    client = amqp(node)

    def no_longer(*_: object) -> None:
        raise NotLive("this node is not live")

    one = Upload(node, client, client.sender("orders"))
    one.add(text()[:FRAME])
    monkeypatch.setattr(node.broker, "send", no_longer)
    one.add(text()[FRAME:], more=False)
    node.wait(lambda: client.closed, "the end")
    assert client.outcomes() == []
    node.wait_no_bodies()


@pytest.mark.parametrize("error", [JournalClosed, LargeBodyError])
def test_a_node_that_stops_amid_a_body_gives_no_outcome(
    node: LargeNode, error: type[JournalError]
) -> None:
    """Rejected, the message would be lost: its client is to send it to the next node."""
    client = amqp(node)
    Upload(node, client, client.sender("orders")).add(text(), more=False)
    (under_way,) = client.connection.uploads._under_way
    under_way.stored(error("the store is not there, and this node stops"))
    node.settle()
    assert client.closed
    assert client.all() == []


@pytest.mark.parametrize("ends", ["commit", "roll back", "lose", "before"])
def test_a_transaction_sends_its_large_messages_or_none(node: LargeNode, ends: str) -> None:
    """They are stored as they come, and sent by the commit."""
    client = amqp(node)
    coordinator, sender = client.coordinator(), client.sender("orders")
    txn_id = client.declare(coordinator)
    client._deliveries += 1
    one = Upload(node, client, sender, state=TransactionalState(txn_id))
    one.add(text()[:FRAME])
    if ends == "before":
        client.discharge(coordinator, txn_id, fail=True)
        assert client.states() == [ACCEPTED]
    one.add(text()[FRAME:], more=False)
    outcome = outcome_of(node, client)
    if ends == "before":
        assert error_in(outcome)[0] == "amqp:transaction:unknown-id"
    else:
        assert outcome.state == TransactionalState(txn_id, ACCEPTED)
        assert node.broker.depths() == {"orders": 0}
        assert len(node.bodies) == 1
    if ends == "lose":
        client.connection.connection_lost()
    elif ends != "before":
        client.discharge(coordinator, txn_id, fail=ends == "roll back")
        assert outcome_of(node, client).state == ACCEPTED
    if ends == "commit":
        assert consumed(node).payload == text()
    node.wait_no_bodies()


def test_a_connection_that_ends_within_the_last_step_of_a_commit_takes_no_body(
    node: LargeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit is on its way by then, as when a delivery fails that the commit makes room for."""
    client = amqp(node)
    control, sender = client.coordinator(), client.sender("orders")
    txn_id = client.declare(control)
    state = TransactionalState(txn_id)
    assert isinstance(upload(node, client, sender, text(), state=state).state, TransactionalState)
    StompClient(node).send_stored("in", destination="/queue/in")
    client.receiver("in", 1)
    client.settle(*client.messages(), state=TransactionalState(txn_id, ACCEPTED))
    settle = Queue.settle

    def settle_and_lose(
        queue: Queue, taken: Sequence[MessageReference], answer: Answer
    ) -> Settlement:
        client.connection.connection_lost()
        return settle(queue, taken, answer)

    monkeypatch.setattr(Queue, "settle", settle_and_lose)
    client.discharge(control, txn_id)
    monkeypatch.undo()
    node.wait(lambda: node.broker.depths() == {"orders": 1, "in": 0}, "the message is stored")
    assert consumed(node).text == LONG


def test_a_large_message_that_is_sent_settled_is_sent(node: LargeNode) -> None:
    """Without an outcome."""
    client = amqp(node)
    Upload(node, client, client.sender("orders"), settled=True).add(text(), more=False)
    node.wait(lambda: node.broker.depths() == {"orders": 1}, "it is stored")
    assert client.outcomes() == []
    assert consumed(node).payload == text()


# --- what is refused


def test_a_message_larger_than_may_be_ends_its_link(node: LargeNode) -> None:
    """At its head if it says so there, else when it is; what more comes of it is dropped."""
    client = amqp(node, options=options(max_large_message_size=PIECE_BYTES, max_header_bytes=500))
    for body in (
        data_prefix(PIECE_BYTES + 1) + bytes(2_000),
        (data_prefix(FRAME) + bytes(FRAME)) * 6,
    ):
        sender = client.sender("orders")
        one = Upload(node, client, sender)
        one.add(DURABLE + body)
        detach = client.take(Detach)
        assert detach.error is not None
        assert detach.error.condition == MESSAGE_SIZE
        assert "max-large-message-size" in (detach.error.description or "")
        one.add(bytes(2_000))
        client.say(Detach(sender, closed=True))
    assert not client.closed
    node.wait_no_bodies()
    assert client.connection.held < 10_000


@pytest.mark.parametrize("says_size", [True, False])
@pytest.mark.parametrize("limited", ["store", "address"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_message_for_which_there_is_no_room_is_rejected(
    nodes: Nodes, limited: str, *, says_size: bool, settled: bool
) -> None:
    """The link goes on; one that was sent settled ends it, for its client would not learn it."""
    size = len(LONG) // 2
    if limited == "store":
        node = nodes(replace(SETTINGS, max_store_bytes=size))
    else:
        node = nodes(settings("orders", page_limit_bytes=size))
    client = amqp(node)
    sender = client.sender("orders")
    body = data_prefix(len(LONG)) + LONG.encode()
    if not says_size:
        body = (data_prefix(FRAME) + bytes(FRAME)) * 16
    one = Upload(node, client, sender, settled=settled)
    one.add(DURABLE + body, more=False)
    if settled:
        detach = client.take(Detach)
        assert detach.error is not None
        assert detach.error.condition == RESOURCE_LIMIT
        client.say(Detach(sender, closed=True))
        sender = client.sender("orders")
    else:
        condition, why = error_in(outcome_of(node, client))
        assert condition == RESOURCE_LIMIT
        assert ("max-store-bytes" if limited == "store" else "page-limit-bytes") in why
    node.wait_no_bodies()
    assert node.broker.store_use.used == 0
    assert upload(node, client, sender, text("small")).state == ACCEPTED


def test_a_large_message_that_says_a_size_without_room_is_refused_at_its_head(nodes: Nodes) -> None:
    """What comes of it is not stored; its client learns that at its end."""
    client = amqp(node := nodes(replace(SETTINGS, max_store_bytes=len(LONG) // 2)))
    one = Upload(node, client, client.sender("orders"))
    held = client.connection.held
    one.add(text()[: 2 * FRAME])
    assert client.connection.held == held
    assert node.bodies == []
    one.add(text()[2 * FRAME :], more=False)
    assert error_in(outcome_of(node, client))[0] == RESOURCE_LIMIT


def test_a_large_message_to_where_its_client_may_not_send_is_rejected(nodes: Nodes) -> None:
    """None of it is stored."""
    node = nodes(secured({"ada": "readers"}, {"#": {"readers": "consume"}}))
    client = amqp(node, opens=False)
    assert client.log_in("PLAIN", f"\0ada\0{PASSCODE}".encode()).code == 0
    client.open()
    sender = client.sender(None)
    condition, _ = error_in(upload(node, client, sender, text(to="orders")))
    assert condition == UNAUTHORIZED
    assert node.bodies == []
    assert not client.closed


@pytest.mark.parametrize(
    "body",
    [
        data_prefix(4) + b"long" + bytes(2_000),
        data_prefix(4) + b"long" + data_prefix(2_000) + bytes(1_999),
        text_prefix(2_000) + bytes(2_000) + data_prefix(1) + b"x",
    ],
    ids=["no section", "cut off", "another kind"],
)
def test_a_large_message_whose_body_is_none_is_rejected(node: LargeNode, body: bytes) -> None:
    """To who sends it, and not to who gets it."""
    client = amqp(node, options=options())
    sender = client.sender("orders")
    condition, _ = error_in(upload(node, client, sender, DURABLE + body, frame=512))
    assert condition == DECODE_ERROR
    node.wait_no_bodies()
    assert upload(node, client, sender, text("x" * 2_000)).state == ACCEPTED


@pytest.mark.parametrize("why", ["no body", "nowhere", "no head"])
def test_nothing_is_kept_of_a_message_that_is_refused_before_its_end(
    node: LargeNode, why: str
) -> None:
    """Which may never come, on each of very many links: neither what came of it nor its head."""
    client = amqp(node, options=options())
    senders = [client.sender(None if why == "nowhere" else "orders") for _ in range(10)]
    head = DURABLE + encode_application_properties({"x": "y" * 50_000})
    begun = {
        "no body": head + data_prefix(4) + bytes(PIECE_BYTES),
        "nowhere": head + data_prefix(PIECE_BYTES) + bytes(PIECE_BYTES),
        "no head": b"xyz" + bytes(PIECE_BYTES),
    }[why]
    tracemalloc.start()
    try:
        for sender in senders:
            client.transfer(sender, begun, more=True)
            client.say(Transfer(sender, more=True), bytes(PIECE_BYTES))
        client.all()
        node.wait_no_bodies()
        kept = tracemalloc.take_snapshot()
        # The journal's threads make files meanwhile.
        here = [tracemalloc.Filter(True, f"*/{one}/*") for one in ("protocols", "tests")]
        assert sum(one.size for one in kept.filter_traces(here).traces) < 10 * 20_000
    finally:
        tracemalloc.stop()
    assert client.connection.buffered == 0
    assert client.connection.uploads.held == 0


def test_the_head_of_a_large_message_counts_until_its_end(node: LargeNode) -> None:
    """Beside what is there of its body."""
    client = amqp(node, options=options())
    sender = client.sender("orders")
    head = DURABLE + encode_application_properties({"x": "y" * 50_000})
    before = client.connection.held
    client.transfer(sender, head + data_prefix(2**20) + bytes(1_000), more=True)
    assert client.connection.held - before > 51_000


@pytest.mark.parametrize("beginning", [b"\0\x53\x74\xd1\x7f\xff\xff\xff\0\0\0\2", b"xyz"])
def test_a_large_message_without_a_head_is_rejected(node: LargeNode, beginning: bytes) -> None:
    """One that is no message, or has more before its body than may be."""
    client = amqp(node, options=options())
    sender = client.sender("orders")
    condition, _ = error_in(upload(node, client, sender, beginning + bytes(200_000)))
    assert condition == DECODE_ERROR
    assert client.connection.held < 10_000
    assert upload(node, client, sender, text("x" * 2_000)).state == ACCEPTED


def test_a_body_that_cannot_be_stored_is_rejected(node: LargeNode) -> None:
    """With the reason; the link goes on, and takes the next once the disk is well."""
    directory = node.store.settings.large_messages_directory
    directory.rmdir()
    client = amqp(node)
    sender = client.sender("orders")
    _, why = error_in(upload(node, client, sender, text()))
    assert "cannot write" in why
    directory.mkdir()
    assert upload(node, client, sender, text()).state == ACCEPTED
    assert node.store.failures == []


def test_a_client_that_sends_nothing_more_of_a_large_message_is_ended(node: LargeNode) -> None:
    """Its body would stay in the store for ever; heart-beats are no part of it."""
    client = amqp(node, options=options(upload_timeout=5_000))
    Upload(node, client, client.sender("orders")).add(text()[:FRAME])
    client.now = 4.0
    client.connection.tick(4.0)
    client.connection.tick(5.0)
    assert not client.closed
    client.connection.tick(9.0, is_read=False)  # it is not read from: it cannot send
    client.connection.tick(13.0)
    assert not client.closed
    client.connection.tick(14.5)
    assert "upload-timeout 5000 ms" in (client.error().description or "")
    node.wait_no_bodies()


def test_a_client_that_sends_a_large_message_slowly_goes_on(node: LargeNode) -> None:
    """It has its time for each piece, not for all of them."""
    client = amqp(node, options=options(upload_timeout=5_000))
    one, payload = Upload(node, client, client.sender("orders")), text()
    for at in range(4):
        client.now = 4.0 * at
        one.add(payload[at * FRAME : (at + 1) * FRAME])
        client.connection.tick(client.now + 3.9)
    assert not client.closed
    one.add(payload[4 * FRAME :], more=False)
    assert outcome_of(node, client).state == ACCEPTED


@pytest.mark.parametrize("how", ["store", "link"])
def test_a_client_is_read_from_again_when_what_it_waited_for_is_over(
    node: LargeNode, how: str
) -> None:
    """The store cannot have the body, or the link has ended: nothing else tells its socket."""
    directory = node.store.settings.large_messages_directory
    if how == "store":
        directory.rmdir()
    client = amqp(node)
    sender = client.sender("orders")
    payload = text(LONG * 2)
    client.connection.receive(transfer(sender, payload[: 2**20 - 100], delivery_id=0))
    client.connection.receive(transfer(sender, payload[2**20 - 100 : 2**21 - 200]))
    assert client.connection.is_waiting
    before = client.waits_ended
    if how == "link":
        session = client.connection._sessions[0]
        assert session is not None
        link = session._links[sender]
        assert link is not None
        session.end_link(link, Error(RESOURCE_LIMIT, "the store refused an earlier message"))
    node.wait(lambda: not client.connection.is_waiting, "it may be read from")
    assert client.waits_ended > before
