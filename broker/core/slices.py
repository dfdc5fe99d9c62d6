"""One budget of time for long work on the loop's thread: between two turns everybody is looked at.

Work is a *task*, a generator. Where it yields it may be left: clients are read from and written to,
other tasks have their turn; so it must leave everything as it may be seen. Whatever is done once
for each of a number that clients choose (queues, subscriptions, filters, messages that are due)
is a task.

All tasks of all connections together have ``SLICE_SECONDS`` in one turn of the loop. They share it
in turns of ``QUANTUM_SECONDS``: first a task that is new, then one that had its turn before, and so
on. So what is short is soon done, however many long tasks there are, and those never stand still.
What had no turn is first in the next.

The clock is looked at between steps, not within one: a step must be bounded by what it is. The
longest is the last one of a transaction's commit, which is done whole: 20,000 copies of messages at
most, some 60 ms. Next is what one message takes for each of the queues of its address, 3 us, and
the longest selector there is, which takes 1 ms to match.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, TypeVar

SLICE_SECONDS: Final = 0.004
"""How long the tasks have in one turn of the loop, all together."""
QUANTUM_SECONDS: Final = 0.0005
"""How long one of several tasks goes on before the next has its turn."""
GO_ON: Final = False
"""Yielded where the work can be left, and could go on."""
REST: Final = True
"""Yielded where the work waits for something: nothing can be done for it in this turn."""


class Wait:
    """Yielded where the work waits for what may take long: it goes on once this was called."""

    __slots__ = ("_dropped", "_is_over", "_then")

    def __init__(self, dropped: "Callable[[Wait], None]") -> None:
        """``dropped`` is called if whoever waits is gone before."""
        self._dropped = dropped
        self._is_over = False
        self._then: Callable[[], None] | None = None

    def __call__(self) -> None:
        """End the wait; once."""
        self._is_over = True
        then, self._then = self._then, None
        if then is not None:
            then()

    def drop(self) -> None:
        """Take note that nobody waits any more."""
        self._then = None
        self._dropped(self)

    def then(self, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called when it is over, if need be at once."""
        if self._is_over:
            go_on()
        else:
            self._then = go_on


Steps = Iterator[bool | Wait]
"""Work that may be left between any two of its steps, each of which is short."""
_Result = TypeVar("_Result")
Finding = Generator[bool, None, _Result]
"""Steps that find something out, and return it; never left but to ``GO_ON``."""


def found(finding: Finding[_Result]) -> _Result:
    """Return what steps find out, all in one piece: where there are few of them."""
    while True:
        try:
            next(finding)
        except StopIteration as end:
            result: _Result = end.value
            return result


class Slices:
    """The tasks that are under way, and the time they have."""

    __slots__ = (
        "_call_soon", "_clock", "_is_due", "_left", "_new", "_prefers_new", "_resting", "_ring",
        "_until",
    )  # fmt: skip

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``call_soon`` calls back in the loop's next turn, after its clients were looked at."""
        self._call_soon = call_soon
        self._clock = clock
        self._new: deque[Steps] = deque()
        """Tasks that had no turn yet, or go on after a wait."""
        self._ring: deque[Steps] = deque()
        """Tasks that had a turn, and were not done with it."""
        self._resting: deque[Steps] = deque()
        """Tasks that have no more to do in this turn of the loop."""
        self._prefers_new = True
        self._left = SLICE_SECONDS
        """What is left of the time of this turn of the loop."""
        self._until: float | None = None
        """When the task that goes on at this moment has to let others have their turn."""
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._ring or self._new)

    def run(self, steps: Steps) -> bool:
        """Do what there is time for of ``steps``, the rest in later turns; return whether all is.

        What they raise in this turn is raised here.
        """
        if self._until is not None:
            done = self._advance(steps, self._until)
        elif self._left <= 0:
            done = False
        else:
            began = self._clock()
            self._until = began + self._left
            try:
                done = self._advance(steps, self._until)
            finally:
                self._until = None
                self._left = left = self._left - self._clock() + began
                if left <= 0 or self._resting:
                    self._end_turn()
        if done is False:
            self.later(steps)
        return done is True

    def later(self, steps: Steps) -> None:
        """Do ``steps`` in later turns."""
        self._new.append(steps)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._turn)

    def _advance(self, steps: Steps, until: float) -> bool | None:
        """Go on with ``steps``; return whether that was all, or None if they wait for something."""
        clock = self._clock
        for rests in steps:
            if rests is not GO_ON:
                if isinstance(rests, Wait):
                    rests.then(partial(self.later, steps))
                    return None
                self._resting.append(steps)
                return None
            if clock() >= until:
                return False
        return True

    def _next(self) -> Steps | None:
        """Return the task whose turn it is: of those that are new and of the others by turns."""
        new, ring = self._new, self._ring
        if new and (self._prefers_new or not ring):
            self._prefers_new = False
            return new.popleft()
        self._prefers_new = True
        return ring.popleft() if ring else None

    def _turn(self) -> None:
        """Go on with the tasks while there is time."""
        self._is_due = False
        self._left = SLICE_SECONDS
        if self.is_idle:
            return
        clock, ring = self._clock, self._ring
        now = clock()
        end = now + SLICE_SECONDS
        try:
            while now < end and (steps := self._next()) is not None:
                self._until = until = min(now + QUANTUM_SECONDS, end)
                if self._advance(steps, until) is False:
                    ring.append(steps)
                now = clock()
        finally:
            self._until = None
            self._left = end - clock()
            self._end_turn()

    def _end_turn(self) -> None:
        """Begin the next turn if any task waits for it."""
        if self._resting:
            self._ring.extend(self._resting)
            self._resting.clear()
        if self._ring or self._new or self._left <= 0:
            self._go_on_soon()
