# mypyc compiles this module.
"""What is written to a client: one frame after the other, and nothing within a large body.

The body of a large MESSAGE is written as it is read from the store. Until it has ended, receipts
wait here, the client gets no other message, and an ERROR would be taken for a part of the body.
"""

from collections.abc import Callable
from functools import partial

from orthia.broker.core.slices import Steps, Wait
from orthia.broker.protocols.stomp.streaming import BodyStream
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import LargeMessages
from orthia.journal.model.message import LargeBody

_FRAME_COST = 512
"""What a frame that waits counts for beside its bytes."""


class Outbox:
    """The way out of one connection."""

    __slots__ = (
        "_may_take", "_waiting", "_whole", "body", "is_over", "is_serving", "is_writable", "size",
        "write_now", "write_part",
    )  # fmt: skip

    def __init__(self, write: Callable[[bytes], int], may_take: Callable[[], bool]) -> None:
        """``write`` takes bytes for the client and returns how many it took so far.

        ``may_take`` says whether there is memory for deliveries.
        """
        self.write_now = write
        """For a MESSAGE, which is delivered only while ``takes_messages``, and for the last frame
        of a connection."""
        self.write_part = write
        """For a part of a frame, of which more follows."""
        self._may_take = may_take
        self.body: BodyStream | None = None
        """The large body that is being written, if there is one."""
        self._waiting: list[bytes] = []
        self._whole: Wait | None = None
        """Called when the body is written, if somebody waits for it."""
        self.size = 0
        """What frames that wait count for."""
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
        return self.is_writable and self.is_serving and self.body is None and self._may_take()

    def write(self, frame: bytes) -> None:
        """Write a frame, after the large body that is being written; nothing once all is over."""
        if self.is_over:
            return
        if self.body is None:
            self.write_now(frame)
        else:
            self._waiting.append(frame)
            self.size += len(frame) + _FRAME_COST

    def stream(
        self, large: LargeMessages, body: LargeBody, ended: Callable[[OrthiaError | None], None]
    ) -> None:
        """Write the body of a large MESSAGE whose head is written already.

        ``ended`` is called unless the connection is over before. With an error the client has no
        whole frame, and can be sent nothing more.
        """
        self.body = BodyStream(
            large,
            body,
            write=self.write_now,
            write_part=self.write_part,
            may_go_on=self._may_go_on,
            ended=partial(self._streamed, ended),
        )

    def whole(self) -> Steps:
        """Wait for the end of the body that is being written."""
        self._whole = Wait(lambda _: None)
        yield self._whole
        self._whole = None

    def _may_go_on(self) -> bool:
        return self.is_writable and self._may_take()

    def _streamed(
        self, ended: Callable[[OrthiaError | None], None], error: OrthiaError | None
    ) -> None:
        if error is None:
            self.body = None
            waiting, self._waiting, self.size = self._waiting, [], 0
            for frame in waiting:
                self.write_now(frame)
        ended(error)
        if error is None and self._whole is not None:
            self._whole()

    def resume(self) -> None:
        """Go on with a large body, if one is being written: the socket takes more."""
        if self.body is not None:
            self.body.resume()

    def end(self) -> None:
        """Write nothing more, and forget what waits."""
        self.is_over = True
        self.is_serving = False
        if self.body is not None:
            self.body.cancel()
            self.body = None
        self._waiting.clear()
        self._whole = None
        self.size = 0
