"""AMQP clients that mean harm, against a real node: it stays up and small, and serves others.

At the end of each test the node must have computed for no longer in one turn than clients may be
kept waiting: see ``live_node``.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.protocols.amqp.frames import (
    AMQP_ID,
    Frame,
    FrameReader,
    ProtocolHeader,
    encode_frame,
)
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Flow,
    Open,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_performative,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import VALUE, Header, data_prefix, encode_header
from orthia.broker.protocols.amqp.types import encode_described
from tests.hostile.node import MIB, LimitedNode, Witness, live_node

pytestmark = pytest.mark.extended
_WINDOW = 2**31 - 1
_MANY = 5_000
_LINKS = 300


class Attacker:
    """An AMQP client that is in no hurry to follow the rules."""

    def __init__(self, node: LimitedNode) -> None:
        self._socket = node.open()
        self._frames = FrameReader(MIB)
        self._came: list[tuple[object, bytes]] = []
        self._deliveries = 0
        self._socket.sendall(ProtocolHeader(AMQP_ID).encode())
        self.say(Open("attacker", max_frame_size=MIB), Begin(None, 0, _WINDOW, _WINDOW))
        self.until(Begin)

    def say(self, *performatives: object) -> None:
        """Say them one after the other."""
        frames = [encode_frame(encode_performative(one)) for one in performatives]
        self._socket.sendall(b"".join(frames))

    def send(self, handle: int, payload: bytes, *, more: bool = False) -> None:
        """Send a message, or the beginning of one."""
        said = Transfer(handle, self._deliveries, b"t", 0, more=more)
        self._deliveries += 1
        self._socket.sendall(encode_frame(encode_performative(said) + payload))

    def send_to(self, address: str) -> None:
        """Attach a link by handle 0 to send by."""
        self.say(Attach("s", 0, SENDER, source=Source(), target=Target(address)))
        self.until(Flow)

    def receive_from(self, address: str, handle: int, credit: int = 0) -> None:
        """Attach a link to receive by."""
        self.say(
            Attach(f"r{handle}", handle, RECEIVER, source=Source(address), target=Target()),
            Flow(0, _WINDOW, 0, _WINDOW, handle, 0, credit),
        )

    def coming(self) -> Iterator[object]:
        """Yield what comes."""
        while True:
            while (frame := self._frames.next_frame()) is not None:
                if isinstance(frame, Frame) and frame.body:
                    yield decode_performative(frame.body)[0]
            data = self._socket.recv(MIB)
            assert data, "the node has ended the connection"
            self._frames.receive(data)

    def until(self, kind: type) -> object:
        """Return the next performative of a kind."""
        return next(one for one in self.coming() if isinstance(one, kind))

    def until_done(self) -> None:
        """Wait until all that was said is handled."""
        self.say(Flow(0, _WINDOW, 0, _WINDOW, echo=True))
        found = (one for one in self.coming() if isinstance(one, Flow))
        assert next(one for one in found if one.handle is None)

    def messages(self, count: int) -> None:
        """Take so many messages."""
        transfers = (one for one in self.coming() if isinstance(one, Transfer))
        for _ in range(count):
            next(transfers)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LimitedNode]:
    """Give a node that serves both protocols."""
    with live_node(tmp_path, parameters=",AMQP") as started:
        yield started


def _fill(node: LimitedNode, destination: bytes, count: int) -> None:
    """Send so many messages, and wait until they are stored."""
    sender = node.connect()
    sender.sendall(b"SEND\ndestination:%b\n\nx\0" % destination * (count - 1))
    sender.sendall(b"SEND\ndestination:%b\nreceipt:last\n\nx\0" % destination)
    data = b""
    while b"receipt-id:last" not in data:
        data += sender.recv(65_536)


def _list_of(count: int, value: bytes) -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + count * len(value), count) + count * value


def test_who_sends_all_its_credit_at_once_gets_an_outcome_for_each_message(
    node: LimitedNode,
) -> None:
    """Each once, in order, though the store takes many together; what is no message is rejected."""
    client = Attacker(node)
    client.send_to("orders")
    message = encode_header(Header(durable=True)) + data_prefix(1) + b"x"
    sent = 900
    for number in range(sent):
        client.send(0, message if number != 500 else b"rubbish")
    outcomes = (one for one in client.coming() if isinstance(one, Disposition))
    accepted: list[int] = []
    rejected: list[int] = []
    while len(accepted) + len(rejected) < sent:
        said = next(outcomes)
        known = accepted if isinstance(said.state, Accepted) else rejected
        known += range(said.first, (said.first if said.last is None else said.last) + 1)
    assert rejected == [500]
    assert accepted == [number for number in range(sent) if number != 500]


def test_messages_that_take_long_to_read(node: LimitedNode) -> None:
    """Of tens of thousands of sections, or values; what a STOMP client gets is written shortly."""
    witness = Witness(node)
    reader = node.connect()
    reader.sendall(b"SUBSCRIBE\nid:r\ndestination:/queue/lists\nack:auto\n\n\0")
    attacker = Attacker(node)
    attacker.send_to("lists")
    for _ in range(5):
        attacker.send(0, b"\0SvE" * 25_000)
        properties = b"\xa1\1a" + _list_of(60_000, b"\x40")
        attacker.send(0, b"\0St\xd1" + struct.pack(">II", len(properties) + 4, 2) + properties)
        attacker.send(0, b"\0Sw" + _list_of(60_000, b"\x45"))
        witness.is_served()
    for _ in range(128):
        attacker.send(0, b"\0Sw" + _list_of(500, b"\x45"))
    attacker.send(0, b"\0SvE" * 200_000, more=True)
    attacker.until_done()
    witness.is_served()


def test_windows_and_drains_again_and_again(node: LimitedNode) -> None:
    """On many links: each is looked at in a turn of its own."""
    witness = Witness(node)
    attacker = Attacker(node)
    for handle in range(_LINKS):
        attacker.receive_from("orders", handle)
    attacker.until_done()
    before = node.resident
    for _ in range(10):
        attacker.say(*(Flow(0, window, 0, _WINDOW) for window in (0, _WINDOW) * 100))
        drains = (Flow(0, 0, 0, _WINDOW, one, 0, 9, drain=True) for one in range(_LINKS))
        attacker.say(*drains)
        witness.is_served()
    attacker.until_done()
    assert node.resident - before < 30 * MIB


def test_one_disposition_of_all_that_many_links_have(node: LimitedNode) -> None:
    """And those of what nobody has."""
    witness = Witness(node)
    attacker = Attacker(node)
    for handle in range(8):
        attacker.receive_from("/topic/news", handle, 2**32 - 1)
    attacker.until_done()
    _fill(node, b"/topic/news", _MANY)
    attacker.messages(8 * _MANY)
    for first in (2**31, 0):
        said = Disposition(RECEIVER, first, first + 2**30, settled=True, state=ACCEPTED)
        attacker.say(said, said, said, said)
        attacker.until_done()
        witness.is_served()


def test_a_transaction_of_many_outcomes_that_is_rolled_back(node: LimitedNode) -> None:
    """Each was said by itself, and not like the one before it."""
    witness = Witness(node)
    _fill(node, b"/queue/orders", _MANY)
    attacker = Attacker(node)
    attacker.receive_from("orders", 1, _MANY)
    attacker.messages(_MANY)
    attacker.say(Attach("c", 0, SENDER, source=Source(), target=Coordinator()))
    attacker.send(0, encode_described(VALUE, encode_performative(Declare())))
    declared = attacker.until(Disposition)
    assert isinstance(declared, Disposition)
    assert isinstance(declared.state, Declared)
    txn_id = declared.state.txn_id
    states = [TransactionalState(txn_id, one) for one in (ACCEPTED, RELEASED)]
    attacker.say(
        *(
            Disposition(RECEIVER, one, settled=bool(one % 3), state=states[one % 2])
            for one in range(_MANY)
        )
    )
    attacker.send(0, encode_described(VALUE, encode_performative(Discharge(txn_id, fail=True))))
    attacker.until_done()
    witness.is_served()
