"""The sockets of a live node: one listener for each acceptor, one connection for each client.

``orthia.broker.connections.client_memory`` bounds what all clients together hold, and
``orthia.broker.connections.admission`` how many there are.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from orthia.broker.connections.clients import Clients
from orthia.broker.connections.connection import Connection
from orthia.broker.connections.departures import Departures
from orthia.broker.connections.descriptors import connections_that_fit
from orthia.broker.connections.listening import acceptor_error
from orthia.broker.connections.opened import OpenAcceptor
from orthia.broker.core.broker import Broker
from orthia.broker.tls.certificates import Certificates
from orthia.broker.tls.channel import TlsChannel
from orthia.config.clock import monotonic_seconds
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import AcceptorSettings, ClientLimits
from orthia.journal.journal import MessageJournal

_TICK_SECONDS = 0.25
_PAUSED_SECONDS = 0.25
"""A tick that is later by more means that the node stood still: stopped, suspended or starved."""
_STOP_LINGER_SECONDS = 0.5
"""How long clients may take to read their last frames when the node stops: its successor waits."""


class Acceptors:
    """All acceptors of a live node, from the moment it becomes live until it stops being so."""

    def __init__(
        self,
        core: Broker,
        journal: MessageJournal,
        limits: ClientLimits,
        *,
        users: Iterable[ResourceLimitSetting] = (),
        refused: Callable[[str], None] = lambda _: None,
        certificates: Certificates | None = None,
    ) -> None:
        """``users`` are the limits of single users.

        ``certificates`` are those of acceptors with TLS, loaded before ``start``. ``refused`` is
        called with the reason of each refusal of a client, for a metric.
        """
        self._core = core
        self._limits = limits
        self.clients = Clients[Connection](limits, journal, users, refused)
        self._departures = Departures[Connection](self.clients.is_leaving, self.clients.refusals)
        self._ticked_at = 0.0
        self._certificates = certificates or Certificates(())
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self.clients.when_gone(self._gone.set)
        journal.register_room_listener(self._room)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self.clients)

    async def start(
        self,
        acceptors: tuple[AcceptorSettings, ...],
        opened: Callable[[AcceptorSettings, str, int], None],
    ) -> None:
        """Listen on every acceptor; call ``opened`` with each, its host and its port.

        Raises AcceptorError, and then listens on none.
        """
        loop = asyncio.get_running_loop()
        self.clients.accept(connections_that_fit(self._limits.max_connections))
        for acceptor in acceptors:
            opening = OpenAcceptor.of(acceptor, self._limits)
            try:
                server = await loop.create_server(
                    self._protocols(opening),
                    acceptor.host,
                    acceptor.port,
                    backlog=512,
                )
            except OSError as error:
                await self.stop(cut_off=True)
                raise acceptor_error(acceptor, error) from None
            self._servers.append(server)
            for listening in server.sockets:
                opened(acceptor, *listening.getsockname()[:2])
        self._tick()

    def stop_reading(self) -> None:
        """Stop accepting clients and reading from them; what was read is still answered."""
        self.clients.stop_reading()
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._room()

    async def stop(self, *, cut_off: bool = False) -> None:
        """Stop accepting clients, and close every connection, or abort it if ``cut_off``.

        A client whose connection is closed has a moment to read the last receipts, which a reset
        would take away. It gets no error: clients take an error for their own fault.
        """
        self.stop_reading()
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in self.clients.all():
            if cut_off:
                connection.abort()
            else:
                connection.go_away()
        if not cut_off and self.clients:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_LINGER_SECONDS)
            for connection in self.clients.all():
                connection.abort()
        self.clients.verifications.close()
        await asyncio.sleep(0)

    def _protocols(self, acceptor: OpenAcceptor) -> Callable[[], asyncio.Protocol]:
        """Return the factory of asyncio's protocols for the sockets of an acceptor."""
        plain = partial(Connection, self._core, self.clients, acceptor)
        if acceptor.settings.tls is None:
            return plain
        context = partial(self._certificates.context, acceptor.settings.name)
        return lambda: TlsChannel(context, plain(), self._core.slices.later)

    def _room(self) -> None:
        for connection in self.clients.all():
            connection.update_reading()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(_TICK_SECONDS, self._tick)  # first, whatever this one raises
        now = monotonic_seconds()
        late = now - self._ticked_at - _TICK_SECONDS
        paused = late if self._ticked_at and late > _PAUSED_SECONDS else 0.0
        self._ticked_at = now
        for connection in self.clients.all():
            try:
                connection.tick(now, paused)
            except Exception as error:  # noqa: BLE001 - the others need their time-outs
                loop.call_exception_handler(
                    {
                        "message": "the time-outs of a client failed; disconnecting it",
                        "exception": error,
                    }
                )
                connection.abort()
        self._departures.look(self.clients.all(), now, paused)
        self.clients.tick(now)
