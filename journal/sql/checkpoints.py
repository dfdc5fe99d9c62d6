"""SQLite's checkpoints after large batches, made on a thread of their own.

A checkpoint copies the write-ahead log into the database file, so that the log can begin anew. By
itself SQLite makes one as a part of the commit that takes the log beyond 1,000 pages. After a
transaction of 64 MiB that takes two thirds as long as the commit, and everything that waits for the
writer waits for it too. So the writer makes none of those: a thread does, by a connection of its
own, beside the batches that follow. Ordinary batches go on making theirs.

The log begins anew only when all of it is copied. So with ``MOST_BYTES`` in it the writer waits for
the thread.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final

from orthia.database import translate_errors

LOGGER = logging.getLogger("orthia.journal")
LARGE_BYTES: Final = 16 * 1024 * 1024
"""A batch of so many bytes has its checkpoint made beside."""
MOST_BYTES: Final = 256 * 1024 * 1024
"""So many bytes of large batches may be in the log at most."""
_PAGES: Final = 1_000
"""SQLite's own limit of pages in the log."""


def checkpoint(database: str) -> None:
    """Copy what is in the log of ``database``, without waiting for anybody; raises sqlite3.Error.

    Until all is on the disk, as the writer's own checkpoints.
    """
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        connection.close()


class Checkpoints:
    """Those of one writer, which calls it around each batch, on its thread."""

    def __init__(
        self, database: str | None, checkpoint: Callable[[str], None] = checkpoint
    ) -> None:
        """``database`` is the path of its file; one in memory has no log."""
        self._database = "" if database is None or database == ":memory:" else database
        self._checkpoint = checkpoint
        self._thread: threading.Thread | None = None
        self._copied = 0
        """Bytes of large batches that the thread copies, at least."""
        self._stored = 0
        """Bytes of those stored since it began."""
        self._is_left_out = False
        """Whether the writer's connection makes none."""

    def connected(self) -> None:
        """Note that the writer has a new connection, which makes them by itself."""
        self._is_left_out = False

    def before(self, cursor: Any, size: int) -> None:
        """Choose who makes the checkpoint after a batch of ``size`` bytes, before it begins."""
        is_large = size >= LARGE_BYTES and self._database != ""
        if not is_large and not self._is_left_out:
            return
        thread = self._thread
        if thread is not None:
            if self._copied + self._stored + size > MOST_BYTES:
                thread.join()
            if not thread.is_alive():
                self._thread = None
                if self._stored:
                    self._begin()
        leaves_out = is_large or self._thread is not None
        if leaves_out is not self._is_left_out:
            with translate_errors("say who makes checkpoints"):
                cursor.execute(f"PRAGMA wal_autocheckpoint = {0 if leaves_out else _PAGES}")
            self._is_left_out = leaves_out

    def after(self, size: int) -> None:
        """Begin one if a batch of ``size`` bytes, which is stored, is large."""
        if size >= LARGE_BYTES and self._database != "":
            self._stored += size
            if self._thread is None:
                self._begin()

    def close(self) -> None:
        """Wait for the one that is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _begin(self) -> None:
        self._copied, self._stored = self._stored, 0
        self._thread = threading.Thread(
            target=self._run, args=(self._database,), name="orthia-checkpoint", daemon=True
        )
        self._thread.start()

    def _run(self, database: str) -> None:
        try:
            self._checkpoint(database)
        except sqlite3.Error as error:
            LOGGER.warning(
                "copying the write-ahead log into %s failed: %s; the journal's next batch tries"
                " again",
                database,
                error,
            )
