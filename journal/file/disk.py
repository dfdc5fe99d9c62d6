"""What the journal asks of the file system, with errors of its own.

Everything that changes a directory goes through here: tests stop the journal between any two of
these calls.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orthia.journal.errors import JournalIOError
from orthia.journal.file.format import SEAL_AT

_FILL_BYTES = 1024 * 1024


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NoRoomOnDisk(JournalIOError):  # noqa: N818 - named for what is the case
    """The disk has no room for another file; what is in use goes on."""


@contextmanager
def io_errors(what: str) -> Iterator[None]:
    """Raise what the operating system refuses as JournalIOError: ``cannot WHAT: reason``."""
    try:
        yield
    except OSError as error:
        kind = NoRoomOnDisk if error.errno in _NO_ROOM else JournalIOError
        raise kind(f"cannot {what}: {error.strerror or error}") from error


def make_directory(directory: Path, *, create: bool, element: str) -> None:
    """Make ``directory`` durably if it is not there and may be made; raises JournalIOError.

    One at a time, each synced before the next is made: whoever died in between left no more than
    one whose name may not be durable, the last that is there. So that one is synced in any case.
    """
    if not directory.is_dir() and not create:
        raise JournalIOError(
            f"there is no directory {directory}, and {element} is false; create the directory, or"
            f" set {element} to true"
        )
    with io_errors(f"create the directory {directory}"):
        missing = [one for one in (directory, *directory.parents) if not one.is_dir()]
        there = missing[-1].parent if missing else directory
        # A mount point, or a directory that we may not read, was not made for a journal.
        if not there.is_mount():
            with contextlib.suppress(PermissionError):
                sync_directory(there.parent)
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            sync_directory(one.parent)


def sync_directory(directory: Path) -> None:
    """Make what was created, renamed and removed in ``directory`` durable; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path, size: int, header: bytes, fill_from: int = 0) -> None:
    """Write ``header`` and, from ``fill_from`` on, zeros up to ``size``, durably; raises OSError.

    Filled, so that a later sync has no block to allocate and no metadata to write.
    """
    # Never in place: a stopped process may have half filled a file of this name and may continue.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
    try:
        zeros = bytes(_FILL_BYTES)
        for at in range(fill_from, size, _FILL_BYTES):
            write_all(descriptor, zeros[: min(_FILL_BYTES, size - at)], at)
        write_all(descriptor, header, 0)
        os.fsync(descriptor)
    except OSError:
        # Half of a file would only use up the last room on the disk.
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def rewrite_header(path: Path, header: bytes) -> None:
    """Make a file another one, durably, whatever it holds; raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        write_all(descriptor, header, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data``, however many calls it takes; raises OSError."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        data, offset = memoryview(data)[written:], offset + written
        written = os.pwrite(descriptor, data, offset)


def rename(old: Path, new: Path) -> None:
    """Rename a file; ``new`` must be nobody's. Raises OSError."""
    os.rename(old, new)  # noqa: PTH104 - tests count the calls of this module


def rename_if_free(old: Path, new: Path) -> bool:
    """Rename a file unless ``new`` exists, in which case nothing is done; raises OSError."""
    try:
        os.link(old, new)
    except FileExistsError:
        return False
    try:
        remove(old)
    except OSError:
        # With two names it would count as two files.
        remove(new)
        raise
    return True


def remove(path: Path) -> None:
    """Remove a file if it is there; raises OSError."""
    try:
        os.unlink(path)  # noqa: PTH108 - tests count the calls of this module
    except FileNotFoundError:
        return


def seal(descriptor: int, seal_bytes: bytes) -> None:
    """Write a file's seal, durably; raises OSError."""
    write_all(descriptor, seal_bytes, SEAL_AT)
    os.fsync(descriptor)
