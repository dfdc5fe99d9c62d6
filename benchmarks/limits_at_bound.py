"""What clients do to bring each limit of docs/limits.md to its bound: ``benchmarks.limits``.

Each work is on a node of its own, with the limits as they are without configuration, unless it says
otherwise. What is not the loop's work has none here.
"""

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.stomp_load import Client, LoadError, pump
from orthia.config.settings import ClientLimits
from tests.hostile.node import MIB, LimitedNode
from tests.support.certificates import Authority
from tests.support.servers import free_port
from tests.tls.test_acceptors import trusting
from tests.websocket.client import WebSocketClient
from tests.websocket.test_websocket import frame

LIMITS: Final = ClientLimits()
NEARLY_A_NUMBER: Final = ("1" * 308 + "." + "1" * 308 + "e1x").ljust(1_024, "x")
_COMPARISONS: Final = 580
_SILENCE_SECONDS: Final = 300
_DONE: Final = b"SEND\ndestination:/topic/nobody\nreceipt:done\n\n\0"
_EACH: Final = LIMITS.max_queues_per_connection - 50
"""How many queues a client of these has created, so that it is within its limit."""
Frames = bytes | Callable[[int], bytes]


def long_selector(number: int) -> str:
    """Return one about as long as a selector may be, false of a text that is nearly a number."""
    return " OR ".join([f"b={number}", *["a>1"] * _COMPARISONS])


class Secured:
    """An acceptor with TLS, beside the one without."""

    def __init__(self, directory: Path) -> None:
        authority = Authority()
        self._context = trusting(authority)
        self._port = free_port()
        pem = authority.sign().write_pem(directory / "broker.pem")
        self.parameters: Final = (
            f'</acceptor><acceptor name="tls">tcp://127.0.0.1:{self._port}?protocols=STOMP'
            f";sslEnabled=true;keyStorePath={pem}"
        )
        """What makes it, where those of the other acceptor end."""

    def connect(self) -> ssl.SSLSocket:
        """Do the handshake."""
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=_SILENCE_SECONDS)
        return self._context.wrap_socket(plain, server_hostname="localhost")


class Stage:
    """A node, and the clients of one work."""

    def __init__(self, node: LimitedNode, secured: Secured) -> None:
        self.node = node
        self.secured = secured
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(self._clients)

    def clients(self, count: int, client_id: str = "") -> list[Client]:
        """Connect ``count`` clients; with client ids that begin so, if that is not empty."""
        made = [
            Client(self.node.port, client_id=client_id and f"{client_id}{number}")
            for number in range(count)
        ]
        self._clients += made
        return made

    def close(self, clients: Iterable[Client]) -> None:
        """Close the clients' sockets without DISCONNECT."""
        for client in [*clients]:
            client.socket.close()

    def send(self, clients: list[Client], frames: Frames, times: int = 1) -> None:
        """Send frames from each client ``times`` times, and wait for the receipt of a last frame.

        Discards all other answers.
        """
        for first in range(0, times, 1_000):
            part = range(first, min(times, first + 1_000))
            data = (
                frames * len(part)
                if isinstance(frames, bytes)
                else b"".join(frames(number) for number in part)
            )
            for client in clients:
                client.send(data + _DONE)
            self._await(clients, b"receipt-id:done\n", len(clients))

    def receive(self, clients: list[Client], messages: int) -> bytes:
        """Wait until they got so many MESSAGEs together; return the last that came."""
        return self._await(clients, b"MESSAGE\n", messages)

    def _await(self, clients: list[Client], mark: bytes, count: int) -> bytes:
        seen, last = 0, b""
        tails = dict.fromkeys(clients, b"")

        def answered(client: Client, data: bytes) -> None:
            nonlocal seen, last
            whole = tails[client] + data
            seen += whole.count(mark)
            # The mark itself is not counted twice: the rest is shorter than it.
            tails[client] = whole[len(whole) - len(mark) + 1 :]
            last = (last + data)[-4_096:]

        pump(clients, answered, lambda: seen >= count, _SILENCE_SECONDS)
        return last

    def fill(self, queue: str, messages: int, headers: str = "", body: bytes = b"x") -> None:
        """Put messages into a queue."""
        frame = b"SEND\ndestination:/queue/%b\n%b\n%b\0" % (
            queue.encode(), headers.encode(), body,
        )  # fmt: skip
        self.send(self.clients(1), frame, messages)

    def make_queues(self, count: int, prefix: str, headers: bytes = b"") -> None:
        """Make queues of such names with a message each."""
        name = prefix.encode()
        for first in range(0, count, _EACH):
            clients = self.clients(1)

            def frames(number: int, first: int = first) -> bytes:
                return b"SEND\ndestination:/queue/%b%d\n%b\nx\0" % (name, first + number, headers)

            self.send(clients, frames, min(_EACH, count - first))
            self.close(clients)

    def subscribe_durably(
        self,
        count: int,
        topic: Callable[[int], str],
        selector: Callable[[int], str] | None = None,
        prefix: str = "d",
    ) -> None:
        """Make durable subscriptions, which are not attached."""
        for first in range(0, count, _EACH):
            clients = self.clients(1, f"{prefix}{first}-")

            def frames(number: int, first: int = first) -> bytes:
                at = first + number
                asked = f"selector:{selector(at)}\n" if selector else ""
                return (
                    f"SUBSCRIBE\nid:{at}\ndestination:/topic/{topic(at)}\n{asked}"
                    f"durable-subscription-name:{prefix}{at}\n\n\0UNSUBSCRIBE\nid:{at}\n\n\0"
                ).encode()

            self.send(clients, frames, min(_EACH, count - first))
            self.close(clients)


@dataclass(frozen=True)
class Work:
    """One bound, and how it is reached."""

    run: Callable[[Stage], None]
    core: str = ""
    """Elements of ``core`` that it needs."""

    @property
    def said(self) -> str:
        """What it does, in a line."""
        return (self.run.__doc__ or "").splitlines()[0]


# --- connections


def connections(stage: Stage) -> None:
    """As many clients as one address may have, each with a subscription; all close at once."""
    clients = stage.clients(LIMITS.max_connections * 7 // 8 - 8)
    stage.send(clients, b"SUBSCRIBE\nid:1\ndestination:/topic/t\n\n\0")
    stage.send(clients[:1], b"SEND\ndestination:/topic/t\n\nx\0")
    stage.close(clients)
    stage.send(stage.clients(1), b"")


def at_once(stage: Stage) -> None:
    """As many clients as one address may have; of them as many connect at a time as may."""
    left = LIMITS.max_connections * 7 // 8 - 8
    hello = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
    connecting: set[socket.socket] = set()
    done: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        while left or connecting:
            while left and len(connecting) < LIMITS.max_unauthenticated_per_address - 8:
                one = socket.socket()
                one.settimeout(0)
                one.connect_ex(("127.0.0.1", stage.node.port))
                selector.register(one, selectors.EVENT_WRITE, one)
                connecting.add(one)
                left -= 1
            for key, events in selector.select(_SILENCE_SECONDS):
                one = key.data
                if events & selectors.EVENT_WRITE:
                    one.send(hello)
                    selector.modify(one, selectors.EVENT_READ, one)
                    continue
                answer = one.recv(4_096)
                if not answer.startswith(b"CONNECTED"):
                    raise LoadError(f"the broker answered {answer[:200]!r}")
                selector.unregister(one)
                connecting.discard(one)
                done.append(one)
    for one in done:
        one.close()
    stage.send(stage.clients(1), b"")


def silent_sockets(stage: Stage) -> None:
    """Three times the sockets that may be without a login, which say nothing."""
    sockets = [
        socket.create_connection(("127.0.0.1", stage.node.port), timeout=60)
        for _ in range(3 * LIMITS.max_unauthenticated_per_address)
    ]
    for one in sockets:
        one.close()
    stage.send(stage.clients(1), b"")


# --- frames


def header_bytes(stage: Stage) -> None:
    """64 connections send messages with headers of 62 KB that are all escapes."""
    frame = b"SEND\ndestination:/queue/h\npersistent:false\nx:" + b"\\n" * 31_000 + b"\n\nx\0"
    stage.send(stage.clients(64), frame, 20)


def headers(stage: Stage) -> None:
    """64 connections send messages with as many headers as a frame may have."""
    many = b"".join(b"h%d:v\n" % number for number in range(LIMITS.max_headers - 2))
    stage.send(stage.clients(64), b"SEND\ndestination:/queue/h\n" + many + b"\nx\0", 100)


def bodies(stage: Stage) -> None:
    """Eight connections send messages that are nearly large ones."""
    body = b"x" * (LIMITS.min_large_message_size - 1)
    frame = b"SEND\ndestination:/queue/b\ncontent-length:%d\n\n%b\0" % (len(body), body)
    stage.send(stage.clients(8), frame, 100)


def large_messages(stage: Stage) -> None:
    """Eight connections send large messages of 16 MiB, which one then takes."""
    body = b"x" * (16 * MIB)
    frame = b"SEND\ndestination:/queue/b\ncontent-length:%d\n\n%b\0" % (len(body), body)
    stage.send(stage.clients(8), frame, 2)
    taker = stage.clients(1)
    stage.send(taker, b"SUBSCRIBE\nid:1\ndestination:/queue/b\nack:auto\n\n\0")
    stage.send(taker, b"")


def web_sockets(stage: Stage) -> None:
    """16 WebSockets send frames as large as they may be, and 100,000 empty ones each."""
    send = b"SEND\ndestination:/queue/w\n\nx\0"
    full = frame(0x82, send * (65_536 // len(send)))
    empty = frame(0x02, b"") + frame(0x00, b"") * 100_000 + frame(0x80, _DONE)
    clients: list[WebSocketClient] = []
    for _ in range(16):
        client = WebSocketClient(
            socket.create_connection(("127.0.0.1", stage.node.port), timeout=_SILENCE_SECONDS)
        )
        client.connect()
        clients.append(client)
    for data in (full * 4, empty):
        for client in clients:
            client.socket.sendall(data)
    for client in clients:
        client.message()
        client.socket.close()


def handshakes(stage: Stage) -> None:
    """Eight clients at a time do 800 handshakes of TLS."""

    def some() -> None:
        for _ in range(100):
            stage.secured.connect().close()

    threads = [threading.Thread(target=some) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def records(stage: Stage) -> None:
    """Four clients send 20,000 records of TLS of one byte each, and then more frames."""
    clients = [stage.secured.connect() for _ in range(4)]
    for client in clients:
        client.sendall(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    for _ in range(20_000):
        for client in clients:
            client.send(b"\n")
    for client in clients:
        client.sendall(_DONE)
        while b"receipt-id:done" not in client.recv(65_536):
            pass
        client.close()


# --- what a connection holds


def subscriptions(stage: Stage) -> None:
    """Four connections with all the subscriptions they may have hear one topic, and close."""
    clients = stage.clients(4)
    stage.send(
        clients, lambda one: b"SUBSCRIBE\nid:%d\ndestination:/topic/t\n\n\0" % one,
        LIMITS.max_subscriptions,
    )  # fmt: skip
    for _ in range(10):
        stage.send(stage.clients(1), b"SEND\ndestination:/topic/t\n\nx\0")
        stage.receive(clients, 4 * LIMITS.max_subscriptions)
    stage.close(clients)
    stage.send(stage.clients(1), b"")


def behind(stage: Stage) -> None:
    """A connection with all its subscriptions of a topic reads nothing until it is ended."""
    (client,) = stage.clients(1)
    stage.send(
        [client], lambda one: b"SUBSCRIBE\nid:%d\ndestination:/topic/t\n\n\0" % one,
        LIMITS.max_subscriptions,
    )  # fmt: skip
    stage.send(stage.clients(1), b"SEND\ndestination:/topic/t\n\n" + b"x" * 900 + b"\0", 2_000)


def open_transactions(stage: Stage) -> None:
    """Four connections with all the transactions they may have open close."""
    clients = stage.clients(4)
    each = LIMITS.max_transaction_entries // LIMITS.max_transactions
    for number in range(LIMITS.max_transactions):
        stage.send(clients, b"BEGIN\ntransaction:t%d\n\n\0" % number)
        stage.send(clients, b"SEND\ndestination:/queue/q\ntransaction:t%d\n\nx\0" % number, each)
    stage.close(clients)
    stage.send(stage.clients(1), b"")


def commit(stage: Stage) -> None:
    """A COMMIT of as many sends as a transaction may have."""
    _transaction(stage, b"COMMIT")


def abort(stage: Stage) -> None:
    """An ABORT of as many sends as a transaction may have."""
    _transaction(stage, b"ABORT")


def _transaction(stage: Stage, end: bytes) -> None:
    client = stage.clients(1)
    stage.send(client, b"BEGIN\ntransaction:t\n\n\0")
    stage.send(
        client,
        b"SEND\ndestination:/queue/q\ntransaction:t\n\nx\0",
        LIMITS.max_transaction_entries,
    )
    stage.send(client, end + b"\ntransaction:t\nreceipt:r\n\n\0")


def commit_to_many(stage: Stage) -> None:
    """A COMMIT of 20,000 messages in all queues: 4 sends to 5,000 durable subscriptions."""
    stage.subscribe_durably(5_000, lambda _: "t")
    client = stage.clients(1)
    sends = b"SEND\ndestination:/topic/t\ntransaction:t\n\nx\0" * 4
    stage.send(client, b"BEGIN\ntransaction:t\n\n\0" + sends)
    stage.send(client, b"COMMIT\ntransaction:t\nreceipt:r\n\n\0")


def commit_of_bytes(stage: Stage) -> None:
    """A COMMIT of as many bytes as transactions may have."""
    client = stage.clients(1)
    body = b"x" * 100_000
    frame = b"SEND\ndestination:/queue/q\ntransaction:t\ncontent-length:%d\n\n%b\0"
    stage.send(client, b"BEGIN\ntransaction:t\n\n\0")
    fit = LIMITS.max_transaction_bytes // (len(body) + 1_024)
    for sent in range(0, fit, 50):
        stage.send(client, frame % (len(body), body), min(50, fit - sent))
    stage.send(client, b"COMMIT\ntransaction:t\nreceipt:r\n\n\0")


def _hold(stage: Stage, ack: bytes) -> tuple[Client, bytes]:
    """Return a client that holds 10,000 messages, and the id that acknowledges the last one."""
    stage.fill("q", 10_000)
    clients = stage.clients(1)
    clients[0].send(
        b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:%b\nprefetch-count:10000\n\n\0" % ack
    )
    last = stage.receive(clients, 10_000)
    while not last.endswith(b"\0"):
        last += clients[0].receive()
    return clients[0], last.split(b"\nack:")[-1].split(b"\n")[0]


def cumulative_ack(stage: Stage) -> None:
    """An ACK of 10,000 messages at once."""
    client, last = _hold(stage, b"client")
    stage.send([client], b"ACK\nid:%b\nreceipt:r\n\n\0" % last)


def cumulative_nack(stage: Stage) -> None:
    """A NACK of 10,000 messages at once."""
    client, last = _hold(stage, b"client")
    stage.send([client], b"NACK\nid:%b\nreceipt:r\n\n\0" % last)


def acks_of_a_transaction(stage: Stage) -> None:
    """A COMMIT of an ACK of nearly 10,000 messages."""
    client, last = _hold(stage, b"client")
    stage.send([client], b"BEGIN\ntransaction:t\n\n\0")
    stage.send([client], b"ACK\nid:%b\ntransaction:t\n\n\0" % last)
    stage.send([client], b"COMMIT\ntransaction:t\nreceipt:r\n\n\0")


def unacknowledged(stage: Stage) -> None:
    """Four clients that hold 10,000 messages each close, four times."""
    stage.fill("q", 40_000)
    for _ in range(4):
        clients = stage.clients(4)
        for client in clients:
            client.send(
                b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n"
                b"prefetch-count:10000\n\n\0"
            )
        stage.receive(clients, 40_000)
        stage.close(clients)
    stage.send(stage.clients(1), b"")


def dead_letters(stage: Stage) -> None:
    """10,000 messages become dead letters, by one NACK."""
    cumulative_nack(stage)


def cron(stage: Stage) -> None:
    """1,000 messages whose cron patterns of 256 characters are due in one minute."""
    pattern = ",".join(str(minute) for minute in range(60))
    rest = " * * * *"
    pattern = (pattern + "," + pattern)[: 256 - len(rest)].rpartition(",")[0] + rest
    frame = f"SEND\ndestination:/queue/c\nAMQ_SCHEDULED_CRON:{pattern}\n\nx\0".encode()
    stage.send(stage.clients(1), frame, 1_000)
    clients = stage.clients(1)
    clients[0].send(b"SUBSCRIBE\nid:1\ndestination:/queue/c\nack:auto\n\n\0")
    stage.receive(clients, 1_000)


# --- what all clients hold together


def client_bytes(stage: Stage) -> None:
    """Clients with half a frame each, until their broker ends some."""
    half = b"SEND\ndestination:/queue/q\ncontent-length:102000\n\n" + b"x" * 100_000
    clients = stage.clients(2_700)
    for client in clients:
        client.send(half)
        client.flush()
    stage.send(stage.clients(1), b"")


def backlog(stage: Stage) -> None:
    """Twice the messages that memory takes, sent and then taken."""
    stage.fill("q", 100_000, body=b"x" * 1_000)
    clients = stage.clients(1)
    clients[0].send(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\n\n\0")
    stage.receive(clients, 100_000)


def queues(stage: Stage) -> None:
    """As many queues as there may be, with names of 255 characters."""
    stage.make_queues(LIMITS.max_queues - 100, "n" * 240)


def temporary_queues(stage: Stage) -> None:
    """A client with as many temporary queues as it may create closes."""
    client = stage.clients(1)
    stage.send(
        client, lambda one: b"SUBSCRIBE\nid:%d\ndestination:/temp-queue/t%d\n\n\0" % (one, one),
        _EACH,
    )  # fmt: skip
    stage.close(client)
    stage.send(stage.clients(1), b"")


def duplicate_ids(stage: Stage) -> None:
    """30,000 messages with ids of duplicates, more than are remembered."""
    stage.send(
        stage.clients(1),
        lambda one: b"SEND\ndestination:/queue/d\n_AMQ_DUPL_ID:i%d\n\nx\0" % one,
        30_000,
    )


def selectors_of_messages(stage: Stage) -> None:
    """Eight SUBSCRIBEs with a selector of 4 KB, each to a queue of 300 messages."""
    frames = b"".join(
        b"SEND\ndestination:/queue/h%d\na:%b\n\nx\0" % (queue, NEARLY_A_NUMBER.encode())
        for queue in range(8)
    )
    client = stage.clients(1)
    stage.send(client, frames, 300)
    _selected(stage, lambda one: f"h{one}", lambda _: long_selector(0), 8)


def selectors_of_a_queue(stage: Stage) -> None:
    """As many selectors as a connection may have subscriptions, on one queue of 2,000 messages."""
    stage.fill("s", 2_000, "kind:none\n")
    _selected(stage, lambda _: "s", lambda one: f"kind = 'k{one}'", LIMITS.max_subscriptions)
    stage.fill("s", 500, "kind:none\n")


def long_selectors_of_a_queue(stage: Stage) -> None:
    """256 selectors of 4 KB on one queue of 100 messages."""
    stage.fill("s", 100, f"a:{NEARLY_A_NUMBER}\n")
    _selected(stage, lambda _: "s", long_selector, 256)
    stage.fill("s", 20, f"a:{NEARLY_A_NUMBER}\n")


def _selected(
    stage: Stage, queue: Callable[[int], str], selector: Callable[[int], str], count: int
) -> None:
    """Subscribe with selectors, and wait until all of what is there was looked at."""
    client = stage.clients(1)
    stage.send(
        client,
        lambda one: (
            f"SUBSCRIBE\nid:{one}\ndestination:/queue/{queue(one)}\nack:client\n"
            f"selector:{selector(one)}\n\n\0"
        ).encode(),
        count,
    )
    last = {queue(one) for one in range(count)}
    for one in last:  # behind all that is there, and for whoever selects nothing
        stage.fill(one, 1)
    taker = stage.clients(1)
    for number, one in enumerate(last):
        taker[0].send(b"SUBSCRIBE\nid:x%d\ndestination:/queue/%b\n\n\0" % (number, one.encode()))
    stage.receive(taker, len(last))


_MOST_LONG_SELECTORS: Final = 280
"""More are too many bytes of selectors of one connection."""


def durable_selectors(stage: Stage) -> None:
    """280 durable subscriptions with a selector of 4 KB, and ten messages for their topic."""
    stage.subscribe_durably(_MOST_LONG_SELECTORS, lambda _: "t", long_selector)
    frame = b"SEND\ndestination:/topic/t\na:%b\nreceipt:r\n\nx\0" % NEARLY_A_NUMBER.encode()
    stage.send(stage.clients(1), frame, 10)


def wildcards(stage: Stage) -> None:
    """As many wildcard subscriptions as a connection may have, over 1,000 addresses."""
    client = stage.clients(1)
    stage.send(
        client, lambda one: b"SUBSCRIBE\nid:%d\ndestination:/topic/w.*.#\n\n\0" % one,
        LIMITS.max_subscriptions,
    )  # fmt: skip
    sender = stage.clients(1)
    stage.send(sender, lambda one: b"SEND\ndestination:/topic/w.%d.x\n\nx\0" % one, 1_000)
    stage.close(client)
    stage.send(stage.clients(1), b"")


def due(stage: Stage) -> None:
    """200 messages due at one moment for a topic with 4,500 durable subscriptions."""
    stage.subscribe_durably(4_500, lambda _: "t")
    at = 1000 * time.time() + 3_000
    frame = b"SEND\ndestination:/topic/t\nAMQ_SCHEDULED_TIME:%d\n\nx\0" % at
    stage.send(stage.clients(1), frame, 200)
    _take_last(stage, 4_500 - 1, 200)


def _take_last(stage: Stage, number: int, messages: int) -> None:
    """Wait until a durable subscription has its messages."""
    first = number - number % _EACH
    taker = stage.clients(1, f"d{first}-")
    taker[0].send(
        b"SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:d%d\n"
        b"prefetch-count:10000\n\n\0" % number
    )
    stage.receive(taker, messages)


def due_at_once(stage: Stage) -> None:
    """20,000 messages of one queue that are due at one moment."""
    at = 1000 * time.time() + 8_000
    frame = b"SEND\ndestination:/queue/l\nAMQ_SCHEDULED_TIME:%d\n\nx\0" % at
    stage.send(stage.clients(1), frame, 20_000)
    clients = stage.clients(1)
    clients[0].send(b"SUBSCRIBE\nid:1\ndestination:/queue/l\nack:auto\n\n\0")
    stage.receive(clients, 20_000)


_EXPIRING: Final = 5_000


def expiring(stage: Stage) -> None:
    """5,000 queues whose messages expire together, each into an expiry queue of its own."""
    stage.make_queues(_EXPIRING, "e", b"expires:%d\n" % (1000 * time.time() + 9_000))
    until = time.monotonic() + 240
    for number in (0, _EXPIRING - 1):
        while time.monotonic() < until:
            clients = stage.clients(1)
            clients[0].send(b"SUBSCRIBE\nid:1\ndestination:/queue/EXP.e%d\n\n\0" % number)
            try:
                stage.receive(clients, 1)
            except LoadError:  # there is no such queue yet
                time.sleep(1)
                continue
            break


def groups(stage: Stage) -> None:
    """72,000 groups as a backlog, and eight consumers that hold what they get."""
    client = stage.clients(1)
    _send_groups(client, stage, 72_000)
    clients = stage.clients(8)
    for one in clients:
        one.send(
            b"SUBSCRIBE\nid:1\ndestination:/queue/g\nack:client-individual\n"
            b"prefetch-count:10000\n\n\0"
        )
    stage.receive(clients, 72_000)
    stage.close(clients)
    stage.send(client, b"")


def _send_groups(clients: list[Client], stage: Stage, count: int) -> None:
    stage.send(
        clients, lambda one: b"SEND\ndestination:/queue/g\nJMSXGroupID:g%d\n\n\0" % one, count
    )


def group_names(stage: Stage) -> None:
    """2,000 groups with names of 60 KB, more bytes than are remembered of them."""
    taker = stage.clients(1)
    taker[0].send(b"SUBSCRIBE\nid:1\ndestination:/queue/g\nack:auto\n\n\0")
    client, pad = stage.clients(1), b"g" * 60_000
    for first in range(0, 2_000, 100):

        def frames(number: int, first: int = first) -> bytes:
            return b"SEND\ndestination:/queue/g\nJMSXGroupID:%b%d\n\n\0" % (pad, first + number)

        stage.send(client, frames, 100)
        stage.receive(taker, 100)


# --- the health endpoint, and what comes over HTTP


def bad_cron(stage: Stage) -> None:
    """A cron pattern of 5,000 digits behind a large message: an ERROR, of that client."""
    body = b"x" * 200_000
    (client,) = stage.clients(1)
    frame = b"SEND\ndestination:/queue/q\ncontent-length:%d\n\n%b\0" % (len(body), body)
    pattern = b"*/" + b"9" * 5_000 + b" * * * *"
    frame += b"SEND\ndestination:/queue/q\nAMQ_SCHEDULED_CRON:%b\nreceipt:2\n\nx\0" % pattern
    client.send(frame)
    try:
        stage.receive([client], 1)
    except LoadError:
        return
    raise RuntimeError("the pattern was taken")


# --- what is stored


def everything_stored(stage: Stage, share: float = 1.0) -> None:
    """Put into the store what one user, and all, may have there, or a share of it.

    10,000 durable subscriptions with selectors, 280 of them, as many as there may be, of 4 KB;
    4,000 that hear wildcards, each of which is asked of each address; 34,000 queues with a message,
    and as many addresses; 1,000 whose names nearly match; 20,000 messages that are due in an hour;
    72,000 of as many groups.
    """
    hears = int(4_000 * share)
    stage.make_queues(int((LIMITS.max_queues - 100) * share) - int(15_000 * share) - 5, "n" * 240)
    stage.subscribe_durably(
        int(LIMITS.max_queues_per_user * share),
        lambda _: "t",
        lambda one: long_selector(one) if one < _MOST_LONG_SELECTORS * share else f"b={one}",
    )
    stage.subscribe_durably(hears, lambda one: f"w.*.y{one}", prefix="w")
    stage.make_queues(int(1_000 * share), "w.a.x")
    at = 1000 * time.time() + 3_600_000
    frame = b"SEND\ndestination:/queue/l\nAMQ_SCHEDULED_TIME:%d\n\nx\0" % at
    stage.send(stage.clients(1), frame, int(20_000 * share))
    _send_groups(stage.clients(1), stage, int(72_000 * share))


_EXPIRY: Final = """<message-expiry-scan-period>1000</message-expiry-scan-period>
<address-settings><address-setting match="#">
<expiry-address>EXP</expiry-address>
<auto-create-expiry-resources>true</auto-create-expiry-resources>
</address-setting></address-settings>"""
_ONE_ATTEMPT: Final = """<address-settings><address-setting match="#">
<max-delivery-attempts>1</max-delivery-attempts></address-setting></address-settings>"""

WORKS: Final = {
    "connections": Work(connections),
    "at-once": Work(at_once),
    "silent-sockets": Work(silent_sockets),
    "header-bytes": Work(header_bytes),
    "headers": Work(headers),
    "bodies": Work(bodies),
    "web-sockets": Work(web_sockets),
    "handshakes": Work(handshakes),
    "records": Work(records),
    "large-messages": Work(large_messages),
    "subscriptions": Work(subscriptions),
    "behind": Work(behind),
    "open-transactions": Work(open_transactions),
    "commit": Work(commit),
    "abort": Work(abort),
    "commit-to-many": Work(commit_to_many),
    "commit-of-bytes": Work(commit_of_bytes),
    "cumulative-ack": Work(cumulative_ack),
    "cumulative-nack": Work(cumulative_nack),
    "dead-letters": Work(dead_letters, core=_ONE_ATTEMPT),
    "acks-of-a-transaction": Work(acks_of_a_transaction),
    "unacknowledged": Work(unacknowledged),
    "client-bytes": Work(client_bytes),
    "backlog": Work(backlog),
    "queues": Work(queues),
    "temporary-queues": Work(temporary_queues),
    "duplicate-ids": Work(duplicate_ids),
    "selectors": Work(selectors_of_messages),
    "selectors-of-a-queue": Work(selectors_of_a_queue),
    "long-selectors": Work(long_selectors_of_a_queue),
    "durable-selectors": Work(durable_selectors),
    "wildcards": Work(wildcards),
    "due": Work(due),
    "due-at-once": Work(due_at_once),
    "expiring": Work(expiring, core=_EXPIRY),
    "groups": Work(groups),
    "group-names": Work(group_names),
    "bad-cron": Work(bad_cron),
    "cron": Work(cron),
}
