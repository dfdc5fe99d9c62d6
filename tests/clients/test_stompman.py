"""What stompman does of itself: handlers, blocks of transactions, and the way to another node."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import stompman

from orthia.broker.client.connection import Login
from tests.clients.node import DEAD_LETTERS, PASSCODES, SECONDS, Scene
from tests.process.clients import take_all
from tests.process.nodes import NodeProcess
from tests.support.waiting import wait_until

Frame = stompman.AckableMessageFrame


class Inbox:
    """What a subscription gets, one message after the other."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[Any] = asyncio.Queue()

    async def take(self, frame: stompman.MessageFrame) -> None:
        """Take a message, as a handler."""
        await self._frames.put(frame)

    async def next(self) -> Frame:
        """Return the next message."""
        return await asyncio.wait_for(self._frames.get(), SECONDS)

    async def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next messages."""
        return [(await self.next()).body for _ in range(count)]


@asynccontextmanager
async def client(*nodes: NodeProcess, **options: Any) -> AsyncIterator[stompman.Client]:
    """Give a client; no ERROR may come that a test does not take."""
    errors: list[stompman.ErrorFrame] = []
    headers = options.pop("connect_headers", {})
    passcode = options.pop("passcode", PASSCODES["alice"])
    servers = [
        stompman.ConnectionParameters(
            "127.0.0.1", node.port, "alice", passcode, connect_headers=headers
        )
        for node in nodes
    ]
    options = {
        "on_error_frame": errors.append,
        "connect_timeout": SECONDS,
        "connection_confirmation_timeout": SECONDS,
        "disconnect_confirmation_timeout": SECONDS,
        **options,
    }
    async with stompman.Client(servers, **options) as running:
        yield running
    assert not errors


async def send(to: stompman.Client, body: bytes, destination: str, **headers: str) -> None:
    """Send a message, and have its receipt."""
    await to.send(body, destination, headers=headers, receipt_timeout=SECONDS)


async def subscribe(
    to: stompman.Client,
    destination: str,
    ack: stompman.AckMode = "client-individual",
    **headers: str,
) -> tuple[Inbox, stompman.ManualAckSubscription]:
    """Subscribe, and have a receipt for it; messages are acknowledged by the test."""
    inbox = Inbox()
    subscription = await to.subscribe_with_manual_ack(
        destination, inbox.take, ack=ack, headers=headers, receipt_timeout=SECONDS
    )
    return inbox, subscription


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run what a user's program does."""
    asyncio.run(scenario())


def test_a_handler_that_fails_gets_the_message_again_and_then_the_dead_letters_do(
    own_node: NodeProcess,
) -> None:
    """An exception in a handler is a NACK; two are as many as the node was told."""

    async def scenario() -> None:
        seen: list[str] = []

        async def handle(frame: stompman.MessageFrame) -> None:
            seen.append(str(dict(frame.headers).get("redelivered", "false")))
            raise ValueError(frame.body)

        async with client(own_node) as to:
            dead, subscription = await subscribe(to, DEAD_LETTERS, selector="kind = 'bad'")
            failing = await to.subscribe(
                "/queue/failing",
                handle,
                on_suppressed_exception=lambda *_: None,
                receipt_timeout=SECONDS,
            )
            await send(to, b"bad", "/queue/failing", kind="bad")
            frame = await dead.next()
            assert (frame.body, seen) == (b"bad", ["false", "true"])
            assert dict(frame.headers)["_AMQ_ORIG_QUEUE"] == "failing"
            await frame.ack()
            await failing.unsubscribe()
            await subscription.unsubscribe()

    run(scenario)


def test_a_frozen_node_is_noticed_by_its_heart_beats(own_node: NodeProcess) -> None:
    """The client says that nobody is there, and goes on by itself when somebody is."""

    async def scenario() -> None:
        beats = stompman.Heartbeat(200, 200)
        async with client(own_node, heartbeat=beats, connect_retry_attempts=SECONDS) as to:
            inbox, subscription = await subscribe(to, "/queue/frozen")
            await until(to.is_alive, "the node is heard")
            own_node.signal(signal.SIGSTOP)
            await until(lambda: not to.is_alive(), "the node is missed")
            own_node.signal(signal.SIGCONT)
            await until(to.is_alive, "the node is there again")
            await send(to, b"thawed", "/queue/frozen")
            assert await inbox.bodies(1) == [b"thawed"]
            await subscription.unsubscribe()

    run(scenario)


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true."""
    await asyncio.to_thread(wait_until, condition, SECONDS, what)


def test_it_goes_on_with_the_backup(moving: Scene) -> None:
    """Nothing is lost or stored twice by a kill -9 amid what is sent and consumed."""
    live, backup = moving.live, moving.backup
    assert backup is not None
    login = Login("alice", PASSCODES["alice"])
    count = 60
    seen: Counter[bytes] = Counter()
    flagged: set[bytes] = set()

    async def handle(frame: stompman.MessageFrame) -> None:
        seen[frame.body] += 1
        if dict(frame.headers).get("redelivered") == "true":
            flagged.add(frame.body)

    async def produce(to: stompman.Client, number: int, destination: str) -> None:
        """Send until there is a receipt; the id keeps the message from being there twice."""
        while True:
            try:
                await send(to, b"%d" % number, destination, _AMQ_DUPL_ID=f"{destination} {number}")
            except stompman.SendReceiptError as error:
                if error.reason != "connection_lost":
                    raise
            else:
                return

    async def scenario() -> None:
        options = {"connect_retry_attempts": SECONDS, "write_retry_attempts": SECONDS}
        async with client(live, backup, **options, connect_timeout=2) as to:
            subscription = await to.subscribe(
                "/queue/consumed", handle, on_suppressed_exception=print, receipt_timeout=SECONDS
            )
            for number in range(count):
                if number == count // 2:
                    live.kill()
                await produce(to, number, "/queue/consumed")
                await produce(to, number, "/queue/kept")
            await until(lambda: len(seen) == count, "all are consumed")
            await subscription.unsubscribe()

    run(scenario)
    assert {body for body, times in seen.items() if times > 1} <= flagged
    assert [frame.body for frame in take_all(backup.port, "/queue/consumed", login)] == []
    kept = [frame.body for frame in take_all(backup.port, "/queue/kept", login)]
    assert kept == [b"%d" % number for number in range(count)]
