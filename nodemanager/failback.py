"""When a live backup hands back to a live node that asks: at once, unless none of them lasts.

A live node that returns, takes its place and dies, again and again, costs its clients two takeovers
each time, while the backup could serve. Nothing that the returning node knows of itself would help:
each of its lives is a process of its own, and may end without a word. The backup outlives them. So
it counts the live nodes that did not last, one after the other, and takes longer after each before
it hands back again. It goes on serving meanwhile, and whoever asks waits. The asker may be killed
while it waits, and after a handing back to it nobody would serve: so it has to ask again before it
gets its place.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

SHORT_SECONDS: Final = 120.0
"""A live node that is replaced sooner after a failback has not lasted. Noticing that one is gone is
part of it: a few seconds, or the time of a lease."""
FIRST_PAUSE_SECONDS: Final = 30.0
LONGEST_PAUSE_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Failbacks:
    """What a backup remembers of those it handed back to; every time is on its stopwatch."""

    short_terms: int = 0
    """How many in a row did not last."""
    lasted_seconds: float = 0.0
    """How long the last of them lasted."""
    not_before_seconds: float = -math.inf
    """The earliest time to hand back again."""
    handed_back_seconds: float | None = None
    was_put_off: bool = False
    """Whether a node asked too early, and has not asked again since."""

    @property
    def pause_seconds(self) -> float:
        """How long it serves at least before the next failback."""
        if not self.short_terms:
            return 0.0
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** (min(self.short_terms, 10) - 1)
        return min(doubled, LONGEST_PAUSE_SECONDS)

    def handed_back(self, now: float) -> "Failbacks":
        """Return the state after the live lock was given back."""
        return Failbacks(self.short_terms, handed_back_seconds=now)

    def serves_again(self, now: float) -> "Failbacks":
        """Return the state once this node is live again."""
        if self.handed_back_seconds is None:
            return self
        lasted = now - self.handed_back_seconds
        if lasted >= SHORT_SECONDS:
            return Failbacks()
        judged = Failbacks(self.short_terms + 1, lasted)
        return Failbacks(judged.short_terms, lasted, now + judged.pause_seconds)

    def put_off(self) -> "Failbacks":
        """Return the state after a node asked too early."""
        return replace(self, was_put_off=True)

    def asked_again(self) -> "Failbacks":
        """Return the state once a node that was put off has to ask again."""
        return replace(self, was_put_off=False)

    def may_hand_back(self, now: float) -> bool:
        """Return whether to hand back now to a live node that asks."""
        return now >= self.not_before_seconds
