"""Simulated time and threads: one heap of events, a greenlet for each thread, one seed.

Code that blocks runs here as it is. What it waits for, through ``SimulatedThreads`` or a simulated
call, comes from the heap, so a run takes no time but what it computes, and is the same each time.
"""

import heapq
import random
from collections.abc import Callable
from types import TracebackType
from typing import Any

import greenlet
from typing_extensions import override

from orthia.nodemanager.threads import Condition, Event, Repeated, Thread, Threads

SHORTEST_WAIT_SECONDS = 1e-6
"""Of a wait that has to end by its time-out: less than that may be lost in the sum, and time stand
still for who waits again and again."""


class Life:
    """A process of the operating system: its threads end with it, and may be stopped for a time."""

    def __init__(self) -> None:
        self.is_over = False
        self.paused_until = 0.0


class Task:
    """One thread of a life."""

    def __init__(self, life: Life, run: Callable[[], None], hub: greenlet.greenlet) -> None:
        self.life = life
        self.wakings = 0
        """Counts them, so that what would wake an earlier wait wakes no later one."""
        self.greenlet = greenlet.greenlet(lambda _: run(), parent=hub)


class Engine:
    """The heap, and whose turn it is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.current: Task | None = None
        self._hub = greenlet.getcurrent()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._tasks: list[Task] = []

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something later."""
        self.events += 1
        heapq.heappush(self._heap, (self.now + seconds, self.events, action, arguments))

    def run_until(self, end: float, after_each: Callable[[], None]) -> None:
        """Do all that is due until ``end``."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= end:
            self.now, _, action, arguments = pop(heap)
            action(*arguments)
            after_each()
        self.now = end

    def close(self) -> None:
        """End every thread where it waits.

        The collector sees nothing of what a waiting thread holds, so all of it would stay.
        """
        for task in self._tasks:
            self.current = task
            while not task.greenlet.dead:
                task.greenlet.throw(greenlet.GreenletExit)
        self.current = None
        self._tasks.clear()
        self._heap.clear()

    def spawn(self, life: Life, run: Callable[[], None]) -> Task:
        """Start a thread."""
        task = Task(life, run, self._hub)
        self._tasks.append(task)  # so that none is collected, and unwound, while the run goes on
        self.after(0.0, self._resume, task, 0, None)
        return task

    def suspend(self, timeout: float | None, default: Any = None) -> Any:
        """Let the others run until this thread is woken with a value, or for ``timeout``."""
        task = self.this_task()
        if timeout is not None:
            seconds = max(timeout, SHORTEST_WAIT_SECONDS)
            self.after(seconds, self._resume, task, task.wakings, default)
        return self._hub.switch()

    def this_task(self) -> Task:
        """Return the thread that runs."""
        if self.current is None:
            raise RuntimeError("no simulated thread runs")
        return self.current

    def waker(self) -> Callable[[Any], None]:
        """Return what wakes this thread from its next wait, and from no later one."""
        task = self.this_task()
        wakings = task.wakings
        return lambda value: self.after(0.0, self._resume, task, wakings, value)

    def resumer(self) -> Callable[[Any], None]:
        """Return the same for an event: no thread may call it, and this one goes on at once."""
        task = self.this_task()
        wakings = task.wakings
        return lambda value: self._resume(task, wakings, value)

    def _resume(self, task: Task, wakings: int, value: Any) -> None:
        if task.life.is_over or task.wakings != wakings:
            return
        if self.now < task.life.paused_until:
            self.after(task.life.paused_until - self.now, self._resume, task, wakings, value)
            return
        task.wakings += 1
        self.current = task
        task.greenlet.switch(value)
        self.current = None


class SimulatedEvent:
    """As ``threading.Event``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_set = False
        self._waiting: list[Callable[[Any], None]] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        for wake in self._waiting:
            wake(None)
        self._waiting.clear()

    def clear(self) -> None:
        """Have later waits wait."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        if not self._is_set and timeout != 0:
            wake = self._engine.waker()
            self._waiting.append(wake)
            self._engine.suspend(timeout)
            if wake in self._waiting:
                self._waiting.remove(wake)
        return self._is_set


class SimulatedCondition:
    """As ``threading.Condition``; its lock is not needed where one thread runs at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._event = SimulatedEvent(engine)

    def __enter__(self) -> bool:
        """Take the lock."""
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Give the lock back."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified."""
        return self._event.wait(timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is true."""
        end = None if timeout is None else self._engine.now + timeout
        while not predicate():
            left = None if end is None else end - self._engine.now
            if left is not None and left <= 0:
                return False
            self._event.wait(left)
        return True

    def notify_all(self) -> None:
        """Wake whoever waits."""
        self._event.set()
        self._event.clear()


class SimulatedThread:
    """As ``threading.Thread``."""

    def __init__(self, engine: Engine, life: Life, run: Callable[[], None]) -> None:
        self._engine = engine
        self._life = life
        self._run = run
        self._task: Task | None = None
        self._ended = SimulatedEvent(engine)

    def start(self) -> None:
        """Begin to run."""

        def run() -> None:
            self._run()
            self._ended.set()

        self._task = self._engine.spawn(self._life, run)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._task is not None and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._ended.wait(timeout)


class SimulatedRepeated(Repeated):
    """As a job of a scheduler."""

    def __init__(self, engine: Engine, life: Life, seconds: float, run: Callable[[], None]) -> None:
        self._seconds = seconds
        self._run = run
        self._stopped = False
        self._now = SimulatedEvent(engine)
        self._thread = SimulatedThread(engine, life, self._repeat)

    def _repeat(self) -> None:
        while True:
            self._now.wait(self._seconds)
            self._now.clear()
            if self._stopped:
                return
            self._run()

    @override
    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @override
    def run_now(self) -> None:
        """Do it soon."""
        self._now.set()

    @override
    def stop(self) -> None:
        """Do it no more."""
        self._stopped = True


class SimulatedThreads(Threads):
    """The threads of one life, for a node manager."""

    def __init__(self, engine: Engine, life: Life, *, without: str | None = None) -> None:
        """``without`` is how the names of threads begin that are never run."""
        self._engine = engine
        self._life = life
        self._without = without

    @override
    def event(self) -> Event:
        """Make an event."""
        return SimulatedEvent(self._engine)

    @override
    def condition(self) -> Condition:
        """Make a condition."""
        return SimulatedCondition(self._engine)

    @override
    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """Make a thread."""
        if self._without is not None and name.startswith(self._without):
            return SimulatedThread(self._engine, self._life, lambda: None)
        return SimulatedThread(self._engine, self._life, run)

    @override
    def every(self, seconds: float, run: Callable[[], None]) -> Repeated:
        """Make a repeated job."""
        return SimulatedRepeated(self._engine, self._life, seconds, run)
