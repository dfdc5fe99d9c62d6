"""The three ways to write a journal file: Artemis' ``journal-type``.

Each writes at an offset and then makes durable what was written. A failed sync is final: Linux
drops the pages it could not write, so that a second sync would say nothing about them.
"""

import contextlib
import errno
import importlib
import logging
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orthia.config.store_settings import JournalType
from orthia.journal.errors import JournalIOError
from orthia.journal.file import disk
from orthia.journal.file.disk import io_errors

LOGGER = logging.getLogger("orthia.journal")


class OpenFile(ABC):
    """A file that is being written; raises JournalIOError."""

    def __init__(self, path: Path, *, datasync: bool) -> None:
        self.path = path
        self._datasync = datasync
        with io_errors(f"open {path}"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, offset: int, data: bytes) -> None:
        """Write ``data``; it is durable after ``sync``."""
        with io_errors(f"write {len(data)} bytes to {self.path}"):
            self._write(offset, data)

    def sync(self) -> None:
        """Make durable what was written; nothing with ``journal-datasync`` false."""
        if self._datasync:
            with io_errors(f"sync {self.path}"):
                self._sync()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @abstractmethod
    def _write(self, offset: int, data: bytes) -> None: ...

    @abstractmethod
    def _sync(self) -> None: ...


class NioFile(OpenFile):
    """pwrite and fdatasync."""

    def _write(self, offset: int, data: bytes) -> None:
        disk.write_all(self._descriptor, data, offset)

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)


class MappedFile(OpenFile):
    """A memory map and msync."""

    def __init__(self, path: Path, *, datasync: bool) -> None:
        super().__init__(path, datasync=datasync)
        with io_errors(f"map {path}"):
            self._map = mmap.mmap(self._descriptor, 0)
        self._begin = self._end = 0

    def _write(self, offset: int, data: bytes) -> None:
        self._map[offset : offset + len(data)] = data
        self._begin = min(self._begin, offset) if self._end else offset
        self._end = max(self._end, offset + len(data))

    def _sync(self) -> None:
        if self._end:
            begin = self._begin // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.flush(begin, self._end - begin)
            self._begin = self._end = 0

    def close(self) -> None:
        """Unmap and close the file."""
        self._map.close()
        super().close()


class AsyncioFile(OpenFile):
    """Linux' native asynchronous IO: parts of a write in flight at once, then an fdsync."""

    def __init__(
        self, path: Path, aio: Any, context: Any, *, datasync: bool, buffer_size: int, max_io: int
    ) -> None:
        super().__init__(path, datasync=datasync)
        self._aio = aio
        self._context = context
        self._buffer_size = buffer_size
        self._max_io = max_io

    def _write(self, offset: int, data: bytes) -> None:
        parts = _parts(data, self._buffer_size)
        operation = self._aio.Operation
        at = offset
        while True:
            operations = []
            for part in parts:
                operations.append((operation.write(part, self._descriptor, at), len(part)))
                at += len(part)
                if len(operations) == self._max_io:
                    break
            if not operations:
                return
            if not self._run(operations):
                # Cut short, as by a disk that is full: plain writes say why.
                disk.write_all(self._descriptor, data, offset)
                return

    def _sync(self) -> None:
        self._run([(self._aio.Operation.fdsync(self._descriptor), 0)])

    def _run(self, operations: list[tuple[Any, int]]) -> bool:
        """Submit operations, wait for all of them, and return whether each did all it was to."""
        results: list[tuple[int, int]] = []
        for one, expected in operations:
            one.set_callback(lambda result, expected=expected: results.append((result, expected)))
        waiting = [one for one, _ in operations]
        while waiting:
            waiting = waiting[_unless_interrupted(self._context.submit, *waiting) :]
            _unless_interrupted(self._context.process_events, self._max_io, 0, 0)
        while len(results) < len(operations):
            _unless_interrupted(self._context.process_events, self._max_io, 1, 1)
        for result, _ in results:
            if result < 0:
                raise OSError(-result, os.strerror(-result))
        return all(result == expected for result, expected in results)


def _unless_interrupted(call: Callable[..., int], *arguments: Any) -> int:
    """Return what ``call`` does, 0 if a signal cut it off; raises OSError.

    The library raises SystemError for what the kernel returns: a process that was stopped and
    continued meets EINTR.
    """
    try:
        return call(*arguments)
    except (SystemError, OSError, ValueError) as error:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else errno.EIO
        if number == errno.EINTR:
            return 0
        raise OSError(number, str(error)) from error


def _parts(data: bytes, size: int) -> Iterator[bytes]:
    if len(data) <= size:
        yield data
        return
    for at in range(0, len(data), size):
        yield data[at : at + size]


Opener = Callable[[Path], OpenFile]


def opener(
    journal_type: JournalType, *, datasync: bool, buffer_size: int, max_io: int
) -> tuple[JournalType, Opener]:
    """Return how files are opened, and the journal type that is in effect.

    ASYNCIO falls back to NIO, with a warning, where the kernel or the library has none.
    """
    if journal_type is JournalType.MAPPED:
        return journal_type, lambda path: MappedFile(path, datasync=datasync)
    if journal_type is JournalType.ASYNCIO:
        try:
            # Not on every platform. Where it cannot be loaded (no kernel support, or fs.aio-max-nr
            # is used up) "from caio import" gives None, and this says why.
            linux_aio = importlib.import_module("caio.linux_aio")
            context = linux_aio.Context(max_io)
        except (ImportError, OSError, SystemError) as error:
            LOGGER.warning(
                "journal-type ASYNCIO is not available (%s): using NIO, which is as durable",
                error,
            )
        else:
            return journal_type, lambda path: AsyncioFile(
                path,
                linux_aio,
                context,
                datasync=datasync,
                buffer_size=buffer_size,
                max_io=max_io,
            )
    return JournalType.NIO, lambda path: NioFile(path, datasync=datasync)


def probe(open_file: Opener, path: Path) -> bool:
    """Return whether files in the directory of ``path`` can be written in this way.

    A kernel may offer asynchronous IO that a file system refuses.
    """
    try:
        path.write_bytes(bytes(4096))
        file = open_file(path)
        try:
            file.write(0, b"probe")
            file.sync()
        finally:
            file.close()
    except (JournalIOError, OSError, ValueError):
        return False
    finally:
        # A leftover does no harm: the next probe overwrites it.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return True
