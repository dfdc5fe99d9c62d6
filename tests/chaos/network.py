"""The network between one node and its database: a TCP proxy that can be cut, slow or silent."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

_CHUNK_BYTES = 65_536
_T = TypeVar("_T")


class _Pipe:
    """One connection through a link, in both directions."""

    def __init__(self, link: "Link", node: asyncio.StreamWriter) -> None:
        self._link = link
        self.node = node
        self.database: asyncio.StreamWriter | None = None

    async def run(self, node: asyncio.StreamReader, port: int) -> None:
        """Forward until either side closes."""
        try:
            await self._link.passable("requests")
            database, self.database = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(
                self._forward(node, self.database, "requests"),
                self._forward(database, self.node, "answers"),
            )
        except OSError:
            self.abort()
        finally:
            self.node.close()
            if self.database is not None:
                self.database.close()

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: str
    ) -> None:
        while data := await source.read(_CHUNK_BYTES):
            if self._link.delay_seconds:
                await asyncio.sleep(self._link.delay_seconds)
            await self._link.passable(direction)
            target.write(data)
            await target.drain()
        await self._link.passable(direction)
        target.close()

    def abort(self) -> None:
        """Reset both sides."""
        for side in (self.node, self.database):
            if side is not None:
                side.transport.abort()

    def forget_database(self) -> None:
        """Reset the database's side only: the node is not told and waits for an answer."""
        if self.database is not None:
            self.database.transport.abort()


class Link:
    """What one node's packets go through; every method may be called on any thread."""

    def __init__(self, network: "Network", database_port: int) -> None:
        """Listen on a free port; use ``Network.link``."""
        self._network = network
        self._database_port = database_port
        self._pipes: set[_Pipe] = set()
        self.delay_seconds = 0.0
        """How long each packet is held up, in each direction."""
        self._open = {"requests": asyncio.Event(), "answers": asyncio.Event()}
        for event in self._open.values():
            event.set()
        self.port = 0

    async def listen(self) -> None:
        """Accept connections; on the network's thread."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening; on the network's thread."""
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = _Pipe(self, writer)
        self._pipes.add(pipe)
        forwarding = asyncio.ensure_future(pipe.run(reader, self._database_port))
        forwarding.add_done_callback(lambda _: self._pipes.discard(pipe))

    async def passable(self, direction: str) -> None:
        """Wait until packets go through in ``direction``; on the network's thread."""
        await self._open[direction].wait()

    def cut(self) -> None:
        """Reset every connection; new ones are made as before."""
        self._network.call(lambda: _each(_Pipe.abort, self._pipes))

    def half_open(self) -> None:
        """Reset every connection at the database only, which the node does not notice."""
        self._network.call(lambda: _each(_Pipe.forget_database, self._pipes))

    def silence(self, *directions: str) -> None:
        """Hold up all packets of ``directions``, of old connections and new, until ``heal``."""
        closed = [self._open[direction] for direction in directions]
        self._network.call(lambda: _each(asyncio.Event.clear, closed))

    def heal(self) -> None:
        """Let packets through at once, those held up too."""
        self.delay_seconds = 0.0
        self._network.call(lambda: _each(asyncio.Event.set, self._open.values()))


class Network:
    """The links of a run, on a thread of their own."""

    def __init__(self) -> None:
        """Start the thread; ``close`` ends it."""
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, database_port: int) -> Link:
        """Return a new link to the database."""

        async def made() -> Link:
            link = Link(self, database_port)
            await link.listen()
            self._links.append(link)
            return link

        return self._run(made())

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` run on the network's thread, and wait until it has."""

        async def called() -> None:
            function()

        self._run(called())

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self) -> None:
        """Reset every connection and end the thread."""

        async def cancel() -> None:
            for link in self._links:
                link.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

        self._run(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def _each(function: Callable[[_T], None], things: Iterable[_T]) -> None:
    for thing in list(things):
        function(thing)
