"""A time budget for long work on the loop's thread, which serves every client between two turns.

Work is a *task*, a generator. It may be suspended where it yields: the loop serves clients, and
other tasks have their turn; so the state must be consistent there. Work that is repeated for each
of a number that clients choose (queues, subscriptions, filters, due messages) is a task.

All tasks of all connections together have ``SLICE_SECONDS`` in one turn of the loop. They share it
in turns of ``QUANTUM_SECONDS``: a new task and one that has had a turn alternate. So short tasks
end soon, however many long ones there are, and long ones never starve. A task without a turn comes
first in the next turn of the loop, unless its client had much of the loop's time lately: see
``Usage``. Then it waits behind the others that had. The tasks of clients that had little, but whose
account (its user, or address) had much with all its clients together, are a line of their own,
which alternates with the two: however many clients somebody has, others do not wait for all.

*Ending* tasks come before all others, and leave them ``OTHERS_SECONDS`` of a turn. They end what
the others began: what tells every client that its messages are stored is one task, whose work grows
with what all others take in. As one of many it would fall behind them, and its clients with it.

The clock is read between steps, not within one: each step must be bounded itself. The longest is
the last one of a transaction's commit, which is atomic: 20,000 copies of messages at most, some
60 ms. Then come the copies of one message for the queues of its address, 3 us each, and the longest
possible selector, which takes 1 ms to match.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, TypeVar

SLICE_SECONDS: Final = 0.004
"""The time of all tasks together in one turn of the loop."""
QUANTUM_SECONDS: Final = 0.0005
"""The time of one task before the next has its turn."""
OTHERS_SECONDS: Final = 0.001
"""The least that ending tasks leave to others of their time in one turn of the loop."""
LIGHT_SECONDS: Final = 0.002
"""So much of the loop's time a client may have in ``USAGE_SECONDS`` before its tasks wait."""
LIGHT_OF_MANY_SECONDS: Final = 0.05
"""So much all clients of an account may have before the tasks of each wait for one another."""
USAGE_SECONDS: Final = 1.0
GO_ON: Final = False
"""Yielded where the work may be suspended, and could continue."""
REST: Final = True
"""Yielded where the work cannot continue in this turn of the loop."""


class Wait:
    """Yielded where the work may wait long; it continues once this object is called."""

    __slots__ = ("_dropped", "_is_over", "_then", "reason")

    def __init__(
        self, dropped: "Callable[[Wait], None]", reason: Callable[[], str] | None = None
    ) -> None:
        """``dropped`` is called if the waiting work is abandoned."""
        self._dropped = dropped
        self.reason = reason
        """Returns what the work waits for, in words for operators; None if nobody asks that."""
        self._is_over = False
        self._then: Callable[[], None] | None = None

    def __call__(self) -> None:
        """End the wait; called once."""
        self._is_over = True
        then, self._then = self._then, None
        if then is not None:
            then()

    def drop(self) -> None:
        """Cancel the wait."""
        self._then = None
        self._dropped(self)

    def then(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` when the wait ends, at once if it has."""
        if self._is_over:
            go_on()
        else:
            self._then = go_on


Steps = Iterator[bool | Wait]
"""Work that may be suspended between any two of its short steps."""
_Result = TypeVar("_Result")
Finding = Generator[bool, None, _Result]
"""Steps that return a result, and yield only ``GO_ON``."""


def found(finding: Finding[_Result]) -> _Result:
    """Return the result of a few steps, run without interruption."""
    while True:
        try:
            next(finding)
        except StopIteration as end:
            result: _Result = end.value
            return result


class Usage:
    """How much of the loop's time one client had lately, or all of an account.

    Without it a client that sends one message would wait for one of each client that always has
    another.
    """

    __slots__ = ("_light_seconds", "_since", "account", "seconds")

    def __init__(
        self, account: "Usage | None" = None, *, light_seconds: float = LIGHT_SECONDS
    ) -> None:
        """``account`` is what all clients of its account had; ``light_seconds`` are little."""
        self.account = account
        self._light_seconds = light_seconds
        self.seconds = 0.0
        """What it had since the time began that is looked at."""
        self._since = 0.0

    def is_light(self, now: float) -> bool:
        """Return whether it had little; the first look after a while begins a new time."""
        if now - self._since > USAGE_SECONDS:
            self._since = now
            self.seconds = 0.0
        return self.seconds < self._light_seconds

    def is_of_light(self, now: float) -> bool:
        """Return whether all clients of its account together had little."""
        account = self.account
        return account is None or account.is_light(now)


_Task = tuple[Steps, Usage | None]


class Slices:
    """The running tasks, and their time budget."""

    __slots__ = (
        "_call_soon", "_clock", "_ending", "_is_due", "_left", "_line", "_new", "_of_many",
        "_resting", "_ring", "_until",
    )  # fmt: skip

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``call_soon`` calls back in the loop's next turn, after it served its clients."""
        self._call_soon = call_soon
        self._clock = clock
        self._ending: deque[Steps] = deque()
        """Tasks that come before all others, in order."""
        self._new: deque[_Task] = deque()
        """Tasks that had no turn yet, or resume after a wait."""
        self._of_many: deque[_Task] = deque()
        """Those of them whose client had little, and its account much."""
        self._ring: deque[_Task] = deque()
        """Unfinished tasks that had a turn, and those of clients that had much time."""
        self._resting: deque[_Task] = deque()
        """Tasks that cannot continue in this turn of the loop."""
        self._line = 0
        """Which of the three has the next turn."""
        self._left = SLICE_SECONDS
        """The time left in this turn of the loop."""
        self._until: float | None = None
        """When the running task must yield to the others."""
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether no task is running."""
        return not (self._ring or self._new or self._of_many or self._ending)

    def run(self, steps: Steps, usage: Usage | None = None) -> bool:
        """Run ``steps`` while there is time, the rest in later turns; return whether all are done.

        ``usage`` is of the client whose work it is. An exception of a step in this turn is raised
        here.
        """
        done = self._begin(steps, usage)
        if done is False:
            self.later(steps, usage)
        return done is True

    def run_last(self, steps: Steps) -> None:
        """As ``run``, for what nobody waits for: it has its turns behind what is under way."""
        if self._begin(steps, None) is False:
            self._ring.append((steps, None))
            self._go_on_soon()

    def end(self, steps: Iterator[bool]) -> None:
        """Run ``steps``, which end what other tasks began: the rest goes before all others.

        They yield ``GO_ON`` only.
        """
        if self._ending or self._begin(steps, None) is False:
            self._ending.append(steps)
            self._go_on_soon()

    def _begin(self, steps: Steps, usage: Usage | None) -> bool | None:
        """Run ``steps`` while there is time; return as ``_advance`` does."""
        if self._until is not None:
            return self._advance(steps, self._until, usage)
        if self._left <= 0:
            return False
        began = self._clock()
        self._until = began + self._left
        try:
            return self._advance(steps, self._until, usage)
        finally:
            self._until = None
            ended = self._clock()
            if usage is not None:
                usage.seconds += ended - began
                if usage.account is not None:
                    usage.account.seconds += ended - began
            self._left = left = self._left - ended + began
            if left <= 0 or self._resting:
                self._end_turn()

    def later(self, steps: Steps, usage: Usage | None = None) -> None:
        """Run ``steps`` in later turns."""
        if usage is None:
            self._new.append((steps, None))
        else:
            self._append((steps, usage), usage, self._clock())
        self._go_on_soon()

    def _append(self, task: _Task, usage: Usage, now: float) -> None:
        """Append a task to the line of its client."""
        if not usage.is_light(now):
            self._ring.append(task)
        elif usage.is_of_light(now):
            self._new.append(task)
        else:
            self._of_many.append(task)

    def _go_on_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._turn)

    def _advance(self, steps: Steps, until: float, usage: Usage | None = None) -> bool | None:
        """Continue ``steps``; return whether they are done, or None if they wait."""
        clock = self._clock
        for rests in steps:
            if rests is not GO_ON:
                if isinstance(rests, Wait):
                    rests.then(partial(self.later, steps, usage))
                    return None
                self._resting.append((steps, usage))
                return None
            if clock() >= until:
                return False
        return True

    def _next(self, now: float) -> _Task | None:
        """Return the next task, of each line in turn."""
        for _ in range(3):
            line = self._line
            self._line = (line + 1) % 3
            if line == 0:
                if (task := self._next_new(now)) is not None:
                    return task
            elif line == 1:
                if self._of_many:
                    return self._of_many.popleft()
            elif self._ring:
                return self._ring.popleft()
        return None

    def _next_new(self, now: float) -> _Task | None:
        """Return the next new task; those whose account had much since are put into their line."""
        new = self._new
        while new:
            task = new.popleft()
            usage = task[1]
            if usage is None or usage.is_of_light(now):
                return task
            self._of_many.append(task)
        return None

    def _turn(self) -> None:
        """Continue the tasks while there is time."""
        self._is_due = False
        self._left = SLICE_SECONDS
        if self.is_idle:
            return
        clock = self._clock
        now = clock()
        end = now + SLICE_SECONDS
        try:
            while self._ending and now < end - OTHERS_SECONDS:
                ending = self._ending.popleft()
                self._until = until = end - OTHERS_SECONDS
                if self._advance(ending, until) is False:
                    self._ending.appendleft(ending)
                now = clock()
            end = max(end, now + OTHERS_SECONDS)  # however long the last of their steps took
            while now < end and (task := self._next(now)) is not None:
                steps, usage = task
                self._until = until = min(now + QUANTUM_SECONDS, end)
                done = self._advance(steps, until, usage)
                began, now = now, clock()
                if usage is not None:
                    usage.seconds += now - began
                    if usage.account is not None:
                        usage.account.seconds += now - began
                if done is False:
                    if usage is None:
                        self._ring.append(task)
                    else:
                        self._append(task, usage, now)
        finally:
            self._until = None
            self._left = end - clock()
            self._end_turn()

    def _end_turn(self) -> None:
        """Schedule the next turn if any task is left."""
        if self._resting:
            self._ring.extend(self._resting)
            self._resting.clear()
        if not self.is_idle or self._left <= 0:
            self._go_on_soon()


class Repeating:
    """Work that is begun by whoever asks, and done once more for all who ask meanwhile."""

    __slots__ = ("_is_asked", "_is_running")

    def __init__(self) -> None:
        self._is_asked = self._is_running = False

    def ask(self, slices: Slices, work: Callable[[], Steps], usage: Usage | None = None) -> None:
        """Do ``work``, at once if it is not under way."""
        self._is_asked = True
        if not self._is_running:
            self._is_running = True
            slices.run(self._doing(work), usage)

    def _doing(self, work: Callable[[], Steps]) -> Steps:
        try:
            while self._is_asked:
                self._is_asked = False
                yield from work()
                yield GO_ON
        finally:
            self._is_running = False
