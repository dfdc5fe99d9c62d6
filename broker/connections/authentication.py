"""The login of one client: checked at once, or after a delay if earlier logins failed.

A check that takes long runs on another thread, when the client's source has its turn.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic, TypeVar

from orthia.broker.connections.abc import Client
from orthia.broker.connections.clients import Clients
from orthia.broker.core.api import Done
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import (
    AuthenticationFailed,
    BrokerError,
    CertificateUnknown,
    LoginNotChecked,
)
from orthia.broker.core.identity import Origin, Principal, Verification
from orthia.broker.security.logins import LoginWait
from orthia.config.clock import monotonic_seconds

_Client = TypeVar("_Client", bound=Client)
LOGGER = logging.getLogger("orthia.broker")
_NOT_CHECKED: Final = "this node cannot check the login, for a reason its log says; try again later"
_Answered = Callable[[Principal | BrokerError], None]


class Authentication(Generic[_Client]):
    """The logins of one connection; at most one is being checked."""

    __slots__ = (
        "_after",
        "_client",
        "_clients",
        "_core",
        "_id",
        "_loop",
        "_principal",
        "_task",
        "_waiting",
    )

    def __init__(
        self, core: Broker, clients: Clients[_Client], client: _Client, after: Done
    ) -> None:
        """``after`` is called after each answer that came later."""
        self._core = core
        self._clients = clients
        self._client = client
        self._after = after
        self._id = str(uuid.uuid4())
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._waiting: tuple[LoginWait, asyncio.TimerHandle] | None = None
        self._principal: Principal | None = None
        """The user that has logged in."""

    @property
    def user(self) -> str | None:
        """Who has logged in; None before that."""
        return None if self._principal is None else self._principal.name

    def ask(self, login: str | None, passcode: str | None, answered: _Answered) -> Principal | None:
        """Return whose login this is; or None, and call ``answered`` later. Raises BrokerError.

        A certificate may identify the client instead.
        """
        principal = self._known_by_certificate(login, passcode)
        if principal is not None:
            return principal
        wait = self._begin(login)
        if wait is not None:
            self._wait(wait, login, passcode, answered)
            return None
        found = self._look(login, passcode)
        if isinstance(found, Principal):
            return found
        self._verify(login, passcode, answered, has_waited=False)
        return None

    def end(self) -> None:
        """Drop the login of a client that is gone; its delay goes on as if it had stayed.

        Otherwise a guesser would only have to reconnect to guess as fast as it likes.
        """
        if self._waiting is not None:
            wait, timer = self._waiting
            timer.cancel()
            self._loop.call_at(timer.when(), self._clients.logins.end, wait)
            self._waiting = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._principal is not None:
            self._core.security.audit.disconnected(self._principal)
            self._principal = None

    def _begin(self, login: str | None) -> LoginWait | None:
        return self._clients.logins.begin(self._client.address, login, monotonic_seconds())

    def _wait(
        self, wait: LoginWait, login: str | None, passcode: str | None, answered: _Answered
    ) -> None:
        """Check a login after its delay."""

        def look() -> None:
            self._waiting = None
            self._clients.logins.end(wait)
            try:
                found = self._look(login, passcode)
            except Exception as error:  # noqa: BLE001 - the client gets an answer in any case
                self._answer(answered, self._refusal(error))
                return
            if isinstance(found, Principal):
                self._answer(answered, found)
            else:
                self._verify(login, passcode, answered, has_waited=True)

        self._task = None
        self._waiting = wait, self._loop.call_later(wait.seconds, look)

    def _verify(
        self, login: str | None, passcode: str | None, answered: _Answered, *, has_waited: bool
    ) -> None:
        """Check a login on another thread."""

        async def verify() -> None:
            wait, outcome = None, None
            try:
                known = self._clients.logins.known_as(self._client.address, login)
                async with self._clients.verifications.turn(self._client.source, known):
                    # Logins before it may have failed meanwhile, or been the same.
                    wait = None if has_waited else self._begin(login)
                    if wait is None:
                        outcome = await self._verified(login, passcode, is_known=known is not None)
            except Exception as error:  # noqa: BLE001 - the client gets an answer in any case
                self._answer(answered, self._refusal(error))
                return
            if wait is not None:
                self._wait(wait, login, passcode, answered)
            elif outcome is not None:
                self._answer(answered, outcome)

        self._task = self._loop.create_task(verify())

    def _look(self, login: str | None, passcode: str | None) -> Principal | Verification:
        try:
            found = self._core.security.authenticate(login, passcode)
        except AuthenticationFailed:
            self._failed(login)
            raise
        return self._succeeded(login, found) if isinstance(found, Principal) else found

    async def _verified(
        self, login: str | None, passcode: str | None, *, is_known: bool
    ) -> Principal:
        found = self._look(login, passcode)
        if isinstance(found, Principal):
            return found
        try:
            principal = await self._clients.verifications.run(found, is_known=is_known)
        except AuthenticationFailed:
            self._failed(login)
            raise
        return self._succeeded(login, principal)

    def _known_by_certificate(self, login: str | None, passcode: str | None) -> Principal | None:
        """Return the user of the client's certificate; raises CertificateUnknown.

        Certificates cannot be guessed, so there is no delay.
        """
        certificate = self._client.certificate()
        if certificate is None:
            return None
        try:
            principal = self._core.security.authenticate_certificate(certificate, login, passcode)
        except CertificateUnknown:
            acceptor = self._client.acceptor.settings.name
            self._core.security.audit.login_failed(self._origin, None, acceptor)
            raise
        return None if principal is None else self._admit(principal)

    def _refusal(self, error: Exception) -> BrokerError:
        """Return the error that a client is told; log one that is this node's own."""
        if isinstance(error, BrokerError):
            return error
        if isinstance(error, MemoryError):
            raise error  # the node exits
        LOGGER.error(
            "checking the login of a client at %s failed: %r; refusing the login for now",
            self._client.address,
            error,
        )
        return LoginNotChecked(_NOT_CHECKED)

    @property
    def _origin(self) -> Origin:
        return Origin(self._client.address, self._client.port, self._id)

    def _failed(self, login: str | None) -> None:
        is_user = login is not None and self._core.security.knows(login)
        self._clients.logins.failed(
            self._client.address, login, monotonic_seconds(), is_user=is_user
        )
        acceptor = self._client.acceptor.settings.name
        self._core.security.audit.login_failed(self._origin, login, acceptor)

    def _succeeded(self, login: str | None, principal: Principal) -> Principal:
        if principal.refused_login is not None:
            # Otherwise nobody who guesses passcodes where guests are accepted would be delayed.
            self._failed(login)
        elif not principal.unrestricted:
            self._clients.logins.succeeded(self._client.address, login)
        return self._admit(principal)

    def _admit(self, principal: Principal) -> Principal:
        principal = replace(principal, origin=self._origin)
        self._clients.log_in(self._client, principal)
        self._core.security.audit.logged_in(principal, self._client.acceptor.settings.name)
        self._principal = principal
        return principal

    def _answer(self, answered: _Answered, outcome: Principal | BrokerError) -> None:
        self._task = None
        answered(outcome)
        self._after()
