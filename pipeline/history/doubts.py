"""Contradictions and gaps in a log: overlaps, lost events and tokens, clock steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from orthia.nodemanager import events
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.pipeline.history.lives import Life, Step
from orthia.pipeline.history.outages import LiveLock
from orthia.pipeline.history.tenures import LIVE, Tenure

_NAMES_OTHERS: Final = {
    events.LiveLockObtained.__name__: "former",
    events.CrashDetected.__name__: "holder",
    events.LeaseExpired.__name__: "holder",
    events.BackupAnnounced.__name__: "live_holder",
    events.WaitingForLiveLock.__name__: "held_by",
}
"""Events that name another holder, and the detail that names it."""


_NO_CONFLICT: Final = frozenset({"noticed late", "clock stepped"})


@dataclass(frozen=True)
class Overlap:
    """A holder that logged an event of its lock after a newer token had begun."""

    tenure: Tenure
    following: Tenure
    until: int
    evidence: str
    """``renewed``, ``served``, ``released``, ``one token``, ``noticed late``, ``clock stepped``."""

    @property
    def is_conflict(self) -> bool:
        """Whether both used the lock.

        False if the older one was paused and noticed late, or if only a clock that was set back
        makes its events later.
        """
        return self.evidence not in _NO_CONFLICT


@dataclass(frozen=True)
class Doubt:
    """Something that the log lacks, or that contradicts the rest of it."""

    kind: str
    at: int | None
    node: str | None
    what: str
    until: int | None = None
    """Where it is about two times that contradict each other, the later one; ``at`` is the other.
    """

    def is_within(self, begin: int, end: int) -> bool:
        """Whether it is about a period."""
        return self.at is None or (self.at <= end and begin <= max(self.at, self.until or self.at))


def overlaps(held: Sequence[Tenure], steps: Sequence[Step] = ()) -> Iterator[Overlap]:
    """Yield the overlaps among the tenures of one lock, in order of their tokens.

    ``steps`` are the clock steps that any node saw.
    """
    for one, following in pairwise(held):
        if one.holder == following.holder:
            continue
        found = _overlap(one, following)
        if found is not None and _is_of_a_clock(found, steps):
            found = replace(found, evidence="clock stepped")
        if found is not None:
            yield found


def _is_of_a_clock(found: Overlap, steps: Sequence[Step]) -> bool:
    """Whether an overlap is there only because the database's clock was set back meanwhile."""
    since = found.following.since
    if found.evidence == "one token":
        return False
    if not any(one.explains(found.until, since) for one in steps):
        return False
    life = found.tenure.life
    first = max((one.seq for one in life.steps), default=0)
    own = (one for one in life.events if one.seq >= first and one.token == found.tenure.token)
    # Its own events after the last step are on the clock of the next holder.
    return not first or all(one.at <= since for one in own)


def _overlap(one: Tenure, following: Tenure) -> Overlap | None:
    since = following.since
    late = max(filter(None, (one.late, one.ended.hi if one.ended is not None else None)), default=0)
    renewed = max(one.renewals, default=0)
    if one.token == following.token:
        return Overlap(one, following, max(late, since), "one token")
    if renewed > since:
        return Overlap(one, following, max(late, renewed), "renewed")
    opened = one.active_at or (one.serving.lo if one.serving is not None else since)
    if one.serving is not None and opened > since:
        return Overlap(one, following, max(late, one.serving.hi), "served")
    if one.end == "released" and one.ended is not None and one.ended.hi > since:
        return Overlap(one, following, one.ended.hi, "released")
    return Overlap(one, following, late, "noticed late") if late > since else None


def doubts(
    lives: Sequence[Life], held: Mapping[str, Sequence[Tenure]], live_lock: LiveLock | None
) -> Iterator[Doubt]:
    """Yield the gaps and contradictions of a pair's log, in order of time as far as known."""
    found = [
        *_missing_events(lives),
        *_stepped_clocks(lives),
        *_unheard_holders(lives, live_lock),
        *_tokens(held.get(LIVE, ()), live_lock),
    ]
    yield from sorted(found, key=lambda one: (one.at or 0, one.kind, one.what))


def _missing_events(lives: Sequence[Life]) -> Iterator[Doubt]:
    for life in lives:
        gaps = list(life.gaps)
        if not gaps:
            continue
        count = sum(gap.last - gap.first + 1 for gap in gaps)
        ranges = ", ".join(
            str(gap.first) if gap.first == gap.last else f"{gap.first} to {gap.last}"
            for gap in gaps[:5]
        )
        more = "" if len(gaps) <= 5 else ", and others"
        what = f"{count} of the events of {life.holder} are not in the log: {ranges}{more}"
        yield Doubt("events missing", gaps[0].before, life.node, what)


def _stepped_clocks(lives: Sequence[Life]) -> Iterator[Doubt]:
    for life in lives:
        steps = life.steps
        if not steps:
            continue
        what = (
            f"the database's clock moved by {steps[0].by / 1_000_000:+.1f} s against that of"
            f" {life.node}: one of them was set"
        )
        if len(steps) > 1:
            most = max(abs(step.by) for step in steps) / 1_000_000
            what += (
                f"; {len(steps) - 1} more times in the life of {life.holder}, by up to {most:.1f} s"
            )
        first, last = min(one.begin for one in steps), max(one.end for one in steps)
        yield Doubt("clock stepped", first, life.node, what, last)


def _unheard_holders(lives: Sequence[Life], live_lock: LiveLock | None) -> Iterator[Doubt]:
    heard = {life.holder for life in lives}
    named: dict[str, int | None] = {}
    for life in lives:
        for one in life.events:
            detail = _NAMES_OTHERS.get(one.event)
            other = one.details.get(detail) if detail is not None else None
            if isinstance(other, str) and HolderId(other).name is not None:
                named.setdefault(other, one.at)
    if live_lock is not None and live_lock.holder is not None and live_lock.is_held:
        named.setdefault(live_lock.holder, live_lock.now)
    for holder, at in named.items():
        if holder not in heard:
            what = f"nothing that {holder} logged is here, though others saw it hold the live lock"
            yield Doubt("log missing", at, HolderId(holder).name or "", what)


def _tokens(live: Sequence[Tenure], live_lock: LiveLock | None) -> Iterator[Doubt]:
    for one, following in pairwise(live):
        between = following.token - one.token - 1
        if between > 0 and following.former != one.holder:
            tokens = (
                f"{one.token + 1}" if between == 1 else f"{one.token + 1} to {one.token + between}"
            )
            what = (
                f"who held the live lock under token {tokens} is not in the log: a node whose log"
                " is not here, or a command"
            )
            yield Doubt("token missing", following.since, None, what)
        if following.since < one.since:
            what = (
                f"token {following.token} of {following.node} begins before token {one.token} of"
                f" {one.node}: a clock was set, or the log was written by others"
            )
            until = max(one.since, one.late or one.since)
            yield Doubt("time runs back", following.since, following.node, what, until)
    if live_lock is None or not live:
        return
    newest = live[-1].token
    if live_lock.token < newest:
        what = (
            f"the log has token {newest}, and the store's newest is {live_lock.token}: the store"
            " was restored, or is another's"
        )
        yield Doubt("store behind the log", live_lock.now, None, what)
    elif live_lock.token > newest and live_lock.holder != live[-1].holder:
        what = f"the store's newest token is {live_lock.token}, and the log's {newest}"
        yield Doubt("token missing", live_lock.now, None, what)
