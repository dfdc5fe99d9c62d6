# mypyc compiles this module.
"""What a client sent and nobody has handled: frames are made of it as they are asked for.

A frame can change how those after it are read: CONNECT sets version and limits. So bytes that come
while the client is to wait are kept as they came, and parsed only once all before them is handled.
"""

from collections.abc import Iterator

from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
from orthia.broker.protocols.stomp.parser import FrameParser

Frames = Iterator[Frame | BodyPiece]


class Inbox:
    """Bounded by its owner, who reads no more from the socket while this is not empty."""

    __slots__ = ("_begun", "_came", "_parser", "size")

    def __init__(self, parser: FrameParser) -> None:
        self._parser = parser
        self._begun: Frames | None = None
        self._came: list[bytes] = []
        self.size = 0
        """Bytes of what came since it was empty."""

    def put(self, data: bytes) -> None:
        """Take what came."""
        self.size += len(data)
        self._came.append(data)

    def take(self) -> Frames | None:
        """Return what to read frames from next; None if there is nothing, which ends the count.

        It is to be exhausted, or given back, before the next call.
        """
        begun = self._begun
        if begun is not None:
            self._begun = None
            return begun
        if self._came:
            return self._parser.events(self._came.pop(0))
        self.size = 0
        return None

    def give_back(self, frames: Frames) -> None:
        """Have what is left in ``frames`` read first."""
        self._begun = frames

    def clear(self) -> None:
        """Forget everything: no more is wanted."""
        self._begun = None
        self._came.clear()
        self.size = 0
        self._parser.clear()
