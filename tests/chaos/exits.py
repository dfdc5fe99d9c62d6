"""Which ends of nodes the faults explain. Pure: what happened when goes in, a judgement comes out.

A fault allows a node certain exit codes from when it strikes until shortly after everybody has
recovered from it. A lease lost at any other time is a violation, unless the machine itself stood
still for so long that no renewal can have been in time.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

GRACE_SECONDS = 5.0
"""How long after the recovery a node may still end: it may have been short of processor time."""
STALL_SECONDS = 0.7
"""A stall of the machine that may cost a lease of three seconds: renewals are due every 0.9."""
STALL_COUNTS_SECONDS = 8.0
"""For so long after a stall an end may be its doing."""


@dataclass(frozen=True, slots=True)
class End:
    """A node that ended."""

    node: str
    code: int
    """Negative: the signal that ended it."""
    at: float
    log: str = ""
    """How its log ends."""


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
