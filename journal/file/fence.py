"""The fence of the file journal, and its locks.

``journal.fence`` in the journal directory says who writes: a fencing token and a generation, which
counts how often the journal was opened. Whoever opens the journal

1. holds the lock of that file while opening, so that two who open do not meet;
2. writes its token and the next generation there;
3. reads the journal, makes it durable, and *seals* the files of the writer before it at the end of
   what it read;
4. creates files of its own, and writes that its generation is *complete*.

A writer reads the fence before each write and once more after it is durable, before anybody is
told. Either it reads the successor's generation, and tells nobody; or its write was there before
the successor began to read, and was read. A write that comes later lands behind a seal or in a file
of a generation that is neither complete nor sealed: nobody reads it. A writer never appends to a
file of an earlier generation, and never uses one again.

So a node that was stopped, lost its lock and wakes up can do no harm. This needs what POSIX says of
read and write (a read that begins after a write has returned sees it), which every local file
system keeps, and network file systems between two machines do not.
"""

import fcntl
import os
import struct
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orthia.database.file_lock import try_lock
from orthia.journal.errors import Fenced, JournalDamaged, JournalInUse
from orthia.journal.file import disk
from orthia.journal.file.disk import io_errors

FENCE_FILE: Final = "journal.fence"
_SLOT_BYTES: Final = 512
_SLOT: Final = struct.Struct(">8sQQQQI")
_MAGIC: Final = b"ORTHFENC"
_OPENING_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class FenceState:
    """What the fence says."""

    version: int = 0
    """Counts the writes of the file."""
    token: int = 0
    """The newest fencing token that opened the journal."""
    generation: int = 0
    """The newest generation; its writer is the only one that may write."""
    complete: int = 0
    """The newest generation whose files exist: those of later ones hold nothing yet."""


def encode(state: FenceState) -> bytes:
    """Return the slot of the fence's file that says ``state``."""
    head = _SLOT.pack(_MAGIC, state.version, state.token, state.generation, state.complete, 0)[:-4]
    return (head + struct.pack(">I", zlib.crc32(head))).ljust(_SLOT_BYTES, b"\0")


def decode(data: bytes) -> FenceState | None:
    """Return the newer of the two slots that can be read; None if neither can.

    Two, because a write that a crash cuts off spoils the slot it goes to.
    """
    states = []
    for at in range(0, 2 * _SLOT_BYTES, _SLOT_BYTES):
        slot = data[at : at + _SLOT.size]
        if len(slot) == _SLOT.size:
            magic, version, token, generation, complete, checksum = _SLOT.unpack(slot)
            if magic == _MAGIC and checksum == zlib.crc32(slot[:-4]):
                states.append(FenceState(version, token, generation, complete))
    return max(states, key=lambda state: state.version, default=None)


class Fence:
    """The fence file of one journal directory, opened."""

    def __init__(self, directory: Path, *, create: bool) -> None:
        """Open the fence; raises JournalIOError, or FileNotFoundError if not ``create``."""
        self.path = directory / FENCE_FILE
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            with io_errors(f"open {self.path}"):
                self._descriptor = os.open(self.path, flags | os.O_CREAT, 0o660)
                disk.sync_directory(directory)
        else:
            self._descriptor = os.open(self.path, flags)
        self._mine: bytes | None = None
        self._token = 0

    def close(self) -> None:
        """Close it, releasing a lock that it holds."""
        os.close(self._descriptor)

    def lock(self) -> None:
        """Wait for the lock of those who open the journal; raises JournalInUse."""
        timeout_seconds = _OPENING_SECONDS
        give_up_seconds = time.monotonic() + timeout_seconds
        while not try_lock(self._descriptor):
            if time.monotonic() >= give_up_seconds:
                raise JournalInUse(
                    f"another process has been opening the journal in {self.path.parent} for"
                    f" {timeout_seconds:g} s and holds the lock of {self.path}; if it is stopped,"
                    " continue or kill it"
                )
            time.sleep(_POLL_SECONDS)

    def unlock(self) -> None:
        """Release the lock of those who open the journal."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def read(self) -> FenceState:
        """Return what the fence says now; raises JournalDamaged, JournalIOError."""
        data = self._raw()
        state = decode(data)
        if state is not None:
            return state
        if any(data):
            raise JournalDamaged(
                f"{self.path} cannot be read; `orthia data recover` writes it anew"
            )
        return FenceState()

    def write(self, state: FenceState) -> FenceState:
        """Write ``state`` as the next version, durably, and return it; raises JournalIOError."""
        following = replace(state, version=self.read().version + 1)
        self._put(following)
        return following

    def rewrite(self, state: FenceState) -> None:
        """Write ``state`` whatever was there before; raises JournalIOError."""
        self._put(replace(state, version=1))
        self._put(replace(state, version=2))

    def adopt(self, state: FenceState) -> None:
        """Take ``state``, which the file says, for the writer's own."""
        self._token = state.token
        self._mine = self._raw()

    def another(self) -> "Fence":
        """Return the same for a thread that may outlive this one; raises JournalIOError."""
        with io_errors(f"open {self.path}"):
            fence = Fence(self.path.parent, create=False)
        fence._token, fence._mine = self._token, self._mine
        return fence

    def check(self) -> None:
        """Raise Fenced if anybody has opened the journal since ``adopt``; a few microseconds."""
        if self._raw() != self._mine:
            raise Fenced(self._token)

    def _raw(self) -> bytes:
        with io_errors(f"read {self.path}"):
            return os.pread(self._descriptor, 2 * _SLOT_BYTES, 0)

    def _put(self, state: FenceState) -> None:
        with io_errors(f"write {self.path}"):
            disk.write_all(self._descriptor, encode(state), (state.version % 2) * _SLOT_BYTES)
            os.fsync(self._descriptor)


class DirectoryLock:
    """The lock of a journal directory, held while it is open.

    It keeps tools away from the journal of a node that runs. Nodes do not wait for it: who of them
    may write is decided by the fence, and one that is stopped would hold it.
    """

    def __init__(self, directory: Path) -> None:
        with io_errors(f"open the directory {directory}"):
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.is_held = False

    def try_hold(self) -> bool:
        """Take the lock if nobody has it; return whether it is held."""
        if not self.is_held:
            self.is_held = try_lock(self._descriptor)
        return self.is_held

    def close(self) -> None:
        """Release it."""
        os.close(self._descriptor)
