"""A STOMP client without a socket, on a real core."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import GO_ON, Steps, Usage
from orthia.broker.protocols.abc import Answered, Socket
from orthia.broker.protocols.prefixes import Prefixes
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.virtual_topics import VirtualTopics
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from orthia.config.settings import ClientLimits, Settings
from tests.core.support import SETTINGS, CoreUnderTest

QUEUE = "/queue/orders"
PASSCODE = "s3cret"
"""Of every user of ``secured``."""


def secured(users: dict[str, str], granted: dict[str, dict[str, str]], **more: Any) -> Settings:
    """Return settings with security, and ``more``.

    ``users`` have roles; ``granted`` says what each role may do where, by matches. Roles and
    permissions have blanks between them.
    """

    def permissions(by_role: dict[str, str]) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for role, names in by_role.items():
            for name in names.split():
                found[name] = found.get(name, frozenset()) | {role}
        return found

    return replace(
        SETTINGS,
        security_enabled=True,
        users=tuple(
            User(name, Secret(PASSCODE), frozenset(roles.split())) for name, roles in users.items()
        ),
        security_settings=tuple(
            SecuritySetting(match, permissions(by_role)) for match, by_role in granted.items()
        ),
        **more,
    )


class SocketDouble(Socket):
    """A socket that hands on what is written, and asks the core at once who logs in."""

    def __init__(
        self,
        broker: Broker,
        write: Callable[[bytes], int],
        close: Callable[[], None] = lambda: None,
        *,
        waited: Callable[[], None] = lambda: None,
        has_room: Callable[[], bool] = lambda: True,
        taken: Callable[[], int] = lambda: 2**62,
        has_certificate: bool = False,
    ) -> None:
        self._broker = broker
        self._write = write
        self._close = close
        self._waited = waited
        self._has_room = has_room
        self._taken = taken
        self._usage = Usage()
        self._has_certificate = has_certificate
        self.reasons: list[str] = []
        """Why its client was refused, as the log says it."""
        self.answers_logins = True
        """Whether a login is answered."""
        self.answered: Answered | None = None
        """Where the answer to a login goes that was not answered."""

    @property
    @override
    def usage(self) -> Usage:
        return self._usage

    @override
    def write(self, data: bytes) -> int:
        return self._write(data)

    @override
    def write_part(self, data: bytes) -> int:
        return self._write(data)

    @override
    def before_flush(self, write: Callable[[], None]) -> None:
        def flushing() -> Steps:
            write()
            yield GO_ON

        self._broker.slices.later(flushing())

    @override
    def close(self) -> None:
        self._close()

    @override
    def authenticate(
        self, login: str | None, passcode: str | None, answered: Answered
    ) -> Principal | None:
        if not self.answers_logins:
            self.answered = answered
            return None
        found = self._broker.security.authenticate(login, passcode)
        if isinstance(found, Principal):
            return found
        found.run()
        return found.principal()

    @property
    @override
    def has_certificate(self) -> bool:
        return self._has_certificate

    @override
    def has_room(self) -> bool:
        return self._has_room()

    @override
    def bytes_taken(self) -> int:
        return self._taken()

    @override
    def wait_ended(self) -> None:
        self._waited()

    @override
    def refused(self, kind: Refusal, reason: str) -> None:
        """Keep why."""
        self.reasons.append(reason)


class Client:
    """A client that writes frames as text and reads them parsed."""

    def __init__(
        self,
        core: CoreUnderTest,
        version: str | None = "1.2",
        *,
        limits: ClientLimits | None = None,
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
        self.socket = SocketDouble(
            core.broker,
            self._write,
            self._close,
            taken=lambda: self.total if self.left is None else self.left,
        )
        self.session = StompConnection(
            core.broker,
            StompOptions(
                limits or ClientLimits(), prefixes=prefixes, virtual_topics=virtual_topics
            ),
            self.socket,
            lambda: self.now,
        )
        self._parser = FrameParser(ClientLimits())
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
        self.say(command, {name.replace("_", "-"): value for name, value in headers.items()}, body)

    def say(self, command: str, headers: Mapping[str, object], body: str = "") -> None:
        """Send a frame whose headers are called so."""
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
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
    version = client.session.version
    if version is Version.V1_2:
        client.send(command, id=frame.get(b"ack") or "", **headers)
    elif version is Version.V1_1:
        client.send(command, message_id=frame.get(b"message-id") or "", subscription="s", **headers)
    else:
        client.send(command, message_id=frame.get(b"message-id") or "", **headers)


def is_trimmed(character: str) -> bool:
    """Return whether a header's name must not begin or end with ``character``."""
    return character <= " " or character.isspace() or character in ":\ufeff"
