"""The account of one pair, from its logs and its store, and how much of it is certain."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orthia.pipeline.history.doubts import Doubt, Overlap, doubts, overlaps
from orthia.pipeline.history.intervals import Interval, length, within, without
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
    planned_uncertain_us: int = field(default=0)
    """The same during those that were planned."""
    windows: Sequence[Interval] = ()
    """Times for which an operator has planned that nobody need serve."""

    @property
    def out_most_us(self) -> int:
        """How long nobody served in the period, unplanned, at most."""
        found = without(self._most(is_planned=False), self.windows)
        return min(self._period, self._length(found) + self.uncertain_us)

    @property
    def out_least_us(self) -> int:
        """How long certainly nobody served in the period, unplanned."""
        found = without(self._least(is_planned=False), self.windows)
        return max(0, self._length(found) - self.uncertain_us)

    @property
    def planned_most_us(self) -> int:
        """How long nobody served in the period as it was planned, at most."""
        in_windows = within(self._most(is_planned=False), self.windows)
        found = self._length([*self._most(is_planned=True), *in_windows])
        return min(self._period, found + self.planned_uncertain_us)

    @property
    def planned_least_us(self) -> int:
        """How long certainly nobody served in the period as it was planned."""
        others = self._least(is_planned=False)
        in_windows = within(others, self.windows)
        planned = without(self._least(is_planned=True), others)
        return max(0, self._length([*planned, *in_windows]) - self.planned_uncertain_us)

    @property
    def availability(self) -> tuple[float, float] | None:
        """The served share of the period without planned downtime, at least and at most.

        None if nothing is left of the period.
        """
        shortest = self._period - self.planned_most_us
        longest = self._period - self.planned_least_us
        if longest <= 0:
            return None
        least = 1 - self.out_most_us / shortest if shortest > 0 else 0.0
        return max(0.0, least), max(0.0, 1 - self.out_least_us / longest)

    def is_planned(self, outage: Outage) -> bool:
        """Return whether an outage was planned as a whole."""
        whole = [(outage.begin.lo, outage.end.hi)]
        return outage.is_planned or (bool(self.windows) and not without(whole, self.windows))

    @property
    def _period(self) -> int:
        return max(0, self.end - self.begin)

    def _most(self, *, is_planned: bool) -> list[Interval]:
        found = (one for one in self.outages if one.is_planned is is_planned)
        return [(one.begin.lo, one.end.hi) for one in found]

    def _least(self, *, is_planned: bool) -> list[Interval]:
        found = (one for one in self.outages if one.is_planned is is_planned and one.is_known)
        return [(one.begin.hi, one.end.lo) for one in found]

    def _length(self, times: Sequence[Interval]) -> int:
        """Return the length of the union of ``times`` within the period."""
        return length(within(times, [(self.begin, self.end)]))


def account_of(
    lives: Sequence[Life],
    live_lock: LiveLock | None,
    since: int | None,
    until: int,
    windows: Sequence[Interval] = (),
) -> Account:
    """Return the account of a pair until ``until``; not before its first service in the log.

    Events after ``until`` count for what they say of the time before. ``live_lock`` is None when
    there are only logs. An outage within the ``windows`` was planned.
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
    waited = held.get(_BACKUP, [])
    found = [*_between(taken, waited), *(stall for one in live for stall in stalls(one))]
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
        uncertain_us=_uncertain([one for one in in_period if not one.is_planned], steps),
        planned_uncertain_us=_uncertain([one for one in in_period if one.is_planned], steps),
        windows=windows,
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


_BACKUP: Final = "backup"
_HAND_OVER_US: Final = 60_000_000
"""How long a planned takeover takes at most by a node that waited for it."""


def _between(taken: Sequence[Takeover], waited: Sequence[Tenure]) -> Iterator[Outage]:
    """Yield the outages before takeovers; ``waited`` are the tenures of the backup lock.

    A node that is stopped alone leaves nobody to serve until somebody starts one: that is planned.
    If the next one waited and took long all the same, something was wrong with it.
    """
    first_wait: dict[str, int] = {}
    for wait in waited:
        first_wait[wait.holder] = min(wait.since, first_wait.get(wait.holder, wait.since))
    for one in taken:
        if one.begin is not None and one.tenure.serving is not None:
            opened, begin = one.tenure.serving, one.begin
            end = Span(max(opened.lo, begin.lo), max(opened.hi, begin.lo))
            had_waited = first_wait.get(one.tenure.holder, begin.hi) < begin.hi
            found = Outage(begin, end, one.cause, one.before, one.tenure, is_known=one.is_known)
            is_long = had_waited and found.most_us > _HAND_OVER_US
            yield replace(found, is_planned=one.is_planned and not is_long)


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


def _importance(one: Outage) -> tuple[bool, bool, bool, int, int]:
    return (
        one.is_planned,
        not (one.is_open and one.is_known),
        not one.is_known,
        -one.most_us,
        one.begin.lo,
    )


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
