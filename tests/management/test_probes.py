"""The HTTP endpoint of probes and metrics, over real sockets."""

import asyncio
import gc
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from orthia.broker.core.limits.quota import ShownUse
from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.management.abc import HealthSource, Verdict
from orthia.broker.management.histogram import LoopHistogram
from orthia.broker.management.http.bounds import MAX_CONNECTIONS, Bounded, Bounds
from orthia.broker.management.http.exposition import Exposition, RenderingError
from orthia.broker.management.http.gateway import Gateway
from orthia.broker.management.http.node_server import NodeServer
from orthia.broker.management.http.pace import FOLLOWED_SHARE, Budget, Pace, Paced, followed
from orthia.broker.management.http.server import HealthError, HealthNotFree, HttpServer
from orthia.broker.management.metrics import NodeMetrics, Values
from orthia.broker.management.queue_metrics import MAX_QUEUES_SHOWN, QueueNames, QueueSeen
from orthia.broker.management.running_node import NodeStatus, RunningNode
from orthia.broker.node.exit_codes import ExitCode, code_of_kind
from orthia.broker.node.node import BrokerNode
from orthia.broker.node.state import Phase
from orthia.config.secrets import Secret
from orthia.config.settings import HealthSettings, Settings
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database.lock_holders import SessionWithLock
from orthia.journal.engine.acks import AckStatus
from orthia.journal.engine.locks import LocksSeen
from orthia.journal.model.history import HistoryTotals, Kept
from orthia.nodemanager.in_vm_manager import InVmNodeManager
from tests.core.support import CoreUnderTest, settings
from tests.support.waiting import wait_until


class Node(HealthSource):
    """A node as the endpoint sees it: a passive backup, unless told otherwise."""

    def __init__(self) -> None:
        self.metrics = NodeMetrics(["live", "backup"])
        self.live = Verdict(True, "waiting as backup")
        self.ready = Verdict(False, "passive backup")
        self.role: dict[str, object] = {"name": "node-b", "role": "backup", "token": None}

    def watch(self, **shown: Callable[[], Any]) -> None:
        """Show in the metrics what these say; of the rest nothing is known."""
        nothing: dict[str, Callable[[], Any]] = {
            "lease_seconds_remaining": lambda: None,
            "queue_depths": dict,
            "connections": lambda: 0,
            "history": lambda: None,
            "store_use": lambda: None,
        }
        self.metrics.watch(Values(**nothing | shown))

    @property
    @override
    def registry(self) -> CollectorRegistry:
        """The node's metrics."""
        return self.metrics.registry

    @override
    def liveness(self) -> Verdict:
        """What was set."""
        return self.live

    @override
    def readiness(self) -> Verdict:
        """What was set."""
        return self.ready

    @override
    def describe_role(self) -> Mapping[str, object]:
        """What was set: a backup's."""
        return self.role


def server_of(
    node: HealthSource, settings: HealthSettings, *, request_seconds: float = 600
) -> NodeServer:
    """Return the server of ``node``, whose broker's loop is the caller's."""
    server = NodeServer(settings, node, asyncio.get_running_loop())
    server.server.bounds.request_seconds = request_seconds
    return server


def served(
    scenario: Callable[[int], Awaitable[bytes]],
    node: Node | None = None,
    *,
    request_seconds: float = 600,
) -> bytes:
    """Run ``scenario`` with the port of a server and return what it returns."""

    async def run() -> bytes:
        server = server_of(
            node or Node(), HealthSettings("127.0.0.1", 0), request_seconds=request_seconds
        )
        server.start()
        try:
            async with asyncio.timeout(240):
                return await scenario(server.server.port)
        finally:
            await asyncio.to_thread(server.close)

    return asyncio.run(run())


async def exchange(port: int, request: bytes) -> bytes:
    """Send ``request`` and return everything that comes until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def ask(request: bytes, node: Node | None = None) -> bytes:
    """Return the answer to one raw request."""
    return served(lambda port: exchange(port, request), node)


def get(path: str, node: Node | None = None, method: str = "GET") -> tuple[int, bytes, bytes]:
    """Return status, head and body of an ordinary request."""
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head, _, body = ask(request.encode(), node).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), body


@pytest.mark.parametrize(
    ("path", "verdict", "answer"),
    [
        ("/live", Verdict(True, "waiting as backup"), (200, b"waiting as backup\n")),
        ("/live", Verdict(False, "IO error"), (503, b"IO error\n")),
        ("/ready", Verdict(True, "serving"), (200, b"serving\n")),
        ("/ready", Verdict(False, "passive backup"), (503, b"passive backup\n")),
    ],
)
def test_a_probe_is_answered_by_what_the_node_says(
    path: str, verdict: Verdict, answer: tuple[int, bytes]
) -> None:
    """Each of its own: a passive backup is live and not ready, and says why."""
    node = Node()
    node.live = verdict if path == "/live" else Verdict(True, "lives")
    node.ready = verdict if path == "/ready" else Verdict(False, "is not ready")
    status, _, body = get(path, node)
    assert (status, body) == answer


STORE = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/nowhere.db"))


class Manager(InVmNodeManager):
    """A live node's manager whose lease may have run out."""

    lease_is_valid = True

    def is_lease_valid(self) -> bool:
        """What was set."""
        return self.lease_is_valid


def test_a_node_whose_lease_ran_out_is_not_ready() -> None:
    """From that moment its successor may serve, whatever this one still has to find out."""
    node, manager = BrokerNode(Settings("a", None, STORE)), Manager(name="a")
    node._shell.manager = manager
    seen = node._service.show_in(node._metrics, node._status)
    assert not seen.readiness().ok
    node._driver._state = replace(node._driver.state, phase=Phase.LIVE)
    assert seen.readiness().ok
    manager.lease_is_valid = False
    assert seen.readiness() == Verdict(False, "the lease is not valid")


def test_role_is_json() -> None:
    """What /role shows is JSON, for programs."""
    status, head, body = get("/role")
    assert (status, json.loads(body)["role"]) == (200, "backup")
    assert b"content-type: application/json" in head


def test_a_histogram_of_the_loop_reads_as_that_of_the_client_library() -> None:
    """Whoever scrapes a node sees no difference, also where an observation is at a bound."""

    def shown(made: type[Histogram | LoopHistogram]) -> list[str]:
        registry = CollectorRegistry()
        histogram = made("some_seconds", "Some time", buckets=(0.5, 2.5, 1_000), registry=registry)
        for amount in (0.0, 0.5, 0.6, 2.5, 3.0, 5_000.0):
            histogram.observe(amount)
        lines = generate_latest(registry).decode().splitlines()
        return [line for line in lines if not line.startswith("some_seconds_created")]

    assert shown(LoopHistogram) == shown(Histogram)


def test_metrics_show_what_the_node_measured() -> None:
    """Prometheus finds the lease, the role, the token, queue depths and the journal's commits."""
    node = Node()
    node.metrics.role_is("live")
    node.metrics.became_live(7, 0.25)
    node.metrics.batch_committed(rows=3, seconds=0.004, attempts=2)
    node.metrics.live_renewal_seconds.observe(0.01)
    node.watch(
        lease_seconds_remaining=lambda: 12.5,
        queue_depths=lambda: {"orders": 42},
        connections=lambda: 3,
        history=lambda: HistoryTotals(Kept(2, 700), datetime(2026, 1, 1, tzinfo=UTC)),
        store_use=lambda: ShownUse(7_000, 9_000, frozenset({"disk"})),
        locks=lambda: LocksSeen(2.5, 4, [SessionWithLock(99, "ann", "some GUI", "")]),
        outbox=lambda: RelayStatus(5, 2_500, 70, 1, "the store is full"),
        acks=lambda: AckStatus(3, 1.5, 40, None),
    )
    lines = get("/metrics", node)[2].decode().splitlines()
    for line in (
        'orthia_role{role="live"} 1.0',
        'orthia_role{role="backup"} 0.0',
        "orthia_fencing_token 7.0",
        "orthia_takeovers_total 1.0",
        "orthia_configuration_valid 1.0",
        "orthia_configuration_waiting 0.0",
        "orthia_lease_seconds_remaining 12.5",
        'orthia_lease_renewal_seconds_count{lock="live"} 1.0',
        "orthia_journal_batch_rows_sum 3.0",
        "orthia_journal_commit_seconds_count 1.0",
        "orthia_journal_commit_retries_total 1.0",
        'orthia_queue_messages{queue="orders"} 42.0',
        "orthia_connections 3.0",
        "orthia_store_bytes 7000.0",
        "orthia_store_limit_bytes 9000.0",
        'orthia_store_full{what="disk"} 1.0',
        'orthia_store_full{what="database"} 0.0',
        "orthia_journal_put_aside 4.0",
        "orthia_journal_locked_seconds 2.5",
        'orthia_journal_locked_by{application="some GUI",session="99",user="ann"} 1.0',
        "orthia_outbox_rows 5.0",
        "orthia_outbox_oldest_timestamp_seconds 2.5",
        "orthia_outbox_relayed_total 70.0",
        "orthia_outbox_dead_lettered_total 1.0",
        "orthia_outbox_held 1.0",
        "orthia_acks_waiting 3.0",
        "orthia_acks_oldest_seconds 1.5",
        "orthia_acks_settled_total 40.0",
        "orthia_acks_failing 0.0",
        "orthia_history_messages 2.0",
        "orthia_history_bytes 1100.0",
        "orthia_history_oldest_timestamp_seconds 1.7672256e+09",
    ):
        assert line in lines


def test_counts_of_messages_never_go_down() -> None:
    """Neither for an acknowledgement that is taken back, nor for a node that is live again."""
    counts: dict[str, int] = {}
    node = Node()
    node.watch(messages=lambda: counts)

    def shown() -> list[str]:
        generated = generate_latest(node.metrics.registry).decode().splitlines()
        return [line for line in generated if line.startswith("orthia_messages_total")]

    assert shown() == []
    expected = []
    for added, acknowledged, then in ((5, 4, 4), (5, 3, 4), (1, 0, 4), (2, 2, 6)):
        counts |= {"added": added, "acknowledged": acknowledged}
        expected = shown()
        assert expected[1] == f'orthia_messages_total{{event="acknowledged"}} {then}.0'
    assert expected[0] == 'orthia_messages_total{event="added"} 7.0'
    counts.clear()
    assert shown() == expected


def test_a_node_without_a_lease_shows_no_remaining_time() -> None:
    """A backup's lease metric is absent rather than a misleading zero."""
    node = Node()
    node.watch()
    body = get("/metrics", node)[2]
    assert b"\north" in body
    assert b"\northia_lease_seconds_remaining " not in body
    assert b"orthia_history" not in body


def test_head_has_no_body() -> None:
    """HEAD is answered as GET, length included, without the body."""
    status, head, body = get("/live", method="HEAD")
    assert (status, body) == (200, b"")
    assert b"content-length: 18" in head


GET = b"GET /live HTTP/1.1\r\nHost: localhost\r\n"
LAST = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
REFUSED: list[tuple[bytes, int, bytes]] = [
    *(
        (method + b" /live" + LAST, 405, b"Allow: GET, HEAD")
        for method in (b"POST", b"PUT", b"DELETE", b"OPTIONS")
    ),
    # A wrong path names the right ones.
    (b"GET /nothing?x=1" + LAST, 404, b"/metrics"),
    (b"nonsense\r\n\r\n", 400, b""),
    (b"GET /live HTTP/1.1\r\n\r\n", 400, b""),
    (GET + b"Host: y\r\n\r\n", 400, b""),
    (GET + b"Content-Length: many\r\n\r\n", 400, b""),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client hello\r\n\r\n", 400, b""),
    (GET + b" bad folding\x00\r\n\r\n", 400, b""),
    # Larger than a few kilobytes, so that nobody can fill the memory.
    (GET + b"X-Long: " + b"a" * 20_000, 400, b""),
    # Without reading all of it.
    (GET + b"Content-Length: 1000000000\r\n\r\nx", 200, b""),
]


@pytest.mark.parametrize(("request_bytes", "status", "told"), REFUSED)
def test_what_is_no_question_is_refused(request_bytes: bytes, status: int, told: bytes) -> None:
    """By its status, with what would be answered; the connection is closed."""
    answer = ask(request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert told.lower() in answer.lower()


@pytest.mark.parametrize(
    "first", [b"AMQP\x03\x01\x00\x00", b"\x16\x03\x01\x02\x00\x01", b"ARTEMIS"]
)
def test_a_client_of_another_protocol_is_told_at_once(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends no line, and would wait for an answer; the log names it, too."""
    answer = served(lambda port: exchange(port, first), request_seconds=3_600)
    assert answer.startswith(b"HTTP/1.1 400 ")
    told = "clients of STOMP and AMQP connect to the port of an acceptor"
    assert told in answer.decode()
    (line,) = [one for one in caplog.messages if "was refused" in one]
    assert line.startswith("a client at 127.0.0.1 was refused: the first bytes are not of HTTP")
    assert told in line


def test_a_client_that_sends_nothing_is_cut_off() -> None:
    """A half-open connection ends after the time-out."""
    answer = served(lambda port: exchange(port, b"GET /live HT"), request_seconds=0.2)
    assert answer == b""


def test_a_node_whose_loop_hangs_is_not_live() -> None:
    """A probe is answered all the same, and says what hangs."""

    may_go_on = threading.Event()

    async def run() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        server = NodeServer(HealthSettings("127.0.0.1", 0), Node(), loop)
        server.probes.gateway = Gateway(loop, answer_seconds=0.01)
        server.start()
        answers: list[bytes] = []

        def ask_both() -> None:
            for path in ("live", "role"):
                with socket.create_connection(("127.0.0.1", server.server.port)) as client:
                    client.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
                    answers.append(b"".join(iter(lambda: client.recv(65_536), b"")))
            may_go_on.set()

        threading.Thread(target=ask_both).start()
        may_go_on.wait(240)  # the loop does nothing else
        await asyncio.to_thread(server.close)
        live, role = answers
        return live, role

    live, role = asyncio.run(run())
    assert live.startswith(b"HTTP/1.1 503 ")
    assert live.endswith(b"the event loop has not answered for 0.01 s\n")
    assert role.startswith(b"HTTP/1.1 200 ")


def test_a_probe_that_waits_outlives_a_flood() -> None:
    """Whoever opens sockets without end cuts off one another, and no probe."""

    def waits(bounds: Bounds) -> bool:
        return any(one.standing() for one in list(bounds.connections))

    may_go_on = threading.Event()

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        server = NodeServer(HealthSettings("127.0.0.1", 0), Node(), loop)
        server.probes.gateway = Gateway(loop, answer_seconds=1)
        server.start()
        answers: list[bytes] = []

        def ask_amid_others() -> None:
            address = ("127.0.0.1", server.server.port)
            with ExitStack() as sockets, socket.create_connection(address) as client:
                client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
                wait_until(lambda: waits(server.server.bounds), what="the probe waits")
                for _ in range(200):
                    sockets.enter_context(socket.create_connection(address))
                with suppress(ConnectionResetError):
                    answers.append(client.recv(65_536))
            may_go_on.set()

        threading.Thread(target=ask_amid_others).start()
        may_go_on.wait(240)  # the loop does nothing else, so the probe waits
        await asyncio.to_thread(server.close)
        return b"".join(answers)

    assert asyncio.run(run()).startswith(b"HTTP/1.1 503 ")


def test_who_has_to_go_for_another() -> None:
    """Of silent clients, probes and users that wait, in this order; of each the oldest first."""

    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        bounds = Bounds(5.0)
        gone: list[str] = []

        class Ended(asyncio.Transport):
            def __init__(self, name: str) -> None:
                super().__init__()
                self._name = name

            @override
            def abort(self) -> None:
                gone.append(self._name)

        class Protocol:
            """Uvicorn's, as far as its connection asks it."""

            def __init__(self, path: str | None, *, is_over: bool) -> None:
                waits = SimpleNamespace(scope={"path": path}, response_complete=is_over)
                self.cycle = None if path is None else waits

            def connection_made(self, transport: asyncio.Transport) -> None:
                """Do nothing."""

            def connection_lost(self, error: Exception | None) -> None:
                """Do nothing."""

        def connect(name: str, path: str | None, *, user: bool = False, over: bool = False) -> None:
            protocol = cast("H11Protocol", Protocol(path, is_over=over))
            connection = bounds.around(protocol, loop)
            connection.connection_made(Ended(name))
            made.append(connection)
            if user:
                connection.logged_in()

        made: list[Bounded] = []
        connect("user", "/api/v1/queues", user=True)
        connect("later user", "/api/v1/queues", user=True)
        connect("probe", "/live")
        connect("stranger", "/api/v1/queues")
        connect("answered user", "/api/v1/queues", user=True, over=True)
        for _ in range(MAX_CONNECTIONS - len(made)):
            connect("silent", None)
        for _ in range(MAX_CONNECTIONS):
            connect("last", "/live")
        for one in made:
            one.connection_lost(None)
        return gone

    silent = ["silent"] * (MAX_CONNECTIONS - 5)
    assert asyncio.run(run()) == ["stranger", "answered user", *silent, "probe", "last", "last"]


def test_requests_without_end_take_a_share() -> None:
    """Who sends requests without end is held back, and the broker keeps the processor."""
    used = [0.0]
    now = [0.0]
    budget = Budget(processor=lambda: used[0], clock=lambda: now[0])
    assert budget.ahead_seconds() <= 0
    used[0] = 0.5
    assert budget.ahead_seconds() == pytest.approx(1.0)
    now[0] = 1.0
    assert budget.ahead_seconds() == pytest.approx(0.0)
    now[0] = 100.0
    assert budget.ahead_seconds() < 0
    used[0] += 0.5
    assert budget.ahead_seconds() == pytest.approx(1.0), "a rest is not saved without bounds"
    used[0] += 50.0
    assert budget.ahead_seconds() == pytest.approx(1.0), "nobody waits for long"
    now[0] = 101.0
    assert budget.ahead_seconds() == pytest.approx(0.0)


@pytest.mark.parametrize("each", [0.015, 0.09])
def test_pages_that_follow_take_a_small_share(each: float) -> None:
    """However much one look takes: then the next is later."""
    used, now = [0.0], [0.0]
    budget = followed(lambda: used[0], lambda: now[0])
    for _ in range(2_000):
        now[0] += max(0.1, budget.ahead_seconds())
        used[0] += each
    assert used[0] / now[0] < 1.1 * FOLLOWED_SHARE


def test_a_probe_is_answered_in_a_flood() -> None:
    """Requests that wait for their turn do not have an orchestrator kill the node."""

    async def run() -> list[str]:
        used = iter([0.0, 1e9])
        budget = Budget(processor=lambda: next(used), clock=lambda: 0.0)
        budget.ahead_seconds()
        answered: list[str] = []

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            del receive, send
            answered.append(scope["path"])

        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            raise AssertionError(message)

        pace = Paced(application, Pace(budget), probe_seconds=0.001)
        flood = asyncio.create_task(pace({"path": "/metrics"}, receive, send))
        await asyncio.sleep(0)
        await pace({"path": "/live"}, receive, send)
        flood.cancel()
        return answered

    assert asyncio.run(run()) == ["/live"]


def test_connections_that_are_kept_make_room_for_a_probe() -> None:
    """Beyond its few connections the endpoint cuts the oldest off, and answers whoever asks.

    Not the newest: that may be another probe.
    """

    async def scenario(port: int) -> bytes:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        try:
            answer = await exchange(port, b"GET /live HTTP/1.0\r\n\r\n")
            reader, writer = idle[-1]
            writer.write(b"GET /live HTTP/1.0\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 "), "the newest was cut off"
            with suppress(ConnectionResetError):
                assert await idle[0][0].read() == b"", "the oldest is still there"
        finally:
            for _, writer in idle:
                writer.transport.abort()
        return answer

    assert served(scenario).startswith(b"HTTP/1.1 200 ")


def test_a_socket_that_makes_room_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever opens and keeps sockets cannot fill the log."""

    async def scenario(port: int) -> bytes:
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for reader, writer in kept[:200]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.transport.abort()
        for _, writer in kept:
            writer.transport.abort()
        return b"done"

    with caplog.at_level(logging.DEBUG):
        assert served(scenario) == b"done"
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG] == []


def test_a_connection_that_is_made_while_the_server_ends_is_ended() -> None:
    """It was accepted when the others were ended: no socket stays open behind the server."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        bounds, state = Bounds(60.0), ServerState()
        config = Config(Starlette(), log_config=None, lifespan="off")
        config.load()

        def connect() -> asyncio.Protocol:
            return bounds.around(H11Protocol(config, state, {}, loop), loop)

        server = await loop.create_server(connect, "127.0.0.1", 0)
        bounds.end_all()
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            async with asyncio.timeout(60):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            server.close()

    assert asyncio.run(run()) == b""


@pytest.mark.parametrize("turns", range(6))
def test_sockets_that_are_accepted_as_the_server_ends_are_closed(turns: int) -> None:
    """However many turns of its loop before: none is left to the collector, which would tell."""
    opened: list[socket.socket] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        opened.extend(socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))

        def end(left: int) -> None:
            if left:
                loop.call_soon(end, left - 1)
            else:
                with suppress(RuntimeError):  # it cannot wait here for its own thread
                    server.close()

        end(turns)

    server = HttpServer(HealthSettings("127.0.0.1", 0), cast("Starlette", application))
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):
            while client.recv(65_536):
                pass
    for thread in threading.enumerate():
        if thread.name == "orthia-http":
            thread.join(60)
    for one in opened:
        one.close()
    gc.collect()


class Slow(Collector):
    """Has rendering take until it is let go; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.times = 0
        self.may_end = threading.Event()
        self.size = 0

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as nothing is known before it is asked."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Take as long as the test wants."""
        self.times += 1
        self.asked.release()
        assert self.may_end.wait(120)
        yield GaugeMetricFamily("slow", "x" * self.size, value=1.0)


def test_metrics_are_rendered_beside_the_loop_and_once_for_all_who_ask() -> None:
    """While they are rendered other requests are answered, and more scrapes cost nothing more."""
    node, slow = Node(), Slow()
    node.registry.register(slow)

    async def scenario(port: int) -> bytes:
        scrape = b"GET /metrics HTTP/1.0\r\n\r\n"
        scrapes = [asyncio.ensure_future(exchange(port, scrape)) for _ in range(20)]
        assert await asyncio.to_thread(slow.asked.acquire, timeout=120)
        answer = await exchange(port, b"GET /live HTTP/1.0\r\n\r\n")
        assert not any(one.done() for one in scrapes)
        slow.may_end.set()
        for text in await asyncio.gather(*scrapes):
            assert b"slow 1.0" in text
        return answer

    assert served(scenario, node).startswith(b"HTTP/1.1 200")
    assert slow.times == 1


@pytest.mark.parametrize(
    ("names", "own", "artemis"),
    [
        (QueueNames(), 1, 0),
        (QueueNames(artemis="B"), 1, 1),
        (QueueNames(own=False, artemis="B"), 0, 1),
        (QueueNames(own=False), 0, 0),
    ],
)
def test_queues_are_shown_under_the_names_that_are_chosen(
    names: QueueNames, own: int, artemis: int
) -> None:
    """Orthia's own, those of Artemis' plugin, both or none."""
    seen = QueueSeen("q", "a", False, 3, 2, 1, 9, 6, 0, 0)
    node = Node()
    node.metrics = NodeMetrics(["live", "backup"], queue_names=names)
    node.watch(queues=lambda: [seen], queue_depths=lambda: {"q": 3})
    lines = generate_latest(node.registry).decode().splitlines()
    assert lines.count('orthia_queue_messages{queue="q"} 3.0') == own
    assert lines.count('orthia_queue_events{event="added",queue="q"} 9.0') == own
    assert lines.count('orthia_address_messages{address="a"} 3.0') == own
    assert "orthia_queues 1.0" in lines
    labels = 'address="a",broker="B"'
    assert lines.count(f'artemis_message_count{{{labels},queue="q"}} 3.0') == artemis
    assert lines.count(f"artemis_routed_message_count{{{labels}}} 9.0") == artemis


def test_the_oldest_message_and_how_full_its_address_is_are_shown() -> None:
    """As the core of a live node has them; of a queue without messages neither age nor limit."""
    core = CoreUnderTest(settings("orders", page_limit_messages=4))
    core.send("/queue/orders", "a", "b")
    core.consume("/queue/empty")
    node = Node()
    RunningNode(
        node.metrics,
        status=lambda: NodeStatus("a", "live", True, False, None, None, 1, True, 9.0),
        broker=lambda: core.broker,
        journal=lambda: None,
        connections=lambda: 0,
    )
    lines = generate_latest(node.registry).decode().splitlines()
    ages = [one for one in lines if one.startswith("orthia_queue_oldest_message_timestamp_seconds")]
    assert [one.partition(" ")[0].partition("{")[2] for one in ages] == ['queue="orders"}']
    assert float(ages[0].split()[1]) == pytest.approx(core.broker.time_ms() / 1_000, abs=60)
    fills = [one for one in lines if one.startswith("orthia_address_fill_ratio")]
    assert fills == ['orthia_address_fill_ratio{address="orders"} 0.5']


def test_a_scraper_that_leaves_takes_the_answer_from_nobody() -> None:
    """Of two who wait for the same text one closes its connection; the other gets it."""
    node, slow = Node(), Slow()
    node.registry.register(slow)

    async def scenario(port: int) -> bytes:
        scrape = b"GET /metrics HTTP/1.0\r\n\r\n"
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.write(scrape)
        assert await asyncio.to_thread(slow.asked.acquire, timeout=120)
        other = asyncio.ensure_future(exchange(port, scrape))
        gone.transport.abort()
        await exchange(port, b"GET /live HTTP/1.0\r\n\r\n")
        slow.may_end.set()
        return await other

    assert b"slow 1.0" in served(scenario, node)


def test_metrics_are_rendered_anew_after_a_moment() -> None:
    """A text is given out for a second and no longer."""
    now = [0.0]
    registry, slow = CollectorRegistry(), Slow()
    registry.register(slow)
    slow.may_end.set()

    async def ask_at(*times: float) -> int:
        exposition = Exposition(registry, clock=lambda: now[0])
        for now[0] in times:
            await exposition.latest()
        exposition.close()
        now[0] += 10
        with pytest.raises(RenderingError):  # no thread can be had any more
            await exposition.latest()
        return slow.times

    assert asyncio.run(ask_at(0.0, 0.5, 0.99, 1.0, 1.5, 2.1)) == 3


def test_of_very_many_queues_the_fullest_are_shown() -> None:
    """Clients make queues: the answer stays small, and says what it leaves out."""
    node = Node()
    longest = "q" * 240
    depths = {f"{longest}{number:06}": number for number in range(50_000)}
    node.watch(queue_depths=lambda: depths)
    body = get("/metrics", node)[2]
    lines = body.decode().splitlines()
    assert len(body) < 1_000_000
    assert sum(line.startswith("orthia_queue_messages{") for line in lines) == MAX_QUEUES_SHOWN
    assert f'orthia_queue_messages{{queue="{longest}049999"}} 49999.0' in lines
    assert "orthia_queues 50000.0" in lines
    assert "orthia_queues_left_out 49000.0" in lines
    assert "orthia_queue_messages_left_out 1.2004755e+09" in lines


def test_who_does_not_read_its_last_answer_is_cut_off() -> None:
    """An answer that fits into the broker's buffers, and not into the system's, ends too."""
    node, slow = Node(), Slow()
    node.registry.register(slow)
    slow.may_end.set()
    slow.size = 40_000

    async def run() -> bytes:
        server = server_of(node, HealthSettings("127.0.0.1", 0), request_seconds=0.5)
        server.start()
        assert server.server.socket is not None
        listener = server.server.socket.fileno()
        with socket.socket(fileno=os.dup(listener)) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # inherited
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", server.server.port))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            began, _, _ = await asyncio.to_thread(select.select, [client], [], [], 120)
            assert began, "no answer came"
            open_now = server.server.bounds.connections
            await asyncio.to_thread(wait_until, lambda: not open_now, what="its end")
            client.settimeout(120)
            data = b""
            with suppress(ConnectionResetError):
                while chunk := client.recv(65_536):
                    data += chunk
        await asyncio.to_thread(server.close)
        return data

    data = asyncio.run(run())
    assert data.startswith(b"HTTP/1.1 200")
    assert len(data) < slow.size, "it was not cut off"


def test_an_answer_waits_for_no_acknowledgement_of_its_head() -> None:
    """Head and body are two writes: the second is not held back by the system."""

    async def run() -> int:
        server = server_of(Node(), HealthSettings("127.0.0.1", 0))
        server.start()
        with socket.create_connection(("127.0.0.1", server.server.port)):
            accepted = server.server.bounds.connections
            await asyncio.to_thread(wait_until, lambda: bool(accepted), what="a connection")
            (connection,) = accepted
            assert connection._transport is not None
            accepted_socket = connection._transport.get_extra_info("socket")
            undelayed = accepted_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await asyncio.to_thread(server.close)
        return int(undelayed)

    assert asyncio.run(run())


def test_a_port_in_use_is_a_clear_error() -> None:
    """An endpoint that cannot listen says where, and what to change."""

    async def scenario(port: int) -> bytes:
        with pytest.raises(HealthNotFree, match=f"cannot listen on 127.0.0.1:{port}.*<health>"):
            server_of(Node(), HealthSettings("127.0.0.1", port)).start()
        assert code_of_kind(HealthNotFree) is ExitCode.LOCK_NOT_ACQUIRED
        with pytest.raises(HealthError, match=r"cannot listen on 192\.0\.2\.1:1.*<health>"):
            server_of(Node(), HealthSettings("192.0.2.1", 1)).start()
        assert code_of_kind(HealthError) is ExitCode.CONFIGURATION
        return b"done"

    assert served(scenario) == b"done"


TOKEN = "t0ken-of-the-metrics"


@pytest.mark.parametrize(
    ("host", "settings", "given", "status"),
    [
        ("127.0.0.1", {}, "", 200),
        ("0.0.0.0", {}, "", 403),  # noqa: S104 - that is what is refused
        ("0.0.0.0", {"allow_anonymous": True}, "", 200),  # noqa: S104
        ("127.0.0.1", {"token": Secret(TOKEN)}, "", 401),
        ("127.0.0.1", {"token": Secret(TOKEN)}, "Bearer wrong", 401),
        ("127.0.0.1", {"token": Secret(TOKEN)}, f"Basic {TOKEN}", 401),
        ("0.0.0.0", {"token": Secret(TOKEN), "allow_anonymous": True}, "", 401),  # noqa: S104
        ("0.0.0.0", {"token": Secret(TOKEN)}, f"bearer {TOKEN}", 200),  # noqa: S104
    ],
)
def test_more_than_the_probes_is_for_who_may(
    host: str, settings: dict[str, Any], given: str, status: int
) -> None:
    """Who has the token, if there is one; else who is on this host, unless all are meant."""

    async def run() -> list[bytes]:
        server = server_of(Node(), HealthSettings(host, 0, **settings))
        server.start()
        try:
            return [
                await exchange(
                    server.server.port,
                    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    f"{f'Authorization: {given}' if given else 'X: y'}\r\n\r\n".encode(),
                )
                for path in ("/live", "/role", "/metrics")
            ]
        finally:
            await asyncio.to_thread(server.close)

    live, role, metrics = asyncio.run(run())
    assert live.startswith(b"HTTP/1.1 200 ")
    for answer in (role, metrics):
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert TOKEN.encode() not in answer
        assert (b'www-authenticate: Bearer realm="orthia"' in answer) == (status == 401)


@pytest.mark.parametrize(("path", "status"), [("/metrics", 403), ("/role", 403), ("/live", 200)])
def test_a_page_whose_name_leads_to_this_host_reads_nothing(path: str, status: int) -> None:
    """A browser on the node's machine says the name of the page; probes tell nothing."""
    answer = ask(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
