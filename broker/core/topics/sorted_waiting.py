"""What waits in memory for one consumer, those of a higher priority first."""

from collections import deque
from collections.abc import Iterable, Iterator

from typing_extensions import override

from orthia.broker.core.topics.publication import Publication


class SortedWaiting(deque[Publication]):
    """A topic's messages by priority, within one in the order in which they came.

    In the place of the deque that a queue has otherwise: whoever never sends with a priority pays
    nothing for it.
    """

    def __init__(self, waiting: Iterable[Publication] = ()) -> None:
        """Begin with what waits, in the order in which it came."""
        super().__init__()
        self._by_priority: dict[int, deque[Publication]] = {}
        self._highest_first: list[int] = []
        self._length = 0
        for one in waiting:
            self.append(one)

    @override
    def append(self, publication: Publication, /) -> None:
        priority = publication.record.priority
        same = self._by_priority.get(priority)
        if same is None:
            same = self._by_priority[priority] = deque()
            self._highest_first = sorted(self._by_priority, reverse=True)
        same.append(publication)
        self._length += 1

    @override
    def popleft(self) -> Publication:
        for priority in self._highest_first:
            same = self._by_priority[priority]
            if same:
                self._length -= 1
                return same.popleft()
        raise IndexError("nothing waits")

    @override
    def clear(self) -> None:
        self._by_priority.clear()
        self._highest_first.clear()
        self._length = 0

    @override
    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self._length > 0

    @override
    def __iter__(self) -> Iterator[Publication]:
        for priority in self._highest_first:
            yield from self._by_priority[priority]
