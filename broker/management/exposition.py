"""The text of ``/metrics``: rendered on a thread of its own, once for all who ask in a moment.

Rendering takes many milliseconds, in which the event loop would serve no client; and whoever
reaches the endpoint can ask as often as it likes.
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
"""For how long a text is given to whoever asks. Scrapers come every few seconds."""


class RenderingError(OrthiaError):
    """There is no thread to render on at the moment; for want of memory, as a rule."""


class Exposition:
    """Renders one registry; its methods are called on the event loop."""

    def __init__(
        self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is a stopwatch in seconds."""
        self._registry = registry
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="orthia-metrics")
        self._rendering: asyncio.Future[bytes] | None = None
        self._began_at = 0.0

    async def latest(self) -> bytes:
        """Return a text at most ``FRESH_SECONDS`` older than the question; raises RenderingError.

        Whoever asks while it is rendered gets the same one.
        """
        now = self._clock()
        rendering = self._rendering
        if rendering is None or (rendering.done() and now - self._began_at >= FRESH_SECONDS):
            loop = asyncio.get_running_loop()
            try:
                rendering = loop.run_in_executor(self._thread, generate_latest, self._registry)
            except RuntimeError as error:
                raise RenderingError(f"the metrics cannot be rendered: {error}") from error
            self._rendering, self._began_at = rendering, now
        # Shielded: who is cut off while waiting must not take it from the others.
        return await asyncio.shield(rendering)

    def close(self) -> None:
        """Render no more; what is being rendered is rendered to its end."""
        self._thread.shutdown(wait=False)
