"""The simulated event loop of a process: callbacks in order, until one of them takes long."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.engine import Engine, Life, SimulatedEvent


class SimulatedLoop:
    """As an asyncio loop, as far as other threads reach it."""

    def __init__(self, engine: Engine, life: Life, *, in_order: bool = True) -> None:
        """``in_order`` is how callbacks are run; else the newest is run first."""
        self._engine = engine
        self._life = life
        self._in_order = in_order
        self._callbacks: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._posted = SimulatedEvent(engine)
        self._stalled_until = 0.0
        engine.spawn(life, self._run)

    @property
    def stalled_until(self) -> float:
        """When the last stall is over, or was."""
        return self._stalled_until

    @property
    def is_stalled(self) -> bool:
        """Whether it is in a callback that takes long."""
        return self._engine.now < self._stalled_until

    @property
    def is_wedged(self) -> bool:
        """Whether it never comes back."""
        return math.isinf(self._stalled_until)

    def stall(self, seconds: float) -> None:
        """Do nothing for so long."""
        self._stalled_until = max(self._stalled_until, self._engine.now + seconds)

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call something soon; any thread, or event."""
        self._callbacks.append((callback, arguments))
        self._posted.set()

    def _run(self) -> None:
        engine, callbacks = self._engine, self._callbacks
        while True:
            while callbacks:
                if engine.now < self._stalled_until:
                    seconds = self._stalled_until - engine.now
                    engine.suspend(None if math.isinf(seconds) else seconds)
                    continue
                callback, arguments = callbacks.popleft() if self._in_order else callbacks.pop()
                callback(*arguments)
                if self._life.is_over:
                    return  # the callback ended the process; nothing that waits behind it is done
            self._posted.clear()
            self._posted.wait()
