"""What takes long to make and many ask for: made in steps, once for all, and kept for a while."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from orthia.broker.core.slices import GO_ON, Finding

KEPT_SECONDS: Final = 1.0
"""How long something is kept at least."""
SHARE: Final = 0.01
"""Of the loop's processor time that making one thing anew may take in the long run."""
FOLLOWED_SHARE: Final = 0.005
"""The same for pages that follow what happens, for which nobody waits."""
_Result = TypeVar("_Result")


class Freshness:
    """Says when something may be made anew, by what making it takes: no clock of its own."""

    def __init__(self) -> None:
        self._not_before = self._not_followed_before = 0.0

    def is_due(self, made: float, now: float, *, followed: bool = False) -> bool:
        """Return whether what was ``made`` then, in seconds, is to be made anew.

        For a page that is ``followed``, or for somebody who asks.
        """
        not_before = self._not_followed_before if followed else self._not_before
        return now - made >= KEPT_SECONDS and now >= not_before

    def took(self, seconds: float, now: float) -> None:
        """Note that making took so many seconds of a processor, until now."""
        self._not_before = max(self._not_before, now) + seconds / SHARE
        before = max(self._not_followed_before, now)
        self._not_followed_before = before + seconds / FOLLOWED_SHARE


class Stopwatch:
    """Adds up the processor time of steps, without that of others between them."""

    def __init__(self, processor: Callable[[], float] = time.thread_time) -> None:
        self._processor = processor
        self.seconds = 0.0

    def of(self, finding: Finding[_Result]) -> Finding[_Result]:
        """Return the same steps, each of which is timed."""
        while True:
            began = self._processor()
            try:
                next(finding)
            except StopIteration as end:
                result: _Result = end.value
                return result
            finally:
                self.seconds += self._processor() - began
            yield GO_ON


class Kept(Generic[_Result]):
    """The latest result of some steps; on the loop's thread."""

    def __init__(
        self,
        make: Callable[[], Finding[_Result]],
        run: Callable[[Finding[_Result]], "asyncio.Future[_Result]"],
        clock: Callable[[], float],
    ) -> None:
        """``make`` returns the steps, ``run`` has them done, ``clock`` returns seconds."""
        self._make = make
        self._run = run
        self._clock = clock
        self._freshness = Freshness()
        self._last: tuple[float, _Result] | None = None
        self._is_forgotten = False
        self._making: asyncio.Future[_Result] | None = None

    async def latest(self, *, followed: bool = False) -> _Result:
        """Return the result of a moment ago at most; who asks while it is made shares it.

        A page that is ``followed`` is content with an older one.
        """
        if self._last is not None and not self._is_forgotten:
            made, result = self._last
            if not self._freshness.is_due(made, self._clock(), followed=followed):
                return result
        making = self._making
        if making is None or making.done():
            self._is_forgotten = False
            watch = Stopwatch()
            making = self._making = self._run(watch.of(self._make()))
            making.add_done_callback(lambda made: self._keep(made, watch.seconds))
        return await asyncio.shield(making)

    def _keep(self, made: "asyncio.Future[_Result]", seconds: float) -> None:
        if made.cancelled() or made.exception() is not None or made is not self._making:
            return
        now = self._clock()
        self._freshness.took(seconds, now)
        self._last = now, made.result()

    def forget(self) -> None:
        """Make it anew for whoever asks next: something was changed that they want to see."""
        self._is_forgotten = True
        self._making = None
