"""The sockets: limits, backpressure, silence, and an ordinary client library."""

import asyncio
import gc
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import stomp
import uvloop
from stomp.utils import Frame
from typing_extensions import override

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.connections.client_memory import Activity
from orthia.broker.connections.listening import AcceptorError
from orthia.broker.core.broker import Broker
from orthia.broker.core.slices import GO_ON, SLICE_SECONDS
from orthia.broker.management.facade import Management
from orthia.broker.management.requests import Requests
from orthia.broker.node.served_clients import ServedClients
from orthia.broker.tls.certificates import Certificates
from orthia.config.clock import monotonic_seconds
from orthia.config.settings import AcceptorSettings, ClientLimits, Settings
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal, MemoryStore
from tests.core.support import ANYONE, SETTINGS, message, opened
from tests.support.turns import Turns
from tests.support.waiting import wait_until
from tests.websocket.test_upgrade import head
from tests.websocket.test_websocket import frame

CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
LOOPBACK = (AcceptorSettings("stomp", "127.0.0.1", 0),)
ALONE = AcceptorSettings("stomp", "127.0.0.86", 0)
"""On an address that nobody else listens on: a port that it lets go stays free."""
PATIENCE = 120
"""Seconds to wait for what has to come: a busy machine may stand still for half a minute."""
_Result = TypeVar("_Result")


class ServerUnderTest:
    """A server on a loop in a thread; everything of the broker happens there."""

    def __init__(
        self,
        options: Settings,
        *,
        store: MemoryStore | None,
        journal_limits: JournalLimits | None,
        auto_commit: bool,
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.port = 0
        self.refused: list[str] = []
        """The reasons of refusals, in order."""
        acceptors = options.acceptors or LOOPBACK
        self.certificates = Certificates(acceptors)
        self.certificates.load()

        def make() -> None:
            self.journal = MemoryJournal(
                store,
                post=self._post,
                limits=journal_limits,
                auto_commit=auto_commit,
            )
            self.broker = opened(
                Broker(
                    options,
                    self.journal,
                    lease_valid=lambda: True,
                    call_later=self.loop.call_later,
                )
            )
            self.server = Acceptors(
                self.broker,
                self.journal,
                options.stomp_limits,
                users=options.resource_limit_settings,
                refused=self.refused.append,
                certificates=self.certificates,
            )
            management = Management(self.broker, ServedClients(self.server), "test")
            self.broker.manager = Requests(management, self.broker.security)

        self.turns = self.call(lambda: Turns(self.loop))
        self.call(make)
        self._run(self.server.start(acceptors, self._opened))

    def _post(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def _opened(self, _acceptor: AcceptorSettings, _host: str, port: int) -> None:
        self.port = port

    def _run(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call ``function`` on the loop."""

        async def called() -> _Result:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(PATIENCE)

    def depth(self, queue: str) -> int:
        """Return how many messages a queue has."""
        return self.call(lambda: self.broker.depths().get(queue, 0))

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return self.call(lambda: self.server.connections)

    def stop(self, *, cut_off: bool = False) -> None:
        """Stop the server, not the loop."""
        self._run(self.server.stop(cut_off=cut_off))

    def close(self) -> None:
        """Stop everything."""
        self.stop(cut_off=True)

        async def settle() -> None:
            await asyncio.sleep(0.05)

        self._run(settle())
        self.turns.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()
        self.turns.check()


@contextmanager
def serving(
    options: Settings = SETTINGS,
    *,
    store: MemoryStore | None = None,
    journal_limits: JournalLimits | None = None,
    auto_commit: bool = True,
    **limits: int,
) -> Iterator[ServerUnderTest]:
    """Run a server for the block."""
    options = replace(options, stomp_limits=ClientLimits(**limits))
    server = ServerUnderTest(
        options, store=store, journal_limits=journal_limits, auto_commit=auto_commit
    )
    try:
        yield server
    finally:
        server.close()


@contextmanager
def connected(server: ServerUnderTest, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Connect, from an address of this machine, and say CONNECT."""
    with socket.create_connection(
        ("127.0.0.1", server.port), timeout=PATIENCE, source_address=(source, 0)
    ) as client:
        client.sendall(CONNECT)
        assert client.recv(4096).startswith(b"CONNECTED")
        yield client


def read_until(client: socket.socket, end: bytes) -> bytes:
    """Read until ``end`` came."""
    data = bytearray()
    while data.find(end, max(0, len(data) - 65_536 - len(end))) < 0:
        chunk = client.recv(65_536)
        assert chunk, f"closed after {bytes(data[-1_000:])!r}"
        data += chunk
    return bytes(data)


def read_to_the_end(client: socket.socket) -> bytes:
    """Read until the broker closes."""
    data = b""
    while chunk := client.recv(65_536):
        data += chunk
    return data


def test_an_error_is_read_whole_before_the_connection_closes() -> None:
    """The client learns why, then sees the end."""
    with serving() as server, connected(server) as client:
        client.sendall(b"NONSENSE\n\n\0")
        data = read_to_the_end(client)
        assert data.startswith(b"ERROR\n")
        assert b"unknown command 'NONSENSE'" in data
        client.close()
        wait_until(lambda: server.connections == 0, what="the connection is forgotten")


def test_what_each_message_goes_through_has_fast_attributes() -> None:
    """With more than 30 attributes that are not slots CPython finds each of them slower."""
    with serving() as server, connected(server) as client:
        client.sendall(b"SUBSCRIBE\ndestination:/queue/q\nid:s\nreceipt:r\n\n\0")
        read_until(client, b"receipt-id:r")
        queue = server.broker.queues()["q"]
        (connection,) = server.server.clients.all()
        for one in (server.broker, server.journal, queue, connection, connection.protocol):
            assert len(getattr(one, "__dict__", ())) <= 30, type(one)


_WORK = (
    b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0"
    b"SUBSCRIBE\nid:2\ndestination:/topic/t\nselector:a=1\n\n\0"
    b"BEGIN\ntransaction:x\n\n\0SEND\ndestination:/queue/q\ntransaction:x\n\nhello\0"
    b"COMMIT\ntransaction:x\nreceipt:1\n\n\0"
    b"BEGIN\ntransaction:y\n\n\0SEND\ndestination:/queue/q\ntransaction:y\n\nhello\0"
    b"SEND\ndestination:/topic/t\na:1\n\nhi\0"
)


@pytest.mark.parametrize("end", [b"", b"DISCONNECT\nreceipt:r\n\n\0", b"NONSENSE\n\n\0"])
@pytest.mark.parametrize("is_websocket", [False, True])
def test_what_a_client_held_needs_no_collector(*, end: bytes, is_websocket: bool) -> None:
    """However it ends: the collector of garbage may look through old objects very rarely."""
    with serving() as server:

        def serve_one() -> None:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
                if is_websocket:
                    client.sendall(head())
                    read_until(client, b"\r\n\r\n")
                for one in (CONNECT, _WORK, end):
                    client.sendall(frame(0x82, one) if is_websocket and one else one)
                    if one is not end:
                        read_until(client, b"hi\0" if one is _WORK else b"CONNECTED")
                if end:
                    read_to_the_end(client)
            wait_until(lambda: server.connections == 0, what="the connection is forgotten")
            wait_until(
                lambda: server.call(lambda: server.broker.slices.is_idle), what="its end is over"
            )

        serve_one()  # and all that is made once
        gc.collect()
        gc.disable()
        debug = gc.get_debug()
        try:
            serve_one()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {
                type(one).__qualname__ for one in gc.garbage if "orthia" in type(one).__module__
            }
        finally:
            gc.set_debug(debug)
            gc.garbage.clear()
            gc.enable()
        assert not left


def test_a_client_that_goes_on_sending_reads_why_it_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its unread bytes do not reset the connection under the ERROR frame."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 3_600)
    with serving(max_body_bytes=1_000) as server, connected(server) as client:
        head = b"SEND\ndestination:/queue/a\ncontent-length:50000000\n\n"
        client.sendall(head)
        assert select.select([client], [], [], PATIENCE)[0], "no ERROR came"
        for _ in range(100):
            client.sendall(b"x" * 50_000)
        assert b"max-body-bytes" in read_to_the_end(client)


def test_a_node_that_stood_still_blames_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped or suspended for an hour, it has heard nobody: that was not the clients' silence."""
    ahead = 0.0
    for module in ("acceptor", "authentication", "connection"):
        monkeypatch.setattr(
            f"orthia.broker.connections.{module}.monotonic_seconds",
            lambda: monotonic_seconds() + ahead,
        )
    with (
        serving(max_login_delay=0) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as late,
    ):
        client.sendall(CONNECT.replace(b"host", b"heart-beat:10000,0\nhost"))
        assert client.recv(4096).startswith(b"CONNECTED")
        wait_until(lambda: server.connections == 2, what="both are connected")
        ticked = server.call(lambda: server.server._ticked_at)
        ahead = 3_600.0
        wait_until(
            lambda: server.call(lambda: server.server._ticked_at) > ticked + 3_600,
            what="the node looks at its clients again",
        )
        client.sendall(b"SEND\ndestination:/queue/a\nreceipt:r\n\nx\0")
        assert b"RECEIPT" in read_until(client, b"\0")
        late.sendall(CONNECT)
        assert late.recv(4096).startswith(b"CONNECTED")


def test_a_client_that_is_refused_leaves_a_line_and_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it did: the operator sees who it was, and why."""
    with serving() as server:
        with connected(server) as client:
            client.sendall(b"SEND\ndestination:/queue/\n\nx\0")
            assert b"ERROR" in read_to_the_end(client)
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert read_to_the_end(browser).startswith(b"HTTP/1.1 400 Bad Request")
        assert server.refused == ["destination", "protocol"]
    assert "a client at 127.0.0.1 was refused: destination '/queue/' is not valid" in caplog.text
    assert "a client at 127.0.0.1 was refused: the first bytes are of HTTP" in caplog.text


def test_a_client_of_tls_learns_at_once_that_there_is_none() -> None:
    """It need not wait until connect-timeout."""
    context = ssl.create_default_context()
    with (
        serving(connect_timeout=3_600_000) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(client, server_hostname="localhost")


def test_connections_that_are_reset_empty_no_queue() -> None:
    """Ten that subscribe and are gone: a hundred messages are there, one of them a dead letter."""
    with serving() as server:
        with connected(server) as sender:
            for number in range(100):
                sender.sendall(b"SEND\ndestination:/queue/a\nreceipt:%d\n\nx\0" % number)
            read_until(sender, b"receipt-id:99\n")
        for _ in range(10):
            with connected(server) as client:
                client.sendall(b"SUBSCRIBE\ndestination:/queue/a\nid:s\nack:client\n\n\0")
                read_until(client, b"MESSAGE")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wait_until(lambda: server.connections == 0, what="the reset is noticed")
        wait_until(lambda: server.depth("DLQ") == 1, what="the first message is a dead letter")
        assert server.depth("a") == 99


def test_a_client_that_does_not_close_its_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an ERROR it has a while to close; then the broker does."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 0.2)
    with serving() as server, connected(server) as client:
        client.sendall(b"NONSENSE\n\n\0")
        wait_until(lambda: server.connections == 0, what="the connection is cut off")


def test_what_was_read_before_a_stop_is_answered() -> None:
    """Receipts of what the store had when the node began to stop come, then the end: no ERROR."""
    with serving(auto_commit=False) as server, connected(server) as client:
        for number in range(3):
            client.sendall(b"SEND\ndestination:/queue/a\nreceipt:%d\n\nx\0" % number)
        wait_until(lambda: len(server.call(lambda: server.journal.waiting)) == 4, what="all read")
        server.call(server.server.stop_reading)
        server.call(server.broker.stop)
        client.sendall(b"SEND\ndestination:/queue/a\nreceipt:late\n\nx\0")
        server.call(server.journal.commit)
        server.stop()
        data = read_to_the_end(client)
        receipts = [data.index(b"receipt-id:%d" % number) for number in range(3)]
        assert sorted(receipts) == receipts
        assert b"receipt-id:late" not in data
        assert b"ERROR" not in data


def test_a_node_that_stops_waits_for_nobody_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that neither reads nor closes holds the hand-over up for a moment only."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 3_600)
    with serving() as server, connected(server):
        server.stop()
        wait_until(lambda: server.connections == 0, what="the connection is cut off")


def test_a_frame_too_large_is_refused_before_it_is_there() -> None:
    """The announced size is enough: nothing of it need be read."""
    with serving(max_body_bytes=1_000) as server, connected(server) as client:
        client.sendall(b"SEND\ndestination:/queue/a\ncontent-length:1000000000\n\n")
        assert b"longer than max-body-bytes 1000" in read_to_the_end(client)


def test_connections_are_bounded() -> None:
    """One too many is told so; when another leaves there is room again."""
    with serving(max_connections=1) as server:
        with connected(server), socket.create_connection(("127.0.0.1", server.port)) as second:
            assert b"max-connections 1 already" in read_to_the_end(second)
        wait_until(lambda: server.connections == 0, what="the first has left")
        with connected(server):
            pass


def test_a_client_that_says_nothing_is_ended() -> None:
    """A socket without CONNECT does not stay open."""
    with (
        serving(connect_timeout=200) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client,
    ):
        assert b"no CONNECT frame within 200 ms" in read_to_the_end(client)


def test_a_half_open_client_is_ended_by_its_heart_beats() -> None:
    """It promised to beat and does not: what it held goes to others."""
    with (
        serving() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client,
    ):
        client.sendall(CONNECT.replace(b"\n\n", b"\nheart-beat:500,0\n\n"))
        assert b"no heart-beat" in read_to_the_end(client)


def test_while_the_journal_is_full_nobody_is_read_from() -> None:
    """A fast sender is stopped by TCP; when there is room, all it sent is stored and receipted."""
    limits = JournalLimits(max_waiting_rows=50, max_waiting_bytes=100_000)
    with serving(journal_limits=limits, auto_commit=False) as server, connected(server) as client:
        frame = b"SEND\ndestination:/queue/a\nreceipt:r\n\n" + b"x" * 10_000 + b"\0"
        client.setblocking(False)
        sent, rest = 0, b""
        while sent < 20_000 and select.select([], [client], [], 1.0)[1]:
            rest = rest or frame
            rest = rest[client.send(rest) :]
            sent += not rest
        assert sent < 20_000, "the broker went on reading"
        waiting = server.call(lambda: len(server.journal.waiting))
        assert waiting * 10_000 < 1_000_000, "the broker holds more than a read beyond its limit"
        client.setblocking(True)
        client.settimeout(PATIENCE)
        receipts = b""
        stop = threading.Event()

        def commit_all() -> None:
            while not stop.wait(0.005):
                server.call(server.journal.commit)

        committing = threading.Thread(target=commit_all)
        committing.start()
        client.sendall(rest)
        total = sent + bool(rest)
        while receipts.count(b"\0") < total:
            receipts += client.recv(65_536)
        stop.set()
        committing.join()
        assert server.depth("a") == total


def test_a_client_that_does_not_read_holds_a_bounded_part_of_a_queue() -> None:
    """Its socket fills; the rest stays in the queue for others, and comes when it reads."""
    with serving() as server, connected(server) as client:
        client.sendall(b"SUBSCRIBE\ndestination:/queue/a\nid:1\nack:auto\n\n\0")
        body = b"x" * 50_000
        with connected(server) as sender:
            for _ in range(600):
                sender.sendall(b"SEND\ndestination:/queue/a\n\n" + body + b"\0")
            sender.sendall(b"SEND\ndestination:/queue/a\nreceipt:last\n\nend\0")
            read_until(sender, b"receipt-id:last")
        assert server.depth("a") > 300
        data = read_until(client, b"\n\nend\0")
        assert data.count(body) == 600
        wait_until(lambda: server.depth("a") == 0, what="everything is delivered")


@contextmanager
def _ended_half(server: ServerUnderTest, ack: bytes) -> Iterator[None]:
    """Subscribe, read nothing of what comes, and say that no more is sent."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", server.port))
        subscribe = b"SUBSCRIBE\ndestination:/queue/a\nid:s\nack:%b\nprefetch-count:10000\n\n\0"
        client.sendall(CONNECT + subscribe % ack)
        with connected(server) as sender:

            def is_behind() -> bool:
                sender.sendall(b"SEND\ndestination:/queue/a\nreceipt:r\n\n%b\0" % (b"x" * 20_000))
                read_until(sender, b"receipt-id:r\n")
                return server.call(lambda: _unsent(server) > 0)

            wait_until(is_behind, what="the socket is full")
        client.shutdown(socket.SHUT_WR)
        yield


def _unsent(server: ServerUnderTest) -> int:
    """Return how many bytes wait in this process for any client."""
    transports = [one._transport for one in server.server.clients.all()]
    return sum(one.get_write_buffer_size() for one in transports if one is not None)


def _held(port: int) -> int:
    """Return how many sockets of clients are open at a port; those that are closed have no inode.

    Of what this process has open some is of other tests, and goes when it likes.
    """
    rows = [one.split() for one in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(one[1].endswith(f":{port:04X}") and one[3] != "0A" and one[9] != "0" for one in rows)


@pytest.mark.parametrize("ack", [b"auto", b"client"])
def test_who_ends_its_half_and_does_not_read_is_given_nothing_more(
    monkeypatch: pytest.MonkeyPatch, ack: bytes
) -> None:
    """Its messages are another's, while it may read what was written to it."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 3_600)
    with serving() as server, _ended_half(server, ack), connected(server) as other:
        other.sendall(b"SEND\ndestination:/queue/a\nreceipt:r\n\nlater\0")
        read_until(other, b"receipt-id:r\n")
        other.sendall(b"SUBSCRIBE\ndestination:/queue/a\nid:s\n\n\0")
        data = read_until(other, b"\n\nlater\0")
        assert ack == b"auto" or b"redelivered:true" in data
        assert server.connections == 2


def test_who_ends_its_half_and_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is free again."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 0.2)
    with serving() as server, _ended_half(server, b"auto"):
        wait_until(lambda: server.connections == 0, what="the connection is cut off")
        assert server.call(lambda: server.server.clients.memory.used) == 0


def test_who_does_not_read_and_makes_room_holds_no_descriptor() -> None:
    """It is counted no more, so nothing else would end it."""
    ping = frame(0x89, b"x" * 125) * 500
    with (
        serving(
            max_connections=2, max_unauthenticated_per_address=1, connect_timeout=600_000
        ) as server,
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head())

        def is_behind() -> bool:
            client.sendall(ping)
            return server.call(lambda: _unsent(server) > 0)

        wait_until(is_behind, what="the socket is full")
        with connected(server):
            wait_until(
                lambda: _held(server.port) == 1,
                what="the node has one socket, of the two clients that are here",
            )


def test_a_tick_that_fails_is_that_of_one_client_and_not_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That client is cut off; the others are still ended when their time is up."""

    class Failing(Activity):
        """Cannot be looked at."""

        @override
        def look(self, now: float, moved: int, held: int) -> None:
            raise RuntimeError

    with (
        serving(connect_timeout=2_000) as server,
        connected(server) as broken,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as late,
    ):
        wait_until(lambda: server.connections == 2, what="both are there")

        def break_one() -> None:
            (one,) = (
                one
                for one in server.server.clients.all()
                if one._transport is not None
                and one._transport.get_extra_info("peername") == broken.getsockname()
            )
            one.activity = Failing(monotonic_seconds())

        server.call(break_one)
        assert read_to_the_end(broken) == b""
        assert read_to_the_end(late).startswith(b"ERROR")
    assert "disconnecting it" in caplog.text


def test_a_client_whose_end_fails_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is free, and a node that waits for its clients' end does not wait for it."""

    class Failing:
        """A client's protocol that cannot be ended."""

        def __init__(self, protocol: object) -> None:
            self._protocol = protocol

        def __getattr__(self, name: str) -> Any:
            return getattr(self._protocol, name)

        def connection_lost(self) -> None:
            """Fail."""
            raise RuntimeError("a bug")

    with serving() as server:
        with connected(server):

            def break_it() -> None:
                (one,) = server.server.clients.all()
                monkeypatch.setattr(one, "protocol", Failing(one.protocol))

            server.call(break_it)
        wait_until(lambda: server.connections == 0, what="it is forgotten")
    assert "a bug" in caplog.text


def test_a_node_that_stops_goes_without_a_word_and_lets_nobody_in() -> None:
    """Clients that take an ERROR for their own fault see a broker that went; the port is closed."""
    with (
        serving(replace(SETTINGS, acceptors=(ALONE,))) as server,
        socket.create_connection((ALONE.host, server.port), timeout=PATIENCE) as client,
    ):
        client.sendall(CONNECT)
        assert read_until(client, b"\0").startswith(b"CONNECTED")
        server.stop()
        assert read_to_the_end(client) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((ALONE.host, server.port), timeout=PATIENCE)


def test_an_io_error_cuts_everybody_off_without_a_word() -> None:
    """No frame leaves a node that may not be live any more."""
    with serving() as server, connected(server) as client:
        server.stop(cut_off=True)
        with suppress(ConnectionResetError):  # which is as silent as a clean end
            assert read_to_the_end(client) == b""


def test_an_acceptor_that_cannot_listen_names_itself() -> None:
    """The error has name, host, port and the reason; none of the acceptors stays open."""
    with socket.socket() as taken, serving() as server:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = server.call(lambda: Acceptors(server.broker, server.journal, SETTINGS.stomp_limits))
        opened: list[int] = []
        acceptors = (ALONE, AcceptorSettings("second", "127.0.0.1", port))
        starting = asyncio.run_coroutine_threadsafe(
            other.start(acceptors, lambda _acceptor, _host, port: opened.append(port)), server.loop
        )
        with pytest.raises(AcceptorError, match=f"'second' cannot listen on 127.0.0.1:{port}"):
            starting.result(PATIENCE)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((ALONE.host, opened[0]), timeout=PATIENCE)


class Collector(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    """Notes what stomp.py hands over."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.receipts: list[str] = []
        self.errors: list[str] = []
        self.disconnected = threading.Event()

    def on_message(self, frame: Frame) -> None:
        """Note a message."""
        self.messages.append(str(frame.body))

    def on_receipt(self, frame: Frame) -> None:
        """Note a receipt."""
        self.receipts.append(frame.headers["receipt-id"])

    def on_error(self, frame: Frame) -> None:
        """Note an ERROR."""
        self.errors.append(str(frame.body))

    def on_disconnected(self) -> None:
        """Note the end."""
        self.disconnected.set()


@pytest.mark.parametrize(
    "kind", [stomp.Connection10, stomp.Connection11, stomp.Connection12], ids=["1.0", "1.1", "1.2"]
)
def test_stomp_py_sends_receives_and_commits(kind: type[stomp.Connection12]) -> None:
    """The ordinary library of Python, in each version of the protocol."""
    with serving() as server:
        listener = Collector()
        connection = kind([("127.0.0.1", server.port)])
        connection.set_listener("test", listener)
        connection.connect(wait=True)
        connection.subscribe("/queue/a", id="1", ack="auto")
        connection.send("/queue/a", "hello: \\ wörld", receipt="r1")
        wait_until(lambda: listener.messages == ["hello: \\ wörld"], what="the message came")
        wait_until(lambda: listener.receipts == ["r1"], what="the receipt came")
        transaction = connection.begin()
        connection.send("/queue/a", "in a transaction", transaction=transaction)
        connection.commit(transaction)
        wait_until(lambda: len(listener.messages) == 2, what="the transaction's message came")
        connection.disconnect(receipt="bye")
        assert listener.disconnected.wait(PATIENCE)


def test_stomp_py_goes_to_the_other_node() -> None:
    """With two hosts the library connects to whichever serves, after the first was stopped."""
    store = MemoryStore()
    with serving(store=store) as first, serving() as second:
        listener = Collector()
        hosts = [("127.0.0.1", first.port), ("127.0.0.1", second.port)]
        connection = stomp.Connection12(hosts, reconnect_sleep_initial=0.05)
        connection.set_listener("test", listener)
        connection.connect(wait=True)
        first.stop()
        assert listener.disconnected.wait(PATIENCE)
        assert listener.errors == [], "the library is told of an error where there is none"
        connection.connect(wait=True)
        connection.send("/queue/a", "again", receipt="r")
        wait_until(lambda: "r" in listener.receipts, what="the second node answers")
        assert second.depth("a") == 1
        connection.disconnect(receipt="bye")


def test_a_lost_client_whose_end_waits_for_its_turn_gets_nothing() -> None:
    """An ``auto`` subscription would acknowledge what nobody gets."""
    with serving() as server, connected(server) as client:
        client.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\nreceipt:s\n\n\0")
        read_until(client, b"receipt-id:s\n\n\0")

        def spend_a_turn() -> Iterator[bool]:
            until = monotonic_seconds() + SLICE_SECONDS
            while monotonic_seconds() < until:
                pass
            yield GO_ON

        def lose_and_send() -> int:
            slices, clients = server.broker.slices, server.server.clients
            slices.run(spend_a_turn())
            for _ in range(10):
                slices.later(spend_a_turn())
            (connection,) = clients.all()
            connection.connection_lost(None)
            server.broker.send(ANYONE, "/queue/a", message("kept"), None)
            return len([*clients.all()])

        assert server.call(lose_and_send) == 1, "the end of the client waits"
        wait_until(
            lambda: not server.call(lambda: [*server.server.clients.all()]), what="it is ended"
        )
        assert server.call(server.broker.depths) == {"a": 1}
