"""AMQP load that costs the machine as little as that of STOMP: frames are encoded beforehand.

Transfers of one size lie in a block, of which a send is a slice. What comes is counted by the bytes
with which a performative begins; of outcomes only the range is read.
"""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.floors import BODY
from benchmarks.stomp_load import Client, LoadError, Run, pump
from orthia.broker.protocols.amqp.frames import (
    AMQP_ID,
    ProtocolHeader,
    accepted_frame,
    encode_frame,
)
from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    SENDER,
    SETTLED,
    UNSETTLED,
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    data_prefix,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
)
from orthia.broker.protocols.amqp.types import LIST_32
from orthia.broker.protocols.amqp.values import Byte, Int, Symbol, Timestamp, Value

_IDS = 24_576
"""How many delivery ids there are before they begin anew: Artemis takes them in sequence only."""
_FIRST_ID = 2**16
"""All ids from here on take as many bytes, and so do their frames."""
_WINDOW = 2**31 - 1
_CREDIT = 2_000
_FLOW = b"\0S\x13"
_TRANSFER = b"\0S\x14\xc0"
_DISPOSITION = b"\0S\x15\xc0"
_RANGE = struct.Struct(">BIBI")
_RANGE_AT = 7
"""How far behind the beginning of a disposition its first and last id are, behind its role."""
_UINT = 0x70
_QUEUE = Symbol("queue")
PLAIN = "plain"
JMS = "JMS"
"""A message as qpid-jms sends it, with its properties and two of the application."""
HEADERS_OF_JMS = (
    "persistent:true\nJMSXMessageType:3\nJMSXDestinationType:0\n"
    "message:ID\\c000000000000000000000000000000000000\\c1\\c1\\c1-100000\n"
    "content-type:application/octet-stream\ncreated:1700000000000\ncolour:red\nnumber:100000\n"
)
"""As many headers of STOMP as that says of itself, of the same length."""


def message(kind: str, queue: str, number: int = 0) -> bytes:
    """Return a durable message of 1 KiB; those of JMS differ by their ``number``."""
    before = encode_header(Header(durable=True))
    if kind == JMS:
        number += 100_000
        jms: dict[object, Value] = {
            Symbol("x-opt-jms-msg-type"): Byte(3),
            Symbol("x-opt-jms-dest"): Byte(0),
        }
        before += encode_annotations(jms)
        before += _wide(
            encode_properties(
                Properties(
                    message_id=f"ID:{'0' * 36}:1:1:1-{number}",
                    to=queue,
                    content_type=Symbol("application/octet-stream"),
                    creation_time=Timestamp(1_700_000_000_000 + number),
                )
            )
        )
        before += encode_application_properties({"colour": "red", "number": Int(number)})
    return before + data_prefix(len(BODY)) + BODY


def _wide(section: bytes) -> bytes:
    """Return a short list with its size and count in 4 bytes each, as Java's clients write it."""
    size, count = section[4] + 3, section[5]
    return section[:3] + struct.pack(">BII", LIST_32, size, count) + section[6:]


def transfers(kind: str, queue: str) -> "Transfers":
    """Return the messages that ``produce`` sends; encoding them takes up to a second."""
    return Transfers(partial(message, kind, queue))


def produce(
    port: int,
    queue: str,
    encoded: "Transfers",
    *,
    producers: int,
    outstanding: int,
    seconds: float,
) -> Run:
    """Send by ``producers``, each with ``outstanding`` messages without an outcome."""
    return _produce(
        port,
        encoded,
        queue,
        producers,
        outstanding,
        lambda count, _, since: count if since < seconds else 0,
    )


def fill(port: int, queue: str, count: int, kind: str = PLAIN) -> None:
    """Send ``count`` messages, 200 or more, and wait until all are accepted."""
    encoded = transfers(kind, queue)
    _produce(port, encoded, queue, 1, 200, lambda answered, sent, _: min(answered, count - sent))


def _produce(
    port: int,
    encoded: "Transfers",
    queue: str,
    producers: int,
    outstanding: int,
    more: Callable[[int, int, float], int],
) -> Run:
    """Send messages until ``more`` are not asked for, and wait until all are accepted.

    ``more`` returns how many to send next, given how many were accepted last and sent so far, and
    how many seconds ago the first was sent.
    """
    accepted = sent = 0
    with _clients(port, producers) as connected:
        for client in connected:
            _attach_sending(client, 0, queue)
        read = {client: _Outcomes() for client in connected}
        sent_by = dict.fromkeys(connected, 0)
        began = time.perf_counter()

        def send(client: Client, count: int) -> None:
            nonlocal sent
            client.send(encoded.some(sent_by[client], count))
            sent_by[client] += count
            sent += count

        def answered(client: Client, data: bytes) -> None:
            nonlocal accepted
            count = read[client].count(data)
            accepted += count
            if count:
                send(client, more(count, sent, time.perf_counter() - began))

        for client in connected:
            send(client, outstanding)
        pump(connected, answered, lambda: accepted == sent)
        return Run(accepted, time.perf_counter() - began)


def consume(port: int, queue: str, count: int, *, is_settled: bool) -> Run:
    """Take ``count`` messages from a queue by one consumer.

    They come settled, or each read is accepted by one frame.
    """
    last = Transfers(partial(message, PLAIN, "behind"), handle=1, ids=1)
    with _clients(port, 1) as (client,):
        _attach_sending(client, 1, "behind")
        mode = SETTLED if is_settled else UNSETTLED
        source = Source(queue, capabilities=(_QUEUE,))
        began = time.perf_counter()
        client.send(_frame(Attach("r", 0, RECEIVER, mode, source=source, target=Target())))
        client.send(_frame(Flow(0, _WINDOW, 0, _WINDOW, 0, 0, _CREDIT)))
        received, tail = 0, b""

        def answered(taker: Client, data: bytes) -> None:
            nonlocal received, tail
            data = tail + data
            came = data.count(_TRANSFER)
            tail = data[-len(_TRANSFER) + 1 :]
            if not came:
                return
            first, received = received, received + came
            said = b""
            if not is_settled:
                said = accepted_frame(0, first, received - 1)
            flow = Flow(received, _WINDOW, 0, _WINDOW, 0, received, _CREDIT)
            taker.send(said + _frame(flow))

        pump([client], answered, lambda: received >= count)
        # Its outcome comes after all that was settled before is stored.
        client.send(last.some(0, 1))
        outcomes = _Outcomes()
        pump([client], lambda _, data: outcomes.add(data), lambda: outcomes.found > 0)
        return Run(count, time.perf_counter() - began)


class Transfers:
    """A message for each of many delivery ids, encoded once; all are of one length."""

    def __init__(self, payload: Callable[[int], bytes], handle: int = 0, ids: int = _IDS) -> None:
        frames = [
            encode_frame(
                encode_performative(Transfer(handle, number, number.to_bytes(4, "big"), 0))
                + payload(number)
            )
            for number in range(_FIRST_ID, _FIRST_ID + ids)
        ]
        self._block = b"".join(frames) * 2
        self._size = len(frames[0])
        self._ids = ids

    def some(self, before: int, count: int) -> bytes:
        """Return ``count`` transfers, after so many others; at most as many as there are ids."""
        at = before % self._ids * self._size
        return self._block[at : at + count * self._size]


class _Outcomes:
    """Counts the messages that are accepted."""

    def __init__(self) -> None:
        self.found = 0
        self._tail = b""

    def add(self, data: bytes) -> None:
        """Read what came."""
        self.found += self.count(data)

    def count(self, data: bytes) -> int:
        """Return how many messages are accepted by what came; raises LoadError for another one."""
        data, found, at = self._tail + data, 0, 0
        while (at := data.find(_DISPOSITION, at)) >= 0:
            if at + _RANGE_AT + _RANGE.size > len(data):
                self._tail = data[at:]
                return found
            code, first, _, last = _RANGE.unpack_from(data, at + _RANGE_AT)
            if code != _UINT:
                raise LoadError("the broker said another outcome than accepted")
            found += last - first + 1
            at += _RANGE_AT + _RANGE.size
        self._tail = data[-len(_DISPOSITION) + 1 :]
        return found


@contextmanager
def _clients(port: int, count: int) -> Iterator[list[Client]]:
    """Connect clients with a session each; close them with the block."""
    header = ProtocolHeader(AMQP_ID).encode()
    opening = header + _frame(Open("bench", max_frame_size=2**20))
    opening += _frame(Begin(None, 0, _WINDOW, _WINDOW))
    connected = [Client(port, greeting=(opening, header)) for _ in range(count)]
    try:
        yield connected
    finally:
        for client in connected:
            client.socket.close()


def _attach_sending(client: Client, handle: int, queue: str) -> None:
    """Attach a link by which messages are sent, and wait for its credit."""
    target = Target(queue, capabilities=(_QUEUE,))
    said = Attach(f"s{handle}", handle, SENDER, UNSETTLED, source=Source(), target=target)
    client.send(_frame(said._replace(initial_delivery_count=0)))
    data = b""

    def answered(_: Client, more: bytes) -> None:
        nonlocal data
        data += more

    pump([client], answered, lambda: _FLOW in data)


def _frame(said: object) -> bytes:
    return encode_frame(encode_performative(said))
