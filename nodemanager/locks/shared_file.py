"""The lock of ``shared-file-locker``: the operating system's, on a file in a shared directory.

It ends with the process that holds it. The file holds a line that names its holder; keeping alive
reads it back, so that a file that somebody removed, replaced, emptied or wrote to is noticed: such
a file may lock nobody out.
"""

import contextlib
import os
from typing import Final

from typing_extensions import override

from orthia.database import StoreUnavailable
from orthia.database.file_lock import try_lock
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import ExclusiveLock
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.lock_directory import LockDirectory

_FILES: Final = {Lock.LIVE: "lock", Lock.BACKUP: "lock.backup"}
"""Classic's file, and one for the place of next in line."""
_LONGEST: Final = 1_024


class SharedFileLock(ExclusiveLock):
    """The lock of one file."""

    def __init__(self, directory: LockDirectory, lock: Lock, holder_id: str) -> None:
        """Lock in ``directory``."""
        self._directory = directory
        self._path = directory.path / _FILES[lock]
        self._line = f"{holder_id}\n".encode()
        self._descriptor: int | None = None

    @override
    def prepare(self) -> None:
        self._directory.join()

    @override
    def try_acquire(self) -> bool:
        """Take the lock, and write who has it into the file."""
        self.release()
        self._directory.check()
        try:
            # Reopened each time: a file that was replaced since would exclude nobody.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error.strerror}") from error
        try:
            if not try_lock(descriptor) or not self._is_at_its_place(descriptor):
                os.close(descriptor)
                return False
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._line, 0)
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreUnavailable(f"{self._path} cannot be locked: {error.strerror}") from error
        self._descriptor = descriptor
        return True

    @override
    def keep_alive(self) -> None:
        """Look whether the file is the one that was locked, and says what was written."""
        descriptor = self._descriptor
        if descriptor is None:
            raise LockLost(f"{self._path} is not locked by this node")
        if not self._is_at_its_place(descriptor):
            raise LockLost(f"{self._path} was removed or replaced by somebody else")
        try:
            line = os.pread(descriptor, _LONGEST, 0)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error.strerror}") from error
        if line != self._line:
            raise LockLost(f"{self._path} was emptied or written to by somebody else")

    @override
    def release(self) -> None:
        """Release the lock; the file stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    @override
    def is_free(self) -> bool:
        """Look without writing."""
        self._directory.check()
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error.strerror}") from error
        try:
            return try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _is_at_its_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except OSError:
            return False
