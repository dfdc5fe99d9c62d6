# mypyc compiles this module.
"""What is written to a client: one frame after the other, and nothing within a large body.

The body of a large MESSAGE is written as it is read from the store. Until it has ended, receipts
wait here, the client gets no other message, and an ERROR would be taken for a part of the body.
"""

from collections.abc import Callable
from typing import Final

from orthia.broker.core.slices import Steps, Wait
from orthia.broker.protocols.abc import Socket
from orthia.broker.protocols.stomp.frames import Version
from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.engine.large import LargeMessages
from orthia.journal.errors import LargeBodyError
from orthia.journal.model.message import LargeBody

_FRAME_COST: Final = 512
"""Bytes that a waiting frame counts for beside its own."""
Ended = Callable[[OrthiaError | None], None]


class Output:
    """The frames that leave one connection."""

    __slots__ = (
        "_large", "_socket", "_waiting", "_whole", "body", "is_over", "is_serving", "is_writable",
        "size", "version", "write_now", "write_part",
    )  # fmt: skip

    def __init__(self, socket: Socket, large: LargeMessages | None) -> None:
        """``large`` has the bodies of large messages; None where no such messages are stored."""
        self._socket = socket
        self._large = large
        self.write_now = socket.write
        """For a MESSAGE, which is delivered only while ``takes_messages``, and for the last frame
        of a connection."""
        self.write_part = socket.write_part
        """For a part of a frame, of which more follows."""
        self.version = Version.V1_2
        """The version that frames are written in."""
        self.body: BodyStream | None = None
        """The large body that is being written, if there is one."""
        self._waiting: list[bytes] = []
        self._whole: Wait | None = None
        """Called when the body is written, if somebody waits for it."""
        self.size = 0
        """Bytes that waiting frames count for."""
        self.is_writable = True
        """Whether the socket takes more."""
        self.is_serving = False
        """Whether the connection is in a state in which messages are delivered."""
        self.is_over = False

    @property
    def is_streaming(self) -> bool:
        """Whether a large body is being written."""
        return self.body is not None

    def takes_messages(self) -> bool:
        """Return whether a message may be delivered now."""
        return (
            self.is_writable and self.is_serving and self.body is None and self._socket.has_room()
        )

    def write(self, frame: bytes) -> None:
        """Write a frame, after the large body that is being written; nothing once all is over."""
        if self.is_over:
            return
        if self.body is None:
            self.write_now(frame)
        else:
            self._waiting.append(frame)
            self.size += len(frame) + _FRAME_COST

    def stream(self, body: LargeBody, ended: Ended) -> None:
        """Write the body of a large MESSAGE whose head is written already.

        ``ended`` is called unless the connection is over before. With an error the client has no
        whole frame, and can be sent nothing more.
        """
        if self._large is None:
            raise RuntimeError("a large message in a broker that stores none")
        self.body = BodyStream(self, self._large, body, ended)

    def until_whole(self) -> Steps:
        """Wait for the end of the body that is being written."""
        self._whole = Wait(lambda _: None)
        yield self._whole
        self._whole = None

    def takes_parts(self) -> bool:
        """Return whether more of a large body may be written now."""
        return self.is_writable and self._socket.has_room()

    def body_ended(self, ended: Ended, error: OrthiaError | None) -> None:
        """Write the frames that waited for the large body, unless it ended with an ``error``."""
        if error is None:
            self.body = None
            waiting, self._waiting, self.size = self._waiting, [], 0
            for frame in waiting:
                self.write_now(frame)
        ended(error)
        if error is None and self._whole is not None:
            self._whole()

    def resume(self) -> None:
        """Read more of a large body, if one is being written: the socket takes more."""
        if self.body is not None:
            self.body.resume()

    def end(self) -> None:
        """Write nothing more, and drop what waits."""
        self.is_over = True
        self.is_serving = False
        if self.body is not None:
            self.body.cancel()
            self.body = None
        self._waiting.clear()
        self._whole = None
        self.size = 0


class BodyStream:
    """The body of one MESSAGE on its way out; its head is written already.

    One piece is in memory: the next is read when the socket takes more. The last is written only
    if all of it is what was stored, and without it the client has no whole frame.
    """

    __slots__ = (
        "_body", "_checksum", "_ended", "_is_over", "_is_reading", "_large", "_output", "_position",
        "_sent",
    )  # fmt: skip

    def __init__(self, output: Output, large: LargeMessages, body: LargeBody, ended: Ended) -> None:
        """Pin the body and read its first piece; ``ended`` is called unless it is cancelled."""
        self._output = output
        self._large = large
        self._body = body
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
        """Bytes that are in memory, or are being read into it."""
        return PIECE_BYTES if self._is_reading else 0

    def resume(self) -> None:
        """Read the next piece, if the socket takes more."""
        if not self._is_reading and not self._is_over and self._output.takes_parts():
            self._is_reading = True
            self._large.read(self._body.id, self._position, self._checksum, self._read)

    def cancel(self) -> None:
        """End without another byte, and without calling ``ended``."""
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
                LargeBodyError(f"the large body {self._body.id} differs from what was stored")
            )
            return
        self._output.write_part(data)
        if not missing:
            self._output.write_now(b"\0")
            self._end(None)
        else:
            self.resume()

    def _end(self, error: OrthiaError | None) -> None:
        self.cancel()
        self._output.body_ended(self._ended, error)
