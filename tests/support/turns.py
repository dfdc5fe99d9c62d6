"""No turn of an event loop takes longer than a client may be kept waiting by another.

Machines differ fivefold, and what shares a processor takes of its caches: so the limit is stretched
by how long a fixed piece of work takes here, now.
"""

import asyncio
import time
from functools import cache
from typing import Final

from orthia.broker.node.turn_meter import TurnMeter

LIMIT_SECONDS: Final = 0.05
_REFERENCE_SECONDS: Final = 0.0075
"""What the fixed piece of work takes on the machine the limit is meant for."""
_LOOK_SECONDS: Final = 0.005


def _work() -> float:
    began = time.thread_time()
    found: dict[int, str] = {}
    for number in range(60_000):
        found[number * 7919 % 4_096] = str(number)
    return time.thread_time() - began


@cache
def limit_seconds() -> float:
    """Return how much processor time one turn may take on this machine."""
    return LIMIT_SECONDS * max(1.0, min(_work() for _ in range(5)) / _REFERENCE_SECONDS)


ENVIRONMENT: Final = "_ORTHIA_LONG_TURN_SECONDS"
"""The variable by which a node that is a process is told of the limit."""
SAID: Final = "the event loop computed for"
"""What its log says of a turn above it."""


class Turns:
    """Measures the loop it is made on, from then until it is told to check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._long: list[str] = []
        self._longest = 0.0
        self._meter = TurnMeter(
            loop,
            long_seconds=limit_seconds(),
            measured=self._measured,
            too_long=self._too_long,
            look_seconds=_LOOK_SECONDS,
        )
        self._meter.start()

    def _measured(self, seconds: float) -> None:
        self._longest = max(self._longest, seconds)

    def _too_long(self, seconds: float, where: str) -> None:
        self._long.append(f"{seconds * 1000:.0f} ms at\n{where}")

    @property
    def longest(self) -> float:
        """The longest turn so far, in seconds of processor time."""
        return self._longest

    def stop(self) -> None:
        """Measure no more; before the loop's thread ends."""
        self._meter.stop()

    def check(self) -> None:
        """Fail if any turn was too long, with where the loop was."""
        assert not self._long, (
            f"turns of the event loop above {limit_seconds() * 1000:.0f} ms:\n"
            + "\n".join(self._long)
        )
