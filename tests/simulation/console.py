"""Standard error of a simulated process, and who reads it, or does not."""

import io
import logging
from collections.abc import Callable
from functools import partial

from orthia.broker.node.log_queue import QueuedHandler
from orthia.nodemanager.events import Event
from orthia.nodemanager.failover_log import FailoverLog
from tests.simulation.engine import Engine, SimulatedEvent

_LINE = b"an event\n"
_RECORD = logging.makeLogRecord({})
_MAX_WAITING_BYTES = 10 * 110
"""About ten lines: a few events more than a pipe takes are lost."""


class Console:
    """A pipe that is full at once while nobody reads it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_read = SimulatedEvent(engine)
        self._is_read.set()

    def block(self, seconds: float | None) -> None:
        """Have nobody read it for so long, or ever again."""
        self._is_read.clear()
        if seconds is not None:
            self._engine.after(seconds, self._is_read.set)

    def fileno(self) -> int:
        """Have none, so that lines are written by ``write``."""
        raise io.UnsupportedOperation

    def write(self, _: str) -> int:
        """Wait until somebody reads."""
        self._is_read.wait()
        return 0

    def flush(self) -> None:
        """Keep nothing back."""


class Handler(QueuedHandler):
    """The node's handler, which formats nothing."""

    def __init__(self, console: Console, engine: Engine) -> None:
        super().__init__(console, _MAX_WAITING_BYTES)  # type: ignore[arg-type]
        self._engine = engine

    def flush(self, timeout_seconds: float = 1.0) -> None:
        """Flush, but at the end of the interpreter, which is in no world."""
        if self._engine.current is not None:
            super().flush(timeout_seconds)

    def _line(self, record: logging.LogRecord) -> bytes:
        del record
        return _LINE


class WaitingHandler(Handler):
    """One that has its caller wait, as those of the standard library do."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write at once."""
        self._write(self._line(record))


class ConsoleLog(FailoverLog):
    """A failover log of which nothing is kept but lines on the console."""

    def __init__(self, handler: Handler, *, node_name: str, holder_id: str) -> None:
        super().__init__(node_name=node_name, holder_id=holder_id, role="node")
        self._show_line = partial(handler.emit, _RECORD)

    def record(self, event: Event) -> Callable[[], None]:
        """Return what logs a line."""
        del event
        return self._show_line
