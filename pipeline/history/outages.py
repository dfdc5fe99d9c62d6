"""When nobody served: between the end of one node's service and the beginning of the next's.

A node that stops in order logs it. The end of one that was killed or frozen shows only in what
others log, and lies between two instants:

- not before its last sign of life: its last renewal, which its lease shows to whoever takes the
  lock and whoever reads it now, its last write to the journal, or its last event;
- not after the first sign that it was gone: its database session had ended, its lock was free, its
  lease had expired, or it had missed two renewals in a row. A node that serves renews each period,
  or logs that it could not.

The end of the last service follows from the present state of the store: a dead node logs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lease import State
from orthia.pipeline.history.tenures import SILENT_PERIODS, Span, Tenure

_MS: Final = 1_000
_LEASE_RAN_OUT: Final = 0.99
"""The share of a lease without a renewal after which it has expired, by a clock up to 1 % slow."""


@dataclass(frozen=True)
class LiveLock:
    """The live lock as the store shows it."""

    now: int
    holder: str | None
    token: int
    is_held: bool
    expires_at: int | None
    state: State
    writes: Mapping[int, int] = field(default_factory=dict)
    """When the journal was last written under each token, as far as rows of it remain."""

    @property
    def renewed_at(self) -> int | None:
        """When the lease was last renewed; None if that is not known."""
        timers = timers_of(self.holder)
        if timers is None or self.expires_at is None:
            return None
        return min(self.now, self.expires_at - timers.expiration_ms * _MS)


@dataclass(frozen=True)
class Outage:
    """A time in which nobody served, or for which the log does not show whether somebody did."""

    begin: Span
    end: Span
    cause: str
    before: Tenure | None = None
    after: Tenure | None = None
    """Who served then; None while nobody does."""
    is_open: bool = False
    is_known: bool = True
    """False if somebody may have served all the time."""
    is_planned: bool = False
    """Whether it began with an orderly stop, and no failure kept the next node from serving."""

    @property
    def most_us(self) -> int:
        """Its longest possible duration."""
        return max(0, self.end.hi - self.begin.lo)

    @property
    def least_us(self) -> int:
        """Its shortest possible duration."""
        return max(0, self.end.lo - self.begin.hi) if self.is_known else 0


@dataclass(frozen=True)
class Takeover:
    """A node became live: how the previous service ended, if there was one."""

    tenure: Tenure
    cause: str
    before: Tenure | None = None
    begin: Span | None = None
    """When the previous service ended; None for the first start of a pair."""
    is_known: bool = True
    is_planned: bool = False
    """Whether the service before it ended in good order, as did whoever held the lock since."""


def timers_of(holder: str | None) -> Timers | None:
    """Return the timers of a holder's lease; None if it publishes none, or holds no lease."""
    known = HolderId(holder or "")
    return None if known.kind else known.timers


_IN_GOOD_ORDER: Final = frozenset({"released", "closing"})
"""Ends of a node that was stopped, or handed over: it closed its acceptors itself."""


def is_orderly(tenure: Tenure) -> bool:
    """Return whether a node gave its lock back because somebody asked it to."""
    return tenure.end in _IN_GOOD_ORDER


_OF_NO_ORDERLY_END: Final = frozenset({None, "lost", "fenced"})


def note_writes(live: Sequence[Tenure], writes: Mapping[int, int]) -> None:
    """Count writes to the journal as signs of life of their holders.

    Skip a holder that logged its end: what it stored after it closed its acceptors served nobody.
    """
    for tenure in live:
        at = writes.get(tenure.token)
        if at is not None and at >= tenure.since and tenure.end in _OF_NO_ORDERLY_END:
            tenure.signs.append(at)


def takeovers(live: Sequence[Tenure]) -> Iterator[Takeover]:
    """Yield how each tenure of the live lock began, in order of the tokens.

    After a tenure that never served, the next one inherits the end of the previous service. A
    tenure without later events may have served: its last events may be lost.
    """
    pending: Takeover | None = None
    served: Tenure | None = None
    used = [one for one in live if not (one.is_declined and one.serving is None)]
    for tenure, following in zip(used, [*used, None][1:], strict=True):
        if tenure.serving is None and tenure.ended is None and following is not None:
            gone = following.before_since("gone_ms")
            over = following.since if gone is None else gone
            tenure.serving = Span(tenure.since, max(tenure.since, over))
        if pending is not None and pending.begin is not None:
            planned = pending.is_planned and is_orderly(pending.tenure)
            taken = replace(pending, tenure=tenure, is_planned=planned)
        elif served is not None:
            taken = _after(served, tenure)
        else:
            taken = _first(tenure)
        yield taken
        if tenure.serving is None:
            pending = taken
        else:
            served, pending = tenure, None


def _first(tenure: Tenure) -> Takeover:
    """Return how the first tenure in the log began: somebody may have served before it."""
    renewed = tenure.before_since("silent_ms")
    if renewed is None:
        return Takeover(tenure, "first start")
    gone = tenure.before_since("gone_ms")
    begin = Span(renewed, max(renewed, tenure.since if gone is None else gone))
    return Takeover(tenure, _why_taken(tenure), None, begin)


def _after(served: Tenure, following: Tenure) -> Takeover:
    """Return how ``following`` took over from ``served``, the last to serve."""
    since = following.since
    said = served.ended
    former = following.former
    between = following.token > served.token + 1
    if between and former != served.holder:
        # Others held the lock, and their logs are not here.
        lo = served.last_sign(since) if said is None else min(said.lo, since)
        gone = following.before_since("gone_ms")
        hi = max(lo, since if gone is None else min(gone, since))
        return Takeover(following, "unknown", served, Span(lo, hi), is_known=True)
    if said is not None and said.hi <= since:
        lo = max(said.lo, min(served.last_sign(said.hi), said.hi))
        cause = (served.end or "") if (served.late or 0) <= since else _why_taken(following)
        planned = is_orderly(served) and cause == served.end
        return Takeover(following, cause, served, Span(lo, said.hi), is_planned=planned)
    sign = max(served.last_sign(since), served.serving.lo if served.serving else served.since)
    sign = min(sign, since)
    renewed = following.before_since("silent_ms") if former == served.holder else None
    if renewed is None:
        renewed = _from_crash(following, served.timers)
    if renewed is not None:
        begin = _silent(following, max(sign, min(renewed, since)), served.given_up_at(renewed))
    else:
        begin = Span(sign, max(sign, _latest(following, served, between=between)))
    return Takeover(following, _why_taken(following), served, begin)


def _why_taken(tenure: Tenure) -> str:
    """Return why a lock was taken whose holder did not log a release.

    The reason is only what the new holder saw: the former one may have handed the lock over, and
    its event be lost.
    """
    if tenure.crash is not None:
        return "crash detected"
    if tenure.expired is not None:
        return "lease expired"
    timers = timers_of(tenure.former)
    if tenure.obtained is None or tenure.former is None:
        return "unknown"
    if timers is None:
        return "lock free"
    silent = tenure.life.millis(tenure.obtained, "silent_ms")
    if silent is not None and silent >= _LEASE_RAN_OUT * timers.expiration_ms * _MS:
        return "lease expired"
    gone = tenure.life.millis(tenure.obtained, "gone_ms")
    # A released lock is taken at once; a crash is detected only after more than a period.
    if gone is not None and gone >= timers.renew_period_ms * _MS and _may_lack_crash(tenure):
        return "crash detected"
    return "unknown"


def _may_lack_crash(tenure: Tenure) -> bool:
    """Return whether the event of a detected crash may be missing."""
    obtained = tenure.obtained
    return obtained is not None and any(gap.first < obtained.seq for gap in tenure.life.gaps)


def _silent(tenure: Tenure, lo: int, given_up_at: int | None) -> Span:
    """Return when a holder ended that logged no end, not before ``lo``."""
    known = [tenure.since, tenure.before_since("gone_ms"), given_up_at]
    return Span(lo, max(lo, min(at for at in known if at is not None)))


def _from_crash(tenure: Tenure, timers: Timers | None) -> int | None:
    """Return the last renewal named by a detected crash, in the log of an older node."""
    crash = tenure.crash
    left = None if crash is None else tenure.life.millis(crash, "remaining_ms")
    if crash is None or left is None or timers is None or left > timers.expiration_ms * _MS:
        return None
    return crash.at + left - timers.expiration_ms * _MS


def _latest(tenure: Tenure, served: Tenure, *, between: bool) -> int:
    """Return when ``served`` ended at the latest, if nobody saw its last renewal."""
    if tenure.crash is not None:
        watched = tenure.life.millis(tenure.crash, "watched_ms") or 0
        return min(tenure.since, tenure.crash.at - watched)
    obtained = tenure.obtained
    if served.timers is None or between or obtained is None:
        return tenure.since
    if _may_lack_crash(tenure):
        return tenure.since
    # The lease had expired when it was taken.
    over = served.given_up_at(tenure.since - served.timers.expiration_ms * _MS)
    return tenure.since if over is None else min(tenure.since, over)


def after_the_last(
    live: Sequence[Tenure], last: Takeover | None, live_lock: LiveLock | None, end: int
) -> Outage | None:
    """Return the outage after the last service until ``end``; None if it goes on, or never was.

    Without ``live_lock``, from files alone, this is unknown even after an orderly stop: a node
    whose file is missing or out of date may have served ever since.
    """
    if last is None:
        return None
    served: Tenure | None = last.tenure
    if live_lock is None:
        _may_have_served(last.tenure, None, end)
        return _where_files_end(last, end)
    if not live_lock.is_held and live_lock.token > live[-1].token:
        return _after_an_unknown_holder(last, live_lock, end)
    _may_have_served(last.tenure, live_lock, end)
    if last.tenure.serving is None:
        served = last.before
        if not _is_held_by_another(live_lock, live):
            begin = last.begin or Span(live[0].since, live[0].since)
            cause = f"{last.cause}, and {last.tenure.node} has not served"
            return _open(begin, cause, served, end)
    if live_lock.is_held:
        if _is_held_by_another(live_lock, live):
            return _unknown(served or live[0], end, f"unknown: no log of {live_lock.holder}")
        if served is None:
            return None
        renewed = live_lock.renewed_at
        overdue = None if renewed is None else served.given_up_at(renewed)
        if renewed is None or overdue is None or overdue > live_lock.now:
            return None
        lo = max(renewed, min(served.last_sign(live_lock.now), overdue))
        return _open(Span(lo, overdue), "no renewal", served, end)
    if served is None:
        return None
    return _ended(served, live_lock, end)


def _may_have_served(tenure: Tenure, live_lock: LiveLock | None, end: int) -> None:
    """Assume that a holder that is gone may have served, though its log lacks the event.

    A holder that still renews its lock does not count as serving: its event is still to come.
    """
    if tenure.serving is not None or tenure.ended is not None:
        return
    over: int | None = end
    if live_lock is not None:
        over = live_lock.now
        if (live_lock.holder, live_lock.token) == (tenure.holder, tenure.token):
            renewed = live_lock.renewed_at
            over = None if renewed is None else tenure.given_up_at(renewed)
            if live_lock.is_held and (over is None or over > live_lock.now):
                return
    if over is not None:
        tenure.serving = Span(tenure.not_before, max(tenure.since, over))


def _after_an_unknown_holder(last: Takeover, live_lock: LiveLock, end: int) -> Outage:
    """Return the outage after a holder that may have served and is missing from the log."""
    served = last.tenure
    begin = last.begin if served.serving is None else served.ended
    lo = served.last_sign(live_lock.now) if begin is None else begin.lo
    renewed, timers = live_lock.renewed_at, timers_of(live_lock.holder)
    hi = live_lock.now
    if renewed is not None and timers is not None:
        hi = min(hi, renewed + timers.expiration_ms * _MS)
    cause = f"unknown: token {live_lock.token} is not in the log"
    return _open(
        Span(lo, max(lo, hi)), cause, last.before if served.serving is None else served, end
    )


def _where_files_end(last: Takeover, end: int) -> Outage:
    """Return the time for which files alone do not show whether somebody served."""
    tenure = last.tenure
    if tenure.serving is None:
        at = last.begin or Span(tenure.since, tenure.since)
        begin = Span(min(at.lo, end), min(at.hi, end))
        cause = f"unknown: {last.cause}, {tenure.node} has not served, and the log ends"
        until = Span(begin.lo, end)
        return Outage(begin, until, cause, last.before, is_open=True, is_known=False)
    if tenure.ended is None:
        return _unknown(tenure, end, "unknown: the log ends")
    return _unknown(tenure, end, f"unknown: {tenure.end}, and the log ends")


def _ended(served: Tenure, live_lock: LiveLock, end: int) -> Outage:
    """Return the outage after a service whose lock nobody holds now."""
    nobody = ", and nobody after it"
    if live_lock.state is State.PAUSED:
        nobody = ", and backups stay passive (failover-on-shutdown is false)"
    if served.ended is not None:
        lo = max(served.ended.lo, min(served.last_sign(served.ended.hi), served.ended.hi))
        found = _open(Span(lo, served.ended.hi), f"{served.end}{nobody}", served, end)
        return replace(found, is_planned=is_orderly(served))
    sign = served.last_sign(live_lock.now)
    renewed = live_lock.renewed_at if live_lock.holder == served.holder else None
    over = None if renewed is None else served.given_up_at(renewed)
    if renewed is not None and over is not None:
        lo = max(sign, renewed)
        return _open(Span(lo, max(lo, over)), f"lease expired{nobody}", served, end)
    how = "released" if live_lock.holder is None else "lock free"
    return _open(Span(sign, max(sign, live_lock.now)), f"{how}{nobody}", served, end)


def _is_held_by_another(live_lock: LiveLock, live: Sequence[Tenure]) -> bool:
    return live_lock.is_held and not any(
        (one.holder, one.token) == (live_lock.holder, live_lock.token) for one in live
    )


def _open(begin: Span, cause: str, before: Tenure | None, end: int) -> Outage:
    at = Span(max(end, begin.lo), max(end, begin.lo))
    return Outage(begin, at, cause, before, is_open=True)


def _unknown(served: Tenure, end: int, cause: str) -> Outage:
    lo = served.last_sign(end) if served.ended is None else served.ended.lo
    lo = min(max(lo, served.serving.lo if served.serving else lo), end)
    hi = end if served.ended is None else served.ended.hi
    return Outage(Span(lo, max(lo, hi)), Span(lo, end), cause, served, is_open=True, is_known=False)


def stalls(tenure: Tenure) -> Iterator[Outage]:
    """Yield the times in which a node may have been paused before it went on."""
    for one in tenure.stalls:
        gap = tenure.life.millis(one, "gap_ms") or 0
        period = tenure.life.millis(one, "period_ms")
        if period is None:
            period = tenure.timers.renew_period_ms * _MS if tenure.timers is not None else 0
            begin = Span(one.at - gap, min(one.at, one.at - gap + SILENT_PERIODS * period))
            yield Outage(begin, Span(one.at, one.at), "paused, and went on", tenure, tenure)
        elif gap >= SILENT_PERIODS * period:
            yield Outage(
                Span(one.at - gap, one.at),
                Span(one.at - gap, one.at),
                "paused or starved, and went on",
                tenure,
                tenure,
                is_known=False,
            )
