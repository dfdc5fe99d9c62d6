"""Which rows are out of the order of epochs: pure, on runs of rows.

``seq`` and the time of a row are given out by one fenced writer at a time. So, along either, epochs
never go down. Where they do, some rows are wrong, and the others are right: what is named is the
least that must be left out for the rest to be in order, so one row with a wrong epoch is named, and
not the thousands around it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class EpochRun(NamedTuple):
    """Rows of one epoch, one after the other by ``seq`` or by time."""

    epoch: int
    first: Any
    """What they are ordered by, of the first and of the last of them."""
    last: Any
    rows: int


class Misplaced(NamedTuple):
    """Rows that are out of order."""

    run: EpochRun
    is_stale: bool
    """Whether a newer epoch had begun before; else an older one goes on after."""
    other: EpochRun
    """What shows it: the nearest run of the other epoch that is in order."""


def merged(runs: Iterable[EpochRun]) -> list[EpochRun]:
    """Return runs in their order, neighbours of one epoch as one."""
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
    """Return the fewest rows without which epochs never go down; ``runs`` are in order.

    Where as few of two epochs could be named, it is the older one's.
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
    """Choose the runs, with the most rows together, whose epochs never go down."""
    epochs = sorted({run.epoch for run in runs})
    best = _PrefixMaximum(len(epochs))
    weights: list[int] = []
    previous: list[int] = []
    for at, run in enumerate(runs):
        place = bisect_left(epochs, run.epoch)
        weight, _, came_from = best.up_to(place)
        weights.append(weight + run.rows)
        previous.append(came_from)
        # Of equals the one that ends with the newest epoch: what an older one did after it is
        # named.
        best.raise_at(place, (weight + run.rows, place, at))
    kept = [False] * len(runs)
    at = max(range(len(runs)), key=lambda one: (weights[one], runs[one].epoch), default=-1)
    while at >= 0:
        kept[at] = True
        at = previous[at]
    return kept


class _PrefixMaximum:
    """The heaviest chain that ends with an epoch up to a place (a Fenwick tree)."""

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
