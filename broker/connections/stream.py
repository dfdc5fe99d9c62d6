"""A client's WebSocket between its socket and its protocol; neither knows of it.

Decoding is done in slices, as a protocol handles frames: a client can put so many frames into what
is read at once that others would wait for them.
"""

from typing import Protocol

from orthia.broker.connections.websocket import Code, Decoded, WebSocket
from orthia.broker.core.errors import Refusal
from orthia.broker.core.slices import GO_ON, Slices, Steps, Usage
from orthia.broker.protocols.abc import ProtocolConnection


class _Owner(Protocol):
    """The connection whose socket the WebSocket is on."""

    @property
    def protocol(self) -> ProtocolConnection:
        """Takes what comes."""

    @property
    def usage(self) -> Usage:
        """How much of the loop's time its client had lately."""

    def write_raw(self, data: bytes) -> int:
        """Write bytes of the WebSocket itself."""

    def refused(self, kind: Refusal, reason: str) -> None:
        """Log and count what the client did wrong."""

    def hang_up(self) -> None:
        """End a connection whose WebSocket is over already."""

    def wait_ended(self) -> None:
        """Look again whether the client is to be read from: ``is_late`` is over."""

    def choose_subprotocol(self, name: str) -> None:
        """Take the protocol that the client asked for."""


class WebSocketStream:
    """Passes bytes through one WebSocket, both ways; called on the loop by the socket's owner."""

    __slots__ = ("_ending", "_owner", "_slices", "_usage", "_websocket", "is_late")

    def __init__(self, websocket: WebSocket, owner: _Owner, slices: Slices) -> None:
        self._websocket = websocket
        self._owner = owner
        self._slices = slices
        self._usage = owner.usage
        self._ending: tuple[int, str] | None = None
        self.is_late = False
        """Whether bytes are left for a later turn of the loop: no more are to be read."""

    @property
    def held(self) -> int:
        """Bytes that came and are not decoded."""
        return self._websocket.held

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._websocket.put(data)
        if not self.is_late and not self._slices.run(self._handling(), self._usage):
            self.is_late = True

    def frame(self, data: bytes, *, is_last: bool) -> bytes:
        """Return a frame of the protocol, or a part of one, as the WebSocket sends it."""
        return self._websocket.frame(data, is_last=is_last)

    def note(self, kind: Refusal | None, reason: str) -> None:
        """Note why the client is disconnected, for the close frame."""
        code = Code.PROTOCOL_ERROR if kind is Refusal.PROTOCOL else Code.POLICY
        self._ending = (code, reason)

    def close(self) -> bytes:
        """Return the close frame, the last that the client is sent."""
        ending = self._ending
        if ending is None:
            in_order = self._owner.protocol.was_disconnected
            ending = (Code.NORMAL if in_order else Code.GOING_AWAY, "")
        return self._websocket.close(*ending)

    def farewell(self, frame: bytes, reason: str) -> bytes:
        """Return a last ``frame`` of the protocol, which says the reason, and the close frame."""
        self.note(None, reason)
        return self._websocket.frame(frame) + self.close()

    def abandon(self) -> None:
        """Handle nothing more: the connection is over."""
        self._websocket.abandon()

    def _handling(self) -> Steps:
        while (decoded := self._websocket.take()) is not None:
            self._handle(decoded)
            yield GO_ON
        if self.is_late:
            self.is_late = False
            self._owner.wait_ended()

    def _handle(self, decoded: Decoded) -> None:
        if decoded.answer:
            self._owner.write_raw(decoded.answer)
        if decoded.subprotocol is not None:
            self._owner.choose_subprotocol(decoded.subprotocol)
        if decoded.data:
            self._owner.protocol.receive(decoded.data)
        end = decoded.end
        if end is None:
            return
        if end.kind is not None:
            self._owner.refused(end.kind, end.reason)
        if end.code is None:
            self._owner.hang_up()
        else:
            self._ending = (end.code, end.reason)
            self._owner.protocol.shut_down(end.reason)
