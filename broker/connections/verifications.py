"""Logins that take too long for the loop: checked by a few threads, one at a time for each source.

So a source that sends many at once, whatever it means by that, delays its own; and of those that
wait the next is asked only when it is known how the one before ended. A user who has logged in from
its source before has a turn of its own, one for all its sources, and strangers leave a thread to
such users: a flood of logins from very many sources does not keep them out, nor does one of a user
who is known at many.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal, Verification

MOST_THREADS: Final = 4
"""For those who are not known. Half the processors at most: the rest is for who has logged in."""
_MORE_FOR_KNOWN: Final = 1
"""Threads that those leave to users who are known where they are, who may have all."""


@dataclass
class _Lane:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Verifications:
    """Who is being verified; on the loop's thread. Its threads begin with the first."""

    def __init__(self, threads: int | None = None) -> None:
        """Have so many threads, or as many as the machine can spare."""
        self._threads = threads or max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._free = asyncio.Semaphore(self._threads)
        self._all_free = asyncio.Semaphore(self._threads + _MORE_FOR_KNOWN)
        self._lanes: dict[tuple[str, str | None], _Lane] = {}
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.asynccontextmanager
    async def turn(self, source: str, known: str | None) -> AsyncIterator[None]:
        """Wait for the turn of a login from ``source``; ``known`` is a user known there."""
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
        """Return who it is; raises AuthenticationFailed, or LimitExceeded for want of memory.

        Its thread and its turn stay taken until it is done, though its client may be gone before:
        leaving and coming back makes nobody faster.
        """
        async with contextlib.nullcontext() if is_known else self._free, self._all_free:
            if self._pool is None:
                threads = self._threads + _MORE_FOR_KNOWN
                self._pool = ThreadPoolExecutor(threads, "orthia-logins")
            running = asyncio.get_running_loop().run_in_executor(self._pool, work.run)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                with contextlib.suppress(Exception):  # nobody waits for how it ends
                    await running
                raise
            except MemoryError:
                raise LimitExceeded(
                    "this node has no memory left to check a passcode; try again later"
                ) from None
            return work.principal()

    def close(self) -> None:
        """Begin nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
