"""The logins of operators over HTTP: by the users of clients, and delayed as these are.

Failed ones delay logins over HTTP only: a page that is left open and asks again and again with an
old password must not delay clients of the same address.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import AuthenticationFailed, CertificateUnknown
from orthia.broker.core.identity import Origin, Principal, Verification
from orthia.broker.management.abc import Caller, OperatorLogins
from orthia.broker.security.sources import source_of
from orthia.broker.security.users import WRONG, UserDirectory
from orthia.config.clock import monotonic_seconds
from orthia.config.security_settings import User

_ACCEPTOR: Final = "http"
"""What the audit log says instead of an acceptor's name."""
_REMEMBERED: Final = 16
"""Logins of a node's own operators whose outcome is cached, as that of others is."""
_REMEMBERED_SECONDS: Final = 10.0


class HttpLogins(OperatorLogins):
    """Logins at a live node; each request has its own, whose outcome is cached as a client's is."""

    def __init__(
        self, broker: Broker, acceptors: Acceptors, operators: Sequence[User] = ()
    ) -> None:
        """``operators`` log in where clients need no login; without any, whoever comes is one."""
        self._security = broker.security
        self._guard = acceptors.clients.operator_logins
        self._verifications = acceptors.clients.verifications
        self._operators: UserDirectory | None = None
        if operators:
            self._operators = UserDirectory(
                operators,
                monotonic_seconds,
                cache_size=_REMEMBERED,
                cache_seconds=_REMEMBERED_SECONDS,
            )

    @override
    async def log_in(self, caller: Caller) -> Principal:
        origin = Origin(caller.address, caller.port, _ACCEPTOR)
        principal = self._known_by_certificate(caller, origin)
        if principal is None:
            principal = await self._known_by_passcode(caller, origin)
        return replace(principal, origin=origin)

    def _known_by_certificate(self, caller: Caller, origin: Origin) -> Principal | None:
        """Return the user of a certificate; None where login and passcode decide.

        Certificates cannot be guessed, so there is no delay.
        """
        if caller.certificate is None or self._operators is not None:
            return None
        try:
            return self._security.authenticate_certificate(
                caller.certificate, caller.login, caller.passcode
            )
        except CertificateUnknown:
            self._security.audit.login_failed(origin, None, _ACCEPTOR)
            raise

    async def _known_by_passcode(self, caller: Caller, origin: Origin) -> Principal:
        address, login = caller.address, caller.login
        wait = self._guard.begin(address, login, monotonic_seconds())
        if wait is not None:
            try:
                await asyncio.sleep(wait.seconds)
            finally:
                self._guard.end(wait)
        try:
            principal = _no_guest(await self._principal(address, login, caller.passcode))
        except AuthenticationFailed:
            if login is None and caller.passcode is None:
                raise  # a browser asks without a login first, to hear that one is needed
            is_user = login is not None and self._knows(login)
            self._guard.failed(address, login, monotonic_seconds(), is_user=is_user)
            self._security.audit.login_failed(origin, login, _ACCEPTOR)
            raise
        if not principal.unrestricted:
            self._guard.succeeded(address, login)
        return principal if self._operators is None else replace(principal, unrestricted=True)

    async def _principal(self, address: str, login: str | None, passcode: str | None) -> Principal:
        found = self._authenticate(login, passcode)
        if isinstance(found, Principal):
            return found
        known = self._guard.known_as(address, login)
        async with self._verifications.turn(source_of(address), known):
            # One before it may have found out the same.
            found = self._authenticate(login, passcode)
            if isinstance(found, Principal):
                return found
            return await self._verifications.run(found, is_known=known is not None)

    def _authenticate(self, login: str | None, passcode: str | None) -> Principal | Verification:
        if self._operators is not None:
            return self._operators.authenticate(login or "", passcode or "")
        return self._security.authenticate(login, passcode)

    def _knows(self, login: str) -> bool:
        return (self._operators or self._security).knows(login)


def _no_guest(principal: Principal) -> Principal:
    """Return whose passcode it is; raises AuthenticationFailed for a guest by a wrong one.

    So a browser asks for the right one.
    """
    if principal.refused_login is not None:
        raise AuthenticationFailed(WRONG)
    return principal
