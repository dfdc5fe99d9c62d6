"""The collector of garbage: no pass of it holds the interpreter for long, however much there is.

What counts references frees nearly everything, and at once. The collector finds the rest: objects
that refer to each other and to which nobody else does. CPython's goes through all objects whenever
a quarter of them is new, and holds the interpreter meanwhile: 0.7 s beside 50,000 queues. Here a
pass goes through what came since the one before, and what it leaves is *frozen*: later passes skip
it. So each has some 90,000 objects at most, or 40 ms.

Frozen objects that become a cycle, and are of no use, are found by a *full* pass only. One is due
when as much has come since the last one as ``FullPasses`` says, by the number of blocks of memory
in use, which the allocator knows. It happens at once as long as it is short, else when no client
waits; and whoever waits, when there are ``MOST_UNSEEN`` more blocks than after the last one. That
bounds what cycles of clients can take: the broker itself undoes what would be a cycle where a
client ends.

In an interpreter whose collector goes through the old objects in parts (some versions of 3.14)
there are no such passes, and nothing is frozen.
"""

import gc
import logging
import sys
from collections.abc import Callable
from typing import Final

from orthia.config.clock import monotonic_seconds

LOGGER = logging.getLogger("orthia.broker")
THRESHOLDS: Final = (5_000, 5, 1)
"""When the collector makes a pass: through the youngest after so many objects more; through those
that were left after so many such passes; through all that is not frozen after so many of these.
Messages that wait are many objects and no cycles: with CPython's 700, looking through them again
and again took a third of the time of a SEND."""
LOOK_SECONDS: Final = 1.0
"""How often to ask whether a full pass is due."""
SHORT_SECONDS: Final = 0.1
"""A full pass that is probably over by then happens while clients wait."""
ALONE_SECONDS: Final = 5.0
"""Nobody waits for a node to which no client was connected for so long."""
SHARE_UNSEEN: Final = 0.25
"""A full pass is due when there is more by this share than after the last one."""
LEAST_UNSEEN: Final = 50_000
"""And by so many blocks."""
MOST_UNSEEN: Final = 8_000_000
"""With so many blocks more, and twice what there was, it happens whoever waits."""
_OF_THE_TIME: Final = 0.01
"""The share of the time that full passes may take while clients wait."""
_BLOCK_SECONDS: Final = 150e-9
"""What a block adds to a full pass, until one was measured."""


class FullPasses:
    """Decides when to look through all objects: no clock of its own, and no collector."""

    def __init__(self, blocks: int, now: float) -> None:
        """Begin with so many ``blocks`` in use, none of which a cycle can be part of."""
        self._seen = blocks
        """The fewest in use since the last full pass: what is more than these may be garbage."""
        self._block_seconds = _BLOCK_SECONDS
        self._not_before = now
        self._alone_since: float | None = None

    def is_due(self, blocks: int, now: float, *, connections: int) -> bool:
        """Return whether to look through all, with ``blocks`` in use; ``now`` is in seconds."""
        if connections:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        self._seen = min(self._seen, blocks)
        unseen = blocks - self._seen
        if unseen < max(LEAST_UNSEEN, SHARE_UNSEEN * self._seen) or now < self._not_before:
            return False
        if self._alone_since is not None and now - self._alone_since >= ALONE_SECONDS:
            return True
        return (
            blocks * self._block_seconds <= SHORT_SECONDS
            or unseen >= max(MOST_UNSEEN, self._seen)
        )  # fmt: skip

    def happened(self, before: int, after: int, now: float, seconds: float) -> None:
        """Note a full pass, which began with ``before`` blocks in use and left ``after``."""
        self._seen = after
        self._block_seconds = seconds / before
        self._not_before = now + seconds / _OF_THE_TIME


class GarbageCollector:
    """The interpreter's collector, in the hands of a node; all but its passes on the loop."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        connections: Callable[[], int],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``call_later`` calls back on the loop; ``connections`` are the clients at present."""
        self._call_later = call_later
        self._connections = connections
        self._clock = clock
        self._passes = FullPasses(sys.getallocatedblocks(), clock())
        self._is_stopped = False

    def start(self) -> None:
        """Freeze what there is, which is here to stay, and have it so from now on."""
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_freeze_what_is_left)
        self._call_later(LOOK_SECONDS, self.look)

    def stop(self) -> None:
        """Freeze no more."""
        self._is_stopped = True
        if _freeze_what_is_left in gc.callbacks:
            gc.callbacks.remove(_freeze_what_is_left)

    def look(self) -> None:
        """Look through all objects if that is due; then again, in a while."""
        if self._is_stopped:
            return
        began, before = self._clock(), sys.getallocatedblocks()
        if self._passes.is_due(before, began, connections=self._connections()):
            gc.unfreeze()
            found = gc.collect()
            ended, after = self._clock(), sys.getallocatedblocks()
            # Of nothing: CPython makes the next pass when there is a quarter of this one more.
            gc.collect()
            self._passes.happened(before, after, ended, ended - began)
            LOGGER.debug(
                "looked through all objects in %.3f s, found %d of no use; blocks of memory in use:"
                " %d before, %d now",
                ended - began,
                found,
                before,
                after,
            )
        self._call_later(LOOK_SECONDS, self.look)


def _freeze_what_is_left(phase: str, about: dict[str, int]) -> None:
    """Freeze what a pass left; the interpreter calls this in whatever thread it made one.

    By then nothing is younger: the pass went through all.
    """
    if phase == "stop" and about["generation"] == 2:
        gc.freeze()
