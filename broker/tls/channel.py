"""TLS between a socket and a client's protocol, which sees plain bytes and an ordinary transport.

The protocol has its connection from the moment the socket is there: who may come, for how long a
client may say nothing, and who makes room for others is decided about a handshake as about any
client that has not logged in. Until the handshake is done nothing can be told to a client, so what
is written by then is dropped.

A client that speaks no TLS is answered in the clear, once: it would understand nothing else.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from typing_extensions import override

from orthia.broker.tls.errors import in_words

_HANDSHAKE: Final = 0x16
"""The first byte of TLS."""
_READ_BYTES: Final = 262_144


class Inner(Protocol):
    """A protocol of asyncio that may be told why no TLS came about."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As in ``asyncio.Protocol``, and so are those that follow."""

    def data_received(self, data: bytes) -> None:
        """Take plain bytes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the client began."""

    def pause_writing(self) -> None:
        """Write no more for now."""

    def resume_writing(self) -> None:
        """Write again."""

    def has_no_tls(self, reason: str, first: bytes) -> None:
        """End a client whose first bytes are not of TLS; it can be written to in the clear."""

    def handshake_failed(self, reason: str) -> None:
        """End a client whose handshake failed; what is written to it is dropped."""


class TlsChannel(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of ``Inner``."""

    def __init__(self, context: Callable[[], ssl.SSLContext], inner: Inner) -> None:
        """``context`` is asked for once the client is there."""
        super().__init__()
        self._context = context
        self._inner = inner
        self._raw: asyncio.Transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject
        self._is_new = True
        self._is_secure = False
        self._is_plain = False
        """Whether the client speaks no TLS, and is told so."""
        self._is_over = False
        """Whether nothing is read any more."""
        self._unsent = 0
        """Plain bytes written since the socket had taken all."""

    # --- the socket's side

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._inner.connection_made(self)

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._is_new:
            self._is_new = False
            if data[0] != _HANDSHAKE:
                self._is_plain = self._is_over = True
                self._inner.has_no_tls("the first bytes are not of TLS", data)
                return
        self._incoming.write(data)
        try:
            if not self._is_secure:
                self._shake_hands()
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._failed(error)

    @override
    def eof_received(self) -> None:
        # The socket is closed when this returns, and connection_lost follows.
        self._is_over = True

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._inner.connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        self._inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        self._is_secure = True
        self._flush()

    def _read(self) -> None:
        """Give the protocol what can be decrypted."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            has_ended = True
        except ssl.SSLWantReadError:
            has_ended = False
        if parts:
            self._inner.data_received(b"".join(parts))
        if has_ended:
            self.close()
        else:
            self._flush()

    def _failed(self, error: ssl.SSLError) -> None:
        """End a client whose bytes cannot be read; the alert that says so is sent."""
        self._is_over = True
        self._flush()
        if self._is_secure:
            self.close()
        else:
            self._inner.handshake_failed(in_words(error))

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- the protocol's side

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return self._raw.get_extra_info(name, default)

    @override
    def is_closing(self) -> bool:
        return self._raw.is_closing()

    @override
    def is_reading(self) -> bool:
        return self._raw.is_reading()

    @override
    def pause_reading(self) -> None:
        self._raw.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._raw.resume_reading()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    @override
    def get_write_buffer_size(self) -> int:
        # What TLS adds is not the protocol's: it counts what it wrote.
        return min(self._unsent, self._raw.get_write_buffer_size())

    @override
    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if self._is_plain:
            self._raw.write(data)
        elif self._is_secure and not self._raw.is_closing():
            if not self._raw.get_write_buffer_size():
                self._unsent = 0
            self._unsent += len(data)
            self._tls.write(data)
            self._flush()

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self._end_tls()
        self._raw.write_eof()

    @override
    def close(self) -> None:
        self._end_tls()
        self._raw.close()

    @override
    def abort(self) -> None:
        self._is_over = True
        self._raw.abort()

    def _end_tls(self) -> None:
        """Say that nothing more follows; what the client still sends is not looked at."""
        self._is_over = True
        if self._is_secure:
            self._is_secure = False
            with contextlib.suppress(ssl.SSLError):  # the client's own end is not waited for
                self._tls.unwrap()
            self._flush()
