"""stompman, a client of asyncio, as its users use it."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import stompman

from tests.clients.node import DEAD_LETTERS, PASSCODES, SECONDS, ClientsNode
from tests.process.clients import take_all
from tests.process.nodes import NodeProcess
from tests.support.waiting import wait_until

AWKWARD = "a:b\\c\nd ü"
DELAY_MS = 1_500

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


def test_a_wrong_passcode_is_refused(node: ClientsNode) -> None:
    """The client is told by an ERROR, and gives up as it was told to."""

    async def scenario() -> None:
        options = {"connect_retry_attempts": 1, "connection_confirmation_timeout": 5}
        with pytest.raises(stompman.FailedAllConnectAttemptsError):
            async with client(node, passcode="wrong", **options):
                pass

    run(scenario)


def test_what_is_sent_comes_as_it_was_sent(node: ClientsNode) -> None:
    """Bytes that are no text, and headers with all that is escaped; each SEND has its receipt."""

    async def scenario() -> None:
        async with client(node) as to:
            inbox, subscription = await subscribe(to, "/queue/sent")
            body = bytes(range(256)) * 1_000
            await to.send(
                body,
                "/queue/sent",
                content_type="a/b",
                headers={AWKWARD: AWKWARD},
                receipt_timeout=SECONDS,
            )
            await send(to, b"", "/queue/sent")
            frame = await inbox.next()
            assert frame.body == body
            assert frame.headers.get("content-type") == "a/b"
            assert dict(frame.headers)[AWKWARD] == AWKWARD
            await frame.ack()
            assert (await inbox.next()).body == b""
            await subscription.unsubscribe()

    run(scenario)


def test_an_ack_of_client_mode_is_of_all_before(node: ClientsNode) -> None:
    """Whoever subscribes next gets the rest."""

    async def scenario() -> None:
        async with client(node) as to:
            for number in range(5):
                await send(to, b"%d" % number, "/queue/cumulative")
            inbox, subscription = await subscribe(to, "/queue/cumulative", "client")
            frames = [await inbox.next() for _ in range(5)]
            await frames[2].ack()
            await subscription.unsubscribe()
            inbox, subscription = await subscribe(to, "/queue/cumulative")
            assert await inbox.bodies(2) == [b"3", b"4"]
            await subscription.unsubscribe()

    run(scenario)


def test_a_handler_that_fails_gets_the_message_again_and_then_the_dead_letters_do(
    node: ClientsNode,
) -> None:
    """An exception in a handler is a NACK; two are as many as the node was told."""

    async def scenario() -> None:
        seen: list[str] = []

        async def handle(frame: stompman.MessageFrame) -> None:
            seen.append(str(dict(frame.headers).get("redelivered", "false")))
            raise ValueError(frame.body)

        async with client(node) as to:
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


def test_a_transaction_is_there_as_a_whole_or_not_at_all(node: ClientsNode) -> None:
    """One that an exception left is aborted; what was sent later comes first."""

    async def scenario() -> None:
        async with client(node) as to, client(node) as other:
            inbox, subscription = await subscribe(other, "/queue/transacted")
            with pytest.raises(ZeroDivisionError):
                await send_in_vain(to)
            async with to.begin() as transaction:
                for number in range(3):
                    await transaction.send(b"%d" % number, "/queue/transacted")
                await send(other, b"beside", "/queue/transacted")
            assert await inbox.bodies(4) == [b"beside", b"0", b"1", b"2"]
            await subscription.unsubscribe()

    run(scenario)


async def send_in_vain(to: stompman.Client) -> None:
    """Send in a transaction, and fail."""
    async with to.begin() as transaction:
        await transaction.send(b"aborted", "/queue/transacted")
        raise ZeroDivisionError


def test_a_durable_subscription_keeps_what_came_meanwhile(node: ClientsNode) -> None:
    """By client-id and name, as in Artemis; without a client-id it is refused by name."""
    durable: dict[str, Any] = {"durable-subscription-name": "report"}

    async def scenario() -> None:
        async with client(node, connect_headers={"client-id": "desk"}) as to:
            _, subscription = await subscribe(to, "/topic/durable", **durable)
            await subscription.unsubscribe()
        async with client(node) as to:
            await send(to, b"meanwhile", "/topic/durable")
        async with client(node, connect_headers={"client-id": "desk"}) as to:
            inbox, subscription = await subscribe(to, "/topic/durable", **durable)
            frame = await inbox.next()
            assert frame.body == b"meanwhile"
            await frame.ack()
            await subscription.unsubscribe()
        with pytest.raises(stompman.SubscriptionError) as refused:
            async with client(node, on_error_frame=None) as to:
                await subscribe(to, "/topic/durable", **durable)
        assert "client-id" in reason(refused.value)

    run(scenario)


def reason(error: stompman.SubscriptionError) -> str:
    """Return why a subscription was refused."""
    assert error.reason == "rejected"
    assert error.frame is not None
    return error.frame.headers["message"]


def test_a_selector_chooses(node: ClientsNode) -> None:
    """And one that cannot be read is refused with its column."""

    async def scenario() -> None:
        async with client(node) as to:
            inbox, subscription = await subscribe(
                to, "/queue/selected", selector="area = 'Europe' AND price > 2.5"
            )
            for area, price in (("Asia", "9"), ("Europe", "1"), ("Europe", "3")):
                await send(
                    to, f"{area} {price}".encode(), "/queue/selected", area=area, price=price
                )
            assert await inbox.bodies(1) == [b"Europe 3"]
            await subscription.unsubscribe()
        with pytest.raises(stompman.SubscriptionError) as refused:
            async with client(node, on_error_frame=None) as to:
                await subscribe(to, "/queue/selected", selector="area = ")
        assert "column" in reason(refused.value)

    run(scenario)


def test_a_delayed_message_comes_in_its_time(node: ClientsNode) -> None:
    """Behind what was sent after it, and not before; heart-beats keep the idle client meanwhile."""

    async def scenario() -> None:
        beats = stompman.Heartbeat(100, 100)
        async with client(node, heartbeat=beats, connect_retry_attempts=1) as to:
            inbox, subscription = await subscribe(to, "/queue/delayed")
            began = time.monotonic()
            await send(to, b"later", "/queue/delayed", AMQ_SCHEDULED_DELAY=str(DELAY_MS))
            await send(to, b"now", "/queue/delayed")
            assert await inbox.bodies(2) == [b"now", b"later"]
            assert time.monotonic() - began >= DELAY_MS / 1_000
            assert to._connection_manager._reconnection_count == 0
            await subscription.unsubscribe()

    run(scenario)


def test_a_duplicate_id_counts_once(node: ClientsNode) -> None:
    """Both get their receipts."""

    async def scenario() -> None:
        async with client(node) as to:
            inbox, subscription = await subscribe(to, "/queue/once")
            for _ in range(2):
                await send(to, b"once", "/queue/once", _AMQ_DUPL_ID="one")
            await send(to, b"end", "/queue/once")
            assert await inbox.bodies(2) == [b"once", b"end"]
            await subscription.unsubscribe()

    run(scenario)


def test_what_is_of_a_higher_priority_comes_first(node: ClientsNode) -> None:
    """And in order among its like."""

    async def scenario() -> None:
        async with client(node) as to:
            for number, level in enumerate("1949"):
                await send(to, b"%d" % number, "/queue/levels", priority=level)
            inbox, subscription = await subscribe(to, "/queue/levels")
            assert await inbox.bodies(4) == [b"1", b"3", b"2", b"0"]
            await subscription.unsubscribe()

    run(scenario)


def test_a_group_goes_to_one_of_two_subscriptions(node: ClientsNode) -> None:
    """Whole, and in order."""

    async def scenario() -> None:
        async with client(node) as to:
            inbox, one = await subscribe(to, "/queue/groups", "client-individual")
            other, two = await subscribe(to, "/queue/groups", "client-individual")
            for number in range(6):
                body = "ab"[number % 2] + str(number)
                await send(to, body.encode(), "/queue/groups", JMSXGroupID=body[0])
            got = sorted([await inbox.bodies(3), await other.bodies(3)])
            assert got == [[b"a0", b"a2", b"a4"], [b"b1", b"b3", b"b5"]]
            await one.unsubscribe()
            await two.unsubscribe()

    run(scenario)


def test_a_browser_takes_nothing(node: ClientsNode) -> None:
    """What is there, then a message that says that this was all; who consumes gets it, too."""

    async def scenario() -> None:
        async with client(node) as to:
            for body in (b"first", b"second"):
                await send(to, body, "/queue/browsed")
            shown, browser = await subscribe(to, "/queue/browsed", "auto", browser="true")
            assert await shown.bodies(2) == [b"first", b"second"]
            assert (await shown.next()).headers["browser"] == "end"  # type: ignore[typeddict-item]
            await browser.unsubscribe()
            inbox, subscription = await subscribe(to, "/queue/browsed")
            assert await inbox.bodies(2) == [b"first", b"second"]
            await subscription.unsubscribe()

    run(scenario)


def test_destinations_of_every_sort(node: ClientsNode) -> None:
    """A last value, a wildcard with no-local, an answer at a temporary queue, a divert."""

    async def scenario() -> None:
        async with client(node) as to, client(node) as other:
            for price in (b"1", b"2"):
                await send(to, price, "/queue/prices.py", _AMQ_LVQ_NAME="gold")
            prices, last_value = await subscribe(to, "/queue/prices.py", "auto")
            assert await prices.bodies(1) == [b"2"]
            no_local = {"no-local": "true"}
            news, pattern = await subscribe(to, "/topic/news.py.#", "auto", **no_local)
            await send(to, b"own", "/topic/news.py.eu")
            await send(other, b"other", "/topic/news.py.eu")
            heard = await news.next()
            assert (heard.body, heard.headers["destination"]) == (b"other", "/topic/news.py.eu")
            answers, temporary = await subscribe(to, "/temp-queue/answers", "auto")
            requests, asking = await subscribe(other, "/queue/requests.py", "auto")
            reply_to = {"reply-to": "/temp-queue/answers"}
            await send(to, b"question", "/queue/requests.py", **reply_to)
            asked = dict((await requests.next()).headers)
            await send(other, b"answer", str(asked["reply-to"]))
            assert await answers.bodies(1) == [b"answer"]
            await send(to, b"order", "/queue/orders.py", kind="py")
            audit, diverted = await subscribe(to, "/queue/audit", "auto", selector="kind = 'py'")
            copied = await audit.next()
            assert copied.body == b"order"
            assert dict(copied.headers)["_AMQ_ORIG_ADDRESS"] == "orders.py"
            orders, ordered = await subscribe(to, "/queue/orders.py", "auto")
            assert await orders.bodies(1) == [b"order"]
            # stompman leaves a client only once it has no subscription.
            for ended in (last_value, pattern, temporary, asking, diverted, ordered):
                await ended.unsubscribe()

    run(scenario)


def test_a_frozen_node_is_noticed_by_its_heart_beats(own_node: ClientsNode) -> None:
    """The client says that nobody is there, and goes on by itself when somebody is."""

    async def scenario() -> None:
        beats = stompman.Heartbeat(200, 200)
        async with client(own_node, heartbeat=beats, connect_retry_attempts=SECONDS) as to:
            inbox, subscription = await subscribe(to, "/queue/frozen")
            assert to.is_alive()
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


def test_it_goes_on_with_the_backup(pair: tuple[NodeProcess, NodeProcess]) -> None:
    """Nothing is lost or stored twice by a kill -9 amid what is sent and consumed."""
    live, backup = pair
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
    assert [frame.body for frame in take_all(backup.port, "/queue/consumed")] == []
    kept = [frame.body for frame in take_all(backup.port, "/queue/kept")]
    assert kept == [b"%d" % number for number in range(count)]
