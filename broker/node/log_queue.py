"""A log whose callers never wait: a thread writes the lines.

A standard error that nobody reads (a full pipe, a stopped journald, a terminal on hold) blocks
whoever writes to it, and a broker logs on its event loop and on the watchdog of its lease. So lines
wait in memory, up to a bound. What comes above it is lost and counted; when lines can be written
again, one in the place of those that are lost says how many they were.
"""

import contextlib
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

from typing_extensions import override

from orthia.config.clock import monotonic_seconds

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""How much may wait: about 20,000 lines. A failover makes fifty."""
FLUSH_SECONDS: Final = 1.0
"""How long the end of a process waits for its last lines, at most."""
_RETRY_SECONDS: Final = 1.0
"""Between two attempts to write where that is an error: a full disk, a pipe without a reader."""
_LINE_BYTES: Final = 100
"""What a line costs beside its characters."""


@dataclass
class _Gap:
    """Lines that were lost, one after the other."""

    lines: int = 0
    since_seconds: float = field(default_factory=monotonic_seconds)


class LineQueue:
    """Lines that wait for a thread of their own to write them; whoever puts one never waits."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        report: Callable[[int, float], bytes],
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        name: str = "orthia-log",
    ) -> None:
        """``write`` writes a line, and may block or raise: then it gets the line again.

        ``report`` makes the line that stands for so many that were lost, within so many seconds.
        """
        self._write = write
        self._report = report
        self._max_waiting_bytes = max_waiting_bytes
        self._changed = threading.Condition()
        self._waiting: deque[bytes | _Gap] = deque()
        self._waiting_bytes = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Queue a line to be written; if too much waits it is lost and counted."""
        cost = len(line) + _LINE_BYTES
        with self._changed:
            if self._waiting_bytes + cost <= self._max_waiting_bytes:
                self._waiting.append(line)
                self._waiting_bytes += cost
                self._changed.notify_all()
                return
            last = self._waiting[-1] if self._waiting else None
            if not isinstance(last, _Gap):
                last = _Gap()
                self._waiting.append(last)
            last.lines += 1
            self._changed.notify_all()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Wait until all lines are written, for at most ``timeout_seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_seconds)

    def stop(self) -> None:
        """Flush, and end the thread."""
        self.flush()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    # --- the thread

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                self._write(line)
            except Exception:  # noqa: BLE001 - whatever it is, it may be mended later
                with self._changed:
                    if self._is_stopped:
                        return
                    self._changed.wait(_RETRY_SECONDS)
            else:
                with self._changed:
                    self._waiting.popleft()
                    self._waiting_bytes -= len(line) + _LINE_BYTES
                    self._changed.notify_all()

    def _next(self) -> bytes | None:
        """Wait for the first line, which stays where it is until it is written; None to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_stopped)
            if not self._waiting:
                return None
            first = self._waiting[0]
            if isinstance(first, _Gap):
                seconds = monotonic_seconds() - first.since_seconds
                first = self._waiting[0] = self._report(first.lines, seconds)
                self._waiting_bytes += len(first) + _LINE_BYTES
            return first


class QueuedHandler(logging.Handler):
    """Formats records on the caller's thread, and has a thread write the lines."""

    def __init__(self, stream: TextIO, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """Write to the descriptor of ``stream``, or to itself if it has none."""
        super().__init__()
        self._write = _writer(stream)
        self._lines = LineQueue(self._write, self._report, max_waiting_bytes)

    @override
    def handle(self, record: logging.LogRecord) -> bool:
        """Queue a record to be written if it passes the filters; raises nothing.

        Without the lock of the handler, which keeps nothing here: whoever formats a traceback reads
        source files, and where their file system hangs nobody could log any more.
        """
        passed = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record to be written; raises nothing."""
        with contextlib.suppress(MemoryError):
            self._lines.put(self._line(record))

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Wait until all that was logged is written, for at most ``timeout_seconds``."""
        self._lines.flush(timeout_seconds)

    def stop(self) -> None:
        """Flush, and end the thread: another handler takes this one's place."""
        self._lines.stop()

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - who logs is not to fail of it
            text = f"a line of {record.name} cannot be shown: {record.msg!r}: {error!r}"
        return f"{text}\n".encode(errors="backslashreplace")

    def _report(self, lines: int, seconds: float) -> bytes:
        text = (
            f"{lines} lines of this log were lost here: for {seconds:.1f} s nobody read what"
            " this node logs, or it could not be written; the failover log has every event of it"
        )
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
        self.filter(record)
        return self._line(record)


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    try:
        descriptor = stream.fileno()
    except OSError:  # it is in memory
        return lambda line: _write_text(stream, line)
    # Past the stream's own buffer: a thread that hangs in that has its lock, and the interpreter
    # would wait for it at its end.
    return lambda line: _write_bytes(descriptor, line)


def _write_text(stream: TextIO, line: bytes) -> None:
    stream.write(line.decode())
    stream.flush()


def _write_bytes(descriptor: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares it has made it non-blocking
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()
