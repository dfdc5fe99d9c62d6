"""The share of a processor that the thread of HTTP may take from the broker.

Both share one interpreter: whoever sends requests without end would else have half of it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

SHARE: Final = 0.25
"""Of the processor time of the interpreter, in the long run."""
_SAVED_SECONDS: Final = 0.25
"""Processor time that may be taken at once after a rest."""
MOST_AHEAD_SECONDS: Final = 1.0
"""Reading heads costs time, too, which nothing holds back: it must not add up to a long wait."""
FOLLOWED_SHARE: Final = 0.02
"""Of what pages that follow what happens may take: nobody waits for them."""
FOLLOWED_MOST_AHEAD_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 1.0
"""How long a probe waits for its turn: whoever floods the port must not have a node killed."""
_Result = TypeVar("_Result")
PROBES: Final = frozenset({"/live", "/ready"})
"""Paths by which others decide whether a node is to be ended."""


class Budget:
    """How much of the processor a thread has used, against its share."""

    def __init__(
        self,
        processor: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
        *,
        share: float = SHARE,
        most_ahead_seconds: float = MOST_AHEAD_SECONDS,
    ) -> None:
        """``processor`` returns the seconds the thread has computed, ``clock`` those passed.

        Whoever asks waits ``most_ahead_seconds`` at most.
        """
        self._share = share
        self._most_ahead_seconds = most_ahead_seconds
        self._processor = processor
        self._clock = clock
        self._began: float | None = None
        self._used = 0.0
        self._beside = 0.0

    def charge(self, seconds: float) -> None:
        """Count what another thread computed for this one; called by one at a time."""
        self._beside += seconds

    def ahead_seconds(self) -> float:
        """Return for how long nothing is to be computed to be within the share; on the thread."""
        used, now = self._processor() + self._beside, self._clock()
        if self._began is None:
            self._began, self._used = now, used
        ahead = (used - self._used - _SAVED_SECONDS) / self._share - (now - self._began)
        if ahead < -_SAVED_SECONDS / self._share:
            self._began, self._used = now, used
        most = self._most_ahead_seconds
        if ahead > most:
            self._used += (ahead - most) * self._share
            return most
        return ahead


def followed(
    processor: Callable[[], float] = time.thread_time,
    clock: Callable[[], float] = time.monotonic,
) -> Budget:
    """Return the budget of pages that follow what happens."""
    return Budget(
        processor, clock, share=FOLLOWED_SHARE, most_ahead_seconds=FOLLOWED_MOST_AHEAD_SECONDS
    )


class Pace:
    """Holds work back while the server's thread is above its share; on its loop."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._turn = asyncio.Lock()
        self._beside = asyncio.Lock()
        self._budget = budget or Budget()

    async def turn(self, most_seconds: float | None = None) -> None:
        """Return when it is the caller's turn, or after ``most_seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_seconds), self._turn:
                ahead = self._budget.ahead_seconds()
                if ahead > 0:
                    await asyncio.sleep(ahead)

    async def beside(self, work: Callable[[], _Result]) -> _Result:
        """Return what ``work`` returns, which computes beside both loops and within the share.

        One after the other, in the order in which they came: each is to be short.
        """

        def measured() -> _Result:
            began = time.thread_time()
            try:
                return work()
            finally:
                self._budget.charge(time.thread_time() - began)

        async with self._beside:
            await self.turn()
            return await asyncio.to_thread(measured)


class Paced:
    """Holds requests back; an ASGI application."""

    def __init__(
        self, application: ASGIApp, pace: Pace, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        self._application = application
        self._pace = pace
        self._probe_seconds = probe_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it is its turn; a probe soon, whoever is before it."""
        await self._pace.turn(self._probe_seconds if scope["path"] in PROBES else None)
        await self._application(scope, receive, send)


class Handshakes:
    """Runs handshakes of TLS, a step in a turn of the loop, within the thread's share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._budget: Budget | None = None

    def later(self, steps: Iterator[bool]) -> None:
        """Run steps in turn with others; on the loop's thread."""
        self._loop.call_soon(self._step, steps)

    def _step(self, steps: Iterator[bool]) -> None:
        if self._budget is None:
            self._budget = Budget()
        ahead = self._budget.ahead_seconds()
        if ahead > 0:
            self._loop.call_later(ahead, self._step, steps)
        elif next(steps, True):
            return
        else:
            self.later(steps)
