# mypyc compiles this module.
"""The body of a large message on its way to a client: it is read while the client takes it.

One piece is in memory: the next is read when its writer takes more. The last is written only if all
of the body is what was stored, so that without it the client has no whole message. How a piece is
written each protocol knows.
"""

from typing import Protocol

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import LargeMessages
from orthia.journal.errors import LargeBodyError
from orthia.journal.model.message import LargeBody


class _BodyWriter(Protocol):
    """What a body is written by; what precedes the body is written already."""

    def takes_pieces(self) -> bool:
        """Return whether more may be written now; if not, ``BodyReader.resume`` follows."""

    def hold(self, change: int) -> None:
        """Note that so many bytes more, or fewer, are held for the client."""

    def write_piece(self, data: bytes, *, is_last: bool) -> None:
        """Write the next bytes of the body."""

    def body_ended(self, error: OrthiaError | None) -> None:
        """Note that all is written; with an ``error`` the client has no whole message."""


class BodyReader:
    """Reads one body, piece by piece."""

    __slots__ = (
        "_body", "_checksum", "_is_over", "_is_reading", "_large", "_position", "_sent", "_writer",
    )  # fmt: skip

    def __init__(self, writer: _BodyWriter, large: LargeMessages, body: LargeBody) -> None:
        """Pin the body; ``resume`` reads its first piece.

        The writer learns of its end unless it is cancelled.
        """
        self._writer = writer
        self._large = large
        self._body = body
        self._position = 0
        self._sent = 0
        self._checksum = 0
        self._is_reading = False
        self._is_over = False
        large.pin(body.id)

    def resume(self) -> None:
        """Read the next piece, if the writer takes more."""
        if not self._is_reading and not self._is_over and self._writer.takes_pieces():
            self._is_reading = True
            self._writer.hold(PIECE_BYTES)
            self._large.read(self._body.id, self._position, self._checksum, self._read)

    def cancel(self) -> None:
        """End without another byte, and without a word to the writer."""
        if not self._is_over:
            self._is_over = True
            self._let_go()
            self._large.unpin(self._body.id)

    def _let_go(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._writer.hold(-PIECE_BYTES)

    def _read(self, answer: tuple[bytes, int] | OrthiaError) -> None:
        if self._is_over:
            return
        self._let_go()
        if isinstance(answer, OrthiaError):
            self._end(answer)
            return
        data, self._checksum = answer
        self._position += 1
        self._sent += len(data)
        missing = self._body.size - self._sent
        if missing < 0 or (not missing and self._checksum != self._body.checksum):
            self._end(
                LargeBodyError(f"the large body {self._body.id} differs from what was stored")
            )
            return
        self._writer.write_piece(data, is_last=not missing)
        if missing:
            self.resume()
        else:
            self._end(None)

    def _end(self, error: OrthiaError | None) -> None:
        self.cancel()
        self._writer.body_ended(error)
