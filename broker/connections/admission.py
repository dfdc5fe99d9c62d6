"""Admission: how many connections there may be, of one address, of one user, without a login.

A client that has not logged in, or whose connection is closing, makes room for newcomers; one that
has logged in stays. An address stands for all that one client can easily have: for IPv6, its /64
network. Users are counted where security is enabled: elsewhere a name is whatever a client says.
This module has no sockets and no clock; it is called on the event loop.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from orthia.broker.core.errors import ConnectionLimitExceeded, Refusal
from orthia.broker.quoting import quoted
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import ClientLimits

_RESERVED_SHARE: Final = 8
"""One in so many connections is reserved: no single user or address can take it."""


class _Connection(Protocol):
    """A connection that is counted."""

    @property
    def source(self) -> str:
        """Where it comes from: see ``orthia.broker.security.sources``."""


_Client = TypeVar("_Client", bound=_Connection)


@dataclass(frozen=True)
class NotAdmitted:
    """A connection that is not admitted."""

    kind: Refusal
    reason: str
    """For its ERROR; names the limit."""


@dataclass(frozen=True)
class MakesRoom(Generic[_Client]):
    """The connection that has to close for the one that is admitted."""

    leaver: _Client
    kind: Refusal
    reason: str


class Admission(Generic[_Client]):
    """Counts connections against their limits."""

    def __init__(
        self, limits: ClientLimits, most: int, users: Iterable[ResourceLimitSetting] = ()
    ) -> None:
        """``most`` is how many connections fit; ``users`` are the limits of single users."""
        share = max(1, most - -(-most // _RESERVED_SHARE))
        self._most = most
        self._of_address = _first_set(limits.max_connections_per_address, share)
        self._of_user = _first_set(limits.max_connections_per_user, share)
        self._unauthenticated = limits.max_unauthenticated_per_address
        self._of_named = {
            one.match: one.max_sessions for one in users if one.max_sessions is not None
        }
        self._clients: dict[_Client, str | None] = {}
        """The user of each; None for one that has none or is not counted as its user's."""
        self._sources: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self._leaving: dict[_Client, None] = {}
        """Those that make room, the oldest first."""
        self._leaving_by_source: dict[str, dict[_Client, None]] = {}

    def admit(self, client: _Client) -> NotAdmitted | MakesRoom[_Client] | None:
        """Admit a new connection, perhaps in place of another; or return why it is refused.

        A connection that makes room is forgotten here; the caller ends it.
        """
        source = client.source
        own = self._leaving_by_source.get(source, {})
        kind, reason = Refusal.CONNECTIONS, ""
        address_is_full = self._sources[source] >= self._of_address
        if len(self._clients) >= self._most:
            reason = f"the broker has max-connections {self._most} already"
            if not own and not address_is_full:
                own = self._leaving
        elif address_is_full:
            kind = Refusal.ADDRESS
            reason = (
                f"clients at {source} have max-connections-per-address {self._of_address} already"
            )
        elif len(own) >= self._unauthenticated:
            kind = Refusal.ADDRESS
            reason = (
                f"clients at {source} have max-unauthenticated-per-address"
                f" {self._unauthenticated} connections without a login already"
            )
        if not reason:
            self._enter(client)
            return None
        leaver = next(iter(own), None)
        if leaver is None:
            return NotAdmitted(kind, reason)
        self.forget(leaver)
        self._enter(client)
        return MakesRoom(leaver, kind, f"{reason}, and this one did not connect in time")

    def log_in(self, client: _Client, user: str | None) -> None:
        """Note that a client has logged in, as ``user`` if its name was verified.

        Raises ConnectionLimitExceeded, and then the client still makes room for newcomers.
        """
        if client not in self._clients:
            return
        if user is not None:
            limit, name = self._of_user, "max-connections-per-user"
            if user in self._of_named:
                limit, name = self._of_named[user], "max-sessions"
            if 0 <= limit <= self._users[user]:
                raise ConnectionLimitExceeded(f"user {quoted(user)} has {name} {limit} already")
            self._users[user] += 1
            self._clients[client] = user
        self._remain(client)

    def leaves(self, client: _Client) -> None:
        """Note that a connection is closing: it makes room, and its user no longer has it."""
        if client in self._clients:
            self._log_out(client)
            self._remain(client)
            self._make_leave(client)

    def forget(self, client: _Client) -> None:
        """Forget a connection that is gone."""
        if client not in self._clients:
            return
        self._log_out(client)
        self._remain(client)
        del self._clients[client]
        _count_down(self._sources, client.source)

    def _enter(self, client: _Client) -> None:
        self._clients[client] = None
        self._sources[client.source] += 1
        self._make_leave(client)

    def _log_out(self, client: _Client) -> None:
        user = self._clients[client]
        if user is not None:
            _count_down(self._users, user)
            self._clients[client] = None

    def _make_leave(self, client: _Client) -> None:
        self._leaving[client] = None
        self._leaving_by_source.setdefault(client.source, {})[client] = None

    def _remain(self, client: _Client) -> None:
        if client in self._leaving:
            del self._leaving[client]
            same = self._leaving_by_source[client.source]
            del same[client]
            if not same:
                del self._leaving_by_source[client.source]


def _first_set(configured: int | None, otherwise: int) -> int:
    return otherwise if configured is None else configured


def _count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
