"""Logins whose check takes too long for the loop: a few threads check one at a time per source.

So a source that sends many logins at once delays its own, and each is checked only once the outcome
of the one before is known. A user that has logged in from its source before has a lane of its own,
one for all its sources, and one thread is reserved for such users: a flood of logins from many
sources does not keep them out, nor does one by a user known at many sources.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from orthia.broker.core.errors import LimitExceeded, NotLive
from orthia.broker.core.identity import Principal, Verification

MOST_THREADS: Final = 4
"""Threads for unknown users; at most half the processors: the rest serves logged-in clients."""
_MORE_FOR_KNOWN: Final = 1
"""Threads reserved for users known at their source, who may use the others too."""


@dataclass
class _Lane:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Verifications:
    """Checks logins; called on the loop's thread. Its threads start with the first login."""

    def __init__(self, threads: int | None = None) -> None:
        """Use so many ``threads``, or as many as the machine can spare."""
        self._threads = threads or max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._free = asyncio.Semaphore(self._threads)
        self._all_free = asyncio.Semaphore(self._threads + _MORE_FOR_KNOWN)
        self._lanes: dict[tuple[str, str | None], _Lane] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def turn(self, source: str, known: str | None) -> AsyncIterator[None]:
        """Wait for the turn of a login from ``source``; ``known`` names a user known there."""
        key = (source, None) if known is None else ("", known)
        lane = self._lanes.setdefault(key, _Lane())
        lane.users += 1
        try:
            async with lane.lock:
                yield
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[key]

    async def run(self, work: Verification, *, is_known: bool) -> Principal:
        """Return whose login it is; raises AuthenticationFailed, LimitExceeded, NotLive.

        LimitExceeded without memory, NotLive once closed.

        Its thread and its turn stay taken until the check is done, also if its client leaves: so
        reconnecting is not faster.
        """
        async with contextlib.nullcontext() if is_known else self._free, self._all_free:
            if self._is_closed:
                raise NotLive("this node is stopping, and checks no login any more")
            if self._pool is None:
                threads = self._threads + _MORE_FOR_KNOWN
                self._pool = ThreadPoolExecutor(threads, "orthia-logins")
            running = asyncio.get_running_loop().run_in_executor(self._pool, work.run)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                with contextlib.suppress(Exception):  # its outcome is not needed
                    await running
                raise
            except MemoryError:
                raise LimitExceeded(
                    "this node has no memory left to check a passcode; try again later"
                ) from None
            return work.principal()

    def close(self) -> None:
        """Start no further check."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
