"""The text of ``/metrics``: rendered on its own thread, once for all requests of one second.

Rendering takes many milliseconds, in which the event loop would serve no client, and anybody who
reaches the endpoint can request it any number of times.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from orthia.config.errors import OrthiaError

FRESH_SECONDS: Final = 1.0
"""How long a rendered text is reused. Scrapers come every few seconds."""


class RenderingError(OrthiaError):
    """No thread can be started to render on, usually for want of memory."""


class Exposition:
    """Renders one registry; its methods are called on the event loop."""

    def __init__(
        self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is monotonic, in seconds."""
        self._registry = registry
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="orthia-metrics")
        self._rendering: asyncio.Future[bytes] | None = None
        self._began_at = 0.0

    async def latest(self) -> bytes:
        """Return a text at most ``FRESH_SECONDS`` older than the request; raises RenderingError.

        Requests during a rendering share its text.
        """
        now = self._clock()
        rendering = self._rendering
        if rendering is None or (rendering.done() and now - self._began_at >= FRESH_SECONDS):
            loop = asyncio.get_running_loop()
            try:
                rendering = loop.run_in_executor(self._thread, generate_latest, self._registry)
            except RuntimeError as error:
                raise RenderingError(f"rendering the metrics failed: {error}; try again") from error
            self._rendering, self._began_at = rendering, now
        # Shielded: a request that is cancelled must not cancel it for the others.
        return await asyncio.shield(rendering)

    def close(self) -> None:
        """Start no further rendering; one under way finishes."""
        self._thread.shutdown(wait=False)
