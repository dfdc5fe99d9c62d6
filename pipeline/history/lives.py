"""One life of one node: its events in order, and the gaps among them.

A holder numbers its events from 1. An event that was read twice, from a file and from the table,
counts once. A missing number is an event that was lost or deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from orthia.nodemanager import events
from orthia.nodemanager.locks.holder_id import HolderId, Timers

STEP_US: Final = 1_000_000
"""The least difference that counts as a clock step: readings differ by their round trips."""
_LONGEST_MS: Final = 1e14
"""Three thousand years; a longer duration, or NaN, is not a value that a node logs."""
_STARTED: Final = events.NodeStarted.__name__


class LoggedEvent(NamedTuple):
    """The fields of one event that the history needs."""

    seq: int
    at: int
    """By the database's clock; by the node's for an event logged before that was known."""
    node_at: int
    """By the node's own clock."""
    event: str
    lock: str | None = None
    token: int | None = None
    details: Mapping[str, Any] = {}
    """Empty unless the history reads details of this kind of event."""
    is_placed: bool = True
    """Whether ``at`` is the database's time."""


class Gap(NamedTuple):
    """Missing events: their numbers, and the times between which they were logged, if known."""

    first: int
    last: int
    after: int | None
    before: int


class Step(NamedTuple):
    """A clock was set between two events: the database's moved ``by`` against the node's."""

    begin: int
    end: int
    by: int
    seq: int
    """The number of the event after it."""
    before: int
    """The database's time before it, at the latest."""
    after: int
    """The database's time after it, at the earliest."""

    def explains(self, earlier: int, later: int) -> bool:
        """Whether ``earlier``, a time before the step, is above ``later``, one after it."""
        return (
            self.by < 0
            and earlier <= self.before + STEP_US
            and later >= self.after - STEP_US
            and earlier - later <= STEP_US - self.by
        )


@dataclass(frozen=True)
class Life:
    """A holder and its events, in order of their numbers."""

    holder: str
    node: str
    events: Sequence[LoggedEvent]

    @cached_property
    def timers(self) -> Timers | None:
        """The timers of its lease; None if it publishes none, or holds no lease."""
        known = HolderId(self.holder)
        return None if known.kind else known.timers

    @property
    def gaps(self) -> Iterator[Gap]:
        """The gaps before the last event."""
        last, at = 0, None
        for one in self.events:
            if one.seq > last + 1:
                yield Gap(last + 1, one.seq - 1, at, one.at)
            last, at = one.seq, one.at

    @cached_property
    def steps(self) -> Sequence[Step]:
        """Where the database's clock moved against the node's."""
        found = []
        for one, following in pairwise(self.events):
            went_on = following.at - one.at
            passed = following.node_at - one.node_at
            by = went_on - passed
            if -STEP_US <= by <= STEP_US and went_on >= -STEP_US:
                continue
            if not (one.is_placed and following.is_placed):
                continue
            if passed < 0:
                # Both clocks were set: nobody knows how long it was from one event to the next.
                by, passed = min(by, went_on), 0
            begin, end = sorted((one.at, following.at))
            within = (one.at + passed, following.at - passed)
            found.append(Step(begin, end, by, following.seq, *within))
        return found

    def millis(self, event: LoggedEvent, name: str) -> int | None:
        """Return a detail given in milliseconds as microseconds; None if the event lacks it."""
        value = event.details.get(name)
        if (type(value) is float or type(value) is int) and -_LONGEST_MS < value < _LONGEST_MS:
            return round(value * 1_000)
        return None


def life_of(holder: str, node: str, logged: Iterable[LoggedEvent]) -> Life:
    """Return the life of ``holder``, each event once and in order.

    An event from before the node knew the database's time is placed by the node's clock, but never
    after the events that follow it.
    """
    once = {one.seq: one for one in logged}
    ordered = [once[seq] for seq in sorted(once)]
    started = next((n for n, one in enumerate(ordered) if one.event == _STARTED), 0)
    leading = next((n for n, one in enumerate(ordered) if one.is_placed and n >= started), 0)
    for number in reversed(range(leading)):
        at = min(ordered[number].at, ordered[number + 1].at)
        ordered[number] = ordered[number]._replace(at=at, is_placed=False)
    return Life(holder, node, ordered)
