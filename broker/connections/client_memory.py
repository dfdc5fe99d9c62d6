"""The bound of the memory that all clients together use, and whom to evict when it is reached.

Each connection counts its incomplete input, its open transactions, answers that wait for the store,
subscriptions, bytes written and not taken, and unacknowledged messages. While the sum is at
``max-client-bytes`` nothing is delivered; deliveries resume when there is room. A client that sends
more while it uses more than its share is evicted, and so is the largest of those that did next to
nothing for a while.

The clients of one user use at most seven eighths of it, and where security is disabled those of one
address: at that bound the same happens to them alone.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

from orthia.broker.core.limits.memory import Waiters
from orthia.broker.core.slices import LIGHT_OF_MANY_SECONDS, Usage

MIN_SHARE = 65_536
"""Bytes that a client may use however many are allowed; less once so many are connected that all of
them together would exceed the bound."""
IDLE_SECONDS = 10.0
"""How long a client must do next to nothing before it may be evicted."""
_RESERVED_SHARE = 8
"""One part in so many is reserved: no single user or address can use it."""
_ACTIVE_PART = 256
"""A client is active if it reads, sends or acknowledges more than this part of what it holds."""


class _Holding(Protocol):
    """A client that uses memory."""

    @property
    def held(self) -> int:
        """Bytes held for it."""

    @property
    def account(self) -> "Account":
        """The account it is counted in."""

    @property
    def activity(self) -> "Activity":
        """How active it is."""


class _Receiver(Protocol):
    """A client that gets deliveries."""

    def resume_deliveries(self) -> None:
        """Resume deliveries: there is room. Count what is held for the client then."""


_Client = TypeVar("_Client", bound=_Holding)


class Account:
    """What the clients of one user, or of one address, use together."""

    __slots__ = ("clients", "limit", "name", "usage", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        """Their name at the beginning of an error or a log line."""
        self.limit = limit
        self.used = 0
        self.clients = 0
        self.usage = Usage(light_seconds=LIGHT_OF_MANY_SECONDS)
        """How much of the loop's time they had lately."""

    @property
    def is_full(self) -> bool:
        """Whether deliveries to them stop."""
        return self.used >= self.limit


class ClientMemory:
    """What all clients use, against its limit."""

    __slots__ = ("_accounts", "_of_one", "_waiters", "limit", "share", "unauthenticated", "used")

    def __init__(self, limit: int, max_connections: int, *, least_of_one: int = 0) -> None:
        """The clients of one user may use ``least_of_one`` bytes in any case: the largest frame."""
        self._accounts: dict[str, Account] = {}
        self._of_one = max(limit - limit // _RESERVED_SHARE, least_of_one)
        self.unauthenticated = Account("clients without a login", limit)
        """The account of clients without a login, each of which may use next to nothing."""
        self.limit = limit
        self.share = max(MIN_SHARE, limit // max_connections)
        self.used = 0
        self._waiters: Waiters[_Receiver] = Waiters()

    @property
    def is_full(self) -> bool:
        """Whether all deliveries stop."""
        return self.used >= self.limit

    def enter(self, name: str) -> Account:
        """Return the account of a client that counts under ``name`` until it leaves."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name, self._of_one)
        account.clients += 1
        return account

    def leave(self, account: Account, held: int) -> None:
        """Note that a client which ``held`` so many bytes is gone, or changes its account."""
        account.used -= held
        if account is not self.unauthenticated:
            account.clients -= 1
            if not account.clients:
                del self._accounts[account.name]

    def refuse(self, client: _Receiver) -> bool:
        """Note that a client gets no delivery because there is no room; return False."""
        return self._waiters.note(client)

    def forget(self, client: _Receiver) -> None:
        """Forget a client that is gone."""
        self._waiters.forget(client)

    def relieve(self) -> None:
        """Resume the deliveries of clients that were refused, while there is room."""
        self._waiters.relieve(lambda: not self.is_full, lambda client: client.resume_deliveries())

    def victim(self, clients: Collection[_Client]) -> _Client | None:
        """Return the client to evict; None if there is room, or all clients are active."""
        is_full = self.is_full
        if not is_full and not any(one.is_full for one in self._accounts.values()):
            return None

        def is_large(one: _Client) -> bool:
            # With more clients than shares, all may use less than a share, and there is no room.
            of, limit = (
                (len(clients), self.limit) if is_full else (one.account.clients, one.account.limit)
            )
            return one.held > self.share or one.held >= limit // max(1, of)

        idle = (
            one
            for one in clients
            if one.activity.is_idle and (is_full or one.account.is_full) and is_large(one)
        )
        return max(idle, key=lambda one: one.held, default=None)


class Activity:
    """How much a client reads, sends and acknowledges, judged every ``IDLE_SECONDS``."""

    __slots__ = ("_moved", "_since", "is_idle")

    def __init__(self, now: float) -> None:
        self._since = now
        self._moved = 0
        self.is_idle = False

    def forgive(self, seconds: float) -> None:
        """Leave out ``seconds`` in which this node stood still."""
        self._since += seconds

    def look(self, now: float, moved: int, held: int) -> None:
        """Judge again if it is time; ``moved`` is all it read, sent and acknowledged so far."""
        if now - self._since < IDLE_SECONDS:
            return
        self.is_idle = moved - self._moved <= held // _ACTIVE_PART
        self._since = now
        self._moved = moved
