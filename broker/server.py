"""The sockets: one listener for each acceptor, one session for each connection.

Memory is bounded for every kind of client: one that does not read is not read from either, and gets
no deliveries; while the journal is full nobody is read from; one that is closed and does not read
its last frame is cut off.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import cast

from broker.api import BrokerCore
from broker.stomp.frames import Version, error_frame
from broker.stomp.session import StompSession
from config.clock import monotonic_seconds
from config.errors import OrthiaError
from config.settings import AcceptorSettings, StompLimits
from journal.api import MessageJournal

LOGGER = logging.getLogger("orthia.broker")
WRITE_HIGH_BYTES = 262_144
"""Bytes a socket may be behind before deliveries to it stop."""
_FLUSH_BYTES = 65_536
_TICK_SECONDS = 0.25
_LINGER_SECONDS = 5.0
"""How long a client may take to read its last frame and close."""
_STOP_LINGER_SECONDS = 0.5
"""The same when the node stops: its successor waits for it."""
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Finds clients that are gone and agreed on no heart-beats in two minutes, not in two hours."""


class AcceptorError(OrthiaError):
    """An acceptor cannot listen where it is configured to."""


class Connection(asyncio.Protocol):
    """A client's socket."""

    def __init__(self, server: "StompServer") -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._may_write = True
        self._reading = True
        self._closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._session = StompSession(
            server.core,
            server.limits,
            write=self._write,
            close=self._close,
            clock=monotonic_seconds,
        )

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):  # not every system has them
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        refusal = self._server.admit(self)
        if refusal is not None:
            self._transport.write(error_frame(refusal, None, Version.V1_2))
            self._session.connection_lost()
            self._closing = True
            self._transport.close()  # without lingering: who is not counted may hold nothing

    def data_received(self, data: bytes) -> None:
        """Feed the session, then see whether more is wanted; a session that is over wants none."""
        if self._closing:
            return
        self._session.receive(data)
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End the session."""
        self._closing = True
        self._out.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        self._server.forget(self)
        self._session.connection_lost()

    def pause_writing(self) -> None:
        """Stop deliveries: the client does not keep up."""
        self._may_write = False
        self._session.set_writable(writable=False)
        self.update_reading()

    def resume_writing(self) -> None:
        """Go on delivering."""
        self._may_write = True
        self._session.set_writable(writable=True)
        self.update_reading()

    # --- the server's side

    def update_reading(self) -> None:
        """Read from the client if it reads from us and what it sends can be taken."""
        transport = self._transport
        wanted = self._may_write and self._server.takes_requests
        if transport is None or self._closing or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def tick(self, now: float) -> None:
        """Look at heart-beats; a client that is not read from cannot be blamed for silence."""
        if not self._closing:
            self._session.tick(now, is_read=self._reading)

    def shut_down(self, reason: str) -> None:
        """Tell the client why and close."""
        self._session.shut_down(reason)

    def abort(self) -> None:
        """Cut the connection off: nothing more leaves."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    # --- the session's side

    def _write(self, data: bytes) -> None:
        if self._closing:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if self._out and transport is not None and not transport.is_closing():
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            transport.write(data)

    def _close(self) -> None:
        """Send what is left and end our side; the client ends its own, or is cut off.

        What it still sends is read and dropped: closing a socket with unread bytes in it resets
        the connection, and the client would lose the last frame, which says why.
        """
        transport = self._transport
        if self._closing or transport is None:
            return
        self._flush()
        self._closing = True
        if transport.is_closing():
            return
        transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self._lingering = self._loop.call_later(_LINGER_SECONDS, transport.abort)


class StompServer:
    """All acceptors of a live node; made when it becomes live, stopped when it is live no more."""

    def __init__(self, core: BrokerCore, journal: MessageJournal, limits: StompLimits) -> None:
        self.core = core
        self.journal = journal
        self.limits = limits
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._accepting = False
        self._deaf = False
        self._gone = asyncio.Event()
        journal.register_room_listener(self._room)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def takes_requests(self) -> bool:
        """Whether clients are to be read from."""
        return not self._deaf and not self.journal.is_full

    async def start(
        self, acceptors: tuple[AcceptorSettings, ...], opened: Callable[[str, int], None]
    ) -> None:
        """Listen on every acceptor; ``opened`` hears host and port of each.

        Raises AcceptorError, and then listens on none.
        """
        loop = asyncio.get_running_loop()
        self._accepting = True
        for acceptor in acceptors:
            try:
                server = await loop.create_server(
                    lambda: Connection(self), acceptor.host, acceptor.port, backlog=512
                )
            except OSError as error:
                await self.stop(None)
                raise AcceptorError(
                    f"acceptor {acceptor.name!r} cannot listen on {acceptor.host}:{acceptor.port}:"
                    f" {error.strerror or error}"
                ) from None
            self._servers.append(server)
            for listening in server.sockets:
                opened(*listening.getsockname()[:2])
        self._tick()

    def stop_reading(self) -> None:
        """Accept nobody and read from nobody any more; what was read is still answered."""
        self._accepting = False
        self._deaf = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._room()

    async def stop(self, reason: str | None) -> None:
        """Accept nothing more and close every connection; without a reason, cut them off.

        With one, clients have a moment to read it: unread bytes of theirs would take it away.
        """
        self.stop_reading()
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in list(self._connections):
            if reason is None:
                connection.abort()
            else:
                connection.shut_down(reason)
        if reason is not None and self._connections:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_LINGER_SECONDS)
            for connection in list(self._connections):
                connection.abort()
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> str | None:
        """Note a new connection, or return why it is refused."""
        if not self._accepting:
            return "this node is stopping; connect to the other node"
        limit = self.limits.max_connections
        if len(self._connections) >= limit:
            return f"the broker has max-connections {limit} already"
        self._connections.add(connection)
        return None

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is lost."""
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def _room(self) -> None:
        for connection in list(self._connections):
            connection.update_reading()

    def _tick(self) -> None:
        now = monotonic_seconds()
        for connection in list(self._connections):
            connection.tick(now)
        self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
