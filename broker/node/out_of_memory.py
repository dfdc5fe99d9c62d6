"""A node without memory ends, as after an IO error.

An allocation that fails leaves whatever was under way half done, on the loop the queues among it.
The loop would report the error and go on: such a node keeps its lease, and serves nobody.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from orthia.broker.node.exit_codes import ExitCode

REASON: Final = "the node ran out of memory (MemoryError)"
_RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Kept for the shutdown: it has to log, and to close connections."""


class OutOfMemory:
    """Whom to tell of a MemoryError, on any thread."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        """``give_up`` gets the reason, and begins the IO-error shutdown on another thread."""
        self._give_up = give_up
        self._reserve: bytearray | None = bytearray(_RESERVE_BYTES)

    def met(self) -> None:
        """End the node; at once, if there is no memory even for that."""
        self._reserve = None
        try:
            self._give_up(REASON)
        except MemoryError:
            os._exit(ExitCode.IO_ERROR)

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what a callback, a protocol or a task of the loop has raised and nobody caught."""
        if isinstance(context.get("exception"), MemoryError):
            self.met()
        loop.default_exception_handler(context)
