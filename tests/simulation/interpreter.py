"""What modules get here that take their threads, locks and queues from the interpreter.

Objects of such a module that are made within ``simulated`` have simulated ones for as long as they
live. Journal, critical analyzer, log handler and the driver of a node are run so,
as they are.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty
from types import ModuleType
from typing import Any

import orthia.broker.node.critical_analyzer
import orthia.broker.node.driver
import orthia.broker.node.log_queue
import orthia.journal.engine.body_keeper
import orthia.journal.engine.threads
import orthia.journal.engine.worker
from orthia.config.clock import monotonic_seconds
from tests.simulation.engine import (
    Engine,
    Life,
    SimulatedCondition,
    SimulatedEvent,
    SimulatedThread,
)

_MODULES: tuple[ModuleType, ...] = (
    orthia.broker.node.critical_analyzer,
    orthia.broker.node.driver,
    orthia.broker.node.log_queue,
    orthia.journal.engine.threads,
    orthia.journal.engine.worker,
)


class SimulatedQueue:
    """As ``queue.SimpleQueue``."""

    def __init__(self, engine: Engine) -> None:
        self._items: deque[Any] = deque()
        self._filled = SimulatedEvent(engine)

    def put(self, item: Any) -> None:
        """Append an item."""
        self._items.append(item)
        self._filled.set()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the first item; raises Empty."""
        while not self._items:
            self._filled.clear()
            if not self._filled.wait(timeout):
                raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """Return the first item; raises Empty."""
        if not self._items:
            raise Empty
        return self._items.popleft()


class SimulatedLock:
    """As ``threading.Lock``."""

    def __init__(self, engine: Engine) -> None:
        self._condition = SimulatedCondition(engine)
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; return whether it is taken, within so many seconds if that is not negative."""
        assert blocking
        within = None if timeout < 0 else timeout
        if not self._condition.wait_for(lambda: not self._is_held, within):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Give it back."""
        self._is_held = False
        self._condition.notify_all()

    def __enter__(self) -> bool:
        """Take it."""
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.release()


class Threading:
    """As the module ``threading``, for one process."""

    def __init__(self, engine: Engine, life: Life) -> None:
        self._engine = engine
        self._life = life

    def Thread(  # noqa: N802 - its name there
        self, *, target: Callable[[], None], name: str, daemon: bool
    ) -> SimulatedThread:
        """Make a thread."""
        del name, daemon
        return SimulatedThread(self._engine, self._life, target)

    def Event(self) -> SimulatedEvent:  # noqa: N802 - its name there
        """Make an event."""
        return SimulatedEvent(self._engine)

    def Condition(self) -> SimulatedCondition:  # noqa: N802 - its name there
        """Make a condition."""
        return SimulatedCondition(self._engine)

    def Lock(self) -> SimulatedLock:  # noqa: N802 - its name there
        """Make a lock."""
        return SimulatedLock(self._engine)

    def RLock(self) -> SimulatedLock:  # noqa: N802 - its name there
        """Make a lock that no thread here takes twice."""
        return SimulatedLock(self._engine)

    def get_ident(self) -> int:
        """Return what no thread of the interpreter is called."""
        return -1


def set_clock(seconds: Callable[[], float] = monotonic_seconds) -> None:
    """Have the modules that look at the stopwatch look at this one; without it at the real one."""
    vars(orthia.journal.engine.body_keeper)["monotonic_seconds"] = seconds


@contextlib.contextmanager
def simulated(engine: Engine, life: Life) -> Iterator[None]:
    """Have objects that are made meanwhile live in a simulated process."""
    instead = {
        "threading": Threading(engine, life),
        "SimpleQueue": lambda: SimulatedQueue(engine),
    }
    replaced = [
        (module, name, value)
        for module in _MODULES
        for name, value in vars(module).items()
        if name in instead
    ]
    for module, name, _ in replaced:
        setattr(module, name, instead[name])
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)
