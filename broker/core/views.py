"""How far consumers with one selector have looked through their queue, and what they found.

A view looks at three things, each in order of seq: what was given back, what is in memory, and what
is in the table only. Of the last it keeps what it found in one window, until its consumers take it.
"""

from collections import OrderedDict
from typing import Any, Final

from orthia.broker.core.cursor import Cursor
from orthia.broker.core.groups import Groups
from orthia.broker.core.memory import MemoryBudget, size_in_memory
from orthia.broker.core.selectors import Said, Selector
from orthia.broker.core.subscriptions import Subscription
from orthia.broker.core.taken import Taken
from orthia.broker.core.turns import InTurn
from orthia.journal.windows import StoredMessage

MATCH_COST: Final = 4
"""How many deliveries matching a message is worth, where work is divided."""
CHARACTERS_AT_COST: Final = 32
"""How many characters that are searched are worth one delivery more."""


class View:
    """The consumers of a queue that want the same messages, and where they are in it."""

    __slots__ = (
        "_budget", "_cursor", "_groups", "beginnings", "bytes", "found", "in_memory_to", "is_gone",
        "key", "read_to", "returned_to", "selector", "subscriptions", "turns",
    )  # fmt: skip

    def __init__(
        self,
        key: object,
        selector: Selector | None,
        turns: InTurn,
        cursor: Cursor,
        budget: MemoryBudget,
        groups: Groups | None,
    ) -> None:
        """Begin before all messages of the queue; without a selector all are wanted.

        Where there are ``groups``, it has one consumer, which may have what they give it.
        """
        self.key = key
        """What its consumers have in common: the selector, or each is alone."""
        self.selector = selector
        self.subscriptions: dict[Subscription[Any], None] = {}
        self.turns = turns
        self.returned_to = -1
        """Of what was given back, up to where it was looked at."""
        self.in_memory_to = -1
        """The same of what is in memory and was never delivered."""
        self.read_to = -1
        """The same of the table; what is in there up to the cursor's ``read_seq`` is taken."""
        self.found: OrderedDict[int, StoredMessage] = OrderedDict()
        """Messages of the table up to ``read_to`` that are wanted, by seq, until they are taken."""
        self.bytes = 0
        """What those count for in memory."""
        self.beginnings = 0
        """Counts the times that it forgot something: what it looks at then is behind a gap."""
        self.is_gone = False
        self._cursor = cursor
        self._budget = budget
        self._groups = groups

    @property
    def horizon(self) -> int:
        """Up to where it knows what of the table it wants."""
        return max(self.read_to, self._cursor.read_seq)

    @property
    def has_unread(self) -> bool:
        """Whether there is something in the table that it does not know."""
        return self.horizon < self._cursor.tail_seq

    @property
    def takes_all(self) -> bool:
        """Whether it may have every message."""
        return self.selector is None and self._groups is None

    def may_have(self, said: Said) -> bool:
        """Return whether it wants a message, and its group is not another consumer's."""
        if self.selector is not None and not self.selector.accepts(said):
            return False
        groups = self._groups
        if groups is None:
            return True
        (subscription,) = self.subscriptions
        return groups.admits(groups.of(said), subscription)

    def first_found(self, taken: Taken) -> int | None:
        """Return the first message that it found and may have, and keep none before it."""
        while self.found:
            seq, message = next(iter(self.found.items()))
            if seq not in taken and (self._groups is None or self.may_have(Said(message.record))):
                return seq
            self.let_go(seq)  # another view was first, with this message or with its group
        return None

    def keep(self, message: StoredMessage) -> None:
        """Keep a message that it wants."""
        size = size_in_memory(message.record)
        self.found[message.seq] = message
        self.bytes += size
        self._budget.used += size

    def let_go(self, seq: int) -> StoredMessage:
        """Keep a message no longer; return it."""
        message = self.found.pop(seq)
        size = size_in_memory(message.record)
        self.bytes -= size
        self._budget.used -= size
        return message

    def look_again(self) -> None:
        """Begin before all messages once more."""
        self.beginnings += 1
        self.forget()
        self.returned_to = self.in_memory_to = self.read_to = -1

    def forget(self) -> None:
        """Keep nothing; what it found is read again."""
        if self.found:
            self.beginnings += 1
            self.read_to = next(iter(self.found)) - 1
        self.found.clear()
        self._budget.used -= self.bytes
        self.bytes = 0
