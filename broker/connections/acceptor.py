"""The sockets: one listener for each acceptor, one session for each connection.

Memory is bounded for every kind of client: one that does not read is not read from either, gets no
deliveries, and is cut off in the end; while the journal is full nobody is read from; one that is
closed and does not read its last frame is cut off. What all of them hold together is bounded too,
by ``orthia.broker.connections.client_memory``; how many there may be, and who makes room for whom,
is in ``orthia.broker.connections.admission``.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import cast

from orthia.broker.connections.admission import Admission, MakesRoom, Refused
from orthia.broker.connections.client_memory import Activity, ClientMemory
from orthia.broker.connections.descriptors import connections_that_fit
from orthia.broker.connections.listening import acceptor_error
from orthia.broker.core.api import AuthenticationFailed, BrokerCore, BrokerError, Principal
from orthia.broker.core.refusals import Refusal, Refusals
from orthia.broker.protocols.stomp.frames import Version, error_frame
from orthia.broker.protocols.stomp.prefixes import Prefixes
from orthia.broker.protocols.stomp.session import StompSession
from orthia.broker.quoting import quoted
from orthia.broker.security.logins import LoginGuard
from orthia.broker.security.sources import source_of
from orthia.config.clock import monotonic_seconds
from orthia.config.settings import AcceptorSettings, ResourceLimitSetting, StompLimits
from orthia.journal.abc import MessageJournal

LOGGER = logging.getLogger("orthia.broker")
WRITE_HIGH_BYTES = 262_144
"""Bytes a socket may be behind before deliveries to it stop."""
_FLUSH_BYTES = 65_536
_TICK_SECONDS = 0.25
_PAUSED_SECONDS = 0.25
"""A tick that is later by more is of a node that stood still: stopped, suspended, or starved."""
_LINGER_SECONDS = 5.0
"""How long a client may take to read its last frame and close."""
_STOP_LINGER_SECONDS = 0.5
"""The same when the node stops: its successor waits for it."""
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Finds clients that are gone and agreed on no heart-beats in two minutes, not in two hours."""


@dataclass
class _Acceptor:
    """An acceptor that is open."""

    settings: AcceptorSettings
    limits: StompLimits
    prefixes: Prefixes | None
    connections: int = 0


class Connection(asyncio.Protocol):
    """A client's socket."""

    def __init__(self, server: "StompServer", acceptor: _Acceptor) -> None:
        self._server = server
        self.acceptor = acceptor
        self.address = ""
        """The client's address, without its port."""
        self.source = ""
        """Whose limits it counts against: see ``source_of``."""
        self.held = 0
        """Bytes the broker holds for the client, as last counted."""
        self.is_admitted = False
        self.account = server.memory.strangers
        """With whom it shares a bound of what is held."""
        now = monotonic_seconds()
        self.activity = Activity(now)
        self._received = 0
        self._written = 0
        self._left = 0
        """How many of the bytes written the system took; at its end a connection cannot say."""
        self._taken = 0
        self._taken_at = now
        self._login: asyncio.TimerHandle | None = None
        self._waiting_login: str | None = None
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
            acceptor.limits,
            write=self._write,
            close=self._close,
            clock=monotonic_seconds,
            authenticate=self._authenticate,
            may_take=self._may_take,
            left=lambda: self._left,
            connection_ttl=acceptor.settings.connection_ttl,
            silence_factor=acceptor.settings.heart_beat_to_connection_ttl_modifier,
            prefixes=acceptor.prefixes,
            waited=self._session_waited,
            refused=self._refused,
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
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.source = source_of(self.address)
        if not self._server.accepts:
            self.abort()
            return
        refusal = self._server.admit(self)
        if refusal is not None:
            self.turn_away(refusal.kind, refusal.reason)

    def turn_away(self, kind: Refusal, reason: str) -> None:
        """Say why and close at once, without lingering: who is not counted may hold nothing."""
        self._refused(kind, reason)
        self._end_login()
        self._session.connection_lost()
        if self._transport is not None and not self._closing:
            self._transport.write(error_frame(reason, None, Version.V1_2))
            self._transport.close()
        elif self._transport is not None:
            self._transport.abort()  # it has read why, or will not
        self._closing = True

    def data_received(self, data: bytes) -> None:
        """Feed the session, then see whether more is wanted; a session that is over wants none."""
        if self._closing:
            return
        self._received += len(data)
        self._session.receive(data)
        if not self._flushing:  # else it is counted when that is written, in the loop's next turn
            self._count()
        self._has_received()

    def _has_received(self) -> None:
        if self._server.memory.is_full or self.account.is_full:
            self._server.has_sent_when_full(self, self._session.sent_bytes)
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End the session."""
        self._closing = True
        self._out.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        self._end_login()
        self._session.connection_lost()
        self._server.forget(self)

    def pause_writing(self) -> None:
        """Stop deliveries: the client does not keep up."""
        self._may_write = False
        self._session.set_writable(writable=False)
        self.update_reading()

    def resume_writing(self) -> None:
        """Go on delivering."""
        self._may_write = True
        self._count()
        self._session.set_writable(writable=True)
        self.update_reading()

    # --- the server's side

    def update_reading(self) -> None:
        """Read from the client if it reads from us and what it sends can be taken."""
        transport = self._transport
        wanted = self._may_write and self._server.takes_requests and not self._session.is_waiting
        if transport is None or self._closing or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def tick(self, now: float, paused: float) -> None:
        """Look at heart-beats; a client that is not read from cannot be blamed for silence.

        Nor for the ``paused`` seconds in which this node stood still.
        """
        if paused:
            self._taken_at += paused
            self.activity.forgive(paused)
        if not self._closing:
            self._session.tick(now, is_read=self._reading, paused=paused)
        unsent = self._count()
        taken = self._written - unsent
        if taken != self._taken or not unsent:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > self._server.limits.write_timeout / 1000:
            LOGGER.warning(
                "a client at %s took nothing of %d bytes for write-timeout %d ms and was cut off",
                self.address,
                unsent,
                self._server.limits.write_timeout,
            )
            self._server.refusals.count(Refusal.SLOW)
            self.abort()
        moved = self._received + taken + self._session.released_bytes
        self.activity.look(now, moved, self.held)

    def resume_deliveries(self) -> None:
        """Deliver again: there is memory for it."""
        if self._may_write and not self._closing and self._may_take():
            self._session.set_writable(writable=True)
            self._count()

    def shut_down(self, reason: str) -> None:
        """Tell the client why and close."""
        self._session.shut_down(reason)
        self._count()

    def go_away(self) -> None:
        """Send what was written and close, without a word."""
        self._session.go_away()
        self._count()

    def end_for_memory(self, reason: str) -> None:
        """Tell the client why, unless it does not read, and free what it holds."""
        if self._may_write:
            self.shut_down(reason)
        else:
            self.abort()

    def abort(self) -> None:
        """Cut the connection off: nothing more leaves."""
        self._closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    def _unsent(self) -> int:
        """Return how many bytes the client has not taken."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        unsent = self._out_bytes + transport.get_write_buffer_size()
        self._left = self._written - unsent
        return unsent

    def _count(self) -> int:
        """Have the server know what is held for the client; return the part it has not taken."""
        unsent = self._unsent()
        held = unsent + self._session.held_bytes
        if held != self.held and self.is_admitted:
            more = held - self.held
            self._server.memory.used += more
            self.account.used += more
            self.held = held
        return unsent

    def _may_take(self) -> bool:
        memory, account = self._server.memory, self.account
        if memory.used < memory.limit and account.used < account.limit:
            return True
        return memory.refuse(self)

    # --- the session's side

    def _authenticate(
        self,
        login: str | None,
        passcode: str | None,
        answered: Callable[[Principal | BrokerError], None],
    ) -> None:
        """Ask the core, after a while if others failed before; raises BrokerError if at once."""
        server = self._server

        def ask() -> Principal:
            try:
                principal = server.core.authenticate(login, passcode)
            except AuthenticationFailed:
                server.logins.failed(self.address, login, monotonic_seconds())
                raise
            if not principal.unrestricted:
                server.logins.succeeded(self.address, login)
            server.admission.log_in(self, None if principal.unrestricted else principal.name)
            server.log_in(self, principal)
            return principal

        wait = server.logins.begin(self.address, login, monotonic_seconds())
        if not wait:
            answered(ask())
            return

        def ask_late() -> None:
            self._login = None
            server.logins.end(self.address, login)
            try:
                answered(ask())
            except BrokerError as error:
                answered(error)
            self._count()
            self.update_reading()

        self._waiting_login = login
        self._login = self._loop.call_later(wait, ask_late)

    def _refused(self, kind: Refusal, reason: str) -> None:
        self._server.refusals.note(kind, self.address, reason, monotonic_seconds())

    def _session_waited(self) -> None:
        """Read on: what the session waited for has come."""
        self._count()
        self._has_received()

    def _end_login(self) -> None:
        """Ask nothing for a client that is gone; its place stays taken for as long as if it stayed.

        Otherwise a guesser would only have to leave to be as quick as it likes.
        """
        if self._login is not None:
            self._login.cancel()
            at = self._login.when()
            self._loop.call_at(at, self._server.logins.end, self.address, self._waiting_login)
            self._login = None

    def _write(self, data: bytes) -> int:
        if self._closing:
            return self._written + len(data)
        self._out.append(data)
        self._out_bytes += len(data)
        written = self._written = self._written + len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return written

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if self._out and transport is not None and not transport.is_closing():
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            transport.write(data)
            self._count()

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
        self._server.is_leaving(self)
        self._lingering = self._loop.call_later(_LINGER_SECONDS, transport.abort)


class StompServer:
    """All acceptors of a live node; made when it becomes live, stopped when it is live no more."""

    def __init__(
        self,
        core: BrokerCore,
        journal: MessageJournal,
        limits: StompLimits,
        *,
        users: Iterable[ResourceLimitSetting] = (),
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``users`` are the limits of single users.

        ``refused`` is called with the reason of each refusal of a client, for a metric.
        """
        self.core = core
        self.journal = journal
        self.limits = limits
        self.memory = ClientMemory(
            limits.max_client_bytes, limits.max_connections, least_of_one=limits.max_body_bytes
        )
        self.logins = LoginGuard(limits.max_login_delay)
        self.refusals = Refusals(refused)
        self.admission = Admission[Connection](limits, limits.max_connections, users)
        self._users = tuple(users)
        self._ticked_at = 0.0
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
    def accepts(self) -> bool:
        """Whether clients may connect; what the system accepted just before a stop may not."""
        return self._accepting

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
        most = connections_that_fit(self.limits.max_connections)
        self.admission = Admission[Connection](self.limits, most, self._users)
        for acceptor in acceptors:
            opening = _Acceptor(acceptor, self._limits_of(acceptor), Prefixes.of(acceptor))
            try:
                server = await loop.create_server(
                    lambda opening=opening: Connection(self, opening),  # type: ignore[misc]
                    acceptor.host,
                    acceptor.port,
                    backlog=512,
                )
            except OSError as error:
                await self.stop(cut_off=True)
                raise acceptor_error(acceptor, error) from None
            self._servers.append(server)
            for listening in server.sockets:
                opened(*listening.getsockname()[:2])
        self._tick()

    def _limits_of(self, acceptor: AcceptorSettings) -> StompLimits:
        limits = self.limits
        if acceptor.handshake_timeout is not None:
            limits = replace(limits, connect_timeout=acceptor.handshake_timeout * 1000)
        if acceptor.min_large_message_size is not None:
            limits = replace(limits, min_large_message_size=acceptor.min_large_message_size)
        return limits

    def stop_reading(self) -> None:
        """Accept nobody and read from nobody any more; what was read is still answered."""
        self._accepting = False
        self._deaf = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._room()

    async def stop(self, *, cut_off: bool = False) -> None:
        """Accept nothing more and close every connection, or cut it off.

        A client whose connection is closed has a moment to read the last receipts: unread bytes of
        its own would take them away. No ERROR tells it to go: to clients that is their own fault.
        """
        self.stop_reading()
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in list(self._connections):
            if cut_off:
                connection.abort()
            else:
                connection.go_away()
        if not cut_off and self._connections:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_LINGER_SECONDS)
            for connection in list(self._connections):
                connection.abort()
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> Refused | None:
        """Note a new connection, or return why it is refused."""
        acceptor = connection.acceptor
        allowed = acceptor.settings.connections_allowed
        if 0 <= allowed <= acceptor.connections:
            name = acceptor.settings.name
            reason = f"acceptor {name!r} has connectionsAllowed {allowed} already"
            return Refused(Refusal.CONNECTIONS, reason)
        found = self.admission.admit(connection)
        if isinstance(found, Refused):
            return found
        if isinstance(found, MakesRoom):
            self.forget(found.leaver)
            found.leaver.turn_away(found.kind, found.reason)
        self._connections.add(connection)
        connection.is_admitted = True
        acceptor.connections += 1
        return None

    def log_in(self, connection: Connection, principal: Principal) -> None:
        """Count what a client holds as its user's, or its address' where a user is not proved."""
        name = f"the clients of user {quoted(principal.name)}"
        if principal.unrestricted:
            name = f"clients at {connection.source}"
        if connection.is_admitted:
            self.memory.leave(connection.account, connection.held)
            connection.account = self.memory.enter(name)
            connection.account.used += connection.held

    def is_leaving(self, connection: Connection) -> None:
        """Note that a client was told its last: if its place is wanted, it goes at once."""
        self.admission.leaves(connection)

    def has_sent_when_full(self, connection: Connection, sent_bytes: int) -> None:
        """End a client that sent more while there is no memory, if it holds more than its share."""
        if sent_bytes > self.memory.share:
            reason = f"{self._who_is_full(connection)}, and this one went on sending"
            self._end_for_memory(connection, reason)

    def _who_is_full(self, connection: Connection) -> str:
        memory, account = self.memory, connection.account
        if memory.is_full:
            return f"all clients together hold max-client-bytes {memory.limit} in the broker"
        return (
            f"{account.name} hold {account.limit} in the broker, the most of max-client-bytes"
            f" {memory.limit} that is for one"
        )

    def _end_for_memory(self, connection: Connection, reason: str) -> None:
        LOGGER.warning(
            "a client at %s was ended with %d bytes held for it, because %s",
            connection.address,
            connection.held,
            reason,
        )
        self.refusals.count(Refusal.SLOW)
        connection.end_for_memory(reason)

    def _make_room(self) -> None:
        """End clients that hold much and do nothing; deliver again when there is room."""
        memory = self.memory
        while (victim := memory.victim(self._connections)) is not None:
            before = memory.used
            self._end_for_memory(
                victim,
                f"{self._who_is_full(victim)}, and this one did not read, send or acknowledge for a"
                " while",
            )
            if memory.used >= before:
                break  # what it held is still on its way out
        memory.relieve()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is lost."""
        self.memory.used -= connection.held
        self.memory.leave(connection.account, connection.held)
        connection.account = self.memory.strangers
        self.memory.forget(connection)
        connection.held = 0
        connection.is_admitted = False
        self.admission.forget(connection)
        if connection in self._connections:
            connection.acceptor.connections -= 1
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def _room(self) -> None:
        for connection in list(self._connections):
            connection.update_reading()

    def _tick(self) -> None:
        now = monotonic_seconds()
        late = now - self._ticked_at - _TICK_SECONDS
        paused = late if self._ticked_at and late > _PAUSED_SECONDS else 0.0
        self._ticked_at = now
        for connection in list(self._connections):
            connection.tick(now, paused)
        self._make_room()
        self.logins.tick(now)
        self.refusals.tick(now)
        self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
