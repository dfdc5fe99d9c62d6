"""The share of a processor that the thread of HTTP may take from the broker.

Both share one interpreter: whoever sends requests without end would else have half of it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

SHARE: Final = 0.25
"""Of the processor time of the interpreter, in the long run."""
_SAVED_SECONDS: Final = 0.25
"""Processor time that may be taken at once after a rest."""


class Budget:
    """How much of the processor a thread has used, against its share."""

    def __init__(
        self,
        processor: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``processor`` returns the seconds the thread has computed, ``clock`` those passed."""
        self._processor = processor
        self._clock = clock
        self._began: float | None = None
        self._used = 0.0

    def ahead_seconds(self) -> float:
        """Return for how long nothing is to be computed to be within the share; on the thread."""
        used, now = self._processor(), self._clock()
        if self._began is None:
            self._began, self._used = now, used
        ahead = (used - self._used - _SAVED_SECONDS) / SHARE - (now - self._began)
        if ahead < -_SAVED_SECONDS / SHARE:
            self._began, self._used = now, used
        return ahead


class Pace:
    """Holds requests back while the server's thread is above its share; an ASGI application."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._turn = asyncio.Lock()
        self._budget = Budget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it is its turn."""
        async with self._turn:
            ahead = self._budget.ahead_seconds()
            if ahead > 0:
                await asyncio.sleep(ahead)
        await self._application(scope, receive, send)
