"""What the clients of the HTTP server may take: connections, time, memory.

Few connections, so that a flood costs little. For a new one beyond them another is closed, since
the new one may be a probe: the oldest of those that ask for nothing, or whose client has not logged
in; only then one that waits for the answer to a probe, and last that of a user. A client has one to
two times ``request_seconds`` to send the head of a request and to read what it was sent. What lies
between head and response, as the body of a request or a response that is sent event by event, is
the application's to bound.
"""

import asyncio
from typing import Final, cast

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from orthia.broker.core.errors import Refusal
from orthia.broker.core.limits.refusals import Refusals
from orthia.broker.management.http.pace import PROBES

MAX_CONNECTIONS: Final = 64
REQUEST_SECONDS: Final = 5.0
CERTIFICATE: Final = "certificate"
"""What is in the state of each request of a connection: how its client's certificate is read."""
LOGGED_IN: Final = "logged-in"
"""And what is called when its client has logged in; on any thread."""
_NEEDS_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n"
    b"this port speaks TLS alone: ask for https://\n"
)
_NO_HTTP: Final = (
    "the first bytes are not of HTTP, which alone is spoken here; clients of STOMP and AMQP connect"
    " to the port of an acceptor"
)
_NO_HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n%b\n"
    % _NO_HTTP.encode()
)
_OTHERS: Final = (b"AMQP", b"ARTEMIS", b"HORNETQ")
"""What might be the name of a method, and begins another protocol."""


class Bounds:
    """The connections of one server; called on its loop."""

    def __init__(self, request_seconds: float) -> None:
        self.request_seconds = request_seconds
        self.connections: dict[Bounded, None] = {}
        """The oldest first."""
        self._refusals = Refusals()
        self._are_ended = False
        """Whether a connection that is made now is ended at once."""

    def around(
        self, protocol: H11Protocol, loop: asyncio.AbstractEventLoop, *, is_secure: bool = False
    ) -> "Bounded":
        """Return the protocol of one connection, which passes all to ``protocol``, in bounds.

        ``is_secure`` says that TLS is between it and its socket.
        """
        return Bounded(protocol, self, loop, is_secure=is_secure)

    def add(self, connection: "Bounded") -> None:
        """Take a new connection, in place of another if there are too many."""
        if self._are_ended:
            connection.end()
            return
        if len(self.connections) >= MAX_CONNECTIONS:
            min(self.connections, key=Bounded.standing).end()  # the oldest of the least
        self.connections[connection] = None

    def refuse(self, address: str, now: float) -> None:
        """Log a client that speaks no HTTP; ``now`` is in seconds."""
        self._refusals.tick(now)
        self._refusals.note(Refusal.PROTOCOL, address, _NO_HTTP, now)

    def end_all(self) -> None:
        """End every connection at once, and from here on those that are still being made."""
        self._are_ended = True
        for connection in list(self.connections):
            connection.end()


class Bounded(asyncio.Protocol):
    """One connection: passes what happens to it on to uvicorn's protocol, and ends a slow one."""

    def __init__(
        self,
        inner: H11Protocol,
        bounds: Bounds,
        loop: asyncio.AbstractEventLoop,
        *,
        is_secure: bool,
    ) -> None:
        self._inner = inner
        self._is_secure = is_secure
        self._bounds = bounds
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._look: asyncio.TimerHandle | None = None
        self._waited_for: object = None
        """The client's act that was waited for at the last look."""
        self._is_user = False
        self._has_begun = False
        """Whether anything came from its client."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._bounds.add(self)
        self._inner.connection_made(self._transport)
        if self._is_secure:
            self._inner.scheme = "https"
        self._look_later()

    @override
    def data_received(self, data: bytes) -> None:
        if self._has_begun or _may_be_http(data):
            self._has_begun = True
            self._inner.data_received(data)
        elif self._transport is not None:
            # Such a client ends no line: without this it would wait, and learn nothing.
            peer = self._transport.get_extra_info("peername")
            self._bounds.refuse(str(peer[0]) if peer else "", self._loop.time())
            self._transport.write(_NO_HTTP_ANSWER)
            self._transport.close()

    @override
    def eof_received(self) -> None:
        self._inner.eof_received()

    @override
    def pause_writing(self) -> None:
        self._inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._inner.resume_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.connections.pop(self, None)
        if self._look is not None:
            self._look.cancel()
        self._inner.connection_lost(exc)

    def has_no_tls(self, reason: str, first: bytes) -> None:
        """Answer a client in the clear that speaks no TLS."""
        del reason, first
        if self._transport is not None:
            self._transport.write(_NEEDS_TLS)
            self._transport.close()

    def handshake_failed(self, reason: str) -> None:
        """End a client whose handshake failed."""
        del reason
        self.end()

    def misuses_tls(self, reason: str) -> None:
        """End a client whose records carry no data."""
        del reason
        self.end()

    def certificate(self) -> bytes | None:
        """Return the client's verified certificate as DER; None without one."""
        transport = self._transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    def logged_in(self) -> None:
        """Note that its client has logged in; any thread."""
        self._is_user = True

    def standing(self) -> int:
        """Return how much is to be said for it when one has to go."""
        cycle = self._inner.cycle
        if cycle is None or cycle.response_complete:
            return 0
        if self._is_user:
            return 2
        return int(cycle.scope["path"] in PROBES)

    def end(self) -> None:
        """End the connection; what was not sent is dropped."""
        self._bounds.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _look_later(self) -> None:
        self._look = self._loop.call_later(self._bounds.request_seconds, self._check_progress)

    def _check_progress(self) -> None:
        """End a client that is still waited for, in the same act, since the last look."""
        waits_for = self._what_is_waited_for()
        if waits_for is not None and waits_for == self._waited_for:
            self.end()
            return
        self._waited_for = waits_for
        self._look_later()

    def _what_is_waited_for(self) -> object:
        """Return what the client is to do now; None if it waits for the application."""
        cycle = self._inner.cycle
        if self._transport is not None and self._transport.get_write_buffer_size():
            return "read", id(cycle)
        if cycle is None or cycle.response_complete:
            return "head", id(cycle)
        return None


def _may_be_http(first: bytes) -> bool:
    """Return whether a request of HTTP may begin so: with a method, or an empty line before it."""
    begins = first[:1]
    return (begins.isalpha() or begins in b"\r\n") and not first.startswith(_OTHERS)
