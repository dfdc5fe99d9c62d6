"""The sockets: one listener for each acceptor, one session for each connection.

Memory is bounded for every kind of client: one that does not read is not read from either, and gets
no deliveries; while the journal is full nobody is read from; one that is closed and does not read
its last frame is cut off.
"""

import asyncio
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
        if not self._server.admit(self):
            limit = self._server.limits.max_connections
            self._transport.write(
                error_frame(f"the broker has max-connections {limit} already", None, Version.V1_2)
            )
            self._session.connection_lost()
            self._close()

    def data_received(self, data: bytes) -> None:
        """Feed the session, then see whether more is wanted."""
        self._session.receive(data)
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End the session."""
        self._closing = True
        self._out.clear()
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
        """Read from the client if it reads from us and the journal has room."""
        transport = self._transport
        wanted = self._may_write and not self._server.journal.is_full
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
        transport = self._transport
        if self._closing or transport is None:
            return
        self._flush()
        self._closing = True
        transport.close()
        self._loop.call_later(_LINGER_SECONDS, transport.abort)


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
        journal.register_room_listener(self._room)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

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

    async def stop(self, reason: str | None) -> None:
        """Accept nothing more and close every connection; without a reason, cut them off."""
        self._accepting = False
        if self._ticker is not None:
            self._ticker.cancel()
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            if reason is None:
                connection.abort()
            else:
                connection.shut_down(reason)
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> bool:
        """Note a new connection; False if there are too many."""
        if not self._accepting or len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is lost."""
        self._connections.discard(connection)

    def _room(self) -> None:
        for connection in list(self._connections):
            connection.update_reading()

    def _tick(self) -> None:
        now = monotonic_seconds()
        for connection in list(self._connections):
            connection.tick(now)
        self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
