"""Which ends of nodes the faults explain. Pure: what happened when goes in, a judgement comes out.

A fault allows a node certain exit codes from when it strikes until shortly after everybody has
recovered from it. A lease lost at any other time is a violation, unless the machine is to blame: it
stood still for so long that no renewal can have been in time, or did not let that very node run.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

GRACE_SECONDS = 5.0
"""How long after the recovery a node may still end: it may have been short of processor time."""
STALL_SECONDS = 0.7
"""A stall of the machine that may cost a lease of three seconds: renewals are due every 0.9."""
STALL_COUNTS_SECONDS = 8.0
"""For so long after a stall an end may be its doing."""
LOOK_BACK_SECONDS = 4.0
"""A lease and what an IO-error shutdown takes: how long before its end a node is looked at."""
STARVED_SECONDS = 2.0
"""For how much of that some thread of a node must have waited for a processor, ready to run, for
the node to have been starved: half of it."""


@dataclass(frozen=True, slots=True)
class End:
    """A node that ended."""

    node: str
    code: int
    """Negative: the signal that ended it."""
    at: float
    log: str = ""
    """How its log ends."""


class Waited(NamedTuple):
    """What a node waited for since the look before."""

    at: float
    processor_seconds: float
    """For a processor, ready to run: the thread that waited most since then."""
    disk_seconds: float
    """For a disk: some process of the machine."""


@dataclass(slots=True)
class _Allowance:
    node: str
    codes: frozenset[int]
    since: float
    until: float = math.inf


class Expectations:
    """What may end, and when."""

    def __init__(self) -> None:
        self._allowances: list[_Allowance] = []

    def allow(self, node: str, codes: Iterable[int], at: float) -> None:
        """From ``at`` on the node may end with one of ``codes``, until ``close``."""
        self._allowances.append(_Allowance(node, frozenset(codes), at))

    def close(self, at: float) -> None:
        """Everybody had recovered at ``at``: what was allowed so far is allowed no more."""
        for allowance in self._allowances:
            allowance.until = min(allowance.until, at + GRACE_SECONDS)

    def explain(self, end: End) -> bool:
        """Tell whether a fault explains ``end``."""
        return any(
            allowance.node == end.node
            and end.code in allowance.codes
            and allowance.since <= end.at <= allowance.until
            for allowance in self._allowances
        )


def is_of_a_stall(end: End, stalls: Iterable[tuple[float, float]], codes: Iterable[int]) -> bool:
    """Tell whether the machine explains ``end``: (when it was over, seconds) of each stall."""
    return end.code in codes and any(
        seconds >= STALL_SECONDS and at - seconds <= end.at <= at + STALL_COUNTS_SECONDS
        for at, seconds in stalls
    )


def waited_before(end: End, samples: Iterable[Waited]) -> Waited:
    """Return the sums of what a node waited for shortly before its ``end``."""
    before = [one for one in samples if end.at - LOOK_BACK_SECONDS <= one.at <= end.at]
    return Waited(
        end.at,
        sum(one.processor_seconds for one in before),
        sum(one.disk_seconds for one in before),
    )


def is_of_starvation(end: End, waited: Waited, codes: Iterable[int]) -> bool:
    """Tell whether a node was given so little time that it may have lost its lease by that."""
    return end.code in codes and waited.processor_seconds >= STARVED_SECONDS
