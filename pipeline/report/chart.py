"""The holder timeline of pairs as a Gantt chart: its elements, their order and colours.

With few pairs each node has a lane of its own; with many each pair has one, and colours distinguish
its nodes. Pairs that are out now come first, then those with the longest outages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

_NODES: Final = ("#3b6ea8", "#3aa6b9", "#8567a8", "#b59a2b", "#5b6b7b", "#7fa3d1")
"""Colours of nodes: none is close to the red of an outage, or differs from it in green alone."""
_LANES_FOR_NODES: Final = 40
"""The number of lanes above which the nodes of a pair share one."""
_TICKS: Final = 8
_LONGEST_LABEL: Final = 48
"""Long enough for a node's name and the id of a pair, a UUID."""


class Kind(Enum):
    """The kinds of time without a certain service, with colour and legend."""

    OUT = ("#d1242f", "nobody served")
    MAYBE = ("#f4a9ad", "perhaps nobody: within the range")
    PLANNED = ("#d9c98f", "planned: stopped, or handed over, in good order")
    UNKNOWN = ("#c4cad2", "unknown: the log cannot tell")

    @property
    def colour(self) -> str:
        """Its colour."""
        return self.value[0]

    @property
    def meaning(self) -> str:
        """Its text in the legend."""
        return self.value[1]


@dataclass(frozen=True)
class ServiceSegment:
    """A period in which a node served."""

    begin: datetime
    end: datetime
    node: str
    note: str


@dataclass(frozen=True)
class OutageSegment:
    """A period in which nobody served, certainly or perhaps."""

    begin: datetime
    end: datetime
    kind: Kind
    note: str


@dataclass
class PairHistory:
    """One pair in the chart."""

    name: str
    note: str = ""
    """The text beside its lane: availability and outages."""
    is_out: bool = False
    """Whether nobody serves now."""
    is_read: bool = True
    out_seconds: float = 0.0
    """How long nobody served, at most."""
    served: list[ServiceSegment] = field(default_factory=list)
    outages: list[OutageSegment] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """The nodes that served, in the order of their first service."""
        return list(dict.fromkeys(segment.node for segment in self.served))


@dataclass(frozen=True)
class Lane:
    """A line of the chart."""

    label: str
    note: str
    served: Sequence[ServiceSegment]
    outages: Sequence[OutageSegment]
    colours: Mapping[str, str]
    is_out: bool


@dataclass(frozen=True)
class Chart:
    """A period, and the pairs in it."""

    begin: datetime
    end: datetime
    pairs: Sequence[PairHistory]

    @property
    def title(self) -> str:
        """The number of pairs, and the period."""
        count = len(self.pairs)
        period = f"{self.begin:%Y-%m-%d %H:%M:%S} to {self.end:%Y-%m-%d %H:%M:%S} UTC"
        return f"{count:,} {'pair' if count == 1 else 'pairs'}, {period}, by the databases' clocks"

    def lanes(self) -> list[Lane]:
        """Return the lanes from top to bottom."""
        ordered = sorted(
            self.pairs,
            key=lambda pair: (not pair.is_out, pair.is_read, -pair.out_seconds, pair.name),
        )
        by_node = sum(max(1, len(pair.nodes)) for pair in ordered) <= _LANES_FOR_NODES
        return [lane for pair in ordered for lane in _lanes_of(pair, by_node=by_node)]

    def place(self, at: datetime) -> float:
        """Return the position of an instant: 0 at the begin of the period, 1 at its end."""
        span = (self.end - self.begin).total_seconds() or 1.0
        inside = min(max(at, self.begin), self.end)
        return (inside - self.begin).total_seconds() / span

    def legend(self) -> list[tuple[Sequence[str], str]]:
        """Return the colours of each element, and its meaning."""
        most = max((len(pair.nodes) for pair in self.pairs), default=1)
        nodes = _NODES[: max(1, min(most, len(_NODES)))]
        named = "a node served" if len(nodes) == 1 else "a node served, a colour for each"
        drawn = {one.kind for pair in self.pairs for one in pair.outages}
        return [(nodes, named), *(([kind.colour], kind.meaning) for kind in Kind if kind in drawn)]


def _lanes_of(pair: PairHistory, *, by_node: bool) -> Iterator[Lane]:
    colours = {node: _NODES[number % len(_NODES)] for number, node in enumerate(pair.nodes)}
    if not by_node or len(pair.nodes) < 2:
        label = pair.name
        if by_node and pair.nodes:
            label = f"{pair.nodes[0]} · {pair.name}"
        yield Lane(short(label), pair.note, pair.served, pair.outages, colours, pair.is_out)
        return
    for number, node in enumerate(pair.nodes):
        mine = [segment for segment in pair.served if segment.node == node]
        note = pair.note if number == 0 else ""
        label = short(f"{node} · {pair.name}")
        yield Lane(label, note, mine, pair.outages, colours, pair.is_out)


def short(label: str, most: int = _LONGEST_LABEL) -> str:
    """Return a label of at most ``most`` characters, cut in the middle, since ends differ."""
    if len(label) <= most:
        return label
    half = (most - 1) // 2
    return f"{label[: most - 1 - half]}…{label[-half:]}"


def ticks(begin: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Return about eight round instants between ``begin`` and ``end``, and their labels."""
    span = end - begin
    fitting = (pair for pair in _STEPS if span / pair[0] <= _TICKS)
    step, form = next(fitting, (timedelta(days=-(-span.days // _TICKS)), "%d %b %Y"))
    first = datetime.min.replace(tzinfo=begin.tzinfo)
    since_first = -(-(begin - first) // step) * step
    found = []
    while since_first <= end - first:
        at = first + since_first
        found.append((at, f"{at:{form}}"))
        since_first += step
    return found


_CLOCK: Final = "%H:%M:%S"
_STEPS: Final = [
    *((timedelta(seconds=seconds), _CLOCK) for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300)),
    *((timedelta(minutes=minutes), "%d %b %H:%M") for minutes in (10, 15, 30, 60, 120, 180, 360)),
    *((timedelta(hours=hours), "%d %b %H:%M") for hours in (12,)),
    *((timedelta(days=days), "%d %b %Y") for days in (1, 2, 7, 14, 30)),
]
