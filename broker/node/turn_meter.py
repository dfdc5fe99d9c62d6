"""The turn meter: how much processor time the event loop takes in one turn, and where it was.

Between two turns the loop looks at every socket and timer; so the longest turn is what every client
can be kept waiting by any other. The meter counts the processor time of the loop's thread: what a
busy machine takes from it is not the loop's fault, and is not counted.

A thread looks at that time every ``look_seconds``. If the loop was at work since, it posts a mark
into it. The time from the post to the mark is at least the rest of the turn that was under way, and
the time from the mark to a second one, which it posts, is one whole turn. A turn that is long is
met amid it, at most one look after it began, and the thread then takes down where the loop is.
Nothing is done for a message, and a loop that rests is left alone.

What the garbage collector takes of a turn is left out: it depends on all that there is, not on what
a client asked for.
"""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from orthia.broker.node.stacks import stack_of

LOOK_SECONDS: Final = 0.02
"""How often the thread looks."""
_BUSY: Final = 0.1
"""The share of a processor above which the loop is at work, and is measured."""


class _LoopThread(Protocol):
    """The thread of an event loop, as the meter sees it."""

    def used(self) -> float:
        """Return the processor time that it has used, in seconds; may be called anywhere."""

    def where(self) -> str:
        """Return its stack."""

    def mark(self, passed: Callable[[float, float], None]) -> None:
        """Call ``passed`` when the current turn is over, and the next one.

        With the time that was used when the turn ended, and in the next turn.
        """


class TurnWatch:
    """Decides what to do at each look; no thread of its own."""

    def __init__(
        self,
        thread: _LoopThread,
        *,
        look_seconds: float,
        long_seconds: float,
        measured: Callable[[float], None],
        too_long: Callable[[float, str], None],
    ) -> None:
        """``measured`` hears of turns, in seconds, ``too_long`` of those above ``long_seconds``.

        The latter with where the loop was.
        """
        self._thread = thread
        self._look_seconds = look_seconds
        self._long_seconds = long_seconds
        self._measured = measured
        self._too_long = too_long
        self._last = thread.used()
        self._asked: float | None = None
        """What the thread had used when the mark was posted that is under way."""
        self._passed: tuple[float, float] | None = None
        self._where = ""
        self._looks = 0

    def look(self) -> None:
        """Look at what the loop has used since the last look."""
        used = self._thread.used()
        was_busy = used - self._last > _BUSY * self._look_seconds
        self._last = used
        if self._asked is not None:
            passed, asked = self._passed, self._asked
            if passed is None:
                self._take_down(used - asked)
                return
            self._asked = self._passed = None
            ended, whole = passed
            rest, where = ended - asked, self._where
            self._judge(rest, where if rest >= whole else "")
            self._judge(whole, where if whole > rest else "")
            self._where = ""
        if was_busy:
            self._asked = used
            self._looks = 0
            self._thread.mark(self._pass)

    def _pass(self, ended: float, whole: float) -> None:
        self._passed = (ended, whole)

    def _take_down(self, so_far: float) -> None:
        """Take down where the loop is while a turn is long: it is the same place most of the time.

        The latest, as long as the turn is not much longer than it may be.
        """
        if self._long_seconds / 2 <= so_far and self._looks < 2:
            self._looks += so_far > self._long_seconds
            self._where = self._thread.where()

    def _judge(self, seconds: float, where: str) -> None:
        self._measured(seconds)
        if seconds > self._long_seconds:
            self._too_long(seconds, where or "it is not known where: the turn was over")


class TurnMeter:
    """The thread that measures one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        long_seconds: float,
        measured: Callable[[float], None],
        too_long: Callable[[float, str], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Measure ``loop``, which runs in this thread; both are called on the meter's thread."""
        self._of_loop = _OfLoop(loop)
        self._look_seconds = look_seconds
        self._watch = TurnWatch(
            self._of_loop,
            look_seconds=look_seconds,
            long_seconds=long_seconds,
            measured=measured,
            too_long=too_long,
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orthia-turn-meter", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._of_loop.collecting)
        self._thread.start()

    def stop(self) -> None:
        """Measure no more; waits for the thread, which never waits for the loop."""
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._of_loop.collecting)

    def _run(self) -> None:
        while not self._stopped.wait(self._look_seconds):
            self._watch.look()


class _OfLoop:
    """The thread of a loop, by the clock that the system keeps of each thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._id)
        self._collected = 0.0
        """What the collector of garbage took of the thread's time."""
        self._collects: float | None = None

    def used(self) -> float:
        collected = self._collected
        return time.clock_gettime(self._clock) - collected

    def where(self) -> str:
        return stack_of(self._id)

    def mark(self, passed: Callable[[float, float], None]) -> None:
        def ended() -> None:
            used = self.used()
            self._loop.call_soon(lambda: passed(used, self.used() - used))

        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has ended
            self._loop.call_soon_threadsafe(ended)

    def collecting(self, phase: str, _: dict[str, int]) -> None:
        """Count what the collector takes; it calls this on whatever thread it runs."""
        if threading.get_ident() != self._id:
            return
        used = time.thread_time()
        if phase == "start":
            self._collects = used
        elif self._collects is not None:
            self._collected += used - self._collects
            self._collects = None
