"""Sets of time: ranges ``(begin, end)`` in microseconds, their union, difference and length."""

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals merged, in order; empty ones are left out."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def within(intervals: Iterable[Interval], windows: Sequence[Interval]) -> list[Interval]:
    """Return the parts of the intervals that are in a window."""
    merged = union(windows)
    return union(
        (max(begin, first), min(end, last))
        for begin, end in intervals
        for first, last in merged
        if first < end and begin < last
    )


def without(intervals: Iterable[Interval], windows: Sequence[Interval]) -> list[Interval]:
    """Return the parts of the intervals that are in no window."""
    found: list[Interval] = []
    merged = union(windows)
    for begin, end in union(intervals):
        at = begin
        for first, last in merged:
            if first < end and at < last:
                found.append((at, first))
                at = max(at, last)
        found.append((at, end))
    return union(found)


def length(intervals: Iterable[Interval]) -> int:
    """Return how long they are together."""
    return sum(end - begin for begin, end in union(intervals))
