"""Messages that wait for their redelivery.

Rings also ask which of them is to go first, queues of last values for one by its seq.
"""

import heapq
from collections.abc import Iterable
from itertools import count

from typing_extensions import override

from orthia.broker.core.api import MessageReference

_SPARE = 8


class Delayed(set[MessageReference]):
    """A set; it keeps an order, or an index, beside once it was asked for what needs one."""

    __slots__ = ("_by_seq", "_order", "_pushed")

    def __init__(self) -> None:
        super().__init__()
        self._order: list[tuple[int, int, int, MessageReference]] | None = None
        """A heap by priority and age; some of its messages have left."""
        self._pushed = count()
        self._by_seq: dict[int, MessageReference] | None = None
        """The messages by seq; some have left."""

    @override
    def add(self, element: MessageReference, /) -> None:
        super().add(element)
        if self._order is not None:
            self._push(self._order, element)
            self._let_go()
        if self._by_seq is not None:
            self._by_seq[element.seq] = element

    @override
    def update(self, *others: Iterable[MessageReference]) -> None:
        for other in others:
            for element in other:
                self.add(element)

    @override
    def discard(self, element: object, /) -> None:
        super().discard(element)
        self._let_go()

    @override
    def difference_update(self, *others: Iterable[object]) -> None:
        super().difference_update(*others)
        self._let_go()

    @override
    def clear(self) -> None:
        super().clear()
        self._let_go()

    def _let_go(self) -> None:
        """Forget the order, if there is little in it but messages that are gone."""
        if self._order is not None and len(self._order) > 2 * len(self) + _SPARE:
            self._order = None
        if self._by_seq is not None and len(self._by_seq) > 2 * len(self) + _SPARE:
            self._by_seq = None

    def with_seq(self, seq: int) -> MessageReference | None:
        """Return the one that has a seq; None if there is none."""
        if self._by_seq is None:
            self._by_seq = {one.seq: one for one in self}
        found = self._by_seq.get(seq)
        return found if found in self else None

    def lowest_and_oldest(self) -> MessageReference | None:
        """Return the oldest of the lowest priority; None if there is none."""
        order = self._order
        if order is None:
            order = self._order = []
            for element in self:
                self._push(order, element)
        while order:
            first = order[0][3]
            if first in self:
                return first
            heapq.heappop(order)
        return None

    def _push(
        self, order: list[tuple[int, int, int, MessageReference]], element: MessageReference
    ) -> None:
        place = (element.record.priority, element.seq, next(self._pushed), element)
        heapq.heappush(order, place)
