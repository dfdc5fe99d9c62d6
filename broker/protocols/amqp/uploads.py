# mypyc compiles this module.
"""The large messages that one client is sending: their bodies go to the store as they come.

Of each a few pieces are in memory. While the store is behind, its client is not read from. Once the
last piece is durable the message is sent as every other, with its body where it is.
"""

from collections.abc import Callable
from typing import Final

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Wait
from orthia.broker.protocols.abc import Socket
from orthia.broker.protocols.amqp.conditions import MESSAGE_SIZE, LinkFault, without_frames
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.sections import BodyCheck, Sections
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import Upload
from orthia.journal.errors import JournalClosed, LargeBodyError
from orthia.journal.model.message import LargeBody

NEVER: Final = 2**63 - 1
"""The least size of a large message where there are none."""


class LargeMessage:
    """One that is on its way; all calls on the loop's thread."""

    __slots__ = (
        "_check", "_core", "_forget", "_outcome", "_upload", "_waits", "came_at", "destination",
        "error", "message",
    )  # fmt: skip

    def __init__(
        self,
        core: Broker,
        destination: str,
        message: OutgoingMessage,
        check: BodyCheck,
        forget: "Callable[[LargeMessage], None]",
        now: float,
    ) -> None:
        """Begin with nothing of the body; ``attach`` follows, and ``forget`` is called at its end.

        ``now`` is the monotonic clock in seconds.
        """
        self._core = core
        self._check = check
        self._forget = forget
        self._upload: Upload | None = None
        self._outcome: LargeBody | OrthiaError | None = None
        self._waits: Wait | None = None
        self.destination = destination
        self.message = message
        """Without its body."""
        self.error: OrthiaError | None = None
        """Why it is refused, once it is: what still comes of it is left out."""
        self.came_at = now
        """When something of it came last."""

    def attach(self, upload: Upload) -> None:
        """Take where its body goes: called once."""
        self._upload = upload

    @property
    def size(self) -> int:
        """Bytes of the body that came."""
        return 0 if self._upload is None else self._upload.size

    @property
    def held(self) -> int:
        """Bytes of it in memory."""
        head = len(self.message.head)
        return head if self._upload is None else head + self._upload.held

    @property
    def wants_more(self) -> bool:
        """Whether more of it is to be read from the client."""
        return self._upload is None or self._upload.is_over or self._upload.wants_more

    def add(self, data: bytes, now: float) -> None:
        """Store the next bytes of the body; if they cannot be had, ``error`` says why."""
        self.came_at = now
        upload = self._upload
        if self.error is not None or upload is None:
            return
        try:
            self._check.add(data)
            upload.add(data)
            self._core.check_upload(self.destination, upload.size, 0)
        except OrthiaError as error:
            self.refuse(error)

    def refuse(self, error: OrthiaError) -> None:
        """Store nothing more of it: it is refused."""
        self._keep_only(error)
        self.abort()

    def _keep_only(self, error: OrthiaError) -> None:
        """Keep why it is refused until its end comes, and nothing else: that is not counted."""
        self.error = without_frames(error)
        self.message = self.message._replace(head=b"", stated=b"")

    def finish(self) -> Wait | None:
        """Note that this was all; return what ends once all is durable, None if it is refused."""
        upload = self._upload
        if self.error is None:
            try:
                self._check.finish()
            except OrthiaError as error:
                self.refuse(error)
        if self.error is not None or upload is None:
            return None
        self._waits = Wait(lambda _: None)
        upload.finish()
        return self._waits

    def stored(self, outcome: LargeBody | OrthiaError) -> None:
        """Note that the body is durable, or why it is not."""
        self._outcome = outcome
        if isinstance(outcome, OrthiaError):
            self._keep_only(outcome)
            self._forget(self)
        if self._waits is not None:
            self._waits()

    def take(self) -> OutgoingMessage:
        """Return the message with its body, which whoever sends it unpins.

        Raises why it is not stored; NotLive if this node stops.
        """
        outcome, error = self._outcome, self.error
        if isinstance(error, JournalClosed | LargeBodyError):
            raise NotLive(str(error))  # it stops, or its lease ended: another node takes it
        if error is not None:
            raise error
        if isinstance(outcome, LargeBody):
            self._outcome = None
            self._forget(self)
            return self.message._replace(large=outcome)
        raise RuntimeError("a large message whose body is not stored")

    def abort(self) -> None:
        """Remove what came of it, unless it was taken; nobody is told."""
        self._forget(self)
        outcome, self._outcome = self._outcome, None
        if self._upload is not None:
            self._upload.abort()
        if isinstance(outcome, LargeBody) and self._core.large is not None:
            self._core.large.unpin(outcome.id)


class Uploads:
    """The large messages of one client that are under way."""

    __slots__ = ("_clock", "_core", "_limits", "_socket", "_timeout", "_under_way", "least")

    def __init__(
        self, core: Broker, options: AmqpOptions, socket: Socket, clock: Callable[[], float]
    ) -> None:
        self._core = core
        self._socket = socket
        self._clock = clock
        self._limits = options.limits
        self._timeout = options.limits.upload_timeout / 1000
        self._under_way: list[LargeMessage] = []
        self.least = NEVER if core.large is None else options.least_large or NEVER
        """How many bytes a large message has, encoded."""

    @property
    def most(self) -> int:
        """Bytes of a whole message, encoded."""
        limits = self._limits
        body = limits.max_body_bytes if self.least == NEVER else limits.max_large_message_size
        return body + limits.max_header_bytes

    @property
    def most_named(self) -> str:
        """By which settings that is so."""
        body = "max-body-bytes" if self.least == NEVER else "max-large-message-size"
        return f"{body} and max-header-bytes together"

    @property
    def held(self) -> int:
        """Bytes of them in memory."""
        return sum([one.held for one in self._under_way]) if self._under_way else 0

    @property
    def wants_more(self) -> bool:
        """Whether the client is to be read from; if not, ``Socket.wait_ended`` follows."""
        return not self._under_way or all(one.wants_more for one in self._under_way)

    def begin(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        sections: Sections,
        body: bytes,
    ) -> LargeMessage:
        """Begin a message of whose ``body`` some came; ``sections`` are those of its head.

        Raises LinkFault for one that is larger than may be, and the BrokerError that the message
        would meet now.
        """
        most = self._limits.max_large_message_size
        if sections.first > most:
            raise LinkFault(
                MESSAGE_SIZE,
                f"a message has a body of {sections.first} bytes; expected max-large-message-size"
                f" {most} at most",
            )
        core, now = self._core, self._clock()
        one = LargeMessage(core, destination, message, BodyCheck(sections), self._forget, now)
        upload = core.upload(principal, destination, self._socket.wait_ended, one.stored)
        one.attach(upload)
        self._under_way.append(one)
        if sections.first > 0:
            try:
                core.check_upload(destination, sections.first, sections.first)
            except OrthiaError:
                one.abort()
                raise
        one.add(body, now)
        return one

    def add(self, one: LargeMessage, data: bytes) -> None:
        """Take more of the body of a message."""
        one.add(data, self._clock())

    def leave_out(self, now: float, *, is_read: bool, paused: float) -> None:
        """Leave out the ``paused`` seconds before ``now``; without reading, all up to ``now``."""
        for one in self._under_way:
            one.came_at = one.came_at + paused if is_read else now

    def idle_too_long(self, now: float) -> str | None:
        """Return what to tell a client that sent nothing of a message for too long; else None."""
        for one in self._under_way:
            if now > one.came_at + self._timeout:
                return (
                    f"nothing came for upload-timeout {self._limits.upload_timeout} ms of a"
                    f" message to {quoted(one.destination)}, of whose body {one.size} bytes are"
                    " there"
                )
        return None

    def abort(self) -> None:
        """Remove what came of all: the client is gone or refused, or this node stops."""
        under_way, self._under_way = self._under_way, []
        for one in under_way:
            one.abort()

    def _forget(self, one: LargeMessage) -> None:
        """Leave a message out that is over; its client may have waited for room for it."""
        if one in self._under_way:
            self._under_way.remove(one)
            self._socket.wait_ended()
