"""The logins of operators over HTTP: by the users of clients, and delayed as these are."""

import asyncio
from dataclasses import replace
from typing import Final

from typing_extensions import override

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Origin, Principal
from orthia.broker.management.abc import OperatorLogins
from orthia.broker.security.sources import source_of
from orthia.config.clock import monotonic_seconds

_ACCEPTOR: Final = "http"
"""What the audit log says instead of an acceptor's name."""


class HttpLogins(OperatorLogins):
    """Logins at a live node; each request has its own, whose outcome is cached as a client's is."""

    def __init__(self, broker: Broker, acceptors: Acceptors) -> None:
        self._security = broker.security
        self._guard = acceptors.clients.logins
        self._verifications = acceptors.clients.verifications

    @override
    async def log_in(
        self, address: str, port: int | None, login: str | None, passcode: str | None
    ) -> Principal:
        wait = self._guard.begin(address, login, monotonic_seconds())
        if wait is not None:
            try:
                await asyncio.sleep(wait.seconds)
            finally:
                self._guard.end(wait)
        origin = Origin(address, port, _ACCEPTOR)
        try:
            principal = await self._principal(address, login, passcode)
        except AuthenticationFailed:
            if login is None and passcode is None:
                raise  # a browser asks without a login first, to hear that one is needed
            is_user = login is not None and self._security.knows(login)
            self._guard.failed(address, login, monotonic_seconds(), is_user=is_user)
            self._security.audit.login_failed(origin, login, _ACCEPTOR)
            raise
        if not principal.unrestricted:
            self._guard.succeeded(address, login)
        return replace(principal, origin=origin)

    async def _principal(self, address: str, login: str | None, passcode: str | None) -> Principal:
        found = self._security.authenticate(login, passcode)
        if isinstance(found, Principal):
            return found
        known = self._guard.known_as(address, login)
        async with self._verifications.turn(source_of(address), known):
            # One before it may have found out the same.
            found = self._security.authenticate(login, passcode)
            if isinstance(found, Principal):
                return found
            return await self._verifications.run(found, is_known=known is not None)
