"""The file of the audit log: JSON lines, written by a thread of its own, of bounded size.

A client never waits for it. What cannot be written waits in memory, up to a bound; what comes above
it is lost, and the file says how many lines. The file may be moved away at any time, as logrotate
does: the next line makes a new one. One that grew to its bound is moved by the node itself.
"""

import errno
import json
import logging
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orthia.broker.node.log_queue import LineQueue

LOGGER = logging.getLogger("orthia.broker")
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Some 300,000 lines."""
KEPT_FILES: Final = 9
"""Of those that were full, ``.1`` the latest; an older one goes."""
_PRIVATE: Final = 0o600


def audit_file_name(node_name: str) -> str:
    """Return the name of a node's file: nodes that share a directory have one each."""
    return f"audit-{re.sub(r'[^A-Za-z0-9._-]', '_', node_name)}.jsonl"


class AuditFile:
    """Takes lines on any thread; its own begins with the first."""

    def __init__(
        self, directory: Path, node_name: str, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """The file is in ``directory``, which is made if need be."""
        self.path = directory / audit_file_name(node_name)
        self._node_name = node_name
        self._max_file_bytes = max_file_bytes
        self._descriptor: int | None = None
        self._failed = False
        self._lines: LineQueue | None = None

    def write(self, line: bytes) -> None:
        """Queue a line to be written; raises nothing and waits for nothing."""
        if self._lines is None:
            self._lines = LineQueue(self._append, self._report, name="audit-log")
        self._lines.put(line)

    def flush(self, timeout_seconds: float) -> None:
        """Wait until all is written, for at most ``timeout_seconds``."""
        if self._lines is not None:
            self._lines.flush(timeout_seconds)

    # --- the thread

    def _append(self, line: bytes) -> None:
        try:
            _write_whole(self._opened(len(line)), line)
        except OSError as error:
            if not self._failed:
                LOGGER.warning(
                    "the audit log %s cannot be written: %s; retrying; lines wait in memory up to a"
                    " bound, further ones are lost",
                    self.path,
                    error.strerror or error,
                )
            self._failed = True
            raise
        self._failed = False

    def _opened(self, size: int) -> int:
        """Return the descriptor of the file; of a new one, if it is full or was moved away."""
        if self._descriptor is not None:
            own = os.fstat(self._descriptor)
            if self._is_at_path(own) and own.st_size + size <= self._max_file_bytes:
                return self._descriptor
            os.close(self._descriptor)
            self._descriptor = None
            if self._is_at_path(own):
                self._rotate()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, _PRIVATE)
        return self._descriptor

    def _is_at_path(self, own: os.stat_result) -> bool:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _rotate(self) -> None:
        for number in range(KEPT_FILES, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _report(self, lines: int, seconds: float) -> bytes:
        gap = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "node": self._node_name,
            "event": "lines-lost",
            "lines": lines,
            "seconds": round(seconds, 1),
        }
        return json.dumps(gap).encode() + b"\n"


def _write_whole(descriptor: int, line: bytes) -> None:
    """Write a line, or nothing of it: a disk that fills up may take a part, without an error."""
    written = os.write(descriptor, line)
    if written < len(line):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
