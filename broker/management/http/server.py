"""The HTTP server of a node: one thread with an event loop of its own, beside the broker's.

Requests cost the broker's loop nothing but what they ask it for, and are answered while it computes
or hangs: so ``/live`` can tell a loop that hangs. HTTP/1.1 is uvicorn's, routes are Starlette's.
"""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from starlette.applications import Starlette
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from orthia.broker.management.http.bounds import (
    CERTIFICATE,
    LOGGED_IN,
    REQUEST_SECONDS,
    Bounded,
    Bounds,
)
from orthia.broker.management.http.pace import Handshakes
from orthia.config.errors import OrthiaError
from orthia.config.settings import HealthSettings

MAX_HEAD_BYTES: Final = 8_192
_BACKLOG: Final = 100
_ACCEPTED_AT_ONCE: Final = 16
"""Far fewer than there may be: what one was sent is read before others make it give way."""
_JOIN_SECONDS: Final = 5.0


class HealthError(OrthiaError):
    """The HTTP server cannot listen where it is configured to."""


class HealthNotFree(HealthError):  # noqa: N818 - named for the state
    """Another process has its port at present."""


LoopErrorHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]
Later = Callable[[Iterator[bool]], None]
Secure = Callable[[Bounded, Later], asyncio.Protocol]
"""Puts TLS between a socket and its protocol; runs the steps of a handshake by the second."""


class HttpServer:
    """Serves one application from ``start`` to ``close``."""

    def __init__(
        self,
        settings: HealthSettings,
        application: Starlette,
        *,
        failed: LoopErrorHandler | None = None,
        request_seconds: float = REQUEST_SECONDS,
        secure: Secure | None = None,
    ) -> None:
        """``failed`` handles what nothing on the server's loop has caught; ``secure`` adds TLS.

        ``request_seconds`` bounds how long a client takes to send the head of a request, and to
        read what it was sent.
        """
        self._settings = settings
        self._config = Config(
            application,
            log_config=None,
            log_level="critical",  # malformed requests: whoever sends them writes no log
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=int(max(1, request_seconds)),
        )
        self._failed = failed
        self._secure = secure
        self.bounds = Bounds(request_seconds)
        self.socket: socket.socket | None = None
        """The one it listens on, after ``start``."""
        self._stop: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on, also if 0 is configured; 0 before ``start``."""
        if self.socket is None:
            return 0
        port: int = self.socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Listen, and serve on a new thread; raises HealthError if the address cannot be bound."""
        host, port = self._settings.host, self._settings.port
        try:
            listener = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
            )
        except OSError as error:
            kind = HealthNotFree if error.errno == errno.EADDRINUSE else HealthError
            raise kind(
                f"the health endpoint cannot listen on {host}:{port}: {error.strerror or error};"
                " choose another port in <health>"
            ) from error
        # An answer is two writes: without this the second waits 40 ms for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        self.socket = listener
        serves = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener, serves)),
            name="orthia-http",
            daemon=True,
        )
        self._thread.start()
        serves.wait()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._stop()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
            self._thread = None

    async def _serve(self, listener: socket.socket, serves: threading.Event) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        if self._failed is not None:
            loop.set_exception_handler(self._failed)
        self._config.load()
        state = ServerState()
        handshakes = Handshakes(loop)

        def connect() -> asyncio.Protocol:
            known: dict[str, object] = {}
            protocol = H11Protocol(self._config, state, known, loop)
            bounded = self.bounds.around(protocol, loop, is_secure=self._secure is not None)
            known[CERTIFICATE], known[LOGGED_IN] = bounded.certificate, bounded.logged_in
            return bounded if self._secure is None else self._secure(bounded, handshakes.later)

        server = await loop.create_server(connect, sock=listener, backlog=_ACCEPTED_AT_ONCE)
        listener.listen(_BACKLOG)  # as many wait as before: the loop has set both
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        serves.set()
        await stop.wait()
        loop.remove_reader(listener)
        self.bounds.end_all()
        for task in state.tasks:
            task.cancel()
        # Those of connections that were accepted and are not made yet are among them: a server that
        # is closed before they are made leaves their sockets open.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
