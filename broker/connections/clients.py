"""The clients of a live node: admission, users, and what they hold."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from orthia.broker.connections.abc import Client
from orthia.broker.connections.admission import Admission, MakesRoom, NotAdmitted
from orthia.broker.connections.client_memory import ClientMemory
from orthia.broker.connections.eviction import Eviction
from orthia.broker.connections.turn_reads import TurnReads
from orthia.broker.connections.verifications import Verifications
from orthia.broker.core.errors import Refusal
from orthia.broker.core.failures import by_itself
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.refusals import Refusals
from orthia.broker.quoting import quoted
from orthia.broker.security.logins import (
    MAX_WAITING_OPERATORS,
    MAX_WAITING_OPERATORS_AT_ADDRESS,
    LoginGuard,
)
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import ClientLimits
from orthia.journal.journal import MessageJournal

_Client = TypeVar("_Client", bound=Client)


class Clients(Generic[_Client]):
    """All connections, of all acceptors."""

    def __init__(
        self,
        limits: ClientLimits,
        journal: MessageJournal,
        users: Iterable[ResourceLimitSetting],
        refused: Callable[[str], None],
    ) -> None:
        """``users`` are the limits of single users.

        ``refused`` is called with the reason of each refusal of a client, for a metric.
        """
        self.limits = limits
        self.memory = ClientMemory(
            limits.max_client_bytes, limits.max_connections, least_of_one=limits.max_body_bytes
        )
        self.logins = LoginGuard(limits.max_login_delay)
        self.operator_logins = LoginGuard(
            limits.max_login_delay, MAX_WAITING_OPERATORS, MAX_WAITING_OPERATORS_AT_ADDRESS
        )
        """Of their own: a page that asks again and again with an old password delays no client."""
        self.verifications = Verifications()
        self.refusals = Refusals(refused)
        self.eviction = Eviction(self.memory, self.refusals)
        self.reads = TurnReads[_Client](
            lambda callback: asyncio.get_running_loop().call_soon(callback), lambda: self._clients
        )
        self.are_accepted = False
        """Whether clients may connect; not those accepted by the system just before a stop."""
        self._are_read = True
        self._journal = journal
        self._users = tuple(users)
        self._admission = Admission[_Client](limits, limits.max_connections, self._users)
        self._clients: set[_Client] = set()
        self._principals: dict[_Client, Principal] = {}
        """Those whose user was verified."""
        self._logged_in: dict[str, tuple[_Client, Principal]] = {}
        """All that have logged in, by the id of their connection."""
        self._ids: dict[_Client, str] = {}
        """Those ids, by connection."""
        self._ending: dict[_Client, float] = {}
        """When the login of each ends that is not for ever, on the monotonic clock."""
        self._all_gone: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def takes_requests(self) -> bool:
        """Whether clients are to be read from."""
        return self._are_read and not self._journal.is_full

    def all(self) -> list[_Client]:
        """Return them, in no particular order."""
        return list(self._clients)

    def logged_in(self) -> list[tuple[_Client, Principal]]:
        """Return those that have logged in, and for whom each acts."""
        return list(self._logged_in.values())

    def with_id(self, connection: str) -> _Client | None:
        """Return the client of the connection that has an id; None if there is none."""
        return self._logged_in.get(connection, (None,))[0]

    def accept(self, most: int) -> None:
        """Start accepting connections, at most ``most``."""
        self.are_accepted = True
        self._admission = Admission[_Client](self.limits, most, self._users)

    def stop_reading(self) -> None:
        """Stop accepting clients and reading from them."""
        self.are_accepted = False
        self._are_read = False

    def when_gone(self, all_gone: Callable[[], None]) -> None:
        """Call ``all_gone`` whenever the last of them is gone."""
        self._all_gone = all_gone

    def admit(self, client: _Client) -> NotAdmitted | None:
        """Admit a new connection, or return why it is refused."""
        acceptor = client.acceptor
        allowed = acceptor.settings.connections_allowed
        if 0 <= allowed <= acceptor.connections:
            name = acceptor.settings.name
            reason = f"acceptor {name!r} has connectionsAllowed {allowed} already"
            return NotAdmitted(Refusal.CONNECTIONS, reason)
        found = self._admission.admit(client)
        if isinstance(found, NotAdmitted):
            return found
        if isinstance(found, MakesRoom):
            self.forget(found.leaver)
            with by_itself("telling a client that makes room for another failed; it was cut off"):
                try:
                    found.leaver.turn_away(found.kind, found.reason)
                except Exception:
                    found.leaver.abort()
                    raise
        self._clients.add(client)
        client.is_admitted = True
        acceptor.connections += 1
        return None

    def log_in(self, client: _Client, principal: Principal) -> None:
        """Count a client as its user's; as its address' where the user is not verified.

        Raises ConnectionLimitExceeded, and then it still makes room for others.
        """
        user = None if principal.unrestricted else principal.name
        self._admission.log_in(client, user)
        if client in self._clients:
            self._ids[client] = principal.origin.connection
            self._logged_in[principal.origin.connection] = client, principal
        if user is not None and client in self._clients:
            self._principals[client] = principal
            if principal.valid_until is not None:
                self._ending[client] = principal.valid_until
        name = (
            f"clients at {client.source}" if user is None else f"the clients of user {quoted(user)}"
        )
        if client.is_admitted:
            self.memory.leave(client.account, client.held)
            client.account = self.memory.enter(name)
            client.account.used += client.held
            client.usage.account = client.account.usage

    def end_users(self, names: Collection[str], reason: str) -> int:
        """End the connections of these users with ``reason``; return how many there were.

        Their earlier logins count as never made.
        """
        self.logins.forget(names)
        self.operator_logins.forget(names)
        theirs = [one for one, who in self._principals.items() if who.name in names]
        for client in theirs:
            client.end(reason)
        return len(theirs)

    def is_leaving(self, client: _Client) -> None:
        """Note that a connection is closing: it makes room for a newcomer."""
        self._admission.leaves(client)

    def forget(self, client: _Client) -> None:
        """Forget a connection that is gone."""
        self.memory.used -= client.held
        self.memory.leave(client.account, client.held)
        client.account = self.memory.unauthenticated
        self.memory.forget(client)
        client.held = 0
        client.is_admitted = False
        self._admission.forget(client)
        if client in self._clients:
            client.acceptor.connections -= 1
        self._clients.discard(client)
        self._principals.pop(client, None)
        self._logged_in.pop(self._ids.pop(client, ""), None)
        self._ending.pop(client, None)
        if not self._clients:
            self._all_gone()

    def tick(self, now: float) -> None:
        """End logins that are over, evict, and log what was held back; ``now`` is in seconds."""
        for client in [one for one, until in self._ending.items() if now >= until]:
            del self._ending[client]
            client.end("the token of this login has ended; log in again with a new one")
        self.eviction.make_room(self._clients)
        self.logins.tick(now)
        self.operator_logins.tick(now)
        self.refusals.tick(now)
