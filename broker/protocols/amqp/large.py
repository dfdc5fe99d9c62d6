# mypyc compiles this module.
"""A large message on its way to a client: its body is read while the client takes it.

One piece is in memory: the next is read when the socket takes more, and the session's window has
room. Other links go on meanwhile. The last piece is written only if all of it is what was stored;
if not, the delivery is aborted, and the client has no message.
"""

from collections.abc import Callable

from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import LargeMessages
from orthia.journal.errors import LargeBodyError
from orthia.journal.model.message import LargeBody

Ended = Callable[[OrthiaError | None], None]


class LargeDelivery:
    """The body of one message on its way out; what precedes it is written already."""

    __slots__ = (
        "_body", "_checksum", "_ended", "_is_over", "_is_reading", "_large", "_link", "_position",
        "_sent", "_session",
    )  # fmt: skip

    def __init__(
        self,
        session: LinkSession,
        link: Link,
        large: LargeMessages,
        body: LargeBody,
        ended: Ended,
    ) -> None:
        """Pin the body; ``resume`` reads its first piece. ``ended`` follows unless it is cancelled.

        With an error the delivery was aborted.
        """
        self._session = session
        self._link = link
        self._large = large
        self._body = body
        self._ended = ended
        self._position = 0
        self._sent = 0
        self._checksum = 0
        self._is_reading = False
        self._is_over = False
        large.pin(body.id)

    def resume(self) -> None:
        """Read the next piece, if the client takes more."""
        if not self._is_reading and not self._is_over and self._session.takes_messages():
            self._is_reading = True
            self._session.client.buffered += PIECE_BYTES
            self._large.read(self._body.id, self._position, self._checksum, self._read)

    def cancel(self) -> None:
        """End without another byte, and without calling ``ended``."""
        if not self._is_over:
            self._is_over = True
            self._read_ended()
            self._large.unpin(self._body.id)

    def _read_ended(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._session.client.buffered -= PIECE_BYTES

    def _read(self, answer: tuple[bytes, int] | OrthiaError) -> None:
        if self._is_over:
            return
        self._read_ended()
        if isinstance(answer, OrthiaError):
            self._abort(answer)
            return
        data, self._checksum = answer
        self._position += 1
        self._sent += len(data)
        missing = self._body.size - self._sent
        if missing < 0 or (not missing and self._checksum != self._body.checksum):
            self._abort(
                LargeBodyError(f"the large body {self._body.id} differs from what was stored")
            )
            return
        self._session.go_on(self._link, data, more=missing > 0)
        if missing:
            self.resume()
        else:
            self.cancel()
            self._ended(None)

    def _abort(self, error: OrthiaError) -> None:
        self.cancel()
        self._session.abort(self._link)
        self._ended(error)
