"""A core with its facade, whose coroutines a loop of the test's own drives."""

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from orthia.broker.core.identity import Origin, Principal
from orthia.broker.management.abc import ConnectedClients, Handover
from orthia.broker.management.facade import Management
from orthia.broker.management.requests import Requests
from orthia.broker.management.views import ConnectionView, JobKind, JobView, TransactionView
from orthia.config.settings import Settings
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS, CoreUnderTest

_Result = TypeVar("_Result")
_LOOP = asyncio.new_event_loop()
"""One for all: a job goes on from one call to the next."""
atexit.register(_LOOP.close)
OPERATOR = Principal("op", frozenset({"ops"}), unrestricted=True, origin=Origin("127.0.0.1", 1))


def no_time() -> float:
    """Return the same at any time: each step of a job takes as many messages as it may."""
    return 0.0


class FakeClients(ConnectedClients):
    """Connections that are only told to end."""

    def __init__(self, *connections: ConnectionView) -> None:
        self.there = {one.id: one for one in connections}
        self.ended: list[tuple[str, str]] = []
        self.open_transactions: list[TransactionView] = []

    @property
    def number(self) -> int:
        """How many are left."""
        return len(self.there)

    def connections(self) -> Iterable[ConnectionView]:
        """Return those that are left."""
        return list(self.there.values())

    def transactions(self) -> Iterable[TransactionView]:
        """Return what the test said."""
        return self.open_transactions

    def end(self, connection: str, reason: str) -> bool:
        """Note the reason."""
        self.ended.append((connection, reason))
        return self.there.pop(connection, None) is not None

    @property
    def held_bytes(self) -> int:
        """Nothing."""
        return 0

    @property
    def limit_bytes(self) -> int:
        """Much."""
        return 1_000


class OnStore:
    """A node on a store of any kind, and its facade."""

    def __init__(
        self,
        node: StoredNode,
        clients: FakeClients | None = None,
        handover: Handover | None = None,
    ) -> None:
        self.node = node
        self.clients = clients or FakeClients()
        self.management = Management(node.broker, self.clients, "test", handover, processor=no_time)
        node.broker.start_schedule()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return what a coroutine returns, with what the store answers in between."""
        loop = self.node.store.loop

        async def driven() -> _Result:
            task = asyncio.ensure_future(work)
            while not task.done():
                if not loop.run_posted():
                    # A step waits for room in the journal: the clock goes on meanwhile.
                    self.node.pass_time(0.01)
                await asyncio.sleep(0)
            return await task

        return _LOOP.run_until_complete(driven())

    def job(self, kind: JobKind, queue: str | None = "orders", **said: Any) -> JobView:
        """Return a job that was started, at its end."""
        return self.run(started(self.management, kind, queue=queue, **said))

    def texts(self, queue: str) -> list[str]:
        """Return the bodies of a queue's messages, in order."""
        return self.run(all_texts(self.management, queue))

    def take_over(self, options: Settings | None = None) -> "OnStore":
        """Return the next live node on the same store."""
        self.management.end()
        self.node.broker.stop()
        return OnStore(self.node.take_over(options))


async def started(management: Management, kind: JobKind, **said: Any) -> JobView:
    """Start a job and return it at its end."""
    job = await management.start_job(OPERATOR, kind, **said)
    return await management.finished(OPERATOR, job.id)


async def all_texts(management: Management, queue: str) -> list[str]:
    """Return the bodies of a queue's messages, in order."""
    found: list[str] = []
    after = None
    while True:
        page = await management.browse(OPERATOR, queue, None, after, 500, body_bytes=1_000)
        found += [(one.body or b"").decode() for one in page.messages]
        after = page.next
        if after is None:
            return found


class Managed:
    """A core under test and its facade."""

    def __init__(
        self,
        options: Settings = SETTINGS,
        clients: FakeClients | None = None,
        core: CoreUnderTest | None = None,
        **named: Any,
    ) -> None:
        self.core = core or CoreUnderTest(options, **named)
        self.clients = clients or FakeClients()
        self.management = Management(self.core.broker, self.clients, "test", processor=no_time)

    def run(self, work: Coroutine[Any, Any, _Result], *, forever: bool = False) -> _Result:
        """Return what a coroutine returns, with the core's turns in between.

        ``forever`` it may wait for something outside the core, whatever number of turns that takes.
        """

        async def driven() -> _Result:
            task = asyncio.ensure_future(work)
            for number in count() if forever else range(20_000):
                if task.done():
                    return await task
                self.core.settle()
                if not number % 50:
                    self.core.pass_time(0.01)
                await asyncio.sleep(0)
            task.cancel()
            raise AssertionError("nothing answers")

        return _LOOP.run_until_complete(driven())

    def manage(self) -> None:
        """Do what clients ask for by messages."""
        self.core.broker.manager = Requests(self.management, self.core.broker.security)

    def let(self, act: Callable[[], None]) -> None:
        """Do something in a turn of the loop, and wait for what it has begun."""

        async def acted() -> None:
            before = asyncio.all_tasks()
            act()
            self.core.settle()
            begun = asyncio.all_tasks() - before
            if begun:
                await asyncio.wait(begun)

        self.run(acted())
        self.core.settle()

    def job(self, kind: JobKind, queue: str | None = "orders", **said: Any) -> JobView:
        """Return a job that was started, at its end."""

        return self.run(started(self.management, kind, queue=queue, **said))

    def texts(self, queue: str) -> list[str]:
        """Return the bodies of a queue's messages, in order."""
        return self.run(all_texts(self.management, queue))

    def takeover(self, options: Settings = SETTINGS) -> "Managed":
        """Return the next live node on the same store."""
        self.management.end()
        return Managed(core=self.core.takeover(options))


def connection(number: str, **fields: Any) -> ConnectionView:
    """Return a connection."""
    plain = ConnectionView(
        id=number,
        address="10.0.0.1",
        port=5,
        user="ada",
        client_id=None,
        verified=True,
        acceptor="stomp",
        protocol="STOMP 1.2",
        tls=False,
        since_ms=1,
        held_bytes=0,
        received_bytes=0,
        sent_bytes=0,
        consumers=0,
    )
    return replace(plain, **fields)
