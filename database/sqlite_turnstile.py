"""Fairness SQLite lacks: lease renewals go before the journal's batches.

SQLite lets one connection write at a time, and a connection that waits polls with growing sleeps:
a journal writer that begins its next batch right after the last one leaves no gap that a waiting
renewal would ever hit. The turnstile is a lock file beside the database. A lease statement holds
it shared while it waits and writes; before each batch the journal writer looks whether anybody
holds it, of any process, and gives way until nobody does.

Giving way is bounded: a process that froze inside ``urgent`` costs the writer ``GIVE_WAY_SECONDS``
and then nothing for the following ``INSIST_SECONDS``.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from orthia.database.abc import Turnstile
from orthia.database.file_lock import try_lock

GIVE_WAY_SECONDS = 0.3
"""Longer than the longest sleep (100 ms) of SQLite's busy handler, so that the waiter gets in."""
INSIST_SECONDS = 1.0
_ENTER_SECONDS = 0.1
_POLL_SECONDS = 0.002


class OpenTurnstile(Turnstile):
    """The turnstile of a DBMS that locks rows: no session blocks another."""

    @contextmanager
    @override
    def urgent(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @override
    def give_way(self) -> None:
        """Do nothing."""


class SqliteTurnstile(Turnstile):
    """The turnstile of one SQLite database; one object serves all threads of a process."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + "-turnstile")
        self._insist_until_seconds = 0.0

    @contextmanager
    @override
    def urgent(self) -> Iterator[None]:
        """Hold the lock file shared; goes on without it if a frozen writer has it."""
        descriptor = self._open()
        try:
            give_up_seconds = time.monotonic() + _ENTER_SECONDS
            while not try_lock(descriptor, fcntl.LOCK_SH) and time.monotonic() < give_up_seconds:
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    @override
    def give_way(self) -> None:
        """Return once nobody holds the turnstile, or after GIVE_WAY_SECONDS."""
        if time.monotonic() < self._insist_until_seconds:
            return
        descriptor = self._open()
        try:
            give_up_seconds = time.monotonic() + GIVE_WAY_SECONDS
            while not _is_free(descriptor):
                if time.monotonic() >= give_up_seconds:
                    self._insist_until_seconds = time.monotonic() + INSIST_SECONDS
                    return
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)


def _is_free(descriptor: int) -> bool:
    if not try_lock(descriptor, fcntl.LOCK_EX):
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
