"""What all clients together make the broker hold, and who has to go when that is too much.

Counted for each connection: a frame that is not whole yet, open transactions, receipts that wait
for the store, subscriptions, what was written and not taken, messages not acknowledged. While the
sum is at ``max-client-bytes``, nothing is delivered, and those that would have got something go on
when there is room; a client that sends more, and holds more than its share, is ended; and of those
that did next to nothing for a while the one that holds most.

The clients of one user hold seven eighths of it at most, and where no login is asked for those of
one address: beyond that the same is done, to them alone.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

from orthia.broker.core.limits.memory import Refused

MIN_SHARE = 65_536
"""What a client may make the broker hold, however many may come; less while so many are there that
all have no room with that."""
IDLE_SECONDS = 10.0
"""How long a client must do next to nothing before it is ended for what it holds."""
_ONE_OF_EIGHT = 8
"""One part of so many is kept for others than the user or address that holds most."""
_ACTIVE_PART = 256
"""A client is active when it reads, sends or acknowledges this part of what it holds."""


class _Holding(Protocol):
    """A client, as far as memory goes."""

    @property
    def held(self) -> int:
        """Bytes held for it."""

    @property
    def account(self) -> "Account":
        """With whom it shares a bound."""

    @property
    def activity(self) -> "Activity":
        """What it does."""


class _Receiver(Protocol):
    """A client, as far as deliveries go."""

    def resume_deliveries(self) -> None:
        """Deliver again: there is room. What is held for the client by then is counted."""


_Client = TypeVar("_Client", bound=_Holding)


class Account:
    """What the clients of one user or address hold together."""

    __slots__ = ("clients", "limit", "name", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        """What they are called at the beginning of an error or a line of the log."""
        self.limit = limit
        self.used = 0
        self.clients = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing may be delivered to them."""
        return self.used >= self.limit


class ClientMemory:
    """The sum, against its limit."""

    __slots__ = ("_accounts", "_of_one", "_refused", "limit", "share", "unauthenticated", "used")

    def __init__(self, limit: int, max_connections: int, *, least_of_one: int = 0) -> None:
        """The clients of one user may hold ``least_of_one`` in any case: the largest frame."""
        self._accounts: dict[str, Account] = {}
        self._of_one = max(limit - limit // _ONE_OF_EIGHT, least_of_one)
        self.unauthenticated = Account("clients without a login", limit)
        """Of those that are nobody yet, who may hold next to nothing each."""
        self.limit = limit
        self.share = max(MIN_SHARE, limit // max_connections)
        self.used = 0
        self._refused: Refused[_Receiver] = Refused()

    @property
    def is_full(self) -> bool:
        """Whether nothing may be delivered."""
        return self.used >= self.limit

    def enter(self, name: str) -> Account:
        """Return the account of a client that is counted under ``name`` until it leaves."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name, self._of_one)
        account.clients += 1
        return account

    def leave(self, account: Account, held: int) -> None:
        """Note that a client which ``held`` so much is gone, or is counted as somebody else."""
        account.used -= held
        if account is not self.unauthenticated:
            account.clients -= 1
            if not account.clients:
                del self._accounts[account.name]

    def refuse(self, client: _Receiver) -> bool:
        """Note that a client gets nothing because there is no room; return False."""
        return self._refused.note(client)

    def forget(self, client: _Receiver) -> None:
        """Note that a client is gone."""
        self._refused.forget(client)

    def relieve(self) -> None:
        """Have clients go on that were refused, while there is room."""
        self._refused.relieve(lambda: not self.is_full, lambda client: client.resume_deliveries())

    def victim(self, clients: Collection[_Client]) -> _Client | None:
        """Return who is to be ended to make room; None if there is room, or all are active."""
        is_full = self.is_full
        if not is_full and not any(one.is_full for one in self._accounts.values()):
            return None

        def is_large(one: _Client) -> bool:
            # Where there are more clients than shares, all may have less than one, and no room.
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
    """How much a client reads, sends and acknowledges, looked at every so often."""

    __slots__ = ("_moved", "_since", "is_idle")

    def __init__(self, now: float) -> None:
        self._since = now
        self._moved = 0
        self.is_idle = False

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which nothing could be done: the node stood still."""
        self._since += seconds

    def look(self, now: float, moved: int, held: int) -> None:
        """Judge anew if it is time; ``moved`` is all it read, sent and acknowledged so far."""
        if now - self._since < IDLE_SECONDS:
            return
        self.is_idle = moved - self._moved <= held // _ACTIVE_PART
        self._since = now
        self._moved = moved
