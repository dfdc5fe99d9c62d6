"""How many bytes are read in one turn of the loop, of whose clients.

The loop reads once from every socket that has something. That is the system's work, which no task
of ``orthia.broker.core.slices`` divides: 2,700 sockets with 100 KB each took 230 ms. So once
``MOST_BYTES`` came in one turn, those are not read from until the next one whose accounts (their
users, or addresses where there is no login) sent much in this one. Who sends little is read from in
every turn.

Reads of up to ``LITTLE_BYTES`` do not count, and cost nothing here.
"""

from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from orthia.broker.connections.client_memory import Account

LITTLE_BYTES: Final = 4_096
"""Of so many bytes each, all the sockets there may be bring no more than a turn may take."""
MOST_BYTES: Final = 16_777_216
"""As many bytes as are read in some 20 ms."""


class _Sender(Protocol):
    """A client whose socket is read from."""

    account: Account
    """The account it counts in."""
    read_in: int
    """The latest turn, by number, in which much came from it; 0 if there was none."""

    def hold_reading(self) -> bool:
        """Do not read from it; return whether it was read from so far."""

    def update_reading(self) -> None:
        """Read from it again, unless something else forbids it."""


_Client = TypeVar("_Client", bound=_Sender)


class TurnReads(Generic[_Client]):
    """What came in the present turn, and who is not read from until the next."""

    __slots__ = ("_accounts", "_all", "_bytes", "_call_soon", "_held", "_turn")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        every: Callable[[], Iterable[_Client]],
    ) -> None:
        """``call_soon`` calls back in the loop's next turn, before that reads; ``every`` client."""
        self._call_soon = call_soon
        self._all = every
        self._turn = 0
        self._bytes = 0
        self._accounts: set[Account] = set()
        """Those that sent much in this turn."""
        self._held: list[_Client] = []

    def came(self, client: _Client, size: int) -> None:
        """Note a read of more than ``LITTLE_BYTES``."""
        if not self._bytes:
            self._turn += 1
            self._call_soon(self._end_turn)
        self._bytes += size
        client.read_in = self._turn
        accounts = self._accounts
        is_new = client.account not in accounts
        accounts.add(client.account)
        if self._bytes < MOST_BYTES:
            return
        if self._bytes - size < MOST_BYTES:
            self._held += [
                one for one in self._all() if one.account in accounts and one.hold_reading()
            ]
        elif is_new:
            self._held += [
                one for one in self._all() if one.account is client.account and one.hold_reading()
            ]

    def _end_turn(self) -> None:
        """Read from all again, from those first that were not read from for longest."""
        held, self._held = self._held, []
        self._bytes = 0
        self._accounts.clear()
        for one in sorted(held, key=lambda client: client.read_in):
            one.update_reading()
