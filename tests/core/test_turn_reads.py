"""How much is read in one turn of the loop, and who is left out of the rest of it."""

from collections.abc import Callable

from orthia.broker.connections.client_memory import Account
from orthia.broker.connections.turn_reads import MOST_BYTES, TurnReads

READ = 131_072
"""Bytes of a read that counts."""


class Sender:
    """A client whose socket always has something."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.read_in = 0
        self.is_read = True

    def hold_reading(self) -> bool:
        """Do not read from it."""
        was_read, self.is_read = self.is_read, False
        return was_read

    def update_reading(self) -> None:
        """Read from it again."""
        self.is_read = True
        resumed.append(self)


resumed: list[Sender] = []
"""Those that are read from again, in order."""


class Loop:
    """Turns in which each socket is read from once, in the order in which the system has them."""

    def __init__(self, *senders: Sender) -> None:
        self.senders = [*senders]
        self._due: list[Callable[[], None]] = []
        self._reads = TurnReads[Sender](self._due.append, lambda: self.senders)
        resumed.clear()

    def turn(self) -> list[Sender]:
        """Read once, and return from whom."""
        read = []
        for one in [*self.senders]:
            if one.is_read:
                read.append(one)
                self._reads.came(one, READ)
        resumed.clear()
        for callback in self._due:
            callback()
        self._due.clear()
        # The system tells of those last that are asked for last.
        self.senders = [one for one in self.senders if one not in resumed] + resumed
        return read


def test_a_turn_reads_no_more_than_it_may_and_leaves_nobody_out() -> None:
    """Of many sockets of one account each is read from before any is a second time."""
    account = Account("one", 1)
    loop = Loop(*(Sender(account) for _ in range(1_000)))
    most = MOST_BYTES // READ
    seen: list[Sender] = []
    while len(seen) < 1_000:
        read = loop.turn()
        assert len(read) <= most
        assert all(one.is_read for one in loop.senders)
        seen += read
    assert len(set(seen[: 1_000 - most])) == 1_000 - most


def test_other_accounts_are_read_from_in_every_turn() -> None:
    """However much somebody sends by how many sockets."""
    many, alone = Account("many", 1), Sender(Account("alone", 1))
    loop = Loop(*(Sender(many) for _ in range(1_000)), alone)
    for _ in range(20):
        assert alone in loop.turn()


def test_an_account_that_sends_much_late_in_a_turn_is_held_too() -> None:
    """Beyond its first read."""
    first, second = Account("first", 1), Account("second", 1)
    loop = Loop(*(Sender(first) for _ in range(1_000)), *(Sender(second) for _ in range(1_000)))
    read = loop.turn()
    assert sum(one.account is second for one in read) == 1
