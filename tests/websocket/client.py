"""A client of STOMP on a WebSocket: wsproto's end of it, on a plain socket."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason

ALL = ("v10.stomp", "v11.stomp", "v12.stomp")
CONNECT = "CONNECT\naccept-version:1.0,1.1,1.2\nhost:h\n\n\0"


@dataclass
class Rejected(Exception):  # noqa: N818 - what HTTP calls it
    """An upgrade that was refused."""

    status: int
    reason: str


class WebSocketClient:
    """Sends frames of STOMP as text or bytes, one message each, and reads what comes."""

    def __init__(
        self,
        client: socket.socket,
        *,
        subprotocols: Sequence[str] = ALL,
        origin: str | None = None,
        target: str = "/stomp",
    ) -> None:
        """Ask for the upgrade and wait for the answer; raises Rejected."""
        self.socket = client
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        headers = [] if origin is None else [(b"Origin", origin.encode())]
        request = Request(
            host="h", target=target, subprotocols=list(subprotocols), extra_headers=headers
        )
        self.socket.sendall(self._ws.send(request))
        answer = self.event()
        if isinstance(answer, RejectConnection):
            body = b""
            while isinstance(data := self.event(), RejectData):
                body += data.data
                if data.body_finished:
                    break
            raise Rejected(answer.status_code, body.decode().strip())
        assert isinstance(answer, AcceptConnection)
        self.subprotocol = answer.subprotocol

    def connect(self, frame: str | bytes = CONNECT) -> str:
        """Log in; return the CONNECTED."""
        self.send(frame)
        answer = self.text()
        assert answer.startswith("CONNECTED\n"), answer
        return answer

    def send(self, data: str | bytes, *, is_last: bool = True) -> None:
        """Send a message of WebSocket, or one frame of it."""
        self.socket.sendall(self.wire(data, is_last=is_last))

    def wire(self, data: str | bytes, *, is_last: bool = True) -> bytes:
        """Return a frame as it is sent."""
        if isinstance(data, str):
            return self._ws.send(TextMessage(data, message_finished=is_last))
        return self._ws.send(BytesMessage(data, message_finished=is_last))

    def ping(self, payload: bytes) -> None:
        """Send a ping."""
        self.socket.sendall(self._ws.send(Ping(payload)))

    def close(self, code: int = CloseReason.NORMAL_CLOSURE) -> None:
        """Send a close frame."""
        self.socket.sendall(self._ws.send(CloseConnection(code)))

    def event(self) -> Event:
        """Return the next event."""
        while not self._events:
            data = self.socket.recv(65_536)
            self._ws.receive_data(data or None)
            self._events += self._ws.events()
        return self._events.pop(0)

    def message(self) -> str | bytes:
        """Return the next message, of however many frames it is."""
        parts: list[str | bytes] = []
        while True:
            event = self.event()
            assert isinstance(event, TextMessage | BytesMessage), event
            parts.append(event.data if isinstance(event, TextMessage) else bytes(event.data))
            if event.message_finished:
                break
        if isinstance(parts[0], str):
            return "".join(one for one in parts if isinstance(one, str))
        return b"".join(one for one in parts if isinstance(one, bytes))

    def text(self) -> str:
        """Return the next message, which is text."""
        message = self.message()
        assert isinstance(message, str), message
        return message

    def closed(self) -> tuple[int, str]:
        """Return the code and reason with which the node closes; what comes before is dropped."""
        while not isinstance(event := self.event(), CloseConnection):
            pass
        return event.code, event.reason or ""
