"""The critical analyzer: whether the event loop still answers.

Renewals, watchdog and writer have threads of their own, so a node whose loop hangs keeps its lease
and serves nobody, and no backup takes over. A thread posts a probe into the loop each check period.
One that is not answered within the time-out says that the loop is wedged.

Counted is the time during which the thread itself has seen the loop not answer. A process that is
stopped, a machine that is suspended or starved does not run that thread either, so that what the
whole node loses is not taken for the loop's fault: the lease judges that.

A loop may hang because a file system does. So the thread reads no file, not even to tell where the
loop is.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from orthia.broker.node.stacks import stack_of
from orthia.config.clock import monotonic_seconds

LOGGER = logging.getLogger("orthia.broker")
_LOOKS: Final = 20
"""How often the thread looks within the time-out."""
_MAX_LOOK_SECONDS: Final = 0.5


class Step(Enum):
    """What the thread does after a look."""

    WAIT = auto()
    PROBE = auto()
    """Post a probe into the loop."""
    WEDGED = auto()
    """The loop has not answered in time; said once for each probe."""
    RECOVERED = auto()
    """The loop answered a probe after all."""


@dataclass
class LoopJudge:
    """Decides on what a thread sees that looks every ``look_seconds``; pure."""

    timeout_seconds: float
    check_period_seconds: float
    look_seconds: float
    unanswered_seconds: float = 0.0
    """How long the thread has seen the present probe unanswered."""
    _is_asked: bool = False
    _is_told: bool = False
    _idle_seconds: float = 0.0
    _looked_seconds: float | None = None

    def look(self, now: float, *, answered: bool) -> Step:
        """Return what to do; ``answered`` is whether the last probe was."""
        looked, self._looked_seconds = self._looked_seconds, now
        # A look that comes late was late for a reason that is not the loop's.
        seconds = 0.0 if looked is None else min(now - looked, 2 * self.look_seconds)
        if self._is_asked and answered:
            self._is_asked = False
            self._idle_seconds = 0.0
            if self._is_told:
                return Step.RECOVERED
        if self._is_asked:
            self.unanswered_seconds += seconds
            if self._is_told or self.unanswered_seconds < self.timeout_seconds:
                return Step.WAIT
            self._is_told = True
            return Step.WEDGED
        self._idle_seconds += seconds
        if self._idle_seconds < self.check_period_seconds:
            return Step.WAIT
        self._is_asked, self._is_told = True, False
        self.unanswered_seconds = 0.0
        return Step.PROBE

    def forget(self) -> None:
        """Begin anew: the loop was not to be watched for a while."""
        self._is_asked = False
        self._idle_seconds = 0.0
        self._looked_seconds = None


class CriticalAnalyzer:
    """The thread that watches one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        timeout_ms: int,
        check_period_ms: int,
        is_serving: Callable[[], bool],
        wedged: Callable[[float, str], None],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """Watch ``loop``, which runs in this thread, while ``is_serving`` says so.

        ``check_period_ms`` after an answer it is asked again; 0 is half of the time-out. ``wedged``
        gets the seconds it has not answered, and where it is, on the analyzer's thread.
        """
        look_seconds = min(timeout_ms / 1000 / _LOOKS, _MAX_LOOK_SECONDS)
        period_ms = check_period_ms or timeout_ms / 2
        self._judge = LoopJudge(timeout_ms / 1000, period_ms / 1000, look_seconds)
        self._look_seconds = look_seconds
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._is_serving = is_serving
        self._wedged = wedged
        self._clock = clock
        self._asked = 0
        self._answered = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="orthia-critical-analyzer", daemon=True
        )

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._look_seconds):
            if not self._is_serving():
                self._judge.forget()
                continue
            step = self._judge.look(self._clock(), answered=self._answered == self._asked)
            if step is Step.PROBE:
                self._probe()
            elif step is Step.WEDGED:
                self._wedged(self._judge.unanswered_seconds, stack_of(self._loop_thread))
            elif step is Step.RECOVERED:
                seconds = self._judge.unanswered_seconds
                LOGGER.warning("the event loop answers again, after %.1f s", seconds)

    def _probe(self) -> None:
        self._asked += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has ended
            self._loop.call_soon_threadsafe(self._answer, self._asked)

    def _answer(self, number: int) -> None:
        self._answered = number
