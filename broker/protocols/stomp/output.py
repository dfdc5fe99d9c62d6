# mypyc compiles this module.
"""What is written to a client: one frame after the other, and nothing within a large body.

The body of a large MESSAGE is written as it is read from the store. Until it has ended, receipts
wait here, the client gets no other message, and an ERROR would be taken for a part of the body.
"""

from collections.abc import Callable
from typing import Final

from orthia.broker.core.slices import Steps, Wait
from orthia.broker.protocols.abc import Socket
from orthia.broker.protocols.large_bodies import BodyReader
from orthia.broker.protocols.stomp.frames import Version
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import LargeMessages
from orthia.journal.model.message import LargeBody

_FRAME_COST: Final = 512
"""Bytes that a waiting frame counts for beside its own."""
Ended = Callable[[OrthiaError | None], None]


class Output:
    """The frames that leave one connection."""

    __slots__ = (
        "_ended", "_large", "_socket", "_waiting", "_whole", "body", "is_over", "is_serving",
        "is_writable", "piece", "size", "version", "write_now", "write_part",
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
        self.body: BodyReader | None = None
        """The large body that is being written, if there is one."""
        self.piece = 0
        """Bytes of it that are in memory, or are being read into it."""
        self._ended: Ended | None = None
        """What follows its end."""
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
        self._ended = ended
        self.body = BodyReader(self, self._large, body)
        self.body.resume()

    def until_whole(self) -> Steps:
        """Wait for the end of the body that is being written."""
        self._whole = Wait(lambda _: None)
        yield self._whole
        self._whole = None

    # --- what writes a body

    def takes_pieces(self) -> bool:
        """Return whether more of a large body may be written now."""
        return self.is_writable and self._socket.has_room()

    def hold(self, change: int) -> None:
        """Count bytes of a large body that are held for the client."""
        self.piece += change

    def write_piece(self, data: bytes, *, is_last: bool) -> None:
        """Write more of a large body, and the end of its frame behind the last of it."""
        self.write_part(data)
        if is_last:
            self.write_now(b"\0")

    def body_ended(self, error: OrthiaError | None) -> None:
        """Write the frames that waited for the large body, unless it ended with an ``error``."""
        ended, self._ended = self._ended, None
        if error is None:
            self.body = None
            waiting, self._waiting, self.size = self._waiting, [], 0
            for frame in waiting:
                self.write_now(frame)
        if ended is not None:
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
        self._ended = None
        self._waiting.clear()
        self._whole = None
        self.size = 0
