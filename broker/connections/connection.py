"""A client's socket: bytes to its protocol and back, time-outs, and what the client holds.

Memory is bounded for every kind of client. One that does not read is not read from either, gets no
deliveries, and is disconnected after ``write-timeout``, also while it is closing. While the journal
is full, no client is read from.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

from typing_extensions import override

from orthia.broker.connections.authentication import Authentication
from orthia.broker.connections.client_memory import Activity
from orthia.broker.connections.clients import Clients
from orthia.broker.connections.opened import OpenAcceptor
from orthia.broker.connections.socket_options import set_options
from orthia.broker.connections.stream import WebSocketStream
from orthia.broker.connections.turn_reads import LITTLE_BYTES
from orthia.broker.connections.websocket import WebSocket
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import GO_ON, Steps, Usage
from orthia.broker.protocols.abc import Answered, ProtocolConnection, Socket
from orthia.broker.protocols.foreign import (
    ENOUGH,
    GET,
    ForeignClient,
    is_undecided,
    recognise,
    without_tls,
)
from orthia.broker.protocols.registry import greeted, may_greet
from orthia.broker.quoting import quoted
from orthia.broker.security.sources import source_of
from orthia.broker.tls.channel import IS_HANDSHAKING
from orthia.config.clock import monotonic_seconds

LOGGER = logging.getLogger("orthia.broker")
WRITE_HIGH_BYTES = 262_144
"""Bytes that may wait for a socket before deliveries to it stop."""
_FLUSH_BYTES = 65_536
_LINGER_SECONDS = 5.0
"""How long a client may take to read its last frame and close."""


class Connection(asyncio.Protocol, Socket):
    """A client's socket."""

    __slots__ = (
        "_authentication", "_clients", "_closing", "_core", "_first", "_flushing", "_left",
        "_lingering", "_loop", "_may_write", "_memory", "_out", "_out_bytes", "_reading",
        "_received", "_stream", "_take", "_taken", "_taken_at", "_transport", "_unsaid", "_written",
        "acceptor", "account", "activity", "address", "held", "is_admitted", "port", "protocol",
        "read_in", "since_ms", "source", "usage",
    )  # fmt: skip

    usage: Usage

    def __init__(
        self, core: Broker, clients: "Clients[Connection]", acceptor: OpenAcceptor
    ) -> None:
        self._core = core
        self._clients = clients
        self._memory = clients.memory
        self.acceptor = acceptor
        self.address = ""
        self.port: int | None = None
        self.source = ""
        """Whose limits it counts against; see ``source_of``."""
        self.held = 0
        """Bytes the broker holds for the client, as last counted."""
        self.is_admitted = False
        self.account = clients.memory.unauthenticated
        """The account whose bound it shares with others."""
        self.usage = Usage(self.account.usage)
        self.read_in = 0
        """The latest turn of the loop in which it sent much; see ``TurnReads``."""
        self.since_ms = time.time_ns() // 1_000_000
        """When it was accepted, milliseconds since 1970 UTC, for operators to see."""
        now = monotonic_seconds()
        self.activity = Activity(now)
        self._received = 0
        self._written = 0
        self._left = 0
        """How many of the bytes written the system took, before the connection began to close."""
        self._taken = 0
        self._taken_at = now
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unsaid: list[Callable[[], None]] = []
        """What is to be called when the bytes that are written next go out."""
        self._flushing = False
        self._may_write = True
        self._reading = True
        self._closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._authentication = Authentication(core, clients, self, self.wait_ended)
        self._stream: WebSocketStream | None = None
        """The WebSocket of a client that has one."""
        self._first = b""
        """The client's first bytes, until its protocol is known."""
        self._take: Callable[[bytes], None] = self._look
        """What handles the bytes that come."""
        self.protocol: ProtocolConnection = acceptor.usual.connect(core, self)
        """The usual one of its acceptor, until its first bytes show that it speaks another."""

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            set_options(raw)
        peer = transport.get_extra_info("peername")
        self.address, self.port = (str(peer[0]), int(peer[1])) if peer else ("", None)
        self.source = source_of(self.address)
        if not self._clients.are_accepted:
            self.abort()
            return
        refusal = self._clients.admit(self)
        if refusal is not None:
            self.turn_away(refusal.kind, refusal.reason)

    def turn_away(self, kind: Refusal, reason: str) -> None:
        """Tell the client why and close at once: a client that is not counted may hold nothing."""
        self.refused(kind, reason)
        self._authentication.end()
        self.protocol.connection_lost()
        if self._transport is not None and not self._closing:
            frame = self.protocol.farewell(reason)
            last = frame if self._stream is None else self._stream.farewell(frame, reason)
            self._transport.write(last)
            self._transport.close()
            self._loop.call_soon(self._transport.abort)  # without waiting for it to read
        elif self._transport is not None:
            self._transport.abort()  # it was told before
        self._closing = True

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the protocol, then look whether to read more; drop them once it is over."""
        if self._closing:
            return
        size = len(data)
        self._received += size
        self._take(data)
        if not self._flushing:  # otherwise it is counted then, in the loop's next turn
            self._count()
        self._has_received()
        if size > LITTLE_BYTES:
            self._clients.reads.came(self, size)

    def _look(self, data: bytes) -> None:
        """Find out which protocol the client speaks; refuse one that is not served."""
        protocols = self.acceptor.protocols
        held_back = self._first if self._may_begin_otherwise(self._first) else b""
        first = self._first + data
        self._first = first[:ENOUGH]
        if first.startswith(GET):
            self._begin_websocket(first)
            return
        if self._may_begin_otherwise(first):
            return
        chosen = greeted(protocols, first)
        if chosen is not None:
            self.protocol = chosen.connect(self._core, self)
            self._take = self.protocol.receive
            self.protocol.receive(held_back + data)
            return
        foreign = recognise(self._first, self.acceptor.versions)
        if foreign is not None:
            self._turn_away_foreign(Refusal.PROTOCOL, foreign)
            return
        if len(first) >= ENOUGH:
            self._take = self.protocol.receive
        self.protocol.receive(held_back + data)

    def _may_begin_otherwise(self, first: bytes) -> bool:
        """Return whether the ``first`` bytes may begin what its usual protocol does not."""
        return (
            GET.startswith(first)
            or may_greet(self.acceptor.protocols, first)
            or is_undecided(first)
        )

    def _begin_websocket(self, first: bytes) -> None:
        subprotocols = self.acceptor.subprotocols
        websocket = WebSocket(self.acceptor.settings, self.address, subprotocols)
        self._stream = WebSocketStream(websocket, self, self._core.slices)
        self._take = self._stream.receive
        self._stream.receive(first)

    def choose_subprotocol(self, name: str) -> None:
        """Speak the protocol for which the client opened its WebSocket."""
        chosen = self.acceptor.of_subprotocol(name)
        if chosen is not self.acceptor.usual:
            self.protocol = chosen.connect(self._core, self)
        self.protocol.choose_subprotocol(name)

    def _turn_away_foreign(self, kind: Refusal, foreign: ForeignClient) -> None:
        self.refused(kind, foreign.reason)
        self.write_raw(foreign.answer or self.protocol.farewell(foreign.reason))
        self.hang_up()

    def hang_up(self) -> None:
        """End a connection after the last that either side has to say."""
        self.protocol.connection_lost()
        self.close()

    def has_no_tls(self, reason: str, first: bytes) -> None:
        """Refuse a client that speaks no TLS to an acceptor that requires it."""
        self._turn_away_foreign(Refusal.TLS, without_tls(reason, first))

    def certificate(self) -> bytes | None:
        """Return the client's verified certificate as DER; None without one."""
        transport = self._transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) if isinstance(tls, ssl.SSLObject) else None

    def handshake_failed(self, reason: str) -> None:
        """End a client whose TLS handshake failed."""
        self.refused(Refusal.TLS, f"its TLS handshake failed: {reason}")
        self.hang_up()

    def misuses_tls(self, reason: str) -> None:
        """End a client whose TLS records carry no data."""
        self.refused(Refusal.TLS, reason)
        self.end(reason)

    def _has_received(self) -> None:
        if self._memory.is_full or self.account.is_full:
            self._clients.eviction.has_sent_when_full(self, self.protocol.sent)
        self.update_reading()

    def eof_received(self) -> None:
        """End the client's session: it sends nothing more."""
        self._count()
        self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End what the client began, in turn with others: all clients may be lost at once."""
        self.abort()
        if self._lingering is not None:
            self._lingering.cancel()
        # Until its turn comes the client gets nothing: in ``auto`` mode that would be lost.
        self.protocol.set_writable(writable=False)
        self._core.slices.run_last(self._ending())

    def _ending(self) -> Steps:
        with ExitStack() as ends:  # from the last to the first, whatever one of them raises
            ends.callback(self._clients.forget, self)
            ends.callback(self.protocol.connection_lost)
            ends.callback(self._authentication.end)
            if self._stream is not None:
                ends.callback(self._stream.abandon)
        self._release()
        yield GO_ON

    def _release(self) -> None:
        """Let go of what refers back to this: no client that is gone is a cycle, with all it held.

        What still calls this finds no transport.
        """
        self._transport = None
        self._stream = None
        self._take = _drop
        self.protocol.release()
        del self.protocol, self._authentication

    def pause_writing(self) -> None:
        """Stop deliveries: too much waits for the socket."""
        self._may_write = False
        self.protocol.set_writable(writable=False)
        self.update_reading()

    def resume_writing(self) -> None:
        """Resume deliveries."""
        self._may_write = True
        self._count()
        self.protocol.set_writable(writable=True)
        self.update_reading()

    # --- the server's side

    def update_reading(self) -> None:
        """Read from the client while it reads from us and its bytes can be handled."""
        transport = self._transport
        if transport is None or self._closing:
            return
        wanted = self._may_write and self._clients.takes_requests and not self.protocol.is_waiting
        if self._stream is not None and self._stream.is_late:
            wanted = False
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def hold_reading(self) -> bool:
        """Read nothing until ``update_reading``; return whether it was read from so far."""
        transport = self._transport
        if transport is None or self._closing or not self._reading:
            return False
        self._reading = False
        transport.pause_reading()
        return True

    @property
    def received(self) -> int:
        """How many bytes came from its client."""
        return self._received

    @property
    def unread(self) -> asyncio.Transport | None:
        """The socket while it is not read from, unless it is closing."""
        return None if self._reading or self._closing else self._transport

    def tick(self, now: float, paused: float) -> None:
        """Check the time-outs; ``now`` is the monotonic clock in seconds.

        A client that is not read from is not silent, nor is one in the ``paused`` seconds in which
        this node stood still.
        """
        if paused:
            self._taken_at += paused
            self.activity.forgive(paused)
        if not self._closing:
            self.protocol.tick(now, is_read=self._reading, paused=paused)
        unsent = self._count()
        taken = self._written - unsent
        if taken != self._taken or not unsent:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > self._clients.limits.write_timeout / 1000:
            LOGGER.warning(
                "a client at %s read none of its %d waiting bytes for write-timeout %d ms;"
                " disconnecting it",
                self.address,
                unsent,
                self._clients.limits.write_timeout,
            )
            self._clients.refusals.count(Refusal.SLOW)
            self.abort()
        moved = self._received + taken + self.protocol.released
        self.activity.look(now, moved, self.held)

    def resume_deliveries(self) -> None:
        """Resume deliveries: there is memory for them."""
        if self._may_write and not self._closing and self.has_room():
            self.protocol.set_writable(writable=True)
            self._count()

    def shut_down(self, reason: str) -> None:
        """Tell the client why and close."""
        if self._stream is not None:
            self._stream.note(None, reason)
        self.protocol.shut_down(reason)
        self._count()

    def go_away(self) -> None:
        """Send what was written and close, without an error."""
        self.protocol.go_away()
        self._count()

    def end(self, reason: str) -> None:
        """Tell the client why, unless it does not read, and disconnect it."""
        if self._may_write:
            self.shut_down(reason)
        else:
            self.abort()

    def abort(self) -> None:
        """Cut the connection off: nothing more leaves."""
        self._closing = True
        self._out.clear()
        self._out_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    def _count(self) -> int:
        """Count what is held for the client; return the bytes that wait for its socket."""
        unsent = 0
        if (transport := self._transport) is not None:
            unsent = self._out_bytes + transport.get_write_buffer_size()
            if not transport.is_closing():
                self._left = self._written - unsent
        held = unsent + self.protocol.held
        if self._stream is not None:
            held += self._stream.held
        if held != self.held and self.is_admitted:
            more = held - self.held
            self._memory.used += more
            self.account.used += more
            self.held = held
        return unsent

    # --- the protocol's side

    @property
    @override
    def has_certificate(self) -> bool:
        return self.certificate() is not None

    @override
    def has_room(self) -> bool:
        memory, account = self._memory, self.account
        if memory.used < memory.limit and account.used < account.limit:
            return True
        return memory.refuse(self)

    @override
    def bytes_taken(self) -> int:
        return self._left

    @override
    def authenticate(
        self, login: str | None, passcode: str | None, answered: Answered
    ) -> Principal | None:
        return self._authentication.ask(login, passcode, answered)

    @override
    def refused(self, kind: Refusal, reason: str) -> None:
        transport = self._transport
        if kind is Refusal.NO_CONNECT and transport and transport.get_extra_info(IS_HANDSHAKING):
            reason = f"{reason}: its TLS handshake did not end"
        who = f"acceptor {quoted(self.acceptor.settings.name)}"
        if self._authentication.user is not None:
            who += f", user {quoted(self._authentication.user)}"
        self._clients.refusals.note(kind, self.address, reason, monotonic_seconds(), f" ({who})")
        if self._stream is not None:
            self._stream.note(kind, reason)

    @override
    def wait_ended(self) -> None:
        if self._transport is None:
            return
        self._count()
        self._has_received()

    @override
    def write(self, data: bytes) -> int:
        stream = self._stream
        return self.write_raw(data if stream is None else stream.frame(data, is_last=True))

    @override
    def write_part(self, data: bytes) -> int:
        stream = self._stream
        return self.write_raw(data if stream is None else stream.frame(data, is_last=False))

    def write_raw(self, data: bytes) -> int:
        """Write bytes as they are, past the WebSocket if there is one."""
        if self._closing:
            return self._written + len(data)
        self._out.append(data)
        self._out_bytes += len(data)
        written = self._written = self._written + len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flush_soon()
        return written

    @override
    def before_flush(self, write: Callable[[], None]) -> None:
        if not self._closing:
            self._unsaid.append(write)
            if not self._flushing:
                self._flush_soon()

    def _flush_soon(self) -> None:
        self._flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._unsaid:
            self._flushing = True  # what they write goes out with the rest
            unsaid, self._unsaid = self._unsaid, []
            for write in unsaid:
                write()
        self._flushing = False
        transport = self._transport
        if self._out and transport is not None and not transport.is_closing():
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            transport.write(data)
            self._count()

    @override
    def close(self) -> None:
        """Send what is left and close our side; the client closes its own, or is disconnected.

        Its further bytes are read and dropped: closing a socket with unread bytes resets the
        connection, and the client would lose the last frame, which says why.
        """
        transport = self._transport
        if self._closing or transport is None:
            return
        if self._stream is not None:
            self.write_raw(self._stream.close())
        self._flush()
        self._closing = True
        if not transport.is_closing():
            transport.write_eof()
            if not self._reading:
                self._reading = True
                transport.resume_reading()
        self._authentication.end()  # a login that is still being checked is not answered
        self._clients.is_leaving(self)
        self._lingering = self._loop.call_later(_LINGER_SECONDS, transport.abort)


def _drop(data: bytes) -> None:
    """Drop what comes from a client that is gone."""
    del data
