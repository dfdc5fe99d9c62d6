"""CONNECT and CONNECTED: what a client asks for at its login, and what it is told."""

import uuid
from collections.abc import Callable
from importlib import metadata
from typing import Final, NamedTuple

from orthia.broker.core.api import BrokerCore
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, server_frame
from orthia.broker.protocols.stomp.heartbeats import negotiate
from orthia.broker.quoting import quoted

Authenticate = Callable[
    [str | None, str | None, Callable[[Principal | BrokerError], None]], Principal | None
]
"""Takes login and passcode and returns who that is, or raises BrokerError; or returns None, and
tells the outcome later to the last of its arguments."""
SERVER: Final = f"orthia/{metadata.version('orthia')}"


class Login(NamedTuple):
    """What a CONNECT says."""

    frame: Frame
    version: Version
    """The highest that both sides speak."""
    sends_ms: int
    """How often the broker is to send something; 0 is never."""
    expects_ms: int
    """How often the client promises to; 0 is never."""
    login: str | None
    passcode: str | None
    request_id: str | None
    client_id: str | None
    """Whose durable subscriptions the connection uses."""


def read_connect(frame: Frame, newest: Version) -> Login:
    """Return what a CONNECT says, where no version after ``newest`` is spoken.

    Raises ProtocolError.

    One without ``host`` is taken in 1.1 and 1.2 too: ordinary clients leave it out, and there is
    one virtual host.
    """
    frame.version = Version.V1_0  # CONNECT is never escaped
    accepted = (frame.get(b"accept-version") or "1.0").replace(" ", "").split(",")
    spoken = [version for version in Version if version.value <= newest.value]
    common = [version for version in spoken if version.value in accepted]
    if not common:
        supported = ", ".join(version.value for version in spoken)
        raise ProtocolError(
            f"accept-version {quoted(','.join(accepted))} has none of the supported {supported}"
        )
    sends_ms, expects_ms = negotiate(frame.get(b"heart-beat"))
    return Login(
        frame,
        common[-1],
        sends_ms,
        expects_ms,
        frame.get(b"login"),
        frame.get(b"passcode"),
        frame.get(b"request-id"),
        frame.get(b"client-id"),
    )


def asking(core: BrokerCore) -> Authenticate:
    """Return what asks the core at once."""

    def ask(
        login: str | None,
        passcode: str | None,
        _: Callable[[Principal | BrokerError], None],
    ) -> Principal:
        found = core.security.authenticate(login, passcode)
        if isinstance(found, Principal):
            return found
        found.run()
        return found.principal()

    return ask


def connected_frame(login: Login, session: str) -> bytes:
    """Return the CONNECTED that answers it; without a ``session`` one is drawn."""
    headers = [
        ("version", login.version.value),
        ("session", session or str(uuid.uuid4())),
        ("server", SERVER),
        ("heart-beat", f"{login.sends_ms},{login.expects_ms}"),
    ]
    if login.request_id is not None:
        headers.append(("response-id", login.request_id))
    return server_frame("CONNECTED", headers, b"", login.version)


class Client:
    """Who a connection acts for and what it speaks: nobody, and the newest, before its login."""

    __slots__ = ("newest", "principal", "version")

    def __init__(self) -> None:
        self.principal = Principal("", frozenset())
        self.version = Version.V1_2
        self.newest = Version.V1_2
        """The newest it may ask for."""
