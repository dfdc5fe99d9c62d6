# mypyc compiles this module.
"""The messages of a queue by their priority: those of each but the usual one by themselves.

A message is stored under the id of its queue if its priority is 4, as that of nearly all is. The
first of another priority has an id made for its *level*: a binding with the queue's name, and every
message of that priority is stored under it. So each level is read by the index that queues have, in
its order, however long the others are; and a queue without such messages has none of this.

A queue delivers from its levels with ``orthia.broker.core.queue.selecting``.
"""

from collections.abc import Iterable, Iterator, Sequence

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.cursor import Cursor


class Level:
    """The messages of one priority, as far as they are in the table; see ``Cursor``."""

    __slots__ = ("cursor", "id", "priority")

    def __init__(self, queue_id: int, priority: int, cursor: Cursor) -> None:
        self.id = queue_id
        """What they are stored under."""
        self.priority = priority
        self.cursor = cursor


class Levels:
    """The levels of a queue that has messages of more than one priority."""

    __slots__ = ("_by_priority", "highest_first", "own")

    def __init__(self, own: Level) -> None:
        """Begin with the queue's ``own``, which has whatever no other has."""
        self.own = own
        self._by_priority = {own.priority: own}
        self.highest_first: Sequence[Level] = [own]

    def __iter__(self) -> Iterator[Level]:
        """Yield all but the queue's own, the highest first."""
        return (one for one in self.highest_first if one is not self.own)

    def get(self, priority: int) -> Level | None:
        """Return the level of a priority; None if there is none of its own."""
        return self._by_priority.get(priority)

    def add(self, level: Level, *, is_open: bool) -> None:
        """Add a level; unless it ``is_open``, new messages go to the default level."""
        if is_open:
            self._by_priority[level.priority] = level
        self.highest_first = sorted(
            (*self.highest_first, level), key=lambda one: one.priority, reverse=True
        )

    @property
    def unread(self) -> int:
        """How many messages are in the table only, as far as they are counted, less the own."""
        return sum([one.cursor.unread for one in self])

    def by_level(
        self, references: Iterable[MessageReference]
    ) -> list[tuple[int, list[MessageReference]]]:
        """Return messages by the id they would be stored under, the highest level first."""
        found: dict[int, list[MessageReference]] = {one.id: [] for one in self.highest_first}
        for reference in references:
            level = self._by_priority.get(reference.record.priority, self.own)
            found[level.id].append(reference)
        return list(found.items())
