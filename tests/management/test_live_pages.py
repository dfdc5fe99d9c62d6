"""Pages of the console that follow what happens: what their streams send, and to how many."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from html import unescape
from typing import Any

import pytest
from starlette.types import Message

from orthia.broker.management.http.console.live import LOOK_SECONDS, MOST_STREAMS, Streams
from orthia.broker.management.http.console.sparklines import (
    MOST_QUEUES,
    SAMPLES,
    Depths,
    Sample,
    sparkline,
)
from orthia.broker.management.http.pace import Pace
from orthia.broker.management.views import QueueView
from orthia.config.address_settings import RoutingType
from tests.management.support import OPERATOR
from tests.management.test_api import Api

PASSCODE = "päss:word"


class Stream:
    """A browser's stream of one page."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.status = status

    async def events(self) -> AsyncIterator[tuple[str, str]]:
        """Yield the names of events, and what a person reads of them."""
        text = ""
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).strip(), 16)
            chunk = await self._reader.readexactly(size + 2)
            if not size:
                return
            text += chunk[:-2].decode()
            while "\n\n" in text:
                one, _, text = text.partition("\n\n")
                found = re.match(r"event: (\w+)\n", one)
                if found:
                    data = re.sub(r"^data: ?", "", one[found.end() :], flags=re.MULTILINE)
                    words = unescape(re.sub(r"<[^>]*>", " ", data))
                    yield found.group(1), " ".join(words.split())

    async def until(self, words: str) -> str:
        """Return the first event with these words in it; its kind is before it."""
        async for name, text in self.events():
            if words in text:
                return f"{name}: {text}"
        raise AssertionError(f"the stream ended without {words!r}")

    async def close(self) -> None:
        """Leave."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Browser:
    """Asks one node for streams."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.streams: list[Stream] = []

    async def open(self, sent: bytes) -> None:
        """Open a connection that sends no more than this."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(sent)
        self.streams.append(Stream(reader, writer, 0))

    async def follow(self, path: str, passcode: str | None = PASSCODE) -> Stream:
        """Ask for a page's stream, and return it with the status of its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        login = base64.b64encode(f"op:{passcode}".encode()).decode()
        basic = [] if passcode is None else [f"Authorization: Basic {login}"]
        head = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream", *basic]
        writer.write("\r\n".join([*head, "", ""]).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        stream = Stream(reader, writer, int(answer.split()[1]))
        self.streams.append(stream)
        assert (b"text/event-stream" in answer) == (stream.status == 200)
        return stream


@pytest.fixture
def api() -> Api:
    """A node with a queue of three messages."""
    made = Api()
    node = made.node
    node.run(node.management.create_queue(OPERATOR, "orders", routing_type=RoutingType.ANYCAST))
    node.core.send("/queue/orders", "a", "b", "c")
    return made


def run(api: Api, scenario: Callable[[Browser], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario while the core goes on."""

    async def served() -> None:
        async with api.serving() as port:
            browser = Browser(port)
            try:
                await scenario(browser)
            finally:
                for one in browser.streams:
                    await one.close()

    api.node.run(served(), forever=True)


def test_the_queues_follow_what_happens(api: Api) -> None:
    """First as they are, then as they become; the depths of then and now are a small line."""

    async def scenario(browser: Browser) -> None:
        stream = await browser.follow("/console/queues?search=ord")
        first = await stream.until("orders anycast")
        assert first.startswith("update: 1 queue with “ord”")
        assert " orders anycast 3 " in first
        api.node.core.send("/queue/orders", "d")
        assert " 4 " in await stream.until("3 to 4 messages in")

    run(api, scenario)


def test_a_takeover_is_seen_on_the_backups_page(api: Api) -> None:
    """Without a login, as ``/role`` is: the role, and where its queues are seen."""
    api.is_live = False

    async def scenario(browser: Browser) -> None:
        stream = await browser.follow("/console/pair", None)
        assert "Role backup" in await stream.until("serves no clients at this moment")
        api.seen.role = {"name": "node-b", "role": "live", "token": 8}
        api.is_live = True
        shown = await stream.until("Role live")
        assert "Fencing token 8" in shown
        assert "Log in to see its queues" in shown

    run(api, scenario)


def test_a_node_that_serves_no_more_says_so(api: Api) -> None:
    """Its streams end with where to look, and no login gets another."""

    async def scenario(browser: Browser) -> None:
        stream = await browser.follow("/console/queue?name=orders")
        await stream.until("Messages 3")
        api.is_live = False
        assert (await stream.until("not live")).startswith("refused: ")
        assert [one async for one in stream.events()] == []
        assert (await browser.follow("/console/queues")).status == 503
        api.is_live = True
        assert (await browser.follow("/console/queues", "wrong")).status == 401
        assert (await browser.follow("/console/queues")).status == 200

    run(api, scenario)


def test_so_many_pages_follow_and_no_more(api: Api) -> None:
    """Another is refused, until one is closed; pages are still answered."""

    async def scenario(browser: Browser) -> None:
        streams = [await browser.follow("/console/jobs") for _ in range(MOST_STREAMS)]
        assert {one.status for one in streams} == {200}
        assert (await browser.follow("/console/jobs")).status == 429
        await streams[0].close()
        async with asyncio.timeout(60):
            while (await browser.follow("/console/jobs")).status != 200:
                pass

    run(api, scenario)


def test_a_page_that_follows_outlives_a_flood(api: Api) -> None:
    """Of clients that have not logged in: these make room for one another."""

    async def scenario(browser: Browser) -> None:
        stream = await browser.follow("/console/queues")
        await stream.until(" 3 ")
        for number in range(200):
            probe = b"GET /live HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
            await browser.open(b"" if number % 2 else probe)
        api.node.core.send("/queue/orders", "d")
        assert " 4 " in await stream.until("3 to 4 messages in")

    run(api, scenario)


def test_who_reads_slowly_is_made_nothing_for() -> None:
    """While an event is not taken, no other is made."""
    made: list[int] = []

    async def scenario() -> None:
        taken = asyncio.Event()

        async def update() -> bytes:
            made.append(1)
            return b"update %d" % len(made)

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            if b"update" in message.get("body", b""):
                taken.set()
                await asyncio.Event().wait()

        streams = Streams(Pace(), look_seconds=0.001)
        stream = asyncio.ensure_future(
            streams.follow("page", b"update", update, lambda: None)(
                {"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send
            )
        )
        await taken.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert (streams.open, made) == (1, [])
        stream.cancel()
        await asyncio.wait([stream])
        assert streams.open == 0

    asyncio.run(scenario())


def test_what_several_look_at_is_made_once_for_all() -> None:
    """Also when the one leaves for whom it is made; another page, and the next look, are others."""
    made: list[str] = []

    async def scenario() -> None:
        may_go_on, both_began = asyncio.Event(), asyncio.Event()

        async def made_of(page: str) -> bytes:
            made.append(page)
            if len(made) == 2:
                both_began.set()
            await may_go_on.wait()
            return f"{page} {len(made)}".encode()

        def look(streams: Streams, page: str) -> asyncio.Task[bytes]:
            return asyncio.ensure_future(streams._look(page, lambda: made_of(page)))

        streams = Streams(Pace(), look_seconds=10_000)
        looks = [look(streams, page) for page in "aaab"]
        await both_began.wait()
        looks[0].cancel()
        may_go_on.set()
        assert await asyncio.gather(*looks[1:]) == [b"a 2", b"a 2", b"b 2"]
        assert await look(streams, "a") == b"a 2"
        streams = Streams(Pace(), look_seconds=0)
        assert [await look(streams, "a") for _ in range(2)] == [b"a 3", b"a 4"]

    asyncio.run(scenario())


def view(api: Api, name: str, messages: int) -> QueueView:
    """Return a queue as it is shown."""
    node = api.node
    shown = node.run(node.management.queue(OPERATOR, "orders"))
    return shown._replace(name=name, messages=messages)


def test_depths_are_kept_of_few_queues_and_a_short_time(api: Api) -> None:
    """Of 50,000 queues that somebody pages through those that were shown last."""
    depths, one = Depths(), view(api, "orders", 1)
    for number in range(MOST_QUEUES + 10):
        depths.seen([one._replace(name=f"q{number}")], 0)
    assert len(depths._kept) == MOST_QUEUES
    for second in range(3 * SAMPLES):
        samples = depths.seen([one._replace(name="q42", messages=second)], 1_000 * second)["q42"]
    assert [len(samples), samples[-1]] == [SAMPLES, Sample(178_000, 178)]
    assert len(depths.seen([one._replace(name="q0")], 0)["q0"]) == 1


def test_a_line_says_what_it_draws() -> None:
    """To who does not see it, too; two samples at least, and none higher than the picture."""
    assert sparkline([Sample(0, 3)]) == ""
    drawn = sparkline([Sample(0, 0), Sample(2_000, 1_500), Sample(4_000, 750)])
    assert 'points="0,15 30,1 60,8"' in drawn
    assert 'aria-label="0 to 1,500 messages in 4 s, 0 at the beginning"' in drawn
    assert 'points="0,15 60,15"' in sparkline([Sample(0, 0), Sample(2_000, 0)])


def test_of_a_page_on_which_nothing_happens_nothing_is_sent(api: Api) -> None:
    """However long somebody looks: its event stays what was sent, lines and all."""

    async def scenario(browser: Browser) -> None:
        stream = await browser.follow("/console/queues")
        await stream.until("orders anycast 3 ")
        await stream.until("3 messages, as before")  # the line, once there are two samples
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * LOOK_SECONDS):
                await stream.until("orders")

    run(api, scenario)
