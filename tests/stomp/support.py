"""A STOMP client without a socket, on a real core."""

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.prefixes import Prefixes
from orthia.broker.protocols.stomp.virtual_topics import VirtualTopics
from orthia.config.settings import StompLimits
from tests.core.support import CoreUnderTest

QUEUE = "/queue/orders"


class Client:
    """A client that writes frames as text and reads them parsed."""

    def __init__(
        self,
        core: CoreUnderTest,
        version: str | None = "1.2",
        *,
        limits: StompLimits | None = None,
        prefixes: Prefixes | None = None,
        virtual_topics: VirtualTopics | None = None,
        **connect: str,
    ) -> None:
        self.core = core
        self.written = b""
        self.total = 0
        self.left: int | None = None
        """How many bytes the socket took, if not all."""
        self.closed = False
        self.now = 0.0
        self.session = StompConnection(
            core.broker,
            StompOptions(limits or StompLimits(), prefixes=prefixes, virtual_topics=virtual_topics),
            write=self._write,
            close=self._close,
            clock=lambda: self.now,
            left=lambda: self.total if self.left is None else self.left,
        )
        self._parser = FrameParser(StompLimits())
        if version is not None:
            self._parser.version = Version(version)
            self.send("CONNECT", accept_version=version, host="h", **connect)
            self.connected = self.read()

    def _write(self, data: bytes) -> int:
        assert not self.closed, "written after it was closed"
        self.written += data
        self.total += len(data)
        return self.total

    def _close(self) -> None:
        self.closed = True

    def send(self, command: str, body: str = "", **headers: str) -> None:
        """Send a frame; header names have underscores for dashes."""
        lines = "".join(f"{k.replace('_', '-')}:{v}\n" for k, v in headers.items())
        self.session.receive(f"{command}\n{lines}\n{body}\0".encode())
        self.core.settle()

    def frames(self) -> list[Frame]:
        """Return what came since the last time."""
        data, self.written = self.written, b""
        return list(self._parser.feed(data))

    def read(self) -> Frame:
        """Return the one frame that came."""
        (frame,) = self.frames()
        return frame

    def commands(self) -> list[str]:
        """Return the commands of the frames that came."""
        return [frame.command for frame in self.frames()]

    def error(self) -> str:
        """Return the text of the ERROR that ended the session."""
        frame = self.read()
        assert frame.command == "ERROR"
        assert self.closed
        assert self.session.is_closed
        return frame.body.decode()

    def subscribe(self, ack: str = "client-individual", **headers: str) -> list[Frame]:
        """Subscribe to the queue and return what is delivered at once."""
        self.send("SUBSCRIBE", destination=QUEUE, id="s", ack=ack, **headers)
        return self.frames()


def fill(core: CoreUnderTest, *bodies: str) -> None:
    """Put messages into the queue."""
    core.send(QUEUE, *bodies)


def bodies(frames: list[Frame]) -> list[str]:
    """Return the bodies of MESSAGE frames."""
    return [frame.body.decode() for frame in frames if frame.command == "MESSAGE"]


def acknowledge(client: Client, frame: Frame, command: str = "ACK", **headers: str) -> None:
    """Answer a MESSAGE as the client's version does."""
    version = client.session.client.version
    if version is Version.V1_2:
        client.send(command, id=frame.get(b"ack") or "", **headers)
    elif version is Version.V1_1:
        client.send(command, message_id=frame.get(b"message-id") or "", subscription="s", **headers)
    else:
        client.send(command, message_id=frame.get(b"message-id") or "", **headers)


def is_trimmed(character: str) -> bool:
    """Return whether a header's name must not begin or end with ``character``."""
    return character <= " " or character.isspace() or character in ":\ufeff"
