"""Disk space kept free beside a SQLite database, for what must go on when the disk is full.

A DELETE and the renewal of a lease need room as an INSERT does: in the write-ahead log, and for the
checkpoint that lets it begin anew. So the node that writes has a file of some size beside the
database, and removes it when there is no room left; what is deleted from then on makes room.

A renewal may come first, or when that space is used up, and one that fails is the end of a node. So
leases have a file of their own, of which each takes a little when it finds no room: while it has
the database's only write lock, so that no message takes it.
"""

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 8 * 1024 * 1024
"""A write-ahead log of 1,000 pages, SQLite's own limit, twice: as it grows, and as it is copied."""
LEASE_RESERVE_BYTES = 1024 * 1024
LEASE_STEP_BYTES = 16 * 1024
"""More than a lease's page is in the write-ahead log. The reserve is enough for two minutes, with a
period of 2 s, if the log cannot begin anew meanwhile."""


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


class LeaseReserve:
    """The file for leases; any process that holds one, any thread."""

    def __init__(self, database: str) -> None:
        """Keep it beside the file of a database."""
        self._path = Path(f"{database}-lease-reserve")

    def fill(self) -> None:
        """Take what is missing of the space, as far as there is any; never raises."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            try:
                size = os.fstat(descriptor).st_size
                if size < LEASE_RESERVE_BYTES:
                    os.posix_fallocate(descriptor, size, LEASE_RESERVE_BYTES - size)
            finally:
                os.close(descriptor)

    def give(self) -> bool:
        """Give some of the space up; return whether there was any. Never raises."""
        try:
            size = self._path.stat().st_size
            os.truncate(self._path, max(0, size - LEASE_STEP_BYTES))
        except OSError:
            return False
        return size > 0

    def remove(self) -> None:
        """Give all of it up; never raises."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
