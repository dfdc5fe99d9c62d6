# mypyc compiles this module.
"""CONNECT and STOMP: a client's login, from its frame to CONNECTED."""

import uuid
from dataclasses import replace
from importlib import metadata
from typing import Final, NamedTuple

from orthia.broker.core.errors import BrokerError
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Steps, Wait
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, server_frame
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.protocols.stomp.states import Event, Handlers
from orthia.broker.protocols.stomp.timeouts import Timeouts, negotiate
from orthia.broker.quoting import quoted

SERVER: Final = f"orthia/{metadata.version('orthia')}"


class Login(NamedTuple):
    """What a CONNECT says."""

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
        common[-1],
        sends_ms,
        expects_ms,
        frame.get(b"login"),
        frame.get(b"passcode"),
        frame.get(b"request-id"),
        frame.get(b"client-id"),
    )


def connected_frame(login: Login, session_id: str) -> bytes:
    """Return the CONNECTED that answers it; without a ``session_id`` one is drawn."""
    headers = [
        ("version", login.version.value),
        ("session", session_id or str(uuid.uuid4())),
        ("server", SERVER),
        ("heart-beat", f"{login.sends_ms},{login.expects_ms}"),
    ]
    if login.request_id is not None:
        headers.append(("response-id", login.request_id))
    return server_frame("CONNECTED", headers, b"", login.version)


class LoginHandler:
    """Logs a client in; before that, its parser takes what ``limits_before_login`` allow."""

    __slots__ = ("_parser", "_session", "_timeouts")

    def __init__(self, session: Session, parser: FrameParser, timeouts: Timeouts) -> None:
        self._session = session
        self._parser = parser
        self._timeouts = timeouts
        parser.limit_to(session.options.limits_before_login, " before CONNECTED")

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {"CONNECT": self.connect, "STOMP": self.connect}

    def connect(self, frame: Frame) -> Steps | None:
        """Do a CONNECT; raises ProtocolError and BrokerError.

        Returns steps that wait for a login which takes long.
        """
        session = self._session
        login = read_connect(frame, session.newest)
        session.version = session.output.version = self._parser.version = login.version
        answer = _Answer()
        principal = session.socket.authenticate(login.login, login.passcode, answer)
        if principal is None:
            return self._answered(answer, login, frame)
        self._log_in(principal, login, frame)
        return None

    def _answered(self, answer: "_Answer", login: Login, frame: Frame) -> Steps:
        yield answer.wait
        outcome = answer.outcome
        if isinstance(outcome, BrokerError):
            raise outcome
        if isinstance(outcome, Principal):
            self._log_in(outcome, login, frame)

    def _log_in(self, principal: Principal, login: Login, frame: Frame) -> None:
        session, options = self._session, self._session.options
        session.principal = replace(
            principal,
            client_id=login.client_id or None,
            validated_user=session.core.security.validated_user(principal),
        )
        self._timeouts.agree(
            login.sends_ms,
            login.expects_ms,
            session.clock(),
            ttl_ms=options.connection_ttl,
            silence_factor=options.silence_factor,
        )
        options.unknown_headers.look("CONNECT", frame.raw)
        limits = options.limits
        self._parser.limit_to(limits)
        if session.core.large is not None and limits.min_large_message_size > 0:
            self._parser.stream_from(limits.min_large_message_size, limits.max_large_message_size)
        session.move(Event.LOGGED_IN)
        session.output.write(connected_frame(login, principal.origin.connection))


class _Answer:
    """The outcome of a login that is answered later."""

    __slots__ = ("outcome", "wait")

    def __init__(self) -> None:
        self.outcome: Principal | BrokerError | None = None
        self.wait = Wait(lambda _: None)

    def __call__(self, outcome: Principal | BrokerError) -> None:
        self.outcome = outcome
        self.wait()
