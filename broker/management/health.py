"""Probes and metrics over HTTP: ``/live``, ``/ready``, ``/role`` and ``/metrics``.

A passive backup is live (200) and not ready (503, with the reason): an orchestrator sends it no
clients and does not kill it. HTTP/1.1 is h11's; this module adds the socket and the bounds: few
connections, one request at a time on each, GET and HEAD only, a small head, no body, and little
time for request and response. Further requests on a connection wait for a turn of the loop shared
by all connections, so that endless requests leave the loop to the clients. The metrics are rendered
on another thread; see ``orthia.broker.management.exposition``.
"""

import asyncio
import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from orthia.broker.management.abc import HealthSource, Verdict
from orthia.broker.management.exposition import Exposition, RenderingError
from orthia.config.errors import OrthiaError
from orthia.config.exposure import is_loopback
from orthia.config.secrets import Secret
from orthia.config.settings import HealthSettings

_MAX_HEAD_BYTES: Final = 8_192
_MAX_CONNECTIONS: Final = 64
_READ_BYTES: Final = 4_096
_WRITE_BYTES: Final = 65_536
"""A large response is written in pieces, so that only one is buffered for a slow client."""
_GUARDED: Final = frozenset({b"/role", b"/metrics"})
_JSON: Final = "application/json"
_PLAIN: Final = "text/plain; charset=utf-8"


class HealthError(OrthiaError):
    """The health endpoint cannot listen where it is configured to."""


class HealthNotFree(HealthError):  # noqa: N818 - named for the state
    """Another process has its port at present."""


@dataclass(frozen=True)
class _Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


class HealthServer:
    """The HTTP endpoint of one node, on the running event loop."""

    def __init__(
        self,
        settings: HealthSettings,
        source: HealthSource,
        *,
        request_timeout_seconds: float = 5.0,
    ) -> None:
        self._settings = settings
        self._source = source
        self._exposition = Exposition(source.registry)
        self._timeout_seconds = request_timeout_seconds
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """The oldest first."""
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int:
        """The port it listens on, also if 0 is configured; 0 before ``start``."""
        if self._server is None or not self._server.sockets:
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen; raises HealthError if the address cannot be bound."""
        host, port = self._settings.host, self._settings.port
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_MAX_HEAD_BYTES
            )
        except OSError as error:
            kind = HealthNotFree if error.errno == errno.EADDRINUSE else HealthError
            raise kind(
                f"the health endpoint cannot listen on {host}:{port}: {error.strerror or error};"
                " choose another port in <health>"
            ) from error

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is None:
            return
        self._server.close()
        for transport in self._connections.values():
            transport.abort()
        self._exposition.close()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            writer.transport.abort()
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            # A probe must get through, so the oldest connection is closed. Its task is not
            # cancelled, which asyncio would log, but sees the end of its socket.
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).abort()
        self._connections[task] = writer.transport
        try:
            await self._converse(reader, writer)
            writer.close()
            # Sending the rest may take as long as a request, whether the client reads or not.
            async with asyncio.timeout(self._timeout_seconds):
                await writer.wait_closed()
        except (TimeoutError, OSError):
            pass  # the client is slow or gone: the rest is dropped
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        while http.our_state is h11.IDLE:
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    request = await self._request(http, reader)
                    if request is None:
                        return
                    answer = await self._answer(request)
                except h11.RemoteProtocolError as error:
                    request = None
                    status = HTTPStatus(error.error_status_hint)
                    answer = _plain(status, f"{status.phrase}: {error}")
                head_only = request is not None and request.method == b"HEAD"
                for piece in _response(http, answer, head_only=head_only):
                    if writer.is_closing():
                        return
                    writer.write(piece)
                    await writer.drain()
            if {http.our_state, http.their_state} != {h11.DONE}:
                return
            http.start_next_cycle()
            # Requests sent ahead are read without waiting: only here others get a turn.
            async with self._turn:
                await asyncio.sleep(0)

    async def _request(
        self, http: h11.Connection, reader: asyncio.StreamReader
    ) -> h11.Request | None:
        """Return the next whole request; None if the client has closed the connection."""
        request: h11.Request | None = None
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("a body has no meaning here", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:
                return None

    def _refusal(self, request: h11.Request) -> _Answer | None:
        """Return the refusal of a request that may see the probes only; None if it may see all."""
        token = self._settings.token
        if token is not None:
            given = [value for name, value in request.headers if name == b"authorization"]
            if len(given) == 1 and _is_token(given[0], token):
                return None
            return _plain(
                HTTPStatus.UNAUTHORIZED,
                "expected Authorization: Bearer, with the token of <health>",
            )
        if self._settings.allow_anonymous or is_loopback(self._settings.host):
            return None
        return _plain(
            HTTPStatus.FORBIDDEN,
            "only /live and /ready are for everybody: this node's <health> has no <token>",
        )

    async def _answer(self, request: h11.Request) -> _Answer:
        if request.method not in (b"GET", b"HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        path = request.target.partition(b"?")[0]
        if path in _GUARDED and (refusal := self._refusal(request)) is not None:
            return refusal
        match path:
            case b"/live":
                return _verdict(self._source.liveness())
            case b"/ready":
                return _verdict(self._source.readiness())
            case b"/role":
                body = json.dumps(self._source.describe_role(), default=str).encode()
                return _Answer(HTTPStatus.OK, _JSON, body + b"\n")
            case b"/metrics":
                try:
                    metrics = await self._exposition.latest()
                except RenderingError as error:
                    return _plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
                return _Answer(HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, metrics)
            case _:
                return _plain(HTTPStatus.NOT_FOUND, "try /live, /ready, /role or /metrics")


def _is_token(header: bytes, token: Secret) -> bool:
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and token.matches(given.strip().decode("latin-1"))


def _verdict(verdict: Verdict) -> _Answer:
    status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _plain(status, verdict.reason)


def _plain(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, _PLAIN, f"{text}\n".encode())


def _response(http: h11.Connection, answer: _Answer, *, head_only: bool) -> Iterator[bytes]:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("cache-control", "no-store"),
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("allow", "GET, HEAD"))
    if answer.status is HTTPStatus.UNAUTHORIZED:
        headers.append(("www-authenticate", 'Bearer realm="orthia"'))
    if http.their_state is h11.ERROR:
        headers.append(("connection", "close"))
    response = h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase)
    yield http.send(response) or b""
    if not head_only:
        for begin in range(0, len(answer.body), _WRITE_BYTES):
            piece = answer.body[begin : begin + _WRITE_BYTES]
            yield http.send(h11.Data(data=piece)) or b""
    http.send(h11.EndOfMessage())  # returns no bytes: there is a content-length
