# mypyc compiles this module.
"""A MESSAGE whose body is written as it is read from the store, a piece at a time."""

from collections.abc import Callable

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import LargeMessages
from orthia.journal.errors import LargeBodyError
from orthia.journal.model.message import LargeBody


class BodyStream:
    """The body of one MESSAGE on its way out; its head is written already.

    One piece is in memory: the next is read when the socket takes more. The last is written only
    if all of it is what was stored, and without it the client has no whole frame.
    """

    def __init__(
        self,
        large: LargeMessages,
        body: LargeBody,
        *,
        write: Callable[[bytes], int],
        write_part: Callable[[bytes], int],
        may_go_on: Callable[[], bool],
        ended: Callable[[OrthiaError | None], None],
    ) -> None:
        """Pin the body and read its first piece; ``ended`` is called unless it is cancelled.

        ``write_part`` takes what is not the last of the frame.
        """
        self._large = large
        self._body = body
        self._write = write
        self._write_part = write_part
        self._may_go_on = may_go_on
        self._ended = ended
        self._position = 0
        self._sent = 0
        self._checksum = 0
        self._is_reading = False
        self._is_over = False
        large.pin(body.id)
        self.resume()

    @property
    def held(self) -> int:
        """Bytes that are in memory, or soon will be."""
        return PIECE_BYTES if self._is_reading else 0

    def resume(self) -> None:
        """Read on, if the socket takes more."""
        if not self._is_reading and not self._is_over and self._may_go_on():
            self._is_reading = True
            self._large.read(self._body.id, self._position, self._checksum, self._read)

    def cancel(self) -> None:
        """End without another byte, and without telling."""
        if not self._is_over:
            self._is_over = True
            self._large.unpin(self._body.id)

    def _read(self, answer: tuple[bytes, int] | OrthiaError) -> None:
        self._is_reading = False
        if self._is_over:
            return
        if isinstance(answer, OrthiaError):
            self._end(answer)
            return
        data, self._checksum = answer
        self._position += 1
        self._sent += len(data)
        missing = self._body.size - self._sent
        if missing < 0 or (not missing and self._checksum != self._body.checksum):
            self._end(
                LargeBodyError(f"the large message body {self._body.id} is not as it was stored")
            )
            return
        self._write_part(data)
        if not missing:
            self._write(b"\0")
            self._end(None)
        else:
            self.resume()

    def _end(self, error: OrthiaError | None) -> None:
        self.cancel()
        self._ended(error)
