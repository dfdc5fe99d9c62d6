"""A node without memory ends, as after an IO error.

An allocation that fails leaves whatever was under way half done, on the loop the queues among it.
The loop would report the error and go on: such a node keeps its lease, and serves nobody.

A thread that dies of it is heard of by hooks of the interpreter, and those need memory, too. Where
one fails the interpreter calls the next, so that all three lead here:

| Hook | Called |
|---|---|
| ``threading.excepthook`` | when a thread dies |
| ``sys.excepthook`` | when that hook, or making its argument, fails |
| ``sys.unraisablehook`` | when a thread could not begin, or none of the above could be called |

The last is called on the thread that could not begin, which has no room for a single frame of
Python: there the interpreter can call what is written in C, and nothing else. So the hook is the
``put`` of a queue, and a thread that is there from the start takes it from there.

What ends the process at once is made before it is needed.
"""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn

from orthia.broker.node.exit_codes import ExitCode

REASON: Final = "the node ran out of memory (MemoryError)"
_RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Kept for the shutdown: it has to log, and to close connections."""

end_at_once: Final[Callable[[], NoReturn]] = partial(os._exit, int(ExitCode.IO_ERROR))
"""Ends the process as after an IO error; needs no memory."""


class OutOfMemory:
    """Whom to tell of a MemoryError, on any thread."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        """``give_up`` gets the reason, and begins the IO-error shutdown on another thread."""
        self._give_up = give_up
        self._reserve: bytearray | None = bytearray(_RESERVE_BYTES)

    def met(self) -> None:
        """End the node; at once, if there is no memory even for that."""
        self.make_room()
        try:
            self._give_up(REASON)
        except BaseException:  # noqa: BLE001 - whatever it is, nobody else ends the node
            end_at_once()

    def make_room(self) -> None:
        """Give what is kept for the shutdown to whoever has to begin it."""
        self._reserve = None

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what a callback, a protocol or a task of the loop has raised and nobody caught."""
        if isinstance(context.get("exception"), MemoryError):
            self.met()
        loop.default_exception_handler(context)

    @staticmethod
    def hook_failed(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Be ``sys.excepthook``: without memory, end the process."""
        if issubclass(kind, MemoryError):
            end_at_once()
        sys.__excepthook__(kind, error, traceback)


class UnraisableErrors:
    """Has a thread hear of errors that were raised where nobody can catch them."""

    def __init__(self, hear: Callable[["sys.UnraisableHookArgs"], None]) -> None:
        """``hear`` gets each, on the thread; a MemoryError that it raises ends the process."""
        self._hear = hear
        # Without a bound: who puts cannot wait. It is taken out as fast as lines are logged.
        self._raised: queue.SimpleQueue[sys.UnraisableHookArgs | None] = queue.SimpleQueue()
        self.hook: Final = self._raised.put
        """What is to be ``sys.unraisablehook``: a method in C, which needs no frame."""
        self._thread = threading.Thread(target=self._run, name="orthia-unraisable", daemon=True)

    def start(self) -> None:
        """Begin to hear."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, when all is heard."""
        self._raised.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (what := self._raised.get()) is not None:
                self._hear(what)
                del what  # which keeps alive what it is about
        except MemoryError:
            end_at_once()
