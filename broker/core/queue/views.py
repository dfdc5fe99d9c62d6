"""How far consumers with one selector have scanned their queue, and what they found there.

A view scans each level of the queue, and there three things, each in order of seq: what was given
back, what is in memory, and what is in the table only. Of the last it keeps what it found in
one window, until its consumers take it.
"""

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import MemoryBudget, size_in_memory
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.resident import Resident
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.queue.taken import TakenSeqs
from orthia.broker.core.queue.turns import InTurn
from orthia.broker.core.selectors import MessageProperties, Selector
from orthia.journal.model.windows import StoredMessage

_MOST_AGAIN: Final = 256
"""With more that came back all that is behind the first of them is looked at."""


class PriorityLane:
    """The messages of one priority, as views take them out of the middle."""

    __slots__ = ("cursor", "here", "id", "is_used", "priority", "returned", "taken")

    def __init__(self, level: Level) -> None:
        self.id = level.id
        self.priority = level.priority
        self.cursor: Cursor = level.cursor
        self.taken = TakenSeqs()
        self.here = Resident()
        """In memory, and never delivered."""
        self.returned = Resident()
        self.is_used = False
        """Whether anything came to it of late."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in it, nothing can come back, and nothing came of late."""
        return not (
            self.is_used
            or self.here
            or self.returned
            or self.taken.holds
            or self.cursor.is_paged
            or not self.cursor.is_counted_whole
        )


class ScanPosition:
    """How far a view has scanned the messages of one priority."""

    __slots__ = (
        "_again", "_budget", "beginnings", "bytes", "found", "in_memory_to", "lane", "read_to",
        "returned_to",
    )  # fmt: skip

    def __init__(self, lane: PriorityLane, budget: MemoryBudget) -> None:
        """Begin before all messages."""
        self._budget = budget
        self.lane = lane
        self.returned_to = -1
        """Of what was given back, up to where it was looked at."""
        self._again: list[int] = []
        """A heap of what came back before that, since it was looked at."""
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

    @property
    def horizon(self) -> int:
        """Up to where it is known what of the table is wanted."""
        return max(self.read_to, self.lane.cursor.read_seq)

    @property
    def has_unread(self) -> bool:
        """Whether there is anything behind its horizon."""
        return self.horizon < self.lane.cursor.tail_seq

    def came_back(self, seqs: Sequence[int]) -> None:
        """Look at what was given back, in order, and at nothing else again."""
        before = bisect_right(seqs, self.returned_to)
        if len(self._again) + before > _MOST_AGAIN:
            self.returned_to = min([seqs[0], *self._again[:1]]) - 1
            self._again.clear()
            return
        for seq in seqs[:before]:
            heapq.heappush(self._again, seq)

    def first_again(self) -> MessageReference | None:
        """Return the first that came back and is to be looked at again; None if there is none."""
        while self._again:
            reference = self.lane.returned.get(self._again[0])
            if reference is not None:
                return reference
            heapq.heappop(self._again)
        return None

    def is_not_wanted(self) -> None:
        """Note that what ``first_again`` returned is not wanted."""
        heapq.heappop(self._again)

    def keep(self, message: StoredMessage) -> None:
        """Keep a message that is wanted."""
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
        self._again.clear()

    def forget(self) -> None:
        """Keep nothing; what was found is read again."""
        if self.found:
            self.beginnings += 1
            self.read_to = next(iter(self.found)) - 1
        self.found.clear()
        self._budget.used -= self.bytes
        self.bytes = 0


class View:
    """The consumers of a queue that want the same messages, and where they are in it."""

    __slots__ = (
        "_budget", "is_gone", "key", "positions", "selector", "subscriptions", "turns",
    )  # fmt: skip

    def __init__(
        self,
        key: object,
        selector: Selector | None,
        turns: InTurn,
        lanes: Iterable[PriorityLane],
        budget: MemoryBudget,
    ) -> None:
        """Begin before all messages of the queue; without a selector all are wanted."""
        self.key = key
        """What its consumers have in common: the selector, or each is alone."""
        self.selector = selector
        self.subscriptions: dict[Subscription[Any], None] = {}
        self.turns = turns
        self.is_gone = False
        self._budget = budget
        self.positions = [ScanPosition(one, budget) for one in lanes]
        """One of each level, the highest first."""

    def add(self, at: int, lane: PriorityLane) -> None:
        """Look at one more level."""
        self.positions.insert(at, ScanPosition(lane, self._budget))

    @property
    def bytes(self) -> int:
        """What it keeps counts for in memory."""
        return sum([position.bytes for position in self.positions])

    def wants(self, properties: MessageProperties) -> bool:
        """Return whether it wants a message."""
        return self.selector is None or self.selector.accepts(properties)

    def look_again(self) -> None:
        """Begin before all messages once more."""
        for position in self.positions:
            position.look_again()

    def forget(self) -> None:
        """Keep nothing; what it found is read again."""
        for position in self.positions:
            position.forget()
