# mypyc compiles this module.
"""The large SEND of a connection whose body is on its way to the store.

There is one at most: what follows it waits until its body is durable, so that messages keep their
order. The message goes the way of every other once the body is there.
"""

from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.api import BrokerCore, Done, OutgoingMessage
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import Upload
from orthia.journal.model.message import LargeBody


class LargeSend(NamedTuple):
    """A large SEND of which the body is under way."""

    frame: Frame
    destination: str
    message: OutgoingMessage
    """Without its body."""
    upload: Upload


class Uploads:
    """The large SEND that is under way, if there is one, and when something of it came last."""

    __slots__ = ("_core", "_room", "_since", "_stored", "_timeout_ms", "under_way")

    def __init__(
        self,
        core: BrokerCore,
        timeout_ms: int,
        *,
        room: Done,
        stored: Callable[[LargeBody | OrthiaError], None],
    ) -> None:
        """``room`` is called when more is wanted again, ``stored`` once the body is durable."""
        self._core = core
        self._timeout_ms = timeout_ms
        self._room = room
        self._stored = stored
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
    def wants_more(self) -> bool:
        """Whether more of it is to be read from the client."""
        return self.under_way is None or self.under_way.upload.wants_more

    def begin(
        self,
        principal: Principal,
        frame: Frame,
        destination: str,
        message: OutgoingMessage,
        now: float,
    ) -> None:
        """Refuse the message at its head, if it is to be refused; else take its body.

        Raises ProtocolError and BrokerError.
        """
        upload = self._core.upload(principal, destination, self._room, self._stored)
        self.under_way = LargeSend(frame, destination, message, upload)
        self._since = now
        if b"content-length" in frame.raw:
            size = frame.number(b"content-length", 0)
            self._core.check_upload(destination, size, size)

    def add(self, piece: BodyPiece, now: float) -> None:
        """Take a piece of the body; the store has it finished after the last.

        Raises BrokerError if there is no room for so much.
        """
        if self.under_way is None:
            return
        upload = self.under_way.upload
        upload.add(piece.data)
        self._since = now
        self._core.check_upload(self.under_way.destination, upload.size, 0)

    def finish(self) -> None:
        """Take note that this was all."""
        if self.under_way is not None:
            self.under_way.upload.finish()

    def take(self) -> LargeSend:
        """Return the SEND whose body is durable, or has failed: it is under way no more."""
        found, self.under_way = self.under_way, None
        if found is None:
            raise RuntimeError("a body was stored that is of no message")
        return found

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which nothing could come: this node stood still."""
        self._since += seconds

    def wait_from(self, now: float) -> None:
        """Count the time in which nothing came from ``now`` on: the client is not read from."""
        self._since = now

    def idle_too_long(self, now: float) -> str | None:
        """Return what to tell a client of whose message nothing came for too long; else None."""
        if self.under_way is None or now <= self._since + self._timeout_ms / 1000:
            return None
        return (
            f"nothing came for upload-timeout {self._timeout_ms} ms of the body of a message to"
            f" {quoted(self.under_way.destination)}, of which {self.under_way.upload.size} bytes"
            " are there"
        )

    def abort(self) -> None:
        """Have what came removed: the client is gone or refused."""
        if self.under_way is not None:
            self.under_way.upload.abort()
            self.under_way = None
