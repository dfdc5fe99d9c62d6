"""The way from the thread of HTTP to the event loop of the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from orthia.config.errors import OrthiaError

_Result = TypeVar("_Result")
ANSWER_SECONDS: Final = 5.0
"""How long a request waits for the broker's loop."""


class LoopHangs(OrthiaError):  # noqa: N818 - named for the state
    """The event loop of the broker has not answered in time."""


class Gateway:
    """Runs coroutines on the broker's loop for callers on another loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._loop = loop
        self._answer_seconds = answer_seconds

    async def run(
        self, work: Callable[[], Coroutine[Any, Any, _Result]], seconds: float | None = None
    ) -> _Result:
        """Return what ``work`` returns, or raise what it raises; on the caller's loop.

        Raises LoopHangs after ``seconds``; what had begun is cancelled then.
        """
        waits = self._answer_seconds if seconds is None else seconds
        try:
            running = asyncio.run_coroutine_threadsafe(work(), self._loop)
        except RuntimeError:
            raise LoopHangs("this node has ended") from None
        try:
            async with asyncio.timeout(waits):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            raise LoopHangs(f"the event loop has not answered for {waits:g} s") from None

    async def beat(self) -> None:
        """Return once the broker's loop has made a turn; raises LoopHangs."""
        await self.run(_nothing)


async def _nothing() -> None:
    """Take one turn of the loop."""
