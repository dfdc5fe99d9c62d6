"""The account of one pair, from its logs and its store, and how much of it is certain."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orthia.pipeline.history.doubts import Doubt, Overlap, doubts, overlaps
from orthia.pipeline.history.lives import Life, Step
from orthia.pipeline.history.outages import (
    LiveLock,
    Outage,
    Takeover,
    after_the_last,
    note_writes,
    stalls,
    takeovers,
)
from orthia.pipeline.history.tenures import LIVE, Span, Tenure, by_lock


@dataclass(frozen=True)
class Account:
    """What happened to a pair from ``begin`` to ``end``."""

    begin: int
    end: int
    tenures: Sequence[Tenure]
    takeovers: Sequence[Takeover]
    outages: Sequence[Outage]
    """Outages in the period, and times the log does not cover; the open one first, then
    the longest."""
    overlaps: Sequence[Overlap]
    doubts: Sequence[Doubt]
    serving: str | None
    """The node that serves at the end, as far as known."""
    uncertain_us: int = field(default=0)
    """By how much clocks stepped during outages, whose length is therefore uncertain."""

    @property
    def out_most_us(self) -> int:
        """How long nobody served in the period, at most."""
        times = [(one.begin.lo, one.end.hi) for one in self.outages]
        return min(self._period, self._sum(times) + self.uncertain_us)

    @property
    def out_least_us(self) -> int:
        """How long certainly nobody served in the period."""
        times = [(one.begin.hi, one.end.lo) for one in self.outages if one.is_known]
        return max(0, self._sum(times) - self.uncertain_us)

    @property
    def availability(self) -> tuple[float, float] | None:
        """The served share of the period, at least and at most; None for an empty period."""
        if self._period <= 0:
            return None
        return 1 - self.out_most_us / self._period, 1 - self.out_least_us / self._period

    @property
    def _period(self) -> int:
        return max(0, self.end - self.begin)

    def _sum(self, times: Sequence[tuple[int, int]]) -> int:
        """Return the length of the union of ``times`` within the period."""
        total, until = 0, self.begin
        for begin, end in sorted(times):
            begin, end = max(begin, until), min(end, self.end)
            if end > begin:
                total, until = total + end - begin, end
        return total


def account_of(
    lives: Sequence[Life], live_lock: LiveLock | None, since: int | None, until: int
) -> Account:
    """Return the account of a pair until ``until``; not before its first service in the log.

    Events after ``until`` count for what they say of the time before. ``live_lock`` is None when
    there are only logs.
    """
    held = by_lock(lives)
    live = held.get(LIVE, [])
    if live_lock is not None:
        note_writes(live, live_lock.writes)
    taken = list(takeovers(live))
    begin = _first_moment(lives, taken, until) if since is None else since
    begin = min(max(begin, _first_moment(lives, taken, until)), until)
    now = _last_heard(lives, until) if live_lock is None else max(until, live_lock.now)
    last = after_the_last(live, taken[-1] if taken else None, live_lock, now)
    found = [*_between(taken), *(stall for one in live for stall in stalls(one))]
    if not live and lives:
        last = _nobody_ever(begin, now, live_lock)
    if last is not None:
        found.append(last)
    in_period = [
        _clipped(one, until) for one in found if one.end.hi >= begin and one.begin.lo < until
    ]
    steps = [step for life in lives for step in life.steps]
    return Account(
        begin=begin,
        end=until,
        tenures=[one for tenures in held.values() for one in tenures],
        takeovers=taken,
        outages=sorted(in_period, key=_importance),
        overlaps=[one for tenures in held.values() for one in overlaps(tenures, steps)],
        doubts=list(doubts(lives, held, live_lock)),
        serving=_serving(taken, in_period, until),
        uncertain_us=_uncertain(in_period, steps),
    )


def _last_heard(lives: Sequence[Life], until: int) -> int:
    """Return the last moment that logs alone cover; a later event speaks of the time before it."""
    heard = max((one.events[-1].at for one in lives if one.events), default=until)
    return until if heard <= until else heard + 1


def _first_moment(lives: Sequence[Life], taken: Sequence[Takeover], until: int) -> int:
    """Return when the account begins: there is no outage before a pair's first start."""
    first = next((one for one in taken if one.tenure.serving is not None), None)
    if first is not None and taken[0].begin is None and first.tenure.serving is not None:
        return first.tenure.serving.hi
    known = (one.events[0].at for one in lives if one.events)
    return min(known, default=until)


def _between(taken: Sequence[Takeover]) -> Iterator[Outage]:
    for one in taken:
        if one.begin is not None and one.tenure.serving is not None:
            opened = one.tenure.serving
            end = Span(max(opened.lo, one.begin.lo), max(opened.hi, one.begin.lo))
            yield Outage(one.begin, end, one.cause, one.before, one.tenure, is_known=one.is_known)


_NOBODY: Final = "nobody has ever served, as far as the log tells"


def _nobody_ever(begin: int, end: int, live_lock: LiveLock | None) -> Outage:
    known = live_lock is not None and not live_lock.is_held
    cause = _NOBODY if known else f"unknown: {_NOBODY}"
    return Outage(Span(begin, begin), Span(end, end), cause, is_open=True, is_known=known)


def _clipped(one: Outage, until: int) -> Outage:
    """Return the part of an outage before ``until``: one that ends later is open there."""
    if one.end.hi <= until:
        return one
    end = Span(min(one.end.lo, until), until)
    begin = Span(min(one.begin.lo, until), min(one.begin.hi, until))
    is_open = one.is_open or one.end.lo > until
    return replace(one, begin=begin, end=end, is_open=is_open)


def _importance(one: Outage) -> tuple[bool, bool, int, int]:
    return (not (one.is_open and one.is_known), not one.is_known, -one.most_us, one.begin.lo)


def _serving(taken: Sequence[Takeover], outages: Sequence[Outage], until: int) -> str | None:
    """Return who served at ``until``, though the log may go on beyond it."""
    if any(one.is_open for one in outages):
        return None
    opened = (one.tenure for one in taken if one.tenure.serving is not None)
    begun = [one for one in opened if one.serving is not None and one.serving.lo <= until]
    return begun[-1].node if begun else None


def _uncertain(outages: Sequence[Outage], steps: Sequence[Step]) -> int:
    begins: list[int] = []
    until: list[int] = []
    for begin, end in sorted((one.begin.lo, one.end.hi) for one in outages):
        begins.append(begin)
        until.append(max(end, until[-1] if until else end))

    def is_during_one(step: Step) -> bool:
        last = bisect_right(begins, step.end) - 1
        return last >= 0 and until[last] >= step.begin

    return sum(abs(step.by) for step in steps if is_during_one(step))
