"""Messages in memory that nobody has, in order, of which any may be taken out."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from orthia.broker.core.api import MessageReference

_SLACK = 64


class Resident:
    """Messages by their seq."""

    __slots__ = ("_by_seq", "_first", "_order")

    def __init__(self) -> None:
        self._by_seq: dict[int, MessageReference] = {}
        self._order: list[int] = []
        """Every seq of theirs, in order; and some that were taken out."""
        self._first = 0
        """Before which place there are only such."""

    def __len__(self) -> int:
        return len(self._by_seq)

    @property
    def first_seq(self) -> int | None:
        """The lowest seq there is."""
        order, by_seq, first = self._order, self._by_seq, self._first
        while first < len(order) and order[first] not in by_seq:
            first += 1
        self._first = first
        return order[first] if first < len(order) else None

    def get(self, seq: int) -> MessageReference | None:
        """Return a message; None if it is not there."""
        return self._by_seq.get(seq)

    def add(self, reference: MessageReference) -> None:
        """Put a message where its seq belongs."""
        order, seq = self._order, reference.seq
        self._by_seq[seq] = reference
        if not order or order[-1] < seq:
            order.append(seq)
            return
        place = bisect_left(order, seq)
        if order[place] != seq:
            order.insert(place, seq)
        self._first = min(self._first, place)

    def take(self, seq: int) -> MessageReference | None:
        """Take a message out; None if it is not there."""
        reference = self._by_seq.pop(seq, None)
        if reference is not None and len(self._order) > 2 * len(self._by_seq) + _SLACK:
            self._order = [one for one in self._order if one in self._by_seq]
            self._first = 0
        return reference

    @property
    def last_seq(self) -> int | None:
        """The highest seq that may be there; None if nothing is."""
        return self._order[-1] if self._order else None

    def behind(self, seq: int) -> Iterator[MessageReference]:
        """Yield the messages of a higher seq, in order, while nobody changes anything."""
        order, by_seq = self._order, self._by_seq
        for place in range(bisect_right(order, seq), len(order)):
            reference = by_seq.get(order[place])
            if reference is not None:
                yield reference

    def all(self) -> Iterator[MessageReference]:
        """Yield all messages, in order, while nobody changes anything."""
        return self.behind(-1)

    def newest(self) -> MessageReference | None:
        """Return the message of the highest seq; None if there is none."""
        order = self._order
        while order and order[-1] not in self._by_seq:
            order.pop()
        self._first = min(self._first, len(order))
        return self._by_seq[order[-1]] if order else None

    def take_all(self) -> list[MessageReference]:
        """Take all out, in order."""
        references = list(self.behind(-1))
        self._by_seq.clear()
        self._order.clear()
        self._first = 0
        return references
