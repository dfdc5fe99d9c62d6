"""Finds rows that are out of the order of epochs: pure, on runs of rows.

``seq`` and the time of a row are given out by one fenced writer at a time. So, along either, epochs
never decrease. Where they do, the faults are the fewest rows whose removal puts the rest in order:
one row with a wrong epoch is a fault, and not the thousands around it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class EpochRun(NamedTuple):
    """Rows of one epoch, one after the other by ``seq`` or by time."""

    epoch: int
    first: Any
    """The key they are ordered by, of the first and of the last row."""
    last: Any
    rows: int


class EpochBounds(NamedTuple):
    """The rows of one epoch in a table, first and last by ``seq`` and by time."""

    epoch: int | None
    rows: int
    first: int | None
    last: int | None
    first_at: int | None
    """In microseconds; None if no row has a time."""
    last_at: int | None


def is_out_of_order(bounds: Iterable[EpochBounds]) -> bool:
    """Return whether some row may come after one of a newer epoch, by ``seq`` or by time."""
    known = [one for one in bounds if one.epoch is not None]
    return _overlap((one.epoch or 0, one.first, one.last) for one in known) or _overlap(
        (one.epoch or 0, one.first_at, one.last_at) for one in known
    )


def _overlap(ranges: Iterable[tuple[int, int | None, int | None]]) -> bool:
    whole: dict[int, tuple[int, int]] = {}
    for epoch, first, last in ranges:
        if first is not None and last is not None:
            low, high = whole.get(epoch, (first, last))
            whole[epoch] = min(low, first), max(high, last)
    return any(one[1] > other[0] for (_, one), (_, other) in pairwise(sorted(whole.items())))


class Misplaced(NamedTuple):
    """Rows that are out of order."""

    run: EpochRun
    is_stale: bool
    """Whether a newer epoch had begun before them; else an older one goes on after them."""
    other: EpochRun
    """The evidence: the nearest run of the other epoch that is in order."""


def merged(runs: Iterable[EpochRun]) -> list[EpochRun]:
    """Return the runs in order, adjacent ones of one epoch merged."""
    found: list[EpochRun] = []
    for run in sorted(runs, key=lambda one: (one.first, one.epoch, one.last)):
        if found and found[-1].epoch == run.epoch:
            before = found[-1]
            last = max(before.last, run.last)
            found[-1] = before._replace(last=last, rows=before.rows + run.rows)
        else:
            found.append(run)
    return found


def misplaced(runs: Sequence[EpochRun]) -> list[Misplaced]:
    """Return the fewest rows without which epochs never decrease; ``runs`` are in order.

    In a tie between two epochs it returns the older one's rows.
    """
    kept = _heaviest_in_order(runs)
    found = []
    newest = 0
    highest: EpochRun | None = None
    before: list[EpochRun | None] = []
    for run, is_kept in zip(runs, kept, strict=True):
        if is_kept and run.epoch >= newest:
            newest, highest = run.epoch, run
        before.append(highest)
    following: EpochRun | None = None
    for at in range(len(runs) - 1, -1, -1):
        run, earlier = runs[at], before[at]
        if kept[at]:
            following = run
        elif earlier is not None and earlier.epoch > run.epoch:
            found.append(Misplaced(run, is_stale=True, other=earlier))
        elif following is not None:
            found.append(Misplaced(run, is_stale=False, other=following))
    return found[::-1]


def _heaviest_in_order(runs: Sequence[EpochRun]) -> list[bool]:
    """Choose the runs with the most rows in total whose epochs never decrease."""
    epochs = sorted({run.epoch for run in runs})
    best = _PrefixMaximum(len(epochs))
    weights: list[int] = []
    previous: list[int] = []
    for at, run in enumerate(runs):
        place = bisect_left(epochs, run.epoch)
        weight, _, came_from = best.up_to(place)
        weights.append(weight + run.rows)
        previous.append(came_from)
        # In a tie, the chain that ends with the newest epoch: later rows of an older one are the
        # faults.
        best.raise_at(place, (weight + run.rows, place, at))
    kept = [False] * len(runs)
    at = max(range(len(runs)), key=lambda one: (weights[one], runs[one].epoch), default=-1)
    while at >= 0:
        kept[at] = True
        at = previous[at]
    return kept


class _PrefixMaximum:
    """The heaviest chain that ends with an epoch up to a position (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._best: list[tuple[int, int, int]] = [(0, -1, -1)] * (size + 1)

    def up_to(self, place: int) -> tuple[int, int, int]:
        found = (0, -1, -1)
        at = place + 1
        while at > 0:
            found = max(found, self._best[at])
            at -= at & -at
        return found

    def raise_at(self, place: int, value: tuple[int, int, int]) -> None:
        at = place + 1
        while at < len(self._best):
            self._best[at] = max(self._best[at], value)
            at += at & -at
