"""Space on the disk of a SQLite database that is kept free for what must go on when it is full.

A DELETE and the renewal of a lease need room as an INSERT does: in the write-ahead log, and for the
checkpoint that lets it begin anew. So the node that writes has a file of some size beside the
database, and removes it when there is no room left; what is deleted from then on makes room.
"""

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 8 * 1024 * 1024
"""A write-ahead log of 1,000 pages, SQLite's own limit, twice: as it grows, and as it is copied."""


class SpaceReserve:
    """The file; one writer at a time, any thread."""

    def __init__(self, database: str | None) -> None:
        """Keep it beside the file of a database; one that is in memory needs none."""
        self._path = None if database in (None, "", ":memory:") else Path(f"{database}-reserve")

    def hold(self) -> bool:
        """Take the space, if there is so much; return whether it is held."""
        if self._path is None:
            return True
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        except OSError:
            self.release()
            return False
        finally:
            os.close(descriptor)
        return True

    def release(self) -> None:
        """Give the space back; never raises."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
