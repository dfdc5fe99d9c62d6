"""TLS between a socket and a client's protocol, which sees plain bytes and an ordinary transport.

The protocol has its connection from the moment the socket is accepted: admission and time-outs hold
during a handshake as for any client that has not logged in. Until the handshake is done nothing can
be sent to a client, so what is written by then is dropped.

A handshake computes for a while, and many clients may connect at once: each step has its turn among
the other work of the loop, and meanwhile the socket is not read. The same holds for more than some
records at once, for a client can put very many into one read.

A client that speaks no TLS is answered once in the clear: it would understand nothing else.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

from typing_extensions import override

from orthia.broker.tls.contexts import ServerObject
from orthia.broker.tls.errors import of_handshake
from orthia.broker.tls.records import MOST_HELLO_BYTES, Records

_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection."""
_RECORD_BYTES: Final = 16_384
"""Bytes given to OpenSSL at a time, about one record: its buffers never shrink."""
_MOST_RECORDS: Final = 64
"""How many records are handled in one piece, which takes some milliseconds at most."""
_MOST_EMPTY: Final = 64
"""How many records may carry no data, beside one in ``_ONE_OF`` of those that do: ordinary clients
change keys after some gigabytes, and each change costs as much as many messages."""
_ONE_OF: Final = 100
IS_HANDSHAKING: Final = "orthia.is_handshaking"
"""The name of a transport's extra info: whether its handshake is not done."""


class _Inner(Protocol):
    """A protocol of asyncio that is told why TLS failed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Like the next methods as in ``asyncio.Protocol``."""

    def data_received(self, data: bytes) -> None:
        """Take plain bytes."""

    def eof_received(self) -> None:
        """Note that no more bytes come; the connection closes once all is sent."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's session."""

    def pause_writing(self) -> None:
        """Write no more for now."""

    def resume_writing(self) -> None:
        """Write again."""

    def has_no_tls(self, reason: str, first: bytes) -> None:
        """End a client whose first bytes are not of TLS; it can be written to in the clear."""

    def handshake_failed(self, reason: str) -> None:
        """End a client whose handshake failed; what is written to it is dropped."""

    def misuses_tls(self, reason: str) -> None:
        """End a client whose records carry no data; it can be written to."""


class TlsChannel(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of ``_Inner``."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        inner: _Inner,
        later: Callable[[Iterator[bool]], None],
    ) -> None:
        """``context`` is called once the client is connected.

        ``later`` runs the steps of a handshake in their turns; see ``Slices``.
        """
        super().__init__()
        self._context = context
        self._inner = inner
        self._later = later
        self._raw: asyncio.Transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject
        self._early = bytearray()
        """Bytes that wait for their turn."""
        self._records = Records()
        self._full = 0
        """Records with data, since the handshake."""
        self._empty = 0
        """Records without data."""
        self._is_new = True
        self._is_secure = False
        self._is_in_turn = False
        """Whether bytes wait for their turn."""
        self._is_read = True
        """Whether the protocol reads."""
        self._is_plain = False
        """Whether the client speaks no TLS, and is answered in the clear."""
        self._is_over = False
        """Whether reading has ended."""
        self._is_ended = False
        """Whether TLS sends nothing more: it was closed, or the client's bytes are not TLS."""
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
        taken = 0
        if self._is_secure and not self._is_in_turn:
            taken = self._decrypt(data)
            if taken == len(data) or self._is_over:
                return
        self._early += data[taken:]
        if not self._is_in_turn:
            self._in_turn()

    @override
    def eof_received(self) -> None:
        # The socket is closed when this returns and all is sent, and connection_lost follows.
        self._is_over = True
        self._inner.eof_received()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = self._is_ended = True
        try:
            self._inner.connection_lost(exc)
        finally:
            # Some ten kilobytes, which otherwise stay until garbage is collected.
            del self._tls, self._incoming, self._outgoing

    @override
    def pause_writing(self) -> None:
        self._inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _go_on(self) -> Iterator[bool]:
        """Handle the bytes that wait, a few records at a time."""
        try:
            while self._early and not self._is_over:
                early = bytes(self._early)
                self._early.clear()
                step = self._decrypt if self._is_secure else self._shake_hands
                self._early[:0] = early[step(early) :]
                yield False
        except Exception:
            self._raw.abort()  # as the loop does when a callback raises
            raise
        self._early.clear()
        self._is_in_turn = False
        if self._is_read and not self._raw.is_closing():
            self._raw.resume_reading()

    def _in_turn(self) -> None:
        """Stop reading until the bytes that wait are handled, in turn with other work."""
        self._is_in_turn = True
        self._raw.pause_reading()
        self._later(self._go_on())

    def _shake_hands(self, data: bytes) -> int:
        """Continue the handshake; return how many bytes of ``data`` it took."""
        end, _ = self._records.cut(data, 0, min(len(data), _RECORD_BYTES), _MOST_RECORDS)
        if self._records.is_hello_too_long:
            self._is_over = True
            self._inner.handshake_failed(f"its hello has more than {MOST_HELLO_BYTES} bytes")
            return end
        self._incoming.write(data[:end])
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._outgoing.pending:
                answer = self._outgoing.read()
                self._records.answered(answer)
                self._raw.write(answer)
            return end
        except ssl.SSLError as error:
            self._failed(error)
            return end
        self._records.answered(b"")
        self._is_secure = True
        self._flush()
        self._decrypt(b"")  # data that came with the end of the handshake
        return end

    def _decrypt(self, data: bytes) -> int:
        """Decrypt ``data`` for the protocol, up to a bound; return how many bytes were taken."""
        parts: list[bytes] = []
        has_failed = has_ended = False
        at, records, size = 0, 0, len(data)
        while True:
            end, ended = self._records.cut(
                data, at, min(size, at + _RECORD_BYTES), _MOST_RECORDS - records
            )
            self._incoming.write(data[at:end])
            at, records = end, records + ended
            try:
                while part := self._tls.read(_RECORD_BYTES):
                    parts.append(part)
                has_ended = True
                break
            except ssl.SSLWantReadError:
                if at == size or records == _MOST_RECORDS:
                    break
            except ssl.SSLError:
                has_failed = True
                break
        self._full += len(parts)
        self._empty += records - len(parts)
        if has_failed:
            self._is_over = True
            self._flush()  # the alert, which is the last that OpenSSL writes now
            self._is_ended = True
        if parts:
            self._inner.data_received(b"".join(parts))
        if has_failed or has_ended:
            self._ends()
        else:
            self._flush()
            if self._empty > _MOST_EMPTY + self._full // _ONE_OF and not self._is_over:
                self._is_over = True
                self._inner.misuses_tls("its TLS records carry no data, as key updates do")
        return at

    def _failed(self, error: ssl.SSLError) -> None:
        """End a client whose handshake failed; the alert is sent."""
        self._is_over = True
        self._flush()
        name = self._tls.refused_name if isinstance(self._tls, ServerObject) else None
        asked = f"it asks for {name!r}, which sniHost does not match"
        self._inner.handshake_failed(of_handshake(error) if name is None else asked)

    def _ends(self) -> None:
        """Close once all is sent: nothing more can be read."""
        self._inner.eof_received()
        self.close()

    def _encrypt(self, data: "memoryview[Any]") -> None:
        parts: list[bytes] = []
        for start in range(0, len(data), _RECORD_BYTES):
            self._tls.write(data[start : start + _RECORD_BYTES])
            parts.append(self._outgoing.read())
        self._raw.write(b"".join(parts))

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- the protocol's side

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            # After a failure its methods raise.
            return self._tls if self._is_secure and not self._is_over else default
        if name == IS_HANDSHAKING:
            return not self._is_secure
        return self._raw.get_extra_info(name, default)

    @override
    def is_closing(self) -> bool:
        return self._raw.is_closing()

    @override
    def is_reading(self) -> bool:
        return self._is_read

    @override
    def pause_reading(self) -> None:
        self._is_read = False
        if not self._is_in_turn:
            self._raw.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._is_read = True
        if not self._is_in_turn:
            self._raw.resume_reading()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    @override
    def get_write_buffer_size(self) -> int:
        # Without what TLS adds: the protocol counts the bytes it wrote.
        return min(self._unsent, self._raw.get_write_buffer_size())

    @override
    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if self._is_plain:
            self._raw.write(data)
        elif self._is_secure and not self._is_ended and not self._raw.is_closing():
            if not self._raw.get_write_buffer_size():
                self._unsent = 0
            self._unsent += len(data)
            self._encrypt(memoryview(data))

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
        """Send the closing alert; what the client still sends is not read."""
        self._is_over = True
        if self._is_secure and not self._is_ended:
            self._is_ended = True
            with contextlib.suppress(ssl.SSLError):  # without waiting for the client's alert
                self._tls.unwrap()
            self._flush()
