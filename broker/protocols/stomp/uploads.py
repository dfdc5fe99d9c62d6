# mypyc compiles this module.
"""The large SEND of a connection whose body is on its way to the store.

There is one at most: what follows it waits until its body is durable, so that messages keep their
order. Once the body is there, the message goes the way of every other.
"""

from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import Upload
from orthia.journal.model.message import LargeBody


class LargeSend(NamedTuple):
    """A large SEND whose body is under way."""

    frame: Frame
    destination: str
    message: OutgoingMessage
    """Without its body."""
    upload: Upload


class Uploads:
    """The large SEND that is under way, if there is one, and when something of it came last."""

    __slots__ = ("_session", "_since", "_timeout_ms", "under_way")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._timeout_ms = session.options.limits.upload_timeout
        self._since = 0.0
        self.under_way: LargeSend | None = None

    @property
    def frame(self) -> Frame | None:
        """Its head."""
        return None if self.under_way is None else self.under_way.frame

    @property
    def receipt(self) -> str | None:
        """The receipt it asks for."""
        return None if self.under_way is None else self.under_way.frame.get(b"receipt")

    @property
    def held(self) -> int:
        """Bytes of the body in memory."""
        return 0 if self.under_way is None else self.under_way.upload.held

    @property
    def wants_more(self) -> bool:
        """Whether more of it is to be read from the client."""
        return self.under_way is None or self.under_way.upload.wants_more

    def begin(
        self,
        frame: Frame,
        destination: str,
        message: OutgoingMessage,
        stored: Callable[[LargeBody | OrthiaError], None],
    ) -> None:
        """Refuse the message at its head, if it is to be refused; else take its body.

        ``stored`` is called once the body is durable, or with the error that keeps it from being
        so. Raises ProtocolError and BrokerError.
        """
        session = self._session
        upload = session.core.upload(
            session.principal, destination, session.socket.wait_ended, stored
        )
        self.under_way = LargeSend(frame, destination, message, upload)
        self._since = session.clock()
        if b"content-length" in frame.raw:
            size = frame.number(b"content-length", 0)
            session.core.check_upload(destination, size, size)

    def add(self, piece: BodyPiece) -> None:
        """Take a piece of the body; raises BrokerError if there is no room for so much."""
        if self.under_way is None:
            return
        upload = self.under_way.upload
        upload.add(piece.data)
        self._since = self._session.clock()
        self._session.core.check_upload(self.under_way.destination, upload.size, 0)

    def finish(self) -> None:
        """Note that this was all of the body."""
        if self.under_way is not None:
            self.under_way.upload.finish()

    def take(self) -> LargeSend:
        """Return the SEND whose body is durable, or has failed: it is no longer under way."""
        found, self.under_way = self.under_way, None
        if found is None:
            raise RuntimeError("a body was stored that is of no message")
        return found

    def leave_out(self, now: float, *, is_read: bool, paused: float) -> None:
        """Leave out the ``paused`` seconds before ``now``; without reading, all up to ``now``."""
        self._since = self._since + paused if is_read else now

    def idle_too_long(self, now: float) -> str | None:
        """Return what to tell a client that sent nothing of the body for too long; else None."""
        if self.under_way is None or now <= self._since + self._timeout_ms / 1000:
            return None
        return (
            f"nothing came for upload-timeout {self._timeout_ms} ms of the body of a message to"
            f" {quoted(self.under_way.destination)}, of which {self.under_way.upload.size} bytes"
            " are there"
        )

    def abort(self) -> None:
        """Delete what came of the body: the client is gone or refused."""
        if self.under_way is not None:
            self.under_way.upload.abort()
            self.under_way = None
