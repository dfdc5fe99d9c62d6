# mypyc compiles this module.
"""CONNECT and STOMP: a client's login, from its frame to CONNECTED."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from orthia.broker.core.api import BrokerCore, Done
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.login import (
    Authenticate,
    Client,
    Login,
    connected_frame,
    read_connect,
)
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.outbox import Outbox
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.timeouts import Timeouts


class LoginHandler:
    """Logs a client in; before that, its parser takes what ``limits_before_login`` allow."""

    __slots__ = (
        "_authenticate", "_client", "_clock", "_core", "_go_on", "_logged_in", "_options",
        "_outbox", "_parser", "_refuse", "_timeouts",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        client: Client,
        options: StompOptions,
        parser: FrameParser,
        timeouts: Timeouts,
        outbox: Outbox,
        *,
        clock: Callable[[], float],
        authenticate: Authenticate,
        logged_in: Done,
        go_on: Done,
        refuse: Callable[[BrokerError, Frame], None],
    ) -> None:
        """``logged_in`` comes before CONNECTED is written.

        A login that is answered later is followed by ``go_on`` or ``refuse``.
        """
        self._core = core
        self._client = client
        self._options = options
        self._parser = parser
        self._timeouts = timeouts
        self._outbox = outbox
        self._clock = clock
        self._authenticate = authenticate
        self._logged_in = logged_in
        self._go_on = go_on
        self._refuse = refuse
        parser.limit_to(options.limits_before_login, " before CONNECTED")

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {"CONNECT": self.connect, "STOMP": self.connect}

    def connect(self, frame: Frame) -> None:
        """Do a CONNECT; raises ProtocolError and BrokerError."""
        login = read_connect(frame, self._client.newest)
        self._client.version = self._parser.version = login.version
        principal = self._authenticate(login.login, login.passcode, partial(self._answered, login))
        if principal is not None:
            self._log_in(login, principal)

    def _answered(self, login: Login, outcome: Principal | BrokerError) -> None:
        if self._outbox.is_over:
            return
        if isinstance(outcome, BrokerError):
            self._refuse(outcome, login.frame)
            return
        self._log_in(login, outcome)
        self._go_on()

    def _log_in(self, login: Login, principal: Principal) -> None:
        self._client.principal = replace(
            principal,
            client_id=login.client_id or None,
            validated_user=self._core.security.validated_user(principal),
        )
        options = self._options
        self._timeouts.agree(
            login,
            self._clock(),
            ttl_ms=options.connection_ttl,
            silence_factor=options.silence_factor,
        )
        options.unknown_headers.look("CONNECT", login.frame.raw)
        limits = options.limits
        self._parser.limit_to(limits)
        if self._core.large is not None and limits.min_large_message_size > 0:
            self._parser.stream_from(limits.min_large_message_size, limits.max_large_message_size)
        self._logged_in()
        self._outbox.write(connected_frame(login, principal.origin.connection))
