"""A client's WebSocket between its socket and its protocol, which knows of neither.

Decoding is done in slices, as frames of STOMP are handled: a client can put so many frames into
what is read at once that others would wait for them.
"""

from collections.abc import Callable

from orthia.broker.connections.websocket import Code, Taken, WebSocket
from orthia.broker.core.limits.refusals import Refusal
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.protocols.stomp.connection import StompConnection


class WebSocketStream:
    """What passes one WebSocket, both ways; called on the loop by whoever owns the socket."""

    __slots__ = (
        "_ending", "_handled", "_hang_up", "_protocol", "_refused", "_slices", "_websocket",
        "_write", "is_late",
    )  # fmt: skip

    def __init__(
        self,
        websocket: WebSocket,
        protocol: StompConnection,
        slices: Slices,
        *,
        write: Callable[[bytes], int],
        refused: Callable[[Refusal, str], None],
        hang_up: Callable[[], None],
        handled: Callable[[], None],
    ) -> None:
        """Have all that ``protocol`` writes pass the WebSocket.

        ``write`` takes bytes for the socket, as the protocol's own; ``refused`` hears of what the
        client does wrong; ``hang_up`` ends the connection where the WebSocket is over already;
        ``handled`` is called when ``is_late`` is over.
        """
        self._websocket = websocket
        self._protocol = protocol
        self._slices = slices
        self._write = write
        self._refused = refused
        self._hang_up = hang_up
        self._handled = handled
        self._ending: tuple[int, str] | None = None
        self.is_late = False
        """Whether something is left for a later turn of the loop: no more is to be read."""
        protocol.write_through(self._write_frame, self._write_part)

    @property
    def held(self) -> int:
        """Bytes that came and are not handled."""
        return self._websocket.held

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._websocket.put(data)
        if not self.is_late and not self._slices.run(self._handling()):
            self.is_late = True

    def note(self, kind: Refusal | None, reason: str) -> None:
        """Note for what the client is ended, for the close frame."""
        code = Code.PROTOCOL_ERROR if kind is Refusal.PROTOCOL else Code.POLICY
        self._ending = (code, reason)

    def last_words(self) -> bytes:
        """Return the last that the client is sent."""
        ending = self._ending
        if ending is None:
            in_order = self._protocol.was_disconnected
            ending = (Code.NORMAL if in_order else Code.GOING_AWAY, "")
        return self._websocket.close(*ending)

    def farewell(self, frame: bytes, reason: str) -> bytes:
        """Return the same, after a last ``frame`` of STOMP, which says the reason too."""
        self.note(None, reason)
        return self._websocket.frame(frame) + self.last_words()

    def abandon(self) -> None:
        """Handle nothing more: the connection is over."""
        self._websocket.abandon()

    def _handling(self) -> Steps:
        while (taken := self._websocket.take()) is not None:
            self._handle(taken)
            yield GO_ON
        if self.is_late:
            self.is_late = False
            self._handled()

    def _handle(self, taken: Taken) -> None:
        if taken.answer:
            self._write(taken.answer)
        if taken.newest is not None:
            self._protocol.limit_version(taken.newest)
        if taken.stomp:
            self._protocol.receive(taken.stomp)
        end = taken.end
        if end is None:
            return
        if end.kind is not None:
            self._refused(end.kind, end.reason)
        if end.code is None:
            self._hang_up()
        else:
            self._ending = (end.code, end.reason)
            self._protocol.shut_down(end.reason)

    def _write_frame(self, data: bytes) -> int:
        return self._write(self._websocket.frame(data))

    def _write_part(self, data: bytes) -> int:
        return self._write(self._websocket.frame(data, is_last=False))
