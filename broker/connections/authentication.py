"""A client's login: looked at when it comes, or after a while if others failed before."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from orthia.broker.connections.abc import Client
from orthia.broker.connections.clients import Clients
from orthia.broker.core.api import AuthenticationFailed, BrokerCore, BrokerError, Done, Principal
from orthia.config.clock import monotonic_seconds

_Client = TypeVar("_Client", bound=Client)


class Authentication(Generic[_Client]):
    """The logins of one connection, of which one at most is waiting."""

    __slots__ = ("_after", "_client", "_clients", "_core", "_loop", "_timer", "_waiting")

    def __init__(
        self, core: BrokerCore, clients: Clients[_Client], client: _Client, after: Done
    ) -> None:
        """``after`` follows each answer that came late."""
        self._core = core
        self._clients = clients
        self._client = client
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: str | None = None

    def ask(
        self,
        login: str | None,
        passcode: str | None,
        answered: Callable[[Principal | BrokerError], None],
    ) -> Principal | None:
        """Return who this is, or None, and have ``answered`` told later; raises BrokerError."""
        wait = self._clients.logins.begin(self._client.address, login, monotonic_seconds())
        if not wait:
            return self._ask(login, passcode)

        def ask_late() -> None:
            self._timer = None
            self._clients.logins.end(self._client.address, login)
            try:
                answered(self._ask(login, passcode))
            except BrokerError as error:
                answered(error)
            self._after()

        self._waiting = login
        self._timer = self._loop.call_later(wait, ask_late)
        return None

    def end(self) -> None:
        """Ask nothing for a client that is gone; its place stays taken for as long as if it stayed.

        Otherwise a guesser would only have to leave to be as quick as it likes.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._loop.call_at(
                self._timer.when(), self._clients.logins.end, self._client.address, self._waiting
            )
            self._timer = None

    def _ask(self, login: str | None, passcode: str | None) -> Principal:
        clients, address = self._clients, self._client.address
        try:
            principal = self._core.authenticate(login, passcode)
        except AuthenticationFailed:
            clients.logins.failed(address, login, monotonic_seconds())
            raise
        if not principal.unrestricted:
            clients.logins.succeeded(address, login)
        clients.log_in(self._client, principal)
        return principal
