"""One life of one node: its events in order, and what can be seen to be missing of them.

Every event of a holder has a number, from 1 on. An event that was read twice, from a file and from
the table, counts once. A number that nobody has is an event that was lost, or deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from orthia.nodemanager import events
from orthia.nodemanager.locks.holder_id import HolderId, Timers

STEP_US: Final = 1_000_000
"""A clock that moved by less against another did not step: readings differ by their round trips."""
_LONGEST_MS: Final = 1e14
"""Three thousand years: a longer time, or none at all (NaN), is no time that a node told."""
_STARTED: Final = events.NodeStarted.__name__


class LoggedEvent(NamedTuple):
    """One event, as far as the history needs it."""

    seq: int
    at: int
    """By the database's clock; of an event from before it was known, by the node's."""
    node_at: int
    """By the node's own clock."""
    event: str
    lock: str | None = None
    token: int | None = None
    details: Mapping[str, Any] = {}
    """Only of the events that are read for them."""
    is_placed: bool = True
    """Whether ``at`` is the database's time."""


class Gap(NamedTuple):
    """Events that are missing: numbers, and between when they were logged, as far as known."""

    first: int
    last: int
    after: int | None
    before: int


class Step(NamedTuple):
    """A clock that was set, between two events: by how much, the database's against the node's."""

    begin: int
    end: int
    by: int


@dataclass(frozen=True)
class Life:
    """A holder and its events, in order of their numbers."""

    holder: str
    node: str
    events: Sequence[LoggedEvent]

    @cached_property
    def timers(self) -> Timers | None:
        """How it keeps its lease; None if it does not say, or keeps none."""
        known = HolderId(self.holder)
        return None if known.kind else known.timers

    @property
    def gaps(self) -> Iterator[Gap]:
        """What is missing before the last event."""
        last, at = 0, None
        for one in self.events:
            if one.seq > last + 1:
                yield Gap(last + 1, one.seq - 1, at, one.at)
            last, at = one.seq, one.at

    @cached_property
    def steps(self) -> Sequence[Step]:
        """Where the database's clock moved otherwise than the node's."""
        found = []
        for one, following in pairwise(self.events):
            went_on = following.at - one.at
            by = went_on - (following.node_at - one.node_at)
            if -STEP_US <= by <= STEP_US and went_on >= -STEP_US:
                continue
            if not (one.is_placed and following.is_placed):
                continue
            if went_on < -STEP_US:
                found.append(Step(following.at, one.at, went_on))
            else:
                found.append(Step(one.at, following.at, by))
        return found

    def millis(self, event: LoggedEvent, name: str) -> int | None:
        """Return a detail that is told in milliseconds, in microseconds; None if it is not told."""
        value = event.details.get(name)
        if (type(value) is float or type(value) is int) and -_LONGEST_MS < value < _LONGEST_MS:
            return round(value * 1_000)
        return None


def life_of(holder: str, node: str, logged: Iterable[LoggedEvent]) -> Life:
    """Return the life of ``holder``, each event once and in its place.

    An event from before the node knew the database's time is placed by its own clock, but never
    after the events that followed it.
    """
    once = {one.seq: one for one in logged}
    ordered = [once[seq] for seq in sorted(once)]
    started = next((n for n, one in enumerate(ordered) if one.event == _STARTED), 0)
    leading = next((n for n, one in enumerate(ordered) if one.is_placed and n >= started), 0)
    for number in reversed(range(leading)):
        at = min(ordered[number].at, ordered[number + 1].at)
        ordered[number] = ordered[number]._replace(at=at, is_placed=False)
    return Life(holder, node, ordered)
