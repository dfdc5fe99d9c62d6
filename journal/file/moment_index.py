"""The messages of the files that have a moment, in the order of the moments. No IO.

Sixteen bytes a message, in columns by the second of the moment. A deleted one stays until it is met
or until most entries are dead, when they are swept.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final

from orthia.journal.model.moments import Moment, MomentKind, MomentPlace

_MS: Final = 1_000
_SWEEP_AT: Final = 10_000
"""How many there are at least before they are swept."""


class _Second:
    """The messages whose moments are in one second."""

    __slots__ = ("at", "is_sorted", "seqs")

    def __init__(self) -> None:
        self.at = array("q")
        self.seqs = array("q")
        self.is_sorted = True

    def append(self, at_ms: int, seq: int) -> None:
        if self.at and self.at[-1] > at_ms:
            self.is_sorted = False  # of one moment they come in the order of their seqs
        self.at.append(at_ms)
        self.seqs.append(seq)

    def sort(self) -> None:
        if not self.is_sorted:
            pairs = sorted(zip(self.at, self.seqs, strict=True))
            self.at = array("q", (at for at, _ in pairs))
            self.seqs = array("q", (seq for _, seq in pairs))
            self.is_sorted = True

    def behind(self, place: MomentPlace) -> int:
        """Return how many are at a place or before it; it is sorted."""
        first = bisect_left(self.at, place.at_ms)
        end = bisect_right(self.at, place.at_ms, first)
        return bisect_right(self.seqs, place.seq, first, end)

    def keep(self, is_live: Callable[[int], bool]) -> None:
        """Drop what is dead."""
        pairs = [(at, seq) for at, seq in zip(self.at, self.seqs, strict=True) if is_live(seq)]
        self.at = array("q", (at for at, _ in pairs))
        self.seqs = array("q", (seq for _, seq in pairs))


class MomentIndex:
    """Seqs by kind and moment; not thread-safe, its user locks."""

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        self._is_live = is_live
        self._seconds: dict[MomentKind, dict[int, _Second]] = {}
        self._order: dict[MomentKind, list[int]] = {}
        self._total = 0
        self._sweep_at = _SWEEP_AT

    def add(self, moment: Moment, seq: int) -> None:
        """Add a message, whose seq is higher than all before."""
        of_kind = self._seconds.setdefault(moment.kind, {})
        number = moment.at_ms // _MS
        second = of_kind.get(number)
        if second is None:
            second = of_kind[number] = _Second()
            insort(self._order.setdefault(moment.kind, []), number)
        second.append(moment.at_ms, seq)
        self._total += 1
        if self._total >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._total = 0
        for kind, of_kind in self._seconds.items():
            for number, second in list(of_kind.items()):
                second.keep(self._is_live)
                self._total += len(second.seqs)
                if not second.seqs:
                    del of_kind[number]
            self._order[kind] = sorted(of_kind)
        self._sweep_at = max(_SWEEP_AT, 2 * self._total)

    def behind(self, kind: MomentKind, after: MomentPlace) -> Iterator[MomentPlace]:
        """Yield the places of live messages behind one; nothing may be added meanwhile."""
        of_kind = self._seconds.get(kind, {})
        order = self._order.get(kind, [])
        for number in order[bisect_left(order, after.at_ms // _MS) :]:
            second = of_kind[number]
            second.sort()
            for at in range(second.behind(after), len(second.seqs)):
                if self._is_live(second.seqs[at]):
                    yield MomentPlace(second.at[at], second.seqs[at])
