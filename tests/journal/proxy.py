"""A TCP proxy that cuts a connection at an exact point of the conversation."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import partial

_CHUNK_BYTES = 65_536


class Cut(Enum):
    """Where the connection is cut, relative to a request."""

    BEFORE_REQUEST = "before the request reaches the server"
    CLIENT_ONLY = "before the request reaches the server, which is not told and waits for it"
    AFTER_REQUEST = "after the server has executed the request, before its answer is heard"


class CuttingProxy:
    """Forwards to a server on loopback until told to cut."""

    def __init__(self, server_port: int, *, writer_says: Collection[bytes]) -> None:
        """Forward to ``server_port``; the writer's connections say one of ``writer_says``."""
        self._server_port = server_port
        self._writer_says = writer_says
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pattern: bytes | None = None
        self._cut = Cut.BEFORE_REQUEST
        self._of_writer = True
        self._on_cut: Callable[[], None] = lambda: None
        self.cuts = 0
        self._heard: list[tuple[socket.socket, bytes]] | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut_once(
        self,
        cut: Cut,
        pattern: bytes,
        on_cut: Callable[[], None] = lambda: None,
        *,
        of_writer: bool = True,
    ) -> None:
        """Cut the connection on which ``pattern`` is sent next, once, if it is the writer's.

        ``of_writer`` false cuts any connection. ``on_cut`` is called when the server has lost the
        connection and the client does not yet know.
        """
        self._cut = cut
        self._on_cut = on_cut
        self._of_writer = of_writer
        self._pattern = pattern

    def lead_to(self, server_port: int) -> None:
        """Forward what connects from here on to another server; those that did stay."""
        self._server_port = server_port

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[tuple[socket.socket, bytes]]]:
        """Record what clients send meanwhile, and on which connection."""
        heard: list[tuple[socket.socket, bytes]] = []
        self._heard = heard
        yield heard
        self._heard = None

    def close(self) -> None:
        """Close every connection and end the threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            _hang_up(end)
        for thread in self._threads:
            thread.join(30)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="cutting-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except ConnectionRefusedError:  # it does not run at present
                _hang_up(client)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            self._start(partial(self._forward, client, server))

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        is_writer = False
        try:
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for end in readable:
                    data = end.recv(_CHUNK_BYTES)
                    if end is client and (heard := self._heard) is not None:
                        heard.append((client, data))
                    if end is client and any(words in data for words in self._writer_says):
                        is_writer = True
                    may_cut = end is client and (is_writer or not self._of_writer)
                    if not data or (may_cut and self._is_cut(data, server)):
                        return
                    (server if end is client else client).sendall(data)
        except (OSError, ValueError):
            return
        finally:
            _hang_up(client)
            if self._cut is not Cut.CLIENT_ONLY:
                _hang_up(server)

    def _is_cut(self, data: bytes, server: socket.socket) -> bool:
        if self._pattern is None or self._pattern not in data:
            return False
        self._pattern = None
        self.cuts += 1
        if self._cut is Cut.AFTER_REQUEST:
            server.sendall(data)
            server.recv(_CHUNK_BYTES)
        if self._cut is not Cut.CLIENT_ONLY:
            _hang_up(server)
        self._on_cut()
        return True


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
