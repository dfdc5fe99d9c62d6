"""Watches how full the disks of the store are, on a thread; a pure rule judges that.

Sends are refused while a disk has less room than ``max-disk-usage`` and ``min-disk-free`` leave,
whatever uses it: long before the store and its locks run out of room. Space that the store will
reuse inside its files counts as room: the files never shrink.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.reminders import Reminder

LOGGER = logging.getLogger("orthia.broker")
_BYTES_PER_SECOND = 256 * 1024 * 1024
"""The assumed fastest rate at which a disk fills: the next look comes before it could be full."""
_SHORTEST_SECONDS = 0.1
_JOIN_SECONDS = 1.0


@dataclass(frozen=True)
class Disk:
    """A disk as it was found."""

    path: Path
    total: int
    """Bytes."""
    free: int
    """Bytes that this process may still write, in new files or in those it has."""

    @property
    def used_percent(self) -> float:
        """How much of it is used."""
        return 100.0 * (self.total - self.free) / self.total if self.total else 0.0


@dataclass(frozen=True)
class DiskLimits:
    """What must remain free; below 0 is no limit."""

    max_disk_usage: int
    min_disk_free: int

    @property
    def is_any(self) -> bool:
        """Whether there is anything to look at."""
        return self.max_disk_usage >= 0 or self.min_disk_free >= 0

    def left(self, disk: Disk) -> int:
        """Return how many bytes may be written before a limit is reached; 0 and less beyond."""
        left = disk.free
        if self.max_disk_usage >= 0:
            left = min(left, disk.free - disk.total * (100 - self.max_disk_usage) // 100)
        if self.min_disk_free >= 0:
            left = min(left, disk.free - self.min_disk_free)
        return left

    def problem(self, disk: Disk) -> str | None:
        """Return why nothing is to be stored on a disk, as a sentence; None if there is room."""
        if self.left(disk) >= 0:
            return None
        is_usage = disk.used_percent > self.max_disk_usage >= 0
        limit = (
            f"max-disk-usage {self.max_disk_usage}"
            if is_usage
            else f"min-disk-free {self.min_disk_free}"
        )
        return (
            f"the disk of {disk.path} is {disk.used_percent:.1f} % full, with {disk.free} bytes"
            f" free, beyond {limit}: messages are refused until there is room; consume messages, or"
            " free disk space"
        )


class DiskWatch:
    """Looks every so often; ``told`` gets a problem, or None when there is room again."""

    def __init__(
        self,
        directories: Sequence[Path],
        limits: DiskLimits,
        *,
        period_ms: int,
        reusable: Callable[[], int],
        told: Callable[[str | None], None],
    ) -> None:
        """``reusable`` returns the bytes the store's own files have free; it may block.

        Both callables are called on the thread of the watch, ``told`` with each change.
        """
        self._directories = directories
        self._limits = limits
        self._period_seconds = period_ms / 1000
        self._reusable = reusable
        self._told = told
        self._stopped = threading.Event()
        self._problem: str | None = None
        self._reminder: Reminder | None = None
        self._unseen: str | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look once, on the caller's thread, and then on the watch's own."""
        if self._directories and self._limits.is_any:
            left = self._look()
            self._thread = threading.Thread(
                target=self._run, args=(left,), name="disk-usage", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop watching; any thread but the loop's."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self, left: int) -> None:
        while not self._stopped.wait(self._pause(left)):
            left = self._look()

    def _pause(self, left: int) -> float:
        soon = max(_SHORTEST_SECONDS, left / _BYTES_PER_SECOND)
        return min(self._period_seconds, soon) if left > 0 else self._period_seconds

    def _look(self) -> int:
        """Look at every disk, tell what changed, and return how much the fullest has left."""
        try:
            disks = self._disks()
        except (OSError, OrthiaError) as error:
            if str(error) != self._unseen:
                LOGGER.warning("checking the disk of the store failed: %s; retrying", error)
            self._unseen = str(error)
            return 0
        self._unseen = None
        if self._stopped.is_set():
            return 0  # a look that hung: the node may be live again, with another watch
        fullest = min(disks, key=self._limits.left)
        self._judge(self._limits.problem(fullest))
        return self._limits.left(fullest)

    def _judge(self, problem: str | None) -> None:
        now = monotonic_seconds()
        was_full, self._problem = self._problem is not None, problem
        if problem is None:
            if was_full:
                LOGGER.warning("the disk of the store has room again: accepting messages")
                self._told(None)
            return
        self._told(problem)
        if not was_full:
            self._reminder = Reminder(now)
            LOGGER.warning("%s", problem)
        elif self._reminder is not None and (seconds := self._reminder.due(now)) is not None:
            LOGGER.warning("for %.0f s %s", seconds, problem)

    def _disks(self) -> list[Disk]:
        reusable = self._reusable()
        found: dict[int, Disk] = {}
        for directory in self._directories:
            device = directory.stat().st_dev
            if device not in found:
                status = os.statvfs(directory)
                free = status.f_bavail * status.f_frsize
                # Of what is used some may be nobody's to use: root's reserve is not room.
                used = (status.f_blocks - status.f_bfree) * status.f_frsize
                # The files are in the first directory, or nearly all of them.
                again = reusable if not found else 0
                found[device] = Disk(directory, used + free, min(used + free, free + again))
        return list(found.values())
