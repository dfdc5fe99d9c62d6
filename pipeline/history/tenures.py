"""Who held which lock, from when to when, by the holder's own account.

| The holder logs             | it served until                                               |
|-----------------------------|---------------------------------------------------------------|
| service closing, released   | between the two: the node still stored what clients had sent  |
| lease lost                  | between its last renewal and that                             |
| fenced write refused        | between its previous event and that                           |
| loop unanswered             | that long before; with policy LOG it may answer again         |
| critical IO error, stopped  | then                                                          |
| nothing                     | see ``outages``: the next holder logs what it saw             |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from orthia.nodemanager import events
from orthia.nodemanager.locks.holder_id import Timers
from orthia.pipeline.history.lives import Life, LoggedEvent

LIVE: Final = "live"
OBTAINED: Final = frozenset(
    {events.LiveLockObtained.__name__, events.BackupLockObtained.__name__},
)
_ACTIVE: Final = frozenset({events.LiveActive.__name__, events.BackupActive.__name__})
_TIMINGS: Final = events.TakeoverTimings.__name__
_STOPPED: Final = events.NodeStopped.__name__
_RELEASED: Final = events.LockReleased.__name__
_CRASH: Final = events.CrashDetected.__name__
_EXPIRED: Final = events.LeaseExpired.__name__
_CLOSING: Final = frozenset({events.ServiceClosing.__name__, events.FailbackRequested.__name__})
_OF_LIVE: Final = frozenset(
    {
        *_ACTIVE,
        _TIMINGS,
        events.FencedWriteRefused.__name__,
        events.FenceAdvanced.__name__,
        events.ServiceClosing.__name__,
    }
)
"""Events that name a token but no lock; it is the live lock's."""
_WARNINGS: Final = frozenset(
    {events.RenewalOverrun.__name__, events.RenewalNotTriggered.__name__},
)
"""What the watchdog of a node logs when the node runs and cannot renew."""
RENEWED: Final = {
    events.RenewalSlow.__name__: "duration_ms",
    events.RenewalGap.__name__: "period_ms",
    events.RenewalBeyondExpiration.__name__: None,
}
"""Events after a renewal, and the detail with the longest time since that renewal."""
_SIGNS: Final = frozenset(
    {
        *_ACTIVE,
        *RENEWED,
        _TIMINGS,
        events.StateWritten.__name__,
        events.ClockDrift.__name__,
        events.FailbackRequested.__name__,
        events.FailbackPutOff.__name__,
    }
)
"""Events that a node logs only just after an answer of the store."""
STALLED: Final = frozenset(
    {events.RenewalGap.__name__, events.RenewalBeyondExpiration.__name__},
)
SILENT_PERIODS: Final = 2
"""A node that has missed so many periods serves nobody, or logs that it could not renew: its
watchdog does so after one and a half."""
PHASES: Final = ("detection_ms", "fence_ms", "load_ms", "open_ms")


class Span(NamedTuple):
    """An instant that is not known exactly: not before ``lo``, not after ``hi``."""

    lo: int
    hi: int


@dataclass
class Tenure:
    """One holding of one lock."""

    lock: str
    token: int
    life: Life
    since: int
    not_before: int
    """``since``, or the last event before the gap if the event of taking the lock is missing."""
    obtained: LoggedEvent | None = None
    """None if the event is missing: ``since`` is then the time of the first event there is."""
    crash: LoggedEvent | None = None
    """The detected crash that made it take over, if there was one."""
    expired: LoggedEvent | None = None
    """The event that the previous holder's lease had expired, if it logged one."""
    serving: Span | None = None
    """When a live node opened its acceptors; None if it never did."""
    active_at: int | None = None
    """When it logged that it serves, somewhat after it began to."""
    ended: Span | None = None
    """When it stopped holding or serving, by its own log; None if it logged no end."""
    end: str | None = None
    """The name of that end."""
    phases: Mapping[str, float | None] = field(default_factory=dict)
    signs: list[int] = field(default_factory=list)
    """When it gave a sign of life."""
    renewals: list[int] = field(default_factory=list)
    """When it renewed, at the earliest."""
    warnings: list[int] = field(default_factory=list)
    """When its watchdog logged that it ran and could not renew."""
    stalls: list[LoggedEvent] = field(default_factory=list)
    """Events of renewals that were far apart."""
    late: int | None = None
    """Its last event with this token."""

    @property
    def holder(self) -> str:
        """Who held it."""
        return self.life.holder

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.life.node

    @property
    def timers(self) -> Timers | None:
        """The timers of its lease."""
        return self.life.timers

    @property
    def former(self) -> str | None:
        """The previous holder, if this one saw it."""
        text = None if self.obtained is None else self.obtained.details.get("former")
        return text if isinstance(text, str) else None

    @property
    def is_declined(self) -> bool:
        """Whether it released the lock at once and did nothing under its token."""
        return self.obtained is None and self.ended == Span(self.since, self.since)

    def before_since(self, name: str) -> int | None:
        """Return the instant of a detail given as milliseconds before the lock was taken."""
        if self.obtained is None:
            return None
        millis = self.life.millis(self.obtained, name)
        return None if millis is None else self.since - max(0, millis)

    def given_up_at(self, renewed: int, said_at: int | None = None) -> int | None:
        """Return when it stopped serving at the latest, if it last renewed at ``renewed``.

        That is two periods later; or the end of its lease, if its watchdog showed a period before
        that (at ``said_at``) that the process ran. None if its timers are not known.
        """
        timers = self.timers
        if timers is None:
            return None
        period, lease = timers.renew_period_ms * 1_000, timers.expiration_ms * 1_000
        end = renewed + lease if said_at is None else said_at
        ran = any(renewed < at < end - period for at in self.warnings)
        return renewed + (lease if ran or not period else min(lease, SILENT_PERIODS * period))

    def last_sign(self, before: int) -> int:
        """Return its last sign of life up to ``before``."""
        return max((at for at in self.signs if at < before), default=min(self.since, before))


def tenures_of(life: Life) -> list[Tenure]:
    """Return what this holder held, in order."""
    builder = _TenureBuilder(life)
    for one in life.events:
        builder.add(one)
    return list(builder.finished())


class _TenureBuilder:
    """Builds tenures from a life; a holder has each lock at most once at a time."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._found: dict[tuple[str, int], Tenure] = {}
        self._held: dict[str, Tenure] = {}
        self._closing: int | None = None
        self._crash: LoggedEvent | None = None
        self._expired: LoggedEvent | None = None
        self._last = 0
        self._after_gap = 0
        self._at = self._before_gap = 0
        self._first_gap: int | None = None
        """When the last event before the first gap of the latest live tenure was logged."""

    def add(self, one: LoggedEvent) -> None:
        """Note the next event."""
        event = one.event
        if one.seq > self._last + 1:
            self._after_gap, self._before_gap = one.seq, min(self._at, one.at)
            if self._first_gap is None:
                self._first_gap = self._before_gap
        if event == _CRASH:
            self._crash = one
        elif event == _EXPIRED:
            self._expired = one
        lock = LIVE if event in _OF_LIVE else one.lock
        tenure = self._of(one, lock)
        live = self._held.get(LIVE)
        if tenure is not None:
            self._note(tenure, one)
        end = _ENDS.get(event)
        if end is not None:
            for held in [tenure] if lock is not None else list(self._held.values()):
                if held is not None:
                    self._end(held, end(held, one, self._closing), one)
            if event == _RELEASED and tenure is not None:
                # A later end of the process says nothing of a lock that was released.
                self._held.pop(tenure.lock, None)
        elif live is not None and live.ended is None:
            if event in RENEWED and self._closing is None and tenure is live:
                live.signs.append(live.renewals[-1])
            elif event in _SIGNS and self._closing is None:
                live.signs.append(self._sign(one))
            elif event in _WARNINGS:
                live.warnings.append(one.at)
        if event in _CLOSING and live is not None and self._closing is None:
            self._closing = one.at
        self._last, self._at = one.seq, one.at

    def _of(self, one: LoggedEvent, lock: str | None) -> Tenure | None:
        """Return the tenure of an event's token, if it has one; a new tenure for a new token."""
        if lock is None or one.token is None:
            return None
        held = self._held.get(lock)
        if held is not None and held.token == one.token:
            return held
        earlier = self._found.get((lock, one.token))
        if earlier is not None:
            return earlier
        if one.event not in (*OBTAINED, _RELEASED) and not self._after_gap:
            return None
        first_gap = 0 if self._first_gap is None else self._first_gap
        not_before = one.at if one.event in OBTAINED else first_gap
        held = self._held[lock] = Tenure(lock, one.token, self._life, one.at, not_before)
        self._found[lock, one.token] = held
        if lock == LIVE:
            held.crash, self._crash, self._closing = self._crash, None, None
            held.expired, self._expired = self._expired, None
            self._first_gap = None
        return held

    def _may_have_served(self, tenure: Tenure) -> bool:
        """Return whether a node may have served though the event is missing."""
        begun = 0 if tenure.obtained is None else tenure.obtained.seq
        return tenure.lock == LIVE and tenure.serving is None and self._after_gap > begun

    def _note(self, tenure: Tenure, one: LoggedEvent) -> None:
        tenure.late = one.at if tenure.late is None else max(tenure.late, one.at)
        if one.event in OBTAINED:
            tenure.obtained = one
        elif one.event in _ACTIVE:
            tenure.serving = Span(min(tenure.not_before, one.at), one.at)
            tenure.active_at = one.at
        elif one.event == _TIMINGS:
            by = one.at if tenure.serving is None else tenure.serving.hi
            tenure.serving = Span(min(self._loaded(tenure, one), by), by)
            tenure.phases = {name: _number(one.details.get(name)) for name in PHASES}
        elif one.event in RENEWED:
            if one.event in STALLED:
                tenure.stalls.append(one)
            tenure.renewals.append(self._sign(one))
            if self._may_have_served(tenure):
                tenure.serving = Span(tenure.not_before, one.at)

    def _loaded(self, tenure: Tenure, timings: LoggedEvent) -> int:
        """Return when the journal was loaded; a node opens its acceptors after that."""
        parts = (self._life.millis(timings, name) or 0 for name in ("fence_ms", "load_ms"))
        return tenure.not_before + sum(max(0, part) for part in parts)

    def _sign(self, one: LoggedEvent) -> int:
        if one.event not in RENEWED:
            return one.at
        name = RENEWED[one.event]
        ago = self._life.millis(one, name) if name is not None else 0
        return one.at - (ago or 0)

    def _end(self, tenure: Tenure, found: tuple[Span, str] | None, one: LoggedEvent) -> None:
        if found is None or one.at < tenure.since:
            return
        span, end = found
        if self._after_gap == one.seq:
            # An earlier event may have given an earlier end.
            span = Span(min(span.lo, max(self._before_gap, tenure.since)), span.hi)
        if self._may_have_served(tenure):
            tenure.serving = Span(tenure.not_before, max(tenure.since, span.hi))
        if tenure.ended is None or span.hi < tenure.ended.hi:
            tenure.ended, tenure.end = span, end
        if tenure.lock == LIVE:
            tenure.late = max(tenure.late or one.at, one.at)

    def finished(self) -> Iterator[Tenure]:
        """Yield the tenures."""
        live = self._held.get(LIVE)
        if live is not None and live.ended is None and self._closing is not None:
            live.ended, live.end = Span(self._closing, self._closing), "closing"
        yield from self._found.values()


_End = Callable[[Tenure, LoggedEvent, int | None], tuple[Span, str] | None]


def _released(_: Tenure, one: LoggedEvent, closing: int | None) -> tuple[Span, str]:
    begun = one.at if closing is None or one.lock != LIVE else min(closing, one.at)
    return Span(begun, one.at), "released"


def _lost(tenure: Tenure, one: LoggedEvent, _: int | None) -> tuple[Span, str]:
    silent = tenure.life.millis(one, "silent_ms")
    if silent is None:
        return Span(tenure.last_sign(one.at), one.at), "lost"
    renewed = one.at - max(0, silent)
    over = tenure.given_up_at(renewed, one.at)
    lo = min(max(renewed, tenure.last_sign(one.at)), one.at)
    return Span(lo, one.at if over is None else max(lo, min(one.at, over))), "lost"


def _fenced(tenure: Tenure, one: LoggedEvent, _: int | None) -> tuple[Span, str]:
    return Span(tenure.last_sign(one.at), one.at), "fenced"


def _failed(_: Tenure, one: LoggedEvent, closing: int | None) -> tuple[Span, str]:
    return Span(one.at if closing is None else min(closing, one.at), one.at), "failed"


def _stopped(_: Tenure, one: LoggedEvent, closing: int | None) -> tuple[Span, str]:
    return Span(one.at if closing is None else min(closing, one.at), one.at), "stopped"


def _wedged(tenure: Tenure, one: LoggedEvent, _: int | None) -> tuple[Span, str] | None:
    if one.details.get("policy") == "LOG" or tenure.lock != LIVE:
        return None
    since = one.at - max(0, tenure.life.millis(one, "unanswered_ms") or 0)
    return Span(since, since), "wedged"


_ENDS: Final[Mapping[str, _End]] = {
    _RELEASED: _released,
    events.LeaseLost.__name__: _lost,
    events.FencedWriteRefused.__name__: _fenced,
    events.CriticalIOError.__name__: _failed,
    events.LoopUnanswered.__name__: _wedged,
    events.StartFailed.__name__: _failed,
    _STOPPED: _stopped,
}
"""Events that end a tenure or a service, and how each is read."""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def by_lock(lives: Sequence[Life]) -> dict[str, list[Tenure]]:
    """Return the tenures of each lock, in order of their tokens."""
    found: dict[str, list[Tenure]] = {}
    for life in lives:
        for tenure in tenures_of(life):
            found.setdefault(tenure.lock, []).append(tenure)
    for held in found.values():
        held.sort(key=lambda one: (one.token, one.since))
    return found
