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
        self.is_stranded = False
        """Whether nothing passes any more, not even word that a side has closed."""
        self._dropped = asyncio.Event()
        self._requested_bytes = 0
        """What the node has sent since the last answer."""

    async def run(self, node: asyncio.StreamReader, port: int) -> None:
        """Forward until either side closes."""
        try:
            await self._passable("requests")
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
            await self._passable(direction)
            target.write(data)
            await target.drain()
            if direction == "requests":
                self._requested_bytes += len(data)
                self._link.spring(self._requested_bytes)
            else:
                self._requested_bytes = 0
        await self._passable(direction)
        target.close()

    async def _passable(self, direction: str) -> None:
        await self._link.passable(direction)
        if self.is_stranded:
            await self._dropped.wait()
            raise ConnectionResetError

    def abort(self) -> None:
        """Reset both sides."""
        self._dropped.set()
        for side in (self.node, self.database):
            if side is not None:
                side.transport.abort()

    def strand(self) -> None:
        """Let nothing pass any more: both sides keep a connection on which nobody answers."""
        self.is_stranded = True

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
        self._trap: tuple[int, Callable[[], None]] | None = None

    async def listen(self) -> None:
        """Accept connections; on the network's thread."""
        listening = socket.create_server(("127.0.0.1", 0))
        # What the node has written and nobody read is bounded, so that a trap springs in the midst.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)
        self._server = await asyncio.start_server(self._accept, sock=listening)
        self.port = listening.getsockname()[1]

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

    def lead_to(self, database_port: int) -> None:
        """Lead new connections to another port."""
        self._database_port = database_port

    def set_trap(self, request_bytes: int, action: Callable[[], None]) -> None:
        """Have ``action`` called once, on the network's thread, in the midst of a large request.

        It is called when the node has sent so many bytes on one connection without an answer.
        """
        self._trap = (request_bytes, action)

    def spring(self, request_bytes: int) -> None:
        """Spring the trap if it is set for so few bytes; on the network's thread."""
        if self._trap is not None and request_bytes >= self._trap[0]:
            (_, action), self._trap = self._trap, None
            action()

    @property
    def is_trap_set(self) -> bool:
        """Whether there is a trap that has not sprung."""
        return self._trap is not None

    def clear_trap(self) -> None:
        """Take the trap away."""
        self._trap = None

    def strand(self) -> None:
        """Let nothing pass on the connections there are, for good; neither side is told.

        So it is when a host is lost. New connections pass.
        """
        self._network.call(self.strand_here)

    def strand_here(self) -> None:
        """Do the same, on the network's thread."""
        _each(_Pipe.strand, self._pipes)

    def drop_stranded(self) -> None:
        """Reset what is stranded, as keep-alive does in the end."""
        self._network.call(lambda: _each(_Pipe.abort, [p for p in self._pipes if p.is_stranded]))

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
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(240)

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
        self._thread.join(240)
        self._loop.close()


def _each(function: Callable[[_T], None], things: Iterable[_T]) -> None:
    for thing in list(things):
        function(thing)
