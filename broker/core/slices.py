"""Long work on the loop's thread, a slice at a time: between two slices everybody has a turn.

Work is a generator. Where it yields it may be left: clients are read from and written to, other
work has its slice; so it must leave everything as it may be seen. A slice of work that is begun in
another's slice ends with that, and the rest comes in its own turn.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from orthia.config.clock import monotonic_seconds

SLICE_SECONDS: Final = 0.004
"""How long the loop works on without looking at its clients, while there is more to do."""
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


class Slices:
    """The work that is under way, which goes on in turn."""

    __slots__ = ("_call_soon", "_clock", "_is_due", "_ring", "_until")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``call_soon`` calls back in the loop's next turn, after its clients were looked at."""
        self._call_soon = call_soon
        self._clock = clock
        self._ring: deque[Steps] = deque()
        self._until: float | None = None
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._ring

    def run(self, steps: Steps) -> bool:
        """Do a slice of ``steps``, and the rest in later turns; return whether there is none.

        What they raise in this slice is raised here.
        """
        if self._until is not None:
            done = self._advance(steps, self._until)
        else:
            self._until = self._clock() + SLICE_SECONDS
            try:
                done = self._advance(steps, self._until)
            finally:
                self._until = None
        if done is False:
            self.later(steps)
        return done is True

    def later(self, steps: Steps) -> None:
        """Do ``steps`` in later turns."""
        self._ring.append(steps)
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
                break
            if clock() >= until:
                break
        else:
            return True
        return False

    def _turn(self) -> None:
        """Go on with the work in turn, as far as a slice goes, and once with each."""
        self._is_due = False
        ring = self._ring
        until = self._until = self._clock() + SLICE_SECONDS
        try:
            for _ in range(len(ring)):
                steps = ring.popleft()
                if self._advance(steps, until) is False:
                    ring.append(steps)
                if self._clock() >= until:
                    break
        finally:
            self._until = None
            if ring:
                self._go_on_soon()
